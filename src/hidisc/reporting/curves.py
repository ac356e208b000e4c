"""Confusion matrices, ROC and precision-recall; lines over a setting, training steps, or micrometres per pixel."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from hidisc.evaluation.classes import measure_areas
from hidisc.evaluation.predictions import ENCODER, Predictions
from hidisc.evaluation.scores import ScoresInfo
from hidisc.reporting.evaluated import EvaluatedModel
from hidisc.reporting.figures import (
    DASHES,
    FONT_PT,
    GREY,
    INK,
    LEGEND_PT,
    MARKERS,
    TITLE_PT,
    Drawing,
    FigureFolder,
    Floats,
    entry,
    figure_style,
    fit,
    lay_panels,
    measure,
    palette,
    settle,
    shorten,
)
from hidisc.reporting.table import metric_values
from hidisc.settings.level_names import USUAL, LevelNames

_TICK_IN = 1.3
"""Largest width, in inches, of the name of a class beside the matrix."""


def add_confusion(
    drawn: FigureFolder, model: EvaluatedModel, level: str, confusion: Sequence[Sequence[int]], more: str = ""
) -> Drawing:
    """Write the confusion matrix of a model at a level and return it for the page; `more` is added to the caption."""
    title = f"{model.name}, {model.words.word(level)} level"
    figure = draw_confusion(confusion, model.scores[0].info.endpoint.classes, title)
    return drawn.add(f"confusion-{drawn.slug(model.name)}-{model.words.file_part(level)}", figure, f"{title}{more}")


@figure_style()
def draw_confusion(confusion: Sequence[Sequence[int]], classes: Sequence[str], title: str) -> Figure:
    """Truth by row, prediction by column (L, L): counts, and percent of the row, which is also the colour."""
    counts = np.asarray(confusion, np.int64)
    units = counts.sum(axis=1, keepdims=True)
    share = counts / np.maximum(units, 1)
    count = len(classes)
    cell, font = (0.72, 8.5) if count <= 8 else (0.56, 6.5)
    figure = Figure(figsize=(count * cell + 1.7, count * cell + 1.5))
    axes = figure.add_subplot()
    axes.imshow(share, cmap="Blues", vmin=0, vmax=1.1)  # a little beyond 1, so that the darkest cell is still blue
    for row in range(count):
        for column in range(count):
            shown = f"{counts[row, column]:,}\n{100 * share[row, column]:.0f} %" if units[row, 0] else "–"
            colour = "white" if share[row, column] > 0.72 else INK if counts[row, column] else GREY
            axes.text(column, row, shown, ha="center", va="center", color=colour, fontsize=font, linespacing=1.25)
    places = np.arange(count)
    names = [fit(name, _TICK_IN, FONT_PT) for name in classes]
    is_wide = max(measure(name, FONT_PT, "normal") for name in names) > 0.95 * cell
    turned: dict[str, Any] = {"rotation": 40, "ha": "right", "rotation_mode": "anchor"}
    axes.set_xticks(places, names, **(turned if is_wide else {}))
    axes.set_yticks(places, [f"{name} ({total:,})" for name, total in zip(names, units[:, 0].tolist(), strict=True)])
    axes.set_xticks(places[1:] - 0.5, minor=True)
    axes.set_yticks(places[1:] - 0.5, minor=True)
    axes.grid(which="minor", color="white", linewidth=1.5)
    axes.tick_params(which="both", length=0)
    axes.spines[:].set_visible(False)
    axes.set(xlabel="Predicted", ylabel="Truth (how many)")
    return settle(figure, title)


_POINTS = 1001
"""Most points of a curve; a reader cannot see more."""


@figure_style()
def draw_curves(by_name: Mapping[str, Predictions], positive: int, title: str) -> Figure:
    """ROC and precision-recall side by side, areas in percent in the legends, chance as a thin line.

    Two classes: a line per model, for the positive class. More classes: a line per model, the mean over the classes; of
    a single model, a line per class. A class that no unit has, or that all units have, has no curve.
    """
    lines = _choose_lines(by_name, positive)
    figure = Figure(figsize=(7.6, 3.7 + 0.17 * max(0, len(lines) - 2)))
    panels = figure.subplots(1, 2)
    colours = palette(len(lines))
    for number, (name, predictions, codes) in enumerate(lines):
        line: dict[str, Any] = {"color": colours[number], "linestyle": DASHES[number % len(DASHES)], "linewidth": 1.6}
        short = fit(name, 1.5, LEGEND_PT)
        areas = measure_areas(predictions)  # (2, L)
        known = [code for code in codes if not np.isnan(areas[0, code])]
        if 0 < len(known) < len(codes):
            short += f" ({len(known)} of {len(codes)} classes)"
        for axes, trace, by_class in zip(panels, (_trace_roc, _trace_precision), areas, strict=True):
            area = f"{100 * np.mean(by_class[known]):.1f}" if known else "–"
            curve = _mean_curve(_trace_folds(trace, predictions, known)) if known else ([], [])
            axes.plot(*curve, label=f"{area}  {short}", **line)
    _add_chance(panels[0], panels[1], lines, colours)
    for axes, panel, name, across, up in (
        (panels[0], "ROC", "AUROC (%)", "1 - specificity", "Sensitivity"),
        (panels[1], "Precision and recall", "AUPRC (%)", "Recall (sensitivity)", "Precision"),
    ):
        axes.set(xlim=(-0.01, 1.01), ylim=(-0.01, 1.01), aspect="equal", xlabel=across, ylabel=up, title=panel)
        axes.set(xticks=np.linspace(0, 1, 6), yticks=np.linspace(0, 1, 6))
        axes.legend(title=name, loc="upper center", bbox_to_anchor=(0.5, -0.16), alignment="left", handlelength=3.2)
    return settle(figure, title)


_Line = tuple[str, Predictions, list[int]]
"""The name of a curve, its predictions, and the codes of the classes over which it is the mean."""


def _choose_lines(by_name: Mapping[str, Predictions], positive: int) -> list[_Line]:
    lines: list[_Line] = []
    for name, predictions in by_name.items():
        codes = [positive] if len(predictions.classes) == 2 else list(range(len(predictions.classes)))
        if len(by_name) == 1 and len(codes) > 1:
            lines += [(predictions.classes[code], predictions, [code]) for code in codes]
        else:
            lines.append((name, predictions, codes))
    return lines


_Curve = tuple[Floats, Floats]


def _trace_folds(
    trace: Callable[[NDArray[np.bool_], Floats], _Curve], predictions: Predictions, codes: Sequence[int]
) -> list[_Curve]:
    """The curve of every class in every fold that has units of this class and of other classes."""
    curves = []
    for members in predictions.split_by_fold():
        truth, scores = predictions.truth[members], predictions.scores[members]
        there = [code for code in codes if 0 < int((truth == code).sum()) < len(truth)]
        curves += [trace(truth == code, scores[:, code]) for code in there]
    return curves


def _trace_roc(is_class: NDArray[np.bool_], score: Floats) -> _Curve:
    """The ROC curve of a class against the rest."""
    from sklearn.metrics import roc_curve

    across, up, _ = roc_curve(is_class, score)
    return across, up


def _trace_precision(is_class: NDArray[np.bool_], score: Floats) -> _Curve:
    """Precision by recall in steps, as average precision counts: up to a recall, the precision where it is reached."""
    from sklearn.metrics import precision_recall_curve

    precision, recall, _ = precision_recall_curve(is_class, score)
    first = np.r_[True, np.diff(recall[::-1]) > 0]  # the highest threshold of each recall
    recall, precision = recall[::-1][first], precision[::-1][first]
    return np.repeat(recall, 2)[1:-1], np.repeat(precision, 2)[2:]


def _mean_curve(curves: Sequence[_Curve]) -> _Curve:
    """A single curve, with at most `_POINTS` points; of several curves, the mean height at every place."""
    if len(curves) == 1 and len(curves[0][0]) <= _POINTS:
        return curves[0]
    grid = np.linspace(0, 1, _POINTS)
    heights = np.mean([np.interp(grid, across, up) for across, up in curves], axis=0)
    first = np.mean([up[0] for _, up in curves])  # where a curve rises at once, interpolation knows the upper end only
    return np.r_[0.0, grid], np.r_[first, heights]


def _add_chance(roc: Axes, precision: Axes, lines: Sequence[_Line], colours: Sequence[str]) -> None:
    """Lines of a guess: the diagonal, and the share of positives, which is a line per curve where the shares differ."""
    looks: dict[str, Any] = {"linewidth": 0.8, "zorder": 0}
    roc.plot([0, 1], [0, 1], color=GREY, **looks)
    judged = [(predictions, codes) for _, predictions, codes in lines if len(predictions)]
    shares = [float(np.mean([(predictions.truth == code).mean() for code in codes])) for predictions, codes in judged]
    if shares and np.ptp(shares) < 0.005:
        precision.axhline(shares[0], color=GREY, **looks)
        return
    for share, colour in zip(shares, colours, strict=False):
        precision.axhline(share, color=colour, alpha=0.45, **looks)


KNOWN_COLUMNS = ("step", "learning_rate", "grad_norm", "effective_rank", "knn_accuracy", "images_per_s", "wait_share")
"""Columns of metrics.csv that are not losses; every other column is the loss or one of its terms."""


@dataclass(frozen=True)
class Line:
    """A line of values (n,) at places (n,)."""

    name: str
    places: Sequence[float]
    values: Sequence[float]
    errors: Any = None
    """Length of the error bars (n,), or their lengths down and up (2, n)."""
    is_floor: bool = False
    """Whether it is the line of a floor, which is grey and without marks, and drawn last."""


@figure_style()
def draw_lines(panels: Mapping[str, Sequence[Line]], axis: str, width_in: float, is_log: bool) -> Figure:
    """Panels side by side by their titles, each with lines and error bars, and one legend."""
    figure = Figure(figsize=(width_in, 3.2), layout="constrained")
    drawn = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for axes, (title, lines) in zip(drawn, panels.items(), strict=True):
        colours = palette(sum(not line.is_floor for line in lines))
        for number, line in enumerate(lines):
            if line.is_floor:
                axes.plot(line.places, line.values, color=GREY, label=line.name)
                continue
            look: dict[str, Any] = {"marker": MARKERS[number % len(MARKERS)], "linestyle": DASHES[number % len(DASHES)]}
            look |= {"color": colours[number], "markersize": 4, "capsize": 2, "label": line.name}
            axes.errorbar(line.places, line.values, yerr=line.errors, **look)
        if is_log:
            places = sorted({place for line in lines for place in line.places})
            axes.set_xscale("log")
            axes.set_xticks(places, [f"{place:g}" for place in places])  # matplotlib's own are formulas
            axes.minorticks_off()
        axes.set(xlabel=axis, title=f"{title} in %")
    figure.legend(*drawn[0].get_legend_handles_labels(), loc="outside right upper")
    return figure


def draw_axis(points: Sequence[tuple[float, EvaluatedModel]], axis: str, probe: str) -> Figure:
    """Some metrics of every level over the place of (place, model); a bar is the standard deviation of several seeds.

    The axis is logarithmic if its ends differ by a factor of 100 or more.
    """
    points = sorted(points, key=lambda point: point[0])
    places = [at for at, _ in points]
    info, words = points[0][1].scores[0].info, points[0][1].words
    panels: dict[str, list[Line]] = {}
    for metric in info.endpoint.list_metrics("axis"):
        lines = panels[metric.title] = []
        for level in reversed(info.levels):
            measured = [metric_values(model, probe, level, metric.key) for _, model in points]
            means = [100 * float(np.mean(values)) if len(values) else np.nan for values in measured]
            bars = [100 * np.std(values, ddof=1) if len(values) > 1 else 0.0 for values in measured]
            lines.append(Line(words.word(level), places, means, bars if any(bars) else None))
    return draw_lines(panels, axis, 9, min(places) > 0 and max(places) / min(places) >= 100)


@figure_style()
def draw_training(rows_by_name: Mapping[str, Sequence[Mapping[str, float]]], words: LevelNames = USUAL) -> Figure:
    """Rows of metrics.csv by name: the loss and its terms, a panel each; then effective rank (and kNN accuracy) of all.

    Losses of different objectives have different scales, so that they are not drawn over each other.
    """
    curves = {name: rows for name, rows in rows_by_name.items() if rows}
    shared = [
        (column, title)
        for column, title in (("effective_rank", "Effective rank"), ("knn_accuracy", "Accuracy of neighbours"))
        if any(column in row for rows in curves.values() for row in rows)
    ]
    figure, panels = lay_panels(len(curves) + len(shared), 3, 3.3, 2.9)
    for axes, (name, rows) in zip(panels, curves.items(), strict=False):
        terms = [column for column in rows[0] if column not in KNOWN_COLUMNS]
        _add_lines(axes, {words.word(term): _series(rows, term) for term in terms})
        axes.set_title(f"Loss of {fit(name, 1.9, TITLE_PT, 'bold')}")
    for axes, (column, title) in zip(panels[len(curves) :], shared, strict=False):
        series = {name: _series(rows, column) for name, rows in curves.items()}
        _add_lines(axes, {name: line for name, line in series.items() if line[0]})
        axes.set(title=title, ylim=(0, None))
    for axes in panels:
        axes.set_xlabel("Step")
    return settle(figure)


def _series(rows: Sequence[Mapping[str, float]], column: str) -> tuple[list[float], list[float]]:
    """The steps at which a column has a value, and these values."""
    known = [row for row in rows if math.isfinite(row.get(column, math.nan))]
    return [row["step"] for row in known], [row[column] for row in known]


def _add_lines(axes: Axes, lines: Mapping[str, tuple[Sequence[float], Sequence[float]]]) -> None:
    """Draw lines by their names, with a legend where it hides no line."""
    for number, (name, (steps, values)) in enumerate(lines.items()):
        color, dashes, marker = (
            palette(len(lines))[number],
            DASHES[number % len(DASHES)],
            "o" if len(steps) == 1 else None,
        )
        axes.plot(steps, values, color=color, linestyle=dashes, linewidth=1.6, marker=marker, label=entry(name))
    if lines:
        axes.legend(loc="best", handlelength=2.8)


def draw_scales(models: Sequence[EvaluatedModel]) -> Figure:
    """Accuracy over mpp, a panel per level and a line per model; bars are intervals, grey lines are floors."""
    first = models[0].scores[0].info
    panels: dict[str, list[Line]] = {}
    for level in [row.level for row in first.list_levels(scale=first.scales[0])][::-1]:
        lines = panels[f"{models[0].words.title(level)} accuracy"] = []
        for model in models:
            info = model.scores[0].info
            values, errors = _read_accuracy(info, level, ENCODER)
            lines.append(Line(shorten(model.name), info.scales, values, errors))
        for floor in first.floors:
            values, _ = _read_accuracy(first, level, floor.subject)
            lines.append(Line(floor.title, first.scales, values, is_floor=True))
    return draw_lines(panels, "um/px", 3.0 * len(panels) + 1.5, is_log=True)


def _read_accuracy(info: ScoresInfo, level: str, subject: str) -> tuple[list[float], np.ndarray]:
    """Accuracy in % at every scale (NaN where it is not known), and the reach of its interval down and up (2, n)."""
    values, bars = [], []
    for scale in info.scales:
        row = info.find(level, subject=subject, scale=scale)
        accuracy = None if row is None else row.metrics["accuracy"]
        value = np.nan if accuracy is None or accuracy.value is None else 100 * accuracy.value
        low, high = (None, None) if accuracy is None else (accuracy.low, accuracy.high)
        values.append(value)
        bars.append((0.0, 0.0) if low is None or high is None else (value - 100 * low, 100 * high - value))
    return values, np.clip(np.array(bars).T, 0, None)

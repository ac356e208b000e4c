"""Confusion matrices, ROC and precision-recall curves."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from hidisc.evaluation.classes import measure_areas
from hidisc.evaluation.predictions import Predictions
from hidisc.reporting.evaluated import EvaluatedModel
from hidisc.reporting.figures import (
    DASHES,
    FONT_PT,
    GREY,
    INK,
    LEGEND_PT,
    Drawing,
    FigureFolder,
    Floats,
    figure_style,
    fit,
    measure,
    palette,
    settle,
)

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
    share = np.divide(counts, units, out=np.zeros(counts.shape), where=units > 0)
    count = len(classes)
    cell = 0.72 if count <= 8 else 0.56
    font = 8.5 if count <= 8 else 6.5
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
    if max(measure(name, FONT_PT, "normal") for name in names) > 0.95 * cell:
        axes.set_xticks(places, names, rotation=40, ha="right", rotation_mode="anchor")
    else:
        axes.set_xticks(places, names)
    axes.set_yticks(places, [f"{name} ({total:,})" for name, total in zip(names, units[:, 0].tolist(), strict=True)])
    axes.set_xticks(places[1:] - 0.5, minor=True)
    axes.set_yticks(places[1:] - 0.5, minor=True)
    axes.grid(which="minor", color="white", linewidth=1.5)
    axes.tick_params(which="both", length=0)
    axes.spines[:].set_visible(False)
    axes.set_xlabel("Predicted")
    axes.set_ylabel("Truth (how many)")
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
        axes.set(xlim=(-0.01, 1.01), ylim=(-0.01, 1.01), aspect="equal", xlabel=across, ylabel=up)
        axes.set(xticks=np.linspace(0, 1, 6), yticks=np.linspace(0, 1, 6))
        axes.legend(title=name, loc="upper center", bbox_to_anchor=(0.5, -0.16), alignment="left", handlelength=3.2)
        axes.set_title(panel)
    return settle(figure, title)


_Line = tuple[str, Predictions, list[int]]
"""The name of a curve, its predictions, and the codes of the classes over which it is the mean."""


def _choose_lines(by_name: Mapping[str, Predictions], positive: int) -> list[_Line]:
    lines: list[_Line] = []
    for name, predictions in by_name.items():
        if len(predictions.classes) == 2:
            lines.append((name, predictions, [positive]))
        elif len(by_name) == 1:
            lines += [(label, predictions, [code]) for code, label in enumerate(predictions.classes)]
        else:
            lines.append((name, predictions, list(range(len(predictions.classes)))))
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


def _mean_curve(curves: Sequence[tuple[Floats, Floats]]) -> tuple[Floats, Floats]:
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

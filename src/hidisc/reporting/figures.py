"""Figures of a report, drawn without any state of matplotlib's: the same numbers give the same bytes.

Names come from files, so they are cut, made printable and never read as formulae. Colours can be told apart by the
colour-blind, and beside colour there is always a line style, a marker or a number for those who print in grey.
"""

import io
import math
import warnings
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import TextToPath
from numpy.typing import NDArray

from hidisc.evaluation.metrics import measure_areas
from hidisc.evaluation.predictions import Predictions
from hidisc.ground.files import write_atomic
from hidisc.ground.text import count as count_of
from hidisc.ground.text import printable

Floats = NDArray[np.floating[Any]]

INK, GREY, PALE = "#28282e", "#8c8c93", "#dcdce1"
OKABE_ITO = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#4D4D4D", "#F0E442")
"""Okabe and Ito's colours, which differ with any colour vision; their black is softened, and yellow comes last."""
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
DASHES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1.2, 1.2)), (0, (6, 1.5, 1.2, 1.5)))
"""Line styles in turn; beyond the eighth line, colours and styles together still differ."""
MOST_NAMES = 24
"""Beyond so many names a legend is longer than the figure is tall, and is left out."""
KNOWN_COLUMNS = ("step", "learning_rate", "grad_norm", "effective_rank", "knn_accuracy", "images_per_s", "wait_share")
"""Of metrics.csv; every other column is the loss or a term of it."""
_PNG_DPI = 200
_POINTS = 1001
"""Most points of a curve; more cannot be seen."""
_RASTER = 2000
"""Points beyond which a map is stored as pixels, for a vector each would take megabytes."""
_CROP_SHARE = 0.6
"""Of a class's points; a crop shows at least so many."""
_CROP_CENTRES = 400
"""Most points tried as the middle of a crop."""

_FONT_PT, _TITLE_PT, _HEAD_PT, _LEGEND_PT = 9, 10, 11, 8
_TICK_IN = 1.3
"""Most width of a class's name beside a confusion matrix."""
_STYLE: dict[str, Any] = {
    "font.size": _FONT_PT,
    "axes.titlesize": _TITLE_PT,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelcolor": INK,
    "axes.edgecolor": GREY,
    "axes.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
    "legend.fontsize": _LEGEND_PT,
    "figure.titlesize": _HEAD_PT,
    "figure.titleweight": "bold",
    "figure.constrained_layout.use": True,
    "text.parse_math": False,
    "text.usetex": False,
    "svg.hashsalt": "hidisc",
    "svg.fonttype": "path",
    "pdf.fonttype": 42,
}


@contextmanager
def figure_style() -> Iterator[None]:
    """Our style and no one else's, whatever the user's matplotlibrc says; letters a font lacks are boxes, unsaid."""
    with style.context(["default", _STYLE]), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        yield


def palette(count: int) -> list[str]:
    """Colours for so many names: Okabe and Ito's up to eight, else Glasbey's, which repeat after 211."""
    if count <= len(OKABE_ITO):
        return list(OKABE_ITO[:count])
    import colorcet

    colours = [colour for colour in colorcet.glasbey if _is_vivid(*to_rgb(colour))]
    return [colours[number % len(colours)] for number in range(count)]


def _is_vivid(*rgb: float) -> bool:
    """Whether a colour is neither grey nor too pale to be seen on white."""
    return max(rgb) - min(rgb) > 0.2 and sum(rgb) / 3 < 0.85


def shorten(text: str, most: int = 24) -> str:
    """A name on one line, printable, cut in the middle where it is too long: names often differ at their end."""
    line = printable(text)
    if len(line) <= most:
        return line
    head = most // 2
    return f"{line[:head]}…{line[len(line) - (most - 1 - head) :]}"


def fit(text: str, inches: float, size_pt: float, weight: str = "normal") -> str:
    """A name as `shorten` cuts it, as long as fits a width."""
    line = printable(text)[:1000]
    if measure(line, size_pt, weight) <= inches:
        return line
    most = bisect_right(range(1, len(line)), inches, key=lambda count: measure(shorten(line, count), size_pt, weight))
    return shorten(line, max(1, most))


def break_lines(text: str, inches: float, size_pt: float, weight: str = "normal") -> list[str]:
    """Text in lines of a width, broken between words."""
    lines: list[str] = []
    for word in printable(text).split(" "):
        longer = f"{lines[-1]} {word}" if lines else word
        if lines and measure(longer, size_pt, weight) <= inches:
            lines[-1] = longer
        else:
            lines.append(fit(word, inches, size_pt, weight))
    return lines


def measure(text: str, size_pt: float, weight: str) -> float:
    """Inches a line of text takes; inside `figure_style` only, for the font is part of the style."""
    font = FontProperties(size=size_pt, weight=weight)
    width: float = TextToPath().get_text_width_height_descent(text, font, False)[0]
    return width / 72


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
    names = [fit(name, _TICK_IN, _FONT_PT) for name in classes]
    if max(measure(name, _FONT_PT, "normal") for name in names) > 0.95 * cell:
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
    figure.suptitle(_head(title, figure))
    return settle(figure)


@figure_style()
def draw_curves(predictions: Mapping[str, Predictions], positive: int, title: str) -> Figure:
    """ROC and precision-recall side by side, areas in percent in the legends, chance as a thin line.

    Two classes: a line per model, for the positive class. More: the mean over the classes, a line per model; of a
    single model, a line per class. Classes that are absent, or all there is, have no curve.
    """
    lines = _choose_lines(predictions, positive)
    figure = Figure(figsize=(7.6, 3.7 + 0.17 * max(0, len(lines) - 2)))
    panels = figure.subplots(1, 2)
    colours = palette(len(lines))
    for number, (name, found, codes) in enumerate(lines):
        line: dict[str, Any] = {"color": colours[number], "linestyle": DASHES[number % len(DASHES)], "linewidth": 1.6}
        short = fit(name, 1.5, _LEGEND_PT)
        areas = measure_areas(found)  # (2, L)
        known = [code for code in codes if not np.isnan(areas[0, code])]
        if 0 < len(known) < len(codes):
            short += f" ({len(known)} of {len(codes)} classes)"
        for axes, trace, of_class in zip(panels, (_trace_roc, _trace_precision), areas, strict=True):
            area = f"{100 * np.mean(of_class[known]):.1f}" if known else "–"
            curve = _mean_curve(_trace_folds(trace, found, known)) if known else ([], [])
            axes.plot(*curve, label=f"{area}  {short}", **line)
    _add_chance(panels[0], panels[1], lines, colours)
    for axes, head, name, across, up in (
        (panels[0], "ROC", "AUROC (%)", "1 - specificity", "Sensitivity"),
        (panels[1], "Precision and recall", "AUPRC (%)", "Recall (sensitivity)", "Precision"),
    ):
        axes.set(xlim=(-0.01, 1.01), ylim=(-0.01, 1.01), aspect="equal", xlabel=across, ylabel=up)
        axes.set(xticks=np.linspace(0, 1, 6), yticks=np.linspace(0, 1, 6))
        axes.legend(title=name, loc="upper center", bbox_to_anchor=(0.5, -0.16), alignment="left", handlelength=3.2)
        axes.set_title(head)
    figure.suptitle(_head(title, figure))
    return settle(figure)


_Line = tuple[str, Predictions, list[int]]
"""A curve's name, whose predictions it is of, and the classes it is the mean over."""


def _choose_lines(predictions: Mapping[str, Predictions], positive: int) -> list[_Line]:
    lines: list[_Line] = []
    for name, found in predictions.items():
        if len(found.classes) == 2:
            lines.append((name, found, [positive]))
        elif len(predictions) == 1:
            lines += [(label, found, [code]) for code, label in enumerate(found.classes)]
        else:
            lines.append((name, found, list(range(len(found.classes)))))
    return lines


_Curve = tuple[Floats, Floats]


def _trace_folds(
    trace: Callable[[NDArray[np.bool_], Floats], _Curve], found: Predictions, codes: Sequence[int]
) -> list[_Curve]:
    """The curve of every class in every fold that has units of the class and others."""
    curves = []
    for members in found.split_by_fold():
        truth, scores = found.truth[members], found.scores[members]
        there = [code for code in codes if 0 < int((truth == code).sum()) < len(truth)]
        curves += [trace(truth == code, scores[:, code]) for code in there]
    return curves


def _trace_roc(is_class: NDArray[np.bool_], score: Floats) -> _Curve:
    """The ROC curve of a class against the rest."""
    from sklearn.metrics import roc_curve

    across, up, _ = roc_curve(is_class, score)
    return across, up


def _trace_precision(is_class: NDArray[np.bool_], score: Floats) -> _Curve:
    """Precision by recall as the average precision reads it: up to a recall, the precision where it is reached."""
    from sklearn.metrics import precision_recall_curve

    precision, recall, _ = precision_recall_curve(is_class, score)
    first = np.r_[True, np.diff(recall[::-1]) > 0]  # the highest threshold of each recall
    recall, precision = recall[::-1][first], precision[::-1][first]
    return np.repeat(recall, 2)[1:-1], np.repeat(precision, 2)[2:]


def _mean_curve(curves: Sequence[tuple[Floats, Floats]]) -> tuple[Floats, Floats]:
    """One curve as it is, or with fewer points; of several, the mean height at every place."""
    if len(curves) == 1 and len(curves[0][0]) <= _POINTS:
        return curves[0]
    grid = np.linspace(0, 1, _POINTS)
    heights = np.mean([np.interp(grid, across, up) for across, up in curves], axis=0)
    first = np.mean([up[0] for _, up in curves])  # where a curve rises at once, interpolation knows the upper end only
    return np.r_[0.0, grid], np.r_[first, heights]


def _add_chance(roc: Axes, precision: Axes, lines: Sequence[_Line], colours: Sequence[str]) -> None:
    """What guessing gives: the diagonal, and the share of positives: one line, or one per curve where they differ."""
    looks: dict[str, Any] = {"linewidth": 0.8, "zorder": 0}
    roc.plot([0, 1], [0, 1], color=GREY, **looks)
    shares = [
        float(np.mean([(found.truth == code).mean() for code in codes])) for _, found, codes in lines if len(found)
    ]
    if shares and np.ptp(shares) < 0.005:
        precision.axhline(shares[0], color=GREY, **looks)
        return
    for share, colour in zip(shares, colours, strict=False):
        precision.axhline(share, color=colour, alpha=0.45, **looks)


@figure_style()
def draw_map(xy: Floats, codes: NDArray[np.integer[Any]], names: Sequence[str], title: str) -> Figure:
    """Points (N, 2) coloured by code (N,) into `names`, each name a marker of its own; code -1 has none and is pale."""
    figure = Figure(figsize=(6.6, 5.0))
    axes = figure.add_subplot()
    looks: dict[str, Any] = {"s": _marker_size(len(xy)), "linewidths": 0, "rasterized": len(xy) > _RASTER}
    _add_points(axes, xy[codes < 0], color=PALE, **looks)
    marks = MARKERS if len(names) <= len(MARKERS) else MARKERS[:1]
    for code, (name, colour) in enumerate(zip(names, palette(len(names)), strict=True)):
        marker = marks[code % len(marks)]
        _add_points(axes, xy[codes == code], color=colour, marker=marker, alpha=0.75, label=_entry(name), **looks)
    if 0 < len(names) <= MOST_NAMES:
        legend = axes.legend(
            loc="center left", bbox_to_anchor=(1.01, 0.5), ncols=1 + (len(names) > 12), handletextpad=0.3
        )
        for handle in legend.legend_handles:
            if handle is not None:
                handle.set(sizes=[36], alpha=1)
    _bare(axes)
    figure.suptitle(_head(title, figure))
    return settle(figure)


@figure_style()
def draw_crops(xy: Floats, labels: NDArray[np.integer[Any]], patients: NDArray[Any], classes: Sequence[str]) -> Figure:
    """The map (N, 2) magnified where most of each class lies, a panel per class: its points by patient, others pale.

    `labels` (N,) are codes into `classes`, `patients` (N,) names. Colours say only that patients differ.
    """
    figure, panels = _lay_panels(len(classes), 4, 2.35, 2.55, 0.3)
    for code, (name, axes) in enumerate(zip(classes, panels, strict=False)):
        inside = labels == code
        whose, number = np.unique(patients[inside].astype(str), return_inverse=True)
        _bare(axes)
        axes.set_title(fit(name, 2.2, _FONT_PT, "bold"), fontsize=_FONT_PT)
        if not inside.any():
            axes.set_xlabel("no patches", fontsize=8, color=GREY)
            continue
        centre, half = find_crop(xy[inside])
        shown = np.abs(xy - centre).max(axis=1) <= half
        size = 0.8 * _marker_size(int(shown.sum()))
        _add_points(axes, xy[shown & ~inside], s=size, color=PALE, linewidths=0)
        colours = np.array(palette(len(whose)), object)
        near = shown[inside]
        met = len(np.unique(number[near]))
        said = f"{count_of(met, 'patient')}, {100 * near.mean():.0f} % of its patches"
        axes.set_xlabel(said, fontsize=8, color=GREY)
        _add_points(axes, xy[inside][near], s=size, color=colours[number[near]].tolist(), linewidths=0, alpha=0.85)
        axes.set(xlim=(centre[0] - half, centre[0] + half), ylim=(centre[1] - half, centre[1] + half))
    return settle(figure)


def _lay_panels(
    count: int, most_across: int, width_in: float, height_in: float, above_in: float = 0.0
) -> tuple[Figure, list[Axes]]:
    """A figure of so many panels in rows, each of a width and height."""
    across = min(most_across, max(1, count))
    down = -(-max(1, count) // across)
    figure = Figure(figsize=(width_in * across, height_in * down + above_in))
    panels = list(figure.subplots(down, across, squeeze=False).ravel())
    for axes in panels[count:]:
        axes.set_visible(False)
    return figure, panels


def find_crop(points: Floats) -> tuple[Floats, float]:
    """Middle (2,) and half the side of the smallest square, around one of the points (n, 2), with most of them."""
    wanted = max(1, math.ceil(_CROP_SHARE * len(points)))
    tried = points[:: -(-len(points) // _CROP_CENTRES)]
    away = np.abs(tried[:, None, :] - points[None]).max(axis=2)  # (centres, n)
    sides = np.partition(away, wanted - 1, axis=1)[:, wanted - 1]
    best = int(sides.argmin())
    spread = float(np.ptp(points, axis=0).max())
    return tried[best], max(1.05 * float(sides[best]), 0.01 * spread, 1e-3)


@figure_style()
def draw_training(rows_by_name: Mapping[str, Sequence[Mapping[str, float]]]) -> Figure:
    """Rows of metrics.csv by name: the loss and its terms, a panel each; then effective rank (and kNN accuracy) of all.

    Losses of different objectives have different scales, so that they are not drawn over each other.
    """
    curves = {name: rows for name, rows in rows_by_name.items() if rows}
    shared = [
        (column, title)
        for column, title in (("effective_rank", "Effective rank"), ("knn_accuracy", "Accuracy of neighbours"))
        if any(column in row for rows in curves.values() for row in rows)
    ]
    figure, panels = _lay_panels(len(curves) + len(shared), 3, 3.3, 2.9)
    for axes, (name, rows) in zip(panels, curves.items(), strict=False):
        terms = [column for column in rows[0] if column not in KNOWN_COLUMNS]
        _add_lines(axes, {term: _series(rows, term) for term in terms})
        axes.set_title(f"Loss of {fit(name, 1.9, _TITLE_PT, 'bold')}")
    for axes, (column, title) in zip(panels[len(curves) :], shared, strict=False):
        series = {name: _series(rows, column) for name, rows in curves.items()}
        _add_lines(axes, {name: line for name, line in series.items() if line[0]})
        axes.set_title(title)
        axes.set_ylim(bottom=0)
    for axes in panels:
        axes.set_xlabel("Step")
    return settle(figure)


def _series(rows: Sequence[Mapping[str, float]], column: str) -> tuple[list[float], list[float]]:
    """Steps and values of a column where it has any."""
    known = [row for row in rows if math.isfinite(row.get(column, math.nan))]
    return [row["step"] for row in known], [row[column] for row in known]


def _add_lines(axes: Axes, lines: Mapping[str, tuple[Sequence[float], Sequence[float]]]) -> None:
    """Lines by name, with a legend that does not hide them."""
    for number, (name, (steps, values)) in enumerate(lines.items()):
        axes.plot(
            steps,
            values,
            color=palette(len(lines))[number],
            linestyle=DASHES[number % len(DASHES)],
            linewidth=1.6,
            marker="o" if len(steps) == 1 else None,
            label=_entry(name),
        )
    if lines:
        axes.legend(loc="best", handlelength=2.8)


def settle(figure: Figure) -> Figure:
    """Fix where everything is: laid out anew at every drawing, squares and their legends would still move a little."""
    for _ in range(2):
        figure.draw_without_rendering()
    figure.set_layout_engine("none")
    return figure


# ---- files

_NO_DATES = {
    "pdf": {"CreationDate": None, "Producer": None, "Creator": None},
    "png": {"Software": None},
    "svg": {"Date": None, "Creator": None},
}


def save_figure(figure: Figure, folder: Path, name: str) -> None:
    """Write NAME.pdf and NAME.png; the same figure gives the same bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    for suffix in ("pdf", "png"):
        write_atomic(folder / f"{name}.{suffix}", render(figure, suffix))


def to_svg(figure: Figure) -> bytes:
    """The figure as SVG, letters as outlines, so that it looks the same everywhere and needs no font."""
    return render(figure, "svg")


@figure_style()
def render(figure: Figure, suffix: str) -> bytes:
    """The bytes of a PDF, PNG or SVG file, without date or version."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format=suffix, dpi=_PNG_DPI, metadata=_NO_DATES[suffix])
    return buffer.getvalue()


def _head(title: str, figure: Figure) -> str:
    """A title in at most two lines of the figure's width."""
    room = 0.96 * figure.get_figwidth()
    first, *rest = break_lines(title, room, _HEAD_PT, "bold")
    return "\n".join([first, *([fit(" ".join(rest), room, _HEAD_PT, "bold")] if rest else [])])


def _entry(name: str) -> str:
    """A name in a legend, from which matplotlib leaves out those that begin with an underscore."""
    short = fit(name, 1.4, _LEGEND_PT)
    return f" {short}" if short.startswith("_") else short


def _add_points(axes: Axes, points: Floats, **looks: Any) -> None:
    axes.scatter(points[:, 0], points[:, 1], **looks)


def _marker_size(count: int) -> float:
    """Area of a marker in square points: smaller where there are many."""
    return float(np.clip(9000 / max(count, 1), 5, 40))


def _bare(axes: Axes) -> None:
    """Neither ticks nor scale: places on a t-SNE map have no unit."""
    axes.set(xticks=[], yticks=[], aspect="equal")
    axes.spines[:].set(visible=True, color=PALE)

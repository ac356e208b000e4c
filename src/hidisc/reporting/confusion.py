"""Confusion matrices."""

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from hidisc.reporting.drawings import Drawing, FigureFolder
from hidisc.reporting.evaluated import EvaluatedModel
from hidisc.reporting.figures import FONT_PT, GREY, INK, figure_style, fit, measure, settle

_TICK_IN = 1.3
"""Most width of a class's name beside the matrix."""


def add_confusion(
    drawn: FigureFolder, model: EvaluatedModel, level: str, confusion: Sequence[Sequence[int]], more: str = ""
) -> Drawing:
    """Write and show the confusion matrix of a model at a level; `more` of the caption."""
    title = f"{model.name}, {level} level"
    figure = draw_confusion(confusion, model.scores[0].info.classes, title)
    return drawn.add(f"confusion-{drawn.slug(model.name)}-{model.words.name(level)}", figure, f"{title}{more}")


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

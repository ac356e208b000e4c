"""Points of a map: all of them by class, and parts of it magnified, by patient."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from hidisc.ground.text import count
from hidisc.reporting.figures import (
    FONT_PT,
    GREY,
    MARKERS,
    PALE,
    Floats,
    entry,
    figure_style,
    fit,
    lay_panels,
    palette,
    settle,
)

MOST_NAMES = 24
"""Beyond so many names a legend is longer than the figure is tall, and is left out."""
_RASTER = 2000
"""Points beyond which a map is stored as pixels, for a vector each would take megabytes."""
_CROP_SHARE = 0.6
"""Of a class's points; a crop shows at least so many."""
_CROP_CENTRES = 400
"""Most points tried as the middle of a crop."""


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
        _add_points(axes, xy[codes == code], color=colour, marker=marker, alpha=0.75, label=entry(name), **looks)
    if 0 < len(names) <= MOST_NAMES:
        legend = axes.legend(
            loc="center left", bbox_to_anchor=(1.01, 0.5), ncols=1 + (len(names) > 12), handletextpad=0.3
        )
        for handle in legend.legend_handles:
            if handle is not None:
                handle.set(sizes=[36], alpha=1)
    _bare(axes)
    return settle(figure, title)


@figure_style()
def draw_crops(xy: Floats, labels: NDArray[np.integer[Any]], patients: NDArray[Any], classes: Sequence[str]) -> Figure:
    """The map (N, 2) magnified where most of each class lies, a panel per class: its points by patient, others pale.

    `labels` (N,) are codes into `classes`, `patients` (N,) names. Colours say only that patients differ.
    """
    figure, panels = lay_panels(len(classes), 4, 2.35, 2.55, 0.3)
    for code, (name, axes) in enumerate(zip(classes, panels, strict=False)):
        inside = labels == code
        whose, number = np.unique(patients[inside].astype(str), return_inverse=True)
        _bare(axes)
        axes.set_title(fit(name, 2.2, FONT_PT, "bold"), fontsize=FONT_PT)
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
        said = f"{count(met, 'patient')}, {100 * near.mean():.0f} % of its patches"
        axes.set_xlabel(said, fontsize=8, color=GREY)
        _add_points(axes, xy[inside][near], s=size, color=colours[number[near]].tolist(), linewidths=0, alpha=0.85)
        axes.set(xlim=(centre[0] - half, centre[0] + half), ylim=(centre[1] - half, centre[1] + half))
    return settle(figure)


def find_crop(points: Floats) -> tuple[Floats, float]:
    """Middle (2,) and half the side of the smallest square, around one of the points (n, 2), with most of them."""
    wanted = max(1, math.ceil(_CROP_SHARE * len(points)))
    tried = points[:: -(-len(points) // _CROP_CENTRES)]
    away = np.abs(tried[:, None, :] - points[None]).max(axis=2)  # (centres, n)
    sides = np.partition(away, wanted - 1, axis=1)[:, wanted - 1]
    best = int(sides.argmin())
    spread = float(np.ptp(points, axis=0).max())
    return tried[best], max(1.05 * float(sides[best]), 0.01 * spread, 1e-3)


def _add_points(axes: Axes, points: Floats, **looks: Any) -> None:
    axes.scatter(points[:, 0], points[:, 1], **looks)


def _marker_size(number: int) -> float:
    """Area of a marker in square points: smaller where there are many."""
    return float(np.clip(9000 / max(number, 1), 5, 40))


def _bare(axes: Axes) -> None:
    """Neither ticks nor scale: places on a t-SNE map have no unit."""
    axes.set(xticks=[], yticks=[], aspect="equal")
    axes.spines[:].set(visible=True, color=PALE)

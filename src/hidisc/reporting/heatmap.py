"""Scores of a slide's patches painted over its thumbnail."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from mpl_toolkits.axes_grid1.anchored_artists import AnchoredSizeBar  # type: ignore[import-untyped]
from numpy.typing import NDArray

from hidisc.reporting.figures import INK, PALE, break_lines, figure_style, fit, lay_panels, measure, settle
from hidisc.settings.level_names import USUAL, LevelNames

COLOURS = "viridis"
"""Equal steps of score are equal steps to the eye, in colour, in grey and to the colour-blind."""
_ALPHA = 0.62
_PANEL_IN, _AREA_IN2 = 4.6, 9.0
"""Longest side of a panel, and its area, in inches."""
_LEAST_IN, _LINE_IN = 4.4, 0.18
"""Least width of the figure, and height of a caption's line, in inches."""
_TITLE_PT, _CAPTION_PT, _PANEL_PT, _SCALE_PT = 11, 8.5, 9, 7


def paint(
    shape: tuple[int, int],
    downsample: float,
    corners: NDArray[np.integer[Any]],
    extent: float,
    values: NDArray[np.floating[Any]],
) -> NDArray[np.float64]:
    """The mean value (h, w) of the patches that cover each thumbnail px; NaN where no patch does.

    `corners` (N, 2) and `extent` are the upper left corners x, y and the side of the patches in level-0 px;
    `downsample` is level-0 px per thumbnail px. A patch covers the px whose middle lies in it, and at least one.
    """
    total, count = np.zeros(shape), np.zeros(shape)
    starts, ends = (np.ceil(edges / downsample - 0.5).astype(int) for edges in (corners, corners + extent))
    ends = np.maximum(ends, starts + 1)
    for (left, top), (right, bottom), value in zip(starts, ends, values, strict=True):
        box = slice(max(top, 0), max(bottom, 0)), slice(max(left, 0), max(right, 0))
        total[box] += value
        count[box] += 1
    return np.divide(total, count, out=np.full(shape, np.nan), where=count > 0)


@figure_style()
def draw_heatmap(
    thumbnail: NDArray[np.uint8],
    heats: Mapping[str, NDArray[np.float64]],
    title: str,
    captions: Sequence[str] = (),
    marked: str | None = None,
    um_per_px: float | None = None,
    words: LevelNames = USUAL,
) -> Figure:
    """Draw the slide (h, w, 3), then one panel per class: its scores (h, w) from 0 to 1 over the slide in grey.

    `captions` are paragraphs under the title; `marked` is the class that is the truth. The slide has a scale bar where
    `um_per_px`, the micrometres per thumbnail px, is known. `words`: what the slide is called.
    """
    height, width = thumbnail.shape[:2]
    count = 1 + len(heats)
    wide, tall = _panel_size(width, height)
    across = _columns(count, wide, tall)
    down = -(-count // across)
    inches = max(across * wide + 0.9, _LEAST_IN)
    lines = [part for caption in captions for part in break_lines(caption, inches - 0.15, _CAPTION_PT)]
    head = 0.42 + _LINE_IN * len(lines)
    figure, panels = lay_panels(count, across, inches / across, tall + 0.3, head)
    for axes in panels[:count]:
        axes.set(xticks=[], yticks=[])
        axes.spines[:].set(visible=True, color=PALE)
    first, *others = panels[:count]
    first.imshow(thumbnail)
    first.set_title(words.title("slide"), fontsize=_PANEL_PT)
    if um_per_px is not None:
        _add_scale_bar(first, width, height, um_per_px)
    grey = thumbnail.mean(axis=2)
    painted = None
    for axes, (name, heat) in zip(others, heats.items(), strict=True):
        axes.imshow(grey, cmap="gray", vmin=-60, vmax=255)  # lightened, so that the colours are seen
        painted = axes.imshow(heat, cmap=COLOURS, vmin=0, vmax=1, alpha=_ALPHA, interpolation="nearest")
        mark = " (truth)" if name == marked else ""
        shown = fit(name, wide - measure(mark, _PANEL_PT, "bold"), _PANEL_PT, "bold")
        axes.set_title(shown + mark, fontsize=_PANEL_PT)
    if painted is not None:
        shrink = min(0.9, 4.5 / (down * tall))
        bar = figure.colorbar(painted, ax=panels, label="Score", fraction=0.04, pad=0.02, aspect=30, shrink=shrink)
        bar.outline.set_visible(False)
    _add_head(figure, fit(title, inches - 0.15, _TITLE_PT, "bold"), lines, head)
    return settle(figure)


def choose_scale_um(width_um: float) -> float:
    """Return the length of a scale bar: the 1, 2 or 5 times a power of ten that is nearest to a fifth of the width."""
    fifth = width_um / 5
    power = 10.0 ** math.floor(math.log10(fifth))
    return min((factor * power for factor in (1, 2, 5, 10)), key=lambda length: abs(math.log(length / fifth)))


def _add_scale_bar(axes: Axes, width: int, height: int, um_per_px: float) -> None:
    """A bar with its length, at the lower left on white, for tissue may be of any colour."""
    length_um = choose_scale_um(width * um_per_px)
    text = f"{length_um / 1000:g} mm" if length_um >= 1000 else f"{length_um:g} µm"
    looks: dict[str, Any] = {"color": INK, "pad": 0.3, "borderpad": 0.4, "sep": 2, "label_top": True}
    looks |= {"size_vertical": max(width, height) / 150, "fontproperties": FontProperties(size=_SCALE_PT)}
    bar = AnchoredSizeBar(axes.transData, length_um / um_per_px, text, "lower left", **looks)
    bar.patch.set(alpha=0.8, edgecolor="none")
    axes.add_artist(bar)


def _add_head(figure: Figure, title: str, lines: Sequence[str], head: float) -> None:
    """Title and lines at the left, in the uppermost `head` inches, which the panels leave free."""
    tall = figure.get_figheight()
    left = 0.06 / figure.get_figwidth()
    figure.text(left, 1 - 0.08 / tall, title, fontsize=_TITLE_PT, fontweight="bold", va="top")
    for number, line in enumerate(lines):
        height = 1 - (0.32 + _LINE_IN * number) / tall
        figure.text(left, height, line, fontsize=_CAPTION_PT, va="top", color=INK)
    figure.set_layout_engine("constrained", rect=(0, 0, 1, 1 - head / tall))


def _panel_size(width: int, height: int) -> tuple[float, float]:
    """Inches of a panel of the thumbnail's shape; long ones are kept in bounds."""
    ratio = max(width, 1) / max(height, 1)
    tall = (_AREA_IN2 / ratio) ** 0.5
    wide = tall * ratio
    scale = min(1.0, _PANEL_IN / max(wide, tall))
    return max(wide * scale, 1.1), max(tall * scale, 0.5)


def _columns(count: int, wide: float, tall: float) -> int:
    """How many panels side by side make the figure about 4 : 3, with few places left empty."""

    def badness(across: int) -> float:
        down = -(-count // across)
        return abs(across * wide - 4 / 3 * down * tall) + 0.7 * (across * down - count) * min(wide, tall)

    return min(range(1, count + 1), key=badness)

"""The squares a slide is cut into, in level-0 pixels.

Coarser patches around the squares of a grid: concentric with them, and made of cells that neighbours share.

Neighbouring coarse patches overlap. With squares of 4 px, a patch twice as coarse is made of 2 x 2 cells of 2 px, and
each cell is as wide as the way from a square to the next:

    squares of the grid          |  a  |  b  |  c  |
    cells of the coarser scale | 0 | 1 | 2 | 3 |        a has the cells 0 1, b 1 2, c 2 3 (and the same downwards)

So each cell is read, normalised and stored once, whatever the number of patches that show it: a scale that is r times
coarser adds 1 / r^2 of the pixels of the finest one.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hidisc.slides.resample import read_scaled
from hidisc.slides.slide import Pixels, Slide

BLOCK = 8
"""Boxes come in blocks of 8 x 8, so that neighbours follow each other and share decoded tiles."""


@dataclass(frozen=True)
class Boxes:
    """N squares of one size on a slide."""

    x: NDArray[np.int32]
    y: NDArray[np.int32]
    """(N,) upper left corners, level-0 px."""
    extent: float
    """Side in level-0 px; size_px * downsample."""
    downsample: float
    """Level-0 px per patch px."""

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: NDArray[np.intp] | NDArray[np.bool_] | slice) -> "Boxes":
        return Boxes(self.x[index], self.y[index], self.extent, self.downsample)


def lay_grid(width: int, height: int, size_px: int, stride_px: int, downsample: float) -> Boxes:
    """All boxes of `size_px` patch pixels that lie wholly inside a slide of width x height level-0 px."""
    extent, stride = size_px * downsample, max(1.0, stride_px * downsample)  # corners are whole level-0 px
    across, down = (_count(length, extent, stride) for length in (width, height))
    row, column = np.divmod(np.arange(across * down), max(across, 1))
    order = np.lexsort((column, row, column // BLOCK, row // BLOCK))
    x, y = (np.floor(index[order] * stride + 1e-6).astype(np.int32) for index in (column, row))
    return Boxes(x, y, extent, downsample)


def _count(length: int, extent: float, stride: float) -> int:
    """How many boxes fit along an axis; 1e-6 px forgives the rounding of mpp ratios."""
    return max(0, math.floor((length - extent + 1e-6) / stride) + 1)


_LEAST_CELL_PX = 8
"""Smaller cells would hold more JPEG headers than pixels."""
_SLACK_PX = 0.01
"""What a patch may lie outside of a slide, by the rounding of mpp ratios."""


@dataclass(frozen=True)
class Lattice:
    """The patches of one coarser scale around the squares of a grid, and the cells that they are made of."""

    size_px: int
    downsample: float
    """Level-0 px per px of this scale."""
    stride: float
    """Level-0 px from a square of the grid to the next, and from a cell to the next."""
    origin: float
    """Level-0 px from the corner of a square to that of its coarser patch, to the left and upwards: below 0."""
    per_side: int
    """Cells along a side of a patch; 1: every patch is stored as a whole."""
    across: int
    """Cells in a row of the lattice; they are numbered row by row."""
    total: int
    """Cells in all rows."""

    @property
    def cell_px(self) -> int:
        """Side of a cell."""
        return self.size_px // self.per_side

    def first_cells(self, boxes: Boxes, slide: Slide | None = None) -> NDArray[np.int32]:
        """(N,) number of the upper left cell of each box's patch; with a `slide`, -1 where the patch leaves it."""
        column, row = (_count_steps(corner, self.stride) for corner in (boxes.x, boxes.y))
        first = (row * self.across + column).astype(np.int32)
        if slide is not None:
            for steps, length in ((column, slide.width), (row, slide.height)):
                start = (self.origin + steps * self.stride) / self.downsample  # px of this scale
                is_inside = (start > -_SLACK_PX) & (start + self.size_px < length / self.downsample + _SLACK_PX)
                first[~is_inside] = -1
        return first

    def cells(self, first: int) -> list[int]:
        """Numbers of the cells of the patch whose upper left cell is `first`, row by row."""
        return [first + row * self.across + column for row in range(self.per_side) for column in range(self.per_side)]

    def read(self, slide: Slide, cell: int) -> Pixels:
        """Pixels (cell_px, cell_px, C) of a cell."""
        row, column = divmod(cell, self.across)
        x, y = (self.origin + step * self.stride for step in (column, row))
        return read_beyond(slide, x, y, self.cell_px, self.downsample)


def lay_lattice(grid: Boxes, size_px: int, stride_px: int, downsample: float, *, whole: bool) -> Lattice:
    """The coarser patches of `downsample` around a grid's boxes; `whole`: none is divided into cells."""
    cell_px = stride_px * grid.downsample / downsample
    per_side = round(size_px / cell_px)
    fits = abs(cell_px - round(cell_px)) < 1e-6 and round(cell_px) * per_side == size_px
    if whole or not fits or cell_px < _LEAST_CELL_PX:
        per_side = 1
    stride = max(1.0, stride_px * grid.downsample)
    across, down = (int(_count_steps(corner, stride).max(initial=0)) + per_side for corner in (grid.x, grid.y))
    origin = find_origin(size_px, grid.downsample, downsample)
    return Lattice(size_px, downsample, stride, origin, per_side, across, across * down)


def _count_steps(corner: NDArray[np.int32], stride: float) -> NDArray[np.int64]:
    """How many squares lie before those with these corners, which were rounded down to whole px."""
    return np.ceil(corner / stride - 1e-6).astype(np.int64)


def find_origin(size_px: int, finest: float, downsample: float) -> float:
    """Level-0 px from a square's corner to that of the coarser patch around it: a whole number of coarse px.

    The centres are then up to one coarse pixel apart, and no pixel is interpolated for that.
    """
    return math.floor((size_px * finest / downsample - size_px) / 2 + 1e-6) * downsample


def read_beyond(slide: Slide, x: float, y: float, size_px: int, downsample: float) -> Pixels:
    """A square (size_px, size_px, C) from level-0 position (x, y), of which parts may lie outside of the slide.

    What lies outside is white in 8-bit colour, as glass is, and 0 in other pixels.
    """
    (left, right), (top, bottom) = (
        _inside(start, size_px, downsample, length) for start, length in ((x, slide.width), (y, slide.height))
    )
    if right - left == bottom - top == size_px:
        return read_scaled(slide, max(x, 0.0), max(y, 0.0), size_px, size_px, downsample)
    is_bright = slide.dtype == np.uint8 and slide.channels == 3
    out = np.full((size_px, size_px, slide.channels), 255 if is_bright else 0, slide.dtype)
    if left < right and top < bottom:
        x, y = max(x + left * downsample, 0.0), max(y + top * downsample, 0.0)
        out[top:bottom, left:right] = read_scaled(slide, x, y, right - left, bottom - top, downsample)
    return out


def _inside(start: float, size_px: int, downsample: float, length: int) -> tuple[int, int]:
    """The px from and to which an axis lies on the slide."""
    first = max(0, math.ceil(-start / downsample - _SLACK_PX))
    return first, min(size_px, math.floor((length - start) / downsample + _SLACK_PX))

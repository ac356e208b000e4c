"""The squares a slide is cut into, in level-0 pixels."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

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

"""The features of one slide, in whatever file of another tool they are."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hidisc.ground.errors import UserError
from hidisc.patches.record import SlideGeometry

Read = Callable[[int, int], NDArray[Any]]
"""Rows from the one to before the other, (n, D)."""


@dataclass(frozen=True)
class SlideFeatures:
    """The features of one slide: N rows of D numbers, read piece by piece."""

    path: Path
    slide: str
    """The name of its file without the ending, or its name in a file of several slides."""
    rows: int
    dim: int
    dtype: np.dtype[Any]
    read: Read
    full_name: str = ""
    """The name of the slide that the file itself holds; empty: none."""
    corners: NDArray[np.float64] | None = None
    """(N, 2) upper left corners x, y of the patches; None: not known."""
    in_um: bool = False
    """Whether corners and extent are in micrometres, not in level-0 px."""
    geometry: SlideGeometry = field(default_factory=lambda: SlideGeometry(slide=""))
    patch_mpp: float | None = None
    """Micrometres per patch px that the file states."""
    extractor: str | None = None
    """The name of the encoder; None: the file does not say it."""
    columns: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    """Further columns (N,) that a file of several slides has."""

    def place(self, mpp: float | None) -> "SlideFeatures":
        """The same with places in level-0 px of the slide, whose micrometres per px the table may know.

        Where nobody knows them, micrometres stay, as px that are 1 um wide.
        """
        geometry = self.geometry
        known = mpp or geometry.mpp
        if not self.in_um:
            geometry = geometry.model_copy(update={"mpp": known})
            return replace(self, geometry=geometry, patch_mpp=self.patch_mpp or geometry.patch_mpp)
        scale = known or 1.0
        extent = None if geometry.extent is None else geometry.extent / scale
        geometry = geometry.model_copy(update={"mpp": scale, "extent": extent})
        corners = None if self.corners is None else self.corners / scale
        return replace(self, geometry=geometry, corners=corners, in_um=known is None)


def read_shape(path: Path, shape: tuple[int, ...]) -> tuple[int, int]:
    """(N, D) of features (N, D), (1, N, D), or (D,), which is one vector of a whole slide."""
    if len(shape) == 1:
        return 1, shape[0]
    if len(shape) == 3 and shape[0] == 1:
        return shape[1], shape[2]
    if len(shape) == 2:
        return shape[0], shape[1]
    raise UserError(f"{path} has features of shape {shape}. Valid are (N, D), (1, N, D) and, of a slide, (D,).")


def as_text(value: Any) -> str | None:
    """An attribute that is text; None where it is empty or something else."""
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    return str(value) if isinstance(value, str) and value else None

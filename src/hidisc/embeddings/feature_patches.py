"""The patches of imported features in the form of a store; pictures are read from slide files where these are known."""

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hidisc.embeddings.embeddings import Embeddings
from hidisc.ground.errors import UserError
from hidisc.patches.record import SlideGeometry
from hidisc.patches.store import PatchStore, SlideEntry, StoreInfo
from hidisc.patches.table import PatchTable
from hidisc.slides.reader import open_slide
from hidisc.slides.resample import read_scaled, read_thumbnail
from hidisc.slides.slide import DAMAGE, Pixels, Slide, SlideError, as_rgb

_SIDE_PX = 256
"""Side of the picture of a patch whose own size is not known."""
_OVERVIEW_PX = 1024
"""Longest side of the picture of a whole slide."""
_GREY = 214
"""Grey level of the picture of a patch that cannot be read."""
_OPEN = 8
"""Slide files kept open."""


class FeaturePatches(PatchStore):
    """The N patches of embeddings without a store; `files` are the slide files, by the names of the slides.

    Places are those of the table. Where these are micrometres, a slide file is read as if its px were 1 um wide.
    """

    def __init__(self, embeddings: Embeddings, files: Mapping[str, Path]) -> None:
        info, table = embeddings.info, embeddings.table
        self._geometries, self.files = embeddings.read_geometries(), files
        rows_of = table.rows_by("slide")
        entries = tuple(
            SlideEntry(**slide.model_dump(), folder="", kept=len(rows_of.get(slide.slide, ())), dropped=0)
            for slide in info.slides
        )
        self._checksum = info.store_checksum
        super().__init__(
            embeddings.artefact,
            StoreInfo(
                size_px=_SIDE_PX,
                mpp=None,
                channels=3,
                dtype="uint8",
                codec="raw",
                input="unit",
                shards=(),
                slides=entries,
                failures=(),
                level_names=info.level_names,
            ),
            table,
        )
        self._rows_of, self._reading = rows_of, Lock()
        self._slides = table.codes("slide")
        self._corners = np.stack([table.column("x"), table.column("y")], axis=1).astype(np.int64)
        self._open_slide = lru_cache(_OPEN)(self.open_file)

    @property
    def checksum(self) -> str:  # the store's is computed from its files
        """Names the patches: the slides and places of their table."""
        return self._checksum

    def open_file(self, slide: str) -> tuple[Slide, float]:
        """The file of a slide, and its level-0 px per px of the table's places; a UserError where it cannot be read."""
        if slide not in self.files:
            raise UserError(
                f"no file of slide {slide!r} is known. Give --cohort, a CSV with the columns slide and path."
            )
        opened = open_slide(self.files[slide])
        in_um = self._geometries[slide].mpp == 1.0
        return opened, 1 / opened.mpp if in_um and opened.mpp else 1.0

    def geometry(self, slide: SlideEntry) -> SlideGeometry:
        """How large the patches of a slide are on it; where no file says the size, by the distance of neighbours."""
        known = self._geometries[slide.slide]
        corners = self._corners[self._rows_of.get(slide.slide, np.zeros(0, np.int64))]
        extent = known.extent or _find_distance(corners)
        far = np.ceil(corners.max(axis=0, initial=0) + extent).astype(int).tolist()
        size = {"width": known.width or far[0], "height": known.height or far[1]}
        if slide.slide in self.files:
            try:
                file, scale = self._open_slide(slide.slide)
            except (UserError, OSError):  # the slide is then shown without its file, which says so
                pass
            else:
                size = {"width": round(file.width / scale), "height": round(file.height / scale)}
                size |= {} if known.mpp else {"mpp": file.mpp}
        side = known.size_px or _SIDE_PX
        return known.model_copy(update={**size, "extent": float(extent), "size_px": side})

    def read(self, index: int, out: Pixels | None = None) -> Pixels:
        """The picture (256, 256, 3) of a row from the slide's file; grey where it cannot be read."""
        picture = np.full(self.shape, _GREY, np.uint8) if out is None else out
        slide, (x, y) = self._slides[1][self._slides[0][index]], self._corners[index].tolist()
        if slide in self.files and x >= 0:
            extent = self._geometries[slide].extent or _find_distance(self._corners[self._rows_of[slide]])
            try:
                file, scale = self._open_slide(slide)
                with self._reading:
                    down = extent * scale / _SIDE_PX
                    picture[:] = as_rgb(read_scaled(file, x * scale, y * scale, _SIDE_PX, _SIDE_PX, down))
            except (UserError, SlideError, *DAMAGE):
                picture[:] = _GREY
        return picture

    def dropped(self) -> PatchTable:
        """No patch was dropped."""
        return self.table.select(np.zeros(0, np.int64))

    def thumbnail(self, slide: SlideEntry) -> tuple[Pixels, float] | None:
        """(pixels (h, w, 3), px of the table's places per thumbnail px) of a slide; None without its file."""
        if slide.slide not in self.files:
            return None
        file, scale = self._open_slide(slide.slide)
        down = max(1.0, max(file.width, file.height) / _OVERVIEW_PX)
        with self._reading:
            return as_rgb(read_thumbnail(file, down)), down / scale

    def __getstate__(self) -> dict[str, Any]:
        raise TypeError("patches of features are not sent to other processes")


def _find_distance(corners: NDArray[np.int64]) -> float:
    """The smallest distance of two corners (n, 2) along an axis, 256 where there is none: a patch without overlap."""
    steps = [np.diff(np.unique(values)) for values in corners.T]
    found = np.concatenate([step[step > 0] for step in steps])
    return float(found.min()) if len(found) else float(_SIDE_PX)

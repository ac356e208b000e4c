"""A slide, tile by tile: from its file where the file is given, else from its thumbnail and stored patches.

The label and macro pictures of a slide file can show a patient's name; the readers of `slides/` do not offer them.
"""

import math
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from hidisc.embeddings.feature_patches import FeaturePatches
from hidisc.ground.errors import UserError
from hidisc.patches.record import SlideGeometry, SlideRecord
from hidisc.patches.store import PatchError, PatchStore, SlideEntry
from hidisc.slides.cohort import sample_slide
from hidisc.slides.reader import open_slide
from hidisc.slides.resample import pick_level, read_scaled
from hidisc.slides.slide import DAMAGE, Slide, SlideError, as_rgb

TILE_PX = 256
_GLASS = 244
"""Grey level of the parts of a slide without a picture."""
_COARSEST = 16
"""Most px of a file's level per px of a tile: 16 million of them are a second of reading."""
_NEAR, _MOST_PATCHES = 64, 2_000
"""Most patches painted over the thumbnail of a tile (with more, they are no sharper), and most without a thumbnail."""


@dataclass(frozen=True)
class ShownSlide:
    """A slide of a store, in level-0 px."""

    entry: SlideEntry
    width: int
    height: int
    mpp: float | None
    """Micrometres per level-0 px."""
    extent: float
    """Side of a patch."""
    rows: NDArray[np.int64]
    """The rows (n,) of its patches in the store."""
    corners: NDArray[np.int64]
    """The upper left corners x, y (n, 2) of its patches."""
    dropped: NDArray[np.int64]
    """The upper left corners x, y (m, 2) of the boxes that were dropped."""
    source: str
    """A sentence that says where the pixels come from."""
    file: Slide | None = None
    thumbnail: tuple[NDArray[np.uint8], float] | None = None
    """The pixels (h, w, 3) of the thumbnail, and level-0 px per thumbnail px."""
    scale: float = 1.0
    """Level-0 px of the file per px of `width`, `corners` and all else here; 1 but where places are micrometres."""
    _reading: Lock = field(default_factory=Lock)

    @property
    def levels(self) -> int:
        """The levels of its pyramid: one more than the halvings after which the slide fits one tile."""
        return max(0, math.ceil(math.log2(max(self.width, self.height) / TILE_PX))) + 1

    def tile(self, store: PatchStore, level: int, column: int, row: int) -> NDArray[np.uint8]:
        """The pixels (h, w, 3) of a tile of a level, which is `2**level` times coarser than level 0."""
        down, side = 2.0**level, TILE_PX * 2**level
        x, y = column * side, row * side
        if level >= self.levels or x >= self.width or y >= self.height:
            raise UserError(f"slide {self.entry.slide!r} has no tile {column}, {row} at level {level}.")
        width, height = (math.ceil(min(side, rest) / down) for rest in (self.width - x, self.height - y))
        # a file without coarse levels would have to be read whole for a coarse tile
        fine = down * self.scale
        if self.file is not None and fine <= _COARSEST * self.file.levels[pick_level(self.file, fine)]:
            with suppress(SlideError, *DAMAGE), self._reading:  # what is damaged is shown from the patches
                return as_rgb(read_scaled(self.file, x * self.scale, y * self.scale, width, height, fine))
        return self._compose(store, x, y, width, height, down)

    def _compose(self, store: PatchStore, x: int, y: int, width: int, height: int, down: float) -> NDArray[np.uint8]:
        """Draw a part of the slide from its thumbnail, with the stored patches over it."""
        picture = Image.new("RGB", (width, height), (_GLASS,) * 3)
        if self.thumbnail is not None:
            pixels, scale = self.thumbnail
            box = (x / scale, y / scale, (x + width * down) / scale, (y + height * down) / scale)
            box = (box[0], box[1], min(box[2], pixels.shape[1]), min(box[3], pixels.shape[0]))
            if box[0] < box[2] and box[1] < box[3]:
                size = round((box[2] - box[0]) * scale / down), round((box[3] - box[1]) * scale / down)
                if min(size) > 0:
                    picture.paste(Image.fromarray(pixels).resize(size, Image.Resampling.BICUBIC, box))
        far = self.corners - (x, y)
        is_near = ((far > -self.extent) & (far < (width * down, height * down))).all(axis=1)
        side = max(1, round(self.extent / down))
        near = np.flatnonzero(is_near)
        if len(near) <= _NEAR or self.thumbnail is None:
            for place in near[:: max(1, len(near) // _MOST_PATCHES)]:
                with suppress(PatchError):
                    patch = Image.fromarray(as_rgb(store.read(int(self.rows[place]))))
                    left, top = (round(offset / down) for offset in far[place])
                    picture.paste(patch.resize((side, side), Image.Resampling.BILINEAR), (left, top))
        return np.asarray(picture)


def show_slide(
    store: PatchStore, entry: SlideEntry, rows: NDArray[np.int64], dropped: NDArray[np.int64], path: Path | None
) -> ShownSlide:
    """A slide with its patches (n,) and dropped boxes (m, 2); `path` of its file, None where it is not known."""
    geometry = store.geometry(entry)
    corners = np.stack([store.table.column(axis)[rows] for axis in ("x", "y")], axis=1).astype(np.int64)
    if geometry.width is None or geometry.height is None or geometry.extent is None or (corners < 0).any():
        return _lay_out(entry, geometry, rows)
    if isinstance(store, FeaturePatches):
        (file, scale), source, thumbnail = *_open_features(store, entry), None
    else:
        (file, source), scale, thumbnail = _open_file(store.record(entry), path), 1.0, store.thumbnail(entry)
    size = geometry.width, geometry.height, geometry.mpp, geometry.extent
    return ShownSlide(entry, *size, rows, corners, dropped, source, file, thumbnail, scale)


def _open_features(store: FeaturePatches, entry: SlideEntry) -> tuple[tuple[Slide | None, float], str]:
    """The file of a slide whose features were imported, with its scale; and where the pixels come from."""
    try:
        opened = store.open_file(entry.slide)
    except (UserError, OSError) as error:
        return (None, 1.0), f"The features were imported without pictures: {str(error).rstrip('.')}."
    return opened, f"The picture is read from {store.files[entry.slide].name}."


def _lay_out(entry: SlideEntry, geometry: SlideGeometry, rows: NDArray[np.int64]) -> ShownSlide:
    """A slide whose patches were imported: they are laid side by side, because their places are not known."""
    across = max(1, math.ceil(math.sqrt(len(rows))))
    number, side = np.arange(len(rows)), geometry.size_px or TILE_PX
    corners = np.stack([number % across * side, number // across * side], axis=1)
    source = "The patches were imported: they stand side by side, and where they lay is not known."
    down = max(1, math.ceil(len(rows) / across))
    return ShownSlide(
        entry, across * side, down * side, geometry.mpp, side, rows, corners, np.zeros((0, 2), np.int64), source
    )


def _open_file(record: SlideRecord, path: Path | None) -> tuple[Slide | None, str]:
    """Open the file of a slide if it is the file that was cut; and a sentence that says where the pixels come from."""
    stored = "The picture is made of the thumbnail and the stored patches"
    if path is None:
        return None, f"{stored}; start with --cohort cohort.csv to see the slide itself."
    try:
        if sample_slide(path) != record.sample:
            return None, f"{stored}: {path.name} is not the file that was cut."
        return open_slide(path), f"The picture is read from {path.name}."
    except (UserError, OSError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        return None, f"{stored}: {path.name} cannot be read ({reason})."

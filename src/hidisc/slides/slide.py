"""What every slide offers (levels of pixels and a scale), and any pixels as RGB for people."""

import struct
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from hidisc.ground.errors import UserError
from hidisc.settings.prepare import PLAUSIBLE_MPP

Pixels = NDArray[Any]
"""uint8 or uint16, channels last."""
DAMAGE = (OSError, SyntaxError, ValueError, EOFError, TypeError, LookupError, ArithmeticError, AttributeError,
          RuntimeError, struct.error)  # fmt: skip
"""What Pillow and tifffile raise of damaged files."""


class SlideError(UserError):
    """A slide file that cannot be used, with the reason and what to do about it."""


Found = TypeVar("Found")


class SlideFile:
    """A file that is about to be opened, and what the readers have found out about it so far."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._known: dict[Callable[[Path], Any], Any] = {}

    def ask(self, look: Callable[[Path], Found]) -> Found:
        """The answer of a function about the file; the function is called once, although several readers ask."""
        if look not in self._known:
            self._known[look] = look(self.path)
        answer: Found = self._known[look]
        return answer


class Slide(ABC):
    """An open slide: `levels[0]` is the finest, pixels are (height, width, channels) of `dtype`.

    Only the pyramid is reachable. Label and macro pictures can show a patient's name, so no reader offers them.
    """

    turn: ClassVar[float]
    """Readers are asked in the order of this number; the last reader gets what no other one takes."""
    formats: ClassVar[str] = ""
    """The formats that the reader adds to those of the readers before it, for messages."""
    suffixes: ClassVar[tuple[str, ...]] = ()
    """How names of such files end; `hidisc cohort` opens only files with a known ending."""

    path: Path
    reader: str
    """What reads it: tiles (this package's own), openslide, tifffile or pillow."""
    width: int
    height: int
    """Level-0 pixels."""
    levels: tuple[float, ...]
    """Downsampling of every level against level 0, rising from 1.0."""
    mpp: float | None
    """Micrometres per level-0 pixel as the file says it, None when it does not or says nonsense."""
    channels: int
    dtype: np.dtype[Any]
    origin: tuple[int, int] = (0, 0)
    """Level-0 px (x, y) at which QuPath's coordinates begin: it shows only what was scanned (OpenSlide's bounds)."""

    def __init__(self, path: Path) -> None:
        """Open the file; raises SlideError with the reason where that is not possible."""
        self.path = path

    @classmethod
    @abstractmethod
    def takes(cls, file: SlideFile) -> bool:
        """Whether this reader is to open a file, by what the file holds."""

    @abstractmethod
    def read(self, level: int, x: int, y: int, width: int, height: int) -> Pixels:
        """Pixels (height, width, C) of a rectangle inside `level`, all in pixels of that level."""

    @abstractmethod
    def close(self) -> None:
        """Release the file."""

    def level_size(self, level: int) -> tuple[int, int]:
        """(width, height) of a level in its own pixels."""
        return max(1, int(self.width / self.levels[level])), max(1, int(self.height / self.levels[level]))

    def __enter__(self) -> "Slide":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


CACHE_BYTES = 128 * 2**20
"""Decoded tiles kept per slide: neighbouring patches share tiles (8 x 8 patches of 600 px are 92 MB)."""


class TileCache(OrderedDict[tuple[int, ...], NDArray[Any]]):
    """Decoded tiles of a slide by level and number; `keep` drops those not used for longest beyond `max_bytes`."""

    def __init__(self, max_bytes: int) -> None:
        super().__init__()
        self.bytes, self._max_bytes = 0, max_bytes

    def keep(self, key: tuple[int, ...], tile: NDArray[Any]) -> None:
        """Keep a tile, or note that it was used once more."""
        if key not in self:
            self[key] = tile
            self.bytes += tile.nbytes
        self.move_to_end(key)
        while self.bytes > self._max_bytes and len(self) > 1:
            self.bytes -= self.popitem(last=False)[1].nbytes

    def clear(self) -> None:
        """Drop all tiles."""
        super().clear()
        self.bytes = 0


def plausible_mpp(x: float | None, y: float | None) -> float | None:
    """One scale for both axes, or None when it is missing, not square or outside `PLAUSIBLE_MPP`."""
    low, high = PLAUSIBLE_MPP
    if x is None or y is None or not (low <= x <= high and low <= y <= high) or abs(x - y) > 0.02 * x:
        return None
    return (x + y) / 2


def as_rgb(pixels: Pixels) -> NDArray[np.uint8]:
    """(H, W, 3) uint8: one channel as grey, two as red-green, more: the first three; 16 bits stretched to fit."""
    channels = pixels.shape[2]
    if channels == 1:
        pixels = pixels.repeat(3, axis=2)
    elif channels == 2:
        pixels = np.concatenate([pixels, np.zeros_like(pixels[..., :1])], axis=2)
    pixels = pixels[..., :3]
    if pixels.dtype == np.uint8:
        return np.ascontiguousarray(pixels)
    bright = max(1.0, float(np.percentile(pixels, 99.8)))
    return (pixels * (255 / bright)).clip(0, 255).astype(np.uint8)


def shrink(rgb: NDArray[np.uint8], side_px: int) -> NDArray[np.uint8]:
    """A square RGB picture at another side."""
    return np.asarray(Image.fromarray(rgb).resize((side_px, side_px), Image.Resampling.LANCZOS))

"""Whole-slide files through OpenSlide: SVS, NDPI, SCN, MRXS, BIF, DICOM, generic tiled TIFF."""

from pathlib import Path
from typing import ClassVar

import numpy as np
import openslide

from hidisc.slides.readers.tiff import sniff
from hidisc.slides.slide import CACHE_BYTES, Pixels, Slide, SlideError, SlideFile, plausible_mpp

PLAIN_TIFFS = ("aperio", "generic-tiff", "philips")
"""What OpenSlide calls the files whose levels are plain pages of a TIFF, which `tiled.py` takes."""


class WholeSlide(Slide):
    """A slide that OpenSlide opens; always 8-bit RGB, transparent parts laid on the slide's background."""

    turn = 2
    formats = "SVS, NDPI, SCN, MRXS, BIF, DICOM whole-slide"
    suffixes: ClassVar[tuple[str, ...]] = (".svs", ".ndpi", ".scn", ".mrxs", ".bif", ".dcm", ".svslide")
    reader = "openslide"
    channels = 3
    dtype = np.dtype(np.uint8)

    @classmethod
    def takes(cls, file: SlideFile) -> bool:
        """Whether OpenSlide knows the format, unless it would flatten the file to 8-bit RGB or miss its pyramid."""
        return file.ask(sniff) != "tiff" and file.ask(detect_format) not in (None, *PLAIN_TIFFS)

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        try:
            self._slide = openslide.OpenSlide(str(path))
        except (openslide.OpenSlideError, UnicodeEncodeError) as error:
            raise SlideError(f"OpenSlide refuses it: {error}.") from error
        self._slide.set_cache(openslide.OpenSlideCache(CACHE_BYTES))
        properties = self._slide.properties
        self.width, self.height = self._slide.dimensions
        self._sizes = tuple(self._slide.level_dimensions)  # kept, because OpenSlide takes 0.05 ms to say them
        self.levels = tuple(float(down) for down in self._slide.level_downsamples)
        x = _number(properties.get(openslide.PROPERTY_NAME_MPP_X))
        y = _number(properties.get(openslide.PROPERTY_NAME_MPP_Y))
        self.mpp = plausible_mpp(x, y)
        bounds = (openslide.PROPERTY_NAME_BOUNDS_X, openslide.PROPERTY_NAME_BOUNDS_Y)
        left, top = (int(_number(properties.get(name)) or 0) for name in bounds)
        self.origin = left, top
        background = properties.get(openslide.PROPERTY_NAME_BACKGROUND_COLOR, "FFFFFF")
        self._background = np.frombuffer(bytes.fromhex(background), np.uint8).astype(np.uint16)

    def read(self, level: int, x: int, y: int, width: int, height: int) -> Pixels:
        """Pixels (height, width, 3) of a rectangle inside `level`, in pixels of that level."""
        down = self.levels[level]
        try:
            image = self._slide.read_region((round(x * down), round(y * down)), level, (width, height))
        except openslide.OpenSlideError as error:
            raise SlideError(f"pixels at {x}, {y} of level {level} are damaged: {error}.") from error
        if image.getchannel("A").getextrema() == (255, 255):
            return np.asarray(image.convert("RGB"))
        rgba = np.asarray(image)
        alpha = rgba[..., 3:].astype(np.uint16)  # MRXS and others leave out tiles that were never scanned
        laid = (rgba[..., :3] * alpha + self._background * (255 - alpha) + 127) // 255
        return laid.astype(np.uint8)

    def level_size(self, level: int) -> tuple[int, int]:
        """(width, height) of a level in its own pixels."""
        width, height = self._sizes[level]
        return width, height

    def close(self) -> None:
        """Release the file."""
        self._slide.close()


def detect_format(path: Path) -> str | None:
    """What OpenSlide calls the format of a file, None when it knows none; the file may still turn out damaged."""
    try:
        format_: str | None = openslide.OpenSlide.detect_format(str(path))
    except (openslide.OpenSlideError, UnicodeEncodeError):
        return None
    return format_


def _number(text: str | None) -> float | None:
    try:
        return None if text is None else float(text)
    except ValueError:
        return None

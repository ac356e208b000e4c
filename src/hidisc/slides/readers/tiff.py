"""The chain of page directories of a TIFF, followed here before a library follows it for ever.

TIFF pyramids OpenSlide refuses or would flatten, through tifffile: OME-TIFF, QPTIFF, 16 bits, any channels.
"""

import math
import os
import struct
from contextlib import suppress
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import tifffile
from numpy.typing import NDArray

from hidisc.slides.slide import CACHE_BYTES, DAMAGE, Pixels, Slide, SlideError, SlideFile, TileCache, plausible_mpp


def refuse_circle(path: Path) -> None:
    """Raise where the directories of a TIFF lead back to one of themselves; other files and damage are left alone."""
    try:
        with path.open("rb") as file:
            head = file.read(16)
            order = {b"II": "<", b"MM": ">"}[head[:2]]
            big = head[2:4] == struct.pack(f"{order}H", 43)
            # NDPI has offsets of 8 bytes in an otherwise classic TIFF
            length, entry_bytes, offset = (
                ("Q", 20, "Q") if big else ("H", 12, "Q" if path.suffix.lower() == ".ndpi" else "I")
            )
            (directory,) = struct.unpack_from(order + offset, head, 8 if big else 4)
            seen: set[int] = set()
            while directory:
                if directory in seen:
                    raise SlideError("the page directories of the TIFF lead in a circle. Copy it again.")
                seen.add(directory)
                file.seek(directory)
                (entries,) = struct.unpack(order + length, file.read(struct.calcsize(order + length)))
                file.seek(entries * entry_bytes, os.SEEK_CUR)
                (directory,) = struct.unpack(order + offset, file.read(struct.calcsize(order + offset)))
    except (KeyError, struct.error, OSError, ValueError, OverflowError):
        return  # no TIFF, or one that ends too early


MAX_SEGMENT_BYTES = 256 * 2**20
"""The largest strip or tile decoded at once; a file that is one huge strip would be read whole."""
MAX_CHANNELS = 256
"""No microscope has more; a damaged tag has, and a patch of them would not fit in memory."""
MAX_PAGES = 8
"""More grey pages than this without a name for their axis are a stack, not channels."""
_MICROMETRES = {"µm": 1.0, "μm": 1.0, "um": 1.0, "nm": 1e-3, "mm": 1e3, "cm": 1e4, "m": 1e6}
_KINDS = tifffile.PHOTOMETRIC
_LIGHT = (_KINDS.MINISWHITE, _KINDS.MINISBLACK, _KINDS.RGB, _KINDS.YCBCR)
_ALPHA = (tifffile.EXTRASAMPLE.UNASSALPHA, tifffile.EXTRASAMPLE.ASSOCALPHA)
_JPEG = (tifffile.COMPRESSION.JPEG, tifffile.COMPRESSION.OJPEG)
"""Compressions whose decoder turns YCbCr into RGB."""


def sniff(path: Path) -> str | None:
    """Which reader opens a TIFF: "tiff" (this one), "wsi" (OpenSlide first), "picture" (palette); None: no TIFF."""
    refuse_circle(path)
    try:
        with tifffile.TiffFile(path) as tif:
            page = tif.pages.first
            if page.photometric == tifffile.PHOTOMETRIC.PALETTE:
                return "picture"
            if page.photometric not in _LIGHT:
                _refuse_colours(page)
            if page.dtype != np.uint8 or page.samplesperpixel not in (3, 4) or tif.is_ome or tif.is_qpi:
                return "tiff"
            if not tif.is_ndpi:  # whose pages are one JPEG each, and offsets longer than the TIFF says
                with suppress(*DAMAGE):  # what else is damaged is the reader's to find
                    for other in tif.pages:
                        _check_pieces(other.aspage())
            return "wsi"
    except DAMAGE:
        return None


class TiffSlide(Slide):
    """A TIFF read segment by segment; channels are the samples of a page, or one page per channel."""

    turn = 3
    formats = "OME-TIFF, QPTIFF, tiled or plain TIFF"
    suffixes = (".tif", ".tiff", ".btf", ".qptiff")
    reader = "tifffile"

    @classmethod
    def takes(cls, file: SlideFile) -> bool:
        """Whether it is a TIFF of measured light; OpenSlide is asked before where it may know the format."""
        return file.ask(sniff) in ("tiff", "wsi")

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        try:
            self._tif = tifffile.TiffFile(path)
            self._describe()
        except DAMAGE as error:
            raise SlideError(f"the TIFF is damaged or cut short ({error}). Copy it again.") from error
        self._cache = TileCache(CACHE_BYTES)

    def _describe(self) -> None:
        """Find the pyramid, its size, its channels and its scale."""
        _check_ends(self._tif)
        series = _pyramid(self._tif)
        self._levels = [_pages(level) for level in series.levels]
        if any(page.parent is not self._tif for pages in self._levels for page in pages):
            raise SlideError("its channels lie in several files. Save them as one OME-TIFF.")
        first = self._levels[0][0]
        dtype = np.dtype(first.dtype).newbyteorder("=")
        if dtype not in (np.uint8, np.uint16):
            raise SlideError(f"its pixels are {dtype}. Only 8 and 16 bit unsigned are read; convert it.")
        self.dtype = dtype
        self.height, self.width = first.imagelength, first.imagewidth
        alpha = sum(extra in _ALPHA for extra in first.extrasamples)  # at the end, and no measured light
        self._samples = int(first.samplesperpixel) - alpha
        self.channels = self._samples * len(self._levels[0])
        if self.channels < 1:
            raise ValueError("a page without channels")
        if self.channels > MAX_CHANNELS:
            raise SlideError(f"it says that it has {self.channels} channels, more than {MAX_CHANNELS}. Copy it again.")
        self.levels = tuple(self.width / pages[0].imagewidth for pages in self._levels)
        self.mpp = _ome_mpp(self._tif, self._tif.series.index(series)) if self._tif.is_ome else _tag_mpp(first)

    def read(self, level: int, x: int, y: int, width: int, height: int) -> Pixels:
        """Pixels (height, width, C) of a rectangle inside `level`, in pixels of that level."""
        glass = 255 if self.dtype == np.uint8 and self.channels == 3 else 0  # what a tile the file leaves out shows
        out = np.full((height, width, self.channels), glass, self.dtype)
        for channel, page in enumerate(self._levels[level]):
            target = out[..., channel * self._samples : (channel + 1) * self._samples]
            tall, wide = (page.tilelength, page.tilewidth) if page.is_tiled else (page.rowsperstrip, page.imagewidth)
            across, down = math.ceil(page.imagewidth / wide), math.ceil(page.imagelength / tall)
            separate = page.planarconfig == tifffile.PLANARCONFIG.SEPARATE and page.samplesperpixel > 1
            for plane in range(self._samples if separate else 1):
                for row in range(y // tall, (y + height - 1) // tall + 1):
                    for column in range(x // wide, (x + width - 1) // wide + 1):
                        segment = self._segment(level, channel, (plane * down + row) * across + column)
                        part = target[..., plane : plane + 1] if separate else target
                        paste(part, segment, column * wide - x, row * tall - y)
        return out

    def _segment(self, level: int, channel: int, index: int) -> NDArray[Any] | None:
        """One decoded strip or tile (rows, columns, samples); None where the file leaves it out."""
        key = (level, channel, index)
        if key in self._cache:
            self._cache.move_to_end(key)
            return self._cache[key]
        page = self._levels[level][channel]
        try:
            offset, count = page.dataoffsets[index], page.databytecounts[index]
            if not count:
                return None
            handle = self._tif.filehandle
            if offset + count > handle.size:
                raise ValueError("the file ends too early")
            handle.seek(offset)
            data = handle.read(count)
            decoded, _, _ = page.decode(data, index, jpegtables=page.jpegtables)
        except DAMAGE as error:
            raise SlideError(f"pixels of level {level} are damaged ({error}). Copy the file again.") from error
        if decoded is None:
            return None
        segment: NDArray[Any] = np.asarray(decoded[0], self.dtype)
        if page.photometric == tifffile.PHOTOMETRIC.MINISWHITE and "PhotometricInterpretation" in page.tags:
            segment = np.iinfo(self.dtype).max - segment
        self._cache.keep(key, segment)
        return segment

    def level_size(self, level: int) -> tuple[int, int]:
        """(width, height) of a level in its own pixels."""
        page = self._levels[level][0]
        return page.imagewidth, page.imagelength

    def close(self) -> None:
        """Release the file."""
        self._tif.close()
        self._cache.clear()


def _check_ends(tif: tifffile.TiffFile) -> None:
    """Raise where a page or its description lies beyond the end of the file, which tifffile only logs.

    Without the description an OME-TIFF's label picture has no name to know it by, and lost pages are lost channels.
    """
    form, file = tif.tiff, tif.filehandle
    for page in tif.pages:
        file.seek(page.offset)
        (tags,) = struct.unpack(form.tagnoformat, file.read(form.tagnosize))
        for _ in range(tags):
            entry = file.read(form.tagsize)
            code, _ = struct.unpack(form.tagformat1, entry[:4])
            count, value = struct.unpack(form.tagformat2, entry[4:])
            inside = count <= form.tagoffsetthreshold  # a text, so a byte each
            if code == 270 and not inside and struct.unpack(form.offsetformat, value)[0] + count > file.size:
                raise ValueError("the file ends too early")
        (following,) = struct.unpack(form.offsetformat, file.read(form.offsetsize))
        if following >= file.size:
            raise ValueError("the file ends too early")


def _pyramid(tif: tifffile.TiffFile) -> tifffile.TiffPageSeries:
    """The series that is the specimen: the largest one not called label, macro or the like."""
    hidden = ("label", "macro", "overview", "thumbnail")
    series = [picture for picture in tif.series if not any(word in str(picture.name).lower() for word in hidden)]
    if not series:
        raise SlideError("the TIFF holds no specimen picture, only label or macro pictures.")
    return max(series, key=lambda picture: math.prod(picture.shape))


def _pages(level: tifffile.TiffPageSeries) -> list[tifffile.TiffPage]:
    """The pages of one level, one per channel, all alike, in segments small enough to be read one by one."""
    lengths = dict(zip(level.axes, level.shape, strict=True))
    # pages without a named axis (I, Q) are channels as long as they are few and grey, as Raman microscopes write them
    unnamed = "IQ" if lengths.get("S", 1) == 1 and max(lengths.get("I", 1), lengths.get("Q", 1)) <= MAX_PAGES else ""
    for axis, length in lengths.items():
        if axis not in "YXSC" + unnamed and length > 1:
            raise SlideError(f"a stack of {length} planes along {axis}. Export one plane as a TIFF of its own.")
    pages = [page.aspage() for page in level.pages if page is not None]
    channels = math.prod(lengths.get(axis, 1) for axis in "CIQ")
    expected = 1 if pages and pages[0].samplesperpixel == channels else channels
    if len(pages) != expected:
        raise SlideError(f"{channels} channels in {len(pages)} pages are not understood. Save one page per channel.")
    for page in pages:
        if page.photometric not in _LIGHT or (page.photometric in _LIGHT[3:] and page.compression not in _JPEG):
            _refuse_colours(page)
        _check_pieces(page)
    return pages


def _check_pieces(page: tifffile.TiffPage) -> None:
    """Raise where the pieces of a page are too large to be read, or a damaged number says that there are others."""
    sides = page.imagewidth, page.imagelength
    wide, tall = (page.tilewidth, page.tilelength) if page.is_tiled else (page.imagewidth, page.rowsperstrip)
    if not all(isinstance(side, int) and side > 0 for side in (*sides, wide, tall, page.samplesperpixel)):
        raise SlideError("the TIFF is damaged or cut short (a page without pixels). Copy it again.")
    rows = tall if page.is_tiled else min(tall, page.imagelength)
    size = wide * rows * page.tiledepth * page.samplesperpixel * (np.dtype(page.dtype).itemsize if page.dtype else 1)
    if size > MAX_SEGMENT_BYTES:
        raise SlideError(
            f"stored in pieces of {size // 2**20} MB, which would be read whole. "
            "Convert it, e.g. `vips tiffsave in.tif out.tiff --tile --pyramid`."
        )
    separate = page.planarconfig == tifffile.PLANARCONFIG.SEPARATE
    needed = math.ceil(sides[0] / wide) * math.ceil(sides[1] / rows) * (page.samplesperpixel if separate else 1)
    if len(page.dataoffsets) < needed:
        raise SlideError(
            f"the TIFF is damaged or cut short (the file ends too early: {sides[0]} x {sides[1]} px need {needed} "
            f"pieces, and it lists {len(page.dataoffsets)}). Copy it again."
        )
    largest = max(page.databytecounts, default=0)
    if largest > page.parent.filehandle.size:
        raise SlideError(
            f"the TIFF is damaged or cut short (the file ends too early: a piece of it has {largest:,} bytes). Copy it "
            "again."
        )


def _refuse_colours(page: tifffile.TiffPage) -> None:
    colours = getattr(page.photometric, "name", page.photometric)
    raise SlideError(f"its colours are {colours}. Only grey and RGB are read; save it as RGB.")


def paste(target: NDArray[Any], segment: NDArray[Any] | None, left: int, top: int) -> None:
    """Copy the part of `segment` (rows, columns, samples) that overlaps `target`, both clipped."""
    if segment is None:
        return
    height, width, samples = target.shape
    rows, columns = segment.shape[:2]
    y0, x0 = max(0, top), max(0, left)
    y1, x1 = min(height, top + rows), min(width, left + columns)
    if y1 > y0 and x1 > x0:
        target[y0:y1, x0:x1] = segment[y0 - top : y1 - top, x0 - left : x1 - left, :samples]


def _tag_mpp(page: tifffile.TiffPage) -> float | None:
    """Micrometres per pixel from the resolution tags, when they are a microscope's and not a printer's."""
    unit = {2: 25400.0, 3: 10000.0}.get(int(page.tags.valueof("ResolutionUnit", default=1)))
    x, y = page.tags.valueof("XResolution"), page.tags.valueof("YResolution")
    if unit is None or not x or not y or not (x[0] and x[1] and y[0] and y[1]):
        return None
    return plausible_mpp(unit * x[1] / x[0], unit * y[1] / y[0])


def _ome_mpp(tif: tifffile.TiffFile, image: int) -> float | None:
    """Micrometres per pixel of the n-th image in the OME-XML."""
    try:
        found = ElementTree.fromstring(tif.ome_metadata or "").findall("{*}Image/{*}Pixels")
        pixels = found[image].attrib
        scales = [
            float(pixels[f"PhysicalSize{axis}"]) * _MICROMETRES[pixels.get(f"PhysicalSize{axis}Unit", "µm")]
            for axis in "XY"
        ]
    except (ElementTree.ParseError, TypeError, KeyError, IndexError, ValueError):
        return None
    return plausible_mpp(scales[0], scales[1])

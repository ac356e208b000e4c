"""Tiled TIFF slides whose tiles are decoded here: the pixels that OpenSlide gives, in a fraction of its time.

OpenSlide still says what the slide is: its levels, its scale, its background. Only its way from tiles to pixels is
replaced, level by level, where that gives exactly the same pixels. Whatever is not plain is read by OpenSlide as
before: a level whose downsampling is not a whole number, a tile that the file leaves out or that cannot be decoded, a
compression or colour model that is not in the list below.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import imagecodecs
import numpy as np
import openslide
import simplejpeg
import tifffile

from hidisc.slides.readers.tiff import paste, sniff
from hidisc.slides.readers.wsi import PLAIN_TIFFS, WholeSlide, detect_format
from hidisc.slides.slide import CACHE_BYTES, DAMAGE, Pixels, SlideError, SlideFile, TileCache

_KINDS = tifffile.COMPRESSION
_JPEG, _JPEG_2000 = _KINDS.JPEG, _KINDS.APERIO_JP2000_RGB
_PLAIN = (_KINDS.NONE, _KINDS.LZW, _KINDS.DEFLATE, _KINDS.ADOBE_DEFLATE, _KINDS.ZSTD, _KINDS.PACKBITS)
_COLOURS: dict[int, bytes] = {tifffile.PHOTOMETRIC.RGB: b"\0", tifffile.PHOTOMETRIC.YCBCR: b"\1"}
"""Colours that tiles may hold, as Adobe's marker of a JPEG calls them."""
_MAX_GAP = 2**16
"""Bytes between two tiles up to which they are read in one request: on a network a request costs more than these."""
_ITS_CACHE_BYTES = 16 * 2**20
"""Decoded tiles that OpenSlide keeps: it reads only what is not plain."""
_CHECKED_PX = 64
"""Side of the square by which a level is compared with OpenSlide when the file is opened."""


@dataclass(frozen=True)
class _Level:
    """The page of a level, and where its tiles lie in the file."""

    page: tifffile.TiffPage
    wide: int
    tall: int
    """Pixels of a tile."""
    across: int
    """Tiles in a row."""

    def decode(self, data: bytes, index: int) -> Pixels:
        """The pixels (tall, wide, 3) of a tile; ValueError when they are not that."""
        compression = self.page.compression
        tile: Any
        if compression == _JPEG:
            tile = simplejpeg.decode_jpeg(self._jpeg_start + data[2:], "RGB")  # strict: what is damaged is an error
        elif compression == _JPEG_2000:
            tile = imagecodecs.jpeg2k_decode(data)
        else:
            decoded: Any = self.page.decode(data, index)[0]
            tile = decoded[0]
        if tile.shape != (self.tall, self.wide, 3) or tile.dtype != np.uint8:
            raise ValueError(f"a tile of {tile.shape} {tile.dtype}")
        return np.asarray(tile)

    @cached_property
    def _jpeg_start(self) -> bytes:
        """What stands before every tile: the tables that all of them share, and which colours they hold."""
        tables = (self.page.jpegtables or b"")[2:-2]
        return b"\xff\xd8" + tables + b"\xff\xee\x00\x0eAdobe\x00\x64\0\0\0\0" + _COLOURS[self.page.photometric]

    def spans(self, indices: list[int]) -> Iterator[tuple[int, int, list[int]]]:
        """(offset, bytes, tiles) of the requests that read some tiles, those close to each other together."""
        offsets, counts = self.page.dataoffsets, self.page.databytecounts
        requests: list[list[int]] = []
        end = -_MAX_GAP - 1  # of the tile before
        for index in sorted(indices, key=lambda index: offsets[index]):
            if offsets[index] > end + _MAX_GAP:
                requests.append([])
            requests[-1].append(index)
            end = offsets[index] + counts[index]
        for tiles in requests:
            start = offsets[tiles[0]]
            yield start, max(offsets[index] + counts[index] for index in tiles) - start, tiles


class TiledSlide(WholeSlide):
    """A slide of an Aperio, Philips or generic tiled TIFF, some or all of whose levels are decoded here.

    Memory: decoded tiles up to CACHE_BYTES, and a small cache of OpenSlide's own.
    """

    turn = 1
    formats = ""
    suffixes: ClassVar[tuple[str, ...]] = ()
    reader = "tiles"

    @classmethod
    def takes(cls, file: SlideFile) -> bool:
        """Whether it is a file whose levels OpenSlide finds as plain pages of a TIFF."""
        return file.ask(sniff) != "tiff" and file.ask(detect_format) in PLAIN_TIFFS

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._slide.set_cache(openslide.OpenSlideCache(_ITS_CACHE_BYTES))
        self._cache = TileCache(CACHE_BYTES)
        self._levels: dict[int, _Level] = {}
        try:
            self._tif = tifffile.TiffFile(path)
        except DAMAGE as error:
            super().close()
            raise SlideError(f"its TIFF is damaged ({error}).") from error
        try:
            self._levels = _find_levels(self._tif, self)
            self._levels = {number: level for number, level in self._levels.items() if self._agrees(number)}
        except (SlideError, *DAMAGE):
            self._levels = {}
            super().close()
            super().__init__(path)  # once OpenSlide has met damage, it reads nothing more
        if not self._levels:
            self.reader = super().reader

    def read(self, level: int, x: int, y: int, width: int, height: int) -> Pixels:
        """Pixels (height, width, 3) of a rectangle inside `level`, in pixels of that level."""
        pixels = self._assemble(level, x, y, width, height) if level in self._levels else None
        return super().read(level, x, y, width, height) if pixels is None else pixels

    def _assemble(self, number: int, x: int, y: int, width: int, height: int) -> Pixels | None:
        """The same rectangle from tiles that are decoded here; None where one is left out or damaged."""
        level = self._levels[number]
        tiles = self._decode(number, level, x, y, width, height)
        if tiles is None:
            return None
        out = np.empty((height, width, 3), np.uint8)
        for index, tile in tiles.items():
            row, column = divmod(index, level.across)
            paste(out, tile, column * level.wide - x, row * level.tall - y)
        return out

    def _decode(self, number: int, level: _Level, x: int, y: int, width: int, height: int) -> dict[int, Pixels] | None:
        """The tiles that a rectangle touches, by index; None where one is left out or damaged."""
        rows = range(y // level.tall, (y + height - 1) // level.tall + 1)
        columns = range(x // level.wide, (x + width - 1) // level.wide + 1)
        indices = [row * level.across + column for row in rows for column in columns]
        tiles = {index: self._cache[number, index] for index in indices if (number, index) in self._cache}
        try:
            for offset, count, missing in level.spans([index for index in indices if index not in tiles]):
                self._tif.filehandle.seek(offset)
                data = self._tif.filehandle.read(count)
                for index in missing:
                    start, size = level.page.dataoffsets[index] - offset, level.page.databytecounts[index]
                    if not size or start + size > len(data):
                        return None
                    tiles[index] = level.decode(data[start : start + size], index)
        except DAMAGE:
            return None
        for index in indices:
            self._cache.keep((number, index), tiles[index])
        return tiles

    def _agrees(self, number: int) -> bool:
        """Whether the middle of a level and its last corner, if they can be decoded, are what OpenSlide reads there."""
        width, height = self.level_size(number)
        side_x, side_y = min(_CHECKED_PX, width), min(_CHECKED_PX, height)
        decoded = False
        for x, y in ((width - side_x) // 2, (height - side_y) // 2), (width - side_x, height - side_y):
            ours = self._assemble(number, x, y, side_x, side_y)
            if ours is None:
                continue
            if not np.array_equal(ours, super().read(number, x, y, side_x, side_y)):
                return False
            decoded = True
        return decoded

    def close(self) -> None:
        """Release the file."""
        super().close()
        self._tif.close()
        self._cache.clear()


def _find_levels(tif: tifffile.TiffFile, slide: WholeSlide) -> dict[int, _Level]:
    """The levels whose tiles are plain, by their numbers."""
    pages = [page.aspage() for page in tif.pages]
    by_size = {(page.imagewidth, page.imagelength): page for page in reversed(pages) if _is_plain(page)}
    tiled = [page for page in pages if page.is_tiled]
    found = {}
    for number, downsample in enumerate(slide.levels):
        # of two pages of one size the first is the level; those of Philips are larger than their levels, and in order
        page = tiled[number] if tif.is_philips else by_size.get(slide.level_size(number))
        if page is not None and _is_plain(page) and downsample == int(downsample):  # else it reads between pixels
            across = -(-page.imagewidth // page.tilewidth)
            found[number] = _Level(page, page.tilewidth, page.tilelength, across)
    return found


def _is_plain(page: tifffile.TiffPage) -> bool:
    """Whether a page is tiles of 8-bit colour in a compression that is decoded here."""
    if not page.is_tiled or page.planarconfig != tifffile.PLANARCONFIG.CONTIG or page.photometric not in _COLOURS:
        return False
    if page.samplesperpixel != 3 or page.bitspersample != 8:
        return False
    is_rgb = page.photometric == tifffile.PHOTOMETRIC.RGB
    return page.compression == _JPEG or (is_rgb and page.compression in (_JPEG_2000, *_PLAIN))

"""Slide files of every kind that is read, small and whole at first, then damaged as bytes and as TIFF directories."""

import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tifffile
from numpy.typing import NDArray
from PIL import Image

from fuzz.harness import INPUT, Judge, Kind, Outcome, Wrong, judge
from fuzz.mutations import Rng, mutate
from hidisc.slides.reader import open_slide
from hidisc.slides.resample import read_scaled, read_thumbnail
from hidisc.slides.slide import Slide
from hidisc.slides.synthetic import write_pyramid

WIDTH, HEIGHT, TILE = 200, 144, 64
THUMBNAIL_PX = 96
TAGS = (254, 256, 257, 258, 259, 262, 270, 273, 277, 278, 279, 282, 284, 317, 322, 323, 324, 325, 330, 338, 339, 347,
        530, 532, 65535)  # fmt: skip
"""Of TIFF directories: what a damaged tag may be read as."""
OPEN_LIMIT_S = 20.0
"""Of `open_slide`, which waits 60 s for a user."""


class Slides(Kind):
    """Slide files."""

    name, limit_s, memory_bytes = "slides", 60, 3 * 2**30

    def __init__(self) -> None:
        """Every file of `MAKERS` is damaged in turn."""
        self.groups = tuple(MAKERS)

    def prepare(self, home: Path) -> None:
        """One whole file of every kind."""
        pixels = _draw()
        for name, make in MAKERS.items():
            make(home / name, pixels)
            _read_all(home / name)  # each is readable, or refused with a sentence, before it is damaged

    def open(self, home: Path, folder: Path) -> Judge:
        """Every input is a file of its own."""
        import logging

        logging.disable(logging.CRITICAL)

        def say(rng: Rng, index: int) -> Outcome:
            name = self.group_of(index)
            path = folder / INPUT / name
            path.write_bytes(damage((home / name).read_bytes(), rng))
            return judge(lambda: read_slide(path))

        return say


# Making


def _draw() -> NDArray[np.uint8]:
    """Pixels (HEIGHT, WIDTH, 3): coarse noise, so that every codec has something to do."""
    blocks = np.random.default_rng(1).integers(60, 250, (HEIGHT // 8, WIDTH // 8, 3), dtype=np.uint8)
    return blocks.repeat(8, 0).repeat(8, 1)


def _tiff(**options: object) -> Callable[[Path, NDArray[np.uint8]], None]:
    def make(path: Path, pixels: NDArray[np.uint8]) -> None:
        tifffile.imwrite(path, pixels, photometric="rgb", metadata=None, **options)

    return make


def _grey(dtype: str, **options: object) -> Callable[[Path, NDArray[np.uint8]], None]:
    def make(path: Path, pixels: NDArray[np.uint8]) -> None:
        tifffile.imwrite(path, pixels[..., 0].astype(dtype), photometric="minisblack", metadata=None, **options)

    return make


def _planes(path: Path, pixels: NDArray[np.uint8]) -> None:
    planes = np.moveaxis(pixels, 2, 0)
    tifffile.imwrite(path, planes, photometric="rgb", planarconfig="separate", tile=(TILE, TILE), compression="lzw")


def _ome(path: Path, pixels: NDArray[np.uint8]) -> None:
    """Three channels of 16 bits with a pyramid in SubIFDs, as fluorescence scanners write them."""
    channels = np.moveaxis(pixels, 2, 0).astype(np.uint16) * 200
    facts = {
        "axes": "CYX",
        "PhysicalSizeX": 0.5,
        "PhysicalSizeXUnit": "µm",
        "PhysicalSizeY": 0.5,
        "PhysicalSizeYUnit": "µm",
    }
    with tifffile.TiffWriter(path, ome=True) as tiff:
        shared = {"photometric": "minisblack", "tile": (TILE, TILE), "compression": "zlib"}
        tiff.write(channels, subifds=1, metadata=facts, **shared)
        tiff.write(channels[:, ::2, ::2], subfiletype=1, metadata=None, **shared)


def _ome_rgb(path: Path, pixels: NDArray[np.uint8]) -> None:
    with tifffile.TiffWriter(path, ome=True, bigtiff=True) as tiff:
        tiff.write(pixels, photometric="rgb", tile=(TILE, TILE), compression="jpeg", metadata={"axes": "YXS"})


def _svs(path: Path, pixels: NDArray[np.uint8]) -> None:
    """As Aperio writes them: tiled level, stripped thumbnail, tiled level, label."""
    text = (
        f"Aperio Image Library v12\n{WIDTH}x{HEIGHT} [0,0 {WIDTH}x{HEIGHT}] (64x64) JPEG/RGB Q=70|AppMag = 20|MPP = 0.5"
    )
    with tifffile.TiffWriter(path) as tiff:
        shared = {"photometric": "rgb", "compression": "jpeg", "metadata": None, "software": False}
        tiff.write(pixels, tile=(TILE, TILE), description=text, **shared)
        tiff.write(pixels[::4, ::4], rowsperstrip=16, description=text, **shared)
        tiff.write(pixels[::2, ::2], tile=(TILE, TILE), description=text, subfiletype=1, **shared)
        tiff.write(pixels[:32, :32], rowsperstrip=32, description="Aperio Image Library v12\nlabel 32x32", **shared)


def _pillow(mode: str = "RGB", **options: object) -> Callable[[Path, NDArray[np.uint8]], None]:
    def make(path: Path, pixels: NDArray[np.uint8]) -> None:
        Image.fromarray(pixels).convert(mode).save(path, **options)

    return make


def _exif(path: Path, pixels: NDArray[np.uint8]) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(pixels).save(path, exif=exif, quality=90)


def _png16(path: Path, pixels: NDArray[np.uint8]) -> None:
    Image.fromarray(pixels[..., 0].astype(np.uint16) * 256).save(path)


def _animation(path: Path, pixels: NDArray[np.uint8]) -> None:
    Image.fromarray(pixels).save(path, save_all=True, append_images=[Image.fromarray(pixels[::-1])])


MAKERS: dict[str, Callable[[Path, NDArray[np.uint8]], None]] = {
    "pyramid.tiff": lambda path, pixels: write_pyramid(path, pixels, 0.5, tile_px=TILE),
    "big.tiff": _tiff(tile=(TILE, TILE), compression="jpeg", bigtiff=True),
    "motorola.tiff": _tiff(tile=(TILE, TILE), compression="lzw", byteorder=">"),
    "lzw.tiff": _tiff(tile=(TILE, TILE), compression="lzw", predictor=True),
    "deflate.tiff": _tiff(rowsperstrip=16, compression="zlib"),
    "plain.tiff": _tiff(rowsperstrip=32),
    "planes.tiff": _planes,
    "jpeg2000.tiff": _tiff(tile=(TILE, TILE), compression="jpeg2000"),
    "webp.tiff": _tiff(tile=(TILE, TILE), compression="webp"),
    "zstd.tiff": _tiff(tile=(TILE, TILE), compression="zstd"),
    "packbits.tiff": _tiff(rowsperstrip=16, compression="packbits"),
    "grey16.tiff": _grey("uint16", tile=(TILE, TILE), compression="zlib"),
    "grey8.tiff": _grey("uint8", rowsperstrip=16),
    "float.tiff": _grey("float32", rowsperstrip=16),
    "channels.ome.tif": _ome,
    "colour.ome.tif": _ome_rgb,
    "scan.svs": _svs,
    "palette.tif": _pillow("P"),
    "bilevel.tif": _pillow("1", compression="group4"),
    "cmyk.tif": _pillow("CMYK"),
    "colour.png": _pillow(),
    "alpha.png": _pillow("RGBA"),
    "palette.png": _pillow("P"),
    "grey.png": _pillow("L"),
    "deep.png": _png16,
    "sequential.jpg": _pillow(quality=90),
    "progressive.jpg": _pillow(quality=90, progressive=True),
    "restarts.jpg": _pillow(quality=80, restart_marker_rows=1),
    "turned.jpg": _exif,
    "cmyk.jpg": _pillow("CMYK"),
    "plain.bmp": _pillow(),
    "moving.gif": _animation,
    "plain.webp": _pillow(),
}


# Damaging


@dataclass(frozen=True)
class _Directory:
    """Where the parts of a TIFF directory are: byte offsets."""

    at: int
    entries: list[int]
    following: int


@dataclass(frozen=True)
class _Layout:
    """How numbers are written in a TIFF."""

    order: str
    count: str
    offset: str
    entry_bytes: int


def damage(data: bytes, rng: Rng) -> bytes:
    """The file, damaged: half of all TIFFs in their directories, everything else anywhere."""
    if data[:2] in (b"II", b"MM") and rng.random() < 0.6:
        changed = bytearray(data)
        for _ in range(int(rng.integers(1, 4))):
            _damage_directory(changed, rng)
        return bytes(changed)
    return mutate(data, rng)[0]


def _damage_directory(data: bytearray, rng: Rng) -> None:
    """One wrong number in the directories of a TIFF: a tag, type, count, value or pointer."""
    layout = _layout(bytes(data))
    directories = _find_directories(bytes(data), layout)
    if not directories:
        return
    one = directories[int(rng.integers(len(directories)))]
    other = directories[int(rng.integers(len(directories)))]
    big = layout.offset == "Q"
    what = int(rng.integers(10))
    number = _odd_number(rng, len(data), one.at)
    entry = one.entries[int(rng.integers(len(one.entries)))] if one.entries else one.at
    value_at = entry + (12 if big else 8)
    if what == 0:
        _put(data, one.following, layout.order + layout.offset, int(rng.choice([one.at, other.at, number])))
    elif what == 1:
        _put(data, one.at, layout.order + layout.count, number)
    elif what == 2:
        _put(data, entry, f"{layout.order}H", int(rng.choice(TAGS)))
    elif what == 3:
        _put(data, entry + 2, f"{layout.order}H", int(rng.integers(0, 20)))
    elif what == 4:
        _put(data, entry + 4, layout.order + layout.offset, number)
    elif what == 5 and other.entries:
        theirs = other.entries[int(rng.integers(len(other.entries)))]
        size = layout.entry_bytes
        mine, yours = slice(entry, entry + size), slice(theirs, theirs + size)
        data[mine], data[yours] = data[yours], data[mine]
    elif what == 6:
        _put(data, value_at, f"{layout.order}H", int(rng.integers(0, 65536)))
    else:
        _put(data, value_at, layout.order + layout.offset, number)


def _odd_number(rng: Rng, size: int, at: int) -> int:
    odd = (0, 1, 2, 3, 7, 16, 255, 256, 65535, 65536, size - 1, size, size + 1, at, 2**31 - 1, 2**31, 2**32 - 1, 2**63)
    return odd[int(rng.integers(len(odd)))] if rng.random() < 0.8 else int(rng.integers(2**20))


def _put(data: bytearray, at: int, form: str, number: int) -> None:
    size = struct.calcsize(form)
    if 0 <= at <= len(data) - size:
        struct.pack_into(form, data, at, number % 2 ** (8 * size))


def _layout(data: bytes) -> _Layout:
    order = "<" if data[:2] == b"II" else ">"
    big = data[2:4] == struct.pack(f"{order}H", 43)
    return _Layout(order, "Q", "Q", 20) if big else _Layout(order, "H", "I", 12)


def _find_directories(data: bytes, layout: _Layout) -> list[_Directory]:
    """The directories of the main chain that can be found."""
    found: list[_Directory] = []
    try:
        (at,) = struct.unpack_from(layout.order + layout.offset, data, 8 if layout.offset == "Q" else 4)
        while at and len(found) < 10 and at not in [one.at for one in found]:
            (count,) = struct.unpack_from(layout.order + layout.count, data, at)
            first = at + struct.calcsize(layout.count)
            following = first + count * layout.entry_bytes
            entries = [first + number * layout.entry_bytes for number in range(min(count, 64))]
            found.append(_Directory(at, entries, following))
            (at,) = struct.unpack_from(layout.order + layout.offset, data, following)
    except (struct.error, OverflowError):  # numbers that an earlier change made absurd
        pass
    return found


# Judging


def read_slide(path: Path) -> None:
    """Open a slide and read a thumbnail and rectangles of every level, as `prepare` does."""
    with open_slide(path, OPEN_LIMIT_S) as slide:
        _expect_sane(slide)
        for level in range(len(slide.levels)):
            wide, tall = slide.level_size(level)
            for x, y in ((0, 0), (max(0, wide - 40), max(0, tall - 40)), (wide // 2, tall // 2)):
                width, height = min(40, wide - x), min(40, tall - y)
                _expect(slide.read(level, x, y, width, height), (height, width, slide.channels), slide)
        downsample = max(1.0, max(slide.width, slide.height) / THUMBNAIL_PX)
        size = max(1, round(slide.height / downsample)), max(1, round(slide.width / downsample))
        _expect(read_thumbnail(slide, downsample), (*size, slide.channels), slide)
        _expect(read_scaled(slide, 3.0, 5.0, 32, 32, 1.7), (32, 32, slide.channels), slide)


def _expect_sane(slide: Slide) -> None:
    if slide.width < 1 or slide.height < 1 or not 1 <= slide.channels <= 256:
        raise Wrong(f"a slide of {slide.width} x {slide.height} px and {slide.channels} channels")
    if slide.levels[0] != 1 or list(slide.levels) != sorted(slide.levels):
        raise Wrong(f"levels {slide.levels}")
    if slide.mpp is not None and not 0.01 <= slide.mpp <= 20:
        raise Wrong(f"a scale of {slide.mpp}")
    if slide.dtype not in (np.uint8, np.uint16):
        raise Wrong(f"pixels of {slide.dtype}")
    for level in range(len(slide.levels)):
        if min(slide.level_size(level)) < 1:
            raise Wrong(f"level {level} of {slide.level_size(level)} px")


def _expect(pixels: NDArray[np.generic], shape: tuple[int, ...], slide: Slide) -> None:
    if pixels.shape != shape or pixels.dtype != slide.dtype:
        raise Wrong(f"pixels {pixels.shape} of {pixels.dtype} instead of {shape} of {slide.dtype}")


def _read_all(path: Path) -> None:
    outcome = judge(lambda: read_slide(path))
    if outcome.verdict == "fell through":
        raise Wrong(f"{path.name} before it was damaged: {outcome.said}")

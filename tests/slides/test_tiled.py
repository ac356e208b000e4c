"""Tiles decoded by us are, to the last bit, what OpenSlide reads; whatever is not plain is read by OpenSlide."""

from collections.abc import Callable
from pathlib import Path

import imagecodecs
import numpy as np
import pytest
import tifffile

from hidisc.slides.reader import open_slide
from hidisc.slides.readers import tiled
from hidisc.slides.readers.tiled import TiledSlide
from hidisc.slides.readers.wsi import WholeSlide
from hidisc.slides.slide import SlideError

APERIO = "Aperio Image Library v11\r\n{}x{} [0,0 {}x{}] (240x240) JPEG/RGB Q=70|AppMag = 40|MPP = 0.25"


def draw(width: int, height: int, seed: int = 0) -> np.ndarray:
    """Smooth colours with noise: what JPEG and chroma subsampling work on."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:height, :width]
    waves = np.stack([np.sin(x / 17 + y / (11 + c)) for c in range(3)], axis=2)
    return (127 + 90 * waves + rng.normal(0, 12, (height, width, 3))).clip(0, 255).astype(np.uint8)


def write(
    path: Path, sizes: list[tuple[int, int]], tile: int = 64, description: str | None = None, **how: object
) -> Path:
    """A tiled pyramid of pages of some sizes."""
    with tifffile.TiffWriter(path, bigtiff=bool(how.pop("bigtiff", False))) as tif:
        for number, (width, height) in enumerate(sizes):
            tif.write(
                draw(width, height, number),
                tile=(tile, tile),
                photometric="rgb",
                resolution=(40000, 40000),
                resolutionunit="CENTIMETER",
                description=description.format(width, height, width, height) if description else None,
                metadata=None,
                **how,
            )
    return path


def write_jpeg_2000(path: Path) -> Path:
    """Tiles of JPEG 2000 as Aperio writes them (compression 33005)."""
    pixels, path = draw(256, 128), path.with_suffix(".svs")
    tiles = [
        bytes(imagecodecs.jpeg2k_encode(pixels[y : y + 64, x : x + 64].copy(), level=70, codecformat="j2k"))
        for y in (0, 64)
        for x in (0, 64, 128, 192)
    ]
    how = {"shape": pixels.shape, "dtype": np.uint8, "tile": (64, 64), "photometric": "rgb", "compression": 33005}
    with tifffile.TiffWriter(path) as tif:
        tif.write(iter(tiles), description=APERIO.format(256, 128, 256, 128), metadata=None, **how)
    return path


def write_philips(path: Path, sizes: list[tuple[int, int]], leave_out: int | None = None) -> Path:
    """Pages as Philips writes them: whole tiles, so that coarse pages are larger than their levels.

    How large a level is follows from its pixel spacing, here twice that of the level before.
    """
    spacings = [" ".join([f"&quot;{0.00025 * 2**number}&quot;"] * 2) for number in range(len(sizes))]
    levels = "".join(_object("PixelDataRepresentation", DICOM_PIXEL_SPACING=spacing) for spacing in spacings)
    image = _object(
        "DPScannedImage",
        PIM_DP_IMAGE_TYPE="WSI",
        DICOM_PIXEL_SPACING=spacings[0],
        PIIM_PIXEL_DATA_REPRESENTATION_SEQUENCE=f"<Array>{levels}</Array>",
    )
    xml = _object("DPUfsImport", DICOM_MANUFACTURER="PHILIPS", PIM_DP_SCANNED_IMAGES=f"<Array>{image}</Array>")
    with tifffile.TiffWriter(path) as tif:
        how = {"tile": (64, 64), "photometric": "rgb", "software": "Philips DP v1.0", "metadata": None, **JPEG}
        for number, (width, height) in enumerate(sizes):
            pixels = draw(-(-width // 64) * 64, -(-height // 64) * 64, number)
            tif.write(pixels, description=f"level={number}" if number else xml, subfiletype=int(number > 0), **how)
        macro = draw(200, 100)
        tif.write(macro, description="Macro", photometric="rgb", software=False, metadata=None, **JPEG)
    return path if leave_out is None else omit(path, leave_out)


def _object(kind: str, **attributes: str) -> str:
    inside = "".join(f'<Attribute Name="{name}">{value}</Attribute>' for name, value in attributes.items())
    return f'<DataObject ObjectType="{kind}">{inside}</DataObject>'


def omit(path: Path, tile: int) -> Path:
    """Leave out a tile of the first page: no offset, no bytes."""
    for name in ("TileByteCounts", "TileOffsets"):
        with tifffile.TiffFile(path, mode="r+") as tif:
            tag = tif.pages[0].tags[name]
            tag.overwrite([0 if place == tile else value for place, value in enumerate(tag.value)])
    return path


JPEG = {"compression": "jpeg", "compressionargs": {"level": 85}}
KINDS: dict[str, Callable[[Path], Path]] = {
    "jpeg": lambda path: write(path, [(530, 410)], **JPEG),
    "jpeg, full colour": lambda path: write(path, [(300, 200)], subsampling=(1, 1), **JPEG),
    "jpeg, halved across": lambda path: write(path, [(300, 200)], subsampling=(2, 1), **JPEG),
    "deflate": lambda path: write(path, [(301, 199)], compression="adobe_deflate", predictor=True),
    "deflate, its old number": lambda path: write(path, [(301, 199)], compression="deflate"),
    "zstd": lambda path: write(path, [(301, 199)], compression="zstd", predictor=True),
    "packbits": lambda path: write(path, [(301, 199)], compression="packbits"),
    "lzw": lambda path: write(path, [(301, 199)], compression="lzw", predictor=True),
    "as it is": lambda path: write(path, [(130, 70)]),
    "bigtiff, three levels": lambda path: write(path, [(512, 384), (256, 192), (128, 96)], bigtiff=True, **JPEG),
    "odd levels": lambda path: write(path, [(513, 385), (256, 192), (128, 96)], **JPEG),
    "aperio": lambda path: write(path.with_suffix(".svs"), [(480, 400)], 80, APERIO, **JPEG),
    "jpeg 2000": write_jpeg_2000,
    "philips": lambda path: write_philips(path, [(512, 384), (256, 192), (128, 96), (64, 48)]),
    "philips, a tile left out": lambda path: write_philips(path, [(512, 384), (256, 192)], leave_out=9),
    "a tile left out": lambda path: omit(write(path, [(530, 410)], **JPEG), 2),
    "one tile": lambda path: write(path, [(40, 30)], **JPEG),
}


def compare(path: Path, tries: int = 25, largest: int = 10**6) -> TiledSlide:
    """Read random rectangles, edges and corners among them, by both."""
    ours, theirs = TiledSlide(path), WholeSlide(path)
    assert (ours.levels, ours.mpp, ours.width, ours.height) == (theirs.levels, theirs.mpp, theirs.width, theirs.height)
    rng = np.random.default_rng(7)
    for level in range(len(ours.levels)):
        width, height = ours.level_size(level)
        assert (width, height) == theirs.level_size(level)
        for attempt in range(tries):
            wide, tall = (int(rng.integers(1, min(side, largest) + 1)) for side in (width, height))
            x, y = int(rng.integers(0, width - wide + 1)), int(rng.integers(0, height - tall + 1))
            x, y = (width - wide if attempt % 3 == 0 else x), (height - tall if attempt % 4 == 0 else y)
            np.testing.assert_array_equal(ours.read(level, x, y, wide, tall), theirs.read(level, x, y, wide, tall))
    theirs.close()
    return ours


@pytest.mark.parametrize("kind", KINDS)
def test_every_pixel_is_that_of_openslide(tmp_path: Path, kind: str) -> None:
    slide = compare(KINDS[kind](tmp_path / "slide.tiff"))
    assert slide.reader == "tiles"
    whole = [number for number, downsample in enumerate(slide.levels) if downsample == int(downsample)]
    assert sorted(slide._levels) == whole
    slide.close()


def test_every_pixel_of_real_slides_is_that_of_openslide(shared_data: Path) -> None:
    real = [*(shared_data / "wsi").glob("*.svs"), *(shared_data / "wsi").glob("*.tiff")]
    for path in [*real, *sorted((shared_data / "monusac/svs").glob("*.svs"))[:4]]:
        slide = compare(path, 8, 400)
        assert slide.reader == "tiles"
        slide.close()


@pytest.mark.parametrize("kind", ["jpeg", "philips", "aperio"])
def test_open_slide_takes_it(tmp_path: Path, kind: str) -> None:
    with open_slide(KINDS[kind](tmp_path / "slide.tiff")) as slide:
        assert isinstance(slide, TiledSlide)
        assert slide.mpp == pytest.approx(0.25)


def change(path: Path, page: int, change_tile: Callable[[bytearray, int, int], None], tile: int) -> None:
    """Change the bytes of one tile."""
    with tifffile.TiffFile(path) as tif:
        offset, count = tif.pages[page].dataoffsets[tile], tif.pages[page].databytecounts[tile]
    data = bytearray(path.read_bytes())
    change_tile(data, offset, count)
    path.write_bytes(data)


def zero(data: bytearray, offset: int, count: int) -> None:
    data[offset : offset + count] = bytes(count)


def cut(data: bytearray, offset: int, count: int) -> None:
    data[offset + count // 2 : offset + count] = bytes(count - count // 2)


@pytest.mark.parametrize("damage", [zero, cut])
@pytest.mark.parametrize("kind", ["jpeg", "deflate"])
def test_a_damaged_tile_is_what_openslide_makes_of_it(
    tmp_path: Path, kind: str, damage: Callable[[bytearray, int, int], None]
) -> None:
    path = KINDS[kind](tmp_path / "slide.tiff")
    change(path, 0, damage, 1)
    ours, theirs = TiledSlide(path), WholeSlide(path)
    np.testing.assert_array_equal(ours.read(0, 0, 64, 60, 60), theirs.read(0, 0, 64, 60, 60))  # another tile
    assert outcome(ours, 70, 0) == outcome(theirs, 70, 0)


def outcome(slide: WholeSlide, x: int, y: int) -> str | bytes:
    """The pixels of a rectangle, or the sentence that says why there are none."""
    try:
        return slide.read(0, x, y, 50, 50).tobytes()
    except SlideError as error:
        return str(error)


@pytest.mark.parametrize("kind", ["jpeg", "aperio", "jpeg 2000", "deflate", "lzw"])
def test_flipped_bytes_give_what_openslide_makes_of_them(tmp_path: Path, kind: str) -> None:
    """A decoder that is more tolerant than OpenSlide would make patches of damaged pixels."""
    path = KINDS[kind](tmp_path / "slide.tiff")
    whole, rng, refused = path.read_bytes(), np.random.default_rng(3), 0
    with tifffile.TiffFile(path) as tif:
        offset, count = tif.pages[0].dataoffsets[1], tif.pages[0].databytecounts[1]
    for _ in range(60):
        data = bytearray(whole)
        for _ in range(int(rng.integers(1, 4))):
            data[offset + int(rng.integers(count))] ^= 1 << int(rng.integers(8))
        path.write_bytes(data)
        ours, theirs = TiledSlide(path), WholeSlide(path)
        expected = outcome(theirs, 80, 5)
        assert outcome(ours, 80, 5) == expected
        refused += isinstance(expected, str)
        ours.close()
        theirs.close()
    assert refused > 5 or kind == "jpeg 2000"  # whose decoders make pixels of nearly anything, both the same


def test_a_level_that_openslide_reads_otherwise_is_left_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = KINDS["jpeg"](tmp_path / "slide.tiff")
    monkeypatch.setattr(tiled._Level, "decode", lambda self, data, index: np.zeros((self.tall, self.wide, 3), np.uint8))
    slide = TiledSlide(path)
    assert slide._levels == {}
    assert slide.reader == "openslide"
    assert slide.read(0, 0, 0, 9, 9).any()


def test_what_is_not_plain_is_left_to_openslide(tmp_path: Path) -> None:
    grey = tmp_path / "grey.tiff"
    tifffile.imwrite(grey, draw(130, 100)[..., 0], tile=(64, 64), compression="jpeg", photometric="minisblack")
    assert TiledSlide(grey)._levels == {}
    planes = tmp_path / "planes.tiff"
    tifffile.imwrite(
        planes, np.moveaxis(draw(130, 100), 2, 0), tile=(64, 64), photometric="rgb", planarconfig="separate"
    )
    with open_slide(planes) as slide:
        assert not isinstance(slide, TiledSlide) or slide._levels == {}


def test_what_openslide_refuses_when_a_level_is_checked_does_no_harm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = KINDS["jpeg"](tmp_path / "slide.tiff")
    with tifffile.TiffFile(path) as tif:
        last = len(tif.pages[0].dataoffsets) - 1
    change(path, 0, zero, last)
    decode = tiled._Level.decode
    grey = np.full((64, 64, 3), 128, np.uint8)
    monkeypatch.setattr(tiled._Level, "decode", lambda *given: grey if given[2] == last else decode(*given))
    slide, theirs = TiledSlide(path), WholeSlide(path)
    assert slide.reader == "openslide"
    np.testing.assert_array_equal(slide.read(0, 0, 0, 90, 90), theirs.read(0, 0, 0, 90, 90))


def test_a_level_that_cannot_be_decoded_here_is_left_to_openslide(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rather than tried anew, and read by OpenSlide, for every square."""

    def refuse(*_: object) -> None:
        raise ValueError("subsampled")

    monkeypatch.setattr(tiled._Level, "decode", refuse)
    assert TiledSlide(KINDS["jpeg 2000"](tmp_path / "slide.tiff"))._levels == {}


def test_tiles_next_to_each_other_are_read_in_one_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slide = TiledSlide(KINDS["jpeg"](tmp_path / "slide.tiff"))
    slide._cache.clear()
    requests: list[int] = []
    read = tifffile.FileHandle.read

    def count(handle: tifffile.FileHandle, size: int) -> bytes:
        requests.append(size)
        return read(handle, size)

    monkeypatch.setattr(tifffile.FileHandle, "read", count)
    slide.read(0, 0, 0, 500, 400)
    assert len(requests) == 1  # for 8 x 7 tiles
    slide.read(0, 10, 10, 400, 300)
    assert len(requests) == 1  # kept
    monkeypatch.setattr(tiled, "_MAX_GAP", -1)
    slide._cache.clear()
    slide.read(0, 0, 0, 500, 400)
    assert len(requests) == 1 + 8 * 7


def test_memory_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiled, "CACHE_BYTES", 3 * 64 * 64 * 5)
    slide = TiledSlide(KINDS["jpeg"](tmp_path / "slide.tiff"))
    for x in range(0, 460, 64):
        slide.read(0, x, 0, 60, 300)
    assert slide._cache.bytes == sum(tile.nbytes for tile in slide._cache.values()) <= 3 * 64 * 64 * 5

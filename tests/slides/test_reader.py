"""Every kind of slide file gives the pixels it was written from, or a sentence that helps."""

import re
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest
import tifffile
from PIL import ExifTags, Image, ImageOps

from hidisc.slides import readers
from hidisc.slides.reader import list_formats, list_readers, list_suffixes, open_slide, resolve_mpp
from hidisc.slides.readers import picture, tiff
from hidisc.slides.slide import Pixels, Slide, SlideError, plausible_mpp

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:PIL")


def draw(height: int, width: int, channels: int = 3, dtype: type = np.uint8, seed: int = 0) -> Pixels:
    """Noise: any pixel out of place shows."""
    return np.random.default_rng(seed).integers(0, np.iinfo(dtype).max, (height, width, channels), dtype, endpoint=True)


def per_cm(mpp: float) -> dict[str, Any]:
    return {"resolution": (10_000 / mpp, 10_000 / mpp), "resolutionunit": "CENTIMETER"}


def planes(pixels: Pixels) -> Pixels:
    return np.moveaxis(pixels, 2, 0)


@dataclass
class Written:
    """What a file was written from and what its reader must say."""

    levels: list[Pixels]
    reader: str
    mpp: float | None = None


def tiled_pyramid(path: Path) -> Written:
    levels = [draw(512 >> k, 640 >> k, seed=k) for k in range(3)]
    with tifffile.TiffWriter(path) as tif:
        for k, level in enumerate(levels):
            scale = per_cm(0.25 * 2**k)
            tif.write(level, tile=(64, 64), compression="zlib", subfiletype=int(k > 0), metadata=None, **scale)
    return Written(levels, "tiles", 0.25)


def ome_rgb_pyramid(path: Path) -> Written:
    levels = [draw(301 >> k, 263 >> k, seed=k) for k in range(3)]
    scale = {"PhysicalSizeX": 0.25, "PhysicalSizeXUnit": "µm", "PhysicalSizeY": 0.25, "PhysicalSizeYUnit": "µm"}
    with tifffile.TiffWriter(path, ome=True) as tif:
        tif.write(levels[0], subifds=2, tile=(64, 64), compression="zlib", metadata={"axes": "YXS", **scale})
        for level in levels[1:]:
            tif.write(level, subfiletype=1, tile=(64, 64), compression="zlib")
    return Written(levels, "tifffile", 0.25)


def ome_16_bit_pyramid_in_nm(path: Path) -> Written:
    levels = [draw(200 >> k, 150 >> k, 3, np.uint16, seed=k) for k in range(2)]
    scale = {"PhysicalSizeX": 467, "PhysicalSizeXUnit": "nm", "PhysicalSizeY": 467, "PhysicalSizeYUnit": "nm"}
    with tifffile.TiffWriter(path, ome=True, bigtiff=True) as tif:
        options: dict[str, Any] = {"tile": (32, 32), "photometric": "minisblack", "compression": "lzw"}
        tif.write(planes(levels[0]), subifds=1, metadata={"axes": "CYX", **scale}, **options)
        tif.write(planes(levels[1]), subfiletype=1, **options)
    return Written(levels, "tifffile", 0.467)


def qptiff(path: Path) -> Written:
    """As an Akoya scanner writes fluorescence: channel pages, a thumbnail, smaller levels, macro, label."""
    levels = [draw(256 >> k, 192 >> k, 3, seed=k) for k in range(2)]
    with tifffile.TiffWriter(path) as tif:
        common: dict[str, Any] = {"software": "PerkinElmer-QPI", "metadata": None, "compression": "zlib"}
        for k, level in enumerate(levels):
            for channel in planes(level):
                tif.write(channel, tile=(64, 64), subfiletype=int(k > 0), **per_cm(0.5 * 2**k), **common)
            if k == 0:
                tif.write(draw(40, 30), subfiletype=1, **common)
        tif.write(draw(50, 60), description="macro", **common)
    return Written(levels, "tifffile", 0.5)


def flat(reader: str = "tifffile", mpp: float | None = None, **options: Any) -> Callable[[Path], Written]:
    """A one-level TIFF of 113 x 97 px; `layout` says how the pixels are handed to tifffile."""
    channels, dtype = options.pop("channels", 3), options.pop("dtype", np.uint8)
    layout = options.pop("layout", "YXS")

    def write(path: Path) -> Written:
        pixels = draw(113, 97, channels, dtype)
        data = planes(pixels) if layout == "CYX" else pixels[..., 0] if layout == "YX" else pixels
        tifffile.imwrite(path, data, **options)
        return Written([pixels], reader, mpp)

    return write


U16: dict[str, Any] = {"channels": 2, "dtype": np.uint16, "photometric": "minisblack"}
SLIDES: dict[str, Callable[[Path], Written]] = {
    "tiled pyramid": tiled_pyramid,
    "OME RGB pyramid": ome_rgb_pyramid,
    "OME 16-bit pyramid, nm": ome_16_bit_pyramid_in_nm,
    "QPTIFF": qptiff,
    "pages CYX, big-endian": flat(**U16, layout="CYX", byteorder=">", metadata={"axes": "CYX"}),
    "pages named by nobody": flat(**U16, layout="CYX", metadata=None, rowsperstrip=10),
    "pages unnamed by tifffile": flat(**U16, layout="CYX", compression="zlib", predictor=True),
    "ImageJ channels": flat(channels=2, dtype=np.uint16, layout="CYX", imagej=True, metadata={"axes": "CYX"}),
    "planar, strips": flat(**U16, layout="CYX", planarconfig="separate", rowsperstrip=16),
    "planar, tiles, big-endian": flat(**U16, layout="CYX", planarconfig="separate", tile=(32, 48), byteorder=">"),
    "interleaved": flat(**U16, planarconfig="contig", compression="lzw", rowsperstrip=7),
    "interleaved 5 channels, tiles": flat(**{**U16, "channels": 5}, planarconfig="contig", tile=(64, 32)),
    "strips RGB with a scale": flat(rowsperstrip=9, mpp=0.5, **per_cm(0.5)),
    "one strip RGB": flat(rowsperstrip=2**31),
    "16-bit RGB": flat(dtype=np.uint16, compression="zlib"),
    "grey tiles": flat(channels=1, layout="YX", tile=(32, 32)),
    "planar RGB strips": flat(layout="CYX", photometric="rgb", planarconfig="separate"),
}


@pytest.mark.parametrize("kind", SLIDES)
def test_pixels_of_any_rectangle_are_the_written_ones(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "slide.tif"
    written = SLIDES[kind](path)
    rng = np.random.default_rng(1)
    with open_slide(path) as slide:
        assert slide.reader == written.reader
        assert slide.mpp == pytest.approx(written.mpp)
        height, width, channels = written.levels[0].shape
        assert (slide.height, slide.width, slide.channels) == (height, width, channels)
        assert slide.dtype == written.levels[0].dtype
        assert slide.dtype.isnative
        assert slide.levels == pytest.approx([width / level.shape[1] for level in written.levels])
        for number, pixels in enumerate(written.levels):
            tall, wide, _ = pixels.shape
            assert slide.level_size(number) == (wide, tall)
            corners = [(0, 0, wide, tall), (wide - 1, tall - 1, 1, 1), (wide - 20, 0, 20, 7), (0, tall - 9, 33, 9)]
            inside = [(*rng.integers(0, (wide - 30, tall - 30)), *rng.integers(1, 30, 2)) for _ in range(8)]
            for x, y, w, h in [*corners, *inside]:
                got = slide.read(number, int(x), int(y), int(w), int(h))
                assert got.dtype == pixels.dtype
                np.testing.assert_array_equal(got, pixels[y : y + h, x : x + w])


def test_odd_pyramids_are_read_in_the_right_place(tmp_path: Path) -> None:
    """OpenSlide addresses coarse levels in level-0 pixels: half of one is the most a rectangle may be off."""
    ramp = np.add.outer(np.arange(509) // 4, np.arange(601) // 5).astype(np.uint8)[..., None].repeat(3, axis=2)
    small = np.asarray(Image.fromarray(ramp).resize((150, 127), Image.Resampling.BOX))
    with tifffile.TiffWriter(tmp_path / "odd.tif") as tif:
        for k, level in enumerate((ramp, small)):
            tif.write(level, tile=(64, 64), photometric="rgb", subfiletype=int(k > 0), metadata=None)
    with open_slide(tmp_path / "odd.tif") as slide:
        assert slide.reader == "tiles"  # the first level; the second is OpenSlide's
        for x, y in ((0, 0), (61, 40), (130, 107)):
            got = slide.read(1, x, y, 20, 20).astype(int)
            assert np.abs(got - small[y : y + 20, x : x + 20]).max() <= 1


def test_jpeg_tiles_are_what_tifffile_decodes(tmp_path: Path) -> None:
    """8-bit OME-TIFFs hold JPEG in YCbCr with shared tables; colours must come out as RGB."""
    pixels = np.asarray(Image.fromarray(draw(9, 7)).resize((150, 120), Image.Resampling.BICUBIC))
    tifffile.imwrite(tmp_path / "j.ome.tif", pixels, ome=True, tile=(64, 64), compression="jpeg")
    with open_slide(tmp_path / "j.ome.tif") as slide:
        assert (slide.read(0, 0, 0, 150, 120) == tifffile.imread(tmp_path / "j.ome.tif")).all()
        assert np.abs(slide.read(0, 30, 40, 50, 60).astype(int) - pixels[40:100, 30:80]).mean() < 6


def test_alpha_of_a_tiff_is_left_out(tmp_path: Path) -> None:
    pixels = draw(60, 50, 4)
    tifffile.imwrite(tmp_path / "a.tif", pixels, photometric="rgb", extrasamples=["unassalpha"])
    with open_slide(tmp_path / "a.tif") as slide:
        assert (slide.read(0, 0, 0, 50, 60) == pixels[..., :3]).all()


def test_tiles_that_were_never_scanned_are_background(tmp_path: Path) -> None:
    """A scanner leaves them out with a byte count of 0."""
    tifffile.imwrite(tmp_path / "a.tif", np.ones((64, 128), np.uint16), tile=(64, 64), metadata=None)
    with tifffile.TiffFile(tmp_path / "a.tif", mode="r+") as tif:
        tif.pages.first.tags["TileByteCounts"].overwrite([64 * 64 * 2, 0])
    with open_slide(tmp_path / "a.tif") as slide:
        assert slide.read(0, 0, 0, 128, 64)[..., 0].mean(axis=0).tolist() == [1] * 64 + [0] * 64


def test_decoded_tiles_are_kept_within_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiff, "CACHE_BYTES", 3 * 32 * 32 * 2)
    pixels = draw(320, 320, 1, np.uint16)
    tifffile.imwrite(tmp_path / "a.tif", pixels[..., 0], tile=(32, 32))
    with open_slide(tmp_path / "a.tif") as slide:
        assert isinstance(slide, tiff.TiffSlide)
        for _ in range(2):
            assert (slide.read(0, 0, 0, 320, 320) == pixels).all()
        assert len(slide._cache) == 3
        assert slide._cache.bytes == 3 * 32 * 32 * 2


# Plain pictures


def saved(path: Path, image: Image.Image, **options: Any) -> Slide:
    image.save(path, **options)
    return open_slide(path)


def test_png(tmp_path: Path) -> None:
    pixels = draw(41, 53)
    slide = saved(tmp_path / "a.png", Image.fromarray(pixels), dpi=(50_800, 50_800))
    assert (slide.reader, slide.width, slide.height, slide.levels, slide.channels) == ("pillow", 53, 41, (1.0,), 3)
    assert slide.mpp is None
    assert (slide.read(0, 50, 40, 3, 1) == pixels[40:41, 50:53]).all()


@pytest.mark.parametrize(("dtype", "mode"), [(np.uint8, "L"), (np.uint16, "I;16")])
def test_grey_png_keeps_its_depth(tmp_path: Path, dtype: type, mode: str) -> None:
    pixels = draw(41, 53, 1, dtype)
    slide = saved(tmp_path / "a.png", Image.fromarray(pixels[..., 0]))
    assert Image.open(tmp_path / "a.png").mode == mode
    assert (slide.channels, slide.dtype) == (1, dtype)
    assert (slide.read(0, 0, 0, 53, 41) == pixels).all()


def test_palette_png(tmp_path: Path) -> None:
    image = Image.fromarray(draw(41, 53)).quantize(16)
    slide = saved(tmp_path / "a.png", image)
    assert (slide.read(0, 0, 0, 53, 41) == np.asarray(image.convert("RGB"))).all()


def test_palette_tiff(tmp_path: Path) -> None:
    """Palette indices are no intensities, so this TIFF is a picture."""
    image = Image.fromarray(draw(41, 53)).quantize(16)
    slide = saved(tmp_path / "a.tif", image)
    assert slide.reader == "pillow"
    assert (slide.read(0, 0, 0, 53, 41) == np.asarray(image.convert("RGB"))).all()


def test_transparency_is_laid_on_white(tmp_path: Path) -> None:
    pixels = np.zeros((10, 20, 4), np.uint8)
    pixels[:, 10:] = (200, 0, 0, 255)
    slide = saved(tmp_path / "a.png", Image.fromarray(pixels))
    assert slide.read(0, 0, 0, 1, 1).tolist() == [[[255, 255, 255]]]
    assert slide.read(0, 19, 0, 1, 1).tolist() == [[[200, 0, 0]]]


def test_jpeg(tmp_path: Path) -> None:
    slide = saved(tmp_path / "a.jpg", Image.fromarray(draw(41, 53)), dpi=(300, 300))
    assert slide.mpp is None
    assert (slide.read(0, 0, 0, 53, 41) == np.asarray(Image.open(tmp_path / "a.jpg"))).all()


@pytest.mark.parametrize(
    ("name", "orientation"),
    [(name, code) for name in ("a.jpg", "a.png") for code in range(1, 9)]
    + [("palette.tif", code) for code in (1, 2, 3, 4)],
)
def test_pictures_are_upright_as_the_camera_says(tmp_path: Path, name: str, orientation: int) -> None:
    """A picture taken with the camera turned is stored as its sensor lay, with an EXIF code beside it."""
    image = Image.fromarray(np.asarray(Image.fromarray(draw(5, 7)).resize((70, 50), Image.Resampling.NEAREST)))
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = orientation
    (image.quantize(16) if name == "palette.tif" else image).save(tmp_path / name, exif=exif)
    with Image.open(tmp_path / name) as stored:
        expected = np.asarray(ImageOps.exif_transpose(stored).convert("RGB"))
    with open_slide(tmp_path / name) as slide:
        assert (slide.height, slide.width) == expected.shape[:2] == ((50, 70) if orientation < 5 else (70, 50))
        assert (slide.read(0, 0, 0, slide.width, slide.height) == expected).all()
        assert (slide.read(0, 9, 3, 20, 30) == expected[3:33, 9:29]).all()


@pytest.mark.parametrize("orientation", range(5, 9))
def test_a_palette_tiff_whose_rows_are_columns(tmp_path: Path, orientation: int) -> None:
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = orientation
    Image.fromarray(draw(50, 70)).quantize(16).save(tmp_path / "a.tif", exif=exif)
    said = refusal(tmp_path / "a.tif")
    assert "a TIFF whose rows are stored as columns (orientation 5 to 8). Save it upright." in said


@pytest.mark.parametrize("code", [0, 9, 65535])
def test_an_orientation_that_is_none(tmp_path: Path, code: int) -> None:
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = code
    slide = saved(tmp_path / "a.png", Image.fromarray(draw(41, 53)), exif=exif)
    assert (slide.read(0, 0, 0, 53, 41) == draw(41, 53)).all()


@pytest.mark.parametrize("height", [1, 255, 256, 257, 700])
def test_a_picture_is_converted_strip_by_strip(tmp_path: Path, height: int) -> None:
    pixels = draw(height, 20, 4)
    slide = saved(tmp_path / "a.png", Image.fromarray(pixels))
    white = Image.new("RGBA", (20, height), "white")
    expected = np.asarray(Image.alpha_composite(white, Image.fromarray(pixels)).convert("RGB"))
    assert (slide.read(0, 0, 0, 20, height) == expected).all()


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
@pytest.mark.parametrize("options", [{"tile": (32, 32)}, {"rowsperstrip": 9, "compression": "zlib"}])
def test_grey_of_which_zero_is_white(tmp_path: Path, dtype: type, options: dict[str, Any]) -> None:
    pixels = draw(60, 50, 1, dtype)
    tifffile.imwrite(tmp_path / "a.tif", pixels[..., 0], photometric="miniswhite", metadata=None, **options)
    with open_slide(tmp_path / "a.tif") as slide:
        assert (slide.read(0, 0, 0, 50, 60) == np.iinfo(dtype).max - pixels).all()


# Scales


@pytest.mark.parametrize("dpi", [72, 96, 300, 600])
def test_a_print_resolution_is_no_scale(tmp_path: Path, dpi: int) -> None:
    tifffile.imwrite(tmp_path / "a.tif", draw(40, 40), resolution=(dpi, dpi), resolutionunit="INCH")
    assert open_slide(tmp_path / "a.tif").mpp is None


@pytest.mark.parametrize(("unit", "per_unit"), [("INCH", 50_800), ("CENTIMETER", 20_000)])
def test_resolution_tags_of_a_microscope(tmp_path: Path, unit: str, per_unit: int) -> None:
    tifffile.imwrite(tmp_path / "a.tif", draw(40, 40), resolution=(per_unit, per_unit), resolutionunit=unit)
    assert open_slide(tmp_path / "a.tif").mpp == pytest.approx(0.5)


def test_resolution_tags_without_a_unit_are_no_scale(tmp_path: Path) -> None:
    tifffile.imwrite(tmp_path / "a.tif", draw(40, 40), resolution=(20_000, 20_000), resolutionunit="NONE")
    assert open_slide(tmp_path / "a.tif").mpp is None


@pytest.mark.parametrize(
    ("x", "y", "mpp"),
    [
        ((0.5, "µm"), (0.5, "µm"), 0.5),
        ((500, "nm"), (500, "nm"), 0.5),
        ((0.0005, "mm"), (0.5, "µm"), 0.5),
        ((0.5, "µm"), (0.6, "µm"), None),
        ((0.5, "pixel"), (0.5, "pixel"), None),
        ((0, "µm"), (0, "µm"), None),
        ((350, "µm"), (350, "µm"), None),
    ],
)
def test_ome_scales(tmp_path: Path, x: tuple[float, str], y: tuple[float, str], mpp: float | None) -> None:
    names = ("PhysicalSizeX", "PhysicalSizeXUnit", "PhysicalSizeY", "PhysicalSizeYUnit")
    scale = dict(zip(names, (*x, *y), strict=True))
    tifffile.imwrite(tmp_path / "a.ome.tif", draw(40, 40), metadata={"axes": "YXS", **scale})
    assert open_slide(tmp_path / "a.ome.tif").mpp == pytest.approx(mpp)


def test_one_scale_needs_both_axes_alike() -> None:
    assert plausible_mpp(0.5, 0.501) == pytest.approx(0.5005)
    assert plausible_mpp(0.5, 0.52) is None
    assert plausible_mpp(0.5, None) is None
    assert plausible_mpp(float("nan"), float("nan")) is None


def test_the_cohort_overrules_the_file_and_the_file_the_assumption(tmp_path: Path) -> None:
    tifffile.imwrite(tmp_path / "a.tif", draw(40, 40), **per_cm(0.25))
    slide = open_slide(tmp_path / "a.tif")
    assert resolve_mpp(slide, 0.4, 0.9) == 0.4
    assert resolve_mpp(slide, None, 0.9) == pytest.approx(0.25)
    slide.mpp = None
    assert resolve_mpp(slide, None, 0.9) == 0.9
    with pytest.raises(SlideError) as caught:
        resolve_mpp(slide, None, None)
    assert str(caught.value) == (
        f"{tmp_path / 'a.tif'} does not say how large its pixels are. Put micrometres per pixel into the `mpp` "
        "column of the cohort (40x is usually 0.25, 20x 0.5), or give --assume-mpp for all slides without."
    )


# Label and macro pictures


def spoil(path: Path, page: int) -> None:
    """Overwrite a page's pixels, so that decoding them raises."""
    with tifffile.TiffFile(path) as tif:
        spans = list(zip(tif.pages[page].dataoffsets, tif.pages[page].databytecounts, strict=True))
    with path.open("r+b") as file:
        for offset, count in spans:
            file.seek(offset)
            file.write(b"\xff" * count)
    with tifffile.TiffFile(path) as tif, pytest.raises(Exception, match=r"(?i)zlib|deflate"):
        tif.pages[page].asarray()


@pytest.mark.parametrize("name", ["label", "Macro image", "Label Image", "OVERVIEW", "slide thumbnail"])
def test_label_and_macro_are_neither_chosen_nor_decoded(tmp_path: Path, name: str) -> None:
    """Even when they are larger and come first; their bytes are spoiled, so touching them would raise."""
    specimen = draw(80, 70)
    scale = {"PhysicalSizeX": 0.25, "PhysicalSizeY": 0.25}
    with tifffile.TiffWriter(tmp_path / "a.ome.tif", ome=True) as tif:
        tif.write(draw(300, 300), compression="zlib", metadata={"axes": "YXS", "Name": name, "PhysicalSizeX": 9.0})
        tif.write(specimen, compression="zlib", metadata={"axes": "YXS", "Name": "specimen", **scale})
    spoil(tmp_path / "a.ome.tif", 0)
    with open_slide(tmp_path / "a.ome.tif") as slide:
        assert (slide.read(0, 0, 0, 70, 80) == specimen).all()
        assert slide.mpp == 0.25


def test_the_macro_of_a_qptiff_is_not_decoded(tmp_path: Path) -> None:
    written = qptiff(tmp_path / "a.qptiff")
    with tifffile.TiffFile(tmp_path / "a.qptiff") as tif:
        assert [one.name for one in tif.series] == ["Baseline", "Thumbnail", "Macro"]
        last = len(tif.pages) - 1
    spoil(tmp_path / "a.qptiff", last)
    with open_slide(tmp_path / "a.qptiff") as slide:
        assert (slide.read(0, 0, 0, 192, 256) == written.levels[0]).all()


def test_a_file_of_only_a_label_is_refused(tmp_path: Path) -> None:
    tifffile.imwrite(tmp_path / "a.ome.tif", draw(30, 30), metadata={"axes": "YXS", "Name": "label"})
    with pytest.raises(SlideError, match="holds no specimen picture, only label or macro pictures"):
        open_slide(tmp_path / "a.ome.tif")


def test_no_code_reaches_for_associated_images() -> None:
    """OpenSlide's door to label and macro pictures."""
    sources = list((Path(__file__).parents[2] / "src").rglob("*.py"))
    assert len(sources) > 10
    assert not [path for path in sources if "associated_images" in path.read_text(encoding="utf-8")]


# Refusals


def refusal(path: Path) -> str:
    """Why a file is not read: at opening, or at the latest when all its pixels are."""
    with pytest.raises(SlideError) as caught:
        read_all(path)
    return str(caught.value)


def read_all(path: Path) -> None:
    with open_slide(path) as slide:
        for level in range(len(slide.levels)):
            slide.read(level, 0, 0, *slide.level_size(level))


def test_a_z_stack(tmp_path: Path) -> None:
    stack = draw(40, 30, 5, np.uint16)
    tifffile.imwrite(tmp_path / "z.ome.tif", planes(stack), photometric="minisblack", metadata={"axes": "ZYX"})
    assert refusal(tmp_path / "z.ome.tif") == (
        f"{tmp_path / 'z.ome.tif'} cannot be read: a stack of 5 planes along Z. "
        f"Export one plane as a TIFF of its own. Formats read: {list_formats()}."
    )


def test_more_unnamed_pages_than_channels_can_be(tmp_path: Path) -> None:
    tifffile.imwrite(tmp_path / "i.tif", planes(draw(40, 30, 9, np.uint16)), photometric="minisblack", metadata=None)
    assert "a stack of 9 planes along I. Export one plane" in refusal(tmp_path / "i.tif")


def test_a_stack_of_colour_pages(tmp_path: Path) -> None:
    tifffile.imwrite(tmp_path / "i.tif", np.stack([draw(40, 30), draw(40, 30)]), photometric="rgb", metadata=None)
    assert "a stack of 2 planes along I. Export one plane" in refusal(tmp_path / "i.tif")


@pytest.mark.parametrize("dtype", ["float32", "int16", "uint32"])
def test_other_depths(tmp_path: Path, dtype: str) -> None:
    tifffile.imwrite(tmp_path / "f.tif", np.zeros((40, 40), dtype))
    said = refusal(tmp_path / "f.tif")
    assert f"its pixels are {dtype}. Only 8 and 16 bit unsigned are read; convert it." in said


def test_a_32_bit_picture(tmp_path: Path) -> None:
    (tmp_path / "a.pgm").write_bytes(b"P5 4 4 65535\n" + bytes(32))
    assert "its pixels have 32 bits. Only 8 and 16 bit unsigned are read; convert it." in refusal(tmp_path / "a.pgm")


@pytest.mark.parametrize("photometric", ["CIELAB", "ICCLAB", "LOGLUV"])
@pytest.mark.parametrize("options", [{}, {"tile": (32, 32), "compression": "zlib"}, {"compression": "jpeg"}])
def test_other_colours_of_a_tiff(tmp_path: Path, photometric: str, options: dict[str, Any]) -> None:
    tifffile.imwrite(tmp_path / "a.tif", draw(64, 64), photometric=photometric, metadata=None, **options)
    assert refusal(tmp_path / "a.tif") == (
        f"{tmp_path / 'a.tif'} cannot be read: its colours are {photometric}. "
        f"Only grey and RGB are read; save it as RGB. Formats read: {list_formats()}."
    )


def test_luma_and_chroma_that_no_jpeg_decoder_turns_into_rgb(tmp_path: Path) -> None:
    tifffile.imwrite(tmp_path / "a.tif", draw(64, 64), photometric="ycbcr", compression="zlib", metadata=None)
    assert "its colours are YCBCR. Only grey and RGB are read; save it as RGB." in refusal(tmp_path / "a.tif")


@pytest.mark.parametrize(("name", "colours"), [("a.tif", "SEPARATED"), ("a.jpg", "CMYK")])
def test_inks_are_no_light(tmp_path: Path, name: str, colours: str) -> None:
    Image.fromarray(draw(64, 64)).convert("CMYK").save(tmp_path / name)
    assert f"its colours are {colours}. Only grey and RGB are read; save it as RGB." in refusal(tmp_path / name)


@pytest.mark.parametrize("name", ["a.gif", "a.png", "a.webp", "a.mpo", "palette.tif"])
def test_more_than_one_picture(tmp_path: Path, name: str) -> None:
    first, second = (Image.fromarray(draw(64, 64, seed=seed)) for seed in (0, 1))
    if name == "palette.tif":
        first, second = first.quantize(16), second.quantize(16)
    first.save(tmp_path / name, save_all=True, append_images=[second])
    assert refusal(tmp_path / name) == (
        f"{tmp_path / name} cannot be read: it holds 2 pictures (frames or pages). "
        f"Save the one that is meant as a PNG. Formats read: {list_formats()}."
    )


def test_one_huge_strip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiff, "MAX_SEGMENT_BYTES", 2**20)
    tifffile.imwrite(tmp_path / "a.tif", np.zeros((1024, 1024, 3), np.uint8), rowsperstrip=1024)
    assert (
        "stored in pieces of 3 MB, which would be read whole. "
        "Convert it, e.g. `vips tiffsave in.tif out.tiff --tile --pyramid`." in refusal(tmp_path / "a.tif")
    )


@pytest.mark.parametrize(
    ("tag", "value", "sentence"),
    [
        ("TileLength", 2**30, "stored in pieces of 98304 MB, which would be read whole. Convert it, e.g. `vips"),
        (
            "ImageWidth",
            600_000,
            "cut short (the file ends too early: 600000 x 90 px need 56250 pieces, and it lists 6). Copy",
        ),
        (
            "ImageLength",
            600_000,
            "cut short (the file ends too early: 50 x 600000 px need 37500 pieces, and it lists 6). Copy",
        ),
    ],
)
@pytest.mark.parametrize("compression", ["jpeg", "zstd"])  # which OpenSlide reads, and tifffile
def test_a_damaged_number_that_would_fill_the_memory(
    tmp_path: Path, compression: str, tag: str, value: int, sentence: str
) -> None:
    path = tmp_path / "a.tif"
    tifffile.imwrite(path, draw(90, 50), photometric="rgb", tile=(32, 32), compression=compression, metadata=None)
    with tifffile.TiffFile(path, mode="r+b") as tif:
        tif.pages.first.tags[tag].overwrite(value, dtype="I")
    assert sentence in refusal(path)


def test_a_damaged_number_of_bytes(tmp_path: Path) -> None:
    path = tmp_path / "a.tif"
    tifffile.imwrite(path, draw(90, 50), photometric="rgb", tile=(32, 32), compression="jpeg", metadata=None)
    with tifffile.TiffFile(path, mode="r+b") as tif:
        counts = tif.pages.first.tags["TileByteCounts"]
        counts.overwrite([*counts.value[:-1], 2**31], dtype="I")
    assert "cut short (the file ends too early: a piece of it has 2,147,483,648 bytes). Copy it again." in refusal(path)


def test_a_side_that_is_no_number(tmp_path: Path) -> None:
    path = tmp_path / "a.tif"
    tifffile.imwrite(path, draw(90, 50, 1, np.uint16)[..., 0], photometric="minisblack", metadata=None)
    with tifffile.TiffFile(path) as tif:
        at = tif.pages.first.tags["ImageWidth"].offset
    data = bytearray(path.read_bytes())
    data[at + 2 : at + 4] = struct.pack("<H", 11)  # a float, by its type
    path.write_bytes(bytes(data))
    assert "damaged" in refusal(path)


def test_a_page_of_nothing_but_transparency(tmp_path: Path) -> None:
    path = tmp_path / "a.tif"
    pixels = draw(90, 50, 2, np.uint16)
    tifffile.imwrite(path, pixels, photometric="minisblack", extrasamples=["unassalpha"], metadata=None)
    with tifffile.TiffFile(path, mode="r+b") as tif:
        tif.pages.first.tags["ExtraSamples"].overwrite([2, 2], dtype="H")
    assert "the TIFF is damaged or cut short (a page without channels). Copy it again." in refusal(path)


def test_a_page_that_does_not_say_how_wide_it_is(tmp_path: Path) -> None:
    path = tmp_path / "a.tif"
    page = Image.fromarray(draw(90, 50)).quantize(16)
    page.save(path, save_all=True, append_images=[page])
    with tifffile.TiffFile(path) as tif:
        at = tif.pages[1].aspage().tags["ImageWidth"].offset
    data = bytearray(path.read_bytes())
    data[at : at + 2] = struct.pack("<H", 60_000)
    path.write_bytes(bytes(data))
    assert "the picture is damaged or cut short (Missing dimensions). Copy it again." in refusal(path)


def test_too_large_a_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(picture, "MAX_MEGAPIXELS", 0.001)
    Image.fromarray(draw(40, 50)).save(tmp_path / "a.png")
    assert (
        "a picture of 50 x 40 px does not fit in memory (at most 0.001 megapixels). "
        "Convert it, e.g. `vips tiffsave in.png out.tiff --tile --pyramid`." in refusal(tmp_path / "a.png")
    )


def test_a_decompression_bomb(tmp_path: Path) -> None:
    """A few bytes that claim 40,000 x 40,000 px are refused before anything is allocated."""
    header = b"IHDR" + struct.pack(">IIBBBBB", 40_000, 40_000, 8, 0, 0, 0, 0)
    (tmp_path / "a.png").write_bytes(
        b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + header + struct.pack(">I", zlib.crc32(header)) + b"\0\0\0\5IDAT"
    )
    assert "Convert it to a tiled pyramidal TIFF." in refusal(tmp_path / "a.png")


def test_channels_in_several_files(tmp_path: Path) -> None:
    """The second file's offsets would point at anything in the first."""
    files = "".join(
        f'<TiffData IFD="0" FirstC="{c}"><UUID FileName="{c}.ome.tif">urn:uuid:{c}</UUID></TiffData>' for c in (0, 1)
    )
    for c in (0, 1):
        xml = (
            f'<?xml version="1.0"?><OME xmlns="http://www.openmicroscopy.org/Schemas/OME/2016-06" UUID="urn:uuid:{c}">'
            '<Image ID="Image:0"><Pixels ID="Pixels:0" DimensionOrder="XYCZT" Type="uint16" SizeX="30" SizeY="40" '
            f'SizeC="2" SizeZ="1" SizeT="1"><Channel ID="C:0"/><Channel ID="C:1"/>{files}</Pixels></Image></OME>'
        )
        tifffile.imwrite(tmp_path / f"{c}.ome.tif", draw(40, 30, 1, np.uint16)[..., 0], description=xml, metadata=None)
    assert "its channels lie in several files. Save them as one OME-TIFF." in refusal(tmp_path / "0.ome.tif")


WHOLE: dict[str, Callable[[Path], object]] = {
    "a.tif": tiled_pyramid,
    "a.ome.tif": ome_16_bit_pyramid_in_nm,
    "strips.tif": flat(rowsperstrip=9),
    "a.png": lambda path: Image.fromarray(draw(200, 200)).save(path),
    "a.jpg": lambda path: Image.fromarray(draw(200, 200)).save(path),
}


@pytest.mark.parametrize("share", [0.02, 0.3, 0.6, 0.9])
@pytest.mark.parametrize("name", WHOLE)
def test_a_file_cut_short(tmp_path: Path, name: str, share: float) -> None:
    WHOLE[name](tmp_path / name)
    data = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(data[: int(len(data) * share)])
    assert refusal(tmp_path / name)


def test_an_ome_tiff_that_lost_its_names(tmp_path: Path) -> None:
    """The XML stands last in the file; without it the larger label would pass for the specimen."""
    with tifffile.TiffWriter(tmp_path / "a.ome.tif", ome=True) as tif:
        tif.write(draw(200, 200), metadata={"axes": "YXS", "Name": "label"})
        tif.write(draw(80, 70), metadata={"axes": "YXS", "Name": "specimen"})
    data = (tmp_path / "a.ome.tif").read_bytes()
    (tmp_path / "a.ome.tif").write_bytes(data[:-50])
    assert "cut short (the file ends too early). Copy it again." in refusal(tmp_path / "a.ome.tif")


def test_a_tiff_that_lost_its_last_channel(tmp_path: Path) -> None:
    with tifffile.TiffWriter(tmp_path / "a.tif") as tif:
        for channel in planes(draw(60, 50, 3, np.uint16)):
            tif.write(channel, photometric="minisblack", metadata=None, contiguous=False, compression="zlib")
    with tifffile.TiffFile(tmp_path / "a.tif") as tif:
        third = tif.pages[2].offset
    (tmp_path / "a.tif").write_bytes((tmp_path / "a.tif").read_bytes()[:third])
    assert "cut short (the file ends too early). Copy it again." in refusal(tmp_path / "a.tif")


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("strips.tif", "are damaged (the file ends too early). Copy the file again."),
        ("a.png", "the picture is damaged or cut short (image file is truncated"),
        ("a.jpg", "the JPEG is cut short: its pixels do not come to their end."),
    ],
)
def test_a_half_copied_file_says_copy_it_again(tmp_path: Path, name: str, sentence: str) -> None:
    WHOLE[name](tmp_path / name)
    data = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(data[: len(data) // 2])
    said = refusal(tmp_path / name)
    assert sentence in said
    assert re.search(r"Copy (it|the file) again\.", said)


@pytest.mark.parametrize("name", ["a.svs", "a.tif", "a.ndpi", "a.mrxs", "a.png", "a.dcm", "a"])
@pytest.mark.parametrize("data", [bytes(5000), np.random.default_rng(0).bytes(5000), b"%PDF-1.7\n"])
def test_what_is_no_slide_at_all(tmp_path: Path, name: str, data: bytes) -> None:
    (tmp_path / name).write_bytes(data)
    assert refusal(tmp_path / name) == (
        f"{tmp_path / name} cannot be read: not a picture or slide format known here. Formats read: {list_formats()}."
    )


@pytest.mark.parametrize("name", WHOLE)
def test_flipped_bytes_never_end_in_another_exception(tmp_path: Path, name: str) -> None:
    """Damage in the head of a file gives pixels or a SlideError, never a stranger's exception."""
    WHOLE[name](tmp_path / name)
    data = (tmp_path / name).read_bytes()
    rng = np.random.default_rng(0)
    refused = 0
    for _ in range(60):
        damaged = bytearray(data)
        for position in rng.integers(0, min(len(data), 400), 4):
            damaged[position] = rng.integers(256)
        (tmp_path / name).write_bytes(damaged)
        try:
            with open_slide(tmp_path / name) as slide:
                slide.read(0, 0, 0, min(slide.width, 300), min(slide.height, 300))
        except SlideError:
            refused += 1
    assert refused > 10


def test_more_channels_than_any_microscope_has(tmp_path: Path) -> None:
    """A patch of 60,000 channels would take 5 GB."""
    tifffile.imwrite(tmp_path / "a.tif", draw(64, 64), tile=(32, 32), photometric="rgb", metadata=None)
    with tifffile.TiffFile(tmp_path / "a.tif", mode="r+") as tif:
        tif.pages.first.tags["SamplesPerPixel"].overwrite(60_000)
    said = refusal(tmp_path / "a.tif")
    assert "it says that it has 60000 channels, more than 256. Copy it again." in said


@pytest.mark.parametrize("tag", ["ImageWidth", "ImageLength", "TileWidth", "TileLength"])
def test_a_page_without_pixels(tmp_path: Path, tag: str) -> None:
    tifffile.imwrite(tmp_path / "a.tif", draw(64, 64, 1, np.uint16)[..., 0], tile=(32, 32), metadata=None)
    with tifffile.TiffFile(tmp_path / "a.tif", mode="r+") as tif:
        tif.pages.first.tags[tag].overwrite(0)
    assert "the TIFF is damaged or cut short" in refusal(tmp_path / "a.tif")


# Files that would never be open


def lead_back(path: Path, to: int) -> None:
    """Let the last page directory of a TIFF point back at directory number `to` instead of at nothing."""
    with tifffile.TiffFile(path) as tif:
        form, offsets = tif.tiff, [page.offset for page in tif.pages]
        entries = len(tif.pages[-1].aspage().tags)
    with path.open("r+b") as file:
        file.seek(offsets[-1] + form.tagnosize + entries * form.tagsize)
        assert struct.unpack(form.offsetformat, file.read(form.offsetsize)) == (0,)
        file.seek(-form.offsetsize, 1)
        file.write(struct.pack(form.offsetformat, offsets[to]))


def ndpi(path: Path) -> None:
    """A directory that is wholly empty, with the offsets of 8 bytes that Hamamatsu puts into a classic TIFF."""
    path.write_bytes(b"II*\0" + struct.pack("<QHQ", 12, 0, 0))


CIRCLES: dict[str, tuple[Callable[[Path], object], int]] = {
    "tiled.tif": (tiled_pyramid, 0),
    "tiled-inner.tif": (tiled_pyramid, 1),
    "itself.tif": (flat(rowsperstrip=9, metadata=None), 0),
    "big.ome.tif": (ome_16_bit_pyramid_in_nm, 2),
    "big-endian.tif": (flat(**U16, layout="CYX", byteorder=">", metadata=None), 1),
    "palette.tif": (lambda path: Image.fromarray(draw(41, 53)).quantize(16).save(path), 0),
    "a.ndpi": (ndpi, 0),
}


@pytest.mark.parametrize("name", CIRCLES)
def test_page_directories_in_a_circle(tmp_path: Path, name: str) -> None:
    """Libraries follow them for ever; the limit only keeps this test from doing so."""
    write, to = CIRCLES[name]
    write(tmp_path / "whole.tif")
    lead_back(tmp_path / "whole.tif", to)
    path = (tmp_path / "whole.tif").rename(tmp_path / name)
    with pytest.raises(SlideError) as caught:
        open_slide(path, limit_s=20)
    assert str(caught.value) == (
        f"{path} cannot be read: the page directories of the TIFF lead in a circle. Copy it again. "
        f"Formats read: {list_formats()}."
    )


@pytest.mark.parametrize("name", ["a.png", "a.tif"])
def test_a_library_that_does_not_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    released = Event()

    def never(self: Slide, path: Path) -> None:
        released.wait()
        raise SlideError("too late to matter.")

    for reader in list_readers():
        monkeypatch.setattr(reader, "__init__", never)
    WHOLE[name](tmp_path / name)
    try:
        with pytest.raises(SlideError) as caught:
            open_slide(tmp_path / name, limit_s=0.05)
    finally:
        released.set()
    assert str(caught.value) == (
        f"{tmp_path / name} cannot be read: it was not open after 0.05 s. Copy it to a disk of this machine, or "
        "convert it to a tiled pyramidal TIFF."
    )


READER = """
import numpy as np
from hidisc.slides.slide import Slide

class Dots(Slide):
    turn, formats, suffixes = 2.5, "DOTS", (".dots",)
    reader, levels, mpp, width, height, channels, dtype = "dots", (1.0,), 0.5, 4, 4, 1, np.dtype(np.uint8)

    @classmethod
    def takes(cls, file):
        return file.path.read_bytes() == b"dots"

    def read(self, level, x, y, width, height):
        return np.zeros((height, width, 1), np.uint8)

    def close(self):
        pass
"""


def test_a_format_is_added_by_one_class_in_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "dots.py").write_text(READER)
    (tmp_path / "slide.dots").write_bytes(b"dots")
    monkeypatch.setattr(readers, "__path__", [*readers.__path__, str(tmp_path)])
    list_readers.cache_clear()
    try:
        with open_slide(tmp_path / "slide.dots") as slide:
            assert (slide.reader, slide.read(0, 0, 0, 2, 2).shape) == ("dots", (2, 2, 1))
        assert [reader.turn for reader in list_readers()] == [1, 2, 2.5, 3, 4]
        assert "DICOM whole-slide, DOTS, OME-TIFF" in list_formats()
        assert ".dots" in list_suffixes()
    finally:
        list_readers.cache_clear()


# Real files


def test_real_slides(shared_data: Path) -> None:
    found = {}
    for path in (shared_data / "wsi").glob("*"):
        if path.suffix != ".dcm":
            with open_slide(path) as slide:
                found[path.name] = (slide.reader, slide.width, slide.height, len(slide.levels), slide.mpp)
                assert slide.read(0, slide.width - 50, slide.height - 60, 50, 60).shape == (60, 50, 3)
    assert found == {
        "cmu-1-small-region.svs": ("tiles", 2220, 2967, 1, 0.499),
        "generic-four-levels.tiff": ("tiles", 300, 250, 4, None),
        "tcga-cr-7395-two-levels-no-mpp.svs": ("tiles", 4443, 3567, 2, None),
    }


def test_real_svs_and_jpeg_of_one_region_show_the_same(shared_data: Path) -> None:
    """The scale in the files is the one the cohort gives, and both readers put the tissue in the same place."""
    lines = (shared_data / "monusac/cohort_svs.csv").read_text().splitlines()
    for line in lines[1:4]:
        patient, slide_id, path, _, mpp = line.split(",")
        with (
            open_slide(shared_data / "monusac" / path) as svs,
            open_slide(shared_data / f"monusac/images/{patient}/{slide_id}.jpg") as jpg,
        ):
            assert svs.mpp == pytest.approx(float(mpp), rel=1e-3)
            assert (svs.width, svs.height) == (jpg.width, jpg.height)
            a, b = (slide.read(0, 100, 200, 128, 128).astype(int) for slide in (svs, jpg))
            assert np.abs(a - b).mean() < 8


def test_a_real_slide_without_a_scale_is_refused(shared_data: Path) -> None:
    with (
        open_slide(shared_data / "wsi/tcga-cr-7395-two-levels-no-mpp.svs") as slide,
        pytest.raises(SlideError, match=r"no-mpp\.svs does not say how large its pixels are\. Put micrometres"),
    ):
        resolve_mpp(slide, None, None)


def test_a_real_dicom_file_that_is_no_slide_is_refused(shared_data: Path) -> None:
    said = refusal(shared_data / "wsi/not-a-slide.dcm")
    assert (
        "It is a DICOM file, but not a whole-slide image (VL Whole Slide Microscopy); export the slide itself." in said
    )


def test_tiles_a_brightfield_file_leaves_out_are_glass(tmp_path: Path) -> None:
    path = tmp_path / "sparse.ome.tif"
    pixels = np.full((64, 64, 3), 90, np.uint8)
    tifffile.imwrite(path, pixels, tile=(32, 32), photometric="rgb", metadata={"axes": "YXS"})
    with tifffile.TiffFile(path, mode="r+b") as tif:
        counts = list(tif.pages.first.databytecounts)
        tif.pages.first.tags["TileByteCounts"].overwrite([0, *counts[1:]])
    with open_slide(path) as slide:
        seen = slide.read(0, 0, 0, 64, 64)
    assert (seen[:32, :32] == 255).all()
    assert (seen[32:] == 90).all()

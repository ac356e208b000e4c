"""A rectangle at an exact scale equals the same rectangle of the whole slide resized at once."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image

from hidisc.slides.resample import pick_level, read_scaled, read_thumbnail, resize
from hidisc.slides.slide import Pixels, Slide, SlideFile


class ArraySlide(Slide):
    """A slide of arrays in memory, finest first; it refuses to be read outside its levels."""

    def __init__(self, *levels: Pixels) -> None:
        self.path, self.reader, self.mpp = Path("drawn"), "array", None
        self._arrays = levels
        self.height, self.width, self.channels = levels[0].shape
        self.dtype = levels[0].dtype
        self.levels = tuple(self.width / level.shape[1] for level in levels)
        self.reads: list[tuple[int, int, int]] = []

    @classmethod
    def takes(cls, file: SlideFile) -> bool:
        return False

    def level_size(self, level: int) -> tuple[int, int]:
        height, width, _ = self._arrays[level].shape
        return width, height

    def read(self, level: int, x: int, y: int, width: int, height: int) -> Pixels:
        wide, tall = self.level_size(level)
        assert 0 <= x < x + width <= wide
        assert 0 <= y < y + height <= tall
        self.reads.append((level, width, height))
        return self._arrays[level][y : y + height, x : x + width]

    def close(self) -> None:
        pass


def noise(height: int, width: int, channels: int = 3, dtype: type = np.uint8) -> Pixels:
    """Smooth and sharp structure together."""
    rng = np.random.default_rng(height * width)
    top = np.iinfo(dtype).max
    wave = np.sin(np.arange(height)[:, None, None] / 7) * np.cos(np.arange(width)[None, :, None] / 5)
    return ((wave + 1) * top / 4 + rng.integers(0, top // 2, (height, width, channels))).astype(dtype)


def resize_whole(pixels: Pixels, width: int, height: int, box: tuple[float, float, float, float]) -> Pixels:
    """The oracle: the whole picture at once with Pillow, RGB as it is and other channels one by one as floats."""
    filter_ = Image.Resampling.HAMMING if box[2] - box[0] > width else Image.Resampling.BICUBIC
    if pixels.shape[2] == 3:
        return np.asarray(Image.fromarray(pixels).resize((width, height), filter_, box)).astype(float)
    planes = [
        np.asarray(Image.fromarray(pixels[..., c].astype(np.float32)).resize((width, height), filter_, box))
        for c in range(pixels.shape[2])
    ]
    return np.stack(planes, axis=-1).clip(0, np.iinfo(pixels.dtype).max)


@pytest.mark.parametrize("downsample", [1.0, 2.0, 3.0, 1.984, 2.7182, 0.8])
@pytest.mark.parametrize(("channels", "dtype"), [(3, np.uint8), (2, np.uint16), (1, np.uint8)])
def test_boxes_are_cut_out_of_the_whole_slide_resized(downsample: float, channels: int, dtype: type) -> None:
    """Also at the edges, where the filter runs out of pixels in both."""
    slide = ArraySlide(noise(151, 203, channels, dtype))
    across, down = int(203 / downsample), int(151 / downsample)
    box = (0, 0, across * downsample, down * downsample)
    whole = resize_whole(slide.read(0, 0, 0, 203, 151), across, down, box)
    size = 24
    for left in (0, 13, across - size):
        for top in (0, 11, down - size):
            got = read_scaled(slide, left * downsample, top * downsample, size, size, downsample)
            assert got.dtype == dtype
            assert got.shape == (size, size, channels)
            expected = whole[top : top + size, left : left + size].round()
            assert np.abs(got - expected).max() <= 1, (left, top)


def test_level_0_pixels_are_handed_on_untouched() -> None:
    pixels = noise(60, 80)
    assert (read_scaled(ArraySlide(pixels), 11, 7, 30, 20, 1.0) == pixels[7:27, 11:41]).all()


@pytest.mark.parametrize(
    ("downsample", "level"),
    [(0.5, 0), (1, 0), (1.9, 0), (2, 1), (3.99, 2), (3.9, 1), (4, 2), (7, 2), (16, 3), (400, 3)],
)
def test_the_nearest_finer_level_is_read(downsample: float, level: int) -> None:
    slide = ArraySlide(*(noise(128 // step, 160 // step) for step in (1, 2, 4, 16)))
    assert pick_level(slide, downsample) == level


def test_reading_costs_what_the_level_costs() -> None:
    """A 20 px patch at 8 x is read from the 4 x level: about 40 px and the filter's margin, not 160."""
    slide = ArraySlide(*(noise(800 // step, 800 // step) for step in (1, 2, 4)))
    read_scaled(slide, 200, 200, 20, 20, 8.0)
    ((level, width, height),) = slide.reads
    assert level == 2
    assert max(width, height) <= 40 + 2 * 4


def test_levels_show_the_same_place() -> None:
    """A gradient read through a coarse level has the values level 0 has there."""
    ramp = np.broadcast_to(np.arange(240, dtype=np.uint8)[None, :, None], (240, 240, 3))
    half = np.ascontiguousarray(ramp.reshape(120, 2, 120, 2, 3).mean(axis=(1, 3)).round().astype(np.uint8))
    fine, coarse = ArraySlide(ramp), ArraySlide(ramp, half)
    a = read_scaled(fine, 37, 50, 30, 30, 3.0).astype(int)
    b = read_scaled(coarse, 37, 50, 30, 30, 3.0).astype(int)
    assert np.abs(a - b).max() <= 1
    assert coarse.reads[0][0] == 1


def test_one_filter_for_all_boxes_of_a_slide() -> None:
    """At scale 1 on a fractional offset, float noise in the box must not switch the filter from box to box."""
    pixels = noise(64, 640)
    slide = ArraySlide(np.repeat(np.repeat(pixels, 3, axis=0), 3, axis=1), pixels)
    for x in range(1, 1500, 5):
        got = read_scaled(slide, x, 0, 30, 30, 3.0)
        box = (x / 3, 0, x / 3 + 30, 30)
        planes = [Image.fromarray(pixels[..., c].astype(np.float32)) for c in range(3)]
        bicubic = [np.asarray(plane.resize((30, 30), Image.Resampling.BICUBIC, box)) for plane in planes]
        assert np.abs(got - np.stack(bicubic, -1).clip(0, 255)).max() <= 1.01, x


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
@pytest.mark.parametrize("value", [0, 1, 200, -1])
def test_a_constant_slide_stays_constant(dtype: type, value: int) -> None:
    value = value % (np.iinfo(dtype).max + 1)
    slide = ArraySlide(np.full((100, 100, 3), value, dtype), np.full((50, 50, 3), value, dtype))
    for downsample in (0.7, 1.3, 2.0, 2.6):
        assert (read_scaled(slide, 3, 5, 20, 20, downsample) == value).all()


def test_antialiasing() -> None:
    """A chequerboard of single pixels shrinks to grey, not to another pattern."""
    board = (np.indices((120, 120)).sum(axis=0) % 2 * 255).astype(np.uint8)[..., None].repeat(3, axis=2)
    shrunk = read_scaled(ArraySlide(board), 20, 20, 20, 20, 3.7)
    assert np.abs(shrunk.astype(int) - 127).max() < 12


def test_resize_stays_within_the_type() -> None:
    """Bicubic overshoots at sharp edges; 65535 must not wrap to 0."""
    edge = np.zeros((10, 10, 2), np.uint16)
    edge[:, 5:] = 65535
    grown = resize(edge, 37, 37, (0, 0, 10, 10))
    assert grown[:, -10:].min() == 65535
    assert grown[:, :10].max() == 0


@settings(deadline=None)
@given(
    width=st.integers(5, 150),
    height=st.integers(5, 150),
    steps=st.lists(st.floats(1.2, 6), max_size=2),
    downsample=st.floats(1, 12),
    block=st.integers(3, 60),
)
@example(width=150, height=11, steps=[3.0], downsample=3.0, block=3)  # the coarse level lacks the last row
def test_a_thumbnail_in_blocks_equals_one_in_a_piece(
    width: int, height: int, steps: list[float], downsample: float, block: int
) -> None:
    """Whatever the odd sizes of the pyramid's levels."""
    ramp = (np.add.outer(np.arange(height), 2 * np.arange(width)) * 100).astype(np.uint16)[..., None]
    levels = [ramp]
    for step in np.cumprod(steps):
        tall, wide = int(height / step), int(width / step)
        if min(tall, wide) >= 1:
            levels.append(np.ascontiguousarray(ramp[:tall, :wide]))
    slide = ArraySlide(*levels)
    whole = read_thumbnail(slide, downsample)
    parts = read_thumbnail(slide, downsample, block_px=block)
    assert whole.shape == parts.shape == (max(1, round(height / downsample)), max(1, round(width / downsample)), 1)
    a_fifth_of_a_pixel = 40  # the ramp rises by 200 a pixel
    assert np.abs(whole.astype(int) - parts.astype(int)).max() <= a_fifth_of_a_pixel


def test_thumbnail_blocks_leave_no_seams() -> None:
    slide = ArraySlide(noise(400, 600), noise(200, 300))
    whole = read_thumbnail(slide, 4.0).astype(int)
    parts = read_thumbnail(slide, 4.0, block_px=64).astype(int)
    assert len(slide.reads) > 20
    assert np.abs(whole - parts).max() <= 1


def test_a_thumbnail_never_reads_more_than_a_block() -> None:
    slide = ArraySlide(noise(500, 700))
    read_thumbnail(slide, 5.0, block_px=100)
    margin = 2 * 10
    assert max(max(width, height) for _, width, height in slide.reads) <= 100 + margin + 2

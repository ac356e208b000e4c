"""Half the size is, to the last bit, what Pillow's Hamming filter gives."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from hidisc.slides import resample
from hidisc.slides.resample import can_halve, halve

Box = tuple[float, float, float, float]


def with_pillow(pixels: np.ndarray, size: int, box: Box) -> np.ndarray:
    return np.asarray(Image.fromarray(pixels).resize((size, size), Image.Resampling.HAMMING, box))


@settings(deadline=None)
@given(
    size=st.integers(8, 90),
    margins=st.tuples(*[st.integers(1, 4)] * 4),
    seed=st.integers(0, 99),
    contrast=st.sampled_from(["noise", "black and white", "nearly even"]),
)
def test_every_bit_is_that_of_pillow(size: int, margins: tuple[int, int, int, int], seed: int, contrast: str) -> None:
    left, top, right, bottom = margins
    values = {"noise": 256, "black and white": 2, "nearly even": 3}[contrast]
    shape = (top + 2 * size + bottom, left + 2 * size + right, 3)
    pixels = np.random.default_rng(seed).integers(0, values, shape).astype(np.uint8)
    pixels = pixels * 255 if contrast == "black and white" else pixels
    box = (left, top, left + 2 * size, top + 2 * size)
    assert can_halve(pixels, size, size, box)
    np.testing.assert_array_equal(halve(pixels, left, top, size, size), with_pillow(pixels, size, box))


def test_every_sum_of_four_pixels_is_rounded_as_pillow_does() -> None:
    """All 511 sums of the outer two pixels for each sum of the inner two; rows are alike, so columns change nothing."""
    sums = np.arange(511)
    low, high = sums // 2, sums - sums // 2
    for inner in range(511):
        row = np.stack([low, np.full(511, inner // 2), np.full(511, inner - inner // 2), high], axis=1).reshape(-1)
        pixels = np.broadcast_to(row.astype(np.uint8)[None, :, None], (4, len(row), 3))
        across = len(row) // 2 - 1
        expected = Image.fromarray(np.ascontiguousarray(pixels)).resize(
            (across, 1), Image.Resampling.HAMMING, (1, 1, 1 + 2 * across, 3)
        )
        np.testing.assert_array_equal(halve(pixels, 1, 1, across, 1), np.asarray(expected))


@pytest.mark.parametrize(
    ("shape", "size", "box"),
    [
        ((66, 66), 32, (0, 1, 64, 65)),  # at the left edge of a slide
        ((65, 66), 32, (1, 1, 65, 65)),  # at its lower edge
        ((66, 67), 32, (1.5, 1, 65.5, 65)),
        ((70, 70), 32, (1, 1, 65.5, 65.5)),
        ((200, 200), 32, (4, 4, 132, 132)),
    ],
)
def test_what_is_not_whole_is_left_to_pillow(shape: tuple[int, int], size: int, box: Box) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (*shape, 3)).astype(np.uint8)
    assert not can_halve(pixels, size, size, box)
    np.testing.assert_array_equal(resample.resize(pixels, size, size, box), with_pillow(pixels, size, box))


def test_resize_takes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (608, 608, 3)).astype(np.uint8)
    monkeypatch.setattr(resample, "halve", lambda *_: "halved")
    assert resample.resize(pixels, 300, 300, (4, 4, 604, 604)) == "halved"

"""Tissue and contrast of boxes, against slow loops and drawn pictures."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from hidisc.slides.grid import Boxes, lay_grid
from hidisc.slides.tissue import find_tissue, pixel_std, tissue_fraction, touches_tissue

MASKS = hnp.arrays(bool, st.tuples(st.integers(1, 30), st.integers(1, 30)))
SCALES = st.floats(0.5, 40)


def boxes_on(mask: NDArray[np.bool_], scale: float, size: int) -> Boxes:
    height, width = (max(1, round(length * scale)) for length in mask.shape)
    return lay_grid(width, height, size, max(1, size // 2), 1.0)


def slow_fraction(mask: NDArray[np.bool_], x: int, y: int, extent: float, scale: float) -> float:
    """Mean of the mask pixels between the box's rounded edges, at least one along each axis."""
    (top, bottom), (left, right) = (
        (min(round(start / scale), length - 1), min(round((start + extent) / scale), length))
        for start, length in ((y, mask.shape[0]), (x, mask.shape[1]))
    )
    inside = [
        mask[row, column] for row in range(top, max(bottom, top + 1)) for column in range(left, max(right, left + 1))
    ]
    return sum(map(float, inside)) / len(inside)


@given(MASKS, SCALES, st.integers(2, 60))
def test_fraction_is_the_slow_mean(mask: NDArray[np.bool_], scale: float, size: int) -> None:
    boxes = boxes_on(mask, scale, size)[:50]
    slow = [slow_fraction(mask, x, y, boxes.extent, scale) for x, y in zip(boxes.x, boxes.y, strict=True)]
    np.testing.assert_allclose(tissue_fraction(mask, boxes, scale), slow, atol=1e-6)


@given(MASKS, SCALES, st.integers(2, 60))
@example(np.array([[False, True]]), 40.0, 2)  # boxes much smaller than a mask pixel
def test_the_net_before_reading_catches_every_box_with_tissue(mask: NDArray[np.bool_], scale: float, size: int) -> None:
    boxes = boxes_on(mask, scale, size)
    assert (touches_tissue(mask, boxes, scale) | (tissue_fraction(mask, boxes, scale) == 0)).all()


def test_the_net_reaches_one_box_far_and_not_two() -> None:
    mask = np.zeros((1, 50), bool)
    mask[0, 25] = True
    boxes = lay_grid(50, 10, 10, 10, 1.0)
    assert touches_tissue(mask, boxes, 1.0).tolist() == [False, True, True, True, False]


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
@pytest.mark.parametrize("channels", [1, 2, 3])
def test_pixel_std_is_numpys(dtype: type, channels: int) -> None:
    top = np.iinfo(dtype).max
    pixels = np.random.default_rng(0).integers(0, top, (31, 17, channels), dtype, endpoint=True)
    expected = pixels.reshape(-1, channels).astype(float).std(axis=0).mean() * 255 / top
    assert pixel_std(pixels) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("value", [0, 7, 255])
def test_a_constant_patch_has_no_contrast(value: int) -> None:
    assert pixel_std(np.full((40, 40, 3), value, np.uint8)) == pytest.approx(0, abs=1e-4)


def draw(glass: int, tissue: NDArray[np.bool_] | None = None, seed: int = 0) -> NDArray[np.uint8]:
    """Glass of one grey with a scanner's noise, and pink tissue where told."""
    rng = np.random.default_rng(seed)
    picture = np.full((96, 128, 3), glass, float)
    if tissue is not None:
        picture[tissue] = (200, 120, 170)
        picture[tissue] += rng.normal(0, 25, picture[tissue].shape)
    return (picture + rng.normal(0, 1.5, picture.shape)).clip(0, 255).astype(np.uint8)


def mask_of(picture: NDArray[np.uint8]) -> NDArray[np.bool_]:
    return find_tissue(picture, min_density=0.02, max_density=0.06)


@pytest.mark.parametrize("glass", [215, 235, 255])
def test_glass_alone_is_no_tissue(glass: int) -> None:
    assert mask_of(draw(glass)).mean() < 0.01


def test_tissue_alone_is_all_tissue() -> None:
    assert mask_of(draw(240, np.ones((96, 128), bool))).mean() > 0.95


@pytest.mark.parametrize("glass", [215, 235, 255])
def test_half_and_half(glass: int) -> None:
    tissue = np.zeros((96, 128), bool)
    tissue[:, 64:] = True
    wrong = mask_of(draw(glass, tissue)) != tissue
    assert wrong[:, :60].mean() < 0.01
    assert wrong[:, 68:].mean() < 0.02


def test_a_small_biopsy_on_a_large_slide_is_found() -> None:
    tissue = np.zeros((96, 128), bool)
    tissue[40:50, 60:70] = True
    mask = mask_of(draw(240, tissue))
    assert mask[42:48, 62:68].all()
    assert mask.mean() < 0.03


@pytest.mark.parametrize(("channels", "dtype"), [(2, np.uint16), (3, np.uint16), (1, np.uint8)])
def test_what_has_no_glass_is_all_tissue(channels: int, dtype: type) -> None:
    mask = find_tissue(np.zeros((5, 7, channels), dtype), 0.02, 0.06)
    assert mask.shape == (5, 7)
    assert mask.all()

"""The squares a slide is cut into, against a slow double loop."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hidisc.slides.grid import BLOCK, Boxes, lay_grid

SIDES = st.integers(1, 3000)
SIZES = st.integers(8, 300)
STRIDES = st.integers(20, 400)
DOWNSAMPLES = st.one_of(st.sampled_from([0.25, 0.5, 1.0, 1.984, 2.0, 4.0]), st.floats(0.3, 5))


def corners(boxes: Boxes) -> list[tuple[int, int]]:
    return list(zip(boxes.x.tolist(), boxes.y.tolist(), strict=True))


def slow_grid(width: int, height: int, size: float, stride: float) -> list[tuple[int, int]]:
    """Row by row, column by column, as long as the box fits (a millionth of a pixel is forgiven)."""
    found = []
    row = 0
    while row * stride + size <= height + 1e-6:
        column = 0
        while column * stride + size <= width + 1e-6:
            found.append((int(column * stride + 1e-6), int(row * stride + 1e-6)))
            column += 1
        row += 1
    return found


@given(SIDES, SIDES, SIZES, STRIDES, DOWNSAMPLES)
def test_is_the_slow_loop_in_another_order(width: int, height: int, size: int, stride: int, downsample: float) -> None:
    boxes = lay_grid(width, height, size, stride, downsample)
    assert sorted(corners(boxes)) == sorted(slow_grid(width, height, size * downsample, stride * downsample))


@given(SIDES, SIDES, SIZES, STRIDES, DOWNSAMPLES)
def test_boxes_lie_inside_and_differ(width: int, height: int, size: int, stride: int, downsample: float) -> None:
    boxes = lay_grid(width, height, size, stride, downsample)
    assert boxes.extent == size * downsample
    assert ((boxes.x >= 0) & (boxes.y >= 0)).all()
    assert (boxes.x + boxes.extent <= width + 1e-6).all()
    assert (boxes.y + boxes.extent <= height + 1e-6).all()
    assert len(set(corners(boxes))) == len(boxes)


@given(SIDES, SIDES, SIZES, DOWNSAMPLES)
def test_at_stride_equal_to_size_neighbours_touch(width: int, height: int, size: int, downsample: float) -> None:
    """Without gap or overlap beyond the rounding to whole level-0 pixels."""
    boxes = lay_grid(width, height, size, size, downsample)
    for starts in (np.unique(boxes.x), np.unique(boxes.y)):
        assert (np.abs(np.diff(starts) - boxes.extent) < 1).all()


def test_positions_do_not_drift_over_a_wide_slide() -> None:
    """0.2528 to 0.5 um/px: the 300th box lies where 300 exact steps lead, not 300 rounded ones."""
    downsample = 0.5 / 0.2528
    boxes = lay_grid(200_000, 300, 100, 100, downsample)
    assert boxes.x[-1] == int((len(boxes) - 1) * 100 * downsample)
    assert 200_000 - (boxes.x[-1] + boxes.extent) < boxes.extent


def test_float_noise_in_the_scale_costs_no_box() -> None:
    """0.5 / 0.1 patch pixels are 4.999... or 5.000...1 level-0 px; three boxes fit either way."""
    for downsample in (5 * (1 - 1e-12), 5 * (1 + 1e-12)):
        assert corners(lay_grid(120, 40, 8, 8, downsample)) == [(0, 0), (40, 0), (80, 0)]


def test_a_stride_below_one_slide_pixel_gives_no_box_twice() -> None:
    boxes = lay_grid(20, 5, 10, 1, 0.5)
    assert len(set(corners(boxes))) == len(boxes) == 16


def test_a_slide_smaller_than_a_box_has_none() -> None:
    assert len(lay_grid(299, 5000, 300, 300, 1.0)) == 0
    assert corners(lay_grid(300, 300, 300, 300, 1.0)) == [(0, 0)]


def test_neighbours_follow_each_other_in_blocks() -> None:
    """Whole blocks one after the other, each filled row by row."""
    boxes = lay_grid(20 * BLOCK, 20 * BLOCK, 10, 10, 1.0)
    column, row = boxes.x // 10, boxes.y // 10
    block = (row // BLOCK) * 2 + column // BLOCK
    assert (np.diff(block) >= 0).all()
    first = corners(boxes)[: BLOCK * BLOCK]
    assert first == [(10 * x, 10 * y) for y in range(BLOCK) for x in range(BLOCK)]


def test_boxes_can_be_chosen_by_mask() -> None:
    boxes = lay_grid(40, 10, 10, 10, 1.0)
    chosen = boxes[np.array([True, False, False, True])]
    assert corners(chosen) == [(0, 0), (30, 0)]
    assert (chosen.extent, chosen.downsample) == (boxes.extent, boxes.downsample)

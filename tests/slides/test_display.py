"""Pixels of any kind as something to look at."""

import numpy as np
import pytest

from hidisc.slides.slide import as_rgb, shrink


@pytest.mark.parametrize(("channels", "shown"), [(1, [9, 9, 9]), (2, [9, 8, 0]), (3, [9, 8, 7]), (5, [9, 8, 7])])
def test_channels_become_red_green_blue(channels: int, shown: list[int]) -> None:
    pixels = np.broadcast_to(np.array([9, 8, 7, 6, 5], np.uint8)[:channels], (2, 3, channels))
    rgb = as_rgb(pixels)
    assert rgb.shape == (2, 3, 3)
    assert rgb[0, 0].tolist() == shown


def test_16_bits_are_stretched_to_what_is_there() -> None:
    pixels = np.linspace(0, 4000, 10_000).astype(np.uint16).reshape(100, 100, 1)
    rgb = as_rgb(pixels)
    assert rgb.dtype == np.uint8
    assert rgb.min() == 0
    assert rgb.max() == 255
    assert as_rgb(np.zeros((4, 4, 2), np.uint16)).max() == 0


def test_shrink_keeps_a_colour() -> None:
    assert (shrink(np.full((30, 30, 3), 77, np.uint8), 7) == 77).all()

"""What a network sees of stored pixels."""

import numpy as np
import pytest

from hidisc.patches.store import as_input, input_channels
from tests.patches.pictures import noise


def test_srh_against_its_definition() -> None:
    pixels = noise(0, 12, 2, "uint16")
    pixels[0, :4] = [[0, 0], [65535, 65535], [65535, 0], [0, 65535]]  # the third channel leaves [0, 1] on both sides
    seen = as_input(pixels, "srh")
    for y in range(12):
        for x in range(12):
            ch2, ch3 = int(pixels[y, x, 0]) / 65536, int(pixels[y, x, 1]) / 65536
            expected = [min(1, max(0, value)) for value in (ch3 - ch2 + 5000 / 65536, ch2, ch3)]
            np.testing.assert_allclose(seen[y, x], expected, rtol=0, atol=1e-6)
    assert seen.dtype == np.float32
    assert seen[0, 2, 0] == 0
    assert seen[0, 3, 0] == 1


def test_srh_of_a_batch_is_that_of_each_patch() -> None:
    batch = np.stack([noise(seed, 8, 2, "uint16") for seed in range(3)])
    np.testing.assert_array_equal(as_input(batch, "srh"), [as_input(patch, "srh") for patch in batch])


@pytest.mark.parametrize(("dtype", "top"), [("uint8", 255), ("uint16", 65535)])
def test_unit_divides_by_the_largest_value(dtype: str, top: int) -> None:
    pixels = noise(1, 9, 4, dtype)
    pixels[0, 0], pixels[0, 1] = 0, top
    seen = as_input(pixels, "unit")
    np.testing.assert_allclose(seen, pixels / top, rtol=0, atol=1e-7)
    assert seen.dtype == np.float32
    assert (seen.min(), seen.max()) == (0, 1)


@pytest.mark.parametrize(("rule", "stored"), [("srh", 2), ("unit", 1), ("unit", 5)])
def test_the_channel_count_is_that_of_the_input(rule: str, stored: int) -> None:
    pixels = noise(2, 8, stored, "uint16")
    assert input_channels(rule, stored) == as_input(pixels, rule).shape[-1]

"""Half the size by Pillow's Hamming filter, bit for bit, in less than half of Pillow's time.

Pillow adds weighted pixels in fixed point, along rows and then along columns, with bytes in between. At exactly one
half, each output pixel is made of the same four pixels a b c d in a row: with t = b + c and w = a + d - t it is
(160227 (a + d) + 1936925 t + 2^21) >> 22, which is (t + 1 + (160227 w >> 21)) >> 1 because the weights sum to 2^21, and
160227 w >> 21 is (39 w + (15 w >> 7)) >> 9 for all 1,021 values of w. So 16 bits are enough, and whole blocks of rows
are added at once. This is done at every pixel, and every second one is kept at the end: skipping costs more time.
"""

import math

import numpy as np
from numpy.typing import NDArray

_Values = NDArray[np.int16]
_BLOCK_ROWS = 32
"""Rows that are made at once, so that all buffers stay in a core's second-level cache."""
_LINE = 32
"""Values of 16 bits in a line of the cache; rows that begin on one are added faster."""
_ONE, _SEVEN, _NINE, _FIFTEEN, _THIRTY_NINE = np.array([1, 7, 9, 15, 39], np.int16)


def can_halve(pixels: NDArray[np.uint8], width_px: int, height_px: int, box: tuple[float, float, float, float]) -> bool:
    """Whether `box` (left, top, right, bottom) of `pixels` (H, W, 3) is a square of whole pixels that `halve` takes.

    Of tall pictures some versions of Pillow add columns first, which rounds differently.
    """
    left, top, right, bottom = box
    height, width = pixels.shape[:2]
    is_half = right - left == 2 * width_px == 2 * height_px == bottom - top
    has_margin = min(left, top, width - right, height - bottom) >= 1
    is_square = height_px >= 8 and height <= bottom - top + 8
    return is_half and has_margin and is_square and left == int(left) and top == int(top)


def halve(pixels: NDArray[np.uint8], left: int, top: int, width_px: int, height_px: int) -> NDArray[np.uint8]:
    """The rectangle of 2 height_px x 2 width_px pixels at (left, top) of (H, W, 3), at half its size.

    The filter needs one pixel more on every side, and `pixels` must have it.
    """
    source = pixels[top - 1 : top + 2 * height_px + 1, left - 1 : left + 2 * width_px + 1]
    length = math.ceil((6 * width_px + 6) / _LINE) * _LINE
    block = min(height_px, _BLOCK_ROWS)
    # one row more than is used, because the last values of a row are added to the first of the next one
    wide, across, inner, spare = np.empty((4, 2 * block + 3, length), np.int16)
    narrow = np.empty((block, length), np.uint8)
    out = np.empty((height_px, width_px, 3), np.uint8)
    for y in range(0, height_px, block):
        rows = min(block, height_px - y)
        needed = 2 * rows + 2
        wide[:needed, : 6 * width_px + 6].reshape(needed, -1, 3)[...] = source[2 * y : 2 * y + needed]
        flat, line = wide.reshape(-1), across[:needed].reshape(-1)
        _add([flat[3 * tap :][: len(line)] for tap in range(4)], line, inner.reshape(-1), spare.reshape(-1))
        _add([across[tap:][: 2 * rows : 2] for tap in range(4)], wide[:rows], inner, spare)
        narrow[:rows] = wide[:rows]
        pairs = narrow[:rows, : 6 * width_px].reshape(rows, width_px, 6)
        for channel in range(3):  # one at a time: all at once is an inner loop of three values
            out[y : y + rows, :, channel] = pairs[..., channel]
    return out


def _add(taps: list[_Values], out: _Values, inner: _Values, spare: _Values) -> None:
    """Four pixels that lie side by side, weighted and rounded, into `out`; the others are buffers."""
    inner, spare = inner[: len(out)], spare[: len(out)]
    np.add(taps[1], taps[2], out=inner)
    np.add(taps[0], taps[3], out=out)
    np.subtract(out, inner, out=out)
    np.right_shift(np.multiply(out, _FIFTEEN, out=spare), _SEVEN, out=spare)
    np.add(np.multiply(out, _THIRTY_NINE, out=out), spare, out=out)
    np.add(np.right_shift(out, _NINE, out=out), inner, out=out)
    np.right_shift(np.add(out, _ONE, out=out), _ONE, out=out)

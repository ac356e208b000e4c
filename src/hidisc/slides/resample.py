"""Pixels brought to an exact scale; halving, which is common, has a faster way of its own."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from hidisc.slides.slide import Pixels, Slide

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


_SUPPORT = 2  # source pixels around the rectangle, in output pixels, that the filters reach into


def pick_level(slide: Slide, downsample: float) -> int:
    """The coarsest level still at least as fine as `downsample` (1 % tolerance for odd pyramids)."""
    fine = [index for index, down in enumerate(slide.levels) if down <= downsample * 1.01]
    return max(fine, key=lambda index: slide.levels[index], default=0)


def read_scaled(slide: Slide, x: float, y: float, width_px: int, height_px: int, downsample: float) -> Pixels:
    """Pixels (height_px, width_px, C), each `downsample` level-0 pixels wide, from level-0 position (x, y)."""
    level = pick_level(slide, downsample)
    down = slide.levels[level]
    scale = downsample / down  # level pixels per output pixel
    wide, tall = slide.level_size(level)
    left, top = x / down, y / down
    right, bottom = left + width_px * scale, top + height_px * scale
    margin = 0 if scale == 1 and left == int(left) and top == int(top) else math.ceil(_SUPPORT * max(scale, 1))
    x0, y0 = max(0, min(wide - 1, math.floor(left) - margin)), max(0, min(tall - 1, math.floor(top) - margin))
    x1, y1 = min(wide, math.ceil(right) + margin), min(tall, math.ceil(bottom) + margin)
    source = slide.read(level, x0, y0, x1 - x0, y1 - y0)
    short = max(0, math.ceil(bottom) - y1), max(0, math.ceil(right) - x1)
    if any(short):  # coarse levels are rounded down, so the last pixel of a slide can lie just outside
        source = np.pad(source, ((0, short[0]), (0, short[1]), (0, 0)), mode="edge")
    return resize(source, width_px, height_px, (left - x0, top - y0, right - x0, bottom - y0))


def resize(pixels: Pixels, width_px: int, height_px: int, box: tuple[float, float, float, float]) -> Pixels:
    """The `box` (left, top, right, bottom; fractions allowed) of `pixels` (H, W, C) at another size, same dtype."""
    if box == (0, 0, width_px, height_px) and pixels.shape[:2] == (height_px, width_px):
        return pixels
    shrinking = box[2] - box[0] > width_px * (1 + 1e-6)  # not by the rounding of a fractional position
    filter_ = Image.Resampling.HAMMING if shrinking else Image.Resampling.BICUBIC
    if pixels.dtype == np.uint8 and pixels.shape[2] == 3:
        if can_halve(pixels, width_px, height_px, box):
            return halve(pixels, int(box[0]), int(box[1]), width_px, height_px)
        return np.asarray(Image.fromarray(pixels).resize((width_px, height_px), filter_, box))
    top = np.iinfo(pixels.dtype).max
    planes: list[NDArray[Any]] = [
        np.asarray(Image.fromarray(pixels[..., c].astype(np.float32)).resize((width_px, height_px), filter_, box))
        for c in range(pixels.shape[2])
    ]
    return np.stack(planes, axis=-1).round().clip(0, top).astype(pixels.dtype)


def read_thumbnail(slide: Slide, downsample: float, block_px: int = 2048) -> Pixels:
    """The whole slide at `downsample`, read in blocks of about `block_px` so that memory stays bounded."""
    width, height = max(1, round(slide.width / downsample)), max(1, round(slide.height / downsample))
    tile = max(1, int(block_px * slide.levels[pick_level(slide, downsample)] / downsample))
    out = np.empty((height, width, slide.channels), slide.dtype)
    for top in range(0, height, tile):
        for left in range(0, width, tile):
            w, h = min(tile, width - left), min(tile, height - top)
            out[top : top + h, left : left + w] = read_scaled(
                slide, left * downsample, top * downsample, w, h, downsample
            )
    return out

"""A rectangle of a slide at an exact scale: read from the nearest finer level, shrunk with antialiasing."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from hidisc.slides.halve import can_halve, halve
from hidisc.slides.slide import Pixels, Slide

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

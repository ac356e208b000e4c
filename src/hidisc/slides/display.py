"""Pixels of any depth and channel count as 8-bit RGB, for eyes only."""

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from hidisc.slides.slide import Pixels


def as_rgb(pixels: Pixels) -> NDArray[np.uint8]:
    """(H, W, 3) uint8: one channel as grey, two as red-green, more: the first three; 16 bits stretched to fit."""
    channels = pixels.shape[2]
    if channels == 1:
        pixels = pixels.repeat(3, axis=2)
    elif channels == 2:
        pixels = np.concatenate([pixels, np.zeros_like(pixels[..., :1])], axis=2)
    pixels = pixels[..., :3]
    if pixels.dtype == np.uint8:
        return np.ascontiguousarray(pixels)
    bright = max(1.0, float(np.percentile(pixels, 99.8)))
    return (pixels * (255 / bright)).clip(0, 255).astype(np.uint8)


def shrink(rgb: NDArray[np.uint8], side_px: int) -> NDArray[np.uint8]:
    """A square RGB picture at another side."""
    return np.asarray(Image.fromarray(rgb).resize((side_px, side_px), Image.Resampling.LANCZOS))

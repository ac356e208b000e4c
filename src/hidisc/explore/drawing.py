"""The map from a distance: how many patches lie where, and in which colours, as a picture."""

import io

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from hidisc.explore.columns import as_rgb_table

_FAINT = 0.35
"""Opacity of a pixel with one patch."""


def draw_density(
    places: NDArray[np.float32], codes: NDArray[np.int32], colours: tuple[str, ...], width: int, height: int
) -> bytes:
    """A PNG (height, width): pixels have the mean colour of their patches, and are stronger where there are more.

    `places` (n, 2): between 0 and 1 in the picture; those outside are not drawn.
    """
    column, row = (np.floor(places[:, axis] * side).astype(np.int64) for axis, side in ((0, width), (1, height)))
    inside = (column >= 0) & (column < width) & (row >= 0) & (row < height)
    pixel, rgb = (row * width + column)[inside], as_rgb_table(colours)
    code = codes[inside]
    counts = np.bincount(pixel, minlength=width * height)
    picture = np.zeros((width * height, 4), np.uint8)
    is_drawn = counts > 0
    for channel in range(3):
        sums = np.bincount(pixel, weights=rgb[code, channel], minlength=width * height)
        picture[is_drawn, channel] = sums[is_drawn] / counts[is_drawn]
    strength = np.log1p(counts[is_drawn]) / np.log1p(counts.max(initial=1))
    picture[is_drawn, 3] = 255 * (_FAINT + (1 - _FAINT) * strength)
    return as_png(picture.reshape(height, width, 4))


def as_png(pixels: NDArray[np.uint8]) -> bytes:
    """A picture as PNG, written quickly rather than small."""
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()


def as_jpeg(pixels: NDArray[np.uint8]) -> bytes:
    """A picture (h, w, 3) as JPEG."""
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG", quality=88)
    return buffer.getvalue()

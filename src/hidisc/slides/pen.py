"""Where a pen has marked a slide: blue, green and black ink, by colours that haematoxylin and eosin do not have."""

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from hidisc.slides.grid import Boxes
from hidisc.slides.slide import Pixels
from hidisc.slides.tissue import optical_density, tissue_fraction

_MPP = 8.0
"""Micrometres per pixel that ink is looked for at: nuclei, some as dark and blue as ink, are blended into tissue."""

# Both stains absorb green light most: of the density of all three channels, red has a third in haematoxylin and less in
# eosin, green two fifths or more. Ink that is blue or green absorbs red most; black ink absorbs all alike.
_RED_SHARE, _MIN_DENSITY = 0.42, 0.15
_BLACK_GREEN_SHARE, _BLACK_DENSITY = 0.38, 0.5


def pen_fraction(thumbnail: Pixels, boxes: Boxes, downsample: float, mpp: float) -> NDArray[np.float32]:
    """(N,) share of each box that ink covers on an 8-bit RGB thumbnail.

    `downsample` is level-0 px per thumbnail px, `mpp` micrometres per level-0 px.
    """
    height, width, _ = thumbnail.shape
    factor = max(1.0, _MPP / (mpp * downsample))
    size = (max(1, round(width / factor)), max(1, round(height / factor)))
    coarse = np.asarray(Image.fromarray(thumbnail).resize(size, Image.Resampling.BOX))
    return tissue_fraction(find_ink(coarse), boxes, downsample * width / size[0])


def find_ink(thumbnail: Pixels) -> NDArray[np.bool_]:
    """Mask (h, w) of the pixels of an 8-bit RGB thumbnail that are blue, green or black ink, over glass or tissue."""
    density = optical_density(thumbnail).clip(0, None)
    red, green, total = density[..., 0], density[..., 1], density.sum(axis=2)
    coloured = (red > _RED_SHARE * total) & (total > 3 * _MIN_DENSITY)
    black = (green < _BLACK_GREEN_SHARE * total) & (total > 3 * _BLACK_DENSITY)
    mask: NDArray[np.bool_] = coloured | black
    return mask

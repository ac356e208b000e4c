"""Where a slide has tissue, and where somebody drew on it with a pen: from the thumbnail alone."""

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFilter

from hidisc.settings.prepare import FilterConfig
from hidisc.slides.grid import Boxes
from hidisc.slides.slide import Pixels


def find_tissue(thumbnail: Pixels, min_density: float, max_density: float) -> NDArray[np.bool_]:
    """Mask (h, w) of pixels darker than glass; all True for what is not 8-bit RGB, where glass has no colour.

    Otsu's threshold on optical density, held between two bounds: alone it would halve a picture that is all
    tissue or all glass.
    """
    if thumbnail.dtype != np.uint8 or thumbnail.shape[2] != 3:
        return np.ones(thumbnail.shape[:2], bool)
    density = thumbnail_density(thumbnail).mean(axis=2).clip(0, None)
    threshold = float(np.clip(_otsu(density), min_density, max_density))
    return np.asarray(density > threshold)


def thumbnail_density(thumbnail: Pixels) -> NDArray[np.float32]:
    """(h, w, 3) how much light an 8-bit RGB thumbnail, slightly blurred, absorbs compared with its glass (log10)."""
    smooth = np.asarray(Image.fromarray(thumbnail).filter(ImageFilter.GaussianBlur(1)), np.float32)
    white = np.clip(np.percentile(smooth.reshape(-1, 3), 99.5, axis=0), 200, 255)
    return np.log10((white + 1) / (smooth + 1))


def tissue_fraction(mask: NDArray[np.bool_], boxes: Boxes, scale: float) -> NDArray[np.float32]:
    """(N,) share of each box that the mask covers; `scale` is level-0 px per mask px."""
    summed = np.zeros((mask.shape[0] + 1, mask.shape[1] + 1), np.int64)
    summed[1:, 1:] = mask.cumsum(0).cumsum(1)
    x0, x1 = _span(boxes.x, boxes.extent, scale, mask.shape[1])
    y0, y1 = _span(boxes.y, boxes.extent, scale, mask.shape[0])
    inside = summed[y1, x1] - summed[y0, x1] - summed[y1, x0] + summed[y0, x0]
    return (inside / ((x1 - x0) * (y1 - y0))).astype(np.float32)


def touches_tissue(mask: NDArray[np.bool_], boxes: Boxes, scale: float) -> NDArray[np.bool_]:
    """(N,) whether a box or one of its eight neighbours holds any tissue: a generous net before reading."""
    grown = Boxes(
        np.floor(boxes.x - boxes.extent).astype(np.int32),
        np.floor(boxes.y - boxes.extent).astype(np.int32),
        3 * boxes.extent,
        boxes.downsample,
    )
    # edges are rounded to mask pixels, so a grown box can miss what a tiny one hits
    return (tissue_fraction(mask, grown, scale) > 0) | (tissue_fraction(mask, boxes, scale) > 0)


def pixel_std(pixels: Pixels) -> float:
    """Standard deviation of pixel values over a patch (H, W, C), mean of the channels, on the 0-255 scale.

    From one histogram per channel: exact, and many times quicker than sums over interleaved pixels.
    """
    height, width, channels = pixels.shape
    if pixels.dtype == np.uint8 and channels == 3:
        counts = np.array(Image.fromarray(pixels).histogram()).reshape(3, 256)
    else:
        levels = np.iinfo(pixels.dtype).max + 1
        counts = np.stack([np.bincount(channel.ravel(), minlength=levels) for channel in np.moveaxis(pixels, 2, 0)])
    value, share = np.arange(counts.shape[1], dtype=float), counts / (height * width)
    variance = share @ value**2 - (share @ value) ** 2
    return float(np.sqrt(variance.clip(0)).mean() * (255 / value[-1]))


def is_blank(
    pixel_std: NDArray[np.float32], tissue_fraction: NDArray[np.float32], filter: FilterConfig
) -> NDArray[np.bool_]:
    """(N,) boxes not to store; an unknown tissue fraction (NaN: imported patches) never drops one."""
    return np.asarray((pixel_std < filter.min_pixel_std) | (tissue_fraction < filter.min_tissue_fraction))


def _span(
    start: NDArray[np.int32], extent: float, scale: float, length: int
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """First and last mask index of each box along one axis, at least one pixel and inside the mask."""
    low = np.clip(np.round(start / scale), 0, length - 1).astype(np.intp)
    high = np.clip(np.round((start + extent) / scale), low + 1, length).astype(np.intp)
    return low, high


def _otsu(values: NDArray[np.float32]) -> float:
    """The threshold that separates two groups of values best (largest variance between them)."""
    counts, edges = np.histogram(values, bins=256, range=(0, 1))
    middle = (edges[1:] + edges[:-1]) / 2
    below = counts.cumsum()
    above = below[-1] - below
    sums = (counts * middle).cumsum()
    with np.errstate(divide="ignore", invalid="ignore"):
        between = below * above * (sums / below - (sums[-1] - sums) / above) ** 2
    return float(middle[np.argmax(np.nan_to_num(between))])


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
    density = thumbnail_density(thumbnail).clip(0, None)
    red, green, total = density[..., 0], density[..., 1], density.sum(axis=2)
    coloured = (red > _RED_SHARE * total) & (total > 3 * _MIN_DENSITY)
    black = (green < _BLACK_GREEN_SHARE * total) & (total > 3 * _BLACK_DENSITY)
    return np.asarray(coloured | black)

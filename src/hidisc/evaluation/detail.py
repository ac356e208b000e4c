"""Detail: whether two patches are one picture, decided by what is left without outline, gradient and contrast.

Tiles of two eyes that end in one black corner, or cells that are cut out on black, correlate to 0.99 as they are. So
each picture is reduced to its detail first, at 64 x 64 px, in grey levels from 0 to 255:

1. Shown is what is neither black, white nor flat, `_MARGIN` px inside its outline.
2. f is the picture under a Gaussian of 1 px, p the plane fitted to f around each pixel under a Gaussian of 2 px. Only
   what is shown counts in both. The detail is d = (f - p) / sqrt(v + 1), v the mean square of f - p around the
   pixel: contrast does not count, and what is fainter than the noise of a camera or a JPEG (1 grey level) fades.
3. The second picture is laid on the first in 8 orientations at all shifts of up to 8 px. If the correlation r of the
   detail that both show reaches 0.3 anywhere, an affine map (Gauss-Newton) takes out a fraction of a pixel and a few
   per cent of scale, as another scan has them.
4. r of n pixels is not r of n independent values: for unrelated stationary pictures with autocorrelations a and b at
   lag s, Var(r) = 1/m with 1/m = sum over s of a(s) b(s) / n (Bartlett). By Fisher's transformation, r is more than
   tanh(artanh(r) - 3 / sqrt(m - 3)) with 99.9 % certainty. This lower limit is the agreement that is compared with
   the threshold: a few pixels that agree by chance prove nothing, and neither do structures that pictures of one organ
   or camera share (valves, reflexes in a lens), which reach 0.3 to 0.7.

A picture without detail (glass, defocused tissue, a black corner) cannot be decided: it is no duplicate unless its
pixels are the same one by one. A picture of faint detail (most single cells) is found if the copy kept that detail.
docs/lab/decisions.md has what pairs of different patients and copies reach.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from scipy import fft, ndimage

from hidisc.slides.slide import Pixels, as_rgb

Floats = NDArray[np.float32]

_SIDE_PX = 64
_SHIFT_PX = 8
"""Farthest shift that is looked for: an eighth of the side."""
_DARK, _BRIGHT = 14, 241
"""Grey levels from which a pixel is black or white; its eight neighbours must be so too."""
_FLAT = 1.0
"""Range of grey levels in a square of `_FLAT_PX` in which there is nothing to see, such as glare."""
_FLAT_PX = 7
_MARGIN = 5
"""Pixels inside an outline that are not compared: the fall of the light towards an outline is alike in all pictures."""
_LEAST = 0.1
"""Share of a picture that must show detail above the noise floor, and of two pictures that must overlap."""
_CLEAR = 1.5
"""Grey levels of local deviation that a fifth of a picture must have; all copies of such tiles of eyes were found."""
_PROMISING = 0.3
"""Correlation from which two pictures are laid on each other exactly."""
_LAGS = 6
_SURE = 3.0
"""Standard errors below the correlation, of Fisher's transformation: 99.9 % certainty."""
_OFFSETS = np.arange(_SIDE_PX)[:, None] - np.arange(_SIDE_PX)
_NARROW = np.exp(-(_OFFSETS**2) / 2).astype(np.float32)
_WIDE = np.exp(-(_OFFSETS**2) / 8).astype(np.float32)
"""Gaussians of 1 and 2 px as matrices."""
_MOMENTS = np.concatenate([_WIDE * (_OFFSETS**power).astype(np.float32) for power in range(3)])
"""(192, 64) the wide one times distance to the power 0, 1 and 2: what a fitted plane needs."""


_TINY = np.float32(1e-3)
"""Weights below this are none."""


@dataclass(frozen=True)
class Detail:
    """What can be compared of a picture."""

    values: Floats
    """(64, 64) detail, about -2 to 2; 0 where the picture shows nothing."""
    shown: NDArray[np.bool_]
    """(64, 64) what is compared."""
    is_enough: bool
    """Whether it has detail in enough places to be told from another picture."""
    is_clear: bool
    """Whether the detail is strong enough to outlive another scan or a JPEG of low quality."""


def find_detail(pixels: Pixels) -> Detail:
    """The detail of a patch (H, W, C)."""
    rgb = Image.fromarray(as_rgb(pixels))
    # one channel of floats is resized in half the time of three of bytes
    grey = np.asarray(rgb.convert("F").resize((_SIDE_PX, _SIDE_PX), Image.Resampling.LANCZOS))
    shown = ~_find_blank(grey)
    weight = shown.astype(np.float32)
    smooth = _sum(_NARROW, grey * weight, _NARROW) / _sum(_NARROW, weight, _NARROW).clip(_TINY)
    detail = (smooth - _fit_planes(smooth, weight)) * weight
    energy = _sum(_WIDE, detail**2, _WIDE) / _sum(_WIDE, weight, _WIDE).clip(_TINY)
    is_enough = bool(np.mean(shown & (energy > 1)) >= _LEAST)
    is_clear = bool(np.mean(shown & (energy > _CLEAR**2)) >= 2 * _LEAST)
    return Detail(detail / np.sqrt(energy + 1), shown, is_enough, is_clear)


def measure_agreement(ours: Detail, theirs: Detail) -> float:
    """The correlation that the detail of two pictures has at least, with 99.9 % certainty; NaN: it cannot be known."""
    if not (ours.is_enough and theirs.is_enough):
        return float("nan")
    turned, shift = _register(ours, theirs)
    aligned = _align(turned, theirs, shift)
    if aligned is None:
        return float("nan")
    correlation, a, b, is_common = aligned
    if correlation < _PROMISING:
        return correlation
    error = _SURE / np.sqrt(max(_count_independent(a, b, is_common) - 3, 0.1))
    return float(np.tanh(np.arctanh(min(correlation, 0.9999)) - error))


def _find_blank(grey: Floats) -> NDArray[np.bool_]:
    """(64, 64) what is black, white or flat, and the margin around it."""
    is_flat = ndimage.maximum_filter(grey, _FLAT_PX) - ndimage.minimum_filter(grey, _FLAT_PX) <= _FLAT
    is_blank = ndimage.maximum_filter(is_flat, _FLAT_PX, mode="constant")
    is_blank |= (ndimage.maximum_filter(grey, 3) <= _DARK) | (ndimage.minimum_filter(grey, 3) >= _BRIGHT)
    blank: NDArray[np.bool_] = ndimage.maximum_filter(is_blank, 2 * _MARGIN + 1, mode="constant")
    return blank


def _sum(down: Floats, picture: Floats, across: Floats) -> Floats:
    """Sums over the surroundings of every pixel, weighted by two matrices (64, 64)."""
    return (down @ picture @ across.T).astype(np.float32, copy=False)


def _fit_planes(picture: Floats, weight: Floats) -> Floats:
    """(64, 64) height, at each pixel, of the plane fitted to its surroundings by least squares under a Gaussian."""
    weights, heights = (
        _sum(_MOMENTS, values, _MOMENTS).reshape(3, _SIDE_PX, 3, _SIDE_PX).swapaxes(1, 2)  # powers of y, of x
        for values in (weight, picture * weight)
    )
    total = weights[0, 0].clip(_TINY)
    y, x, mean = weights[1, 0] / total, weights[0, 1] / total, heights[0, 0] / total
    yy = weights[2, 0] / total - y * y + 0.01  # a line of pixels has no slope across it
    xx = weights[0, 2] / total - x * x + 0.01
    xy = weights[1, 1] / total - y * x
    with_y, with_x = heights[1, 0] / total - y * mean, heights[0, 1] / total - x * mean
    determinant = (yy * xx - xy * xy).clip(_TINY)
    slope_y, slope_x = (with_y * xx - with_x * xy) / determinant, (with_x * yy - with_y * xy) / determinant
    return mean - slope_y * y - slope_x * x


def _turn(picture: NDArray[np.generic], orientation: int) -> NDArray[np.generic]:
    """A picture in one of 8 orientations."""
    return np.rot90(picture[:, ::-1] if orientation >= 4 else picture, orientation % 4)


def _register(ours: Detail, theirs: Detail) -> tuple[Detail, tuple[int, int]]:
    """Our picture in the orientation that agrees best with the other, and how far (y, x) it lies beside it."""
    size = _SIDE_PX + _SHIFT_PX  # so that shifts do not wrap around
    turned = np.stack([_turn(ours.values, orientation) for orientation in range(8)])
    product = fft.rfft2(turned, s=(size, size)) * fft.rfft2(theirs.values, s=(size, size)).conj()
    near = np.r_[0 : _SHIFT_PX + 1, -_SHIFT_PX:0]
    agreement = fft.irfft2(product, s=(size, size))[:, near][:, :, near]
    orientation, y, x = np.unravel_index(agreement.argmax(), agreement.shape)
    shown = _turn(ours.shown, int(orientation)).astype(np.bool_)
    return replace(ours, values=turned[orientation], shown=shown), (int(near[y]), int(near[x]))


def _align(
    ours: Detail, theirs: Detail, shift: tuple[int, int]
) -> tuple[float, Floats, Floats, NDArray[np.bool_]] | None:
    """The best correlation under an affine map near a shift, both details there (mean 0), and what both show.

    Gauss-Newton steps on the map (y, x) + p0 + p1 u + p2 v, u and v from -1 to 1; None: they hardly overlap.
    """
    y, x = np.mgrid[:_SIDE_PX, :_SIDE_PX].astype(np.float32)
    half = (_SIDE_PX - 1) / 2
    u, v = (y - half) / half, (x - half) / half
    layers: list[Floats] = [ours.values, ours.shown.astype(np.float32)]
    path = np.array([[shift[0], 0, 0], [shift[1], 0, 0]], np.float32)
    best = None
    for step in range(9):
        at = y + path[0, 0] + path[0, 1] * u + path[0, 2] * v, x + path[1, 0] + path[1, 1] * u + path[1, 2] * v
        seen = [ndimage.map_coordinates(layer, at, order=1, output=np.float32) for layer in layers]
        is_common = (seen[1] > 0.99) & theirs.shown
        if is_common.mean() < _LEAST:
            break
        a, b = (np.where(is_common, values - values[is_common].mean(), 0) for values in (seen[0], theirs.values))
        products = float((a * b).sum())
        correlation = products / max(float(np.sqrt((a * a).sum() * (b * b).sum())), 1e-6)
        if best is None or correlation > best[0]:
            best = (correlation, a, b, is_common)
        if correlation < _PROMISING:
            break
        if step == 0:
            layers += np.gradient(ours.values)
            seen += [ndimage.map_coordinates(layer, at, order=1, output=np.float32) for layer in layers[2:]]
        slopes = [slope[is_common] for slope in seen[2:]]
        jacobian = np.stack([slope * axis for slope in slopes for axis in (1, u[is_common], v[is_common])], axis=1)
        normal = jacobian.T @ jacobian
        normal += np.eye(6, dtype=np.float32) * 1e-3 * np.trace(normal) / 6
        missing = b * products / max(float((b * b).sum()), 1e-6) - a
        path += np.linalg.solve(normal, jacobian.T @ missing[is_common]).clip(-1.5, 1.5).reshape(2, 3)
        if np.abs(path[:, 1:]).max() > 4 or np.abs(path[:, 0] - shift).max() > 3:
            break  # 4 px at the edge of 32: 12 % of scale
    return best


def _count_independent(ours: Floats, theirs: Floats, is_common: NDArray[np.bool_]) -> float:
    """How many independent values the correlation of two details (64, 64) of mean 0 is worth (m of the module)."""
    size = _SIDE_PX + _LAGS
    near = np.r_[0 : _LAGS + 1, -_LAGS:0]
    spectra = np.abs(fft.rfft2(np.stack([ours, theirs, is_common.astype(np.float32)]), s=(size, size))) ** 2
    products_a, products_b, pairs = fft.irfft2(spectra, s=(size, size))[:, near][:, :, near]
    # products_a / pairs is the covariance at a lag; [0, 0] is lag 0
    variance = (products_a * products_b / np.maximum(pairs, 1)).sum()
    return float(products_a[0, 0] * products_b[0, 0] / max(float(variance), 1e-9))

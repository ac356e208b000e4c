"""Macenko stain normalisation: make slides that were stained differently look alike.

A pixel's optical density (OD) is a mixture of two stains, haematoxylin and eosin (Beer-Lambert). Their two
directions in OD space are estimated from the pixels, and the same amounts are painted again with the
directions and strengths of a reference (M. Macenko et al., "A method for normalizing histology slides for
quantitative analysis", ISBI 2009; `alpha` and `beta` are the paper's names). Pixels that do not show two
stains are no error: the estimate is None, or the patch is left as it is and flagged. Nothing gives NaN.
"""

import math
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from hidisc.ground.errors import UserError
from hidisc.slides.slide import Pixels

LIGHT = 240.0
"""Grey level of the light where there is no tissue; fixed, so that stored stains mean the same everywhere."""
ALPHA, BETA = 1.0, 0.15
"""The usual percentile of the angles and the least OD of tissue; see `estimate_stains`."""
MAX_PERCENTILE = 99.0
"""A stain's strength is this percentile of its concentration over all pixels."""
MIN_TISSUE_PX = 100
"""With fewer tissue pixels the first percentile of their angles is just the most extreme one."""
MIN_ANGLE_DEG, MAX_ANGLE_DEG = 8.0, 90.0
"""H&E pictures show 13 to 41 degrees (207 of MoNuSAC); noise and JPEG open a single stain to 5 to 7.
Beyond 90 degrees one of the stains would have to give light."""
MIN_CONCENTRATION, MAX_CONCENTRATION = BETA, 100.0
"""A weaker stain is not even seen as tissue, and would only have its noise amplified; no byte shows a stronger."""
MIN_IN_PLANE = 0.9
"""The plane of two stains passes through zero OD, so it holds the mean OD: at least this share of its length."""

OD_OF_LEVEL = -np.log((np.arange(256) + 1) / LIGHT).astype(np.float32)
"""Optical density of each grey level; the added one keeps level 0 finite."""
BLOCK_PX = 16_384
"""Pixels per step of `normalise`, so that its buffers stay in a core's second-level cache."""


@dataclass(frozen=True, eq=False)
class Stains:
    """Two stains: `vectors` (3, 2), unit OD columns haematoxylin and eosin; `max_concentrations` (2,)."""

    vectors: NDArray[np.float64]
    max_concentrations: NDArray[np.float64]

    def __post_init__(self) -> None:
        """Copy both to read-only arrays of float64; raise UserError when they cannot be two stains."""
        for name in ("vectors", "max_concentrations"):
            try:
                value = np.array(getattr(self, name), dtype=np.float64)
            except (TypeError, ValueError):
                value = np.array(np.nan)
            value.flags.writeable = False
            object.__setattr__(self, name, value)
        if problem := _problem(self.vectors, self.max_concentrations):
            raise UserError(
                f"Stains: {problem}. Two stains need `vectors`, three rows (red, green, blue) of two unit "
                f"columns (haematoxylin, eosin) {MIN_ANGLE_DEG:g} to {MAX_ANGLE_DEG:g} degrees apart, and two "
                f"`max_concentrations` of {MIN_CONCENTRATION:g} to {MAX_CONCENTRATION:g}. Estimate them from a "
                "picture, or use the published reference."
            )

    def to_dict(self) -> dict[str, list[Any]]:
        """Return plain lists, ready for JSON; `from_dict` reads them back exactly."""
        return {"vectors": self.vectors.tolist(), "max_concentrations": self.max_concentrations.tolist()}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """Return the stains that `to_dict` wrote; missing and unknown keys are refused."""
        if set(values) != {"vectors", "max_concentrations"}:
            raise UserError(
                f"Stains: the keys are {sorted(values)}. `vectors` and `max_concentrations` are needed, and "
                "nothing else. Rename, add or remove keys."
            )
        return cls(values["vectors"], values["max_concentrations"])


def _problem(vectors: NDArray[np.float64], max_concentrations: NDArray[np.float64]) -> str | None:
    """Say why these cannot be two stains, or None when they can."""
    if vectors.shape != (3, 2) or max_concentrations.shape != (2,):
        return f"the shapes are {vectors.shape} and {max_concentrations.shape}, not (3, 2) and (2,)"
    if not (np.isfinite(vectors).all() and np.isfinite(max_concentrations).all()):
        return "not every value is a finite number"
    lengths = [math.hypot(*column) for column in vectors.T]
    if max(abs(length - 1) for length in lengths) > 0.01:
        return f"the columns have lengths {lengths[0]:.3f} and {lengths[1]:.3f}, not 1"
    cosine = float(vectors[:, 0] @ vectors[:, 1]) / math.prod(lengths)
    angle = math.degrees(math.acos(min(1.0, max(-1.0, cosine))))
    if not MIN_ANGLE_DEG <= angle <= MAX_ANGLE_DEG:
        return f"the two vectors are {angle:.1f} degrees apart"
    if max_concentrations.min() < MIN_CONCENTRATION or max_concentrations.max() > MAX_CONCENTRATION:
        return f"the maximum concentrations are {max_concentrations.round(3).tolist()}"
    return None


REFERENCE = Stains(
    np.array([[0.5626, 0.2159], [0.7201, 0.8012], [0.4062, 0.5581]]),
    np.array([1.9705, 1.0308]),
)
"""The fixed reference of the public Macenko implementations, so that our patches look like everybody's."""


def estimate_stains(
    pixels: Pixels, *, alpha: float = ALPHA, beta: float = BETA, max_pixels: int = 1_000_000
) -> Stains | None:
    """Return the two stains of some pixels (..., 3), or None when they do not show two.

    `alpha` is the percentile of the tissue's angles at which a stain's direction is read, `beta` the OD that
    all three channels of a tissue pixel reach. Of more than `max_pixels` pixels every k-th is used, k the
    smallest number that is enough and shares no factor with the row length, so that all columns are seen.
    """
    _check_pixels(pixels, "(..., 3)", pixels.ndim >= 2)
    step = max(1, math.ceil(pixels.size // 3 / max_pixels))
    while math.gcd(step, pixels.shape[-2]) != 1:
        step += 1
    levels = _planes(pixels, step)
    return _stains_of(optical_density(levels), _tissue(levels, beta), alpha)


def _planes(pixels: Pixels, step: int = 1) -> Pixels:
    """Return the red, green and blue planes (3, M) of every `step`-th pixel of (..., 3)."""
    return np.ascontiguousarray(pixels.reshape(-1, 3)[::step].T)


def optical_density(levels: Pixels) -> NDArray[np.float32]:
    """Return the optical densities of an array of grey levels, of its shape."""
    return np.take(OD_OF_LEVEL, levels, mode="wrap")  # the default mode checks bounds


def _tissue(levels: Pixels, beta: float) -> NDArray[np.bool_]:
    """Return which pixels (M,) of three planes (3, M) have an OD of at least `beta` in every channel."""
    dark_levels = np.count_nonzero(beta <= OD_OF_LEVEL)  # OD falls as the level rises
    return levels.max(axis=0) < dark_levels


def _stains_of(od: NDArray[np.float32], tissue: NDArray[np.bool_], alpha: float) -> Stains | None:
    """Return the two stains of optical densities (3, M), or None, by the paper's algorithm."""
    indices = np.flatnonzero(tissue)
    if indices.size < MIN_TISSUE_PX:
        return None
    tissue_od = od.take(indices, axis=1, mode="wrap")  # (3, tissue pixels); the default mode is slower

    plane = _stain_plane(tissue_od)
    if plane is None:
        return None
    along, across = plane.T @ tissue_od
    angles = np.arctan2(across, along)
    low, high = _percentile(angles, alpha), _percentile(angles, 100 - alpha)
    if not MIN_ANGLE_DEG <= math.degrees(high - low) <= MAX_ANGLE_DEG:
        return None  # before unmixing, which one direction makes impossible
    vectors = plane.astype(np.float64) @ [[math.cos(low), math.cos(high)], [math.sin(low), math.sin(high)]]
    if vectors[0, 0] < vectors[0, 1]:  # haematoxylin, the blue one, absorbs more red
        vectors = vectors[:, ::-1]

    concentrations = _unmixing(vectors).astype(np.float32) @ od  # (2, M)
    strengths = np.array([_percentile(row, MAX_PERCENTILE) for row in concentrations])
    try:
        return Stains(vectors, strengths)
    except UserError:
        return None


def _stain_plane(od: NDArray[np.float32]) -> NDArray[np.float32] | None:
    """Return an orthonormal basis (3, 2) of the plane in which tissue ODs (3, M) vary most, or None.

    The first column is the mean's direction within the plane, so that no angle measured from it wraps around:
    the signs and the order of eigenvectors are arbitrary.
    """
    mean = od.mean(axis=1)
    centred = od - mean[:, None]
    # Dot products of long rows: several times faster than BLAS at (3, M) @ (M, 3).
    upper = [[0.0] * i + [row @ other for other in centred[i:]] for i, row in enumerate(centred)]
    _, eigenvectors = np.linalg.eigh(np.array(upper, dtype=np.float64), UPLO="U")  # in ascending order
    plane = eigenvectors[:, 1:]
    x, y = mean @ plane
    length = math.hypot(x, y)
    if length < MIN_IN_PLANE * math.hypot(*mean):
        return None
    return np.asarray(plane @ [[x, -y], [y, x]] / length, dtype=np.float32)


def _percentile(values: NDArray[np.float32], percent: float) -> float:
    """Return the value of nearest rank (torchstain's torch backend does so); values (M,) are reordered."""
    rank = round(percent / 100 * (values.size - 1))
    values.partition(rank)
    return float(values[rank])


def _unmixing(vectors: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the (2, 3) matrix from OD to the least-squares concentrations of two stain vectors (3, 2)."""
    return np.asarray(np.linalg.solve(vectors.T @ vectors, vectors.T), dtype=np.float64)


def stains_of_reference(pixels: Pixels, name: str) -> Stains:
    """Return the stains of a reference picture's pixels (H, W, 3); `name` is what an error calls it."""
    stains = estimate_stains(pixels)
    if stains is None:
        raise UserError(
            f"Stain reference '{name}': it does not show two stains that can be separated. A picture of tissue that "
            "shows both haematoxylin and eosin is needed. Choose another, or leave it out for the published one."
        )
    return stains


def normalise(patches: Pixels, stains: Stains, reference: Stains = REFERENCE) -> Pixels:
    """Return patches (N, H, W, 3), all repainted from the same `stains` to `reference`."""
    _check_pixels(patches, "(N, H, W, 3)", patches.ndim == 4)
    painted = np.empty(patches.shape, np.uint8)
    levels, target = patches.reshape(-1, 3), painted.reshape(-1, 3)
    matrix = _repainting(stains, reference).T.astype(np.float32)
    for start in range(0, len(levels), BLOCK_PX):
        block = optical_density(levels[start : start + BLOCK_PX]) @ matrix
        _to_levels(block)
        target[start : start + BLOCK_PX] = block
    return painted


def normalise_each(patches: Pixels, reference: Stains = REFERENCE) -> tuple[Pixels, NDArray[np.bool_]]:
    """Return patches (N, H, W, 3), each repainted from its own stains, and which (N,) were left unchanged."""
    _check_pixels(patches, "(N, H, W, 3)", patches.ndim == 4)
    painted = patches.copy(order="C")
    fell_back = np.zeros(len(patches), dtype=np.bool_)
    for index, patch in enumerate(painted):
        levels = _planes(patch)
        od = optical_density(levels)
        stains = _stains_of(od, _tissue(levels, BETA), ALPHA)
        if stains is None:
            fell_back[index] = True
            continue
        # The channels are apart already, so painting them apart saves computing their ODs again.
        planes = _repainting(stains, reference).astype(np.float32) @ od
        _to_levels(planes)
        for channel, plane in enumerate(planes):
            np.copyto(patch[..., channel], plane.reshape(patch.shape[:2]), casting="unsafe")
    return painted, fell_back


def _repainting(stains: Stains, reference: Stains) -> NDArray[np.float64]:
    """Return the (3, 3) matrix from OD to repainted -OD: unmix, rescale, mix again are all linear."""
    scale = reference.max_concentrations / stains.max_concentrations
    return -(reference.vectors * scale) @ _unmixing(stains.vectors)


def _to_levels(minus_od: NDArray[np.float32]) -> None:
    """Turn -OD into grey levels, in place, such that casting them to uint8 rounds and cannot overflow.

    This is the exact inverse of `optical_density`. torchstain does not take the added one off again and
    truncates, so its pictures are half a level brighter on average.
    """
    np.minimum(minus_od, np.float32(math.log(255.9 / LIGHT)), out=minus_od)  # before exp, which may overflow
    levels = np.exp(minus_od, out=minus_od)
    levels *= np.float32(LIGHT)
    levels -= np.float32(0.5)  # the added one less the half that turns truncating into rounding


def _check_pixels(pixels: Pixels, shape: str, dimensions_fit: bool) -> None:
    """Raise unless the pixels are RGB bytes; `shape` is what the error says they should look like."""
    if not dimensions_fit or pixels.shape[-1] != 3 or pixels.dtype != np.uint8:
        raise UserError(
            f"Stain normalisation: the pixels have shape {pixels.shape} and type {pixels.dtype}. RGB pixels "
            f"of shape {shape} and type uint8 are needed. Convert them first."
        )

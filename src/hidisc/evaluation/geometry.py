"""How embeddings lie to each other: distances, spread, variance between groups, nearest neighbours. Pure functions."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from hidisc.evaluation.units import Codes, Units, group

_SHUFFLES = 200
"""Times that labels or sites are assigned to patients at random, to measure what they explain by chance."""
_BLOCK = 512
"""Rows of a matrix of all pairs that are in memory at once."""
_TIE = 1e-6
"""Cosines that differ by less than this, the rounding of float32, are equal."""


def mean_distance(z: NDArray[np.float32], shared: Codes, apart: Codes) -> float | None:
    """Mean squared distance of all pairs that share a group of `shared` and none of `apart`; None: no such pair.

    z (n, D), groups (n,). It is the alignment of Wang and Isola, ICML 2020, over all pairs instead of some. Patches of
    one patient but of different slides: all pairs within patients, minus the pairs within slides.
    """
    known = shared >= 0
    z64, shared = z[known].astype(np.float64), shared[known]
    pairs, total = _sum_distances(z64, group([shared]))
    excluded_pairs, excluded = _sum_distances(z64, group([shared, apart[known]]))
    return max((total - excluded) / (pairs - excluded_pairs), 0.0) if pairs > excluded_pairs else None


def _sum_distances(z: NDArray[np.float64], units: Units) -> tuple[int, float]:
    """How many pairs (a, b) there are within units, and their |a - b|^2 summed; pairs (a, a) are among them and add 0.

    |a - b|^2 = |a|^2 + |b|^2 - 2 a.b. Over all pairs of a unit of m vectors that is 2 m sum |a|^2 - 2 |sum a|^2, so
    sums over units are enough and no pair is visited.
    """
    counts = units.counts
    squares = np.square(z).sum(axis=1)
    total = 2 * (squares * counts[units.of_row]).sum() - 2 * np.square(units.sums(z)).sum()
    return int((counts**2).sum()), float(total)


def uniformity(z: NDArray[np.float32]) -> float | None:
    """log mean exp(-2 |a - b|^2) over all pairs of z (n, D): 0 if all are equal, about -4 if spread over a sphere.

    Wang and Isola, ICML 2020. None: fewer than two vectors.
    """
    if len(z) < 2:
        return None
    squares = np.square(z).sum(axis=1)
    total = 0.0
    for rows in _blocks(len(z)):
        distance = squares[rows, None] + squares - 2 * (z[rows] @ z.T)
        nearness = np.exp(-2 * distance.clip(0), dtype=np.float64)
        nearness[np.arange(len(nearness)), np.arange(len(z))[rows]] = 0  # a patch with itself is not a pair
        total += float(nearness.sum())
    return float(np.log(total / (len(z) * (len(z) - 1))))


def unit_means(z: NDArray[np.float32], codes: Codes) -> NDArray[np.float32]:
    """(G, D) mean vector of every group, scaled to length 1, of z (n, D)."""
    known = codes >= 0
    sums = group([codes[known]]).sums(z[known].astype(np.float64))
    return (sums / np.maximum(np.linalg.norm(sums, axis=1, keepdims=True), 1e-30)).astype(np.float32)


def variance_share(z: NDArray[np.float32], codes: Codes) -> float | None:
    """Epsilon squared of z (n, D): the share of the variance that lies between groups, 0 on average for random groups.

    It is (SSB - (G - 1) SSW / (n - G)) / SST, summed over dimensions. None: fewer than two groups, as many as patches,
    or no variance.
    """
    known = codes >= 0
    centred, units = _centre(z[known]), group([codes[known]])
    between = float((np.square(units.sums(centred)).sum(axis=1) / units.counts).sum())
    return _epsilon_squared(between, float(np.square(centred).sum()), len(centred), len(units))


def chance_share(z: NDArray[np.float32], codes: Codes, patients: Codes, rng: np.random.Generator) -> float:
    """Mean `variance_share` if the groups are assigned to patients at random; 0 where a patient has several groups.

    The patches of a patient are alike, so with few patients any groups explain some of the variance.
    """
    known = codes >= 0
    centred, groups, patient = _centre(z[known]), group([codes[known]]), group([patients[known]])
    group_of_patient = groups.of_row[patient.first]
    if (group_of_patient[patient.of_row] != groups.of_row).any():
        return 0.0
    sums, counts = patient.sums(centred), patient.counts
    is_in_group = np.eye(len(groups))[group_of_patient]  # (patients, G)
    between = []
    for _ in range(_SHUFFLES):
        shuffled = is_in_group[rng.permutation(len(patient))]
        between.append((np.square(shuffled.T @ sums).sum(axis=1) / (shuffled.T @ counts)).sum())
    total = float(np.square(centred).sum())
    return _epsilon_squared(float(np.mean(between)), total, len(centred), len(groups)) or 0.0


def neighbour_share(cosines: NDArray[np.float32], codes: Codes, apart: Codes) -> tuple[float, float] | None:
    """(share, chance) of patches whose nearest one, of those with another `apart`, is of the same group.

    cosines (n, n). Only patches with a patch of their own group among those count. If several are equally near, each
    counts in part, so that the share of a collapsed encoder is the chance. None: no patch counts.
    """
    known = np.flatnonzero(codes >= 0)
    codes, apart = codes[known], apart[known]
    shares, chances = [], []
    for rows in _blocks(len(known)):
        is_candidate = apart[rows, None] != apart
        is_same = is_candidate & (codes[rows, None] == codes)
        counts = is_same.any(axis=1)
        is_candidate, is_same = is_candidate[counts], is_same[counts]
        nearness = np.where(is_candidate, cosines[np.ix_(known[rows][counts], known)], -np.inf)
        is_nearest = nearness >= nearness.max(axis=1, keepdims=True, initial=-np.inf) - _TIE
        shares.append((is_nearest & is_same).sum(axis=1) / is_nearest.sum(axis=1))
        chances.append(is_same.sum(axis=1) / is_candidate.sum(axis=1))
    if not sum(map(len, shares)):
        return None
    return float(np.concatenate(shares).mean()), float(np.concatenate(chances).mean())


def _epsilon_squared(between: float, total: float, patches: int, groups: int) -> float | None:
    if groups < 2 or patches <= groups or total <= 1e-9 * patches:  # below: the rounding of float32
        return None
    return (between - (groups - 1) * (total - between) / (patches - groups)) / total


def _centre(z: NDArray[np.float32]) -> NDArray[np.float64]:
    z64 = z.astype(np.float64)
    return z64 - z64.mean(axis=0) if len(z64) else z64


def _blocks(rows: int) -> Iterator[slice]:
    for start in range(0, rows, _BLOCK):
        yield slice(start, min(start + _BLOCK, rows))

"""The map of a report: t-SNE of patch embeddings by cosine similarity, the same for the same seed."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from openTSNE import TSNE, initialization
from threadpoolctl import threadpool_limits

from hidisc.ground.seeds import Purpose, make_rng, make_seed

LEAST = 5
"""Points below which there are no neighbourhoods to show."""
FLAT = 1e-6
"""Spread of unit vectors below which all that tells them apart is rounding."""


def map_points(vectors: NDArray[Any], perplexity: float, seed: int) -> NDArray[np.float32]:
    """Places (N, 2) of vectors (N, D); near ones by cosine similarity are near on the map.

    Neighbours are exact. The perplexity is lowered where there are fewer than three times as many other points, and
    fewer than five points stand on a circle. Vectors that are all the same, of a collapsed encoder, are scattered
    at random. What is not finite in a vector counts as 0.
    """
    unit = _normalise(vectors)
    count = len(unit)
    if count < LEAST:
        angle = 2 * np.pi * np.arange(count) / max(count, 1)
        return np.stack([np.cos(angle), np.sin(angle)], axis=1).astype(np.float32)
    if float(unit.std(axis=0).max()) < FLAT:
        return make_rng(seed, Purpose.COLLAPSED_MAP).normal(size=(count, 2)).astype(np.float32)
    # One thread: sums are then added up in one order everywhere, and a last bit is enough to change the whole map. A
    # second one hardly helps, and on a busy machine the two wait for each other: 3,000 points took three times as long.
    with threadpool_limits(1):
        placed = TSNE(
            perplexity=min(perplexity, (count - 1) / 3),
            metric="cosine",
            neighbors="exact",
            initialization=_begin(unit, make_seed(seed, Purpose.MAP_START, bits=32)),
            random_state=make_seed(seed, Purpose.MAP_PLACES, bits=32),
            n_jobs=1,
        ).fit(unit)
    return np.asarray(placed, np.float32)


def _normalise(vectors: NDArray[Any]) -> NDArray[np.float32]:
    """(N, D) of length 1; a vector of zeros has no direction and is given the first one."""
    found = np.nan_to_num(np.asarray(vectors, np.float32), nan=0.0, posinf=0.0, neginf=0.0)
    largest = np.abs(found).max(axis=1, keepdims=True, initial=0.0)
    found = np.divide(found, largest, out=np.zeros_like(found), where=largest > 0)  # squares of large numbers overflow
    found[largest[:, 0] == 0, :1] = 1
    return found / np.linalg.norm(found, axis=1, keepdims=True)


def _begin(unit: NDArray[np.float32], seed: int) -> NDArray[np.float64]:
    """(N, 2) places to begin at: the two main directions, or at random where there are not two."""
    if unit.shape[1] < 2:
        return np.asarray(initialization.random(len(unit), random_state=seed), np.float64)
    return np.asarray(initialization.pca(unit, random_state=seed), np.float64)

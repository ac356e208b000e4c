"""Clusters: patches that the encoder puts near each other, as a few groups without names (k-means)."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hidisc.ground.seeds import Purpose, make_rng

CLUSTERS = 8
"""As many as have colours that differ with any colour vision."""
SAMPLE = 20_000
"""Most patches that the centres are fitted to."""
_STARTS = 4
_BLOCK = 16_384


def find_clusters(vectors: NDArray[Any], seed: int) -> NDArray[np.int32]:
    """(N,) the cluster of each vector (N, D), by the direction of the vectors; 0 is the largest.

    The centres are fitted to a sample; then the vectors are read once, block by block.
    """
    from sklearn.cluster import KMeans  # takes a second to load, and the clusters are mostly kept

    rng = make_rng(seed, Purpose.EXPLORED_CLUSTERS)
    is_many = len(vectors) > SAMPLE
    sample = to_unit(vectors[np.sort(rng.choice(len(vectors), SAMPLE, replace=False))] if is_many else vectors)
    most = min(CLUSTERS, len(np.unique(sample, axis=0)))
    if most < 2:
        return np.zeros(len(vectors), np.int32)
    state = int(rng.integers(2**32))
    centres = KMeans(most, n_init=_STARTS, random_state=state).fit(sample).cluster_centers_  # (k, D)
    lengths = np.square(centres).sum(axis=1)
    codes = np.empty(len(vectors), np.int32)
    for start in range(0, len(vectors), _BLOCK):
        block = slice(start, start + _BLOCK)
        codes[block] = (lengths - 2 * to_unit(vectors[block]) @ centres.T).argmin(axis=1)
    order = np.argsort(-np.bincount(codes, minlength=most), kind="stable")
    return np.argsort(order).astype(np.int32)[codes]


def to_unit(rows: NDArray[Any]) -> NDArray[np.float32]:
    """(n, D) of length 1; what is not finite counts as 0."""
    rows = np.nan_to_num(np.asarray(rows, np.float32), nan=0.0, posinf=0.0, neginf=0.0)
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), np.float32(1e-30))

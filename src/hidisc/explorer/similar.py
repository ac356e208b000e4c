"""Search for similar patches: the exact cosine similarity of some patches with every patch of a cohort.

A single query needs no copy of the vectors: each block of the memory map is multiplied where it lies, and the product
is divided by the lengths of the rows, which are computed once. So this takes the page cache of the kernel and 4 bytes
per patch. `evaluation/neighbours.py` answers thousands of queries at once, and copies all vectors at unit length first.
"""

from collections.abc import Iterator
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

_BLOCK_BYTES = 2**27


class SimilaritySearch:
    """The vectors (N, D) that are searched, which may be a memory map."""

    def __init__(self, vectors: NDArray[Any]) -> None:
        self._vectors = vectors
        self._block = max(1, _BLOCK_BYTES // (4 * vectors.shape[1]))

    @cached_property
    def _lengths(self) -> NDArray[np.float32]:
        """The length (N,) of each vector; 1 for a vector of zeros."""
        lengths = np.concatenate([np.sqrt(np.einsum("nd,nd->n", rows, rows)) for rows in self._blocks()])
        return np.where(lengths > 0, lengths, 1).astype(np.float32)

    def _blocks(self) -> Iterator[NDArray[np.float32]]:
        """The vectors, block by block; vectors of float32 are not copied."""
        for start in range(0, len(self._vectors), self._block):
            yield np.asarray(self._vectors[start : start + self._block], np.float32)

    def compare(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """The similarity (N,) of every vector with the mean direction of some rows (n,)."""
        unit = np.asarray(self._vectors[rows], np.float32) / self._lengths[rows, None]
        mean = unit.mean(axis=0)
        mean /= np.linalg.norm(mean) or 1.0
        product = np.concatenate([block @ mean for block in self._blocks()])
        return np.nan_to_num(product / self._lengths, nan=-1.0)

    def nearest(
        self, rows: NDArray[np.int64], k: int, is_left_out: NDArray[np.bool_]
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """At most k vectors most similar to some rows, the most similar first, and their similarities.

        The rows themselves, and the vectors that are left out (N,), are never returned. Of equal similarities the
        first row wins.
        """
        similarities = self.compare(rows)
        similarities[rows] = -np.inf
        similarities[is_left_out] = -np.inf
        k = min(k, int((similarities > -np.inf).sum()))
        if k == 0:
            return np.zeros(0, np.int64), np.zeros(0, np.float32)
        least = np.partition(similarities, len(similarities) - k)[len(similarities) - k]
        nearest = np.flatnonzero(similarities >= least)
        nearest = nearest[np.argsort(-similarities[nearest], kind="stable")][:k]
        return nearest, similarities[nearest]

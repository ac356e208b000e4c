"""Exact nearest neighbours by cosine similarity, block by block under a memory budget; the bank may exceed memory.

faiss on CPUs: measured quicker than torch's product and top-k (`bench/knn.py`). torch on GPUs and for float64.
"""

from collections.abc import Callable, Iterator
from typing import Any, Protocol

import faiss
import numpy as np
import torch
from numpy.typing import NDArray

Floats = NDArray[np.floating[Any]]
Found = tuple[Floats, NDArray[np.int64]]
"""Similarities (n, k), largest first, and places in the bank (n, k)."""
_COLUMNS = 8192
"""Bank rows a matrix product of torch's search takes at once."""
_BLOCK = 8192
"""Most queries at once while the bank is in memory: more are no quicker, and progress is seen."""


class Vectors(Protocol):
    """Rows (N, D) that need not be in memory: an array, a memory map, or a side of a question."""

    def __len__(self) -> int: ...
    def __getitem__(self, rows: slice, /) -> Floats: ...


def find_neighbours(
    queries: Vectors, bank: Vectors, k: int, memory_gb: float = 2.0, device: str = "cpu"
) -> Iterator[tuple[slice, Floats, NDArray[np.int64]]]:
    """Blocks of queries in order: (which, similarities (n, k), places in the bank (n, k)), nearest first.

    k is cut to the size of the bank. Half of the budget holds unit rows of the bank, in pieces if they do not fit (each
    block of queries then reads the bank again); the other half a block of queries with what was found for it.
    """
    k = min(k, len(bank))
    budget = int(memory_gb * 1e9)
    first = bank[:1]
    row_bytes = first.shape[1] * first.dtype.itemsize
    piece = max(1, budget // 2 // (2 * row_bytes))  # a row as it was read, and its unit vector
    # a query's own row twice; what was found in this piece, in those before, and both while they are merged
    block = max(1, min(budget // 2 // (2 * row_bytes + 4 * k * (row_bytes // first.shape[1] + 8)), 65536))
    search = _search_faiss if device == "cpu" and first.dtype == np.float32 else _search_torch(device)
    whole = to_unit(bank[:]) if len(bank) <= piece else None
    if whole is not None:
        block = min(block, _BLOCK)
    for start in range(0, len(queries), block):
        which = slice(start, min(start + block, len(queries)))
        unit = to_unit(queries[which])
        if whole is not None:
            yield which, *search(unit, whole, k)
        else:
            yield which, *_search_pieces(unit, bank, k, piece, search)


def to_unit(rows: Floats) -> Floats:
    """Rows (N, D) divided by their length; rows of zeros stay."""
    length = np.sqrt(np.einsum("nd,nd->n", rows, rows, dtype=rows.dtype))
    return np.ascontiguousarray(rows / np.maximum(length, np.finfo(rows.dtype).tiny)[:, None])


def _search_pieces(
    unit: Floats, bank: Vectors, k: int, piece: int, search: Callable[[Floats, Floats, int], Found]
) -> Found:
    """Search a bank piece by piece, keeping the k best so far."""
    best: Found | None = None
    for start in range(0, len(bank), piece):
        rows = to_unit(bank[start : start + piece])
        similarities, places = search(unit, rows, min(k, len(rows)))
        places += start
        if best is not None:
            similarities = np.concatenate([best[0], similarities], axis=1)
            places = np.concatenate([best[1], places], axis=1)
            order = np.argsort(-similarities, axis=1, kind="stable")[:, :k]
            similarities = np.take_along_axis(similarities, order, axis=1)
            places = np.take_along_axis(places, order, axis=1)
        best = similarities, places
    assert best is not None
    return best


def _search_faiss(queries: Floats, bank: Floats, k: int) -> Found:
    similarities, places = faiss.knn(queries, bank, k, metric=faiss.METRIC_INNER_PRODUCT)
    return similarities, places


def _search_torch(device: str) -> Callable[[Floats, Floats, int], Found]:
    def search(queries: Floats, bank: Floats, k: int) -> Found:
        rows = torch.from_numpy(queries).to(device)
        similarities = torch.empty(len(rows), 0, dtype=rows.dtype, device=device)
        places = torch.empty(len(rows), 0, dtype=torch.int64, device=device)
        for start in range(0, len(bank), _COLUMNS):
            product = rows @ torch.from_numpy(bank[start : start + _COLUMNS]).to(device).T
            near = product.topk(min(k, product.shape[1]), dim=1)
            similarities = torch.cat([similarities, near.values], dim=1)
            places = torch.cat([places, near.indices + start], dim=1)
            if similarities.shape[1] > k:
                best = similarities.topk(k, dim=1)
                similarities, places = best.values, places.gather(1, best.indices)
        return similarities.cpu().numpy(), places.cpu().numpy()

    return search

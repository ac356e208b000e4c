"""Exact nearest neighbours by cosine similarity, block by block under a memory budget; the bank may exceed memory.

The matrix of similarities is computed in tiles small enough for the processor's cache. Of a tile only entries above a
query's k-th best so far are ranked, which is as fast as the bare product in larger blocks (`bench/knn.py`).
"""

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Floats = NDArray[np.floating[Any]]
Best = tuple[Tensor, Tensor]
"""Similarities (n, w) of n queries, and the rows of the bank (n, w) that have them."""
_ROWS, _COLUMNS, _GROUP = 1024, 4096, 32
"""Queries and bank rows of a tile, and columns of a tile whose maximum is compared first."""
_BLOCK = 8192
"""Most queries at once while the bank is in memory: more are no faster, and progress is shown per block."""


class Vectors(Protocol):
    """Rows (N, D) that need not be in memory: an array, a memory map, or the patches of a task."""

    def __len__(self) -> int: ...
    def __getitem__(self, rows: slice, /) -> Floats: ...


def find_neighbours(
    queries: Vectors, bank: Vectors, k: int, memory_gb: float = 2.0, device: str = "cpu"
) -> Iterator[tuple[slice, Floats, NDArray[np.int64]]]:
    """Blocks of queries in order: (which queries, similarities (n, k), rows of the bank (n, k)), nearest first.

    k is at most the size of the bank. Half of the budget holds unit rows of the bank, in pieces if they do not fit
    (each block of queries then reads the bank again); the other half holds a block of queries and their neighbours.
    """
    k = min(k, len(bank))
    budget = int(memory_gb * 1e9)
    first = bank[:1]
    row_bytes = first.shape[1] * first.dtype.itemsize
    piece = max(1, budget // 2 // (2 * row_bytes))  # a row as it was read, and its unit vector
    # a query's row twice, and its neighbours in a tensor and in an array, twice while they are merged
    block = max(1, min(budget // 2 // (2 * row_bytes + 4 * k * (first.dtype.itemsize + 8)), 65536))
    whole = to_unit(bank[:], device) if len(bank) <= piece else None
    if whole is not None:
        block = min(block, _BLOCK)
    for start in range(0, len(queries), block):
        which = slice(start, min(start + block, len(queries)))
        unit = to_unit(queries[which], device)
        best = unit.new_empty(len(unit), 0), torch.empty(len(unit), 0, dtype=torch.int64, device=unit.device)
        for offset in range(0, len(bank), piece):
            rows = whole if whole is not None else to_unit(bank[offset : offset + piece], device)
            best = _search(unit, rows, k, best, offset)
        yield which, best[0].cpu().numpy(), best[1].cpu().numpy()


def to_unit(rows: Floats, device: str = "cpu") -> Tensor:
    """Rows (N, D) divided by their length, on a device; rows of zeros stay."""
    unit = torch.from_numpy(np.array(rows)).to(device)  # a copy, for the rows may be a read-only map
    return unit.div_(unit.norm(dim=1, keepdim=True).clamp_(min=torch.finfo(unit.dtype).tiny))


def _search(unit: Tensor, bank: Tensor, k: int, best: Best, offset: int) -> Best:
    """Update the best k of queries `unit` (n, D) by the rows of a bank (M, D), which are numbered from `offset`."""
    tiles = [slice(start, start + _ROWS) for start in range(0, len(unit), _ROWS)]
    updated = [_search_rows(unit[rows], bank, k, (best[0][rows], best[1][rows]), offset) for rows in tiles]
    return torch.cat([similarities for similarities, _ in updated]), torch.cat([rows for _, rows in updated])


def _search_rows(unit: Tensor, bank: Tensor, k: int, best: Best, offset: int) -> Best:
    """The same for as many queries as a tile has."""
    tile = unit.new_empty(len(unit), _COLUMNS)
    waiting: list[Best] = []
    for start in range(0, len(bank), _COLUMNS):
        rows = bank[start : start + _COLUMNS]
        product = torch.mm(unit, rows.T, out=tile) if len(rows) == _COLUMNS else unit @ rows.T
        is_full = best[0].shape[1] == k
        similarities, columns = (
            _find_larger(product, best[0][:, -1:]) if is_full else product.topk(min(k, len(rows)), dim=1)
        )
        waiting.append((similarities, columns + (start + offset)))
        # ranking costs more than the product, so it waits until there is as much to rank as there is to keep
        if not is_full or sum(candidates.shape[1] for candidates, _ in waiting) >= k:
            best = _rank([best, *waiting], k)
            waiting = []
    return _rank([best, *waiting], k) if waiting else best


def _rank(candidates: Sequence[Best], k: int) -> Best:
    """The k most similar of several sets of candidates, the most similar first."""
    similarities, rows = (torch.cat(parts, dim=1) for parts in zip(*candidates, strict=True))
    kept = similarities.topk(min(k, similarities.shape[1]), dim=1)
    return kept.values, rows.gather(1, kept.indices)


def _find_larger(tile: Tensor, least: Tensor) -> Best:
    """The entries of a tile (n, m) larger than their query's `least` (n, 1), moved to the left, and their columns.

    Both are (n, w) with w the most entries of a query; where a query has fewer, the rest is -inf. With least 0.5:

        tile   0.1 0.7 0.2 0.6     entries   0.7 0.6     columns   1 3
               0.9 0.3 0.4 0.0               0.9 -inf              0 0
    """
    if tile.shape[1] % _GROUP:
        query, column = (tile > least).nonzero(as_tuple=True)
        values = tile[query, column]
    else:  # few groups of columns have such an entry: one comparison of their maxima skips the others
        groups = tile.view(len(tile), -1, _GROUP)
        query, group = (groups.amax(dim=2) > least).nonzero(as_tuple=True)
        chosen = groups[query, group]
        hit, within = (chosen > least[query]).nonzero(as_tuple=True)
        query, column, values = query[hit], group[hit] * _GROUP + within, chosen[hit, within]
    # entries are ordered by query: the position of one in its row is its number less that of the query's first
    counts = torch.bincount(query, minlength=len(tile))
    position = torch.arange(len(query), device=query.device) - (counts.cumsum(0) - counts)[query]
    width = int(counts.max()) if len(query) else 0
    entries = tile.new_full((len(tile), width), -torch.inf)
    columns = torch.zeros(len(tile), width, dtype=torch.int64, device=query.device)
    entries[query, position], columns[query, position] = values, column
    return entries, columns

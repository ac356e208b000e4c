"""Exact nearest neighbours by cosine similarity, block by block under a memory budget; the bank may exceed memory.

The matrix of similarities is computed in tiles small enough for the processor's cache. Of a tile only entries above a
query's k-th best so far are ranked. Where the processor multiplies bfloat16 faster than float32, candidates are found
among rounded rows first (`rounding.py`).
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hidisc.evaluation.rounding import RoundedBank, has_fast_bfloat16
from hidisc.evaluation.tiles import Best, rank, search_tiles

Floats = NDArray[np.floating[Any]]
_ROWS = 512
"""Queries that a thread searches at once."""
_TILE_BYTES = 16e6
"""About what a thread needs for a tile of products and its candidates, in float32."""
_BLOCK = 8192
"""Most queries at once while the bank is in memory: more are no faster, and progress is shown per block."""
_FEWEST_ROUNDED = 16384
"""Rows of a bank from which rounding is faster: the candidates of a smaller one are too large a part of it."""


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
    piece = max(1, budget // 2 // (2 * row_bytes))  # a row as it was read, or rounded, and its unit vector
    # a query's row twice, and its neighbours in a tensor and in an array, twice while they are merged
    block = max(1, min(budget // 2 // (2 * row_bytes + 4 * k * (first.dtype.itemsize + 8)), 65536))
    # once the bank is read, its half has an eighth of the budget to spare
    threads = max(1, min(torch.get_num_threads(), int(budget / 8 / _TILE_BYTES))) if device == "cpu" else 1
    whole = _Searcher(to_unit(bank[:], device), k, threads) if len(bank) <= piece else None
    if whole is not None:
        block = min(block, _BLOCK)
    for start in range(0, len(queries), block):
        which = slice(start, min(start + block, len(queries)))
        unit = to_unit(queries[which], device)
        best = unit.new_empty(len(unit), 0), torch.empty(len(unit), 0, dtype=torch.int64, device=unit.device)
        for offset in range(0, len(bank), piece):
            # without a name, so that no piece is in memory while the next one is read
            best = (whole or _Searcher(to_unit(bank[offset : offset + piece], device), k, threads)).search(
                unit, best, offset
            )
        yield which, best[0].cpu().numpy(), best[1].cpu().numpy()


def choose_device(device: str) -> str:
    """The device of the search; MPS has no float64 and is no faster here."""
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    return "cpu" if device == "mps" else device


def to_unit(rows: Floats, device: str = "cpu") -> Tensor:
    """Rows (N, D) divided by their length, on a device; rows of zeros stay."""
    unit = torch.from_numpy(np.array(rows)).to(device)  # a copy, for the rows may be a read-only map
    return unit.div_(unit.norm(dim=1, keepdim=True).clamp_(min=torch.finfo(unit.dtype).tiny))


class _Searcher:
    """The k best of a bank's unit rows (M, D), by way of rounded rows as long as these spare work.

    Each thread searches for queries of its own. Threads that share a product wait for each other after each operation,
    which on a busy machine takes longer than the search.
    """

    def __init__(self, bank: Tensor, k: int, threads: int) -> None:
        self._bank, self._k, self._threads = bank, k, threads
        is_float32 = bank.device.type == "cpu" and bank.dtype == torch.float32
        is_large = len(bank) >= max(_FEWEST_ROUNDED, 32 * k)
        self._rounded = RoundedBank(bank) if is_float32 and is_large and has_fast_bfloat16() else None

    def search(self, unit: Tensor, best: Best, offset: int) -> Best:
        """Update the best k of queries `unit` (n, D); the rows of this bank are numbered from `offset`."""

        width = min(self._k, best[0].shape[1] + len(self._bank))
        # made here: what a thread makes and leaves behind keeps all its memory from being given back
        updated = tuple(part.new_empty(len(unit), width) for part in best)

        def update(start: int) -> None:
            rows = slice(start, start + _ROWS)
            found = self._search_rows(unit[rows], (best[0][rows], best[1][rows]), offset)
            for part, new in zip(updated, found, strict=True):
                part[rows] = new

        starts = range(0, len(unit), _ROWS)
        if self._threads > 1 and len(starts) > 1:
            with ThreadPoolExecutor(self._threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
                list(pool.map(update, starts))
        else:
            for start in starts:
                update(start)
        return updated[0], updated[1]

    def _search_rows(self, unit: Tensor, best: Best, offset: int) -> Best:
        """The same for the queries of one thread."""
        rounded = self._rounded
        if rounded is None:
            return search_tiles(unit, self._bank, self._k, best, offset)
        found, is_proven = rounded.search(unit, self._k)
        if not is_proven.all():
            missed = (~is_proven).nonzero()[:, 0]
            for part, again in zip(found, search_tiles(unit[missed], self._bank, self._k), strict=True):
                part[missed] = again
            if 4 * len(missed) > len(unit):  # rows so alike that rounding confuses them: it would only cost time
                self._rounded = None
        return rank([best, (found[0], found[1] + offset)], self._k)

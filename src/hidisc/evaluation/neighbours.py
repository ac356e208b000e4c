"""Exact nearest neighbours by cosine similarity, block by block under a memory budget; the bank may exceed memory.

The matrix of similarities is computed in tiles small enough for the processor's cache. Of a tile only entries above a
query's k-th best so far are ranked. Many processors multiply bfloat16 twice as fast as float32, or faster: there,
candidates are found among rounded rows first and compared in float32. How far rounding can move a similarity is known,
so it can be proven, query by query, that no other row is among the k best.

The search uses all cores of this process, everything else in an evaluation one: numpy, scikit-learn and torch each
bring a pool of threads, and in the short steps of a solver these wait for each other most of the time.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits
from torch import Tensor

from hidisc.ground.machine import count_cores
from hidisc.ground.tensors import refuse_missing_device


@contextmanager
def use_threads(most: int | None = None) -> Iterator[None]:
    """In the block, torch uses at most `most` threads (None: the cores of this process), BLAS of other libraries one.

    A smaller number that the user sets in OMP_NUM_THREADS stays. It decorates functions as well.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(min(before, most or count_cores()))
    try:
        with threadpool_limits(1, user_api="blas"):
            yield
    finally:
        torch.set_num_threads(before)


Best = tuple[Tensor, Tensor]
"""Similarities (n, w) of n queries, and the rows of the bank (n, w) that have them."""
_COLUMNS = 4096
"""Rows of the bank in a tile."""


def search_tiles(unit: Tensor, bank: Tensor, k: int, best: Best | None = None, offset: int = 0) -> Best:
    """The best k of queries (n, D) among a bank (M, D) and the `best` so far; its rows are numbered from `offset`."""
    if best is None:
        best = unit.new_empty(len(unit), 0), torch.empty(len(unit), 0, dtype=torch.int64, device=unit.device)
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
            best = rank([best, *waiting], k)
            waiting = []
    return rank([best, *waiting], k) if waiting else best


def rank(candidates: Sequence[Best], k: int) -> Best:
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
    is_larger = (tile > least).view(-1)
    # numpy finds the true entries several times as fast as torch does
    on_cpu = tile.device.type == "cpu"
    entry = torch.from_numpy(np.flatnonzero(is_larger.numpy())) if on_cpu else is_larger.nonzero()[:, 0]
    query = entry // tile.shape[1]
    # entries are ordered by query: the position of one in its row is its number less that of the query's first
    counts = torch.bincount(query, minlength=len(tile))
    position = torch.arange(len(query), device=query.device) - (counts.cumsum(0) - counts)[query]
    width = int(counts.max()) if len(query) else 0
    entries = tile.new_full((len(tile), width), -torch.inf)
    columns = torch.zeros(len(tile), width, dtype=torch.int64, device=query.device)
    entries[query, position], columns[query, position] = tile.view(-1)[entry], entry - query * tile.shape[1]
    return entries, columns


_HALF_ULP = 2.0**-8
"""Largest change of a number by rounding it to bfloat16, as a share of the number."""
_ULP_32 = 2.0**-22
"""More than two additions of a float32 product change a similarity: one in the bfloat16 search, one in the exact."""


def has_fast_bfloat16() -> bool:
    """Whether this processor has instructions for products of bfloat16."""
    capabilities: dict[str, object] = getattr(torch.cpu, "get_capabilities", dict)()  # older torch lacks it
    return bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"))


class RoundedBank:
    """Unit rows b (M, D) of a bank in float32, and b - m in bfloat16, with m their mean.

    For a query q, q.(b - m) = q.b - q.m puts rows in the same order as q.b. It is smaller, so rounding changes it less.
    """

    @use_threads(1)  # many short operations
    def __init__(self, bank: Tensor) -> None:
        self._bank, self._mean = bank, bank.mean(dim=0)
        self._rounded = torch.empty_like(bank, dtype=torch.bfloat16)
        lengths, errors = [], []
        for start in range(0, len(bank), 512):
            centred = bank[start : start + 512] - self._mean
            rounded = self._rounded[start : start + 512].copy_(centred)
            lengths.append(centred.norm(dim=1).max())
            errors.append((centred - rounded.float()).norm(dim=1).max())
        self._length, self._error = torch.stack(lengths).max(), torch.stack(errors).max()

    def search(self, unit: Tensor, k: int) -> tuple[Best, Tensor]:
        """The k best of queries `unit` (n, D), and for which of them (n,) this is proven; M is larger than 2 k."""
        queries = unit.bfloat16()
        approximate, rows = search_tiles(queries, self._rounded, k + k // 2 + 32)
        best = rank([(self._compare(unit, rows), rows)], k)
        # With d and e what rounding changes in q and in b - m, |(q + d).(b - m + e) - q.(b - m)| is at most
        # |d| |b - m| + |q + d| |e|. The product is rounded again, to at most the least of the candidates.
        least = approximate[:, -1].float()
        moved = (unit - queries.float()).norm(dim=1) * self._length + 1.01 * self._error + unit.shape[1] * _ULP_32
        others = unit @ self._mean + least + least.abs() * _HALF_ULP + moved
        return best, others < best[0][:, -1]

    def _compare(self, unit: Tensor, rows: Tensor) -> Tensor:
        """(n, w) similarities of queries (n, D) and some rows (n, w) of the bank, in float32.

        The rows of one query after the other are copied to one place: memory asked for n times may not be given back.
        """
        exact = unit.new_empty(rows.shape)
        candidates = unit.new_empty(rows.shape[1], unit.shape[1])
        for query, chosen, products in zip(unit, rows, exact, strict=True):
            torch.index_select(self._bank, 0, chosen, out=candidates)
            torch.mv(candidates, query, out=products)
        return exact


Floats = NDArray[np.floating[Any]]
_ROWS = 512
"""Queries that a thread searches at once."""
_TILE_BYTES = 16e6
"""About what a thread needs for a tile of products and its candidates, in float32."""
_BLOCK = 8192
"""Most queries at once while the bank is in memory: more are no faster, and progress is shown per block."""
_FEWEST_ROUNDED = 16384
"""Rows of a bank from which rounding is faster: the candidates of a smaller one are too large a part of it."""


class VectorRows(Protocol):
    """Rows (N, D) that need not be in memory: an array, a memory map, or the patches of a task."""

    def __len__(self) -> int: ...
    def __getitem__(self, rows: slice, /) -> Floats: ...


def find_neighbours(
    queries: VectorRows, bank: VectorRows, k: int, memory_gb: float = 2.0, device: str = "cpu"
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
    refuse_missing_device(device)
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

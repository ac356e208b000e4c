"""Exact nearest neighbours by cosine similarity, block by block under a memory budget; the bank may exceed memory.

Tiles of the matrix product small enough for the processor's cache, of which only what exceeds a query's k-th best so
far is looked at again: as quick as the bare product in larger blocks, and quicker than faiss (`bench/knn.py`).
"""

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Floats = NDArray[np.floating[Any]]
_ROWS, _COLUMNS, _GROUP = 1024, 4096, 32
"""Queries and bank rows of a tile of the product, and similarities whose maximum is looked at before themselves."""
_BLOCK = 8192
"""Most queries at once while the bank is in memory: more are no quicker, and progress is seen."""


class Vectors(Protocol):
    """Rows (N, D) that need not be in memory: an array, a memory map, or the patches of a task."""

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
    # a query's own row twice, and what was found for it in a tensor and in an array, twice while they are merged
    block = max(1, min(budget // 2 // (2 * row_bytes + 4 * k * (first.dtype.itemsize + 8)), 65536))
    whole = to_unit(bank[:], device) if len(bank) <= piece else None
    if whole is not None:
        block = min(block, _BLOCK)
    for start in range(0, len(queries), block):
        which = slice(start, min(start + block, len(queries)))
        unit = to_unit(queries[which], device)
        near, places = _search(unit, whole, k) if whole is not None else _search_pieces(unit, bank, k, piece, device)
        yield which, near.cpu().numpy(), places.cpu().numpy()


def to_unit(rows: Floats, device: str = "cpu") -> Tensor:
    """Rows (N, D) divided by their length, on a device; rows of zeros stay."""
    unit = torch.from_numpy(np.array(rows)).to(device)  # a copy of our own, for the rows may be a read-only map
    return unit.div_(unit.norm(dim=1, keepdim=True).clamp_(min=torch.finfo(unit.dtype).tiny))


def _search_pieces(unit: Tensor, bank: Vectors, k: int, piece: int, device: str) -> tuple[Tensor, Tensor]:
    """Search a bank piece by piece; what was found so far is what the next piece has to beat."""
    near = unit.new_empty(len(unit), 0)
    places = torch.empty(len(unit), 0, dtype=torch.int64, device=unit.device)
    for start in range(0, len(bank), piece):
        near, places = _search(unit, to_unit(bank[start : start + piece], device), k, near, places, start)
    return near, places


def _search(
    unit: Tensor, bank: Tensor, k: int, near: Tensor | None = None, places: Tensor | None = None, offset: int = 0
) -> tuple[Tensor, Tensor]:
    """The k most similar rows of a bank (M, D), numbered from `offset`, and of those found before (n, k'), of queries.

    unit (n, D). Similarities (n, k), largest first, and places (n, k).
    """
    found = []
    for start in range(0, len(unit), _ROWS):
        rows = slice(start, start + _ROWS)
        best = None if near is None or places is None else (near[rows], places[rows])
        found.append(_search_rows(unit[rows], bank, k, best, offset))
    return torch.cat([values for values, _ in found]), torch.cat([numbers for _, numbers in found])


def _search_rows(
    unit: Tensor, bank: Tensor, k: int, best: tuple[Tensor, Tensor] | None, offset: int
) -> tuple[Tensor, Tensor]:
    """The same for as many queries as a tile has."""
    near = unit.new_empty(len(unit), 0) if best is None else best[0]
    places = torch.empty(len(unit), 0, dtype=torch.int64, device=unit.device) if best is None else best[1]
    tile = unit.new_empty(len(unit), _COLUMNS)
    waiting: list[tuple[Tensor, Tensor]] = []
    for start in range(0, len(bank), _COLUMNS):
        rows = bank[start : start + _COLUMNS]
        product = torch.mm(unit, rows.T, out=tile) if len(rows) == _COLUMNS else unit @ rows.T
        if near.shape[1] < k:
            new = product.topk(min(k, len(rows)), dim=1)
            values, numbers = new.values, new.indices
        else:
            values, numbers = _exceeding(product, near[:, -1:])
        waiting.append((values, numbers + (start + offset)))
        # ranking costs more than the product does, so it waits until there is as much to rank as there is to keep
        if near.shape[1] < k or sum(values.shape[1] for values, _ in waiting) >= k:
            near, places = _rank([(near, places), *waiting], k)
            waiting = []
    return _rank([(near, places), *waiting], k) if waiting else (near, places)


def _rank(found: Sequence[tuple[Tensor, Tensor]], k: int) -> tuple[Tensor, Tensor]:
    """The k largest of similarities (n, w) found in several places, and these."""
    near = torch.cat([values for values, _ in found], dim=1)
    places = torch.cat([numbers for _, numbers in found], dim=1)
    kept = near.topk(min(k, near.shape[1]), dim=1)
    return kept.values, places.gather(1, kept.indices)


def _exceeding(product: Tensor, least: Tensor) -> tuple[Tensor, Tensor]:
    """Numbers of a tile (n, m) above a query's least (n, 1), and their columns: (n, w), -inf where there are fewer."""
    count = len(product)
    if product.shape[1] % _GROUP:
        row, column = (product > least).nonzero(as_tuple=True)
        values = product[row, column]
    else:  # most groups hold nothing: one look at their maxima passes them over
        groups = product.view(count, -1, _GROUP)
        row, group = (groups.amax(dim=2) > least).nonzero(as_tuple=True)
        inside = groups[row, group]
        hit, within = (inside > least[row]).nonzero(as_tuple=True)
        row, column, values = row[hit], group[hit] * _GROUP + within, inside[hit, within]
    each = torch.bincount(row, minlength=count)
    width = int(each.max()) if len(row) else 0
    place = torch.arange(len(row), device=row.device) - (each.cumsum(0) - each)[row]
    found = product.new_full((count, width), -torch.inf)
    columns = torch.zeros(count, width, dtype=torch.int64, device=row.device)
    found[row, place], columns[row, place] = values, column
    return found, columns

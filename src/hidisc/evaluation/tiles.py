"""The k largest products of queries and the rows of a bank, tile by tile of the matrix of all products."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

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
    entry = _find_true((tile > least).view(-1))
    query = entry // tile.shape[1]
    # entries are ordered by query: the position of one in its row is its number less that of the query's first
    counts = torch.bincount(query, minlength=len(tile))
    position = torch.arange(len(query), device=query.device) - (counts.cumsum(0) - counts)[query]
    width = int(counts.max()) if len(query) else 0
    entries = tile.new_full((len(tile), width), -torch.inf)
    columns = torch.zeros(len(tile), width, dtype=torch.int64, device=query.device)
    entries[query, position], columns[query, position] = tile.view(-1)[entry], entry - query * tile.shape[1]
    return entries, columns


def _find_true(mask: Tensor) -> Tensor:
    """The indices at which a mask (n,) is true; numpy finds them several times as fast as torch does."""
    return torch.from_numpy(np.flatnonzero(mask.numpy())) if mask.device.type == "cpu" else mask.nonzero()[:, 0]

"""Exact neighbours by way of rounded numbers: many processors multiply bfloat16 twice as fast as float32, or faster.

The best rows of a rounded bank are candidates, which are compared in float32. How far rounding can move a similarity is
known, so it can be proven, query by query, that no other row is among the k best.
"""

import torch
from torch import Tensor

from hidisc.evaluation.threads import use_threads
from hidisc.evaluation.tiles import Best, rank, search_tiles

_HALF_ULP = 2.0**-8
"""Most that rounding to bfloat16 moves a number, in parts of it."""
_ULP_32 = 2.0**-22
"""Most, and more, that one addition of a float32 product moves a similarity, twice: in bfloat16 and in float32."""


def has_fast_bfloat16() -> bool:
    """Whether this processor has instructions for products of bfloat16."""
    capabilities: dict[str, object] = getattr(torch.cpu, "get_capabilities", dict)()  # older torch lacks it
    return bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"))


class RoundedBank:
    """Unit rows b (M, D) of a bank in float32, and b - m in bfloat16, with m their mean.

    For a query q, q.(b - m) = q.b - q.m has the order of q.b; it is smaller, so rounding moves it less.
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

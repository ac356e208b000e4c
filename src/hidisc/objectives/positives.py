"""Positives by ancestry (Eq. 3), in time and memory linear in the rows; the rows of all ranks on every rank."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import Function

from hidisc.ground.errors import UserError
from hidisc.sampling.transfer import constant


class _Gather(Function):
    """All ranks' rows, in the order of ranks; a row's gradient is the sum of what every rank made of it."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor) -> Tensor:
        ctx.count = len(rows)
        parts = [torch.empty_like(rows) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, rows.contiguous())
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        grad = grad.clone(memory_format=torch.contiguous_format)  # autograd may hand the same tensor to others
        dist.all_reduce(grad)
        first = dist.get_rank() * ctx.count
        return grad[first : first + ctx.count]


def gather(rows: Tensor) -> tuple[Tensor, int]:
    """Rows (N, ...) of all ranks, each with as many, and the place of our first one; just ours when we are alone."""
    if not (dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1):
        return rows, 0
    return _Gather.apply(rows), dist.get_rank() * len(rows)


@dataclass(frozen=True)
class Groups:
    """Rows (M,) grouped by equal id."""

    of: Tensor
    """(M,) the group of each row."""
    sizes: Tensor
    """(M,) how many rows each group has."""
    inner: "Groups | None" = None
    """Groups within these, whose rows are no positives of each other; None: a row alone is none of itself."""

    @property
    def counts(self) -> Tensor:
        """(M,) positives of each row."""
        own = self.inner.sizes[self.inner.of] if self.inner else 1
        return self.sizes[self.of] - own

    @property
    def anchors(self) -> Tensor:
        """How many rows have a positive, at least 1."""
        return (self.counts > 0).sum().clamp(min=1)


def group(ids: Tensor, inner: Tensor | None = None) -> Groups:
    """Rows with equal ids (M,) in one group, numbered in the order of the ids; `inner` (M,) are ids within these.

    There is room for M groups and those behind the last are empty: how many there are, only the device knows, and to
    ask it (as `torch.unique` does) is to wait for it.
    """
    ordered, order = ids.sort()
    number = (ordered.diff(prepend=ordered[:1]) != 0).cumsum(0)
    of = torch.empty_like(order).scatter_(0, order, number)
    sizes = torch.zeros_like(of).scatter_add_(0, of, torch.ones_like(of))
    return Groups(of, sizes, None if inner is None else group(inner))


def sum_groups(values: Tensor, groups: Groups) -> Tensor:
    """(M, D) sums of the rows (M, D) of each group."""
    return values.new_zeros(len(groups.sizes), values.shape[1]).index_add(0, groups.of, values)


def mean_positive(queries: Tensor, keys: Tensor, groups: Groups, rows: int | Tensor = 0) -> tuple[Tensor, Tensor]:
    """(N,) mean of q_i . k_p over the positives p of row i, and (N,) whether there are any.

    Row i of `queries` (N, D) is row `rows + i` of `keys` (M, D), or `rows[i]`, which is no positive of itself.
    """
    mine = rows if isinstance(rows, Tensor) else slice(rows, rows + len(queries))
    count = groups.counts[mine]
    # index_select, because the gradient of plain indexing adds up in any order on several threads
    own = sum_groups(keys, groups.inner).index_select(0, groups.inner.of[mine]) if groups.inner else _take(keys, mine)
    total = (queries * (sum_groups(keys, groups).index_select(0, groups.of[mine]) - own)).sum(dim=1)
    return total / count.clamp(min=1), count > 0


def _take(keys: Tensor, rows: slice | Tensor) -> Tensor:
    return keys.index_select(0, rows) if isinstance(rows, Tensor) else keys[rows]


def attract(
    queries: Tensor,
    targets: Tensor,
    ancestry: Tensor,
    weights: Sequence[float],
    across: Sequence[int | None] | None = None,
    rows: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Weighted sum over levels, and (L,) each level's value, of minus the mean similarity with an anchor's positives.

    `queries` and `targets` are vectors (N, D); row i of both is the same image, or with `rows` (Q,) row i of the
    queries (Q, D) is row `rows[i]` of the targets. `across` is as in `hidisc_loss`.
    """
    levels = []
    for level, weight in enumerate(weights):
        if weight == 0:
            levels.append(queries.new_zeros(()))
            continue
        groups = group_level(ancestry, level, across[level] if across else None)
        similarity, has_any = mean_positive(queries, targets, groups, 0 if rows is None else rows)
        anchors = groups.anchors if groups.inner is None and rows is None else _mean_anchors(has_any)
        levels.append(-torch.where(has_any, similarity, 0).sum() / anchors)
    values = torch.stack(levels)
    return (values * constant(weights, values)).sum(), values.detach()


def _mean_anchors(has_any: Tensor) -> Tensor:
    """How many of the rows (N,) have a positive, as a mean over ranks, so that the anchors of all ranks weigh alike."""
    of_all, _ = gather(has_any.long())
    return of_all.sum().clamp(min=1) * len(has_any) / len(of_all)


def group_level(ancestry: Tensor, level: int, inner: int | None) -> Groups:
    """Rows (M,) grouped by their ancestor at a level; `inner`: a finer level at which positives must differ."""
    return group(ancestry[:, level], None if inner is None else ancestry[:, inner])


def level_across(across: dict[str, str], levels: Sequence[str]) -> tuple[int | None, ...]:
    """For each level the finer one at which positives must differ, None where there is none."""
    for level, inner in across.items():
        if level not in levels or inner not in levels[levels.index(level) + 1 :]:
            raise UserError(
                f"objective.across = {across}: from coarse to fine, the levels of this run are {', '.join(levels)}. "
                "Give a level and a finer one: --set 'objective.across={patient: slide}'."
            )
    return tuple(levels.index(across[level]) if level in across else None for level in levels)


def level_weights(weights: dict[str, float], levels: Sequence[str]) -> tuple[float, ...]:
    """One weight per level, 1 where none is given."""
    values = tuple(weights.get(level, 1.0) for level in levels)
    if not set(weights) <= set(levels) or min(values) < 0 or max(values) == 0:
        raise UserError(
            f"objective.weights = {weights}: the levels of this run are {', '.join(levels)}, and weights are at least "
            "0, one of them above. Change objective.weights or batch.levels."
        )
    return values

"""Positives by ancestry (Eq. 3), in time and memory linear in the rows."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hidisc.ground.errors import UserError
from hidisc.ground.tensors import constant, gather_ranks


@dataclass(frozen=True)
class Groups:
    """Rows (M,) grouped by equal id."""

    ids: Tensor
    """(M,) the number of the group that each row is in."""
    sizes: Tensor
    """(M,) how many rows each group has."""
    inner: "Groups | None" = None
    """Finer groups, within which rows are no positives of each other; None: each row is a group of its own."""

    @property
    def counts(self) -> Tensor:
        """(M,) positives of each row."""
        own = self.inner.sizes[self.inner.ids] if self.inner else 1
        return self.sizes[self.ids] - own

    @property
    def anchors(self) -> Tensor:
        """How many rows have a positive, at least 1."""
        return (self.counts > 0).sum().clamp(min=1)


def group_rows(ids: Tensor, inner: Tensor | None = None) -> Groups:
    """Group rows by equal ids (M,), in the order of the ids; `inner` (M,) are the ids of finer groups.

    There is room for M groups and those behind the last are empty: how many there are, only the device knows, and to
    ask it (as `torch.unique` does) is to wait for it.
    """
    ordered, order = ids.sort()
    number = (ordered.diff(prepend=ordered[:1]) != 0).cumsum(0)
    numbers = torch.empty_like(order).scatter_(0, order, number)
    sizes = torch.zeros_like(numbers).scatter_add_(0, numbers, torch.ones_like(numbers))
    return Groups(numbers, sizes, None if inner is None else group_rows(inner))


def sum_groups(values: Tensor, groups: Groups) -> Tensor:
    """(M, D) sums of the rows (M, D) of each group."""
    return values.new_zeros(len(groups.sizes), values.shape[1]).index_add(0, groups.ids, values)


def mean_positive(queries: Tensor, keys: Tensor, groups: Groups, rows: int | Tensor = 0) -> tuple[Tensor, Tensor]:
    """(N,) mean of q_i . k_p over the positives p of row i, and (N,) whether there are any.

    Row i of `queries` (N, D) is row `rows + i` of `keys` (M, D), or `rows[i]`, which is no positive of itself.
    """
    mine = rows if isinstance(rows, Tensor) else slice(rows, rows + len(queries))
    count = groups.counts[mine]
    # index_select, because the gradient of plain indexing adds up in any order on several threads
    own = sum_groups(keys, groups.inner).index_select(0, groups.inner.ids[mine]) if groups.inner else _take(keys, mine)
    total = (queries * (sum_groups(keys, groups).index_select(0, groups.ids[mine]) - own)).sum(dim=1)
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
    of_all, _ = gather_ranks(has_any.long())
    return of_all.sum().clamp(min=1) * len(has_any) / len(of_all)


def group_level(ancestry: Tensor, level: int, inner: int | None) -> Groups:
    """Rows (M,) grouped by their ancestor at a level; `inner`: a finer level at which positives must differ."""
    return group_rows(ancestry[:, level], None if inner is None else ancestry[:, inner])


def level_across(across: dict[str, str], levels: Sequence[str]) -> tuple[int | None, ...]:
    """For each level the index of the finer level at which positives must differ, or None."""
    for level, inner in across.items():
        if level not in levels or inner not in levels[levels.index(level) + 1 :]:
            raise UserError(
                f"objective.across = {across}: from coarse to fine, the levels of this run are {', '.join(levels)}. "
                "Give a level and a finer one: --set 'objective.across={patient: slide}'."
            )
    return tuple(levels.index(across[level]) if level in across else None for level in levels)


def level_weights(weights: dict[str, float], levels: Sequence[str]) -> tuple[float, ...]:
    """One weight per level; the default is 1."""
    values = tuple(weights.get(level, 1.0) for level in levels)
    if not set(weights) <= set(levels) or min(values) < 0 or max(values) == 0:
        raise UserError(
            f"objective.weights = {weights}: the levels of this run are {', '.join(levels)}, and weights are at least "
            "0, one of them above. Change objective.weights or batch.levels."
        )
    return values

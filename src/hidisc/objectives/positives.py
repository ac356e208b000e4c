"""Positives by ancestry (Eq. 3): sums over all rows with the same id, in time and memory linear in the rows."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hidisc.ground.errors import UserError
from hidisc.sampling.transfer import constant


@dataclass(frozen=True)
class Groups:
    """Rows (M,) grouped by equal id."""

    of: Tensor
    """(M,) the group of each row."""
    sizes: Tensor
    """(M,) how many rows each group has."""

    @property
    def anchors(self) -> Tensor:
        """How many rows have a positive, at least 1."""
        return (self.sizes * (self.sizes > 1)).sum().clamp(min=1)


def group(ids: Tensor) -> Groups:
    """Rows with equal ids (M,) in one group, numbered in the order of the ids.

    There is room for M groups and those behind the last are empty: how many there are, only the device knows, and to
    ask it (as `torch.unique` does) is to wait for it.
    """
    ordered, order = ids.sort()
    number = (ordered.diff(prepend=ordered[:1]) != 0).cumsum(0)
    of = torch.empty_like(order).scatter_(0, order, number)
    return Groups(of, torch.zeros_like(of).scatter_add_(0, of, torch.ones_like(of)))


def sum_groups(values: Tensor, groups: Groups) -> Tensor:
    """(M, D) sums of the rows (M, D) of each group."""
    return values.new_zeros(len(groups.sizes), values.shape[1]).index_add(0, groups.of, values)


def mean_positive(queries: Tensor, keys: Tensor, groups: Groups, first: int = 0) -> tuple[Tensor, Tensor]:
    """(N,) mean of q_i . k_p over the positives p of row i, and (N,) whether there are any.

    Row i of `queries` (N, D) is row `first + i` of `keys` (M, D), which is no positive of itself.
    """
    mine = slice(first, first + len(queries))
    at = groups.of[mine]
    count = groups.sizes[at] - 1
    # index_select, because the gradient of plain indexing adds up in any order on several threads
    total = (queries * (sum_groups(keys, groups).index_select(0, at) - keys[mine])).sum(dim=1)
    return total / count.clamp(min=1), count > 0


def attract(queries: Tensor, targets: Tensor, ancestry: Tensor, weights: Sequence[float]) -> tuple[Tensor, Tensor]:
    """Weighted sum over levels, and (L,) each level's value, of minus the mean similarity with an anchor's positives.

    `queries` and `targets` are unit vectors (N, D); row i of both is the same image.
    """
    levels = []
    for level, weight in enumerate(weights):
        if weight == 0:
            levels.append(queries.new_zeros(()))
            continue
        groups = group(ancestry[:, level])
        similarity, has_any = mean_positive(queries, targets, groups)
        levels.append(-torch.where(has_any, similarity, 0).sum() / groups.anchors)
    values = torch.stack(levels)
    return (values * constant(weights, values)).sum(), values.detach()


def level_weights(weights: dict[str, float], levels: Sequence[str]) -> tuple[float, ...]:
    """One weight per level, 1 where none is given."""
    values = tuple(weights.get(level, 1.0) for level in levels)
    if not set(weights) <= set(levels) or min(values) < 0 or max(values) == 0:
        raise UserError(
            f"objective.weights = {weights}: the levels of this run are {', '.join(levels)}, and weights are at least "
            "0, one of them above. Change objective.weights or batch.levels."
        )
    return values

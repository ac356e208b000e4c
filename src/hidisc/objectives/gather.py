"""Everyone's rows on every rank, with gradients that make the ranks one large batch."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import Function


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

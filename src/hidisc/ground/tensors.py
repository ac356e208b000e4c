"""Small tensor functions of several stages: copies that the host does not wait for, and the rows of all ranks."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import Function

from hidisc.ground.errors import UserError


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """The tensor on a device; to a GPU it is copied from page-locked memory while the host goes on."""
    if device.type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)  # memory that is page-locked already is not copied again


def refuse_missing_device(device: str) -> None:
    """Refuse a kind of device that this machine does not have."""
    there = {"auto": True, "cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    kind = device.partition(":")[0]
    if kind not in there:
        raise UserError(f"--device {device} is none of {', '.join(there)}.")
    if not there[kind]:
        here = ", ".join(name for name, is_there in there.items() if is_there)
        raise UserError(
            f"--device {device}: torch finds no such device on this machine. Give one of {here}; `hidisc doctor` says "
            "what torch was built for."
        )


def constant(values: Sequence[float], like: Tensor) -> Tensor:
    """A few numbers (n,) in the precision and on the device of another tensor, made there: a copy would be waited for.

    On a GPU, `torch.tensor(values, device=...)` waits until the device has done all its work.
    """
    return torch.stack([like.new_full((), value) for value in values])


def count_ranks() -> int:
    """Processes that train together; 1 without a process group."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


class _Gather(Function):
    """All ranks' rows, in the order of ranks; a row's gradient is the sum of the gradients on every rank."""

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


def gather_ranks(rows: Tensor) -> tuple[Tensor, int]:
    """Rows (N, ...) of all ranks, each with as many, and the place of our first row; our own rows when we are alone."""
    if count_ranks() == 1:
        return rows, 0
    return _Gather.apply(rows), dist.get_rank() * len(rows)

"""Tensors for a device without anybody waiting for it: a plain copy waits until the device has done all its work."""

from collections.abc import Sequence

import torch
from torch import Tensor


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """The tensor on a device; to a GPU it is copied from page-locked memory while the host goes on."""
    if device.type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)  # memory that is page-locked already is not copied again


def constant(values: Sequence[float], like: Tensor) -> Tensor:
    """A few numbers (n,) in the precision and on the device of another tensor, made there and not copied."""
    return torch.stack([like.new_full((), value) for value in values])

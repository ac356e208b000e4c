"""Channels of images a few at a time, so that what an operation needs beside them stays in a CPU's cache."""

import torch
from torch import Tensor

CPU_VALUES = 2**17
"""Values at a time on a CPU: with a few buffers as large, half a megabyte each, they fill a second-level cache."""


def in_groups(images: Tensor) -> tuple[Tensor, ...]:
    """Views (m, H, W) that together are all channels of images (n, C, H, W); only one on other devices."""
    planes = images.flatten(0, 1)
    if images.device.type != "cpu":
        return (planes,)
    return torch.split(planes, max(1, CPU_VALUES // max(1, planes[:1].numel())))

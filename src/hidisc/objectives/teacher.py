"""The teacher of BYOL and DINO: a copy of what learns, which follows it slowly and learns nothing by gradients."""

from copy import deepcopy
from math import cos, pi
from typing import TypeVar

import torch
from torch import nn

Module = TypeVar("Module", bound=nn.Module)


def make_teacher(student: Module) -> Module:
    """A copy of the student."""
    return deepcopy(student).requires_grad_(False)


@torch.no_grad()
def follow(teacher: nn.Module, student: nn.Module, momentum: float, progress: float) -> None:
    """Move the teacher's weights a little towards the student's; their batch statistics are their own.

    The momentum rises from `momentum` to 1 along half a cosine while `progress` goes from 0 to 1.
    """
    share = (1 - momentum) * (cos(pi * progress) + 1) / 2
    for slow, quick in zip(teacher.parameters(), student.parameters(), strict=True):
        slow.lerp_(quick, share)

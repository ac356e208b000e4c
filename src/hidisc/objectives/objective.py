"""What all objectives share: how one is found by the name of its file; predictor, slow copy and KoLeo term.

A file is an objective when it has a class `Settings` (whose `name` is the file's) and a class `Loss(Objective)`. A new
objective is a new file; nothing else changes.
"""

import pkgutil
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from importlib import import_module
from math import cos, pi
from typing import Any, ClassVar, TypeVar

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from hidisc import objectives
from hidisc.ground.errors import UserError
from hidisc.ground.tensors import gather_ranks
from hidisc.models.encoder import Encoder, Images
from hidisc.objectives.positives import level_across, level_weights
from hidisc.settings.config import Config, validate


def make_predictor(dim: int, hidden_dim: int) -> nn.Sequential:
    """dim -> hidden -> dim, batch normalisation and ReLU between."""
    return nn.Sequential(
        nn.Linear(dim, hidden_dim, bias=False),
        nn.BatchNorm1d(hidden_dim),
        nn.ReLU(inplace=True),
        nn.Linear(hidden_dim, dim),
    )


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


_EPSILON = 1e-8


def spread_out(x: Tensor, ids: Tensor) -> Tensor:
    """Minus the mean logarithm of each row's distance to the nearest row of another patch, x (M, V, D), ids (M,).

    Rows are made unit vectors and are compared within a view, with those of all ranks, as views of a patch are meant
    to be alike. A row without another patch counts as 0.
    """
    x = F.normalize(x, dim=2).transpose(0, 1)  # (V, M, D)
    keys, of_keys = gather_ranks(x.transpose(0, 1))[0].transpose(0, 1), gather_ranks(ids)[0]
    is_same = ids[:, None] == of_keys  # (M, keys)
    with torch.no_grad(), torch.autocast(x.device.type, enabled=False):
        nearest = (x @ keys.transpose(1, 2)).masked_fill(is_same, -2).argmax(dim=2)  # (V, M)
    pairs = zip(x, keys, nearest, strict=True)
    apart = [F.pairwise_distance(rows, others.index_select(0, which), eps=_EPSILON) for rows, others, which in pairs]
    return -torch.where(is_same.all(dim=1), 0, (torch.stack(apart) + _EPSILON).log()).mean()


@dataclass(frozen=True)
class Rows:
    """Ancestors and labels of the N = M V images of a batch; views of a patch are next to each other."""

    ancestry: Tensor
    """(N, L) ids from coarse to fine."""
    labels: Tensor
    """(N,) label codes; -1: no label."""
    views: int
    """V."""
    global_views: int | None = None
    """How many of them, the first of each patch, are global ones; None: all."""

    def list_global(self) -> Tensor:
        """(M, global views) the rows of global views."""
        rows = torch.arange(len(self.ancestry), device=self.ancestry.device)
        return rows.view(-1, self.views)[:, : self.global_views]


@dataclass(frozen=True)
class Losses:
    """The loss of a batch, and the values that are logged."""

    total: Tensor
    parts: dict[str, Tensor]
    """Values to log, by name: one per level, or the terms of the loss."""
    embeddings: Tensor
    """(N, D) the vectors that the loss was computed from, detached: their effective rank shows a collapse."""


class LevelSettings(Config):
    """Settings of an objective over the levels of the batch."""

    name: str
    """The objective."""
    weights: dict[str, float] = Field({})
    """Weight of each level of the batch; levels not named have 1."""
    across: dict[str, str] = Field({})
    """Levels whose positives must differ at a finer one: `{patient: slide}` takes them from other slides only."""


class Objective(nn.Module):
    """Images of a batch -> loss; holds whatever the method adds to the encoder."""

    needs_labels: ClassVar[bool] = False
    uses_head: ClassVar[bool] = True

    def __init__(self, settings: Any, encoder: Encoder, levels: Sequence[str], classes: Sequence[str]) -> None:
        """Keep the settings, the levels of the batch and their weights."""
        super().__init__()
        self.settings, self.levels = settings, tuple(levels)
        self.weights = level_weights(getattr(settings, "weights", {}), levels)
        self.across = level_across(getattr(settings, "across", {}), self.levels)

    def forward(self, encoder: Encoder, images: Images, rows: Rows) -> Losses:
        """The losses of N images in one size or several."""
        raise NotImplementedError

    def after_step(self, encoder: Encoder, progress: float) -> None:
        """Update what no gradient updates, after each optimiser step; `progress` goes from 0 to 1 over the run."""

    def name_levels(self, values: Tensor) -> dict[str, Tensor]:
        """The values (L,) of the levels whose weight is not 0, by name."""
        return {name: value for name, weight, value in zip(self.levels, self.weights, values, strict=True) if weight}


def list_objectives() -> list[str]:
    """Names of the objectives there are."""
    names = [module.name for module in pkgutil.iter_modules(objectives.__path__)]
    return sorted(name for name in names if hasattr(_module(name), "Settings"))


def load_settings(values: dict[str, Any]) -> Config:
    """The settings of the objective a config names, every value spelled out."""
    return validate(_find(values).Settings, values, "objective")


def find_objective(settings: Config) -> type[Objective]:
    """The class that settings belong to."""
    loss: type[Objective] = _find(settings.model_dump()).Loss
    return loss


def _find(values: dict[str, Any]) -> Any:
    name, known = values.get("name", "hidisc"), list_objectives()
    if name not in known:
        raise UserError(f"objective.name = {name!r} is none of {', '.join(known)}. Give one of these.")
    return _module(name)


def _module(name: str) -> Any:
    return import_module(f"{objectives.__name__}.{name}")

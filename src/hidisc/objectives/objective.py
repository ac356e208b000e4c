"""Objective: what every file of this folder has in common, and how one is found by its name.

A file is an objective when it has a class `Settings` (whose `name` is the file's) and a class `Loss(Objective)`. A new
one is a new file; nothing else changes.
"""

import pkgutil
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from hidisc import objectives
from hidisc.ground.errors import UserError
from hidisc.models.encoder import Encoder, Images
from hidisc.objectives.positives import level_across, level_weights
from hidisc.settings.config import Config
from hidisc.settings.load import validate


@dataclass(frozen=True)
class Rows:
    """To whom the N = M V images of a batch belong; views of a patch are next to each other."""

    ancestry: Tensor
    """(N, L) ids from coarse to fine."""
    labels: Tensor
    """(N,) label codes, -1 where there is none."""
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
    """The loss of a batch and what is logged of it."""

    total: Tensor
    parts: dict[str, Tensor]
    """Values to log, by name: one per level, or the terms of the loss."""
    embeddings: Tensor
    """(N, D) what the loss saw, detached: its effective rank shows a collapse."""


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
        """Keep the settings, the levels of the batch and their weights, which are 1 where settings name none."""
        super().__init__()
        self.settings, self.levels = settings, tuple(levels)
        self.weights = level_weights(getattr(settings, "weights", {}), levels)
        self.across = level_across(getattr(settings, "across", {}), self.levels)

    def forward(self, encoder: Encoder, images: Images, rows: Rows) -> Losses:
        """The losses of N images in one size or several."""
        raise NotImplementedError

    def after_step(self, encoder: Encoder, progress: float) -> None:
        """What follows an optimiser step; `progress` from 0 to 1 over the run."""

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

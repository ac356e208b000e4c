"""BYOL (Grill et al., NeurIPS 2020), and its hierarchical form: predict a slow copy's output for relatives.

With the levels `[patch]` and two views this is the paper's symmetric loss; with more levels, every row that shares an
ancestor is a target, level by level, as in HiDisc.
"""

from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import Field

from hidisc.models.encoder import Encoder, Images
from hidisc.objectives.objective import LevelSettings, Losses, Objective, Rows, follow, make_predictor, make_teacher
from hidisc.objectives.positives import attract


class Settings(LevelSettings):
    """Settings of BYOL."""

    name: Literal["byol"] = "byol"
    """The objective."""
    momentum: float = Field(0.996, ge=0, le=1)
    """Momentum of the target network at the beginning; it rises to 1 along a cosine."""
    predictor_dim: int = Field(4096, ge=1)
    """Hidden width of the predictor."""


class Loss(Objective):
    """2 - 2 cos between the online network's predictions and the target network's projections."""

    def __init__(self, settings: Settings, encoder: Encoder, levels: Sequence[str], classes: Sequence[str]) -> None:
        super().__init__(settings, encoder, levels, classes)
        self.predictor = make_predictor(encoder.dim, settings.predictor_dim)
        self.target = make_teacher(encoder)

    def forward(self, encoder: Encoder, images: Images, rows: Rows) -> Losses:
        """Ranks share no ancestor, so every positive is here."""
        p = F.normalize(self.predictor(encoder.project(images)).float(), dim=1)
        with torch.no_grad():
            target = F.normalize(self.target.project(images).float(), dim=1)
        total, values = attract(p, target, rows.ancestry, self.weights, self.across)
        parts = self.name_levels(2 + 2 * values)
        return Losses(2 * sum(self.weights) + 2 * total, parts, target)

    def after_step(self, encoder: Encoder, progress: float) -> None:
        """Move the target a little towards the online network."""
        follow(self.target, encoder, self.settings.momentum, progress)

"""SimSiam (Chen and He, CVPR 2021), and its hierarchical form: predict the projections of relatives.

With the levels `[patch]` and two views this is the paper's symmetric loss; with more levels, every row that shares an
ancestor is a target, level by level, as in HiDisc. There are no negatives: the stopped gradient keeps it from collapse.
"""

from collections.abc import Sequence
from typing import Literal

import torch.nn.functional as F
from pydantic import Field

from hidisc.models.encoder import Encoder, Images
from hidisc.objectives.objective import LevelSettings, Losses, Objective, Rows, make_predictor
from hidisc.objectives.positives import attract


class Settings(LevelSettings):
    """Settings of SimSiam."""

    name: Literal["simsiam"] = "simsiam"
    """The objective."""
    predictor_dim: int = Field(512, ge=1)
    """Hidden width of the predictor."""


class Loss(Objective):
    """Negative cosine similarity of predictions with projections whose gradient is stopped."""

    def __init__(self, settings: Settings, encoder: Encoder, levels: Sequence[str], classes: Sequence[str]) -> None:
        super().__init__(settings, encoder, levels, classes)
        self.predictor = make_predictor(encoder.dim, settings.predictor_dim)

    def forward(self, encoder: Encoder, images: Images, rows: Rows) -> Losses:
        """Ranks share no ancestor, so every positive is here."""
        z = encoder.project(images)
        p = F.normalize(self.predictor(z).float(), dim=1)
        target = F.normalize(z.detach().float(), dim=1)
        total, values = attract(p, target, rows.ancestry, self.weights, self.across)
        return Losses(total, self.name_levels(values), target)

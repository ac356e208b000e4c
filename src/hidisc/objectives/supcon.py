"""SupCon (Khosla et al., NeurIPS 2020): all patches with the same label are positives; the paper's upper bound."""

from typing import Literal

import torch.nn.functional as F
from pydantic import Field

from hidisc.models.encoder import Encoder, Images
from hidisc.objectives.hidisc import contrast_ranks
from hidisc.objectives.objective import Losses, Objective, Rows
from hidisc.settings.config import Config


class Settings(Config):
    """Settings of SupCon."""

    name: Literal["supcon"] = "supcon"
    """The objective."""
    temperature: float = Field(0.7, gt=0)
    """Temperature of the soft-max (tau); 0.7 for all methods in the HiDisc paper."""


class Loss(Objective):
    """HiDisc's loss with the label in the ancestor's place."""

    needs_labels = True

    def forward(self, encoder: Encoder, images: Images, rows: Rows) -> Losses:
        """Anchors of this rank against the keys of all."""
        z = F.normalize(encoder.project(images).float(), dim=1)
        total, values = contrast_ranks(z, rows.labels[:, None], [1.0], self.settings.temperature)
        return Losses(total, {"label": values[0]}, z.detach())

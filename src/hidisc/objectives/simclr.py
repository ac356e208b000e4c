"""SimCLR (Chen et al., ICML 2020): two views of a patch against everything else in the batch (NT-Xent)."""

from typing import Literal

import torch.nn.functional as F
from pydantic import Field

from hidisc.models.encoder import Encoder, Images
from hidisc.objectives.hidisc import contrast_ranks
from hidisc.objectives.objective import Losses, Objective, Rows
from hidisc.settings.config import Config


class Settings(Config):
    """Settings of SimCLR."""

    name: Literal["simclr"] = "simclr"
    """The objective."""
    temperature: float = Field(0.7, gt=0)
    """Temperature of the soft-max (tau); 0.7 for all methods in the HiDisc paper."""


class Loss(Objective):
    """NT-Xent, which is HiDisc's patch level."""

    def forward(self, encoder: Encoder, images: Images, rows: Rows) -> Losses:
        """Anchors of this rank against the keys of all."""
        z = F.normalize(encoder.project(images).float(), dim=1)
        total, values = contrast_ranks(z, rows.ancestry[:, -1:], [1.0], self.settings.temperature)
        return Losses(total, {"patch": values[0]}, z.detach())

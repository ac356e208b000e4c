"""SimCLR (Chen et al., ICML 2020): two views of a patch against everything else in the batch (NT-Xent)."""

from collections.abc import Sequence
from typing import Literal

import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from hidisc.models.encoder import Encoder
from hidisc.objectives.gather import gather
from hidisc.objectives.hidisc import hidisc_loss
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

    def __init__(self, settings: Settings, encoder: Encoder, levels: Sequence[str], classes: Sequence[str]) -> None:
        super().__init__(settings, encoder, levels, classes)
        self.settings = settings

    def forward(self, encoder: Encoder, images: Tensor, rows: Rows) -> Losses:
        """Anchors of this rank against the keys of all."""
        z = F.normalize(encoder.project(images).float(), dim=1)
        patch = rows.ancestry[:, -1:]
        (keys, first), (ids, _) = gather(z), gather(patch)
        total, values = hidisc_loss(z, patch, [1.0], self.settings.temperature, keys=(keys, ids, first))
        return Losses(total, {"patch": values[0]}, z.detach())

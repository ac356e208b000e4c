"""Supervised: cross-entropy of a linear classifier on the embedding, the paper's labelled reference."""

from typing import Literal

import torch.nn.functional as F
from pydantic import Field

from hidisc.models.encoder import Encoder, Images
from hidisc.objectives.objective import Losses, Objective, Rows
from hidisc.settings.config import Config


class Settings(Config):
    """Settings of supervised training."""

    name: Literal["supervised"] = "supervised"
    """The objective."""
    label_smoothing: float = Field(0.0, ge=0, lt=1)
    """Share of each target that is spread over all labels."""


class Loss(Objective):
    """Cross-entropy over the labels of the store."""

    needs_labels = True
    uses_head = False

    def forward(self, encoder: Encoder, images: Images, rows: Rows) -> Losses:
        """The classifier is the encoder's own and is saved with it."""
        features = encoder.features(images)
        logits = encoder.classify_features(features).float()
        loss = F.cross_entropy(logits, rows.labels, label_smoothing=self.settings.label_smoothing)
        accuracy = (logits.detach().argmax(dim=1) == rows.labels).float().mean()
        return Losses(loss, {"cross_entropy": loss.detach(), "accuracy": accuracy}, features.detach().float())

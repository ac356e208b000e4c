"""Adversary: any objective, and a classifier of a nuisance column (a site) that the encoder learns to mislead.

Y. Ganin et al., "Domain-adversarial training of neural networks", JMLR 2016. The classifier learns to predict the
column from the embedding. Its gradient changes sign on the way to the encoder, which therefore learns embeddings that
do not show the column. The strength rises from 0 to 1 over the run, as in the paper: the classifier must first be worth
misleading.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function

from hidisc.models.encoder import Encoder, Images
from hidisc.objectives.objective import Losses, Objective, Rows

_WIDTH = 256
"""Hidden width of the classifier."""


class Adversary(Objective):
    """An objective, plus `weight` times the cross-entropy of the classifier."""

    def __init__(self, objective: Objective, encoder: Encoder, codes: Tensor, values: int, weight: float) -> None:
        """`codes` (rows of the table,) are numbers below `values`, those of rows that are learned from."""
        super().__init__(objective.settings, encoder, objective.levels, ())
        self.objective, self.weight = objective, weight
        self._embedding: Tensor | None = None
        self.classifier = nn.Sequential(
            nn.Linear(encoder.card.features, _WIDTH), nn.ReLU(inplace=True), nn.Linear(_WIDTH, values)
        )
        self.codes: Tensor
        self.progress: Tensor
        self.register_buffer("codes", codes.long(), persistent=False)
        self.register_buffer("progress", torch.zeros(()))  # saved, so that a run goes on exactly
        behind = encoder.head if encoder.head is not None else encoder.classifier
        if behind is None:
            raise ValueError("an adversary needs an encoder with a head or a classifier, which is given the embedding")
        behind.register_forward_pre_hook(self._keep)

    def _keep(self, module: nn.Module, args: tuple[Tensor]) -> None:
        (self._embedding,) = args

    def forward(self, encoder: Encoder, images: Images, rows: Rows) -> Losses:
        """The embedding is the one that the objective has computed."""
        losses: Losses = self.objective(encoder, images, rows)
        strength = 2 / (1 + torch.exp(-10 * self.progress)) - 1
        logits = self.classifier(_Reverse.apply(self._embedding, strength)).float()
        self._embedding = None  # with it the graph of the step would stay in memory
        codes = self.codes[rows.ancestry[:, -1]]  # the last level is the row of the table
        loss = F.cross_entropy(logits, codes)
        accuracy = (logits.detach().argmax(dim=1) == codes).float().mean()
        parts = losses.parts | {"adversary": loss.detach(), "adversary_accuracy": accuracy}
        return Losses(losses.total + self.weight * loss, parts, losses.embeddings)

    def after_step(self, encoder: Encoder, progress: float) -> None:
        """What follows a step of the objective; the next step is stronger."""
        self.progress.fill_(progress)
        self.objective.after_step(encoder, progress)


class _Reverse(Function):
    """The same, with a gradient of the other sign, times a strength."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, strength: Tensor) -> Tensor:
        ctx.save_for_backward(strength)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (strength,) = ctx.saved_tensors
        return -strength * grad, None

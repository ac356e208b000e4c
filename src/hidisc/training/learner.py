"""Learner: encoder and objective as one module, so that one call does a step's forward pass on any strategy."""

from torch import Tensor, nn

from hidisc.models.encoder import Encoder
from hidisc.objectives.objective import Objective, Rows


class Learner(nn.Module):
    """Everything that is trained, saved and resumed."""

    def __init__(self, encoder: Encoder, objective: Objective) -> None:
        super().__init__()
        self.encoder, self.objective = encoder, objective

    def forward(self, views: Tensor, ancestry: Tensor, labels: Tensor) -> tuple[Tensor, dict[str, Tensor], Tensor]:
        """(total, parts, embeddings (M V, D)) of views (M, V, C, H, W), ancestry (M, L) and labels (M,)."""
        count = views.shape[1]
        rows = Rows(ancestry.repeat_interleave(count, 0), labels.repeat_interleave(count, 0), count)
        losses = self.objective(self.encoder, views.flatten(0, 1), rows)
        return losses.total, losses.parts, losses.embeddings

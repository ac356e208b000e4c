"""Learner: encoder and objective as one module, so that one call does a step's forward pass on any strategy."""

from torch import Tensor, nn

from hidisc.models.encoder import Encoder
from hidisc.objectives.objective import Objective, Rows


class Learner(nn.Module):
    """Everything that is trained, saved and resumed."""

    def __init__(self, encoder: Encoder, objective: Objective) -> None:
        super().__init__()
        self.encoder, self.objective = encoder, objective

    def forward(
        self, views: tuple[Tensor, ...], ancestry: Tensor, labels: Tensor
    ) -> tuple[Tensor, dict[str, Tensor], Tensor]:
        """(total, parts, embeddings (N, D)) of views (M, V, C, H, W), ancestry (M, L) and labels (M,).

        The global views come first, then those of another size.
        """
        count = sum(of_size.shape[1] for of_size in views)
        ids, codes = ancestry.repeat_interleave(count, 0), labels.repeat_interleave(count, 0)
        images = views if len(views) > 1 else views[0].flatten(0, 1)
        losses = self.objective(self.encoder, images, Rows(ids, codes, count, views[0].shape[1]))
        return losses.total, losses.parts, losses.embeddings

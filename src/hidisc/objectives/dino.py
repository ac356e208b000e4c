"""DINO (Caron et al., ICCV 2021), and its hierarchical form: relatives predict a teacher's output for a view.

The teacher follows the student slowly. Both give the similarity of a view with each of K prototypes, as probabilities.
The student's probabilities for any relative predict the teacher's for a global view i:

    L_l = mean over i of 1 / |P_l(i)| sum over p in P_l(i) of H(t_i, s_p),  H(t, s) = - sum over k of t_k log s_k

P_l(i) are all other views, local ones too, that share i's ancestor at the level l. With the levels `[patch]` this is
DINO's own loss. The teacher's probabilities are centred (so that no prototype takes all) and sharpened (so that they
are not uniform): without either, both networks collapse.
"""

from collections.abc import Sequence
from math import log
from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from hidisc.ground.tensors import gather_ranks
from hidisc.models.encoder import Encoder, Images
from hidisc.objectives.objective import LevelSettings, Losses, Objective, Rows, follow, make_teacher, spread_out
from hidisc.objectives.positives import attract

_ITERATIONS = 3
"""Of Sinkhorn's algorithm, as in SwAV and DINOv2."""
_Positive = Annotated[float, Field(gt=0)]


class Settings(LevelSettings):
    """Settings of DINO."""

    name: Literal["dino"] = "dino"
    """The objective."""
    weights: dict[str, float] = Field({})
    """Weight (lambda) of each level of the batch; levels not named have 1."""
    prototypes: int = Field(4096, ge=2)
    """Number of prototypes (K); 65,536 in DINO's paper, for a million images."""
    momentum: float = Field(0.996, ge=0, le=1)
    """Momentum of the teacher at the beginning; it rises to 1 along a cosine."""
    temperature: float = Field(0.1, gt=0)
    """Temperature of the student's soft-max."""
    teacher_temperature: tuple[_Positive, _Positive] = (0.04, 0.07)
    """Temperature of the teacher's soft-max in the first step and after the warm-up; lower is sharper."""
    warmup: float = Field(0.3, ge=0, le=1)
    """Share of the steps over which the teacher's temperature rises."""
    freeze_prototypes: float = Field(0.01, ge=0, le=1)
    """Share of the steps, at the beginning, in which the prototypes do not learn."""
    balance: Literal["centre", "sinkhorn"] = "centre"
    """How prototypes are used evenly: by subtracting a moving mean, or by Sinkhorn's algorithm in every batch."""
    centre_momentum: float = Field(0.9, ge=0, le=1)
    """Momentum of the moving mean that is subtracted from what the teacher says."""
    spread: float = Field(0.0, ge=0)
    """Weight of a term that moves each embedding away from its nearest one (KoLeo); 0.1 in DINOv2, 0 is without."""


class Loss(Objective):
    """Cross-entropy between the teacher's and the student's probabilities of the prototypes."""

    def __init__(self, settings: Settings, encoder: Encoder, levels: Sequence[str], classes: Sequence[str]) -> None:
        super().__init__(settings, encoder, levels, classes)
        self.prototypes = nn.Linear(encoder.dim, settings.prototypes, bias=False)
        self.teacher, self.teacher_prototypes = make_teacher(encoder), make_teacher(self.prototypes)
        self.centre: Tensor
        self.progress: Tensor
        self.register_buffer("centre", torch.zeros(settings.prototypes))  # saved, as is the teacher
        self.register_buffer("progress", torch.zeros(()))

    def forward(self, encoder: Encoder, images: Images, rows: Rows) -> Losses:
        """Ranks share no ancestor, so every positive is here; centre and Sinkhorn are over the views of all ranks."""
        which = rows.list_global()  # (M, V) of them
        z, target = self._ask_teacher(images if isinstance(images, Tensor) else images[0].flatten(0, 1))
        features = encoder.features(images)
        logits = compare(encoder.project_features(features), self._learned_prototypes())
        log_s = F.log_softmax(logits / self.settings.temperature, dim=1)  # (N, K)
        total, values = attract(target, log_s, rows.ancestry, self.weights, self.across, which.flatten())
        parts = self.name_levels(values) | measure_entropy(target)
        if self.settings.spread:
            of_views = features.float().index_select(0, which.flatten()).view(*which.shape, -1)
            spread = spread_out(of_views, rows.ancestry[which[:, 0], -1])
            total, parts = total + self.settings.spread * spread, parts | {"spread": spread.detach()}
        return Losses(total, parts, z)

    @torch.no_grad()
    def _ask_teacher(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """The teacher's embeddings (G, D) of global views, unit vectors, and its probabilities (G, K)."""
        z = F.normalize(self.teacher.project(images).float(), dim=1)
        logits = compare(z, self.teacher_prototypes.weight)
        if self.settings.balance == "sinkhorn":
            of_all, first = gather_ranks(logits / self._teacher_temperature())
            return z, sinkhorn(of_all)[first : first + len(z)]
        target = F.softmax((logits - self.centre) / self._teacher_temperature(), dim=1)
        if self.training:
            self.centre.lerp_(_mean_of_all(logits), 1 - self.settings.centre_momentum)
        return z, target

    def _teacher_temperature(self) -> float | Tensor:
        first, last = self.settings.teacher_temperature
        if self.settings.warmup == 0:
            return float(last)
        return first + (last - first) * (self.progress / self.settings.warmup).clamp(max=1)

    def _learned_prototypes(self) -> Tensor:
        """The prototypes' weights; in the first steps their gradient is 0, not missing, as ranks share gradients."""
        weight = self.prototypes.weight
        learns = (self.progress >= self.settings.freeze_prototypes).to(weight.dtype)
        return weight.detach() + learns * (weight - weight.detach())

    def after_step(self, encoder: Encoder, progress: float) -> None:
        """Move the teacher a little towards the student."""
        self.progress.fill_(progress)
        follow(self.teacher, encoder, self.settings.momentum, progress)
        follow(self.teacher_prototypes, self.prototypes, self.settings.momentum, progress)


def compare(z: Tensor, prototypes: Tensor) -> Tensor:
    """(N, K) cosines of z (N, D) with the prototypes (K, D), in float32 or better."""
    z = z if z.dtype == torch.float64 else z.float()
    with torch.autocast(z.device.type, enabled=False):  # divided by a temperature of 0.04, rounding would show
        return F.normalize(z, dim=1) @ F.normalize(prototypes, dim=1).T


def sinkhorn(logits: Tensor) -> Tensor:
    """(B, K) probabilities of logits (B, K) with which all prototypes are used about equally often."""
    for _ in range(_ITERATIONS):
        logits = logits - logits.logsumexp(dim=0, keepdim=True)
        logits = logits - logits.logsumexp(dim=1, keepdim=True)
    return logits.exp()


def measure_entropy(target: Tensor) -> dict[str, Tensor]:
    """Two entropies of the teacher's probabilities (G, K) to log, each as a share of the largest there is.

    `teacher_entropy` is the mean over views: 1 when the teacher says nothing about any of them. `prototype_entropy` is
    that of the mean over the views of all ranks: 0 when it says the same single prototype of all of them.
    """
    largest = log(target.shape[1])
    return {
        "teacher_entropy": _entropy(target).mean() / largest,
        "prototype_entropy": _entropy(_mean_of_all(target)) / largest,
    }


def _entropy(p: Tensor) -> Tensor:
    return -(p * p.clamp(min=1e-30).log()).sum(dim=-1)


def _mean_of_all(rows: Tensor) -> Tensor:
    """(K,) mean of the rows (G, K) of all ranks, each of which has as many."""
    return gather_ranks(rows.mean(dim=0, keepdim=True))[0].mean(dim=0)

"""VICReg (Bardes et al., ICLR 2022), and its hierarchical form: relatives alike, dimensions varied and unrelated.

With the levels `[patch]` and two views this is the paper's loss (the variance term averaged over the branches, as in
its public code); with more levels, the invariance term is over all rows that share an ancestor, level by level.
"""

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from hidisc.ground.tensors import constant, gather_ranks
from hidisc.models.encoder import Encoder, Images
from hidisc.objectives.objective import LevelSettings, Losses, Objective, Rows
from hidisc.objectives.positives import Groups, group_level, sum_groups

_EPSILON = 1e-4


class Settings(LevelSettings):
    """Settings of VICReg."""

    name: Literal["vicreg"] = "vicreg"
    """The objective."""
    weights: dict[str, float] = Field({})
    """Weight of each level of the batch in the invariance term; levels not named have 1."""
    invariance: float = Field(25.0, ge=0)
    """Weight of the mean squared distance between positives."""
    variance: float = Field(25.0, ge=0)
    """Weight of the hinge that keeps each dimension's standard deviation at 1."""
    covariance: float = Field(1.0, ge=0)
    """Weight of the squared covariances between dimensions."""


class Loss(Objective):
    """Invariance, variance and covariance over the rows of all ranks."""

    def forward(self, encoder: Encoder, images: Images, rows: Rows) -> Losses:
        """Every rank computes the loss of the whole batch, as the paper's code does."""
        (z, _), (ancestry, _) = gather_ranks(encoder.project(images).float()), gather_ranks(rows.ancestry)
        levels = enumerate(zip(self.weights, self.across, strict=True))
        groups = [group_level(ancestry, level, inner) if weight else None for level, (weight, inner) in levels]
        values = [invariance(z, of_level) if of_level else z.new_zeros(()) for of_level in groups]
        alike = (torch.stack(values) * constant(self.weights, z)).sum()
        branches = z.reshape(-1, rows.views, z.shape[1]).transpose(0, 1)  # (V, M, D)
        varied = torch.stack([variance(branch) for branch in branches]).mean()
        unrelated = 2 * torch.stack([covariance(branch) for branch in branches]).mean()
        weigh = self.settings
        total = weigh.invariance * alike + weigh.variance * varied + weigh.covariance * unrelated
        parts = self.name_levels(torch.stack(values).detach())
        return Losses(total, parts | {"variance": varied.detach(), "covariance": unrelated.detach()}, z.detach())


def invariance(z: Tensor, groups: Groups) -> Tensor:
    """Mean over anchors and their positives of the mean squared difference; z (N, D).

    Summed over all pairs of a group of n, squared distances are 2 n times those from the group's mean.
    """
    if groups.inner:
        apart = _sum_distances(z, groups) - _sum_distances(z, groups.inner)
        return torch.where(groups.counts > 0, apart / groups.counts.clamp(min=1), 0).sum() / groups.anchors
    centre = sum_groups(z, groups) / groups.sizes.clamp(min=1)[:, None]
    size = groups.sizes[groups.ids]
    spread = ((z - centre.index_select(0, groups.ids)) ** 2).mean(dim=1)
    return (2 * size / (size - 1).clamp(min=1) * spread).sum() / groups.anchors


def _sum_distances(z: Tensor, groups: Groups) -> Tensor:
    """(N,) sum over the rows of a row's group of their mean squared difference from it, z (N, D)."""
    centre = sum_groups(z, groups) / groups.sizes.clamp(min=1)[:, None]
    own = ((z - centre.index_select(0, groups.ids)) ** 2).mean(dim=1)
    return groups.sizes[groups.ids] * own + sum_groups(own[:, None], groups)[:, 0].index_select(0, groups.ids)


def variance(z: Tensor) -> Tensor:
    """Hinge on the standard deviation of each dimension of z (N, D)."""
    return (1 - (z.var(dim=0) + _EPSILON).sqrt()).relu().mean()


def covariance(z: Tensor) -> Tensor:
    """Sum of squared covariances between different dimensions of z (N, D), divided by D."""
    z = z - z.mean(dim=0)
    with torch.autocast(z.device.type, enabled=False):  # sums of squares leave float16's range
        cov = z.T @ z / (len(z) - 1)
    return (cov.square().sum() - cov.diagonal().square().sum()) / z.shape[1]

"""Slow and obvious: what the papers' equations say, one row, one pair and one number at a time.

All take and return torch tensors, so that autograd gives the gradient of the oracle too.
"""

from collections.abc import Sequence

import torch
from torch import Tensor


def others(ancestry: Tensor, i: int, inner: int | None = None) -> list[int]:
    """A(i), Eq. 2 of HiDisc: all rows but i; with a finer level `inner`, all whose ancestor there is not i's."""
    if inner is None:
        return [a for a in range(len(ancestry)) if a != i]
    return [a for a in range(len(ancestry)) if int(ancestry[a, inner]) != int(ancestry[i, inner])]


def positives(ancestry: Tensor, level: int, i: int, inner: int | None = None) -> list[int]:
    """P_l(i), Eq. 3 of HiDisc: those of A(i) whose ancestor at the level is i's."""
    return [p for p in others(ancestry, i, inner) if int(ancestry[p, level]) == int(ancestry[i, level])]


def hidisc(
    z: Tensor,
    ancestry: Tensor,
    weights: Sequence[float],
    temperature: float | Sequence[float],
    reduction: str = "mean",
    across: Sequence[int | None] | None = None,
) -> tuple[Tensor, Tensor]:
    """Eq. 1-4 of HiDisc (Jiang et al., CVPR 2023): (sum over levels of lambda times L, L of each level)."""
    levels = []
    taus = temperature if isinstance(temperature, Sequence) else [temperature] * ancestry.shape[1]
    for level, tau in enumerate(taus):
        inner = across[level] if across else None
        loss, anchors = z.new_zeros(()), 0
        for i in range(len(z)):
            relatives = positives(ancestry, level, i, inner)
            if not relatives:
                continue
            anchors += 1
            denominator = z.new_zeros(())
            for a in others(ancestry, i, inner):
                denominator = denominator + torch.exp(z[i] @ z[a] / tau)
            for p in relatives:
                loss = loss - torch.log(torch.exp(z[i] @ z[p] / tau) / denominator) / len(relatives)
        levels.append(loss / max(anchors, 1) if reduction == "mean" else loss)
    total = z.new_zeros(())
    for weight, value in zip(weights, levels, strict=True):
        total = total + weight * value
    return total, torch.stack(levels)


def mean_over_pairs(ancestry: Tensor, level: int, pairs: Tensor, inner: int | None = None) -> Tensor:
    """Mean over anchors i that have any of the mean over their positives p of `pairs[i, p]`."""
    means = []
    for i in range(len(ancestry)):
        relatives = positives(ancestry, level, i, inner)
        if relatives:
            means.append(sum(pairs[i, p] for p in relatives) / len(relatives))
    return sum(means) / len(means) if means else pairs.new_zeros(())


def cosines(a: Tensor, b: Tensor) -> Tensor:
    """(N, N) cosine of every row of a with every row of b."""
    rows = [[(x @ y) / (x.norm() * y.norm()) for y in b] for x in a]
    return torch.stack([torch.stack(row) for row in rows])


def simsiam(p: Tensor, z: Tensor, ancestry: Tensor, weights: Sequence[float]) -> Tensor:
    """SimSiam's D(p_1, stopgrad(z_2)) = -cos, Eq. 1-3 of Chen and He, with every relative as the other view."""
    pairs = -cosines(p, z.detach())
    return sum(weight * mean_over_pairs(ancestry, level, pairs) for level, weight in enumerate(weights))


def byol(p: Tensor, target: Tensor, ancestry: Tensor, weights: Sequence[float]) -> Tensor:
    """BYOL's squared distance of unit vectors, 2 - 2 cos, Eq. 2 of Grill et al., with every relative as the other."""
    pairs = 2 - 2 * cosines(p, target.detach())
    return sum(weight * mean_over_pairs(ancestry, level, pairs) for level, weight in enumerate(weights))


def vicreg(
    z: Tensor,
    ancestry: Tensor,
    weights: Sequence[float],
    views: int,
    invariance: float = 25,
    variance: float = 25,
    covariance: float = 1,
) -> Tensor:
    """VICReg's Eq. 1-6 (Bardes et al.): s over relatives, v the mean over branches, c twice the mean over branches.

    Row i is view i % V of its patch. With two views v is halved and c summed, as in the authors' code.
    """
    rows, dims = z.shape
    distances = torch.stack([torch.stack([((a - b) ** 2).sum() / dims for b in z]) for a in z])
    s = sum(weight * mean_over_pairs(ancestry, level, distances) for level, weight in enumerate(weights))
    v = c = z.new_zeros(())
    for view in range(views):
        branch = [z[i] for i in range(rows) if i % views == view]
        mean = sum(branch) / len(branch)
        cov = [
            [sum((x[j] - mean[j]) * (x[k] - mean[k]) for x in branch) / (len(branch) - 1) for k in range(dims)]
            for j in range(dims)
        ]
        for j in range(dims):
            v = v + torch.relu(1 - torch.sqrt(cov[j][j] + 1e-4)) / dims / views
            for k in range(dims):
                if j != k:
                    c = c + 2 * cov[j][k] ** 2 / dims / views
    return invariance * s + variance * v + covariance * c


def dino(
    target: Tensor,
    logits: Tensor,
    ancestry: Tensor,
    global_rows: Sequence[int],
    weights: Sequence[float],
    temperature: float = 0.1,
    across: Sequence[int | None] | None = None,
) -> Tensor:
    """Eq. 2-3 of Caron et al., H(P_t(x), P_s(x')), with the views of every relative as x'.

    Row number n of `target` (G, K) is the teacher's for row `global_rows[n]` of the student's `logits` (N, K).
    """
    total = logits.new_zeros(())
    for level, weight in enumerate(weights):
        means = []
        for n, i in enumerate(global_rows):
            relatives = positives(ancestry, level, int(i), across[level] if across else None)
            entropies = []
            for p in relatives:
                s = torch.exp(logits[p] / temperature) / torch.exp(logits[p] / temperature).sum()
                entropies.append(-sum(t * torch.log(q) for t, q in zip(target[n], s, strict=True)))
            if relatives:
                means.append(sum(entropies) / len(relatives))
        if means:
            total = total + weight * sum(means) / len(means)
    return total

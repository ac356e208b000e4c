"""The three-level loss at N = 4,096: 1.3 times one SupCon pass, 2.5 times three SupCon calls, half their memory.

    python bench/loss.py

Forward and backward on unit vectors (4096, 128), 8 rows per patient, 4 per slide and 2 per patch, temperature 0.7, each
side on one thread. The one SupCon pass is plain torch (the whole similarity matrix, a mask, one log-sum-exp, autograd)
for the patient level alone; the three calls are pytorch-metric-learning's `SupConLoss`, one per level. Memory is what a
fresh process needs on top of what it held after a small call of the same function.
"""

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from pytorch_metric_learning.losses import SupConLoss
from torch import Tensor

from harness import Claim, best_of, on_one_thread, peak_bytes
from hidisc.objectives.hidisc import hidisc_loss

ROWS, DIM, TEMPERATURE = 4096, 128, 0.7
Loss = Callable[[Tensor, Tensor], Tensor]


def draw(rows: int) -> tuple[Tensor, Tensor]:
    """Unit vectors (N, D) and the ancestry (N, 3) of full patients."""
    z = F.normalize(torch.randn(rows, DIM, generator=torch.Generator().manual_seed(0)), dim=1)
    return z, torch.stack([torch.arange(rows) // size for size in (8, 4, 2)], dim=1)


def ours(z: Tensor, ancestry: Tensor) -> Tensor:
    """All three levels."""
    return hidisc_loss(z, ancestry, [1, 1, 1], TEMPERATURE)[0]


def one_supcon(z: Tensor, ancestry: Tensor) -> Tensor:
    """SupCon of one level, plain and with no more passes over the matrix than it takes."""
    ids = ancestry[:, 0]
    similarity = (z @ z.T / TEMPERATURE).fill_diagonal_(-torch.inf)
    positive = (ids[:, None] == ids).fill_diagonal_(False)
    mean_positive = similarity.masked_fill(~positive, 0).sum(dim=1) / positive.sum(dim=1)
    return (similarity.logsumexp(dim=1) - mean_positive).mean()


def three_supcons(z: Tensor, ancestry: Tensor) -> Tensor:
    """pytorch-metric-learning, once a level."""
    loss = SupConLoss(TEMPERATURE)
    return sum(loss(z, ids) for ids in ancestry.T)


def step(loss: Loss, z: Tensor, ancestry: Tensor) -> tuple[float, Tensor]:
    """Value and gradient (N, D)."""
    z = z.detach().requires_grad_()
    total = loss(z, ancestry)
    total.backward()
    return total.item(), z.grad


def measure_time() -> list[Claim]:
    """Time the three sides in turns, in this process."""
    z, ancestry = draw(ROWS)
    _check_equal(z[:512], ancestry[:512])
    seconds = best_of(
        7,
        ours=lambda: step(ours, z, ancestry),
        one=lambda: step(one_supcon, z, ancestry),
        three=lambda: step(three_supcons, z, ancestry),
    )
    speed = {name: 1 / value for name, value in seconds.items()}
    first = "three-level loss, N = 4,096 : one SupCon pass, torch"
    second = "three-level loss, N = 4,096 : three SupCon calls, pytorch-metric-learning"
    return [
        Claim(first, seconds["ours"], seconds["one"], "s", 1.3, higher_is_better=False),
        Claim(second, speed["ours"], speed["three"], "steps/s", 2.5),
    ]


def measure_peak(loss: Loss) -> float:
    """Megabytes that forward and backward add to this process."""
    step(loss, *draw(64))  # libraries, threads and arenas
    z, ancestry = draw(ROWS)
    before = peak_bytes()
    step(loss, z, ancestry)
    return (peak_bytes() - before) / 2**20


def claims() -> list[Claim]:
    """Return the claims as measured now."""
    mine, theirs = (on_one_thread(partial(measure_peak, loss)) for loss in (ours, three_supcons))
    name = "three-level loss, N = 4,096, peak memory : three SupCon calls, pytorch-metric-learning"
    return [*on_one_thread(measure_time), Claim(name, mine, theirs, "MB", 0.5, higher_is_better=False)]


def _check_equal(z: Tensor, ancestry: Tensor) -> None:
    """All sides compute the same thing, or the comparison would be void."""
    value, grad = step(ours, z, ancestry)
    their_value, their_grad = step(three_supcons, z, ancestry)
    along = (their_grad * z).sum(dim=1, keepdim=True)  # they normalise once more: no gradient along z
    tangent = grad - (grad * z).sum(dim=1, keepdim=True) * z
    one = step(one_supcon, z, ancestry)[0]
    level = hidisc_loss(z, ancestry, [1, 0, 0], TEMPERATURE)[0].item()
    same = abs(value - their_value) < 1e-4 and abs(one - level) < 1e-4 and along.abs().max() < 1e-5
    if not same or not torch.allclose(tangent, their_grad, rtol=1e-3, atol=1e-6):
        raise RuntimeError(f"The sides differ ({value} and {their_value}, {level} and {one}): nothing to compare.")


if __name__ == "__main__":
    for claim in claims():
        print(claim)

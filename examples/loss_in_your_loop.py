"""The HiDisc loss alone, in a PyTorch loop of your own.

    python examples/loss_in_your_loop.py

The loss needs unit vectors `z` (N, D) and, for each of the N images, the ids of its ancestors from coarse to fine:
patient, slide, patch. Rows with the same id are positives, in any order. The patches are drawn here (stripes whose
width is the diagnosis); put your own loader and network in their place. Runs in seconds on a CPU.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from hidisc import hidisc_loss

PATIENTS, SLIDES, PATCHES, VIEWS, SIZE_PX = 15, 2, 2, 2, 16
DIAGNOSES = 3


def draw_batch(rng: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Images (N, 1, H, W), ancestry (N, 3) and diagnosis (N,); N = patients x slides x patches x views."""
    n = PATIENTS * SLIDES * PATCHES * VIEWS
    row = torch.arange(n)
    patch, slide, patient = row // VIEWS, row // (VIEWS * PATCHES), row // (VIEWS * PATCHES * SLIDES)
    diagnosis = patient % DIAGNOSES
    phase = 6.28 * torch.rand(n // VIEWS, generator=rng)[patch, None, None]
    stripes = torch.sin((0.5 + 0.5 * diagnosis[:, None, None]) * torch.arange(SIZE_PX) + phase)
    light = torch.randn(n // VIEWS, generator=rng)[patch, None, None]  # says nothing of the diagnosis
    noise = torch.randn(n, SIZE_PX, SIZE_PX, generator=rng)
    return (stripes + light + noise)[:, None], torch.stack([patient, slide, patch], dim=1), diagnosis


@torch.no_grad()
def nearest_is_right(net: nn.Module, rng: torch.Generator) -> float:
    """Share of patches whose most similar patch of another patient has the same diagnosis."""
    images, ancestry, diagnosis = draw_batch(rng)
    z = normalize(net(images), dim=1)
    same_patient = ancestry[:, :1] == ancestry[:, 0]
    nearest = (z @ z.T).masked_fill(same_patient, -2).argmax(dim=1)
    return float((diagnosis[nearest] == diagnosis).float().mean())


def main() -> None:
    """Train for 60 steps."""
    torch.manual_seed(0)
    rng = torch.Generator().manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(1, 16, 5, 2), nn.ReLU(), nn.Conv2d(16, 32, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    )
    optimiser = torch.optim.AdamW(net.parameters(), lr=3e-3)
    print(f"before: the nearest patch has the diagnosis in {nearest_is_right(net, rng):.0%}, 29% by chance")
    for step in range(1, 61):
        images, ancestry, _ = draw_batch(rng)
        z = normalize(net(images), dim=1)
        loss, levels = hidisc_loss(z, ancestry, weights=[1, 1, 1], temperature=0.7)
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        if step % 20 == 0:
            patient, slide, patch = levels.tolist()
            print(f"step {step}: patient {patient:.3f}, slide {slide:.3f}, patch {patch:.3f}")
    print(f"after: the nearest patch has the diagnosis in {nearest_is_right(net, rng):.0%}")


if __name__ == "__main__":
    main()

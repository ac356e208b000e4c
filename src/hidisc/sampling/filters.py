"""What mixes a pixel with its neighbours or with noise: sharpness, Gaussian blur, Gaussian noise.

As in `colour`, meanings are torchvision's, and `images` (n, C, H, W) in [0, 1] may be overwritten.
"""

import math
from collections.abc import Callable, Sequence
from functools import cache, partial

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from hidisc.sampling.planes import in_groups


def sharpen(images: Tensor, factor: float) -> Tensor:
    """Pixels moved away from (below 1: towards) the mean of their 3 x 3 with the centre 5 times; not at the edge."""
    for planes in in_groups(images):
        three = planes[..., :-2] + planes[..., 1:-1]
        three += planes[..., 2:]
        nine = three[:, :-2] + three[:, 1:-1]
        nine += three[:, 2:]
        inner = planes[:, 1:-1, 1:-1]
        inner.mul_(factor + (1 - factor) * 4 / 13).add_(nine, alpha=(1 - factor) / 13)
    return images.clamp_(0, 1)


def blur(images: Tensor, kernel_px: int, sigma: float) -> Tensor:
    """Gaussian blur with a kernel of odd side, the image reflected at its edges."""
    reach = kernel_px // 2
    weights = [math.exp(-(((place - reach) / sigma) ** 2) / 2) for place in range(kernel_px)]
    weights = [weight / sum(weights) for weight in weights]
    for planes in in_groups(images):
        padded = F.pad(planes.unsqueeze(0), (reach,) * 4, mode="reflect")[0]
        planes.copy_(_correlate(_correlate(padded, weights, 2), weights, 1))
    return images


def add_noise(images: Tensor, sigma: Tensor, generator: torch.Generator) -> Tensor:
    """Independent normal noise of standard deviation `sigma` (n,) added, cut to [0, 1]."""
    draw = start_normals(generator, images.device)
    groups = in_groups(images)
    sigmas = torch.split(sigma.repeat_interleave(images.shape[1]), len(groups[0]))
    for planes, scale in zip(groups, sigmas, strict=True):
        planes.addcmul_(draw(planes.shape), scale[:, None, None])
    return images.clamp_(0, 1)


def start_normals(generator: torch.Generator, device: torch.device) -> Callable[[Sequence[int]], Tensor]:
    """Return a function that draws standard normal numbers of a shape on a device, started by a generator on the CPU.

    On a CPU `torch.randn` would be the dearest of all operations, as its bits come one after the other. There a
    quicker generator, started by the slow one, gives 16 bits a number, and a table their quantile: numbers rounded
    to 65,536 values alike in probability, the largest 4.3.
    """
    seed = int(torch.randint(2**63 - 1, (), generator=generator))
    if device.type != "cpu":
        return partial(torch.randn, generator=torch.Generator(device).manual_seed(seed), device=device)
    quick = np.random.SFC64(seed)

    def draw(shape: Sequence[int]) -> Tensor:
        size = math.prod(shape)
        bits = quick.random_raw(-(-size // 4)).view(np.uint16)[:size]
        return torch.from_numpy(_quantiles().take(bits, mode="wrap")).view(shape)

    return draw


@cache
def _quantiles() -> NDArray[np.float32]:
    """The normal distribution's quantiles in the middle of 2^16 equal steps."""
    steps = (torch.arange(2**16, dtype=torch.float64) + 0.5) / 2**16
    return torch.special.ndtri(steps).numpy().astype(np.float32)


def _correlate(planes: Tensor, weights: list[float], dim: int) -> Tensor:
    """Shifted copies added up: quicker on a CPU than a convolution of one channel."""
    size = planes.shape[dim] - len(weights) + 1
    total = planes.narrow(dim, 0, size) * weights[0]
    for start, weight in enumerate(weights[1:], 1):
        total.add_(planes.narrow(dim, start, size), alpha=weight)
    return total

"""What mixes a pixel with its neighbours or with noise: sharpness, Gaussian blur, Gaussian noise.

As in `colour`, meanings are torchvision's, and `images` (n, C, H, W) in [0, 1] may be overwritten.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor


def sharpen(images: Tensor, factor: float) -> Tensor:
    """Pixels moved away from (below 1: towards) the mean of their 3 x 3 with the centre 5 times; not at the edge."""
    three = images[..., :-2] + images[..., 1:-1] + images[..., 2:]
    nine = three[:, :, :-2] + three[:, :, 1:-1] + three[:, :, 2:]
    inner = images[:, :, 1:-1, 1:-1]
    inner.mul_(factor + (1 - factor) * 4 / 13).add_(nine, alpha=(1 - factor) / 13)
    return images.clamp_(0, 1)


def blur(images: Tensor, kernel_px: int, sigma: float) -> Tensor:
    """Gaussian blur with a kernel of odd side, the image reflected at its edges."""
    reach = kernel_px // 2
    weights = [math.exp(-(((position - reach) / sigma) ** 2) / 2) for position in range(kernel_px)]
    weights = [weight / sum(weights) for weight in weights]
    padded = F.pad(images, (reach,) * 4, mode="reflect")
    return _correlate(_correlate(padded, weights, 3), weights, 2)


def add_noise(images: Tensor, sigma: Tensor, generator: torch.Generator) -> Tensor:
    """Independent normal noise of standard deviation `sigma` (n,) added, cut to [0, 1]."""
    noise = torch.randn(images.shape, generator=start_generator(generator, images.device), device=images.device)
    return images.addcmul_(noise, sigma[:, None, None, None]).clamp_(0, 1)


def start_generator(generator: torch.Generator, device: torch.device) -> torch.Generator:
    """A generator on a device, started by the next number of one on the CPU."""
    seed = int(torch.randint(2**63 - 1, (), generator=generator))
    return torch.Generator(device).manual_seed(seed)


def _correlate(images: Tensor, weights: list[float], dim: int) -> Tensor:
    """Shifted copies added up: quicker on a CPU than a convolution of one channel."""
    size = images.shape[dim] - len(weights) + 1
    total = images.narrow(dim, 0, size) * weights[0]
    for start, weight in enumerate(weights[1:], 1):
        total.add_(images.narrow(dim, start, size), alpha=weight)
    return total

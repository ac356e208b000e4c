"""What changes a pixel's colour: brightness, contrast, saturation, hue, autocontrast, solarize, stain.

Meanings are those of `torchvision.transforms.v2.functional` on floats, with every parameter drawn per image:
`images` (n, C, H, W) in [0, 1] may be overwritten, the result has the same shape and range.
"""

import torch
from torch import Tensor

from hidisc.sampling.transfer import constant
from hidisc.slides.stain import LIGHT, REFERENCE

GREY = (0.2989, 0.587, 0.114)
"""Weights of R, G and B in torchvision's grey."""


def brighten(images: Tensor, factor: Tensor) -> Tensor:
    """Pixels times `factor` (n,)."""
    return images.mul_(_each(factor)).clamp_(0, 1)


def change_contrast(images: Tensor, factor: Tensor, colour: bool) -> Tensor:
    """Distance of the pixels from the image's mean grey times `factor` (n,); all channels alike if not colour."""
    means = images.mean(dim=(2, 3))  # (n, C)
    grey = means @ constant(GREY, means) if colour else means.mean(dim=1)
    return images.mul_(_each(factor)).add_(_each((1 - factor) * grey)).clamp_(0, 1)


def saturate(images: Tensor, factor: Tensor) -> Tensor:
    """Distance of RGB pixels from their own grey times `factor` (n,)."""
    red, green, blue = images.unbind(1)
    grey = red.mul(GREY[0]).add_(green, alpha=GREY[1]).add_(blue, alpha=GREY[2]).mul_((1 - factor).view(-1, 1, 1))
    return images.mul_(_each(factor)).add_(grey.unsqueeze(1)).clamp_(0, 1)


def turn_hue(images: Tensor, shifts: Tensor) -> Tensor:
    """RGB pixels with their hue in HSV moved along the colour circle; `shifts` (n, 3) are those of `hue_shifts`.

    The circle has length 6: red is at 0, yellow at 1, green at 2, cyan at 3 and -3, blue at -2, magenta at -1.
    Orange, (0.9, 0.5, 0.1), moved by 1, a sixth of the circle:

    1. Without the least channel (0.1) and divided by the span (0.8), it is (1, 0.5, 0).
    2. The hue is 1 + g + b - r with the sign of g - b: 0.5, between red and yellow.
    3. The new hue is 1.5. A channel is 2 - distance from its own place on the circle, cut to [0, 1]: red is 1.5 away
       and becomes 0.5, green 0.5 away and becomes 1, blue 2.5 away and becomes 0.
    4. With the span and the least channel put back, it is a yellowish green, (0.5, 0.9, 0.1).
    """
    red, green, blue = images.unbind(1)
    least = torch.minimum(torch.minimum(red, green), blue)
    span = torch.maximum(torch.maximum(red, green), blue).sub_(least)
    hue = (green + blue).sub_(red).sub_(least).div_(span.clamp(min=1e-9)).add_(1)
    hue.copysign_(green - blue)
    # The distance is 3 - | |hue + shift| - 3 |, so that 2 - distance is | |hue + shift| - 3 | - 1.
    for channel, shift in zip((red, green, blue), shifts[:, :, None, None].unbind(1), strict=True):
        torch.add(hue, shift, out=channel).abs_().sub_(3).abs_().sub_(1).clamp_(0, 1).mul_(span).add_(least)
    return images


def hue_shifts(turns: Tensor) -> Tensor:
    """What to add to a hue in [-3, 3] so that R, G and B (n, 3) are each at 0, after `turns` (n,) of the circle.

    Shifts are within [-3, 3], so that their sum with a hue is in [-6, 6], as `turn_hue` needs it.
    """
    shifts = 6 * turns[:, None] - turns.new_tensor([0, 2, -2])
    return shifts - 6 * (shifts / 6).round()


def autocontrast(images: Tensor) -> Tensor:
    """Every channel stretched to [0, 1]; flat channels stay as they are."""
    low = images.amin(dim=(2, 3), keepdim=True)
    span = images.amax(dim=(2, 3), keepdim=True).sub_(low)
    flat = span == 0
    return images.sub_(low.masked_fill_(flat, 0)).div_(span.masked_fill_(flat, 1))


def solarize(images: Tensor, threshold: float) -> Tensor:
    """Pixels of at least `threshold` inverted."""
    return images.clone().ge_(threshold).sub_(images).abs_()  # |1 - x| or |0 - x|: quicker than `torch.where`


def restain(images: Tensor, maps: Tensor) -> Tensor:
    """RGB pixels with their stains changed; `maps` (n, 3, 4) are those of `stain_maps`."""
    minus_od = images.mul_(255 / LIGHT).add_(1 / LIGHT).log_()
    painted = torch.bmm(maps[:, :, :3], minus_od.flatten(2)).sub_(maps[:, :, 3:]).exp_()
    return painted.mul_(LIGHT / 255).sub_(1 / 255).clamp_(0, 1).view_as(images)


def stain_maps(factor: Tensor, bias: Tensor) -> Tensor:
    """Affine maps (n, 3, 4) of optical density: amounts of haematoxylin and eosin times `factor` plus `bias`, (n, 2).

    Amounts are those of the published reference stains V; what is of neither stain is kept:
    OD + V ((factor - 1) V⁺ OD + bias).
    """
    vectors = factor.new_tensor(REFERENCE.vectors.tolist())  # (3, 2)
    matrix = vectors * (factor - 1)[:, None, :] @ torch.linalg.pinv(vectors) + torch.eye(3)
    return torch.cat([matrix, (bias @ vectors.T)[:, :, None]], dim=2)


def _each(values: Tensor) -> Tensor:
    """(n,) as (n, 1, 1, 1)."""
    return values.view(-1, 1, 1, 1)

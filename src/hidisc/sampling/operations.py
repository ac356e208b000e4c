"""Random operations on a batch of images: colour, blur and sharpness, crops and turns."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from hidisc.ground.tensors import constant
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
    """A generator on a device, seeded by the next number of a generator on the CPU."""
    seed = int(torch.randint(2**63 - 1, (), generator=generator))
    return torch.Generator(device).manual_seed(seed)


def _correlate(images: Tensor, weights: list[float], dim: int) -> Tensor:
    """Shifted copies added up: quicker on a CPU than a convolution of one channel."""
    size = images.shape[dim] - len(weights) + 1
    total = images.narrow(dim, 0, size) * weights[0]
    for start, weight in enumerate(weights[1:], 1):
        total.add_(images.narrow(dim, start, size), alpha=weight)
    return total


TRIES = 10
"""After as many boxes that do not fit, torchvision gives up."""
BOX_DRAWS = 2 * TRIES + 2

Range = tuple[float, float]


def draw_erasing(uniform: Tensor, size: tuple[int, int], scale: Range, ratio: Range) -> Tensor:
    """Boxes (n, 4) to erase in pictures of `size` (H, W), of size 0 where no box fitted; `ratio` is height : width."""
    area, aspect = _draw_shapes(uniform, size, scale, ratio)
    height, width = (area * aspect).sqrt().round(), (area / aspect).sqrt().round()
    fits = (height < size[0]) & (width < size[1])
    boxes, fitted = _place_first(height, width, fits, uniform[:, -2:], size)
    return boxes * fitted[:, None]


def draw_crop(uniform: Tensor, size: tuple[int, int], scale: Range, ratio: Range) -> Tensor:
    """Boxes (n, 4) to keep of pictures of `size` (H, W), central where no box fitted; `ratio` is width : height."""
    area, aspect = _draw_shapes(uniform, size, scale, ratio)
    height, width = (area / aspect).sqrt().round(), (area * aspect).sqrt().round()
    fits = (height > 0) & (height <= size[0]) & (width > 0) & (width <= size[1])
    boxes, fitted = _place_first(height, width, fits, uniform[:, -2:], size)
    return torch.where(fitted[:, None], boxes, boxes.new_tensor(_central_crop(size, ratio)))


def draw_squares(uniform: Tensor, size: tuple[int, int], size_px: int, coarser: Range) -> Tensor:
    """Squares (n, 4) anywhere in pictures of `size` (H, W), their side `size_px` times a factor from `coarser`.

    Factors are uniform in their logarithm: from 1 to 2 are as many as from 2 to 4.
    """
    side = size_px * between(uniform[:, :1], (math.log(coarser[0]), math.log(coarser[1]))).exp()
    side = side.clamp(max=min(size))
    return torch.cat([uniform[:, 1:] * (uniform.new_tensor(size) - side), side, side], dim=1)


def _central_crop(size: tuple[int, int], ratio: Range) -> tuple[int, int, int, int]:
    """The largest central box of a picture whose width : height is within `ratio`."""
    height, width = size
    tall, wide = min(height, round(width / ratio[0])), min(width, round(height * ratio[1]))
    return (height - tall) // 2, (width - wide) // 2, tall, wide


def _draw_shapes(uniform: Tensor, size: tuple[int, int], scale: Range, ratio: Range) -> tuple[Tensor, Tensor]:
    """Areas in pixels and aspect ratios (n, TRIES), the latter uniform in their logarithm."""
    area = between(uniform[:, :TRIES], scale) * (size[0] * size[1])
    aspect = between(uniform[:, TRIES : 2 * TRIES], (math.log(ratio[0]), math.log(ratio[1]))).exp()
    return area, aspect


def _place_first(
    height: Tensor, width: Tensor, fits: Tensor, uniform: Tensor, size: tuple[int, int]
) -> tuple[Tensor, Tensor]:
    """The first box among the tries (n, TRIES) that fits, at a uniformly drawn place, and whether (n,) any fits."""
    first = fits.int().argmax(dim=1, keepdim=True)
    extent = torch.cat([height.gather(1, first), width.gather(1, first)], dim=1)  # (n, 2)
    free = extent.new_tensor(size) - extent
    corner = (uniform * (free + 1)).floor()
    return torch.cat([corner, extent], dim=1), fits.any(dim=1)


def draw_affine(uniform: Tensor, size: tuple[int, int], degrees: float, translate: Range) -> Tensor:
    """Rotations in degrees and whole-pixel shifts in x and y (n, 3); `translate` is a share of width and height."""
    angle = between(uniform[:, :1], (-degrees, degrees))
    reach = uniform.new_tensor([translate[0] * size[1], translate[1] * size[0]])
    return torch.cat([angle, (between(uniform[:, 1:], (-1, 1)) * reach).round()], dim=1)


def erase(images: Tensor, boxes: Tensor) -> Tensor:
    """Boxes (n, 4) painted black."""
    inside = []
    for axis in (0, 1):
        place = torch.arange(images.shape[2 + axis], device=images.device)
        start, extent = boxes[:, axis, None], boxes[:, 2 + axis, None]
        inside.append(((place >= start) & (place < start + extent)).float())
    return images.mul_(torch.rsub(inside[0][:, None, :, None] * inside[1][:, None, None, :], 1))


def affine_places(moves: Tensor, size: tuple[int, int]) -> Tensor:
    """Places (n, W + H, 2), for `read`, of pictures turned clockwise about their centre and then shifted.

    Moves (n, 3) are degrees, x and y. Pixel (x, y) is turned back: it comes from (x cos + y sin, y cos - x sin), which
    is the sum of a pair that depends on x and a pair that depends on y.
    """
    height, width = size
    angle, right, down = moves[:, :, None].unbind(1)  # (n, 1) each
    cos, sin = angle.deg2rad().cos(), angle.deg2rad().sin()
    x, y = _pixels(width) - width / 2 - right, _pixels(height) - height / 2 - down  # (n, W), (n, H)
    of_columns = torch.stack([x * cos * (2 / width), x * -sin * (2 / height)], dim=2)
    of_rows = torch.stack([y * sin * (2 / width), y * cos * (2 / height)], dim=2)
    return torch.cat([of_columns, of_rows], dim=1)


def crop_places(boxes: Tensor, size: tuple[int, int]) -> Tensor:
    """Places (n, W + H, 2), for `read`, of boxes (n, 4) resized to the whole picture.

    A box is no larger than the picture, so that antialiasing would change nothing.
    """
    along = []
    for length, start, extent in zip(size, boxes[:, :2].T, boxes[:, 2:].T, strict=True):
        place = _pixels(length) * (extent / length)[:, None]  # (n, length), from the box's edge
        place = torch.minimum(place.clamp_(min=0.5), extent[:, None] - 0.5)  # as if its border pixels went on
        along.append((place + start[:, None]) * (2 / length) - 1)
    y, x = along
    of_columns, of_rows = torch.stack([x, torch.zeros_like(x)], dim=2), torch.stack([torch.zeros_like(y), y], dim=2)
    return torch.cat([of_columns, of_rows], dim=1)


def resize_boxes(images: Tensor, boxes: Tensor, size: tuple[int, int]) -> Tensor:
    """Boxes (n, 4), each cut out of its image and resized to `size` (H, W), bilinear and antialiased.

    A pixel is a weighted mean of those of the box, along the columns and along the rows: two products of matrices, so
    that boxes of all extents are one batch.
    """
    height, width = images.shape[2:]
    of_columns = _triangles(boxes[:, 1], boxes[:, 3], width, size[1])  # (n, w, W)
    of_rows = _triangles(boxes[:, 0], boxes[:, 2], height, size[0])  # (n, h, H)
    narrow = torch.bmm(images.flatten(1, 2), of_columns.transpose(1, 2))  # (n, C H, w)
    return of_rows[:, None] @ narrow.view(*images.shape[:3], size[1])


def _triangles(start: Tensor, extent: Tensor, length: int, size: int) -> Tensor:
    """(n, size, length) weights of the pixels of an axis, of which each box begins at `start` (n,)."""
    scale = (extent / size)[:, None]
    pixel = torch.arange(length, device=start.device) + 0.5
    centre = start[:, None] + (torch.arange(size, device=start.device) + 0.5) * scale
    away = (pixel - centre[:, :, None]).abs() / scale.clamp(min=1)[:, :, None]
    is_inside = (pixel > start[:, None]) & (pixel < (start + extent)[:, None])
    weights = (1 - away).clamp(min=0) * is_inside[:, None]
    return weights / weights.sum(dim=2, keepdim=True)


def read(images: Tensor, places: Tensor, mode: str) -> Tensor:
    """Images read at other places, black outside; `mode` is grid_sample's: "nearest" or "bilinear".

    Places (n, W + H, 2) are pairs (x, y), first one for each column, then one for each row; -1 and 1 are the picture's
    edges. The pixel in column c and row r comes from places[c] + places[W + r]. To mirror a picture of 4 px, for
    example, columns have (0.75, 0), (0.25, 0), (-0.25, 0), (-0.75, 0) and rows (0, -0.75), (0, -0.25), ...: the upper
    left pixel comes from (0.75, -0.75), the upper right one.
    """
    columns, rows = places[:, None, : images.shape[3]], places[:, images.shape[3] :, None]
    grid = images.new_empty((len(images), *images.shape[2:], 2))  # (n, H, W, 2)
    for axis in (0, 1):  # a quarter of the time of `torch.stack`
        torch.add(columns[..., axis], rows[..., axis], out=grid[..., axis])
    return F.grid_sample(images, grid, mode=mode, padding_mode="zeros", align_corners=False)


def _pixels(size: int) -> Tensor:
    """Centres (size,) of the pixels along an axis."""
    return torch.arange(size) + 0.5


def between(uniform: Tensor, bounds: Range) -> Tensor:
    """Uniform numbers in [0, 1) stretched to a range."""
    return bounds[0] + uniform * (bounds[1] - bounds[0])

"""What moves pixels: erasing, affine, resized crop, and how their boxes and shifts are drawn.

As in `colour`, meanings are torchvision's, and `images` (n, C, H, W) in [0, 1] may be overwritten. The `draw_`
functions turn uniform numbers in [0, 1) into parameters, one row an image; boxes are (top, left, height, width) in pixels.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

TRIES = 10
"""After as many boxes that do not fit, torchvision gives up."""
BOX_DRAWS = 2 * TRIES + 2

Range = tuple[float, float]


def draw_erasing(uniform: Tensor, size: tuple[int, int], scale: Range, ratio: Range) -> Tensor:
    """Boxes (n, 4) to erase in pictures of `size` (H, W), of size 0 where none fitted; `ratio` is height : width."""
    area, aspect = _draw_shapes(uniform, size, scale, ratio)
    height, width = (area * aspect).sqrt().round(), (area / aspect).sqrt().round()
    fits = (height < size[0]) & (width < size[1])
    boxes, fitted = _place_first(height, width, fits, uniform[:, -2:], size)
    return boxes * fitted[:, None]


def draw_crop(uniform: Tensor, size: tuple[int, int], scale: Range, ratio: Range) -> Tensor:
    """Boxes (n, 4) to keep of pictures of `size` (H, W), central ones where none fitted; `ratio` is width : height."""
    area, aspect = _draw_shapes(uniform, size, scale, ratio)
    height, width = (area / aspect).sqrt().round(), (area * aspect).sqrt().round()
    fits = (height > 0) & (height <= size[0]) & (width > 0) & (width <= size[1])
    boxes, fitted = _place_first(height, width, fits, uniform[:, -2:], size)
    return torch.where(fitted[:, None], boxes, boxes.new_tensor(_central_crop(size, ratio)))


def _central_crop(size: tuple[int, int], ratio: Range) -> tuple[int, int, int, int]:
    """The largest central box of a picture whose width : height is within `ratio`."""
    height, width = size
    tall, wide = min(height, round(width / ratio[0])), min(width, round(height * ratio[1]))
    return (height - tall) // 2, (width - wide) // 2, tall, wide


def _draw_shapes(uniform: Tensor, size: tuple[int, int], scale: Range, ratio: Range) -> tuple[Tensor, Tensor]:
    """Areas in pixels and aspect ratios (n, TRIES), the latter uniform in their logarithm."""
    area = _between(uniform[:, :TRIES], scale) * (size[0] * size[1])
    aspect = _between(uniform[:, TRIES : 2 * TRIES], (math.log(ratio[0]), math.log(ratio[1]))).exp()
    return area, aspect


def _place_first(
    height: Tensor, width: Tensor, fits: Tensor, uniform: Tensor, size: tuple[int, int]
) -> tuple[Tensor, Tensor]:
    """The first box that fits, at any place alike, and whether (n,) there was one among the tries (n, TRIES)."""
    first = fits.int().argmax(dim=1, keepdim=True)
    extent = torch.cat([height.gather(1, first), width.gather(1, first)], dim=1)  # (n, 2)
    free = extent.new_tensor(size) - extent
    corner = torch.minimum((uniform * (free + 1)).floor(), free)  # the product may round up to the bound
    return torch.cat([corner, extent], dim=1), fits.any(dim=1)


def draw_affine(uniform: Tensor, size: tuple[int, int], degrees: float, translate: Range) -> Tensor:
    """Rotations in degrees and whole-pixel shifts in x and y (n, 3); `translate` is a share of width and height."""
    angle = _between(uniform[:, :1], (-degrees, degrees))
    reach = uniform.new_tensor([translate[0] * size[1], translate[1] * size[0]])
    return torch.cat([angle, (_between(uniform[:, 1:], (-1, 1)) * reach).round()], dim=1)


def erase(images: Tensor, boxes: Tensor) -> Tensor:
    """Boxes (n, 4) painted black."""
    inside = []
    for axis in (0, 1):
        place = torch.arange(images.shape[2 + axis], device=images.device)
        start, extent = boxes[:, axis, None], boxes[:, 2 + axis, None]
        inside.append(((place >= start) & (place < start + extent)).float())
    return images.mul_(torch.rsub(inside[0][:, None, :, None] * inside[1][:, None, None, :], 1))


def affine(images: Tensor, moves: Tensor) -> Tensor:
    """Images turned clockwise about their centre, then shifted, by moves (n, 3): degrees, x, y; nearest, black outside."""
    count, _, height, width = images.shape
    angle, x, y = moves.unbind(1)
    cos, sin = angle.deg2rad().cos(), angle.deg2rad().sin()
    # The inverse: where, from the centre, an output pixel (x, y, 1) is read.
    matrix = torch.stack([cos, -sin, sin, cos, -cos * x - sin * y, sin * x - cos * y], dim=1).view(count, 3, 2)
    matrix /= matrix.new_tensor([width / 2, height / 2])
    ys, xs = _centred(height, images), _centred(width, images)
    places = torch.stack(
        [xs.expand(height, -1), ys[:, None].expand(-1, width), torch.ones_like(xs).expand(height, -1)], -1
    )
    grid = places.view(1, -1, 3).expand(count, -1, -1).bmm(matrix).view(count, height, width, 2)
    return F.grid_sample(images, grid, mode="nearest", padding_mode="zeros", align_corners=False)


def resized_crop(images: Tensor, boxes: Tensor) -> Tensor:
    """Boxes (n, 4) cut out and resized to the whole picture, bilinearly.

    A box is no larger than the picture, so antialiasing would change nothing.
    """
    count, _, height, width = images.shape
    grid = images.new_empty(count, height, width, 2)
    for axis, size in ((0, height), (1, width)):
        start, extent = boxes[:, axis, None], boxes[:, 2 + axis, None]
        place = (torch.arange(size, device=images.device) + 0.5) * (extent / size) - 0.5  # (n, size), within the box
        place = torch.minimum(place.clamp_(min=0), extent - 1).add_(start)
        place = place.add_(0.5).mul_(2 / size).sub_(1)  # as grid_sample counts: -1 and 1 are the outer edges
        grid[..., 1 - axis] = place[:, :, None] if axis == 0 else place[:, None, :]
    return F.grid_sample(images, grid, mode="bilinear", padding_mode="zeros", align_corners=False)


def _centred(size: int, like: Tensor) -> Tensor:
    """Pixel centres (size,) along an axis, counted from the middle."""
    return torch.arange(size, device=like.device, dtype=like.dtype) - (size - 1) / 2


def _between(uniform: Tensor, bounds: Range) -> Tensor:
    """Uniform numbers in [0, 1) stretched to a range."""
    return bounds[0] + uniform * (bounds[1] - bounds[0])

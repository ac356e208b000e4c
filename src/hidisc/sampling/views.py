"""Random views of patches: which operations each view gets, with which parameters, applied a batch at a time.

All parameters are drawn first, for every view at once; then a few views at a time go through the operations in
order, each of which sees only the views it was drawn for. The operations are in `operations.py`.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hidisc.ground.errors import UserError
from hidisc.ground.tensors import to_device
from hidisc.sampling import operations
from hidisc.sampling.cohort_stain import BatchStains
from hidisc.sampling.operations import BOX_DRAWS, between
from hidisc.settings.train import Op, ViewsConfig

CPU_VALUES, DEVICE_VALUES = 2**19, 2**27
"""Values of the images that go through together: few enough for a CPU's cache, enough to keep a GPU busy."""
DRAWS: dict[Op, int] = {
    "flips": 2,
    "noise": 1 + 1,
    "jitter": 1 + 8,
    "autocontrast": 1,
    "solarize": 1,
    "sharpness": 1,
    "blur": 1,
    "erasing": 1 + BOX_DRAWS,
    "affine": 1 + 3,
    "crop": 1 + BOX_DRAWS,
    "stain": 1 + 4,
    "cohort_stain": 1 + 6,
}
"""Uniform numbers per view for each operation: the first says whether it is applied (flips: both do)."""


@dataclass(frozen=True)
class Part:
    """The part of an image that a view shows: by default all of it, in its own size."""

    scale: tuple[float, float] | None = None
    """Range of the share of the image; None: all of it."""
    size_px: int | None = None
    """Side of the view; None: as large as the image, or as large as the coarsest view can be."""
    coarser: tuple[float, float] | None = None
    """Range of how much coarser than the image it is: a square of that many times its side, shrunk."""

    def find_size(self, height: int, width: int) -> tuple[int, int]:
        """(H, W) of the view of an image of this size; a view that needs more pixels than the image has is refused."""
        if self.coarser is None:
            return (height, width) if self.size_px is None else (self.size_px, self.size_px)
        coarsest, side = self.coarser[1], min(height, width)
        size_px = self.size_px or int(side / coarsest)
        if size_px * coarsest > side:
            raise UserError(
                f"views.global.coarser = {list(self.coarser)}: a view of {size_px} px that is {coarsest:g} times as "
                f"coarse shows {size_px * coarsest:g} px of a patch, and patches have {side}. Set "
                f"views.global.size_px={int(side / coarsest)} or less."
            )
        return size_px, size_px


ALL = Part()


def list_kinds(config: ViewsConfig, views: int) -> list[tuple[int, Part]]:
    """The number of views of each kind, and the part they show: global views, then local views if there are any."""
    kinds = [(views, Part(config.global_.scale, config.global_.size_px, config.global_.coarser))]
    local = Part(config.local.scale, config.local.size_px)
    return [*kinds, (config.local.number, local)] if config.local.number else kinds


@dataclass(frozen=True, eq=False)
class _Step:
    """A part of an operation: the views (N,) it was drawn for, and the parameters (N, ...) of all views."""

    chosen: Tensor
    parameters: Tensor
    apply: Callable[[Tensor, Tensor], Tensor]
    """From images (n, C, H, W) and their parameters (n, ...) to images of the same shape."""
    overwrites: bool = True
    """Whether it may overwrite the images it is given."""


@torch.no_grad()
def make_views(
    images: Tensor,
    views: int,
    config: ViewsConfig,
    generator: torch.Generator,
    *,
    colour: bool,
    stains: BatchStains | None = None,
    to_float: Callable[[Tensor], Tensor] = lambda images: images,
    out: Tensor | None = None,
    part: Part = ALL,
) -> Tensor:
    """Return random views (N, V, C, H, W) of images (N, C, H, W), both float32 in [0, 1] and on the same device.

    A pure function of the arguments and the generator's state. `colour` says that the channels are red, green and
    blue: only then hue, saturation and stain mean anything. The generator is on the CPU, wherever the images are:
    which of them an operation gets must be known there, and reading that back from a device would wait for it.
    `stains` are those of the images' slides, which `cohort_stain` needs. Images in another form than float32 are put
    through `to_float`, a few at a time, so that the floats stay in a cache. The views are written to `out` if it is
    given: on a CPU, new memory takes as long as all of the weak views. `part` says which part of an image each view
    shows, and in which size (H, W).
    """
    channels, *whole = _check(to_float(images[:0]), config, colour)
    height, width = part.find_size(*whole)
    _check_blur((height, width), config)
    if "cohort_stain" in config.ops and (stains is None or len(stains.own) != len(images)):
        raise ValueError("views.ops: 'cohort_stain' needs the stain of every image's slide (`stains`).")
    rows = len(images) * views
    boxes = None if part == ALL else _draw_boxes(rows, whole, part, config, generator)
    uniform = torch.rand((rows, sum(DRAWS[op] for op in config.ops)), generator=generator)
    steps = list(_plan(uniform, (height, width), config, generator, colour, stains))
    chosen = np.array([step.chosen.numpy() for step in steps]).reshape(len(steps), rows)
    made = _allocate((rows, channels, height, width), images.device) if out is None else out.flatten(0, 1)
    together = CPU_VALUES if images.device.type == "cpu" else DEVICE_VALUES
    size = max(1, together // max(1, channels * max(height * width, prod(whole))))
    few, loaded = images, range(0)
    for start in range(0, rows, size):
        stop = min(start + size, rows)
        needed = range(start // views, (stop - 1) // views + 1)
        if needed != loaded:
            few, loaded = to_float(images[needed.start : needed.stop]).contiguous(), needed
        chunk, here = made[start:stop], chosen[:, start:stop]
        is_shared = stop - start == 1 and boxes is None  # one image, of which further views are made
        current = few if is_shared else _repeat(few, views, start % views, chunk, boxes, start)
        for number in np.flatnonzero(here.any(axis=1)):
            step = steps[number]
            current = current.clone() if is_shared and step.overwrites else current
            current, is_shared = _apply(step, current, np.flatnonzero(here[number]), start), False
        if current is not chunk:
            chunk.copy_(current)
    return made.view(len(images), views, channels, height, width)


def _repeat(images: Tensor, views: int, first: int, out: Tensor, boxes: Tensor | None, start: int) -> Tensor:
    """Repeat every image `views` times; fills `out` from view `first` on, with the boxes from `start` on."""
    source = torch.arange(first, first + len(out), device=images.device) // views
    if boxes is None:
        return torch.index_select(images, 0, source, out=out)
    here = to_device(boxes[start : start + len(out)], images.device)
    size = (out.shape[2], out.shape[3])
    return out.copy_(operations.resize_boxes(torch.index_select(images, 0, source), here, size))


def _draw_boxes(rows: int, size: Sequence[int], part: Part, config: ViewsConfig, generator: torch.Generator) -> Tensor:
    """The part (rows, 4) of a picture of `size` (H, W) that each view shows: top, left, height and width."""
    height, width = size
    if part.coarser is not None:
        uniform = torch.rand((rows, 3), generator=generator)
        return operations.draw_squares(uniform, (height, width), part.find_size(height, width)[0], part.coarser)
    if part.scale is None:
        return torch.tensor([0.0, 0.0, height, width]).expand(rows, -1)
    uniform = torch.rand((rows, BOX_DRAWS), generator=generator)
    return operations.draw_crop(uniform, (height, width), part.scale, config.crop_ratio)


def _allocate(shape: tuple[int, ...], device: torch.device) -> Tensor:
    """Memory for float32; on a CPU NumPy's, which asks for huge pages: at 300 px a third of the time of all views."""
    return torch.from_numpy(np.empty(shape, np.float32)) if device.type == "cpu" else torch.empty(shape, device=device)


def _apply(step: _Step, images: Tensor, rows: NDArray[np.int64], start: int) -> Tensor:
    """Put some rows of images, whose first one is view `start`, through a step."""
    where = torch.from_numpy(rows)
    parameters = to_device(step.parameters[start + where], images.device)
    if len(rows) == len(images):
        return step.apply(images, parameters)
    where = to_device(where, images.device)
    return images.index_copy_(0, where, step.apply(images[where], parameters))


def _plan(
    uniform: Tensor,
    size: tuple[int, int],
    config: ViewsConfig,
    generator: torch.Generator,
    colour: bool,
    stains: BatchStains | None,
) -> Iterator[_Step]:
    """Yield the steps of the config's operations, in its order, from uniform numbers (N, sum of their DRAWS)."""
    columns = torch.split(uniform, [DRAWS[op] for op in config.ops], dim=1)
    for op, column in zip(config.ops, columns, strict=True):
        chosen, numbers = column[:, 0] < config.probability, column[:, 1:]
        match op:
            case "flips":
                upside_down = numbers[:, 0] < config.probability
                yield _Step(chosen & ~upside_down, numbers, lambda x, _: x.flip(3), overwrites=False)
                yield _Step(~chosen & upside_down, numbers, lambda x, _: x.flip(2), overwrites=False)
                yield _Step(chosen & upside_down, numbers, lambda x, _: x.flip((2, 3)), overwrites=False)
            case "noise":
                sigma = between(numbers[:, 0], config.noise_sigma)
                yield _Step(chosen, sigma, lambda x, sigma: operations.add_noise(x, sigma, generator))
            case "jitter":
                yield from _plan_jitter(chosen, numbers, config, colour)
            case "autocontrast":
                yield _Step(chosen, numbers, lambda x, _: operations.autocontrast(x))
            case "solarize":
                yield _Step(chosen, numbers, lambda x, _: operations.solarize(x, config.solarize_threshold))
            case "sharpness":
                yield _Step(chosen, numbers, lambda x, _: operations.sharpen(x, config.sharpness_factor))
            case "blur":
                yield _Step(chosen, numbers, partial(_blur, config=config), overwrites=False)
            case "erasing":
                boxes = operations.draw_erasing(numbers, size, config.erase_scale, config.erase_ratio)
                yield _Step(chosen, boxes, operations.erase)
            case "affine":
                moves = operations.draw_affine(numbers, size, config.affine_degrees, config.affine_translate)
                places = operations.affine_places(moves, size)
                yield _Step(chosen, places, partial(operations.read, mode="nearest"), overwrites=False)
            case "crop":
                boxes = operations.draw_crop(numbers, size, config.crop_scale, config.crop_ratio)
                places = operations.crop_places(boxes, size)
                yield _Step(chosen, places, partial(operations.read, mode="bilinear"), overwrites=False)
            case "stain":
                factor = _about(1, config.stain_sigma, numbers[:, :2])
                bias = _about(0, config.stain_bias, numbers[:, 2:])
                yield _Step(chosen, operations.stain_maps(factor, bias), operations.restain)
            case "cohort_stain" if stains is not None:
                yield _Step(chosen, stains.draw_maps(numbers), operations.restain)


def _plan_jitter(chosen: Tensor, uniform: Tensor, config: ViewsConfig, colour: bool) -> Iterator[_Step]:
    """Yield colour jitter's parts in a random order of each view: four places, in each some views for every part.

    Of the uniform numbers (N, 8) the first four give the factors and the ranks of the others the order.
    """
    brightness, contrast, saturation, hue = uniform[:, :4].unbind(1)
    parts: list[tuple[float, Tensor, Callable[[Tensor, Tensor], Tensor]]] = [
        (config.brightness, _about(1, config.brightness, brightness), operations.brighten),
        (config.contrast, _about(1, config.contrast, contrast), partial(operations.change_contrast, colour=colour)),
    ]
    if colour:
        parts.append((config.saturation, _about(1, config.saturation, saturation), operations.saturate))
        parts.append((config.hue, operations.hue_shifts(_about(0, config.hue, hue)), operations.turn_hue))
    order = uniform[:, 4 : 4 + len(parts)].argsort(dim=1)  # (N, parts)
    for place in range(len(parts)):
        for part, (reach, parameters, apply) in enumerate(parts):
            if reach > 0:
                yield _Step(chosen & (order[:, place] == part), parameters, apply)


def _blur(images: Tensor, _: Tensor, config: ViewsConfig) -> Tensor:
    return operations.blur(images, config.blur_kernel_px, config.blur_sigma)


def _about(centre: float, reach: float, uniform: Tensor) -> Tensor:
    """Uniform numbers in [0, 1) stretched to `reach` either side of a centre."""
    return between(uniform, (centre - reach, centre + reach))


def _check(images: Tensor, config: ViewsConfig, colour: bool) -> tuple[int, ...]:
    """The images' shape (C, H, W); raises if the operations cannot take them."""
    if images.ndim != 4 or images.dtype != torch.float32 or (colour and images.shape[1] != 3):
        kind = "(N, 3, H, W), red, green and blue," if colour else "(N, C, H, W)"
        raise ValueError(f"images: {tuple(images.shape)} of {images.dtype}; {kind} of float32 is needed.")
    if "stain" in config.ops and not colour:
        raise UserError(
            f"views.ops: 'stain' is among {', '.join(config.ops)}, but the patches are no RGB pictures. Haematoxylin "
            "and eosin are told apart by their colour in red, green and blue. Leave 'stain' out of views.ops."
        )
    return images.shape[1:]


def _check_blur(size: tuple[int, int], config: ViewsConfig) -> None:
    """Refuse a blur that is too wide for views of `size` (H, W)."""
    largest = 2 * min(size) - 1
    if "blur" in config.ops and config.blur_kernel_px > largest:
        raise UserError(
            f"views.blur_kernel_px = {config.blur_kernel_px}: the views are {size[1]} x {size[0]} px "
            f"and are mirrored at their edges once at most. Set {largest} or less, or leave 'blur' out of views.ops."
        )

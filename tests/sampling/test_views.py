"""Views mean what torchvision's transforms mean, one image at a time, and depend on nothing but the generator."""

import itertools
import math
from collections import Counter

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as tv

from hidisc.ground.errors import UserError
from hidisc.sampling import operations
from hidisc.sampling import views as views_module
from hidisc.sampling.views import DRAWS, make_views
from hidisc.settings.train import STRONG, ViewsConfig
from hidisc.slides.stain import LIGHT, REFERENCE

SIZES = [(33, 40), (40, 33), (8, 8), (65, 64)]
CHANNELS = [1, 2, 3, 5]
shapes = pytest.mark.parametrize(("channels", "size"), list(itertools.product(CHANNELS, SIZES)))


def draw_pictures(count: int, channels: int, size: tuple[int, int], seed: int = 0) -> Tensor:
    """Noise with bright and dark places: nothing smooth that would hide a pixel read in the wrong place."""
    rng = np.random.default_rng(seed)
    pictures = rng.beta(0.7, 0.7, (count, channels, *size))
    return torch.from_numpy(pictures.astype(np.float32))


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def by_channel(function, image: Tensor, *args) -> Tensor:
    """torchvision's function on each channel (1, H, W) of a picture (C, H, W), for numbers of channels it refuses."""
    return torch.cat([function(channel[None], *args) for channel in image])


def assert_equal(ours: Tensor, theirs: list[Tensor], atol: float = 1e-5) -> None:
    torch.testing.assert_close(ours, torch.stack(theirs), atol=atol, rtol=0)


# ---- each operation against torchvision's, one picture at a time


FACTORS = torch.tensor([0.0, 0.6, 1.0, 1.4, 2.0])


@shapes
def test_brightness(channels, size):
    pictures = draw_pictures(5, channels, size)
    theirs = [by_channel(tv.adjust_brightness, x, float(f)) for x, f in zip(pictures, FACTORS, strict=True)]
    assert_equal(operations.brighten(pictures.clone(), FACTORS), theirs)


@pytest.mark.parametrize(("channels", "is_colour"), [(1, False), (3, True)])
@pytest.mark.parametrize("size", SIZES)
def test_contrast(channels, is_colour, size):
    pictures = draw_pictures(5, channels, size)
    theirs = [tv.adjust_contrast(x, float(f)) for x, f in zip(pictures, FACTORS, strict=True)]
    assert_equal(operations.change_contrast(pictures.clone(), FACTORS, is_colour), theirs)


@pytest.mark.parametrize("channels", [1, 2, 3, 5])
def test_contrast_without_colour_is_about_the_mean_of_all_channels(channels):
    pictures = draw_pictures(5, channels, (12, 15))
    theirs = [(x * f + x.mean() * (1 - f)).clamp(0, 1) for x, f in zip(pictures, FACTORS, strict=True)]
    assert_equal(operations.change_contrast(pictures.clone(), FACTORS, False), theirs)


@pytest.mark.parametrize("size", SIZES)
def test_saturation(size):
    pictures = draw_pictures(5, 3, size)
    theirs = [tv.adjust_saturation(x, float(f)) for x, f in zip(pictures, FACTORS, strict=True)]
    assert_equal(operations.saturate(pictures.clone(), FACTORS), theirs)


@pytest.mark.parametrize("size", SIZES)
def test_hue(size):
    turns = torch.tensor([-0.5, -0.33, -0.1, -0.01, 0.0, 0.02, 0.1, 0.17, 0.4, 0.5])
    pictures = draw_pictures(len(turns), 3, size)
    pictures[:, :, 0, :6] = torch.tensor([[1.0, 0, 0, 1, 0, 1], [0, 1, 0, 1, 1, 0], [0, 0, 1, 0, 1, 1]])  # the corners
    pictures[:, :, 1, :3] = torch.tensor([0.0, 0.4, 1.0])  # greys have no hue
    pictures[:, :, 2, :2] = torch.tensor([[0.5, 0.9], [0.5000001, 0.9], [0.5, 0.90000004]])  # and these hardly one
    theirs = [tv.adjust_hue(x, float(t)) for x, t in zip(pictures, turns, strict=True)]
    assert_equal(operations.turn_hue(pictures.clone(), operations.hue_shifts(turns)), theirs)


def test_hue_of_the_docstring_s_orange():
    orange = torch.tensor([0.9, 0.5, 0.1]).view(1, 3, 1, 1)
    moved = operations.turn_hue(orange, operations.hue_shifts(torch.tensor([1 / 6])))
    torch.testing.assert_close(moved.flatten(), torch.tensor([0.5, 0.9, 0.1]))


def test_hue_of_every_pair_of_equal_channels():
    levels = torch.tensor(list(itertools.product([0.0, 0.25, 0.5, 1.0], repeat=3))).T.reshape(1, 3, 8, 8)
    for turn in (-0.5, -0.25, 0.0, 1 / 6, 0.3, 0.5):
        ours = operations.turn_hue(levels.clone(), operations.hue_shifts(torch.tensor([turn])))
        assert_equal(ours, [tv.adjust_hue(levels[0], turn)])


@shapes
def test_autocontrast(channels, size):
    pictures = draw_pictures(4, channels, size) * 0.5 + 0.2
    pictures[1, 0] = 0.3  # a flat channel
    theirs = [by_channel(tv.autocontrast, x) for x in pictures]
    assert_equal(operations.autocontrast(pictures.clone()), theirs)


@shapes
@pytest.mark.parametrize("threshold", [0.0, 0.2, 1.0])
def test_solarize(channels, size, threshold):
    pictures = draw_pictures(3, channels, size)
    pictures[:, :, 0, 0], pictures[:, :, 0, 1], pictures[:, :, 0, 2] = threshold, 0.0, 1.0
    assert_equal(
        operations.solarize(pictures.clone(), threshold), [tv.solarize(x, threshold) for x in pictures], atol=0
    )


@shapes
@pytest.mark.parametrize("factor", [0.0, 0.5, 1.0, 2.0, 5.0])
def test_sharpness(channels, size, factor):
    pictures = draw_pictures(3, channels, size)
    theirs = [by_channel(tv.adjust_sharpness, x, factor) for x in pictures]
    assert_equal(operations.sharpen(pictures.clone(), factor), theirs)


@pytest.mark.parametrize("size", [(2, 9), (9, 2), (1, 1), (1, 7)])
def test_sharpness_leaves_pictures_without_an_inside_alone(size):
    pictures = draw_pictures(2, 3, size)
    assert_equal(operations.sharpen(pictures.clone(), 2.0), [tv.adjust_sharpness(x, 2.0) for x in pictures], atol=0)


@shapes
@pytest.mark.parametrize(("kernel_px", "sigma"), [(1, 1.0), (3, 0.4), (5, 1.0), (9, 2.5)])
def test_blur(channels, size, kernel_px, sigma):
    pictures = draw_pictures(3, channels, size)
    if kernel_px > 2 * min(size) - 1:
        pytest.skip("more than the picture can be mirrored")
    theirs = [tv.gaussian_blur(x, [kernel_px, kernel_px], [sigma, sigma]) for x in pictures]
    assert_equal(operations.blur(pictures.clone(), kernel_px, sigma), theirs)


@shapes
def test_erasing(channels, size):
    height, width = size
    boxes = torch.tensor(
        [[0, 0, 3, 5], [2, 1, 1, 1], [height - 4, width - 2, 4, 2], [3, 3, 0, 0], [1, 0, 5, width - 1]]
    )
    pictures = draw_pictures(5, channels, size)
    theirs = [tv.erase(x, *box, torch.zeros(1, 1, 1)) for x, box in zip(pictures, boxes.tolist(), strict=True)]
    assert_equal(operations.erase(pictures.clone(), boxes.float()), theirs, atol=0)


@shapes
def test_affine(channels, size):
    moves = [(0, 0, 0), (0, 3, -2), (7.3, 0, 0), (-10, 4, 1), (89.1, 0, 2), (180, 1, 0), (33.3, -5, 6), (-120.5, 2, 2)]
    pictures = draw_pictures(len(moves), channels, size)
    ours = operations.read(pictures, operations.affine_places(torch.tensor(moves).float(), size), "nearest")
    for image, made, (angle, x, y) in zip(pictures, ours, moves, strict=True):
        theirs = tv.affine(image, angle, [x, y], 1.0, [0.0, 0.0], fill=0)
        # A source within rounding of the border between two pixels may go either way.
        assert (made != theirs).float().mean() <= (0.003 if angle % 90 else 0), (angle, x, y)


def test_affine_of_a_large_picture_reads_the_same_pixels():
    pictures = draw_pictures(4, 3, (300, 280))
    moves = torch.tensor([[-9.7, 20, -55], [3.3, -28, 90], [0.01, 1, 0], [9.99, 0, 0]])
    ours = operations.read(pictures, operations.affine_places(moves, (300, 280)), "nearest")
    for image, made, (angle, x, y) in zip(pictures, ours, moves.tolist(), strict=True):
        theirs = tv.affine(image, angle, [x, y], 1.0, [0.0, 0.0], fill=0)
        assert (made != theirs).float().mean() < 1e-3


@shapes
def test_resized_crop_with_torchvisions_antialiasing(channels, size):
    height, width = size
    boxes = [
        (0, 0, height, width),
        (0, 0, 1, 1),
        (2, 3, 5, 4),
        (height - 3, width - 7, 3, 7),
        (1, 0, height - 1, width),
    ]
    boxes += [(0, 2, height // 2, width // 3), (height // 3, width // 3, height // 2, width // 2)]
    pictures = draw_pictures(len(boxes), channels, size)
    ours = operations.read(pictures, operations.crop_places(torch.tensor(boxes).float(), size), "bilinear")
    theirs = [tv.resized_crop(x, *box, list(size), antialias=True) for x, box in zip(pictures, boxes, strict=True)]
    assert_equal(ours, theirs, atol=1e-4)


def test_resized_crop_of_a_large_picture():
    boxes = [(17, 40, 211, 190), (0, 0, 299, 300), (100, 3, 87, 83), (1, 1, 299, 299)]
    pictures = draw_pictures(len(boxes), 3, (300, 300))
    ours = operations.read(pictures, operations.crop_places(torch.tensor(boxes).float(), (300, 300)), "bilinear")
    theirs = [tv.resized_crop(x, *box, [300, 300], antialias=True) for x, box in zip(pictures, boxes, strict=True)]
    assert_equal(ours, theirs, atol=1e-4)


def restain_pixel(pixel: np.ndarray, factor: np.ndarray, bias: np.ndarray) -> np.ndarray:
    """One pixel (3,) in float64: unmix, change the two amounts, mix again, put back what was of neither stain."""
    od = -np.log((255 * pixel + 1) / LIGHT)
    amounts = np.linalg.lstsq(REFERENCE.vectors, od, rcond=None)[0]
    residual = od - REFERENCE.vectors @ amounts
    light = LIGHT * np.exp(-(REFERENCE.vectors @ (amounts * factor + bias) + residual))
    return np.clip((light - 1) / 255, 0, 1)


def test_stain_against_one_pixel_at_a_time():
    pictures = draw_pictures(4, 3, (5, 6))
    factor = torch.tensor([[1.0, 1.0], [0.8, 1.2], [1.2, 0.8], [1.0, 1.1]])
    bias = torch.tensor([[0.0, 0.0], [0.05, -0.05], [0.0, 0.05], [-0.05, 0.0]])
    ours = operations.restain(pictures.clone(), operations.stain_maps(factor, bias)).numpy()
    for row, (f, b) in enumerate(zip(factor.numpy(), bias.numpy(), strict=True)):
        expected = np.apply_along_axis(restain_pixel, 0, pictures[row].double().numpy(), f, b)
        np.testing.assert_allclose(ours[row], expected, atol=1e-5)


def test_stain_without_sigma_and_bias_is_the_picture():
    pictures = draw_pictures(3, 3, (9, 11))
    config = ViewsConfig(ops=("stain",), probability=1, stain_sigma=0, stain_bias=0)
    views = make_views(pictures, 1, config, generator(), colour=True)
    torch.testing.assert_close(views[:, 0], pictures, atol=1e-5, rtol=0)


def test_noise_is_normal_of_its_sigma_and_clipped():
    grey, sigma = torch.full((3, 3, 200, 200), 0.5), torch.tensor([0.0, 0.02, 0.1])
    noise = operations.add_noise(grey.clone(), sigma, generator()) - grey
    assert noise.std(dim=(1, 2, 3)).tolist() == pytest.approx([0, 0.02, 0.1], rel=0.01, abs=1e-9)
    assert noise.mean(dim=(1, 2, 3)).abs().max() < 1e-3
    loud = operations.add_noise(grey.clone(), torch.full((3,), 2.0), generator())
    assert loud.min() == 0
    assert loud.max() == 1


def draw_noise(shape: tuple[int, ...], start: torch.Generator) -> Tensor:
    """What is added to grey pictures, in standard deviations."""
    sigma = 0.01
    grey = torch.full(shape, 0.5)
    return (operations.add_noise(grey.clone(), torch.full(shape[:1], sigma), start) - grey) / sigma


def test_noise_is_normal_independent_and_the_generators_own():
    shape, start = (2, 3, 301, 299), generator(7)
    first, second = draw_noise(shape, start), draw_noise(shape, start)
    assert first.shape == shape
    assert stats.kstest(first.flatten().numpy(), "norm").pvalue > 0.01
    flat = torch.cat([first, second]).reshape(12, -1).double().numpy()
    assert abs(np.corrcoef(flat) - np.eye(12)).max() < 0.015  # between planes and draws; 4 standard errors
    for lag in (1, 2, 3, 4, 8, 299):
        assert abs(np.corrcoef(flat[:, lag:].ravel(), flat[:, :-lag].ravel())[0, 1]) < 0.005
    same = generator(7)
    assert torch.equal(draw_noise(shape, same), first)
    assert not torch.equal(draw_noise(shape, same), first)
    assert draw_noise((0, 3, 4, 4), same).shape == (0, 3, 4, 4)


def test_noise_differs_between_the_images_and_channels_of_a_batch():
    grey = torch.full((40, 3, 30, 30), 0.5)  # more than are worked on at a time
    noise = operations.add_noise(grey.clone(), torch.linspace(0.01, 0.1, 40), generator()) - grey
    assert noise.std(dim=(1, 2, 3)).tolist() == pytest.approx(torch.linspace(0.01, 0.1, 40).tolist(), rel=0.08)
    correlation = np.corrcoef(noise.flatten(0, 1).flatten(1).double().numpy())
    assert abs(correlation - np.eye(120)).max() < 0.16  # 900 pixels: 5 standard errors


# ---- how parameters are drawn, against torchvision's own draws


def uniforms(rows: int, numbers: int, seed: int = 0) -> Tensor:
    return torch.rand((rows, numbers), generator=generator(seed))


def assert_same_distribution(ours: Tensor, theirs: Tensor) -> None:
    for column in range(ours.shape[1]):
        assert stats.ks_2samp(ours[:, column].numpy(), theirs[:, column].numpy(), method="asymp").pvalue > 1e-3, column


@pytest.mark.parametrize(
    ("size", "scale", "ratio"),
    [((90, 90), (0.02, 0.33), (0.3, 3.3)), ((40, 80), (0.3, 0.9), (0.3, 3.3)), ((12, 50), (0.9, 1.0), (3.0, 3.3))],
)
def test_erasing_boxes_are_drawn_as_torchvision_does(size, scale, ratio):
    ours = operations.draw_erasing(uniforms(4000, operations.BOX_DRAWS), size, scale, ratio)
    torch.manual_seed(1)
    transform, like = v2.RandomErasing(p=1, scale=scale, ratio=ratio), [torch.zeros(1, *size)]
    drawn = [transform.make_params(like) for _ in range(4000)]
    theirs = torch.tensor([[p["i"], p["j"], p["h"], p["w"]] for p in drawn], dtype=torch.float32)
    theirs *= torch.tensor([p["v"] is not None for p in drawn])[:, None]  # nothing is erased after ten tries
    assert_same_distribution(ours, theirs)
    assert_same_distribution(ours[:, 2:].prod(1, keepdim=True), theirs[:, 2:].prod(1, keepdim=True))
    assert (ours[:, 0] + ours[:, 2]).max() <= size[0]
    assert (ours[:, 1] + ours[:, 3]).max() <= size[1]
    assert ours.min() >= 0


def test_nothing_is_erased_where_no_box_fits():
    boxes = operations.draw_erasing(uniforms(50, operations.BOX_DRAWS), (8, 200), (0.5, 0.6), (3.0, 3.3))
    assert boxes.abs().max() == 0


@pytest.mark.parametrize(
    ("size", "scale", "ratio"),
    [
        ((90, 90), (0.08, 1.0), (0.75, 4 / 3)),
        ((40, 80), (0.5, 1.0), (0.75, 4 / 3)),
        ((80, 30), (0.5, 1.0), (0.75, 4 / 3)),
        ((8, 8), (0.01, 0.1), (0.5, 2.0)),
    ],
)
def test_crop_boxes_are_drawn_as_torchvision_does(size, scale, ratio):
    ours = operations.draw_crop(uniforms(4000, operations.BOX_DRAWS), size, scale, ratio)
    torch.manual_seed(1)
    transform, like = v2.RandomResizedCrop(size, scale=scale, ratio=ratio), [torch.zeros(1, *size)]
    drawn = [transform.make_params(like) for _ in range(4000)]
    theirs = torch.tensor([[p["top"], p["left"], p["height"], p["width"]] for p in drawn], dtype=torch.float32)
    assert_same_distribution(ours, theirs)
    assert_same_distribution(ours[:, 2:].prod(1, keepdim=True), theirs[:, 2:].prod(1, keepdim=True))
    assert (ours[:, 0] + ours[:, 2]).max() <= size[0]
    assert (ours[:, 1] + ours[:, 3]).max() <= size[1]
    assert ours[:, 2:].min() >= 1


@pytest.mark.parametrize(
    ("size", "ratio"), [((100, 20), (0.75, 4 / 3)), ((20, 101), (0.75, 4 / 3)), ((30, 30), (0.9, 1))]
)
def test_a_crop_that_never_fits_is_torchvisions_central_one(size, ratio):
    ours = operations.draw_crop(torch.full((3, operations.BOX_DRAWS), 0.999), size, (1.0, 1.0), ratio)
    if size[0] != size[1]:  # of a square, the largest box fits
        params = v2.RandomResizedCrop(size, scale=(1.0, 1.0), ratio=ratio).make_params([torch.zeros(1, *size)])
        assert ours.tolist() == [[params["top"], params["left"], params["height"], params["width"]]] * 3
    else:
        assert operations._central_crop(size, ratio) == (0, 0, 30, 30)


def test_moves_are_drawn_as_torchvision_does():
    size, degrees, translate = (60, 90), 10.0, (0.1, 0.3)
    ours = operations.draw_affine(uniforms(5000, 3), size, degrees, translate)
    torch.manual_seed(1)
    transform, like = v2.RandomAffine(degrees, translate), [torch.zeros(1, *size)]
    drawn = [transform.make_params(like) for _ in range(5000)]
    theirs = torch.tensor([[p["angle"], *p["translate"]] for p in drawn])
    assert_same_distribution(ours, theirs)
    assert torch.equal(ours[:, 1:], ours[:, 1:].round())
    assert ours.abs().amax(0).tolist() == pytest.approx([10, 9, 18], abs=0.05)


def test_a_corner_drawn_at_the_end_of_its_range_is_inside():
    almost = torch.full((1, operations.BOX_DRAWS), 1 - 2**-24)
    for side in (*range(8, 300), 1023, 1024, 1025, 4001):
        boxes = operations.draw_crop(almost, (side, side), (0.01, 0.5), (1.0, 1.0))
        assert (boxes[:, :2] + boxes[:, 2:] == side).all()


def test_jitter_takes_every_order_alike():
    config = ViewsConfig()
    chosen, rows = torch.ones(4800, dtype=torch.bool), torch.arange(4800)
    orders: dict[int, list] = {int(row): [] for row in rows}
    for step in views_module._plan_jitter(chosen, uniforms(4800, 8), config, True):
        for row in rows[step.chosen].tolist():
            orders[row].append(step.apply)
    counts = Counter(tuple(order) for order in orders.values())
    assert len(counts) == 24
    assert all(len(set(order)) == 4 for order in counts)
    assert stats.chisquare(list(counts.values())).pvalue > 0.01


@pytest.mark.parametrize(("name", "low", "high"), [("brightness", 0.6, 1.4), ("contrast", 0.6, 1.4)])
def test_jitter_factors_are_uniform(name, low, high):
    others = {"brightness": 0.0, "contrast": 0.0, "saturation": 0.0, "hue": 0.0}
    config = ViewsConfig(**(others | {name: 0.4}))
    steps = list(views_module._plan_jitter(torch.ones(4000, dtype=torch.bool), uniforms(4000, 8), config, True))
    assert sum(step.chosen.float() for step in steps).eq(1).all()  # what is 0 is left out
    assert stats.kstest(steps[0].parameters.numpy(), stats.uniform(low, high - low).cdf).pvalue > 0.01


# ---- all of it together


def oracle(pictures: Tensor, count: int, config: ViewsConfig, seed: int, is_colour: bool) -> Tensor:
    """Every view by itself, from the same uniform numbers, with torchvision's functions; no noise and no stain."""
    height, width = pictures.shape[2:]
    table = torch.rand((len(pictures) * count, sum(DRAWS[op] for op in config.ops)), generator=generator(seed))
    made = []
    for row, numbers in enumerate(table.double().tolist()):
        image, numbers = pictures[row // count], iter(numbers)
        for op in config.ops:
            u = list(itertools.islice(numbers, DRAWS[op]))
            if op == "flips":
                image = tv.horizontal_flip(image) if u[0] < config.probability else image
                image = tv.vertical_flip(image) if u[1] < config.probability else image
            elif u[0] < config.probability:
                image = oracle_step(op, image, u[1:], (height, width), config, is_colour)
        made.append(image)
    return torch.stack(made).unflatten(0, (len(pictures), count))


def oracle_step(op, image, u, size, config, is_colour):
    height, width = size
    match op:
        case "jitter":
            factors = [1 + r * (2 * v - 1) for r, v in zip((0.4, 0.4, 0.4), u[:3], strict=True)]
            factors.append(config.hue * (2 * u[3] - 1))
            functions = [tv.adjust_brightness, tv.adjust_contrast, tv.adjust_saturation, tv.adjust_hue]
            parts = range(4 if is_colour else 2)
            for part in sorted(parts, key=lambda part: u[4 + part]):
                image = functions[part](image, factors[part])
            return image
        case "autocontrast":
            return tv.autocontrast(image)
        case "solarize":
            return tv.solarize(image, config.solarize_threshold)
        case "sharpness":
            return tv.adjust_sharpness(image, config.sharpness_factor)
        case "blur":
            return tv.gaussian_blur(image, config.blur_kernel_px, config.blur_sigma)
        case "affine":
            moves = [round((2 * v - 1) * r) for v, r in zip(u[1:], (0.1 * width, 0.3 * height), strict=True)]
            return tv.affine(image, config.affine_degrees * (2 * u[0] - 1), moves, 1.0, [0.0, 0.0], fill=0)
    scale, ratio = (
        (config.erase_scale, config.erase_ratio) if op == "erasing" else (config.crop_scale, config.crop_ratio)
    )
    for attempt in range(10):
        area = height * width * (scale[0] + u[attempt] * (scale[1] - scale[0]))
        aspect = math.exp(math.log(ratio[0]) + u[10 + attempt] * (math.log(ratio[1]) - math.log(ratio[0])))
        long, short = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        h, w = (long, short) if op == "erasing" else (short, long)
        if (h < height and w < width) or (op == "crop" and h <= height and w <= width):
            top, left = int(u[20] * (height - h + 1)), int(u[21] * (width - w + 1))
            if op == "erasing":
                return tv.erase(image, top, left, h, w, torch.zeros(1, 1, 1))
            return tv.resized_crop(image, top, left, h, w, [height, width], antialias=True)
    return image


@pytest.mark.parametrize(("channels", "is_colour"), [(3, True), (1, False)])
@pytest.mark.parametrize("probability", [0.3, 1.0])
def test_strong_views_are_torchvisions(channels, is_colour, probability):
    smooth = torch.nn.functional.interpolate(draw_pictures(40, channels, (6, 7)), (40, 44), mode="bicubic").clamp(0, 1)
    ops = tuple(op for op in STRONG if op != "noise")
    config = ViewsConfig(ops=ops, probability=probability)
    ours = make_views(smooth, 3, config, generator(5), colour=is_colour)
    theirs = oracle(smooth, 3, config, 5, is_colour)
    # Nearest pixels may go either way within rounding, and solarizing may tip within rounding of its threshold.
    assert ((ours - theirs).abs() > 1e-3).float().mean() < 2e-3
    assert ((ours - theirs).abs().flatten(2).amax(2) < 1e-3).float().mean() > 0.5


@pytest.mark.parametrize("op", [op for op in STRONG if op not in ("noise", "affine")])
def test_each_op_s_views_are_torchvisions(op):
    pictures = draw_pictures(12, 3, (31, 26))
    config = ViewsConfig(ops=(op,), probability=0.6)
    assert_equal(
        make_views(pictures, 2, config, generator(9), colour=True),
        list(oracle(pictures, 2, config, 9, True)),
        atol=1e-4,
    )


def test_the_docstring_s_mirror():
    pictures = draw_pictures(1, 3, (4, 4))
    along = torch.tensor([-0.75, -0.25, 0.25, 0.75])
    none = torch.zeros(4)
    places = torch.cat([torch.stack([-along, none], dim=1), torch.stack([none, along], dim=1)])
    assert torch.equal(operations.read(pictures, places[None], "nearest"), pictures.flip(3))


@pytest.mark.parametrize("values", [1, 2**13, 2**30])
def test_how_many_are_worked_on_at_a_time_changes_nothing(values, monkeypatch):
    pictures = draw_pictures(9, 3, (24, 20))
    config = ViewsConfig(ops=tuple(op for op in (*STRONG, "stain") if op != "noise"), probability=0.5)
    expected = make_views(pictures, 2, config, generator(), colour=True)
    monkeypatch.setattr(views_module, "CPU_VALUES", values)
    torch.testing.assert_close(make_views(pictures, 2, config, generator(), colour=True), expected, atol=1e-5, rtol=0)


def test_the_order_of_the_ops_is_the_config_s():
    pictures = draw_pictures(4, 3, (16, 16)) * 0.5 + 0.1
    for ops in (("solarize", "autocontrast"), ("autocontrast", "solarize")):
        views = make_views(pictures, 1, ViewsConfig(ops=ops, probability=1), generator(), colour=True)
        expected = pictures.clone()
        for op in ops:
            expected = operations.autocontrast(expected) if op == "autocontrast" else operations.solarize(expected, 0.2)
        assert torch.equal(views[:, 0], expected)


ALL = (*STRONG, "stain")


@pytest.mark.parametrize("op", ALL)
def test_probability_0_is_the_picture_and_1_changes_all(op):
    pictures = draw_pictures(16, 3, (24, 24)) * 0.6 + 0.15
    never = make_views(pictures, 2, ViewsConfig(ops=(op,), probability=0), generator(), colour=True)
    assert torch.equal(never, pictures[:, None].expand_as(never))
    always = make_views(pictures, 2, ViewsConfig(ops=(op,), probability=1), generator(), colour=True)
    assert (always != pictures[:, None]).flatten(2).any(2).all()


@pytest.mark.parametrize("op", ALL)
def test_probability_is_the_share_of_views_that_change(op):
    pictures = draw_pictures(1000, 3, (8, 8)) * 0.6 + 0.15
    views = make_views(pictures, 2, ViewsConfig(ops=(op,), probability=0.3), generator(), colour=True)
    share = (views != pictures[:, None]).flatten(2).any(2).float().mean().item()
    assert share == pytest.approx(0.51 if op == "flips" else 0.3, abs=0.04)  # either flip: 1 - 0.7 squared


def test_flips_are_two_independent_draws():
    picture = draw_pictures(1, 1, (8, 8))
    views = make_views(picture.expand(4000, -1, -1, -1), 1, ViewsConfig(ops=("flips",)), generator(), colour=False)[
        :, 0
    ]
    for dims, share in (((), 0.49), ((3,), 0.21), ((2,), 0.21), ((2, 3), 0.09)):
        found = (views == picture.flip(dims)).flatten(1).all(1).float().mean().item()
        assert found == pytest.approx(share, abs=0.03)


def test_noise_sigma_is_drawn_within_its_range():
    grey = torch.full((300, 1, 40, 40), 0.5)
    config = ViewsConfig(ops=("noise",), probability=1, noise_sigma=(0.01, 0.09))
    sigmas = make_views(grey, 1, config, generator(), colour=False).std(dim=(1, 2, 3, 4))
    assert stats.kstest(sigmas.numpy(), stats.uniform(0.01, 0.08).cdf).pvalue > 0.01


@pytest.mark.parametrize(("sigma", "bias"), [(0.2, 0.0), (0.0, 0.05)])
def test_stain_amounts_are_drawn_uniformly_within_their_ranges(sigma, bias):
    amount = np.array([0.8, 0.5])
    pixel = (LIGHT * np.exp(-REFERENCE.vectors @ amount) - 1) / 255
    pictures = torch.from_numpy(np.tile(pixel.astype(np.float32)[:, None, None], (500, 1, 1, 1)))
    config = ViewsConfig(ops=("stain",), probability=1, stain_sigma=sigma, stain_bias=bias)
    views = make_views(pictures, 1, config, generator(), colour=True)
    od = -np.log((255 * views.double().numpy().reshape(500, 3) + 1) / LIGHT)
    found = np.linalg.lstsq(REFERENCE.vectors, od.T, rcond=None)[0]
    assert abs(np.corrcoef(found)[0, 1]) < 0.15  # each stain by itself
    for stain in range(2):
        reach = sigma * amount[stain] + bias
        assert stats.kstest(found[stain] - amount[stain], stats.uniform(-reach, 2 * reach).cdf).pvalue > 0.01


# ---- a pure function of its arguments


def test_the_same_seed_gives_the_same_views_bit_for_bit():
    pictures = draw_pictures(12, 3, (33, 31))
    first = make_views(pictures, 2, ViewsConfig(ops=ALL), generator(3), colour=True)
    assert torch.equal(make_views(pictures, 2, ViewsConfig(ops=ALL), generator(3), colour=True), first)
    assert not torch.equal(make_views(pictures, 2, ViewsConfig(ops=ALL), generator(4), colour=True), first)
    again = generator(3)
    make_views(pictures, 2, ViewsConfig(ops=ALL), again, colour=True)
    assert not torch.equal(make_views(pictures, 2, ViewsConfig(ops=ALL), again, colour=True), first)


def test_global_randomness_is_neither_read_nor_moved():
    pictures = draw_pictures(8, 3, (20, 20))
    results = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        np.random.seed(seed)  # noqa: NPY002 - the global state is what is watched
        before, numpy_before = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
        results.append(make_views(pictures, 2, ViewsConfig(ops=ALL, probability=0.8), generator(), colour=True))
        assert torch.equal(torch.get_rng_state(), before)
        assert (np.random.get_state()[1] == numpy_before).all()  # noqa: NPY002
    assert torch.equal(*results)


@pytest.mark.parametrize(
    "op", [op for op in ALL if op not in ("flips", "autocontrast", "solarize", "sharpness", "blur")]
)
def test_every_view_of_a_picture_is_drawn_by_itself(op):
    picture = draw_pictures(1, 3, (48, 48)) * 0.6 + 0.2
    config = ViewsConfig(ops=(op,), probability=1)
    views = make_views(picture.expand(3, -1, -1, -1), 2, config, generator(), colour=True).flatten(0, 1)
    assert all(not torch.equal(a, b) for a, b in itertools.combinations(views, 2))


def test_two_views_of_a_picture_differ():
    pictures = draw_pictures(32, 3, (32, 32))
    views = make_views(pictures, 2, ViewsConfig(), generator(), colour=True)
    assert (views[:, 0] != views[:, 1]).flatten(1).any(1).float().mean() > 0.95


@pytest.mark.parametrize("values", [1, 2**30])
def test_the_input_is_not_changed_and_its_layout_does_not_matter(values, monkeypatch):
    monkeypatch.setattr(views_module, "CPU_VALUES", values)
    pictures = draw_pictures(8, 3, (27, 22))
    kept = pictures.clone()
    for op in ALL:
        make_views(pictures, 2, ViewsConfig(ops=(op,), probability=1), generator(), colour=True)
    config = ViewsConfig(ops=ALL, probability=0.8)
    expected = make_views(pictures, 2, config, generator(), colour=True)
    assert torch.equal(pictures, kept)
    assert expected.is_contiguous()
    wide = torch.zeros(8, 3, 27, 44)
    wide[..., ::2] = pictures
    for other in (pictures.contiguous(memory_format=torch.channels_last), wide[..., ::2]):
        assert torch.equal(make_views(other, 2, config, generator(), colour=True), expected)


@pytest.mark.parametrize("values", [1, 4 * 3 * 27 * 22, 2**30])  # one view, four views, all views at a time
def test_bytes_become_floats_a_few_at_a_time_and_memory_is_used_again(values, monkeypatch):
    monkeypatch.setattr(views_module, "CPU_VALUES", values)
    pixels = (draw_pictures(5, 3, (27, 22)) * 255).byte()
    config = ViewsConfig(ops=ALL, probability=0.8)
    expected = make_views(pixels / 255, 3, config, generator(), colour=True)
    memory, seen = torch.full_like(expected, torch.nan), []
    made = make_views(
        pixels, 3, config, generator(), colour=True, to_float=lambda x: seen.append(len(x)) or x / 255, out=memory
    )
    assert torch.equal(made, expected)
    assert made.data_ptr() == memory.data_ptr()
    assert max(seen) == {1: 1, 2**30: 5}.get(values, 2)


def test_no_gradient_is_kept():
    pictures = draw_pictures(2, 3, (16, 16)).requires_grad_()
    assert not make_views(pictures, 2, ViewsConfig(ops=ALL, probability=1), generator(), colour=True).requires_grad


FLAT = {"black": (0, 0, 0), "white": (1, 1, 1), "grey": (0.5, 0.5, 0.5), "pink": (0.9, 0.4, 0.7)}


@pytest.mark.parametrize("colours", FLAT.values(), ids=FLAT)
@pytest.mark.parametrize("ops", [*((op,) for op in ALL), ALL, tuple(reversed(ALL))], ids=str)
def test_views_of_flat_pictures_are_finite_and_in_range(colours, ops):
    pictures = torch.tensor(colours).float().view(1, 3, 1, 1).expand(3, 3, 12, 10)
    views = make_views(pictures, 2, ViewsConfig(ops=ops, probability=1), generator(), colour=True)
    assert views.isfinite().all()
    assert views.min() >= 0
    assert views.max() <= 1


@pytest.mark.parametrize("size", [(8, 8), (8, 31), (3, 3), (64, 48)])
@pytest.mark.parametrize("channels", CHANNELS)
def test_views_of_any_picture_are_finite_and_in_range(channels, size):
    pictures = draw_pictures(200, channels, size)
    ops = ALL if channels == 3 else STRONG
    config = ViewsConfig(ops=ops, probability=0.6, hue=0.5, brightness=1, contrast=1, saturation=1, sharpness_factor=9)
    views = make_views(pictures, 2, config, generator(), colour=channels == 3)
    assert views.shape == (200, 2, channels, *size)
    assert views.dtype == torch.float32
    assert views.isfinite().all()
    assert views.min() >= 0
    assert views.max() <= 1


@pytest.mark.parametrize("count", [0, 1])
@pytest.mark.parametrize("number", [0, 1, 4])
def test_no_picture_and_one_picture(count, number):
    views = make_views(draw_pictures(count, 3, (16, 20)), number, ViewsConfig(ops=ALL), generator(), colour=True)
    assert views.shape == (count, number, 3, 16, 20)


def test_no_ops_give_the_picture():
    pictures = draw_pictures(3, 2, (9, 9))
    views = make_views(pictures, 2, ViewsConfig(ops=()), generator(), colour=False)
    assert torch.equal(views, pictures[:, None].expand_as(views))


def test_channels_that_are_no_colours_keep_their_balance():
    pictures = draw_pictures(20, 3, (16, 16)) * 0.4 + 0.2
    config = ViewsConfig(ops=("jitter",), probability=1, contrast=0)
    views = make_views(pictures, 1, config, generator(), colour=False)[:, 0]
    ratio = views / pictures  # brightness only: one factor a picture
    assert (ratio.flatten(1).std(1) < 1e-5).all()
    coloured = make_views(pictures, 1, config, generator(), colour=True)[:, 0] / pictures
    assert (coloured.flatten(1).std(1) > 1e-2).any()


# ---- what is refused


def test_stain_without_colour_is_refused():
    with pytest.raises(
        UserError,
        match=r"^views\.ops: 'stain' is among flips, stain, but the patches are no RGB pictures\. Haematoxylin and "
        r"eosin are told apart by .* red, green and blue\. Leave 'stain' out of views\.ops\.$",
    ):
        make_views(draw_pictures(1, 2, (8, 8)), 2, ViewsConfig(ops=("flips", "stain")), generator(), colour=False)


def test_a_blur_larger_than_the_patches_is_refused():
    with pytest.raises(UserError, match=r"^views\.blur_kernel_px = 17: the views are 30 x 8 px .* Set 15 or less, or"):
        make_views(draw_pictures(1, 1, (8, 30)), 2, ViewsConfig(blur_kernel_px=17), generator(), colour=False)
    make_views(
        draw_pictures(1, 1, (8, 30)), 2, ViewsConfig(blur_kernel_px=15, probability=1), generator(), colour=False
    )


@pytest.mark.parametrize(
    ("images", "is_colour"),
    [
        (torch.zeros(3, 8, 8), True),
        (torch.zeros(1, 3, 8, 8, dtype=torch.uint8), True),
        (torch.zeros(1, 4, 8, 8), True),
        (torch.zeros(1, 1, 8, 8, dtype=torch.float64), False),
    ],
)
def test_other_images_are_refused(images, is_colour):
    with pytest.raises(ValueError, match=r"^images: \(.*\) of torch\.\w+; \(N, .* of float32 is needed\.$"):
        make_views(images, 2, ViewsConfig(), generator(), colour=is_colour)

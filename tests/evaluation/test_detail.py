"""Two patches are one picture if their detail agrees, whatever was done to the copy; outlines prove nothing."""

from io import BytesIO
from math import atanh, sqrt, tanh
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from scipy.ndimage import affine_transform, gaussian_filter

from hidisc.evaluation import detail
from hidisc.evaluation.detail import find_detail, measure_agreement
from hidisc.settings.evaluate import LeakageConfig

Picture = NDArray[np.uint8]
THRESHOLD = LeakageConfig().detail


def texture(seed: int, size_px: int = 96, contrast: float = 30) -> Picture:
    """Blurred noise, (size_px, size_px, 3), another for every seed."""
    rng = np.random.default_rng(seed)
    drawn = sum(gaussian_filter(rng.normal(size=(size_px, size_px)), width) * width for width in (1.5, 3, 6))
    grey = 128 + contrast * drawn / np.std(drawn)
    return (grey[..., None] * [1, 0.8, 0.9]).clip(20, 235).round().astype(np.uint8)


def eye(seed: int, size_px: int = 96) -> Picture:
    """A smooth tile with the same gradient and the same black corner, and faint detail of its own."""
    y, x = np.mgrid[: 1 : size_px * 1j, : 1 : size_px * 1j]
    light = 150 + 50 * x - 60 * y
    vessels = gaussian_filter(np.random.default_rng(seed).normal(size=(size_px, size_px)), 2) * 25
    tile = (light + vessels)[..., None] * [1, 0.6, 0.5]
    return np.where((x**2 + y**2 > 1.2)[..., None], 2, tile).clip(0, 255).round().astype(np.uint8)


def saved_again(pixels: Picture, quality: int) -> Picture:
    file = BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=quality)
    return np.asarray(Image.open(file))


def agree(ours: NDArray[np.generic], theirs: NDArray[np.generic]) -> float:
    return measure_agreement(find_detail(ours), find_detail(theirs))


def test_one_outline_and_one_light_are_not_one_picture() -> None:
    grey = [np.asarray(Image.fromarray(eye(seed)).convert("L").resize((16, 16)), float).ravel() for seed in (1, 2)]
    assert np.corrcoef(*grey)[0, 1] > 0.99
    assert agree(eye(1), eye(2)) < 0.3
    assert agree(eye(1), saved_again(eye(1)[::-1], 85)) > THRESHOLD


@pytest.mark.parametrize("turns", range(4))
@pytest.mark.parametrize("flip", [False, True])
def test_a_picture_is_itself_in_any_orientation(turns: int, flip: bool) -> None:
    turned = np.rot90(texture(1)[::-1] if flip else texture(1), turns)
    assert agree(texture(1), turned) > 0.95
    assert agree(texture(1), (turned * 0.5).astype(np.uint8)) > 0.95
    assert agree(texture(2), turned) < 0.3


@pytest.mark.parametrize("quality", [90, 50, 30])
def test_a_picture_saved_again_is_itself(quality: int) -> None:
    assert agree(texture(1), saved_again(texture(1), quality)) > 0.9


@pytest.mark.parametrize("shift", [(3, 0), (-2, 5), (7, -11), (12, 12)])
def test_a_shifted_picture_is_itself(shift: tuple[int, int]) -> None:
    wide = texture(1, 128)
    y, x = 16 + shift[0], 16 + shift[1]
    assert agree(wide[16:112, 16:112], wide[y : y + 96, x : x + 96]) > 0.9


@pytest.mark.parametrize("scale", [0.97, 1.03])
def test_a_picture_scanned_again_is_itself(scale: float) -> None:
    """Another scale, blur, white balance and noise, and a fraction of a pixel beside."""
    wide = texture(1, 128).astype(float)
    again = affine_transform(wide, np.array([scale, scale, 1]), np.array([1.3, -0.7, 0]), order=3)
    again = gaussian_filter(again, (0.8, 0.8, 0)) * [0.9, 1.1, 1] + [8, -5, 3]
    again += np.random.default_rng(0).normal(0, 3, again.shape)
    copy = saved_again(again.clip(0, 255).round().astype(np.uint8)[16:112, 16:112], 80)
    assert agree(texture(1, 128)[16:112, 16:112], copy) > 0.9


@pytest.mark.parametrize(("channels", "dtype"), [(1, "uint8"), (2, "uint16"), (3, "uint8"), (4, "uint16")])
def test_any_kind_of_pixels_has_detail(channels: int, dtype: str) -> None:
    pixels = [
        texture(seed)[..., :1].repeat(channels, 2).astype(dtype) * (9 if dtype == "uint16" else 1) for seed in (1, 2)
    ]
    assert agree(pixels[0], pixels[0][:, ::-1]) > 0.9
    assert agree(*pixels) < 0.3


def blank(value: int) -> Picture:
    return np.full((96, 96, 3), value, np.uint8)


def test_what_shows_no_detail_cannot_be_decided() -> None:
    corner = np.where(np.add.outer(range(96), range(96))[..., None] > 120, 0, blank(150))
    glare = blank(255) - (np.arange(96)[:, None, None] // 40).astype(np.uint8)
    defocused = gaussian_filter(texture(1), (30, 30, 0))
    for nothing in (blank(0), blank(130), blank(255), corner, glare, defocused):
        assert np.isnan(agree(nothing, nothing))
        assert np.isnan(agree(nothing, texture(1)))
        assert np.isnan(agree(texture(1), nothing))


def test_faint_detail_is_not_clear() -> None:
    assert find_detail(texture(1)).is_clear
    assert find_detail(saved_again(texture(1), 30)).is_clear
    faint = find_detail((128 + (texture(1).astype(float) - 128) / 9).round().astype(np.uint8))
    assert faint.is_enough
    assert not faint.is_clear


def test_pictures_that_show_other_parts_cannot_be_decided() -> None:
    edge, middle = texture(1), np.zeros_like(texture(1))
    edge[:, 24:], middle[20:76, 20:76] = 0, texture(1)[20:76, 20:76]
    sides = find_detail(edge), find_detail(middle)
    assert all(side.is_enough for side in sides)
    assert np.isnan(measure_agreement(*sides))


def test_agreement_by_chance_is_low() -> None:
    details = [find_detail(texture(seed, 64)) for seed in range(40)]
    found = [measure_agreement(a, b) for i, a in enumerate(details) for b in details[:i]]
    assert max(found) < 0.5


def test_planes_as_least_squares_find_them() -> None:
    rng = np.random.default_rng(0)
    picture = rng.normal(size=(64, 64)).astype(np.float32)
    weight = (rng.random((64, 64)) < 0.7).astype(np.float32)
    weight[20:40, :30] = 0
    planes = detail._fit_planes(picture, weight)
    y, x = np.mgrid[:64, :64]
    for row, column in ((0, 0), (30, 40), (63, 20), (19, 10), (30, 31)):
        weights = weight * np.exp(-((y - row) ** 2 + (x - column) ** 2) / 8)
        total = weights.sum()
        down, right = ((axis - (weights * axis).sum() / total) for axis in (y, x))
        columns = np.stack([np.ones(64 * 64), down.ravel(), right.ravel()], axis=1)
        root = np.sqrt(weights).ravel()
        # slopes are held at 0 by as much as 0.01 square pixels of all weight
        held = np.sqrt(0.01 * total) * np.array([[0, 1, 0], [0, 0, 1]])
        solved = np.linalg.lstsq(
            np.vstack([columns * root[:, None], held]), np.append(picture.ravel() * root, [0, 0]), rcond=None
        )[0]
        at = solved @ [1, down[row, column], right[row, column]]
        assert planes[row, column] == pytest.approx(at, abs=1e-4)


def test_a_plane_leaves_no_detail() -> None:
    y, x = np.mgrid[:64, :64]
    plane = (100 + y + 0.5 * x).astype(np.float32)
    weight = (y + x < 90).astype(np.float32)
    left = (plane - detail._fit_planes(plane, weight))[weight > 0]
    assert np.abs(left).max() < 0.05


def test_independent_values_as_the_spread_of_unrelated_pictures_shows_them() -> None:
    rng = np.random.default_rng(0)
    is_common = np.zeros((64, 64), bool)
    is_common[4:60, :50] = True
    correlations, counts = [], []
    for _ in range(400):
        a, b = (gaussian_filter(rng.normal(size=(64, 64)), 1.5) for _ in range(2))
        a, b = (np.where(is_common, side - side[is_common].mean(), 0).astype(np.float32) for side in (a, b))
        correlations.append(float((a * b).sum() / np.sqrt((a * a).sum() * (b * b).sum())))
        counts.append(detail._count_independent(a, b, is_common))
    assert np.median(counts) == pytest.approx(1 / np.var(correlations), rel=0.15)


def test_the_lower_limit_is_that_of_fisher() -> None:
    ours, theirs = find_detail(texture(1)), find_detail(saved_again(texture(1), 30))
    turned, shift = detail._register(ours, theirs)
    assert shift == (0, 0)
    aligned = detail._align(turned, theirs, shift)
    assert aligned is not None
    correlation, a, b, is_common = aligned
    assert correlation >= np.corrcoef(ours.values[is_common], theirs.values[is_common])[0, 1] - 1e-4
    count = detail._count_independent(a, b, is_common)
    assert 50 < count < is_common.sum()
    assert measure_agreement(ours, theirs) == pytest.approx(tanh(atanh(correlation) - 3 / sqrt(count - 3)), abs=1e-6)


ALIKE = (
    ("102_r1_23", "178_l2_23"), ("91_l2_12", "304_l2_12"), ("10_r1_20", "315_r1_20"), ("262_l1_22", "139_r2_22"),
    ("111_r2_32", "262_l1_31"), ("147_r1_32", "118_l1_31"), ("160_l1_23", "230_l1_23"), ("7_r1_32", "157_l2_23"),
)  # fmt: skip
"""Tiles of different eyes that are most alike of 19,021: one corner, one fall of light, reflexes of one lens."""


def test_tiles_of_different_eyes_are_different(shared_data: Path) -> None:
    def load(name: str) -> Picture:
        return np.asarray(Image.open(shared_data / f"deepdrid/img/P{int(name.split('_')[0]):03}/{name}.jpg"))

    agreements = [agree(load(ours), load(theirs)) for ours, theirs in ALIKE]
    assert not any(agreement >= THRESHOLD for agreement in agreements)
    assert agree(load("102_r1_23"), saved_again(load("102_r1_23")[5:, :-5], 75)) > THRESHOLD


def test_a_scan_under_two_patients_is_found(shared_data: Path) -> None:
    slices = sorted((shared_data / "acdc" / "slices").glob("patient074_*.png"))
    assert len(slices) == 16
    for path in slices:
        ours = np.asarray(Image.open(path))[..., None]
        theirs = np.asarray(Image.open(str(path).replace("074", "076")))[..., None]
        assert agree(ours, np.rot90(saved_again(theirs[..., 0], 85)[..., None])) > THRESHOLD
    assert not agree(ours, np.asarray(Image.open(str(path).replace("074", "075")))[..., None]) > THRESHOLD

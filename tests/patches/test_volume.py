"""Volumes: orientation, slices, window, mask and size, each against something slower or from outside."""

import gzip
import tracemalloc
from itertools import permutations, product
from pathlib import Path

import numpy as np
import pytest

from hidisc.ground.progress import ignore
from hidisc.patches.nifti import find_nifti
from hidisc.patches.volume import MAX_VALUES, ScanTask, Volume, check_size, cut_slices, orient
from hidisc.settings.prepare import VolumesConfig
from hidisc.slides.slide import SlideError
from tests.patches.volumes import SPACING, draw_volume, nibabel, write_nifti


def test_every_order_and_direction_of_axes_comes_back_to_lps() -> None:
    values = draw_volume(0)
    for order, signs in product(permutations(range(3)), product((1, -1), repeat=3)):
        stored = values.transpose(order)
        directions = np.zeros((3, 3))
        for axis, (lps, sign) in enumerate(zip(order, signs, strict=True)):
            directions[lps, axis] = sign
            stored = stored if sign > 0 else np.flip(stored, axis)
        turned, spacing = orient(stored, directions, tuple(SPACING[lps] for lps in order))  # type: ignore[arg-type]
        assert np.array_equal(turned, values)
        assert spacing == SPACING


def test_oblique_volumes_are_turned_as_nibabel_turns_them() -> None:
    rng, values = np.random.default_rng(0), draw_volume(1)
    for _ in range(30):
        tilt = np.linalg.qr(np.eye(3) + rng.normal(0, 0.15, (3, 3)))[0]
        directions = tilt[:, rng.permutation(3)] * rng.choice([-1, 1], 3)
        affine = np.eye(4)
        affine[:3, :3] = np.diag([-1, -1, 1]) @ directions
        orientations = nibabel.orientations
        change = orientations.ornt_transform(
            orientations.io_orientation(affine), orientations.axcodes2ornt(("L", "P", "S"))
        )
        assert np.array_equal(orient(values, directions, SPACING)[0], orientations.apply_orientation(values, change))


def slow_slices(values: np.ndarray, low: float, high: float) -> list[list[list[int]]]:
    """Axial slices, pixel by pixel: rows from front to back, columns from right to left."""
    wide, tall, deep = values.shape
    found = []
    for z in range(deep):
        rows = []
        for y in range(tall):
            share = [(min(max(float(values[x, y, z]), low), high) - low) / (high - low) for x in range(wide)]
            rows.append([round(255 * value) for value in share])
        found.append(rows)
    return found


def test_slices_are_what_a_loop_over_all_values_makes() -> None:
    values = draw_volume(2, (16, 16, 4))
    config = VolumesConfig(size_px=16, percentiles=(10, 90))
    slices = cut_slices(Volume(values, (1.5, 1.5, 6.0)), config)
    ranked = np.sort(values.ravel())
    low, high = (float(np.interp(share * (len(ranked) - 1), range(len(ranked)), ranked)) for share in (0.1, 0.9))
    assert slices.window == pytest.approx((low, high))
    assert (slices.axis, slices.count, slices.spacing_mm) == (2, 4, (1.5, 1.5, 6.0))
    ours = np.stack(list(slices.pixels))[..., 0].astype(int)
    assert np.abs(ours - np.array(slow_slices(values, low, high))).max() <= 1  # halves are rounded to even


@pytest.mark.parametrize(
    ("spacing", "axis", "chosen"),
    [
        ((1, 1, 8), "coarsest", 2),
        ((8, 1, 1), "coarsest", 0),
        ((1, 8, 1), "coarsest", 1),
        ((1, 1, 1), "coarsest", 2),
        ((1.005, 1, 1), "coarsest", 2),  # equal but for rounding
        ((1, 1, 8), "coronal", 1),
    ],
)
def test_slices_lie_across_the_coarsest_axis_unless_told(
    spacing: tuple[float, float, float], axis: str, chosen: int
) -> None:
    slices = cut_slices(Volume(draw_volume(0, (12, 12, 12)), spacing), VolumesConfig(axis=axis, size_px=12))  # type: ignore[arg-type]
    assert slices.axis == chosen
    assert slices.spacing_mm[2] == spacing[chosen]


def test_a_volume_of_one_slice_has_one() -> None:
    slices = cut_slices(Volume(draw_volume(0, (12, 12, 1)), (3, 1, 1)), VolumesConfig(size_px=12))
    assert (slices.axis, slices.count) == (2, 1)


@pytest.mark.parametrize(("axis", "corner"), [("axial", (0, 0, 5)), ("coronal", (0, 5, 11)), ("sagittal", (5, 0, 11))])
def test_slices_are_seen_as_radiologists_see_them(axis: str, corner: tuple[int, int, int]) -> None:
    """The right of the patient (or the front) at the left of the picture; the front (or the head) at the top."""
    values = np.zeros((12, 12, 12), np.float32)
    values[corner] = 1
    slices = cut_slices(Volume(values, (1, 1, 1)), VolumesConfig(axis=axis, size_px=12, window=(0, 1)))  # type: ignore[arg-type]
    pixels = list(slices.pixels)[5]
    assert np.argwhere(pixels[..., 0]).tolist() == [[0, 0]]


def test_the_image_keeps_its_proportions_and_black_is_added() -> None:
    values = np.ones((20, 10, 3), np.float32)  # 20 mm wide, 10 * 2 / 2 = 10 mm tall
    [first, *_] = cut_slices(Volume(values, (1, 1, 5)), VolumesConfig(size_px=20, window=(0, 1))).pixels
    filled = first[..., 0] > 0
    assert filled[5:15].all()
    assert not filled[:5].any()
    assert not filled[15:].any()


def test_a_scale_in_mm_is_the_same_for_volumes_of_all_sizes() -> None:
    config = VolumesConfig(size_px=16, pixel_mm=2.0, window=(0, 1))
    for size, step in ((16, 2.0), (64, 1.0), (8, 2.0)):
        slices = cut_slices(Volume(np.ones((size, size, 2), np.float32), (step, step, 9)), config)
        assert slices.spacing_mm == (2.0, 2.0, 9)
        covered = min(size * step / 2.0, 16)
        [first, *_] = slices.pixels
        assert (first[..., 0] > 127).any(axis=0).sum() == covered


def test_slices_are_cut_around_the_mask() -> None:
    values, mask = np.zeros((40, 40, 3), np.float32), np.zeros((40, 40, 3), bool)
    mask[10:18, 20:28, 1] = True
    values[mask] = 1
    config = VolumesConfig(size_px=8, mask="{name}_gt", margin_mm=0, window=(0, 1))
    slices = cut_slices(Volume(values, (1, 1, 5), mask), config)
    assert [bool(pixels.all()) for pixels in slices.pixels] == [False, True, False]
    wider = cut_slices(Volume(values, (1, 1, 5), mask), config.model_copy(update={"margin_mm": 4.0}))
    assert wider.spacing_mm[0] == pytest.approx(2.0)


def test_values_that_are_not_finite_are_black_and_do_not_move_the_window() -> None:
    values = draw_volume(3)
    window = cut_slices(Volume(values, SPACING), VolumesConfig()).window
    broken = np.concatenate([values, np.full((1, 20, 6), np.nan, np.float32)])
    slices = cut_slices(Volume(broken, SPACING), VolumesConfig(size_px=25, pixel_mm=1.5))
    assert slices.window == window
    with pytest.raises(SlideError, match=r"holds no finite value. Convert it again."):
        cut_slices(Volume(np.full_like(values, np.nan), SPACING), VolumesConfig())


def test_sixteen_bits_keep_what_eight_do_not() -> None:
    values = np.linspace(0, 1, 12 * 12 * 3, dtype=np.float32).reshape(12, 12, 3)
    pixels = [
        np.stack(list(cut_slices(Volume(values, (1, 1, 3)), VolumesConfig(size_px=12, bits=bits)).pixels))
        for bits in (8, 16)
    ]
    assert [array.dtype for array in pixels] == [np.uint8, np.uint16]
    assert len(np.unique(pixels[1])) > len(np.unique(pixels[0]))


def test_what_is_no_volume_is_refused() -> None:
    values = draw_volume(0)
    for spacing in ((0, 1, 1), (1, float("nan"), 1), (1, 1, -2)):
        with pytest.raises(SlideError, match="does not say how far apart its values are"):
            Volume(values, spacing)
    with pytest.raises(SlideError, match=r"the mask has 3 x 3 x 3 values and the volume 24 x 20 x 6"):
        Volume(values, SPACING, np.ones((3, 3, 3), bool))
    with pytest.raises(SlideError, match="the mask is empty"):
        cut_slices(Volume(values, SPACING, np.zeros(values.shape, bool)), VolumesConfig())
    for shape in ((MAX_VALUES, 2, 1), (30000, 30000, 30000), (0, 3, 3)):
        with pytest.raises(SlideError, match="the header says"):
            check_size(shape)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"percentiles": (99, 1)}, "percentiles are two rising numbers"),
        ({"window": (5, 5)}, "window is two rising values"),
        ({"mask": "mask.nii.gz"}, "mask is the name of a file beside the volume"),
        ({"bits": 16, "pixels": {"codec": "jpeg"}}, "JPEG holds 8 bits"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings: dict[str, object], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        VolumesConfig.model_validate(settings)


@pytest.mark.parametrize("share", [0.95, 0.999, 0.99999])
def test_a_volume_that_is_nearly_all_background_is_no_mask(share: float) -> None:
    values = np.zeros((100, 100, 100), np.float32)
    inside = max(5, round((1 - share) * values.size))
    bright = np.linspace(100, 300, inside, dtype=np.float32)
    values.ravel()[:inside] = bright
    low, high = cut_slices(Volume(values, SPACING), VolumesConfig()).window
    assert (low, high) == (0, pytest.approx(np.percentile(bright, 99.5)))
    assert cut_slices(Volume(-values, SPACING), VolumesConfig()).window == (pytest.approx(-high, rel=0.01), 0)


def test_a_volume_of_one_value_is_refused() -> None:
    with pytest.raises(SlideError, match=r"all values of the volume are 7, so there is nothing to see. Leave it out."):
        cut_slices(Volume(np.full((4, 4, 4), 7, np.float32), SPACING), VolumesConfig())


def test_a_header_of_more_than_memory_is_refused_before_it_is_read(tmp_path: Path) -> None:
    shape = (1024, 1024, 512)
    image = nibabel.Nifti1Image(np.zeros((1, 1, 1), np.uint8), np.eye(4))
    image.header.set_data_shape(shape)
    head = image.header.binaryblock + b"\0\0\0\0"
    with gzip.open(tmp_path / "zeros.nii.gz", "wb", compresslevel=1) as file:
        file.write(head + bytes(2**24))
    (tmp_path / "scans/P1").mkdir(parents=True)
    (tmp_path / "zeros.nii.gz").rename(tmp_path / "scans/P1/zeros.nii.gz")
    [(_, files)] = find_nifti(tmp_path / "scans", VolumesConfig()).scans
    tracemalloc.start()
    with pytest.raises(SlideError, match=r"the header says 1,024 x 1,024 x 512 values, and volumes of 1 to 268,435"):
        files.read()
    assert tracemalloc.get_traced_memory()[1] < 10_000_000
    tracemalloc.stop()


def test_a_volume_takes_few_copies(tmp_path: Path) -> None:
    values = draw_volume(0, (256, 256, 64))
    write_nifti(tmp_path / "P1/a.nii.gz", values.astype(np.int16))
    [(row, files)] = find_nifti(tmp_path, VolumesConfig()).scans
    task = ScanTask(row.slide, tmp_path / "out", files, VolumesConfig(), files.paths[0])
    tracemalloc.start()
    task.run(ignore)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 14 * values.size, "bytes per value"


def test_values_that_hardly_differ_and_spacings_that_cannot_be_are_refused() -> None:
    values = np.full((8, 8, 4), -1.7e38, np.float32)
    values[0] = np.nextafter(values[0], 0)
    with pytest.raises(SlideError, match=r"the values of the volume hardly differ: the window would be -1.7e\+38 to"):
        cut_slices(Volume(values, SPACING), VolumesConfig(percentiles=(30, 40)))
    with pytest.raises(SlideError, match=r"so that a slice would have 8,000,000,000 x 8 of them. Correct the spacing"):
        cut_slices(Volume(draw_volume(0, (8, 8, 4)), (1e-9, 1, 2)), VolumesConfig(axis="axial"))

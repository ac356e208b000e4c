"""The drawn slides: the same seed gives the same bytes, OpenSlide reads them, and classes differ by nuclei."""

import csv
from collections import Counter
from pathlib import Path

import numpy as np
import openslide
import pytest
import tifffile

from hidisc.ground.errors import UserError
from hidisc.slides import synthetic
from hidisc.slides.cohort import Cohort
from hidisc.slides.synthetic import (
    DIAGNOSES,
    SITES,
    draw_cohort,
    draw_patient,
    draw_slide,
    draw_staining,
    write_pyramid,
)


def cut_fields(pixels, field_px):
    """Optical density (N, h, w, 3) of the fields of a slide without its glass margin."""
    rows, columns = (side // field_px for side in pixels.shape[:2])
    grid = pixels.reshape(rows, field_px, columns, field_px, 3).swapaxes(1, 2)[1:-1, 1:-1]
    return -np.log(np.maximum(grid.reshape(-1, field_px, field_px, 3), 1) / 255.0)


def draw(label, seed, **options):
    rng = np.random.default_rng(seed)
    return draw_slide(DIAGNOSES[label], draw_staining(SITES["north"], rng), rng, **options)


@pytest.fixture(scope="module")
def cohort(tmp_path_factory):
    return draw_cohort(tmp_path_factory.mktemp("cohort"), patients=8, slides=2, fields=6, field_px=48, seed=3)


@pytest.fixture(scope="module")
def densities():
    """Fields (slide, field, h, w, 3) of each diagnosis: three slides of sixteen fields."""
    return {
        label: np.stack([cut_fields(draw(label, [n, i], fields=16), 48) for i in range(3)])
        for n, label in enumerate(DIAGNOSES)
    }


def test_the_same_seed_gives_the_same_bytes_and_another_does_not(cohort, tmp_path):
    again = draw_cohort(tmp_path / "again", patients=8, slides=2, fields=6, field_px=48, seed=3)
    other = draw_cohort(tmp_path / "other", patients=8, slides=2, fields=6, field_px=48, seed=4)
    assert cohort.read_bytes() == again.read_bytes()
    names = sorted(p.name for p in (cohort.parent / "slides").iterdir())
    assert len(names) == 16
    for name in names:
        drawn = (cohort.parent / "slides" / name).read_bytes()
        assert drawn == (again.parent / "slides" / name).read_bytes()
        assert drawn != (other.parent / "slides" / name).read_bytes()


def test_a_larger_cohort_begins_with_the_smaller_one(cohort, tmp_path):
    small = draw_cohort(tmp_path, patients=1, slides=1, fields=6, field_px=48, seed=3)
    name = "slides/P001-S1.tiff"
    assert (small.parent / name).read_bytes() == (cohort.parent / name).read_bytes()


def test_cohort_csv_reads_as_a_cohort(cohort):
    loaded = Cohort.load(cohort)
    assert loaded.warnings == ()
    assert [(row.patient, row.slide) for row in loaded.slides[:3]] == [
        ("P001", "P001-S1"),
        ("P001", "P001-S2"),
        ("P002", "P002-S1"),
    ]


def test_cohort_csv_is_well_formed_and_balanced(cohort):
    with cohort.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["patient", "slide", "path", "label", "site"]
    assert len({row["slide"] for row in rows}) == len(rows) == 16
    assert all((cohort.parent / row["path"]).is_file() and not Path(row["path"]).is_absolute() for row in rows)
    of_patient = {row["patient"]: (row["label"], row["site"]) for row in rows}
    assert all(of_patient[row["patient"]] == (row["label"], row["site"]) for row in rows)
    assert Counter(label for label, _ in of_patient.values()) == dict.fromkeys(DIAGNOSES, 2)
    assert not list(cohort.parent.rglob("*.part"))


@pytest.mark.parametrize("mpp", [0.25, 0.4972, 1.0])
def test_openslide_reads_the_pyramid_and_its_scale(tmp_path, mpp):
    pixels = draw("large-oval", 0, fields=5, field_px=75, mpp=mpp)
    path = tmp_path / "slide.tiff"
    write_pyramid(path, pixels, mpp, tile_px=128)
    with openslide.OpenSlide(path) as slide:
        assert slide.properties["openslide.vendor"] == "generic-tiff"
        assert float(slide.properties["openslide.mpp-x"]) == pytest.approx(mpp, abs=1e-3)
        assert float(slide.properties["openslide.mpp-y"]) == pytest.approx(mpp, abs=1e-3)
        assert slide.level_dimensions == ((375, 300), (187, 150), (93, 75))
        for level, size in enumerate(slide.level_dimensions):
            seen = np.asarray(slide.read_region((0, 0), level, size))[..., :3].astype(float)
            step = 2**level
            boxes = pixels[: size[1] * step, : size[0] * step].reshape(size[1], step, size[0], step, 3)
            assert np.abs(seen - boxes.mean(axis=(1, 3))).mean() < 3  # JPEG, of 255
    with tifffile.TiffFile(path) as tiff:
        assert not {"DateTime", "Software", "ImageDescription"} & {tag.name for tag in tiff.pages[0].tags}


@pytest.mark.parametrize(("fields", "field_px"), [(1, 300), (7, 48), (20, 48), (4, 128)])
def test_fields_lie_on_the_grid_and_glass_lies_around(fields, field_px):
    pixels = draw("dense-round", 1, fields=fields, field_px=field_px)
    assert pixels.dtype == np.uint8
    assert all(side % field_px == 0 for side in pixels.shape[:2])
    rows, columns = (side // field_px for side in pixels.shape[:2])
    darkness = 255 - pixels.reshape(rows, field_px, columns, field_px, 3).mean(axis=(1, 3, 4))
    assert (darkness > 28).sum() == fields
    inner = darkness[1:-1, 1:-1].reshape(-1)
    assert (inner[:fields] > 28).all()
    assert np.abs(np.delete(darkness.reshape(-1), np.flatnonzero(darkness > 28)) - 17).max() < 6


def test_diagnoses_differ_by_the_area_and_the_grain_of_their_nuclei(densities):
    def covered(od):  # red is absorbed by haematoxylin and hardly by eosin
        red = od[..., 0]
        threshold = np.median(red, axis=(2, 3), keepdims=True) + 0.3
        return (red > threshold).mean()

    share = {label: covered(od) for label, od in densities.items()}
    assert share["large-oval"] > share["dense-round"] > share["sparse-round"]
    assert share["dense-round"] > share["dense-spindle"]


def test_fields_vary_more_than_slides(densities):
    for od in densities.values():
        mean = od.mean(axis=(2, 3))  # (slides, fields, 3)
        within = mean.var(axis=1).mean()
        between = mean.mean(axis=1).var(axis=0).mean()
        assert within > 3 * between


def test_fields_vary_more_than_diagnoses(densities):
    mean = np.stack([od.mean(axis=(2, 3)).reshape(-1, 3) for od in densities.values()])  # (L, fields, 3)
    assert mean.var(axis=1).mean() > 2 * mean.mean(axis=1).var(axis=0).mean()


def test_nuclei_keep_their_size_in_micrometres(monkeypatch):
    monkeypatch.setattr(synthetic, "FIELD_GAIN_SD", 0.0)  # one threshold then suits every field

    def nuclear_area(mpp, field_px):
        rng = np.random.default_rng(5)
        staining = draw_staining(SITES["north"], rng)
        od = cut_fields(
            draw_slide(DIAGNOSES["large-oval"], staining, rng, fields=9, field_px=field_px, mpp=mpp), field_px
        )
        red = od[..., 0]
        return (red > np.median(red, axis=(1, 2), keepdims=True) + 0.3).mean()

    assert nuclear_area(0.25, 192) == pytest.approx(nuclear_area(0.5, 96), rel=0.1)


def test_patients_scatter_around_their_diagnosis():
    centre = DIAGNOSES["sparse-round"]
    drawn = [draw_patient(centre, np.random.default_rng(i)) for i in range(300)]
    density = np.log([m.nuclei_per_mm2 / centre.nuclei_per_mm2 for m in drawn])
    radius = np.log([m.radius_um / centre.radius_um for m in drawn])
    assert density.std() == pytest.approx(0.12, rel=0.15)
    assert radius.std() == pytest.approx(0.06, rel=0.15)
    assert max(m.axis_ratio for m in drawn) <= 1


def test_what_cannot_be_drawn_is_refused_in_a_sentence(tmp_path):
    with pytest.raises(UserError, match=r"patients is 0\. At least 1 is needed"):
        draw_cohort(tmp_path, patients=0)
    with pytest.raises(UserError, match=r"A field of 8 px at 0\.5 um/px cannot be drawn"):
        draw("sparse-round", 0, field_px=8)

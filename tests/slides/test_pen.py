"""Pen marks: drawn strokes are found, and nothing that two stains can be is taken for ink."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

from hidisc.slides.cohort import Cohort
from hidisc.slides.grid import lay_grid
from hidisc.slides.reader import open_slide
from hidisc.slides.resample import read_thumbnail
from hidisc.slides.synthetic import DIAGNOSES, SITES, STAIN_VECTORS, draw_slide, draw_staining
from hidisc.slides.tissue import find_ink, pen_fraction, tissue_fraction
from tests.slides.pens import INKS, draw_pen

MPP = 2.0


def draw(diagnosis: str, ink: str | None) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
    """A slide of 1.5 mm with a stroke of 0.4 mm, and where the stroke is."""
    number = list(DIAGNOSES).index(diagnosis)
    rng = np.random.default_rng(number)
    staining = draw_staining(list(SITES.values())[number % len(SITES)], rng)
    slide = draw_slide(DIAGNOSES[diagnosis], staining, rng, fields=100, field_px=64, mpp=MPP)
    return draw_pen(slide, ink, rng, mpp=MPP) if ink else (slide, np.zeros(slide.shape[:2], bool))


def shrink(slide: NDArray[np.uint8], factor: int) -> NDArray[np.uint8]:
    return np.asarray(Image.fromarray(slide).reduce(factor))


@pytest.mark.parametrize("ink", INKS)
@pytest.mark.parametrize("size_px", [12, 75])
def test_drawn_strokes_are_found_and_tissue_beside_them_is_not(ink: str, size_px: int) -> None:
    """Patches of 24 and 150 um: those that a stroke covers by a quarter, and hardly one without."""
    slide, stroke = draw("dense-round", ink)
    boxes = lay_grid(*slide.shape[1::-1], size_px, size_px, 1.0)
    is_found = pen_fraction(shrink(slide, 4), boxes, 4.0, MPP) > 0.1
    covered = tissue_fraction(stroke, boxes, 1.0)
    assert is_found[covered >= 0.25].mean() >= (0.95 if size_px == 12 else 1)  # recall
    assert (covered[is_found] > 0).mean() >= 0.99  # precision
    assert (covered >= 0.25).sum() > 10


@pytest.mark.parametrize("diagnosis", DIAGNOSES)
def test_a_slide_without_a_stroke_has_none(diagnosis: str) -> None:
    slide, _ = draw(diagnosis, None)
    assert not find_ink(shrink(slide, 4)).any()


def paint(colour: NDArray[np.floating]) -> NDArray[np.uint8]:
    """A disc of glass with one colour in the middle."""
    picture = np.full((30, 30, 3), 243, np.uint8)
    picture[8:22, 8:22] = np.clip(colour, 0, 255).astype(np.uint8)
    return picture


@given(haematoxylin=st.floats(0, 2), eosin=st.floats(0, 2))
def test_no_mixture_of_the_two_stains_is_ink(haematoxylin: float, eosin: float) -> None:
    """Up to five times as dense as tissue is at this scale; beyond, 8 bits show it as black."""
    density = np.array([haematoxylin, eosin]) @ STAIN_VECTORS  # natural logarithm
    assert not find_ink(paint(243 * np.exp(-density))).any()


@pytest.mark.parametrize("ink", INKS)
def test_ink_on_glass_is_found_from_pale_to_dark(ink: str) -> None:
    density = -np.log(np.array(INKS[ink]) / 256)
    for strength in (0.6, 1.0, 1.5):
        found = find_ink(paint(243 * np.exp(-strength * density)))
        assert found[10:20, 10:20].all(), strength
        assert not found[:5].any()


def test_what_a_thumbnail_shows_more_finely_is_judged_at_the_same_scale() -> None:
    """The nuclei of a fine thumbnail are dark and blue by themselves; ink is looked for where they are blended."""
    slide, _ = draw("dense-spindle", "blue")
    boxes = lay_grid(*slide.shape[1::-1], 32, 32, 1.0)
    coarse, fine = (pen_fraction(shrink(slide, factor), boxes, float(factor), MPP) for factor in (4, 1))
    np.testing.assert_allclose(fine, coarse, atol=0.15)
    assert np.abs(fine - coarse).mean() < 0.01


def test_strokes_are_the_same_for_the_same_seed() -> None:
    slide = np.full((90, 120, 3), 240, np.uint8)
    one, other = (draw_pen(slide, "green", np.random.default_rng(5), width_um=10)[0] for _ in range(2))
    np.testing.assert_array_equal(one, other)
    assert (slide == 240).all()


def test_hardly_a_patch_of_real_tissue_is_taken_for_ink(shared_data: Path) -> None:
    """MoNuSAC has no pen marks; patches of 24 um, every fifth region."""
    marked = []
    for row in Cohort.load(shared_data / "monusac" / "cohort.csv").slides[::5]:
        with open_slide(row.path) as slide:
            assert row.mpp is not None
            size_px = round(24 / row.mpp)
            boxes = lay_grid(slide.width, slide.height, size_px, size_px, 1.0)
            marked.append(pen_fraction(read_thumbnail(slide, 4.0), boxes, 4.0, row.mpp) > 0.1)
    assert len(np.concatenate(marked)) > 1000
    assert np.concatenate(marked).mean() < 0.001


def test_the_green_ink_of_a_real_slide_is_found(shared_data: Path) -> None:
    """CMU-1 has green ink, as of a surgical margin, on a tag of tissue at (1860, 1310)."""
    with open_slide(shared_data / "wsi" / "cmu-1-small-region.svs") as slide:
        thumbnail = read_thumbnail(slide, 16.0)
    y, x = np.nonzero(find_ink(thumbnail))
    assert len(y) > 0
    assert np.hypot(x * 16 - 1860, y * 16 - 1310).max() < 100

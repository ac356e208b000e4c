"""DICOM whole-slide images: our reader, an independent one (wsidicom) and the drawing agree."""

from pathlib import Path

import numpy as np
import pytest

from hidisc.patches.store import PatchStore
from hidisc.settings.config import load_config
from hidisc.settings.prepare import PrepareConfig
from hidisc.slides.draft import NamePattern, draft_rows
from hidisc.slides.reader import open_slide
from hidisc.slides.synthetic import DIAGNOSES, SITES, draw_slide, draw_staining
from hidisc.verbs.prepare import draft_cohort, prepare

wsidicom = pytest.importorskip("wsidicom", reason="needs wsidicom, of the extra [dev]")
from tests.slides.dicom import write_dicom  # noqa: E402 - it needs pydicom, which comes with wsidicom


@pytest.fixture(scope="module")
def drawn() -> np.ndarray:
    rng = np.random.default_rng(0)
    return draw_slide(next(iter(DIAGNOSES.values())), draw_staining(SITES["north"], rng), rng, fields=6)


def test_the_pixels_are_those_that_another_reader_gives(drawn: np.ndarray, tmp_path: Path) -> None:
    files = write_dicom(tmp_path / "slide", drawn, 0.5)
    with wsidicom.WsiDicom.open(tmp_path / "slide") as theirs, open_slide(files[0]) as ours:
        assert ours.reader == "openslide"
        assert (ours.width, ours.height) == drawn.shape[1::-1] == (theirs.size.width, theirs.size.height)
        assert ours.mpp == pytest.approx(0.5) == theirs.mpp.width
        assert len(ours.levels) == len(theirs.levels) == 2
        for level, x, y, width, height in ((0, 30, 50, 100, 90), (0, 0, 0, 64, 64), (1, 10, 20, 70, 60)):
            seen = ours.read(level, x, y, width, height)
            other = np.asarray(theirs.read_region((x, y), level, (width, height)).convert("RGB"))
            assert np.abs(seen.astype(int) - other).max() <= 4  # two decoders of JPEG
        seen = ours.read(0, 30, 50, 100, 90).astype(int)
        assert np.abs(seen - drawn[50:140, 30:130]).mean() < 4  # what JPEG costs


def test_any_file_of_a_slide_opens_all_of_it(drawn: np.ndarray, tmp_path: Path) -> None:
    files = write_dicom(tmp_path / "slide", drawn, 0.5)
    for file in files:
        with open_slide(file) as slide:
            assert (slide.width, slide.height, len(slide.levels)) == (*drawn.shape[1::-1], 2)


def test_the_files_of_a_folder_are_drafted_as_one_slide_and_prepared(drawn: np.ndarray, tmp_path: Path) -> None:
    for name in ("P1/a", "P2/b"):
        write_dicom(tmp_path / "in" / name, drawn, 0.5)
    drafted = draft_rows(tmp_path / "in", NamePattern("{patient}/{slide}"))
    assert [(row.names["patient"], row.names["slide"]) for row in drafted.rows] == [("P1", "a"), ("P2", "b")]
    assert [row.doubts for row in drafted.rows] == [["2 DICOM files of one folder are treated as one slide"]] * 2
    draft_cohort(tmp_path / "in" / "P1", tmp_path / "cohort.csv", "{patient}")
    config = load_config(PrepareConfig, None, ["grid.size_px=48", "stain.method=none"])
    prepare(tmp_path / "cohort.csv", tmp_path / "store", config, workers=0)
    store = PatchStore.load(tmp_path / "store")
    x, y = (int(store.table.column(axis)[0]) for axis in ("x", "y"))
    assert np.abs(store.read(0).astype(int) - drawn[y : y + 48, x : x + 48]).mean() < 6


def test_the_part_that_was_scanned_begins_at_the_bounds_of_openslide(
    drawn: np.ndarray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = write_dicom(tmp_path / "slide", drawn, 0.5)
    with open_slide(files[0]) as slide:
        assert slide.origin == (0, 0)
    known = {"openslide.bounds-x": "32752", "openslide.bounds-y": "109084"}  # of an MRXS slide
    monkeypatch.setattr("openslide.OpenSlide.properties", known)
    with open_slide(files[0]) as slide:
        assert slide.origin == (32752, 109084)

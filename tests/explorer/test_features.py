"""Features without a store are explored and painted, at their coordinates on slide files, or as grey squares."""

from pathlib import Path

import h5py
import numpy as np
import pytest

from hidisc import UserError, evaluate, export_geojson, heatmap, import_features, open_slide
from hidisc.explorer.answers import (
    EmptyRequest,
    PatchRequest,
    SimilarRequest,
    SlideRequest,
    draw_patch,
    draw_thumbnail,
    find_alike,
    tell_cohort,
    tell_patch,
    tell_slide,
)
from hidisc.explorer.regions import Selection
from hidisc.explorer.saved import save_patient
from hidisc.explorer.session import Session, open_session
from hidisc.slides.cohort import Cohort
from hidisc.slides.resample import read_scaled
from hidisc.slides.synthetic import draw_cohort
from tests.embeddings.others import write_stamp, write_table, write_trident
from tests.explorer.conftest import JUDGING

EXTENT = 512
"""Level-0 px of the patches in `others`."""


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Drawn slides with `cohort.csv`; features of their patches as TRIDENT has them and in micrometres, and scores."""
    folder = tmp_path_factory.mktemp("lab")
    cohort = Cohort.load(draw_cohort(folder, patients=6, slides=1, fields=8, field_px=300, seed=0))
    rng, features, rows = np.random.default_rng(0), {}, []
    for slide in cohort.slides:
        with open_slide(slide.path) as opened:
            width, height, mpp = opened.width, opened.height, opened.mpp
        corners = [(x, y) for y in range(0, height - EXTENT, EXTENT) for x in range(0, width - EXTENT, EXTENT)]
        features[slide.slide] = rng.normal(size=(len(corners), 12)).astype(np.float32), np.array(corners)
        rows.append({"patient": slide.patient, "slide": slide.slide, "label": slide.label or ""})
    table = write_table(folder / "t.csv", rows)
    import_features(write_trident(folder / "trident", features), table, folder / "features", shown=False)
    import_features(write_stamp(folder / "stamp", features, mpp=mpp), table, folder / "um", shown=False)
    evaluate(folder / "features", folder / "scores", JUDGING)
    return folder


def explore(lab: Path, name: str, with_files: bool) -> Session:
    cohort = lab / "cohort.csv" if with_files else None
    return open_session(lab / name, [lab / "scores"] if name == "features" else [], cohort, lambda _: None)


def truth(lab: Path, session: Session, row: int) -> np.ndarray:
    """The picture of a patch, cut from the slide's file."""
    slide, table = session.slides[session.slide_of[row]].slide, session.store.table
    path = next(each.path for each in Cohort.load(lab / "cohort.csv").slides if each.slide == slide)
    trident = open_session(lab / "features", [], None, lambda _: None).store.table
    assert table.column("slide")[row] == trident.column("slide")[row]
    x, y = (int(trident.column(axis)[row]) for axis in ("x", "y"))
    with open_slide(path) as opened:
        return read_scaled(opened, x, y, 256, 256, EXTENT / 256)


@pytest.mark.parametrize("name", ["features", "um"])
def test_pictures_are_read_at_the_coordinates(lab: Path, name: str) -> None:
    session = explore(lab, name, with_files=True)
    for row in (0, 7, len(session.store) - 1):
        picture = session.store.read(row)
        expected = truth(lab, session, row)
        # micrometres are rounded, so that a picture may be shifted by a px or two
        assert np.abs(picture.astype(int) - expected).mean() <= (0 if name == "features" else 6)
        assert expected.std() > 5
    shown = session.show(0)
    slide = next(iter(Cohort.load(lab / "cohort.csv").slides))
    with open_slide(slide.path) as opened:
        size = opened.width, opened.height
        scale = 1.0 if name == "features" else opened.mpp
        assert np.allclose((shown.width, shown.height), np.array(size) * scale, atol=1)
    assert "The picture is read from" in shown.source
    tile = shown.tile(session.store, shown.levels - 1, 0, 0)
    assert tile.std() > 5


def test_without_slide_files_places_map_and_neighbours_are_there(lab: Path) -> None:
    session = explore(lab, "features", with_files=False)
    assert tell_cohort(session, EmptyRequest())["vectors"] == len(session.store)
    shown = tell_slide(session, SlideRequest(slide=0))
    assert "imported without pictures" in shown["source"]
    assert shown["corners"][1] == [EXTENT, 0]
    assert shown["extent"] == EXTENT
    assert tell_patch(session, PatchRequest(row=1))["corner"] == [EXTENT, 0]
    assert (session.store.read(3) == 214).all()
    assert draw_patch(session, PatchRequest(row=3))
    assert draw_thumbnail(session, SlideRequest(slide=0))
    similar = find_alike(session, SimilarRequest(region=Selection(rows=[0]), most=5))
    assert len(similar["rows"]) == 5


def test_one_patient_is_saved(lab: Path, tmp_path: Path) -> None:
    session = explore(lab, "features", with_files=True)
    assert save_patient(session, session.slides[0].patient, tmp_path / "saved") == 1
    assert (tmp_path / "saved" / "index.html").is_file()


def test_a_heatmap_is_painted_on_the_slide_file(lab: Path, tmp_path: Path) -> None:
    slides = open_session(lab / "features", [], None, lambda _: None).store.table
    slide = str(slides.column("slide")[slides.column("split") == "test"][0])
    with pytest.raises(UserError, match=r"were imported without pictures. Give the slide file of .* to paint on"):
        heatmap(lab / "features", lab / "scores", slide, tmp_path / "map.png")
    picture = heatmap(lab / "features", lab / "scores", slide, tmp_path / "map.png", cohort=lab / "cohort.csv")
    assert picture.stat().st_size > 10_000


def test_sizes_that_no_file_says_are_the_distance_of_neighbours(lab: Path, tmp_path: Path) -> None:
    for path in (lab / "trident").rglob("*.h5"):
        (tmp_path / "bare").mkdir(exist_ok=True)
        with h5py.File(path) as old, h5py.File(tmp_path / "bare" / path.name, "w") as new:
            new["features"], new["coords"] = old["features"][:], old["coords"][:]
    import_features(tmp_path / "bare", lab / "t.csv", tmp_path / "emb", shown=False)
    session = open_session(tmp_path / "emb", [], lab / "cohort.csv", lambda _: None)
    assert session.show(0).extent == EXTENT
    with pytest.raises(UserError, match="were imported without the size of a patch on its slide, of "):
        export_geojson(tmp_path / "emb", tmp_path / "boxes")

"""`hidisc export --to geojson`, read as QuPath reads it; and annotations that go into a store and come out of it."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from shapely.geometry import box, shape

import hidisc.patches.cut
from hidisc.artefacts.artefact import verify
from hidisc.embeddings.embeddings import Embeddings
from hidisc.evaluation.scores import Scores
from hidisc.ground.errors import UserError
from hidisc.patches.annotations import Region, make_box, read_geojson, write_geojson
from hidisc.patches.store import PatchStore
from hidisc.settings.config import load_config
from hidisc.settings.prepare import PrepareConfig
from hidisc.slides.reader import open_slide
from hidisc.slides.slide import Slide
from hidisc.slides.synthetic import draw_cohort
from hidisc.verbs.export_vectors import export_geojson
from hidisc.verbs.prepare import prepare
from tests.commands import Forks
from tests.evaluation.made import make_embeddings
from tests.reporting.judged import make_scores
from tests.reporting.test_heatmap import embed_store


def prepared(
    cohort: Path, out: Path, *changes: str, refilter: bool = False, said: list[str] | None = None
) -> PatchStore:
    config = load_config(PrepareConfig, None, ["grid.size_px=24", "grid.mpp=1.0", *changes])
    prepare(cohort, out, config, workers=0, refilter=refilter, say=(said if said is not None else []).append)
    return PatchStore.load(out)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cohort, its `store` of patches of 48 level-0 px, `embeddings` and `scores`."""
    folder = tmp_path_factory.mktemp("home")
    store = prepared(draw_cohort(folder, patients=4, slides=1, fields=12, seed=3), folder / "store")
    make_scores(folder / "scores", embed_store(folder / "embeddings", store))
    return folder


def features_of(path: Path) -> list[dict[str, Any]]:
    return json.loads(path.read_bytes())["features"]


def test_boxes_lie_where_their_patches_do_and_have_their_labels(home: Path, tmp_path: Path) -> None:
    assert export_geojson(home / "embeddings", tmp_path / "out") == 4
    table = Embeddings.load(home / "embeddings").table
    for slide, rows in table.rows_by("slide").items():
        features = features_of(tmp_path / "out" / f"{slide}.geojson")
        assert len(features) == len(rows)
        for feature, x, y, label in zip(
            features, *(table.column(name)[rows] for name in ("x", "y", "label")), strict=True
        ):
            assert shape(feature["geometry"]).hausdorff_distance(box(x, y, x + 48, y + 48)) < 1
            assert feature["properties"]["objectType"] == "tile"
            assert feature["properties"]["classification"]["name"] == label
    assert verify(tmp_path / "out") == []
    before = {path: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    assert export_geojson(home / "embeddings", tmp_path / "out") == 4
    assert {path: path.read_bytes() for path in (tmp_path / "out").iterdir()} == before


def test_scores_become_predicted_classes_with_measurements(home: Path, tmp_path: Path) -> None:
    patches = Scores.load(home / "scores").predictions("knn", "patch")
    slides = sorted(set(patches.units["slide"]))
    assert export_geojson(home / "scores", tmp_path / "out") == len(slides)
    assert sorted(path.stem for path in (tmp_path / "out").glob("*.geojson")) == slides
    rows = np.flatnonzero(patches.units["slide"] == slides[0])
    for row, feature in zip(rows, features_of(tmp_path / "out" / f"{slides[0]}.geojson"), strict=True):
        properties = feature["properties"]
        assert properties["classification"]["name"] == patches.classes[patches.predicted[row]]
        assert properties["measurements"] == {
            f"score: {name}": pytest.approx(patches.scores[row, code]) for code, name in enumerate(patches.classes)
        }


def test_no_patient_is_named_inside(home: Path, tmp_path: Path) -> None:
    export_geojson(home / "scores", tmp_path / "out")
    patients = set(PatchStore.load(home / "store").table.column("patient"))
    for file in (tmp_path / "out").glob("*.geojson"):
        assert not any(patient in file.read_text() for patient in patients)


def test_what_has_no_place_on_a_slide_is_refused(home: Path, tmp_path: Path) -> None:
    made = make_embeddings(tmp_path / "emb")
    with pytest.raises(
        UserError, match=r"the store .*emb/store is not there, or has changed since. It says how large a"
    ):
        export_geojson(made.path, tmp_path / "out")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text("{}")
    with pytest.raises(
        UserError, match=r"run is a run, and --to geojson writes embeddings. Make them with `hidisc embed"
    ):
        export_geojson(tmp_path / "run", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_annotation_labels_and_excludes_without_reading_a_slide(home: Path, tmp_path: Path) -> None:
    cohort, out = home / "cohort.csv", tmp_path / "store"
    plain = prepared(cohort, out)
    table = plain.table
    slide = str(table.column("slide")[0])
    rows = np.flatnonzero(table.column("slide") == slide)
    x, y = table.column("x"), table.column("y")
    drawn = tmp_path / "drawn"
    drawn.mkdir()
    regions = [
        Region(make_box(float(x[rows[0]]), float(y[rows[0]]), 48, 48), "tumour"),
        Region(make_box(float(x[rows[1]]), float(y[rows[1]]), 10, 48), "pen"),
    ]
    write_geojson(drawn / f"{slide}.geojson", regions)
    annotate = (f"annotations.path={drawn}", "annotations.exclude=[pen]")
    with pytest.raises(UserError, match=r"annotations.path: None -> .* changed annotations need no reading again: add"):
        prepared(cohort, out, *annotate)
    said: list[str] = []
    store = prepared(cohort, out, *annotate, refilter=True, said=said)
    assert any("none is read again" in line for line in said)
    assert len(store) == len(plain) - 1
    marks = dict(
        zip(
            zip(*(store.table.column(n) for n in ("slide", "patch")), strict=True),
            store.table.column("annotation"),
            strict=True,
        )
    )
    assert {key for key, name in marks.items() if name} == {(slide, table.column("patch")[rows[0]])}
    assert set(marks.values()) == {"tumour", None}
    dropped = store.dropped()
    assert [
        patch for patch, name in zip(dropped.column("patch"), dropped.column("annotation"), strict=True) if name
    ] == [table.column("patch")[rows[1]]]
    assert store.checksum != plain.checksum

    write_geojson(drawn / f"{slide}.geojson", [*regions[1:], Region(regions[0].polygons, "stroma")])
    assert set(prepared(cohort, out, *annotate).table.column("annotation")) == {"stroma", None}  # as a changed label is
    prepared(cohort, tmp_path / "fresh", *annotate)
    for name in ("patches.parquet", "dropped.parquet"):
        assert (out / name).read_bytes() == (tmp_path / "fresh" / name).read_bytes()
    back = prepared(cohort, out, refilter=True)
    assert back.checksum == plain.checksum


def test_coordinates_begin_where_those_of_qupath_do(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is no small MRXS file; a slide that says it begins elsewhere takes its place."""

    def open_elsewhere(path: Path) -> Slide:
        slide = open_slide(path)
        slide.origin = (30, 20)
        return slide

    monkeypatch.setattr(hidisc.patches.cut, "open_slide", open_elsewhere)
    cohort, out = home / "cohort.csv", tmp_path / "store"
    store = prepared(cohort, out)
    assert {store.record(entry).origin for entry in store.info.slides} == {(30, 20)}
    export_geojson(embed_store(tmp_path / "emb", store).path, tmp_path / "boxes")
    table = store.table
    slide, x, y = (table.column(name)[0] for name in ("slide", "x", "y"))
    first = features_of(tmp_path / "boxes" / f"{slide}.geojson")[0]
    assert first["geometry"]["coordinates"][0][0] == [x - 30, y - 20]
    again = prepared(cohort, out, f"annotations.path={tmp_path / 'boxes'}", refilter=True)
    assert list(again.table.column("annotation")) == list(again.table.column("label"))


def test_what_is_exported_can_be_given_back_as_annotations(home: Path, tmp_path: Path) -> None:
    """There and back: every patch gets its own label again."""
    export_geojson(home / "embeddings", tmp_path / "out")
    for file in (tmp_path / "out").glob("*.geojson"):
        write_geojson(tmp_path / file.name, read_geojson(file))
    again = prepared(home / "cohort.csv", tmp_path / "store", f"annotations.path={tmp_path}")
    assert list(again.table.column("annotation")) == list(again.table.column("label"))


def test_the_commands(home: Path, tmp_path: Path, forks: Forks) -> None:
    done = forks.run("export", home / "scores", "--to", "geojson", "--out", tmp_path / "007")
    assert done.result == f"{tmp_path / '007'}: geojson of 1 slide\n"
    words = ("prepare", home / "cohort.csv", "--set", "grid.size_px=48", "--workers", "0", "--out", tmp_path / "store")
    done = forks.run(*words, "--annotations", "007", folder=tmp_path)
    assert done.code == 0, done.said
    assert "annotation" in PatchStore.load(tmp_path / "store").table.columns

"""The colour floor of an evaluation: what `embed colour` and an evaluation of it would give, on the same patients."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from hidisc.embeddings.embeddings import PATCHES, Embeddings
from hidisc.evaluation import compare as table_module
from hidisc.evaluation import floors as floors_module
from hidisc.evaluation.compare import Difference, Trainings, compare
from hidisc.evaluation.floors import FloorVectors, measure_colour
from hidisc.evaluation.predictions import Predictions
from hidisc.evaluation.task import choose_task
from hidisc.patches.table import SCHEMA, PatchTable
from hidisc.settings.config import load_config
from hidisc.settings.evaluate import BootstrapConfig, EvaluateConfig
from hidisc.verbs.embed import embed
from hidisc.verbs.evaluate import evaluate
from tests.finished import refinish
from tests.said import Said
from tests.training.stores import make_store


def settings(*changes: str) -> EvaluateConfig:
    return load_config(EvaluateConfig, None, ["knn.k=5", "bootstrap.resamples=50", "probes=[knn, linear]", *changes])


@pytest.fixture(scope="module")
def embeddings(tmp_path_factory: pytest.TempPathFactory) -> Embeddings:
    folder = tmp_path_factory.mktemp("tiny")
    made = embed(make_store(folder), "timm:test_resnet", folder / "e", device="cpu", shown=False)
    assert made is not None
    return made


@pytest.mark.parametrize("folds", ["folds.number=0", "folds.number=2"])
def test_it_is_an_evaluation_of_the_colour_encoder(embeddings: Embeddings, tmp_path: Path, folds: str) -> None:
    colour = embed(embeddings.path / embeddings.info.store, "colour", tmp_path / "c", device="cpu", shown=False)
    assert colour is not None
    alone = evaluate(colour.path, tmp_path / "alone", settings(folds, "floor=false"))
    beside = evaluate(embeddings.path, tmp_path / "beside", settings(folds))
    assert alone.info.floors == ()
    (floor,) = beside.info.floors
    assert (floor.subject, floor.title, floor.patches) == ("colour", "colour alone", len(embeddings))
    for probe in ("knn", "linear"):
        for level in ("patch", "slide", "patient"):
            one, other = alone.predictions(probe, level), beside.predictions(probe, level, subject="colour")
            assert one.clusters.tolist() == other.clusters.tolist()
            assert np.allclose(one.scores, other.scores, atol=1e-4)
    ours, theirs = (scored.info.find("patch") for scored in (beside, alone))
    assert ours is not None
    assert theirs is not None
    ahead = floor.ahead["patch"]["accuracy"].value
    assert ahead == pytest.approx((ours.metrics["accuracy"].value or 0) - (theirs.metrics["accuracy"].value or 0))


def with_sites(made: Embeddings) -> Embeddings:
    """The same folder with two sites, one of mostly bright slides: aligned by site, colour tells less of the label."""
    bright, slides = made.table.column("label") == "b", made.table.column("slide")
    swapped = np.isin(slides.astype(str), ["P0/P0-y", "P1/P1-y", "P2/P2-y", "P3/P3-y"])
    sites = [f"site {int(is_high)}" for is_high in bright ^ swapped]
    place = SCHEMA.get_field_index("site")
    values = pa.array(sites, pa.string()).cast(SCHEMA.field(place).type)
    PatchTable(made.table.arrow.set_column(place, SCHEMA.field(place), values)).save(made.path / PATCHES)
    refinish(made.path)
    return Embeddings.load(made.path)


@pytest.mark.parametrize("folds", ["folds.number=0", "folds.number=2"])
@pytest.mark.parametrize("align", ["null", "site"])
def test_colour_against_itself_is_exactly_nothing_ahead(tmp_path: Path, folds: str, align: str) -> None:
    store = make_store(tmp_path)
    colour = embed(store, "colour", tmp_path / "c", device="cpu", shown=False)
    assert colour is not None
    made = with_sites(colour)
    scores = evaluate(made.path, tmp_path / "s", settings(folds, f"align={align}", "audit=false"))
    (floor,) = scores.info.floors
    assert floor.patches == len(made)
    differences = [value for ahead in floor.ahead.values() for value in ahead.values() if value.value is not None]
    assert len(differences) >= 9
    assert {value.value for value in differences} == {0.0}
    assert {end for value in differences for end in (value.low, value.high)} <= {0.0, None}


@pytest.mark.parametrize("most", [10**6, 40])
@pytest.mark.parametrize("changes", [(), ("folds.number=2",), ("align=site", "probes=[mil, knn]")], ids=str)
def test_it_stands_on_the_rows_of_the_encoder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int, changes: tuple[str, ...]
) -> None:
    """Every unit of the floor is one of the encoder and the other way round; of a sample, both are judged on it."""
    compared: list[tuple[Predictions, Predictions]] = []

    def listen(a: Trainings, b: Trainings, config: BootstrapConfig, seed: int) -> dict[str, Difference]:
        compared.append((a[0][0], b[0][0]))
        return compare(a, b, config, seed)

    monkeypatch.setattr(floors_module, "_MOST", most)
    monkeypatch.setattr(table_module, "compare", listen)
    store = make_store(tmp_path, scales=(0.5, 1.0))
    encoder = embed(store, "timm:test_resnet", tmp_path / "e", device="cpu", shown=False)
    assert encoder is not None
    made = with_sites(encoder)
    scores = evaluate(made.path, tmp_path / "s", settings("audit=false", "mil.epochs=1", *changes))
    (floor,) = scores.info.floors
    assert floor.patches == min(len(made), most)
    rows = {row.key: scores.read().predictions[row.key] for row in scores.info.judged}
    floors = [key for key in rows if key.subject == "colour"]
    assert {replace(key, subject="encoder") for key in floors} == {key for key in rows if key.subject == "encoder"}
    assert any(key.subject == "encoder-on-colour" for key in rows) == (most == 40)
    assert {key.scale for key in floors} == {None, 0.5, 1.0}
    for key in floors:
        ours, theirs = (name_units(rows[each]) for each in (replace(key, subject="encoder"), key))
        assert set(theirs) <= set(ours)
        assert most == 40 or len(theirs) == len(ours)
    assert compared
    for encoder_units, floor_units in compared:
        assert name_units(encoder_units) == name_units(floor_units)
        assert encoder_units.truth.tolist() == floor_units.truth.tolist()


def name_units(predictions: Predictions) -> list[tuple[object, ...]]:
    """Its units by their names, patches by their row too."""
    return list(zip(*(column.tolist() for column in predictions.units.values()), strict=True))


def test_of_many_patches_some_of_every_slide_are_measured(
    embeddings: Embeddings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(floors_module, "_MOST", 40)
    found = measure_colour(embeddings, EvaluateConfig())
    assert isinstance(found, FloorVectors)
    slides, counts = np.unique(embeddings.table.column("slide")[found.rows].astype(str), return_counts=True)
    assert len(slides) == 16
    assert sorted(set(counts)) == [2, 3]
    assert len(found.vectors) == len(found.rows) == 40


def test_without_the_store_it_is_left_out_and_said(embeddings: Embeddings, tmp_path: Path) -> None:
    alone = tmp_path / "e"
    shutil.copytree(embeddings.path, alone)
    said: list[str] = []
    scores = evaluate(alone, tmp_path / "s", settings(), progress=Said(said))
    assert scores.info.floors == ()
    note = "note: colour alone is not judged beside it: the store 'store' is not there, or has changed"
    assert any(sentence.startswith(note[:40]) for sentence in said), said


def test_a_floor_exchanges_vectors_and_nothing_else(embeddings: Embeddings) -> None:
    config = settings()
    task = choose_task(embeddings, embeddings, config)
    rows = np.arange(0, len(embeddings), 3)
    vectors = np.random.default_rng(0).normal(size=(len(rows), 4)).astype(np.float32)
    floor = FloorVectors("colour", rows, vectors)
    encoder, exchanged = floor.choose(task), floor.exchange(task)
    for ours, theirs in ((encoder.bank, exchanged.bank), (encoder.queries, exchanged.queries)):
        assert ours.rows.tolist() == theirs.rows.tolist()
        assert set(ours.rows) <= set(rows)
        assert ours.labels.tolist() == theirs.labels.tolist()
        np.testing.assert_array_equal(ours.vectors(), embeddings.vectors[ours.rows])
        np.testing.assert_array_equal(theirs.vectors(), [vectors[list(rows).index(row)] for row in theirs.rows])
    assert len(exchanged) == len(encoder) == np.isin(rows, [*task.bank.rows, *task.queries.rows]).sum()

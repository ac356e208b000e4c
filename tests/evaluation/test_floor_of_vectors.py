"""The floors of vectors: those that a map started from, and these whitened within slides by the reference patients."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from hidisc.embeddings.embeddings import EMBEDDINGS, Embeddings
from hidisc.evaluation import floors as floors_module
from hidisc.evaluation.floors import FloorVectors, measure_floors, measure_start, measure_whitened
from hidisc.evaluation.task import choose_task
from hidisc.ground.progress import SILENT
from hidisc.models.linear_maps import measure_moments, whiten
from hidisc.sampling.hierarchy import Hierarchy
from hidisc.settings.config import load_config
from hidisc.settings.evaluate import EvaluateConfig
from hidisc.settings.train import TrainConfig
from hidisc.verbs.embed import embed
from hidisc.verbs.evaluate import evaluate
from hidisc.verbs.train import train
from tests.evaluation.made import make_embeddings
from tests.finished import refinish
from tests.said import Said


def settings(*changes: str) -> EvaluateConfig:
    return load_config(EvaluateConfig, None, ["knn.k=5", "bootstrap.resamples=20", "probes=[knn]", *changes])


def make_foreign(folder: Path, **shape: int) -> Embeddings:
    """Vectors of an encoder of others, of which nothing is known."""
    made = make_embeddings(folder, learned=None, **shape)
    card = made.info.model.model_copy(update={"kind": "onnx", "seed": None, "objective": None})
    (made.path / EMBEDDINGS).write_text(made.info.model_copy(update={"model": card}).model_dump_json())
    refinish(made.path)
    return Embeddings.load(made.path)


def put_map_behind(start: Embeddings, out: Path, recipe: str) -> Embeddings:
    train(start.path, out / "run", load_config(TrainConfig, recipe), device="cpu", devices=1)
    made = embed(start.path, out / "run", out / "mapped", device="cpu", devices=1, shown=False)
    assert made is not None
    return made


def test_whitened_vectors_are_those_of_a_map_of_the_reference_patients(tmp_path: Path) -> None:
    foreign = make_foreign(tmp_path / "e", patients=10)
    floor = measure_whitened(foreign, settings())
    assert isinstance(floor, FloorVectors)
    task = choose_task(foreign, foreign, settings())
    given = floor.exchange(task)
    rows = foreign.table.in_splits(("train",), "", foreign.path)
    parts = measure_moments(foreign.vectors, Hierarchy().grow(foreign.table, rows), "")
    expected = whiten(parts, 16, None, 1, "")
    for part in (given.bank, given.queries):
        np.testing.assert_allclose(part.vectors(), expected.apply(foreign.vectors[part.rows]), atol=1e-4)
    assert given.queries.labels.tolist() == task.queries.labels.tolist()


def test_test_patients_have_no_part_in_it(tmp_path: Path) -> None:
    foreign = make_foreign(tmp_path / "e")
    before = _whiten(foreign)
    vectors = np.array(foreign.vectors)
    vectors[foreign.table.in_splits(("test",), "", foreign.path)] += 100
    np.save(foreign.path / "embeddings.npy", vectors)
    refinish(foreign.path)
    np.testing.assert_array_equal(_whiten(Embeddings.load(foreign.path)), before)


def _whiten(embeddings: Embeddings) -> np.ndarray:
    """The bank of the floor."""
    floor = measure_whitened(embeddings, settings())
    assert isinstance(floor, FloorVectors)
    return floor.exchange(choose_task(embeddings, embeddings, settings())).bank.vectors()


def test_it_is_judged_beside_an_encoder_of_others_and_pooled_over_folds(tmp_path: Path) -> None:
    foreign = make_foreign(tmp_path / "e")
    for folds in ("folds.number=0", "folds.number=3"):
        scores = evaluate(foreign.path, tmp_path / folds, settings(folds))
        assert [floor.subject for floor in scores.info.floors] == ["whitened"]
        assert scores.info.floors[0].title == "whitening within slides"
        assert set(scores.info.floors[0].ahead) == {"patch", "slide", "patient"}


def test_an_encoder_that_was_trained_here_has_no_such_floor(tmp_path: Path) -> None:
    """What it started from is not in its embeddings."""
    ours = make_embeddings(tmp_path / "e")
    assert (measure_start(ours, settings()), measure_whitened(ours, settings())) == (None, None)


@pytest.mark.parametrize(("recipe", "subjects"), [("centre", ["start", "whitened"]), ("whiten-within", ["start"])])
def test_a_map_is_judged_beside_the_vectors_it_started_from(recipe: str, subjects: list[str], tmp_path: Path) -> None:
    start = make_embeddings(tmp_path / "e", learned=False)
    alone = evaluate(start.path, tmp_path / "alone", settings())
    mapped = put_map_behind(start, tmp_path, recipe)
    beside = evaluate(mapped.path, tmp_path / "beside", settings())
    assert [floor.subject for floor in beside.info.floors] == subjects
    for level in ("patch", "slide", "patient"):
        one, other = alone.predictions("knn", level), beside.predictions("knn", level, subject="start")
        np.testing.assert_allclose(one.scores, other.scores, atol=1e-5)


def test_a_start_that_is_gone_or_has_changed_is_said(tmp_path: Path) -> None:
    start = make_embeddings(tmp_path / "e", learned=False)
    mapped = put_map_behind(start, tmp_path, "centre")
    shutil.move(start.path, tmp_path / "elsewhere")
    said: list[str] = []
    evaluate(mapped.path, tmp_path / "scores", settings(), progress=Said(said))
    wanted = "note: its start is not judged beside it: 'e', which holds these vectors, is not there"
    assert any(sentence.startswith(wanted) for sentence in said), said
    make_embeddings(tmp_path / "e", learned=False, seed=1)
    assert isinstance(measure_start(mapped, settings()), str)


def test_of_many_patches_a_sample_is_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(floors_module, "_MOST", 100)
    foreign = make_foreign(tmp_path / "e")
    floors = measure_floors(foreign, choose_task(foreign, foreign, settings()).endpoint, settings(), SILENT)
    assert [(floor.subject, len(floor.rows)) for floor in floors] == [("whitened", 100)]
    assert (
        measure_floors(foreign, choose_task(foreign, foreign, settings()).endpoint, settings("floor=false"), SILENT)
        == []
    )


@pytest.mark.parametrize("shape", [{"patches": 1}, {"dim": 3}, {"patients": 2, "slides": 1, "patches": 2}])
def test_few_vectors_or_narrow_ones_are_whitened_as_far_as_they_go(shape: dict[str, int], tmp_path: Path) -> None:
    scores = evaluate(make_foreign(tmp_path / "e", **shape).path, tmp_path / "scores", settings())
    assert [floor.subject for floor in scores.info.floors] == ["whitened"]
    (level,) = [row for row in scores.info.judged if row.subject == "whitened" and row.level == "patch"]
    assert np.isfinite(level.metrics["accuracy"].value or np.nan)


def test_vectors_that_are_all_the_same_are_judged_too(tmp_path: Path) -> None:
    foreign = make_foreign(tmp_path / "e")
    np.save(foreign.path / "embeddings.npy", np.ones_like(foreign.vectors))
    refinish(foreign.path)
    assert evaluate(foreign.path, tmp_path / "scores", settings()).info.floors[0].subject == "whitened"

"""The colour floor of an evaluation: what `embed colour` and an evaluation of it would give, on the same patients."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from hidisc.embeddings.embeddings import Embeddings
from hidisc.evaluation import floors as floors_module
from hidisc.evaluation.classes import Classes
from hidisc.evaluation.floors import FloorVectors, measure_colour
from hidisc.evaluation.metrics import Value
from hidisc.evaluation.scores import Floor
from hidisc.settings.config import load_config
from hidisc.settings.evaluate import EvaluateConfig
from hidisc.verbs.embed import embed
from hidisc.verbs.evaluate import evaluate
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


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        (Value(value=0.1, low=0.02, high=0.2), "better than colour alone (+10.0 points of patient AUROC [2.0, 20.0])"),
        (
            Value(value=0.1, low=-0.1, high=0.2),
            "no better than colour alone (+10.0 points of patient AUROC [-10.0, 20.0])",
        ),
        (
            Value(value=-0.1, low=-0.2, high=-0.05),
            "worse than colour alone (-10.0 points of patient AUROC [-20.0, -5.0])",
        ),
        (Value(value=None, why="one class"), ""),
    ],
)
def test_the_verdict_says_whether_colour_would_have_done(value: Value, sentence: str) -> None:
    floor = Floor(subject="colour", patches=1, ahead={"patient": {"auroc": value}})
    assert floor.verdict("patient", Classes(label="label", classes=("a", "b"), positive=1)) == sentence

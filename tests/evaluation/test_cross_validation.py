"""Pooled folds: every patient judged once, and the numbers are those of the predictions put together by hand."""

from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import accuracy_score, roc_auc_score

from hidisc.embeddings.embeddings import Embeddings
from hidisc.evaluation.cross_validation import pool_predictions
from hidisc.evaluation.scores import Scores
from hidisc.ground.errors import UserError
from hidisc.patches.folds import make_folds
from hidisc.settings.evaluate import EvaluateConfig
from hidisc.settings.load import load_config
from hidisc.verbs.evaluate import evaluate
from tests.evaluation.made import make_embeddings


def settings(*changes: str) -> EvaluateConfig:
    quick = ["knn.k=20", "bootstrap.resamples=100", "probes=[knn, linear]", "folds.number=3"]
    return load_config(EvaluateConfig, None, [*quick, *changes])


@pytest.fixture(scope="module")
def embeddings(tmp_path_factory: pytest.TempPathFactory) -> Embeddings:
    return make_embeddings(tmp_path_factory.mktemp("made") / "e", learned=False, signal=0.4)


@pytest.fixture(scope="module")
def pooled(embeddings: Embeddings, tmp_path_factory: pytest.TempPathFactory) -> Scores:
    return evaluate(embeddings.path, tmp_path_factory.mktemp("scores") / "s", settings(), shown=False)


def test_every_patient_is_judged_once(embeddings: Embeddings, pooled: Scores) -> None:
    everyone = sorted(set(embeddings.table.column("patient")))
    assert sorted(pooled.predictions("knn", "patient").clusters) == everyone
    assert len(pooled.predictions("knn", "patch")) == len(embeddings)
    assert {count.units["patient"] for count in pooled.info.counts if count.part == "queries"} == {6}
    assert {count.units["patient"] for count in pooled.info.counts if count.part == "bank"} == {4}


@pytest.mark.parametrize("probe", ["knn", "linear"])
@pytest.mark.parametrize("level", ["patch", "slide", "patient"])
def test_the_numbers_are_those_of_all_folds_together(
    embeddings: Embeddings, pooled: Scores, tmp_path: Path, probe: str, level: str
) -> None:
    truth, scores = [], []
    for number, patients in enumerate(make_folds(embeddings.table, settings().folds, "label", embeddings.path)):
        alone = settings("folds.number=0").model_copy(update={"test_patients": patients})
        fold = evaluate(embeddings.path, tmp_path / str(number), alone, shown=False).predictions(probe, level)
        assert set(fold.clusters) == set(patients)
        truth.append(fold.truth)
        scores.append(fold.scores)
    found = next(item for item in pooled.info.probes if item.name == probe).level(level)
    assert found is not None
    all_truth, all_scores = np.concatenate(truth), np.concatenate(scores)
    assert found.metrics["accuracy"].value == pytest.approx(accuracy_score(all_truth, all_scores.argmax(axis=1)))
    area = roc_auc_score(all_truth, all_scores, multi_class="ovr")
    assert found.metrics["auroc"].value == pytest.approx(area, abs=5e-4)


def test_folds_and_their_pool_can_be_found(pooled: Scores) -> None:
    assert pooled.info.folds == ("folds/1", "folds/2", "folds/3")
    assert [len(Scores.load(pooled.path / fold).predictions("knn", "patient")) for fold in pooled.info.folds] == [6] * 3
    rows, _ = pooled.neighbours() or (None, None)
    assert rows is not None
    assert len(rows) == len(pooled.predictions("knn", "patch"))
    assert any(diagnostic.name == "collapse" or diagnostic.value is not None for diagnostic in pooled.info.diagnostics)
    assert "In fold 1 of 3: " not in " ".join(pooled.info.probes[0].remarks)  # all folds have equally many patches


def test_neighbours_are_of_other_folds(embeddings: Embeddings, pooled: Scores) -> None:
    patients = embeddings.table.column("patient")
    found, (rows, _) = pooled.predictions("knn", "patch"), pooled.neighbours() or ([], [])
    fold_of = {
        patient: number
        for number, fold in enumerate(make_folds(embeddings.table, settings().folds, "label", embeddings.path))
        for patient in fold
    }
    for patient, neighbours in zip(found.clusters, rows, strict=True):
        assert fold_of[patient] not in {fold_of[patients[row]] for row in neighbours}


def test_an_encoder_that_has_learned_from_these_patients_is_refused(tmp_path: Path) -> None:
    made = make_embeddings(tmp_path / "e", learned=True)
    with pytest.raises(UserError) as caught:
        evaluate(made.path, tmp_path / "s", settings(), shown=False)
    assert str(caught.value).startswith("'made' has learned from 9 patients of these (")
    assert str(caught.value).endswith("`hidisc benchmark SUITE STORE --folds K` trains and judges these.")
    assert not (tmp_path / "s").exists()
    scores = evaluate(made.path, tmp_path / "s", settings("leakage.allow=true"), shown=False)
    assert "DESPITE LEAKAGE" in scores.verdict()


def test_folds_choose_the_patients_themselves(embeddings: Embeddings, tmp_path: Path) -> None:
    sentence = "--folds choose reference and test patients themselves. Leave out --bank and test_patients."
    with pytest.raises(UserError) as caught:
        evaluate(embeddings.path, tmp_path / "s", settings(), bank=embeddings.path)
    assert str(caught.value) == sentence
    with pytest.raises(UserError) as caught:
        evaluate(embeddings.path, tmp_path / "s", settings("test_patients=[a-0]"))
    assert str(caught.value) == sentence


def test_a_patient_of_two_folds_is_refused(pooled: Scores) -> None:
    found = pooled.predictions("knn", "patient")
    with pytest.raises(UserError, match="two folds have judged the same patient"):
        pool_predictions([found, found])


def test_test_patients_that_there_are_not(embeddings: Embeddings, tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        evaluate(embeddings.path, tmp_path / "s", settings("folds.number=0", "test_patients=[a-0, nobody]"))
    assert str(caught.value) == (
        f"test_patients: {embeddings.path} has no patient 'nobody'. Write the name as in the cohort."
    )
    with pytest.raises(UserError, match="test_patients and --bank exclude each other"):
        evaluate(
            embeddings.path,
            tmp_path / "s",
            settings("folds.number=0", "test_patients=[a-0]"),
            bank=embeddings.path,
        )

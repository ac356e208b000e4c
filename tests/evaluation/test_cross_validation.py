"""Pooled folds: every patient judged once, and the numbers are those of the predictions put together by hand."""

from dataclasses import replace
from pathlib import Path
from shutil import copytree

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.metrics import accuracy_score, average_precision_score, roc_auc_score

from hidisc.embeddings.embeddings import Embeddings
from hidisc.evaluation.compare import draw_weights, name_clusters
from hidisc.evaluation.cross_validation import _pool_remarks
from hidisc.evaluation.predictions import ENCODER, Key, Predictions, pool_folds
from hidisc.evaluation.scores import Scores
from hidisc.ground.columns import load_columns, save_columns
from hidisc.ground.errors import UserError
from hidisc.patches.splits import make_folds
from hidisc.settings.config import load_config
from hidisc.settings.evaluate import EvaluateConfig
from hidisc.verbs.evaluate import evaluate
from tests.evaluation.made import make_embeddings, make_endpoint, measure, resample


def settings(*changes: str) -> EvaluateConfig:
    quick = ["knn.k=20", "bootstrap.resamples=100", "probes=[knn, linear]", "folds.number=3"]
    return load_config(EvaluateConfig, None, [*quick, *changes])


@pytest.fixture(scope="module")
def embeddings(tmp_path_factory: pytest.TempPathFactory) -> Embeddings:
    return make_embeddings(tmp_path_factory.mktemp("made") / "e", learned=False, signal=0.4)


@pytest.fixture(scope="module")
def pooled(embeddings: Embeddings, tmp_path_factory: pytest.TempPathFactory) -> Scores:
    return evaluate(embeddings.path, tmp_path_factory.mktemp("scores") / "s", settings())


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
        fold = evaluate(embeddings.path, tmp_path / str(number), alone).predictions(probe, level)
        assert set(fold.clusters) == set(patients)
        truth.append(fold.truth)
        scores.append(fold.scores)
    found = pooled.info.find(level, probe)
    assert found is not None
    all_truth, all_scores = np.concatenate(truth), np.concatenate(scores)
    assert found.metrics["accuracy"].value == pytest.approx(accuracy_score(all_truth, all_scores.argmax(axis=1)))
    areas = [
        (ordered_pairs([(fold == code, score[:, code]) for fold, score in zip(truth, scores, strict=True)]))
        for code in range(all_scores.shape[1])
    ]
    assert found.metrics["auroc"].value == pytest.approx(np.mean(areas), abs=5e-4)


def ordered_pairs(folds: list[tuple[NDArray[np.bool_], NDArray[np.float64]]]) -> float:
    """AUROC, pair by pair: a positive and a negative of the same fold, in the right order; a tie counts half."""
    right = pairs = 0.0
    for is_positive, score in folds:
        for high in score[is_positive]:
            for low in score[~is_positive]:
                pairs += 1
                right += 1.0 if high > low else 0.5 if high == low else 0.0
    return right / pairs


def make_pooled(rng: np.random.Generator, shift: float = 0.0, classes: int = 3) -> Predictions:
    """Units of 24 patients in four folds; `shift` times the fold is added to the second class."""
    truth, fold = np.arange(48) // 2 % classes, np.repeat(np.arange(1, 5), 12)
    logits = rng.normal(size=(48, classes)) + 1.5 * np.eye(classes)[truth]
    logits[:, 1] += shift * fold
    scores = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    patients = np.array([f"p{number // 2}" for number in range(48)], object)
    units = {"patient": patients, "slide": np.arange(48).astype(str).astype(object)}
    return Predictions(Key(ENCODER, "knn", "slide"), make_endpoint(classes), units, truth, scores, 0, fold)


def test_areas_compare_scores_of_the_same_fold_only() -> None:
    """A fold whose scores are all higher, as of another encoder, changes a pooled area but not this one."""
    rng = np.random.default_rng(0)
    made = make_pooled(rng, classes=2)
    shifted = make_pooled(np.random.default_rng(0), shift=3.0, classes=2)
    areas = [measure(one, 1).metrics["auroc"].value for one in (made, shifted)]
    assert areas[0] == pytest.approx(areas[1], abs=1e-12)
    assert roc_auc_score(shifted.truth, shifted.scores[:, 1]) < roc_auc_score(made.truth, made.scores[:, 1]) - 0.05
    members = made.split_by_fold()
    assert areas[0] == pytest.approx(ordered_pairs([(made.truth[m] == 1, made.scores[m, 1]) for m in members]))
    precisions = [average_precision_score(made.truth[m] == 1, made.scores[m, 1]) for m in members]
    assert measure(made, 1).metrics["auprc"].value == pytest.approx(
        np.average(precisions, weights=[m.sum() for m in members])
    )
    alone = replace(made, fold=None)
    assert measure(alone, 1).metrics["auroc"].value == pytest.approx(roc_auc_score(made.truth, made.scores[:, 1]))


def test_resamples_of_patients_measure_areas_as_the_value_does() -> None:
    made = make_pooled(np.random.default_rng(1), shift=1.0)
    names = name_clusters(made)
    weights = draw_weights(len(names), 20, seed=3)
    resampled = resample(made, 0, weights, names)
    for number, counts in enumerate(weights):
        rows = np.concatenate([np.flatnonzero(made.clusters == name) for name in np.repeat(names, counts)])
        drawn = replace(
            made, units={"patient": made.clusters[rows]}, truth=made.truth[rows], scores=made.scores[rows],
            fold=made.fold[rows],
        )  # fmt: skip
        for metric in ("accuracy", "auroc", "auprc"):
            value = measure(drawn, 0).metrics[metric].value
            assert resampled[metric][number] == pytest.approx(np.nan if value is None else value, nan_ok=True)


@pytest.mark.parametrize("metric", ["auroc", "auprc"])
def test_resamples_of_pooled_folds_lie_around_the_value(metric: str) -> None:
    """AUPRC rises with the share of positives, which differs from fold to fold in a resample.

    Weighted by positives, its resamples lay 1.8 standard deviations above the value. What is left (0.7 to 0.8 by chance
    alone) is of every AUPRC of few patients: who is drawn twice has equal scores.
    """
    rng = np.random.default_rng(4)
    truth, fold = np.repeat(np.arange(72) % 4, 20), np.repeat(np.arange(72) // 4 % 3 + 1, 20)
    patients = np.repeat([f"p{number}" for number in range(72)], 20).astype(object)
    scores = rng.dirichlet(np.ones(4), size=len(truth))
    made = Predictions(Key(ENCODER, "knn", "patch"), make_endpoint(4), {"patient": patients}, truth, scores, 0, fold)
    names = name_clusters(made)
    value = measure(made, 0).metrics[metric].value
    resampled = resample(made, 0, draw_weights(len(names), 2000, seed=0), names)[metric]
    assert abs(np.mean(resampled) - value) < np.std(resampled)


def test_folds_of_one_class_each_have_no_area() -> None:
    made = make_pooled(np.random.default_rng(2), classes=2)
    lone = replace(made, fold=made.truth + 1)
    assert measure(lone, 1).metrics["auroc"].why == (
        "no fold has test slides of a class and of another: use fewer folds, or folds.by=patient"
    )
    assert measure(lone, 1).metrics["accuracy"].value is not None


def test_predictions_of_an_older_version_are_refused(pooled: Scores, tmp_path: Path) -> None:
    """Version 0.2 pooled areas over folds, and no version before 0.4 wrote down what was asked."""
    copytree(pooled.path, tmp_path / "old")
    file = tmp_path / "old" / "predictions_patient.parquet"
    save_columns(file, load_columns(file))
    with pytest.raises(UserError, match=r"was written by hidisc 0\.3 or older\. Evaluate again with a new --out\."):
        Predictions.load(file)


def test_pooled_predictions_are_read_back_with_their_folds(tmp_path: Path) -> None:
    made = make_pooled(np.random.default_rng(3))
    made.save(tmp_path / "p.parquet")
    back = Predictions.load(tmp_path / "p.parquet")
    assert back.fold is not None
    assert back.fold.tolist() == made.fold.tolist()
    assert list(back.units) == ["patient", "slide"]


def test_folds_and_their_pool_can_be_found(pooled: Scores) -> None:
    assert pooled.info.folds == ("folds/1", "folds/2", "folds/3")
    assert [len(Scores.load(pooled.path / fold).predictions("knn", "patient")) for fold in pooled.info.folds] == [6] * 3
    rows, _ = pooled.neighbours() or (None, None)
    assert rows is not None
    assert len(rows) == len(pooled.predictions("knn", "patch"))
    assert any(diagnostic.name == "collapse" or diagnostic.value is not None for diagnostic in pooled.info.diagnostics)
    assert "In fold 1 of 3: " not in " ".join(pooled.info.remarks["knn"])  # all folds have equally many patches


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
        evaluate(made.path, tmp_path / "s", settings())
    assert str(caught.value).startswith("'made' has learned from 9 patients of these (")
    assert str(caught.value).endswith("`hidisc benchmark SUITE STORE --folds K` trains and judges these.")
    assert not (tmp_path / "s").exists()
    scores = evaluate(made.path, tmp_path / "s", settings("leakage.allow=true"))
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
        pool_folds([found, found])


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


def test_what_probes_say_in_every_fold_is_said_once() -> None:
    folds = [("A vote of 200 of 905 patches.", "It converged."), ("A vote of 200 of 955 patches.",)]
    assert _pool_remarks(folds) == ("A vote of 200 of 905 to 955 patches.", "In fold 1 of 2: It converged.")

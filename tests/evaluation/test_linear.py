"""The linear probe: scikit-learn's own answer on the rows drawn, its penalty chosen by patients, queries unseen."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.model_selection import StratifiedKFold, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from hidisc.evaluation.probes import linear as linear
from hidisc.evaluation.probes.folds import find_patients
from hidisc.evaluation.probes.linear import PenaltyChoice, choose_penalty, fit_models, linear_scores
from hidisc.evaluation.task import Task, choose_task
from hidisc.settings.evaluate import EvaluateConfig, LinearConfig
from tests.evaluation.made import make_embeddings

OFFERED = "0.001, 0.01, 0.1, 1"


@pytest.fixture
def task(tmp_path: Path) -> Task:
    """Three classes, three patients each on both sides, 180 patches a side."""
    made = make_embeddings(tmp_path / "e")
    return choose_task(made, made, EvaluateConfig())


def keep(task: Task, mask: np.ndarray) -> Task:
    """The task with some of the bank's patches only."""
    bank = task.bank
    return replace(task, bank=replace(bank, rows=bank.rows[mask], labels=bank.labels[mask]))


class Watched:
    """Vectors that remember which rows were read."""

    def __init__(self, vectors: Any) -> None:
        self.vectors, self.read = vectors, []

    def __getitem__(self, rows: np.ndarray) -> np.ndarray:
        self.read.append(np.atleast_1d(rows))
        return np.asarray(self.vectors[rows])


def test_scores_are_scikit_learns_on_the_same_rows(task: Task) -> None:
    task = keep(task, (task.bank.labels > 0) | (np.arange(180) < 20))  # few of `a`: classes are not weighed
    scores, remarks = linear_scores(task, LinearConfig(penalties=(0.1,)), seed=3)
    theirs = make_pipeline(StandardScaler(), LogisticRegression(C=0.1, max_iter=1000, tol=1e-8))
    theirs.fit(task.bank.vectors().astype(float), task.bank.labels)
    np.testing.assert_allclose(scores, theirs.predict_proba(task.queries.vectors().astype(float)), atol=1e-4)
    assert (scores.argmax(axis=1) == task.queries.labels).mean() > 0.9
    assert remarks == (
        "Trained on all 140 reference patches.",
        "The penalty is C = 0.1, the only one of linear.penalties.",
        "The solver converged.",
    )


@pytest.mark.parametrize("classes", [2, 5])
@pytest.mark.parametrize("dim", [30, 300], ids=["more rows than dimensions", "fewer"])
def test_models_are_scikit_learns_optimum_for_every_penalty(classes: int, dim: int) -> None:
    """Directions of very different variance, of which scikit-learn at its own tolerance is still far."""
    rng = np.random.default_rng(classes)
    mix = rng.normal(size=(dim, dim)) * np.arange(1, dim + 1) ** -0.7
    labels = rng.integers(classes, size=200)
    shift = rng.normal(size=(classes, dim)) * 0.4
    x, new = ((shift[codes] + rng.normal(size=(200, dim))) @ mix.T for codes in (labels, rng.permutation(labels)))
    penalties = [0.001, 0.01, 0.1, 1.0]
    for penalty, (model, converged) in zip(penalties, fit_models(x, labels, penalties, 200), strict=True):
        theirs = make_pipeline(StandardScaler(), LogisticRegression(C=penalty, max_iter=10_000, tol=1e-9))
        expected = theirs.fit(x, labels).predict_proba(new)
        assert converged
        np.testing.assert_allclose(model.predict(new), expected, atol=2e-3)
        single, _ = next(fit_models(x.astype(np.float32), labels, [penalty], 200))
        np.testing.assert_allclose(single.predict(new.astype(np.float32)), expected, atol=2e-3)


def test_only_the_patches_drawn_are_read_alike_of_every_patient(task: Task) -> None:
    watched = Watched(task.bank.embeddings.vectors)
    bank = replace(task.bank, embeddings=replace(task.bank.embeddings, vectors=watched))
    config = LinearConfig(patches=45, penalties=(0.1,))
    scores, remarks = linear_scores(replace(task, bank=bank), config, seed=0)
    read = np.concatenate(watched.read)
    assert len(read) == len(np.unique(read)) == 45
    patients = find_patients(task.bank, task.levels)
    drawn = np.isin(task.bank.rows, read)
    assert drawn.sum() == 45
    assert (np.unique(patients[drawn], return_counts=True)[1] == 5).all()
    same, _ = next(fit_models(task.bank.vectors(drawn.nonzero()[0]), task.bank.labels[drawn], [0.1], 200))
    np.testing.assert_allclose(scores, same.predict(task.queries.vectors()), atol=1e-5)
    assert remarks[0] == "Trained on 45 of 180 reference patches, sampled evenly over patients."


def biased(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(x, labels, patients): 60 dimensions tell patients apart and mean nothing, one tells the label a little."""
    patients = np.repeat(np.arange(20), 15)
    labels = patients % 2
    x = rng.normal(size=(20, 60))[patients] * 3 + rng.normal(size=(300, 60))
    x[:, 0] = (2 * labels - 1) + rng.normal(size=300)
    return x, labels, patients


def test_the_penalty_is_chosen_by_patients_not_by_patches() -> None:
    x, labels, patients = biased(np.random.default_rng(0))
    config = LinearConfig(iterations=500)
    losses = {}
    for penalty in config.penalties:
        model = make_pipeline(StandardScaler(), LogisticRegression(C=penalty, max_iter=500))
        folds = StratifiedKFold(3, shuffle=True, random_state=0)
        losses[penalty] = log_loss(labels, cross_val_predict(model, x, labels, cv=folds, method="predict_proba"))
    assert min(losses, key=losses.__getitem__) == 1
    for seed in range(3):
        chosen = choose_penalty(x, labels, patients, config, np.random.default_rng(seed))
        assert chosen == PenaltyChoice(0.001, folds=3)
        as_patches = choose_penalty(x, labels, np.arange(300), config, np.random.default_rng(seed))
        assert as_patches == PenaltyChoice(1.0, folds=3)


def test_the_penalty_is_that_of_the_least_loss_of_patients_left_out() -> None:
    # A slow oracle: with two patients a class there are two folds, the seed only says who is with whom.
    rng = np.random.default_rng(5)
    patients = np.repeat(np.arange(4), 30)
    labels = patients // 2
    x = rng.normal(size=(4, 8))[patients] * 0.7 + rng.normal(size=(120, 8)) + labels[:, None] * 0.6
    penalties = (0.03, 1e-4, 0.01, 0.003, 3.0)
    least = []
    for pairs in (((0, 2), (1, 3)), ((0, 3), (1, 2))):
        losses = []
        for penalty in sorted(penalties):
            probability = np.empty((120, 2))
            for pair in pairs:
                out = np.isin(patients, pair)
                model = make_pipeline(StandardScaler(), LogisticRegression(C=penalty, max_iter=1000))
                probability[out] = model.fit(x[~out], labels[~out]).predict_proba(x[out])
            losses.append(-np.log(probability[np.arange(120), labels]).mean())
        least.append(sorted(penalties)[int(np.argmin(losses))])
    config = LinearConfig(penalties=penalties)
    found = [choose_penalty(x, labels, patients, config, np.random.default_rng(seed)) for seed in range(12)]
    assert {choice.penalty for choice in found} == set(least)
    assert {choice.folds for choice in found} == {2}
    assert not {penalties[2], sorted(penalties)[2]} & set(least), "the middle one would say nothing"


def test_a_large_sample_is_thinned_before_the_folds(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []

    def watched(x: np.ndarray, labels: np.ndarray, penalties: list[float], *rest: Any) -> Any:
        sizes.append((len(x), len(penalties)))
        return fit_models(x, labels, penalties, *rest)

    monkeypatch.setattr(linear, "fit_models", watched)
    monkeypatch.setattr(linear, "_FOLD_PATCHES", 90)
    done = []
    linear_scores(task, LinearConfig(), 0, done.append)
    assert sizes == [(60, 4)] * 3 + [(180, 1)]
    assert sum(done) == linear.count_fits(LinearConfig()) == 13


def test_what_was_chosen_is_said(task: Task, tmp_path: Path) -> None:
    _, remarks = linear_scores(task, LinearConfig(), seed=0)
    chosen = (
        f"The penalty is C = 1, chosen from {OFFERED} by the log loss in 3-fold cross-validation over the reference "
    )
    assert remarks[1] == f"{chosen}patients. It is the weakest of linear.penalties; a weaker one may do better."
    made = make_embeddings(tmp_path / "faint", signal=0.2)
    faint = choose_task(made, made, EvaluateConfig())
    _, remarks = linear_scores(faint, LinearConfig(penalties=(1e3, 1e-6, 0.003)), seed=0)
    assert remarks[1] == (
        "The penalty is C = 0.003, chosen from 1e-06, 0.003, 1000 by the log loss in 3-fold cross-validation over the "
        "reference patients."
    )
    _, remarks = linear_scores(task, LinearConfig(penalties=(1e3, 1e4)), seed=0)
    assert remarks[1].endswith("It is the strongest of linear.penalties; a stronger one may do better.")


def test_a_class_of_one_patient_takes_the_middle_penalty(task: Task) -> None:
    names = task.bank.names("patient")
    scores, remarks = linear_scores(keep(task, ~np.isin(names, ["b-3", "b-4"])), LinearConfig(), seed=0)
    assert np.isfinite(scores).all()
    assert remarks[1] == (
        f"The penalty is C = 0.01, the middle one of {OFFERED}: cross-validation would leave each reference "
        "patient out once, and then no 'b' to train on."
    )
    odd = LinearConfig(penalties=(10.0, 0.1, 1.0))
    _, remarks = linear_scores(keep(task, ~np.isin(names, ["b-3", "b-4"])), odd, seed=0)
    assert "C = 1, the middle one of 0.1, 1, 10:" in remarks[1]


def test_a_class_of_two_patients_is_enough(task: Task) -> None:
    names = task.bank.names("patient")
    for seed in range(5):
        _, remarks = linear_scores(keep(task, names != "b-3"), LinearConfig(penalties=(0.1, 1)), seed=seed)
        assert "by the log loss in 3-fold" in remarks[1]


def test_one_patient_of_all_classes(task: Task) -> None:
    codes = task.bank.codes("patient")
    one = replace(task.bank.embeddings, table=OnePatient(task.bank.embeddings.table))
    lone = replace(task, bank=replace(task.bank, embeddings=one))
    assert len(np.unique(codes)) > 1
    _, remarks = linear_scores(lone, LinearConfig(), seed=0)
    assert remarks[1].endswith("and then no 'a' to train on.")


class OnePatient:
    """A patch table in which all patches are one patient's."""

    def __init__(self, table: Any) -> None:
        self.table = table

    def codes(self, name: str) -> tuple[np.ndarray, tuple[str, ...]]:
        codes, names = self.table.codes(name)
        return codes * 0, names


def test_a_class_without_patches_has_probability_0(task: Task) -> None:
    scores, remarks = linear_scores(keep(task, task.bank.labels != 1), LinearConfig(), seed=0)
    assert (scores[:, 1] == 0).all()
    np.testing.assert_allclose(scores.sum(axis=1), 1)
    assert remarks[:2] == (
        "Trained on all 120 reference patches.",
        "Class 'b' has no patch among them, so its probability is always 0.",
    )


def test_a_bank_of_one_class_gives_that_class(task: Task) -> None:
    scores, remarks = linear_scores(keep(task, task.bank.labels == 2), LinearConfig(), seed=0)
    assert (scores == [0, 0, 1]).all()
    assert remarks[1:] == (
        "Class 'a' has no patch among them, so its probability is always 0.",
        "Class 'b' has no patch among them, so its probability is always 0.",
        "All of them have class 'c', so it is predicted for every test patch.",
    )


def test_labels_of_the_queries_are_not_looked_at(task: Task) -> None:
    labels = np.random.default_rng(0).permutation(task.queries.labels)
    blind = replace(task, queries=replace(task.queries, labels=labels))
    assert (linear_scores(blind, LinearConfig(), 0)[0] == linear_scores(task, LinearConfig(), 0)[0]).all()


def test_a_query_does_not_depend_on_the_others(task: Task) -> None:
    queries = task.queries
    few = replace(task, queries=replace(queries, rows=queries.rows[40:43], labels=queries.labels[40:43]))
    np.testing.assert_allclose(
        linear_scores(few, LinearConfig(), 0)[0], linear_scores(task, LinearConfig(), 0)[0][40:43], rtol=1e-5
    )


@pytest.mark.parametrize("numbers", [1, 16 * 7, 16 * 180])
def test_blocks_change_nothing(task: Task, numbers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    config = LinearConfig(penalties=(0.1,))
    whole, _ = linear_scores(task, config, seed=0)
    monkeypatch.setattr(linear, "_BLOCK", numbers)
    watched = Watched(task.queries.embeddings.vectors)
    queries = replace(task.queries, embeddings=replace(task.queries.embeddings, vectors=watched))
    blocked, _ = linear_scores(replace(task, queries=queries), config, seed=0)
    np.testing.assert_allclose(blocked, whole, rtol=1e-5)
    assert max(len(rows) for rows in watched.read) == max(1, numbers // 16)


def test_the_seed_says_which_patches(task: Task) -> None:
    config = LinearConfig(patches=60)
    first, again, other = (linear_scores(task, config, seed)[0] for seed in (0, 0, 1))
    assert (first == again).all()
    assert not np.allclose(first, other)


def test_global_random_numbers_are_left_alone(task: Task) -> None:
    np.random.seed(3)  # noqa: NPY002 - it is the global state that is looked at
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    linear_scores(task, LinearConfig(patches=60), seed=0)
    assert (np.random.get_state()[1] == before).all()  # noqa: NPY002


def test_an_unfinished_solver_says_so_and_warns_nobody(task: Task, recwarn: pytest.WarningsRecorder) -> None:
    scores, remarks = linear_scores(task, LinearConfig(iterations=2), seed=0)
    assert remarks[-1] == "The solver did not converge within linear.iterations = 2; more may help."
    assert np.isfinite(scores).all()
    assert not recwarn.list


@pytest.mark.parametrize("constant", [0.0, 7.0, 1e-30])
def test_a_dimension_that_never_changes_does_no_harm(task: Task, constant: float) -> None:
    vectors = np.array(task.bank.embeddings.vectors)
    fewer, dead = vectors[:, 1:], vectors.copy()
    dead[:, 0] = constant
    found = []
    for changed in (fewer, dead.astype(np.float16), dead):
        made = replace(task.bank.embeddings, vectors=changed)
        sides = replace(task.bank, embeddings=made), replace(task.queries, embeddings=made)
        found.append(linear_scores(replace(task, bank=sides[0], queries=sides[1]), LinearConfig(), 0)[0])
    assert np.isfinite(found).all()
    np.testing.assert_allclose(found[2], found[0], atol=2e-3)
    np.testing.assert_allclose(found[1], found[0], atol=2e-2)

"""Metrics are scikit-learn's where they have a meaning, and say why where they have none."""

import warnings
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import sklearn.metrics as reference
from hypothesis import given, settings
from hypothesis import strategies as st

from hidisc.evaluation.classes import METRICS, rank_truth
from hidisc.evaluation.metrics import Measured
from hidisc.evaluation.predictions import Predictions
from tests.evaluation import oracles
from tests.evaluation.made import BY_CLASS, make_predictions, measure

MACRO = ("mca", "auroc", "auprc", "sensitivity", "specificity")


@pytest.fixture(autouse=True)
def _no_warnings() -> Iterator[None]:
    """A warning of scikit-learn's or NumPy's is a case that was not thought of."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


@st.composite
def predictions(draw, most_units: int = 12) -> Predictions:
    """2 to 4 classes, some perhaps without units, 1 to 4 patients, scores with many ties and zeros."""
    classes, units = draw(st.integers(2, 4)), draw(st.integers(0, most_units))
    rows = st.lists(st.integers(0, 3), min_size=classes, max_size=classes).filter(any)
    raw = np.array(draw(st.lists(rows, min_size=units, max_size=units)), float).reshape(units, classes)
    truth = draw(st.lists(st.integers(0, classes - 1), min_size=units, max_size=units))
    patients = draw(st.lists(st.sampled_from(["p", "q", "r", "s"]), min_size=units, max_size=units))
    return make_predictions(truth, raw / raw.sum(axis=1, keepdims=True), patients, "slide")


def shuffle(made: Predictions, seed: int) -> Predictions:
    order = np.random.default_rng(seed).permutation(len(made))
    units = {name: column[order] for name, column in made.units.items()}
    return replace(made, units=units, truth=made.truth[order], scores=made.scores[order])


def random_predictions(classes: int, units: int = 60, seed: int = 0) -> Predictions:
    """Every class there, no ties, right more often than not."""
    rng = np.random.default_rng(seed)
    truth = np.r_[np.arange(classes), rng.integers(classes, size=units - classes)]
    scores = rng.random((units, classes))
    scores[np.arange(units), truth] += 0.5 * rng.random(units)
    return make_predictions(truth.tolist(), scores / scores.sum(axis=1, keepdims=True))


def values(measured: Measured) -> dict[str, float | None]:
    return {name: value.value for name, value in measured.metrics.items()}


@pytest.mark.parametrize("classes", [3, 4, 7])
def test_more_than_two_classes_are_scikit_learns_macro_averages(classes):
    made = random_predictions(classes)
    truth, scores, predicted = made.truth, made.scores, made.scores.argmax(axis=1)
    each = np.eye(classes, dtype=int)[truth]
    against_rest = [reference.recall_score(truth == c, predicted == c, pos_label=False) for c in range(classes)]
    expected = {
        "accuracy": reference.accuracy_score(truth, predicted),
        "mca": reference.balanced_accuracy_score(truth, predicted),
        "auroc": reference.roc_auc_score(truth, scores, multi_class="ovr", average="macro"),
        "auprc": reference.average_precision_score(each, scores, average="macro"),
        "sensitivity": reference.recall_score(truth, predicted, average="macro"),
        "specificity": np.mean(against_rest),
        "top2": reference.top_k_accuracy_score(truth, scores, k=2),
        "top3": reference.top_k_accuracy_score(truth, scores, k=3) if classes > 3 else None,
    }
    measured = measure(made, 0)
    assert values(measured) == {name: value and pytest.approx(value, abs=1e-12) for name, value in expected.items()}
    assert values(measure(made, 2)) == values(measured)  # no class is the positive one
    assert measured.confusion == tuple(map(tuple, reference.confusion_matrix(truth, predicted).tolist()))
    assert list(measured.metrics) == list(METRICS)


@pytest.mark.parametrize("positive", [0, 1])
def test_two_classes_are_about_the_positive_one(positive):
    made = random_predictions(2)
    truth, predicted = made.truth == positive, made.scores.argmax(axis=1) == positive
    expected = {
        "accuracy": reference.accuracy_score(truth, predicted),
        "mca": reference.balanced_accuracy_score(truth, predicted),
        "auroc": reference.roc_auc_score(truth, made.scores[:, positive]),
        "auprc": reference.average_precision_score(truth, made.scores[:, positive]),
        "sensitivity": reference.recall_score(truth, predicted),
        "specificity": reference.recall_score(truth, predicted, pos_label=False),
        "top2": None,
        "top3": None,
    }
    found = values(measure(made, positive))
    assert found == {name: value and pytest.approx(value, abs=1e-12) for name, value in expected.items()}
    assert found["sensitivity"] != pytest.approx(found["specificity"])


@settings(max_examples=40)
@given(predictions(), st.integers(0, 1))
def test_classes_against_the_rest_are_counts_of_pairs_and_thresholds(made, positive):
    predicted = [int(np.flatnonzero(row == row.max())[0]) for row in made.scores]
    for code, (label, found) in enumerate(measure(made, positive).by_class.items()):
        assert label == made.classes[code]
        assert tuple(found) == BY_CLASS
        is_class = (made.truth == code).tolist()
        of_class = [guess == code for guess, wanted in zip(predicted, is_class, strict=True) if wanted]
        of_rest = [guess != code for guess, wanted in zip(predicted, is_class, strict=True) if not wanted]
        scores, both = made.scores[:, code].tolist(), bool(of_class and of_rest)
        expected = {
            "sensitivity": sum(of_class) / len(of_class) if of_class else None,
            "specificity": sum(of_rest) / len(of_rest) if of_rest else None,
            "auroc": oracles.auroc(is_class, scores) if both else None,
            "auprc": oracles.auprc(is_class, scores) if both else None,
        }
        for name, value in expected.items():
            assert found[name].value == (None if value is None else pytest.approx(value, abs=1e-12)), name


@settings(max_examples=40)
@given(predictions(), st.integers(0, 1))
def test_what_is_undefined_says_why_and_what_is_defined_is_a_share(made, positive):
    measured = measure(made, positive)
    for value in [*measured.metrics.values(), *(value for of in measured.by_class.values() for value in of.values())]:
        assert (value.value is None) == bool(value.why)
        assert value.value is None or 0 <= value.value <= 1
        assert value.low is value.high is None
    whole = set(made.truth) == set(range(len(made.classes)))
    present = {name for name, value in measured.metrics.items() if value.value is not None}
    assert whole == (set(MACRO) <= present)
    if len(made.classes) > 2 and not whole:
        assert present.isdisjoint(MACRO)
    assert ("accuracy" in present) == (len(made) > 0)


@settings(max_examples=40)
@given(predictions(), st.integers(0, 1), st.integers(0, 2**32))
def test_the_order_of_the_units_does_not_matter(made, positive, seed):
    assert measure(shuffle(made, seed), positive) == measure(made, positive)


def test_rows_of_the_confusion_are_the_truth():
    scores = np.array([[0.9, 0.1, 0], [0.2, 0.8, 0], [0.1, 0.7, 0.2], [0.1, 0.8, 0.1]])
    assert measure(make_predictions([0, 0, 2, 1], scores), 0).confusion == ((1, 1, 0), (0, 1, 0), (0, 1, 0))


def test_the_first_of_equal_scores_is_predicted_and_ranks_before_the_others():
    scores = np.array([[0.25, 0.25, 0.25, 0.25]] * 4 + [[0, 0.5, 0, 0.5]])
    made = make_predictions([0, 1, 2, 3, 3], scores)
    assert rank_truth(made).tolist() == [0, 1, 2, 3, 1]
    found = values(measure(made, 0))
    assert (found["accuracy"], found["top2"], found["top3"]) == pytest.approx((0.2, 0.6, 0.8))


@given(predictions())
def test_rank_zero_is_what_is_predicted(made):
    assert ((rank_truth(made) == 0) == (made.predicted == made.truth)).all()


def test_a_class_without_units_leaves_the_means_undefined_and_the_others_judged():
    made = make_predictions([0, 0, 1], np.array([[0.6, 0.4, 0], [0.3, 0.3, 0.4], [0.1, 0.9, 0]]))
    measured = measure(made, 0)
    why = "no test patient has class 'c': set classes=[...] to evaluate the others"
    for name in MACRO:
        assert measured.metrics[name].value is None
        assert measured.metrics[name].why == why
    assert measured.metrics["accuracy"].value == pytest.approx(2 / 3)
    assert measured.metrics["top2"].value == 1
    assert {name: value.why for name, value in measured.by_class["c"].items() if value.value is None} == {
        "sensitivity": why,
        "auroc": why,
        "auprc": why,
    }
    assert measured.by_class["c"]["specificity"].value == pytest.approx(2 / 3)
    assert {name: value.value for name, value in measured.by_class["a"].items()} == {
        "sensitivity": 0.5,
        "specificity": 1,
        "auroc": 1,
        "auprc": 1,
    }
    assert measured.confusion == ((1, 0, 1), (0, 1, 0), (0, 0, 0))


def test_several_classes_without_units_are_all_named():
    scores = np.full((2, 4), 0.25)
    measured = measure(make_predictions([0, 2], scores, level="slide"), 0)
    assert measured.metrics["mca"].why == (
        "no test slide has class 'b' or 'd': set classes=[...] to evaluate the others"
    )


@pytest.mark.parametrize(
    ("truth", "undefined", "why"),
    [
        (
            [0, 0],
            {"mca": "alone", "auroc": "missing", "auprc": "missing", "sensitivity": "missing"},
            {
                "alone": "every test patient has class 'a': choose queries=[...] that have others too",
                "missing": "no test patient has class 'b': choose queries=[...] that have it",
            },
        ),
        (
            [1, 1],
            dict.fromkeys(["mca", "auroc", "auprc", "specificity"], "alone"),
            {"alone": "every test patient has class 'b': choose queries=[...] that have others too"},
        ),
    ],
    ids=["no positives", "no negatives"],
)
def test_two_classes_of_which_one_is_missing(truth, undefined, why):
    measured = measure(make_predictions(truth, np.array([[0.7, 0.3], [0.2, 0.8]])), 1)
    said = {name: value.why for name, value in measured.metrics.items() if value.value is None}
    tops = {
        f"top{top}": f"with 2 classes the truth is always among the {top} of highest score: see accuracy instead"
        for top in (2, 3)
    }
    assert said == {name: why[key] for name, key in undefined.items()} | tops
    assert measured.metrics["accuracy"].value == 0.5
    assert measured.metrics["specificity" if truth[0] == 0 else "sensitivity"].value == 0.5


def test_only_one_of_many_classes():
    measured = measure(make_predictions([1, 1], np.array([[0.1, 0.7, 0.2], [0.5, 0.3, 0.2]])), 0)
    for name in MACRO:
        assert measured.metrics[name].why == (
            "every test patient has class 'b': choose queries=[...] that have others too"
        )
    assert measured.by_class["b"]["sensitivity"].value == 0.5
    assert measured.by_class["b"]["auroc"].why == measured.metrics["mca"].why
    assert measured.by_class["a"]["sensitivity"].why == (
        "no test patient has class 'a': choose queries=[...] that have it"
    )
    assert measured.by_class["a"]["specificity"].value == 0.5


def test_top_three_of_three_classes_is_undefined_and_top_two_is_not():
    found = measure(random_predictions(3), 0).metrics
    assert found["top2"].value is not None
    assert found["top3"].why == "with 3 classes the truth is always among the 3 of highest score: see accuracy instead"


@pytest.mark.parametrize(
    ("left_out", "why"),
    [
        (0, "there is no test patient: choose queries=[...] that have labels"),
        (12, "no test patient has one label for all its patches (12 have several): see the finer levels instead"),
    ],
)
def test_nothing_to_judge(left_out, why):
    made = replace(make_predictions([], np.empty((0, 3))), left_out=left_out)
    measured = measure(made, 1)
    assert {value.why for value in measured.metrics.values()} == {why}
    assert {value.value for value in measured.metrics.values()} == {None}
    assert {value.why for of in measured.by_class.values() for value in of.values()} == {why}
    assert measured.confusion == ((0, 0, 0),) * 3

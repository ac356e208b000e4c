"""What was shown: every branch of the rule, as a table; and how often it is fooled by chance."""

import numpy as np
import pytest

from hidisc.evaluation.compare import score
from hidisc.evaluation.metrics import Value
from hidisc.evaluation.outcome import LEAST, Light, find_outcome
from hidisc.evaluation.scores import Finding, Floor, Judged, ScoresInfo
from hidisc.settings.evaluate import BootstrapConfig
from tests.evaluation.made import make_embeddings, make_predictions
from tests.reporting.judged import make_scores

HALF = ((20, 20), (20, 20))
"""Forty patients in two classes, so that chance is 50 for accuracy and AUROC."""
Ends = tuple[float, float, float]


def value(ends: Ends | None, why: str = "") -> Value:
    """A number of 100 with the ends of its interval."""
    if ends is None:
        return Value(value=None, why=why or "one class")
    return Value(value=ends[0] / 100, low=ends[1] / 100, high=ends[2] / 100, why=why)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> ScoresInfo:
    folder = tmp_path_factory.mktemp("made")
    return make_scores(folder / "s", make_embeddings(folder / "e", classes=("a", "b")), probes=("knn",)).info


def judged(
    made: ScoresInfo, accuracy: Value, auroc: Value, floor: tuple[Value, Value] | None = None, units: int = 40
) -> ScoresInfo:
    """An evaluation of patients with these numbers; `floor`: how far they are above those of colour alone."""
    found = made.find("patient")
    assert found is not None
    metrics = {**found.metrics, "accuracy": accuracy, "auroc": auroc}
    row = found.model_copy(update={"metrics": metrics, "units": units, "confusion": HALF})
    ahead = {} if floor is None else {"patient": {"accuracy": floor[0], "auroc": floor[1]}}
    floors = (Floor(subject="colour", patches=1, ahead=ahead),)
    return made.model_copy(update={"judged": (row,), "floors": floors, "leakage": ()})


GOOD, POOR, NONE = (80.0, 70.0, 90.0), (60.0, 48.0, 72.0), (50.0, 40.0, 60.0)
AHEAD, LEVEL, BELOW, CLOSE = (10.0, 2.0, 18.0), (8.0, -3.0, 19.0), (-1.0, -9.0, 7.0), (1.0, -9.0, 11.0)
BRANCHES: dict[str, tuple[tuple[Ends, Ends | None], tuple[Ends, Ends] | None, int, Light, str]] = {
    "better than chance and colour by both": (
        (GOOD, GOOD),
        (AHEAD, AHEAD),
        40,
        "shown",
        "Shown: better than chance and than colour alone by AUROC: 80.0 [70.0, 90.0] (chance 50.0) of 40 "
        "patients, for 'label', 10.0 points [2.0, 18.0] above colour alone.",
    ),
    "without a floor": (
        (GOOD, GOOD),
        None,
        40,
        "shown",
        "Shown: better than chance by AUROC: 80.0 [70.0, 90.0] (chance 50.0) of 40 patients, for 'label'.",
    ),
    "in order, but accuracy is chance": (
        (NONE, GOOD),
        (BELOW, AHEAD),
        40,
        "shown",
        "Shown: better than chance and than colour alone by AUROC: 80.0 [70.0, 90.0] (chance 50.0) of 40 "
        "patients, for 'label', 10.0 points [2.0, 18.0] above colour alone; but accuracy 50.0 [40.0, 60.0] (chance "
        "50.0) is not clearly better than colour alone, so rely on the order of its scores rather than on the classes "
        "that it names.",
    ),
    "a difference that more patients would tell": (
        (GOOD, GOOD),
        (LEVEL, LEVEL),
        40,
        "not shown",
        "Not shown: too few patients (40; about 160 would be needed): not clearly better than colour alone yet by "
        "AUROC, "
        "80.0 [70.0, 90.0] (chance 50.0) of 40 patients, for 'label', 8.0 points [-3.0, 19.0] above colour alone.",
    ),
    "a difference that ten times as many would not tell": (
        (GOOD, GOOD),
        (CLOSE, CLOSE),
        40,
        "no better",
        "No better than colour alone by AUROC: 80.0 [70.0, 90.0] (chance 50.0) of 40 patients, for 'label', 1.0 "
        "points [-9.0, 11.0] above colour alone.",
    ),
    "below colour": (
        (GOOD, GOOD),
        (AHEAD, BELOW),
        40,
        "no better",
        "No better than colour alone by AUROC: 80.0 [70.0, 90.0] (chance 50.0) of 40 patients, for 'label', 1.0 "
        "points [-7.0, 9.0] below colour alone; accuracy 80.0 [70.0, 90.0] (chance 50.0) is better, but AUROC decides.",
    ),
    "clearly below colour": (
        (GOOD, GOOD),
        ((-9.0, -15.0, -3.0), (-9.0, -15.0, -3.0)),
        40,
        "no better",
        "Worse than colour alone by AUROC: 80.0 [70.0, 90.0] (chance 50.0) of 40 patients, for 'label', 9.0 points "
        "[3.0, 15.0] below colour alone.",
    ),
    "above colour, and both are chance": (
        (NONE, NONE),
        (AHEAD, AHEAD),
        40,
        "no better",
        "No better than chance by AUROC: 50.0 [40.0, 60.0] (chance 50.0) of 40 patients, for 'label', 10.0 points "
        "[2.0, 18.0] above colour alone.",
    ),
    "too few for chance": (
        (POOR, POOR),
        (AHEAD, AHEAD),
        40,
        "not shown",
        "Not shown: too few patients (40; about 120 would be needed): not clearly better than chance yet by AUROC, "
        "60.0 [48.0, 72.0] (chance 50.0) of 40 patients, for 'label', 10.0 points [2.0, 18.0] above colour alone.",
    ),
    "nine patients": (
        (NONE, GOOD),
        (BELOW, AHEAD),
        9,
        "not shown",
        "Not shown: too few patients (9; about 30 would be needed): of so few, accuracy 50.0 [40.0, 60.0] (chance "
        "50.0) "
        "and AUROC 80.0 [70.0, 90.0] (chance 50.0) say nothing yet.",
    ),
    "nine patients and a small difference": (
        (POOR, POOR),
        (LEVEL, LEVEL),
        9,
        "not shown",
        "Not shown: too few patients (9; about 35 would be needed): of so few, accuracy 60.0 [48.0, 72.0] (chance "
        "50.0) "
        "and AUROC 60.0 [48.0, 72.0] (chance 50.0) say nothing yet.",
    ),
    "AUROC is undefined": (
        (GOOD, None),
        (AHEAD, AHEAD),
        40,
        "shown",
        "Shown: better than chance and than colour alone by accuracy: 80.0 [70.0, 90.0] (chance 50.0) of 40 "
        "patients, for 'label', 10.0 points [2.0, 18.0] above colour alone.",
    ),
}


@pytest.mark.parametrize("branch", BRANCHES)
def test_every_branch_of_the_rule(branch: str, made: ScoresInfo) -> None:
    (accuracy, auroc), floor, units, light, sentence = BRANCHES[branch]
    ahead = None if floor is None else (value(floor[0]), value(floor[1]))
    outcome = find_outcome([judged(made, value(accuracy), value(auroc), ahead, units)])
    assert outcome is not None
    assert outcome.sentence == sentence
    assert outcome.light == light


def test_a_metric_whose_resamples_lack_a_class_does_not_decide(made: ScoresInfo) -> None:
    lacking = value(GOOD, "undefined in 500 of 2,000 bootstrap resamples; the interval is over the others")
    outcome = find_outcome([judged(made, value(NONE), lacking, (value(BELOW), value(AHEAD)))])
    assert outcome is not None
    assert outcome.headline == "No better than colour alone by accuracy"


def test_nothing_is_shown_where_test_and_reference_are_not_apart(made: ScoresInfo) -> None:
    leaky = judged(made, value(GOOD), value(GOOD)).model_copy(
        update={"leakage": (Finding(kind="leak", sentence="patient a is in both."),)}
    )
    outcome = find_outcome([leaky])
    assert outcome is not None
    assert outcome.light == "not shown"
    assert outcome.sentence == "Not shown: reference and test are not apart: see the warning; 40 patients."


def test_nothing_is_shown_without_an_interval(made: ScoresInfo) -> None:
    bare = Value(value=0.8)
    outcome = find_outcome([judged(made, bare, bare)])
    assert outcome is not None
    assert outcome.sentence == "Not shown: no interval: no interval was asked for; 40 patients."


def test_of_several_evaluations_the_weakest_decides(made: ScoresInfo) -> None:
    good, poor = (judged(made, value(ends), value(ends)) for ends in (GOOD, NONE))
    outcome = find_outcome([good, poor, good])
    assert outcome is not None
    assert outcome.headline == "No better than chance by AUROC"
    assert outcome.details.endswith("; of 3 evaluations, the weakest")
    assert find_outcome([]) is None


def shown_by_chance(classes: int, units: int, repetitions: int) -> int:
    """How often random scores are called better than chance."""
    shown, config = 0, BootstrapConfig(resamples=200)
    for seed in range(repetitions):
        rng = np.random.default_rng([classes, units, seed])
        scores = rng.random((units, classes))
        predictions = make_predictions(
            rng.permutation(np.arange(units) % classes).tolist(), scores / scores.sum(axis=1, keepdims=True)
        )
        row: Judged = score(predictions, config, seed)
        outcome = find_outcome([make_info(row, predictions.endpoint)])
        shown += outcome is not None and outcome.light == "shown"
    return shown


def make_info(row: Judged, endpoint: object) -> ScoresInfo:
    """An evaluation that has one row."""
    return ScoresInfo.model_construct(
        endpoint=endpoint, levels=("patient",), judged=(row,), remarks={"knn": ()}, floors=(), leakage=(), config={}
    )


@pytest.mark.parametrize("classes", [2, 4])
def test_random_scores_are_seldom_called_shown(classes: int) -> None:
    """An interval of 95 % leaves 2.5 of 100 above chance; bootstrap intervals of few patients are a little narrow."""
    assert shown_by_chance(classes, LEAST, 100) + shown_by_chance(classes, 20, 100) <= 14

"""Am I done? Sentences on the floor, on a loss that still falls, on patients that would tell, and the next step."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hidisc.evaluation.compare import Difference
from hidisc.evaluation.metrics import Value, count_needed, say_needed
from hidisc.evaluation.outcome import find_outcome
from hidisc.evaluation.scores import Diagnostic, Finding, Floor, Scores
from hidisc.models.card import NOTHING
from hidisc.reporting.evaluated import EvaluatedModel
from hidisc.reporting.verdict import find_outlook, loss_is_falling
from tests.evaluation.made import make_embeddings
from tests.reporting.judged import LEAK, make_scores


@pytest.fixture(scope="module")
def scores(tmp_path_factory: pytest.TempPathFactory) -> Scores:
    folder = tmp_path_factory.mktemp("judged")
    return make_scores(folder / "s", make_embeddings(folder / "e", patients=24), probes=("knn",))


def outlook(scores: Scores, difference: Value | None, losses: list[float] | None = None) -> tuple[str, ...]:
    floors = (Floor(subject="colour", patches=1, ahead={"patient": {"auroc": difference}}),) if difference else ()
    rows = [{"step": float(step), "loss": loss} for step, loss in enumerate(losses or [])]
    judged = replace(scores, info=scores.info.model_copy(update={"floors": floors}))
    return find_outlook(EvaluatedModel("made", (judged,), (None,), rows or None), find_outcome([judged.info]))


def test_what_was_shown_is_looked_at(scores: Scores) -> None:
    found = outlook(scores, Value(value=0.1, low=0.05, high=0.15))
    assert found == ("Next: look at `hidisc heatmap`, and at the confusion matrices below.",)


def test_what_is_no_better_starts_from_weights(scores: Scores) -> None:
    assert "hidisc-patient+small-cohort" in outlook(scores, Value(value=-0.05, low=-0.15, high=0.05))[0]


def test_a_baseline_is_not_told_to_train(scores: Scores) -> None:
    """A network of random weights may have nearly equal embeddings; it was never meant to learn."""
    model = scores.info.model.model_copy(update={"history": NOTHING})
    collapse = Diagnostic(name="collapse", value=1.0, meaning="COLLAPSED: all the same.")
    untrained = replace(scores, info=scores.info.model_copy(update={"model": model, "diagnostics": (collapse,)}))
    found = outlook(untrained, Value(value=-0.05, low=-0.15, high=0.05))
    assert found == ("Next: compare your encoder with it: `hidisc report SCORES OTHER_SCORES --out COMPARISON.html`.",)


def test_a_leak_is_to_be_mended_first(scores: Scores) -> None:
    leak = scores.info.model_copy(update={"leakage": (Finding(kind="leak", sentence=LEAK),)})
    found = outlook(replace(scores, info=leak), Value(value=0.1, low=0.05, high=0.15))
    assert found == ("Next: evaluate it on test patients whom neither it nor the reference knows, with a new --out.",)


def test_an_encoder_that_started_from_weights_is_not_told_to(scores: Scores) -> None:
    history = scores.info.model.history.model_copy(update={"is_complete": False})
    model = scores.info.model.model_copy(update={"history": history})
    started = replace(scores, info=scores.info.model_copy(update={"model": model}))
    found = outlook(started, Value(value=-0.05, low=-0.15, high=0.05))
    assert found[-1].startswith(
        "Next: see with `hidisc audit EMBEDDINGS --out AUDIT` what it looks at, and add patients"
    )


def test_a_falling_loss_comes_first(scores: Scores) -> None:
    found = outlook(scores, None, list(np.linspace(4, 2, 40)))
    assert found[0] == "Its loss was still falling when training ended, so it may not have learned all it can."
    assert found[-1].startswith("Next: train longer")


@pytest.mark.parametrize(
    ("losses", "is_falling"),
    [
        ([4.0] * 40, False),
        (list(np.linspace(4, 2, 40)), True),
        ([4.0] * 20 + [2.0] * 20, False),
        ([4.0, 2.0], False),
        ([4.0, 3.0, 2.0], True),
        ([float("nan")] * 40, False),
    ],
)
def test_a_loss_falls_when_its_last_tenth_is_below_the_one_before(losses: list[float], is_falling: bool) -> None:
    assert loss_is_falling([{"loss": loss} for loss in losses]) is is_falling
    assert loss_is_falling(None) is False


def test_the_number_of_patients_is_the_textbooks(tmp_path: Path) -> None:
    """n = ((z_0.975 + z_0.8) * sd / difference)^2 for the mean of paired differences."""
    n, sd, difference = 50, 0.3, 0.06
    error = sd / np.sqrt(n)
    value = Value(value=difference, low=difference - 1.959964 * error, high=difference + 1.959964 * error)
    assert count_needed(value, n, 0.95) == int(np.ceil(((1.959964 + 0.841621) * sd / difference) ** 2))
    assert count_needed(Value(value=0.0, low=-0.1, high=0.1), n, 0.95) is None
    assert Difference(0.06, 0.06, 0.06, 1.0, 50).patients_needed is None


def test_an_estimate_is_said_with_the_digits_it_has() -> None:
    said = [say_needed(patients) for patients in (7, 46, 101, 4_945, 9_990, 10_000)]
    assert said == ["about 7", "about 46", "about 110", "about 5,000", "about 10,000", "more than 10,000"]


def test_a_collapsed_encoder_is_to_be_trained_again(scores: Scores) -> None:
    collapse = Diagnostic(name="collapse", value=1.0, meaning="COLLAPSED: all the same.")
    collapsed = replace(scores, info=scores.info.model_copy(update={"diagnostics": (collapse,)}))
    assert outlook(collapsed, Value(value=0.1, low=0.05, high=0.15))[-1].startswith("Next: train again: ")


def test_few_patients_are_told_of_folds(tmp_path: Path) -> None:
    few = make_scores(tmp_path / "s", make_embeddings(tmp_path / "e"), probes=("knn",))
    assert outlook(few, None)[-1] == (
        "Next: judge it by all patients, not by 9: `hidisc benchmark small-cohort STORE --out BENCHMARK` trains "
        "several methods in folds, for about half an hour on two cores."
    )
    learned_nothing = few.info.model.model_copy(update={"history": NOTHING})
    foreign = replace(few, info=few.info.model_copy(update={"model": learned_nothing}))
    assert outlook(foreign, None)[-1] == (
        "Next: judge it by all patients, not by 9: `hidisc evaluate EMBEDDINGS --folds 3 --out SCORES`."
    )

"""A is called better than B only where drawing the same patients for both leaves no doubt."""

from dataclasses import replace

import numpy as np
import pytest

from hidisc.evaluation.classes import METRICS
from hidisc.evaluation.compare import Difference, compare, draw_trainings, draw_weights, name_clusters
from hidisc.evaluation.predictions import Predictions
from hidisc.ground.errors import UserError
from hidisc.settings.evaluate import BootstrapConfig
from tests.evaluation import oracles
from tests.evaluation.made import make_predictions, measure, resample
from tests.evaluation.test_metrics import shuffle

CONFIG = BootstrapConfig(resamples=400)


def make_pair(gain: float, patients: int = 40, patches: int = 10, seed: int = 0) -> tuple[Predictions, Predictions]:
    """A and B on the same patches; patients differ a lot in how hard they are, A is a little surer of the truth."""
    rng = np.random.default_rng(seed)
    truth = np.repeat(np.arange(patients) % 2, patches)
    names = [f"P{number:03}" for number in np.repeat(np.arange(patients), patches)]
    ease = np.repeat(rng.normal(scale=2, size=patients), patches) + rng.normal(size=len(truth))
    made = []
    for extra in (gain, 0.0):
        of_truth = 1 / (1 + np.exp(-(0.5 + ease + extra + rng.normal(scale=0.3, size=len(truth)))))
        scores = np.stack([of_truth, 1 - of_truth], axis=1)
        scores[truth == 1] = scores[truth == 1, ::-1]
        made.append(make_predictions(truth.tolist(), scores, names, "patch"))
    return made[0], made[1]


def keep(made: Predictions, wanted: set[str]) -> Predictions:
    rows = np.array([name in wanted for name in made.clusters])
    units = {name: column[rows] for name, column in made.units.items()}
    return replace(made, units=units, truth=made.truth[rows], scores=made.scores[rows])


def test_better_worse_and_the_same():
    a, b = make_pair(gain=0.6)
    better, worse, same = (
        compare([[a]], [[b]], CONFIG, 0),
        compare([[b]], [[a]], CONFIG, 0),
        compare([[a]], [[a]], CONFIG, 0),
    )
    for metric in ("accuracy", "mca", "auroc", "auprc"):
        gap = measure(a, 1).metrics[metric].value - measure(b, 1).metrics[metric].value
        assert better[metric].value == pytest.approx(gap, abs=1e-12)
        assert 0 < better[metric].low <= gap <= better[metric].high
        assert better[metric].share > 0.98
        assert (worse[metric].low, worse[metric].high) == pytest.approx((-better[metric].high, -better[metric].low))
        assert worse[metric].share == pytest.approx(1 - better[metric].share)
        assert (same[metric].value, same[metric].low, same[metric].high, same[metric].share) == (0, 0, 0, 0.5)
    assert list(better) == list(METRICS)
    assert better["accuracy"].patients == 40


def test_differences_are_those_of_really_repeated_patients():
    a, b = make_pair(gain=0.4, patients=8, patches=4)
    config = BootstrapConfig(resamples=20, interval=0.6)
    names = name_clusters(a)
    weights = draw_weights(8, 20, 5)
    found = compare([[a]], [[b]], config, 5)
    slow = [oracles.resample(made, 1, weights, names) for made in (a, b)]
    for metric in ("accuracy", "auroc", "auprc", "sensitivity"):
        draws = np.subtract(slow[0][metric], slow[1][metric]).round(12)
        draws = draws[~np.isnan(draws)]
        assert (found[metric].low, found[metric].high) == pytest.approx(
            tuple(np.percentile(draws, [20, 80])), abs=1e-11
        )
        assert found[metric].share == pytest.approx((np.sign(draws) / 2 + 0.5).mean())


def test_the_same_draws_for_both_see_what_separate_draws_do_not():
    a, b = make_pair(gain=0.4, seed=1)
    paired = compare([[a]], [[b]], CONFIG, 0)["accuracy"]
    names = name_clusters(a)
    apart = [
        resample(made, 1, draw_weights(40, 400, seed), names)["accuracy"] for seed, made in enumerate((a, b), start=1)
    ]
    low, high = np.percentile(apart[0] - apart[1], [2.5, 97.5])
    assert low < 0 < high
    assert paired.low > 0
    assert paired.high - paired.low < 0.5 * (high - low)


def test_only_patients_that_all_judged_count():
    a, b = make_pair(gain=0.6)
    names = name_clusters(a)
    fewer, others = keep(a, set(names[:30])), keep(a, set(names[5:]))
    common = set(names[5:30])
    found = compare([[fewer, others]], [[b]], CONFIG, 0)
    expected = compare([[keep(a, common)]], [[keep(b, common)]], CONFIG, 0)
    assert found["accuracy"].patients == 25
    for metric in ("accuracy", "auroc"):
        assert found[metric].value == pytest.approx(expected[metric].value)
        assert (found[metric].low, found[metric].high) == pytest.approx((expected[metric].low, expected[metric].high))
    assert found["accuracy"].value != pytest.approx(compare([[a]], [[b]], CONFIG, 0)["accuracy"].value)


def test_several_evaluations_of_a_training_are_averaged_within_each_resample():
    firsts, seconds = zip(*(make_pair(gain=0.5, patients=20), make_pair(gain=-0.5, patients=20)), strict=True)
    found = compare([firsts], [seconds[:1]], CONFIG, 3)["auroc"]
    assert found.trainings == (1, 1)
    names, weights = name_clusters(firsts[0]), draw_weights(20, 400, 3)
    draws = [resample(made, 1, weights, names)["auroc"] for made in (*firsts, seconds[0])]
    expected = (draws[0] + draws[1]) / 2 - draws[2]
    assert (found.low, found.high) == pytest.approx(tuple(np.percentile(expected, [2.5, 97.5])), abs=1e-9)
    point = [measure(made, 1).metrics["auroc"].value for made in (*firsts, seconds[0])]
    assert found.value == pytest.approx((point[0] + point[1]) / 2 - point[2])


# Trainings


def make_training(gain: float, seed: int, patients: int = 40, patches: int = 10) -> Predictions:
    """What one training says of patients that are as hard for all of them."""
    ease = np.random.default_rng(100).normal(scale=2, size=patients)
    rng = np.random.default_rng(seed)
    truth = np.repeat(np.arange(patients) % 2, patches)
    names = [f"P{number:03}" for number in np.repeat(np.arange(patients), patches)]
    of_truth = 1 / (1 + np.exp(-(0.5 + np.repeat(ease, patches) + gain + rng.normal(scale=0.5, size=len(truth)))))
    scores = np.stack([of_truth, 1 - of_truth], axis=1)
    scores[truth == 1] = scores[truth == 1, ::-1]
    return make_predictions(truth.tolist(), scores, names, "patch")


def test_one_training_each_is_resampled_over_patients_alone():
    a, b = make_pair(gain=0.6)
    also = make_pair(gain=0.3)[0]
    names = name_clusters(a)
    weights = draw_weights(len(names), CONFIG.resamples, 0)
    drawn = [resample(one, 1, weights, names) for one in (a, also, b)]
    for metric in ("accuracy", "auroc"):
        for side, draws in (([a], drawn[0][metric]), ([a, also], (drawn[0][metric] + drawn[1][metric]) / 2)):
            found = compare([side], [[b]], CONFIG, 0)[metric]
            ends = np.quantile(draws - drawn[2][metric], [0.025, 0.975])
            np.testing.assert_allclose([found.low, found.high], ends, rtol=0, atol=1e-12)


def test_draws_are_those_of_really_repeated_patients_and_trainings():
    """Three trainings against two, some with several samples of patches."""
    a = [[make_training(0.6, 1, 8, 4), make_training(0.5, 2, 8, 4)], [make_training(-0.9, 3, 8, 4)]]
    a += [[make_training(1.5, seed, 8, 4) for seed in (4, 5, 6)]]
    b = [[make_training(0.1, 7, 8, 4)], [make_training(-0.4, 8, 8, 4), make_training(-0.3, 9, 8, 4)]]
    resamples, names = 40, name_clusters(a[0][0])
    drawn = draw_trainings(3, resamples, 5, 0), draw_trainings(2, resamples, 5, 1)
    slow = oracles.compare(a, b, 1, draw_weights(8, resamples, 5), drawn, names)
    for interval in (0.3, 0.6, 0.9):
        found = compare(a, b, BootstrapConfig(resamples=resamples, interval=interval), 5)
        for metric in ("accuracy", "mca", "auroc", "auprc", "sensitivity", "specificity"):
            draws = np.array([value for value in slow[metric] if not np.isnan(value)])
            ends = np.percentile(draws, [50 - 50 * interval, 50 + 50 * interval])
            assert (found[metric].low, found[metric].high) == pytest.approx(tuple(ends), abs=1e-12)
            assert found[metric].share == pytest.approx((np.sign(draws.round(12)) / 2 + 0.5).mean(), abs=1e-12)
            assert found[metric].trainings == (3, 2)


def test_the_difference_is_that_of_the_means_of_trainings():
    several, one = [make_training(0.2, seed) for seed in range(4)], make_training(2.0, 9)
    found = compare([several, [one]], [[several[0]]], CONFIG, 0)["accuracy"]
    right = [measure(made, 1).metrics["accuracy"].value for made in (*several, one)]
    assert found.value == pytest.approx((np.mean(right[:4]) + right[4]) / 2 - right[0], abs=1e-12)


def test_trainings_of_the_two_sides_and_patients_are_drawn_independently():
    drawn = [draw_trainings(3, 2000, 0, 0), draw_trainings(3, 2000, 0, 1), draw_weights(3, 2000, 0)]
    for counts in drawn:
        assert (counts.sum(axis=1) == 3).all()
        assert np.abs(counts.mean(axis=0) - 1).max() < 0.06
    for one, other in ((0, 1), (0, 2), (1, 2)):
        assert np.abs(np.corrcoef(drawn[one].T, drawn[other].T)[:3, 3:]).max() < 0.06
    assert not np.array_equal(draw_trainings(3, 2000, 1, 0), drawn[0])


def test_trainings_that_scatter_leave_doubt_that_patients_alone_do_not():
    a = [make_training(gain, seed) for seed, gain in enumerate((2.0, 1.5, -0.8))]
    b = [make_training(gain, seed) for seed, gain in enumerate((0.3, 0.0, 0.1), 3)]
    patients_alone = compare([a], [b], CONFIG, 0)["accuracy"]
    both = compare([[made] for made in a], [[made] for made in b], CONFIG, 0)["accuracy"]
    assert patients_alone.value == pytest.approx(both.value, abs=1e-12)
    assert patients_alone.verdict == "better"
    assert both.verdict == "unclear"
    assert both.low < 0 < patients_alone.low < patients_alone.high < both.high
    assert both.sentence("accuracy", "A", "B").endswith("; 40 patients; 3 trainings each)")


def call_different(trainings: int, scatter: float, rounds: int) -> tuple[float, float]:
    """How often two sides of one method are called better or worse, by patients alone and by trainings too."""
    config, called = BootstrapConfig(resamples=200), np.zeros((rounds, 2))
    rng = np.random.default_rng(0)
    for number in range(rounds):
        gains = rng.normal(scale=scatter, size=(2, trainings))
        seeds = rng.integers(2**32, size=(2, trainings))
        a, b = (
            [make_training(gain, seed, 30, 4) for gain, seed in zip(*side, strict=True)]
            for side in zip(gains, seeds, strict=True)
        )
        alone = compare([a], [b], config, number)["accuracy"]
        both = compare([[made] for made in a], [[made] for made in b], config, number)["accuracy"]
        called[number] = alone.verdict != "unclear", both.verdict != "unclear"
    return tuple(called.mean(axis=0))


def test_equal_methods_are_called_different_by_patients_alone():
    alone, both = call_different(trainings=3, scatter=0.5, rounds=20)
    assert alone > 0.4
    assert both < 0.2


def test_trainings_that_agree_leave_the_interval_nearly_as_it_is():
    a, b = ([make_training(gain, seed) for seed in seeds] for gain, seeds in ((0.8, range(3)), (0.0, range(3, 6))))
    patients_alone = compare([a], [b], CONFIG, 0)["accuracy"]
    both = compare([[made] for made in a], [[made] for made in b], CONFIG, 0)["accuracy"]
    assert both.verdict == "better"
    width, before = both.high - both.low, patients_alone.high - patients_alone.low
    assert before < width < 1.3 * before


def test_samples_of_patches_are_no_trainings():
    samples = [[make_training(0.5, seed) for seed in range(3)], [make_training(0.0, seed) for seed in range(3, 6)]]
    found = compare(samples[:1], samples[1:], CONFIG, 0)["accuracy"]
    assert found.trainings == (1, 1)
    assert not found.is_of_methods


@pytest.mark.parametrize(
    ("trainings", "said", "is_of_methods"),
    [
        ((1, 1), "one training each", False),
        ((3, 3), "3 trainings each", True),
        ((3, 1), "3 and 1 trainings", False),
        ((2, 5), "2 and 5 trainings", True),
    ],
)
def test_trainings_in_words(trainings, said, is_of_methods):
    found = Difference(0.1, 0.05, 0.2, 1.0, 62, trainings=trainings)
    assert found.counted_trainings == said
    assert found.sentence("accuracy", "A", "B").endswith(f"62 patients; {said})")
    assert found.is_of_methods is is_of_methods


def test_neither_the_order_of_units_nor_of_evaluations_matters_and_the_seed_does():
    a, b = make_pair(gain=0.3, patients=12)
    c = make_pair(gain=0.1, patients=12, seed=1)[0]
    found = compare([[a, c, b], [c, b]], [[b]], CONFIG, 0)
    again = compare([[shuffle(b, 1), shuffle(a, 2), c], [b, c]], [[shuffle(b, 3)]], CONFIG, 0)
    for metric in METRICS:
        assert again[metric].share == found[metric].share
        assert again[metric].low == pytest.approx(found[metric].low)
    assert compare([[a]], [[b]], CONFIG, 1)["auroc"] != compare([[a]], [[b]], CONFIG, 0)["auroc"]


def test_means_of_the_same_numbers_in_another_order_are_ties():
    made = [make_pair(gain=gain, patients=13)[0] for gain in (0.1, 0.3, 0.5, 0.7, 0.9)]
    for metric, found in compare([made], [made[::-1]], CONFIG, 0).items():
        if not metric.startswith("top"):
            assert (found.value, found.low, found.high, found.share) == (0, 0, 0, 0.5), metric


def test_an_undefined_metric_is_not_compared():
    a, b = make_pair(gain=0.5)
    one_class = [keep(made, {f"P{number:03}" for number in range(0, 40, 2)}) for made in (a, b)]
    found = compare([one_class[:1]], [one_class[1:]], CONFIG, 0)
    assert found["accuracy"].value > 0
    assert found["auroc"] == Difference(
        None, None, None, None, 20, why="no test patch has class 'b': choose queries=[...] that have it"
    )
    assert found["auroc"].sentence("AUROC", "HiDisc", "SimCLR") == (
        "HiDisc and SimCLR cannot be compared in AUROC: no test patch has class 'b': choose queries=[...] that have it"
    )


def test_resamples_without_a_class_are_left_out_and_counted():
    a, b = make_pair(gain=0.5, patients=4)
    found = compare([[a]], [[b]], CONFIG, 0)
    gaps = int((draw_weights(4, 400, 0)[:, [1, 3]].sum(axis=1) == 0).sum())
    assert 400 * 0.05 < gaps < 400 * 0.1
    assert found["sensitivity"].why == (
        f"undefined in {gaps} of 400 bootstrap resamples of patients (a class is missing there); the interval "
        "is over the others"
    )
    assert found["sensitivity"].high is not None
    assert found["accuracy"].why == ""
    turned = compare([[b]], [[a]], CONFIG, 0)["sensitivity"]
    assert found["sensitivity"].share + turned.share == pytest.approx(1)  # of those that are defined


def test_one_patient_and_no_resamples_have_no_interval():
    a, b = make_pair(gain=3.0)
    one = compare([[keep(a, {"P000"})]], [[keep(b, {"P000"})]], CONFIG, 0)["accuracy"]
    none = compare([[a]], [[b]], BootstrapConfig(resamples=0), 0)["accuracy"]
    for found in (one, none):
        assert found.value > 0
        assert found.low is found.high is found.share is None
        assert found.verdict == "unclear"
    assert one.sentence("accuracy", "A", "B") == (
        f"no clear difference between A and B in accuracy: {100 * one.value:.1f} points "
        "(1 patient; one training each; no interval: there is only one patient)"
    )
    assert none.sentence("accuracy", "A", "B") == (
        f"no clear difference between A and B in accuracy: {100 * none.value:.1f} points "
        "(40 patients; one training each; no interval: resamples=0)"
    )


@pytest.mark.parametrize(
    ("found", "sentence"),
    [
        (
            Difference(0.123, 0.0401, 0.2012, 0.99, 62),
            "HiDisc is better than SimCLR in accuracy by 12.3 points "
            "(95 % interval 4.0 to 20.1; 62 patients; one training each)",
        ),
        (
            Difference(-0.123, -0.2012, -0.0401, 0.01, 62),
            "HiDisc is worse than SimCLR in accuracy by 12.3 points "
            "(95 % interval 4.0 to 20.1; 62 patients; one training each)",
        ),
        (
            Difference(0.02, -0.01, 0.05, 0.9, 1200, 0.9, "site"),
            "no clear difference between HiDisc and SimCLR in accuracy: 2.0 points "
            "(90 % interval -1.0 to 5.0; 1,200 sites; one training each)",
        ),
        (
            Difference(0.02, -0.0, 0.05, 0.9, 6, why="mind this"),
            "no clear difference between HiDisc and SimCLR in accuracy: 2.0 points "
            "(95 % interval 0.0 to 5.0; 6 patients; one training each; mind this)",
        ),
        (
            Difference(0.01, 0.0003, 0.05, 0.98, 6),
            "HiDisc is better than SimCLR in accuracy by 1.0 points "
            "(95 % interval 0.03 to 5.0; 6 patients; one training each)",
        ),
        (
            Difference(0.1, 0.05, 0.2, 1.0, 5),
            "no clear difference between HiDisc and SimCLR in accuracy: 10.0 points "
            "(95 % interval 5.0 to 20.0; 5 patients are too few to tell; one training each)",
        ),
        (
            Difference(-0.1, -0.2, -0.05, 0.0, 5),
            "no clear difference between HiDisc and SimCLR in accuracy: -10.0 points "
            "(95 % interval -20.0 to -5.0; 5 patients are too few to tell; one training each)",
        ),
        (
            Difference(-0.02, -0.05, 0.0, 0.1, 6),
            "no clear difference between HiDisc and SimCLR in accuracy: -2.0 points "
            "(95 % interval -5.0 to 0.0; 6 patients; one training each)",
        ),
        (
            Difference(-0.1, -0.2, -0.05, 0.0, 5, 0.9),
            "HiDisc is worse than SimCLR in accuracy by 10.0 points "
            "(90 % interval 5.0 to 20.0; 5 patients; one training each)",
        ),
    ],
    ids=[
        "better",
        "worse",
        "unclear",
        "touches zero",
        "close to zero",
        "too few",
        "worse, too few",
        "touches zero below",
        "few, but surer",
    ],
)
def test_sentences(found, sentence):
    assert found.sentence("accuracy", "HiDisc", "SimCLR") == sentence
    said = [verdict for verdict in ("better", "worse") if f"is {verdict} than" in sentence]
    assert [found.verdict] == (said or ["unclear"])


def test_what_cannot_be_compared_is_refused():
    a, b = make_pair(gain=0.5, patients=4)

    def refusal(*others: Predictions) -> str:
        with pytest.raises(UserError) as caught:
            compare([[a]], [others], CONFIG, 0)
        return str(caught.value)

    assert refusal(replace(b, endpoint=b.endpoint.model_copy(update={"classes": ("b", "a")}))) == (
        "label=label (a, b; positive b) and label=label (b, a; positive a) are two questions, so their evaluations "
        "cannot be compared or pooled. Evaluate both with the same label, classes and positive."
    )
    assert refusal(b, replace(b, key=replace(b.key, level="slide"))) == (
        "predictions of each patch and of each slide cannot be compared. Choose the same level for both."
    )
    assert refusal(replace(b, units={"site": b.clusters, **b.units})) == (
        "evaluations by patient and by site cannot be compared. Evaluate both with the same levels=[...]."
    )
    assert refusal(keep(b, {"P000"}), keep(b, {"P001"})) == (
        "no patient is in all of the evaluations, so they cannot be compared. Evaluate both on the same queries=[...]."
    )
    assert refusal() == "nothing to compare: give one or more evaluations of A and of B."
    with pytest.raises(UserError, match="nothing to compare"):
        compare([], [[a]], CONFIG, 0)


def test_evaluations_that_are_right_about_the_same_patients_do_not_differ() -> None:
    """`0.0 points (95 % interval 0.0 to 0.0)` would look as if that were known exactly."""
    same = Difference(0.0, 0.0, 0.0, 0.5, 8)
    assert same.sentence("accuracy", "A", "B") == (
        "no difference between A and B in accuracy, in any resample (8 patients; one training each)"
    )

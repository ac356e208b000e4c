"""Resamples are what repeating the rows of drawn patients would give; intervals are honest about patients."""

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, roc_auc_score

from hidisc.evaluation import classes as module
from hidisc.evaluation.classes import METRICS
from hidisc.evaluation.compare import draw_weights, find_interval, name_clusters
from hidisc.evaluation.predictions import Predictions
from hidisc.settings.evaluate import BootstrapConfig
from tests.evaluation import oracles
from tests.evaluation.made import BY_CLASS, make_predictions, measure, resample, resample_all, score_level
from tests.evaluation.test_metrics import predictions, shuffle


def make_patches(patients: int, patches: int, shares: list[float], seed: int = 0, digits: int | None = None):
    """`patches` of each patient, patients of each class by `shares`; patients differ in how hard they are."""
    rng = np.random.default_rng(seed)
    edges = np.cumsum(shares)[:-1] * patients
    truth = np.repeat(np.searchsorted(edges, np.arange(patients), side="right"), patches)
    patient = np.repeat(np.arange(patients), patches)
    logits = rng.normal(size=(len(truth), len(shares))) + rng.normal(size=(patients, len(shares)))[patient]
    logits[np.arange(len(truth)), truth] += 1
    scores = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    scores = scores if digits is None else scores.round(digits)
    return make_predictions(truth.tolist(), scores, [f"P{number:03}" for number in patient], "patch")


def assert_equals_the_oracle(made: Predictions, positive: int, weights: np.ndarray, names: np.ndarray) -> None:
    overall, by_class = resample_all(made, positive, weights, names)
    expected = oracles.resample(made, positive, weights, names)
    for name in METRICS:
        np.testing.assert_allclose(overall[name], expected[name], rtol=0, atol=1e-12, err_msg=name)
    for code, label in enumerate(made.classes):
        for name in BY_CLASS:
            found = by_class[name][:, code]
            np.testing.assert_allclose(found, expected[label, name], rtol=0, atol=1e-12, err_msg=f"{label} {name}")
    np.testing.assert_equal(resample(made, positive, weights, names), overall)


def test_weights_count_draws_with_replacement():
    weights = draw_weights(30, 4000, 1)
    assert weights.shape == (4000, 30)
    assert weights.dtype == np.int16
    assert (weights.sum(axis=1) == 30).all()
    assert abs(weights.mean(axis=0) - 1).max() < 0.08  # five standard errors
    assert weights.astype(float).var() == pytest.approx(1 - 1 / 30, abs=0.03)
    assert (weights == 0).mean() == pytest.approx((1 - 1 / 30) ** 30, abs=0.01)


def test_weights_follow_from_the_seed_alone():
    assert (draw_weights(9, 50, 3) == draw_weights(9, 50, 3)).all()
    assert (draw_weights(9, 80, 3)[:50] == draw_weights(9, 50, 3)).all()
    assert (draw_weights(9, 50, 3) != draw_weights(9, 50, 4)).any()


@settings(max_examples=40)
@given(predictions(), st.integers(0, 1), st.integers(0, 2**32))
def test_a_resample_is_the_rows_of_the_drawn_patients_repeated(made, positive, seed):
    names = np.array(["p", "q", "r", "s"], object)  # some may have no units
    assert_equals_the_oracle(made, positive, draw_weights(4, 3, seed), names)


@pytest.mark.parametrize(("shares", "digits"), [([0.5, 0.5], None), ([0.7, 0.3], 1), ([0.2, 0.3, 0.5], 2)])
def test_resamples_of_many_patches(shares, digits):
    made = make_patches(12, 15, shares, digits=digits)
    names = name_clusters(made)
    assert_equals_the_oracle(made, 1, draw_weights(len(names), 10, 0), names)


@settings(max_examples=60)
@given(predictions(), st.integers(0, 1), st.integers(0, 2**32))
def test_the_order_of_the_units_does_not_matter(made, positive, seed):
    names = name_clusters(made)
    shuffled = shuffle(made, seed)
    assert names.tolist() == name_clusters(shuffled).tolist()
    if len(names):
        weights = draw_weights(len(names), 5, seed)
        np.testing.assert_equal(
            resample_all(shuffled, positive, weights, names),
            resample_all(made, positive, weights, names),
        )


def test_order_does_not_matter_where_scores_are_grouped(monkeypatch):
    monkeypatch.setattr(module, "THRESHOLDS", 16)
    made = make_patches(10, 30, [0.6, 0.4])
    names, weights = name_clusters(made), draw_weights(10, 20, 0)
    np.testing.assert_equal(resample(shuffle(made, 1), 1, weights, names), resample(made, 1, weights, names))


def test_names_say_which_column_is_whose_and_others_are_left_out():
    made = make_patches(8, 5, [0.5, 0.5], seed=2)
    names, weights = name_clusters(made), draw_weights(8, 30, 0)
    order = np.random.default_rng(0).permutation(8)
    np.testing.assert_equal(resample(made, 1, weights[:, order], names[order]), resample(made, 1, weights, names))
    fewer = weights.copy()
    fewer[:, [2, 5]] = 0
    kept = np.delete(np.arange(8), [2, 5])
    found, expected = resample(made, 1, fewer[:, kept], names[kept]), resample(made, 1, fewer, names)
    for name in METRICS:  # fewer scores, so sums of other lengths
        np.testing.assert_allclose(found[name], expected[name], rtol=0, atol=1e-14)


def test_everyone_once_is_the_measure_itself():
    made = make_patches(9, 20, [0.3, 0.3, 0.2, 0.2], seed=5)
    found = resample(made, 0, np.ones((1, 9), np.int16), name_clusters(made))
    for name, value in measure(made, 0).metrics.items():
        assert found[name][0] == pytest.approx(value.value, abs=1e-12, rel=0)
    assert list(found) == list(METRICS)


def test_two_thousand_and_forty_eight_scores_are_exact_and_more_are_grouped():
    rng = np.random.default_rng(0)
    for units, exact in ((2048, True), (6000, False)):
        scores = rng.random(units)
        made = make_predictions(
            (rng.random(units) < scores).astype(int).tolist(),
            np.stack([1 - scores, scores], axis=1),
            [f"P{number % 7}" for number in range(units)],
        )
        assert len(np.unique(made.scores[:, 1])) == units
        found = resample(made, 1, np.ones((1, 7), np.int16), name_clusters(made))
        gap = abs(found["auroc"][0] - measure(made, 1).metrics["auroc"].value)
        assert (gap < 1e-13) == exact
        group, groups = module._group_scores(scores, made.truth == 1)
        assert (groups, group.min(), group.max()) == (2048, 0, 2047)
        assert (np.diff(group[np.argsort(-scores)]) >= 0).all()  # 0 is the highest


@pytest.mark.parametrize("shares", [[0.5, 0.5], [0.98, 0.02], [0.6, 0.38, 0.02]], ids=["even", "rare", "three"])
def test_grouping_the_scores_of_twenty_thousand_patches_moves_areas_little(shares):
    made = make_patches(100, 200, shares, seed=1)
    assert all(len(np.unique(column)) > 15_000 for column in made.scores.T)
    names = name_clusters(made)
    weights = np.concatenate([np.ones((1, 100), np.int16), draw_weights(100, 5, 0)])
    by_class = resample_all(made, 1, weights, names)[1]
    place = {name: number for number, name in enumerate(names)}
    for row, weight in enumerate(weights):
        times = weight[[place[name] for name in made.clusters]]
        for code in range(len(shares)):
            is_class, scores = (made.truth == code).repeat(times), made.scores[:, code].repeat(times)
            if is_class.all() or not is_class.any():
                assert np.isnan(by_class["auroc"][row, code])
                continue
            assert abs(by_class["auroc"][row, code] - roc_auc_score(is_class, scores)) < 0.00002
            assert abs(by_class["auprc"][row, code] - average_precision_score(is_class, scores)) < 0.0006


def test_a_large_tie_among_many_scores_stays_a_group_of_its_own():
    scores = np.r_[np.linspace(0, 0.499, 4000), np.full(3000, 0.5), np.linspace(0.501, 1, 4000)]
    is_class = np.arange(len(scores)) % 3 == 0
    group, _ = module._group_scores(scores, is_class)
    assert len(np.unique(group[scores == 0.5])) == 1
    assert not np.isin(group[scores != 0.5], group[scores == 0.5]).any()


def test_counts_too_large_for_single_precision_are_still_exact():
    made = make_patches(6, 1001, [0.5, 0.5], seed=4, digits=0)  # two scores: the largest counts
    names = name_clusters(made)
    weights = np.array([[30_001, 29_999, 30_011, 27_777, 32_001, 31_337], [1, 1, 1, 1, 1, 1]], np.int16)
    found = resample(made, 1, weights, names)
    for row, weight in enumerate(weights):
        times = weight[np.searchsorted(names.astype(str), made.clusters.astype(str))].astype(float)
        truth, scores = made.truth, made.scores[:, 1]
        assert found["auroc"][row] == pytest.approx(roc_auc_score(truth, scores, sample_weight=times), abs=1e-13, rel=0)
        expected = average_precision_score(truth, scores, sample_weight=times)
        assert found["auprc"][row] == pytest.approx(expected, abs=1e-13, rel=0)


@pytest.mark.parametrize("block", [1, 1000, 10**9])
def test_blocks_of_any_size_give_the_same(monkeypatch, block):
    made = make_patches(10, 20, [0.4, 0.6])
    names, weights = name_clusters(made), draw_weights(10, 33, 0)
    expected = resample(made, 1, weights, names)
    monkeypatch.setattr(module, "_BLOCK", block)
    found = resample(made, 1, weights, names)
    for name in METRICS:
        np.testing.assert_allclose(found[name], expected[name], rtol=0, atol=1e-14)


def test_memory_does_not_grow_with_the_resamples():
    made = make_patches(40, 100, [0.5, 0.5])
    names = name_clusters(made)
    peaks = []
    for resamples in (200, 2000):
        weights = draw_weights(40, resamples, 0)
        tracemalloc.start()
        resample(made, 1, weights, names)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] - peaks[0] < 1_800 * 1_000  # results alone: some hundred bytes a resample
    assert peaks[1] < 16e6


def test_intervals_are_percentiles_of_the_resamples():
    made = replace(make_patches(20, 10, [0.4, 0.3, 0.3]), left_out=3)
    config = BootstrapConfig(resamples=300, interval=0.8)
    scored = score_level(made, 1, config, 7)
    names = name_clusters(made)
    draws, by_class = resample_all(made, 1, draw_weights(len(names), 300, 7), names)
    measured = measure(made, 1)
    assert (scored.level, scored.units, scored.left_out) == ("patch", 200, 3)
    assert scored.confusion == measured.confusion
    for name, value in scored.metrics.items():
        assert value.value == measured.metrics[name].value
        if name != "top3":
            assert (value.low, value.high) == pytest.approx(tuple(np.percentile(draws[name], [10, 90])), abs=1e-12)
            assert value.low < value.value < value.high
            assert value.why == ""
    assert scored.metrics["top3"] == measured.metrics["top3"]
    for code, (label, of) in enumerate(scored.by_class.items()):
        for name, value in of.items():
            ends = np.percentile(by_class[name][:, code], [10, 90])
            assert value.value == measured.by_class[label][name].value
            assert (value.low, value.high) == pytest.approx(tuple(ends), abs=1e-12)


def test_scores_follow_from_the_seed_alone():
    made = make_patches(12, 5, [0.5, 0.5])
    config = BootstrapConfig(resamples=100)
    assert score_level(made, 1, config, 0) == score_level(shuffle(made, 3), 1, config, 0)
    assert score_level(made, 1, config, 0).metrics["auroc"] != score_level(made, 1, config, 1).metrics["auroc"]


def test_draws_without_a_class_are_left_out_and_counted():
    truth = [0, 0, 0, 1]  # a patient of four: not drawn in (3 / 4) ** 4 = 32 % of the resamples
    made = make_predictions(truth, np.array([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7], [0.4, 0.6]]))
    config = BootstrapConfig(resamples=500)
    scored = score_level(made, 1, config, 0)
    drawn = draw_weights(4, 500, 0)[:, 3]
    missing, alone = int((drawn == 0).sum()), int((drawn == 4).sum())
    assert missing > 100
    assert 0 < alone < 10
    why = (
        "undefined in {} of 500 bootstrap resamples of patients (a class is missing there); the interval is "
        "over the others"
    )
    assert scored.metrics["sensitivity"].why == why.format(missing)
    for value in (
        scored.metrics["mca"],
        scored.metrics["auroc"],
        scored.metrics["auprc"],
        scored.by_class["a"]["auroc"],
    ):
        assert value.why == why.format(missing + alone)
        assert value.high is not None
    assert scored.metrics["accuracy"].why == scored.metrics["specificity"].why == ""  # too few to mention


def test_few_undefined_draws_are_not_worth_a_word():
    config = BootstrapConfig(interval=0.5)
    some, many = np.arange(100.0), np.arange(100.0)
    some[95:], many[94:] = np.nan, np.nan
    assert find_interval(some, config, "site") == (pytest.approx(23.5), pytest.approx(70.5), "")
    why = (
        "undefined in 6 of 100 bootstrap resamples of sites (a class is missing there); the interval is over the others"
    )
    assert find_interval(many, config, "site") == (pytest.approx(23.25), pytest.approx(69.75), why)
    why = "no interval: undefined in all 3 bootstrap resamples of sites"
    assert find_interval(np.full(3, np.nan), config, "site") == (None, None, why)


def test_one_patient_has_no_interval():
    made = make_predictions([0, 1, 1], np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]]), ["P"] * 3, "slide")
    scored = score_level(made, 1, BootstrapConfig(), 0)
    for value in (scored.metrics["auroc"], scored.metrics["accuracy"], scored.by_class["a"]["sensitivity"]):
        assert value.value is not None
        assert value.low is value.high is None
        assert value.why == "no interval: there is only one patient"
    assert scored.metrics["top2"] == measure(made, 1).metrics["top2"]  # undefined: says why, not this


def test_no_resamples_means_no_intervals_and_no_words():
    made = make_patches(6, 4, [0.5, 0.5])
    scored = score_level(made, 1, BootstrapConfig(resamples=0), 0)
    assert scored.metrics == measure(made, 1).metrics
    assert scored.by_class == measure(made, 1).by_class


def test_nothing_judged_is_scored_as_undefined():
    scored = score_level(make_predictions([], np.empty((0, 2))), 1, BootstrapConfig(), 0)
    assert scored.units == 0
    assert {value.value for value in scored.metrics.values()} == {None}


def test_names_of_clusters_may_be_numbers_or_missing():
    made = make_predictions([0, 1, 1, 0], np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4], [0.5, 0.5]]))
    units = {"site": np.array([10, None, 2, None], object)}
    made = replace(made, key=replace(made.key, level="site"), units=units)
    assert name_clusters(made).tolist() == [10, 2, None]
    assert score_level(made, 1, BootstrapConfig(resamples=50), 0).metrics["accuracy"].high is not None


def test_intervals_over_patients_cover_and_intervals_over_patches_do_not():
    """300 cohorts of 30 patients x 20 patches, as easy each as its patient; the truth is an accuracy of 0.7."""
    rng, config = np.random.default_rng(0), BootstrapConfig(resamples=200)
    patients, patches, cohorts = 30, 20, 300
    by_patient, by_patch = np.arange(patients).repeat(patches).astype(str), np.arange(600).astype(str)
    covered = {"patient": 0, "patch": 0}
    for cohort in range(cohorts):
        right = rng.random(600) < rng.beta(1.4, 0.6, patients).repeat(patches)
        truth = rng.integers(2, size=600)
        scores = np.where((truth == right)[:, None], [[0.2, 0.8]], [[0.8, 0.2]])
        for unit, names in (("patient", by_patient), ("patch", by_patch)):
            made = make_predictions(truth.tolist(), scores, names.tolist(), "patch")
            ordered = name_clusters(made)
            draws = resample(made, 1, draw_weights(len(ordered), config.resamples, cohort), ordered)
            low, high, _ = find_interval(draws["accuracy"], config, "patient")
            covered[unit] += low <= 0.7 <= high
    assert 0.9 <= covered["patient"] / cohorts <= 0.98
    assert covered["patch"] / cohorts < 0.7

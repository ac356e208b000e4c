"""The audit's numbers against slow loops and formulas, its rule case by case, and drawn cohorts with a known answer."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2_contingency

from hidisc.auditing import shortcuts as shortcuts
from hidisc.auditing.audit import INSEPARABLE, SIGNIFICANT, ColumnAudit, EncoderAudit, decide
from hidisc.auditing.measure import run_audit
from hidisc.auditing.shortcuts import (
    AuditedSample,
    above_chance,
    add_resamples,
    average_cells,
    count_shared,
    draw_reference,
    expect_shared,
    find_other_patients,
    sum_pairs,
    to_value,
)
from hidisc.auditing.variables import cluster_colours, cramers_v, find_variables, permute_labels, share_groups
from hidisc.embeddings.embeddings import Embeddings
from hidisc.evaluation.metrics import Value
from hidisc.ground.errors import UserError
from hidisc.settings.audit import AuditConfig
from tests.evaluation.drawn import draw_embeddings
from tests.evaluation.made import make_embeddings, relabel

QUICK = {"bootstrap": {"resamples": 200, "interval": 0.99}}


def audit(made: Embeddings, *columns: str, **changes: object) -> EncoderAudit:
    return run_audit(made, AuditConfig.model_validate({**QUICK, "columns": columns or None, **changes}))


def draw_rows(seed: int, n: int = 60, patients: int = 9) -> tuple[np.ndarray, ...]:
    """Vectors (n, 4), patients, labels and values (n,), some of the latter two not known."""
    rng = np.random.default_rng(seed)
    owners = np.sort(np.concatenate([np.arange(patients), rng.integers(patients, size=n - patients)]))
    return rng.normal(size=(n, 4)).astype(np.float32), owners, rng.integers(-1, 3, n), rng.integers(-1, 2, n)


# ---- association


@pytest.mark.parametrize("seed", range(5))
def test_cramers_v_is_bergsmas_formula_with_scipys_chi_squared(seed: int) -> None:
    table = np.random.default_rng(seed).integers(1, 9, (3, 4)).astype(float)
    n, (r, c) = table.sum(), table.shape
    phi2 = chi2_contingency(table, correction=False).statistic / n
    phi2 = max(0, phi2 - (r - 1) * (c - 1) / (n - 1))
    sides = r - (r - 1) ** 2 / (n - 1), c - (c - 1) ** 2 / (n - 1)
    assert cramers_v(table) == pytest.approx(np.sqrt(phi2 / (min(sides) - 1)))


def test_cramers_v_is_1_where_one_says_the_other_and_about_0_where_they_are_independent() -> None:
    assert cramers_v(np.diag([10.0, 10.0])) == pytest.approx(1, abs=0.01)
    assert cramers_v(np.full((2, 2), 10.0)) == 0
    assert cramers_v(np.array([[10.0, 0], [5, 0]])) is None, "the second value has no patient"
    assert cramers_v(np.eye(3)) is None, "as many values as patients"


def test_the_patient_is_the_unit_however_many_patches_it_has() -> None:
    patients = np.array([0, 0, 0, 0, 1, 2, 2])
    shares = share_groups(patients, np.array([0, 0, 0, 1, 1, 1, 1]), 2)
    assert shares.tolist() == [[0.75, 0.25], [0, 1], [0, 1]]


def test_the_permutation_test_says_how_rare_an_association_is() -> None:
    rng, codes = np.random.default_rng(0), np.arange(40) % 2
    labels = np.eye(2)[codes]
    assert permute_labels(labels, np.eye(2)[codes], rng) == 0.001
    assert permute_labels(labels, np.eye(2)[np.arange(40) // 20], rng) > 0.5


# ---- robustness index


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10**6), k=st.integers(1, 8), patients=st.integers(1, 12))
def test_neighbours_are_the_nearest_patches_of_other_patients(seed: int, k: int, patients: int) -> None:
    z, owners, _, _ = draw_rows(seed, n=40, patients=patients)
    queries = np.random.default_rng(seed).permutation(40)[:25]
    near, rows = find_other_patients(z, queries, owners, k, 0.01)
    unit = z / np.linalg.norm(z, axis=1, keepdims=True)
    for query, found, similarities in zip(queries, rows, near, strict=True):
        others = sorted((-float(unit[query] @ unit[row]), row) for row in range(40) if owners[row] != owners[query])
        assert found.tolist() == [row for _, row in others[:k]] + [-1] * (k - len(others[:k]))
        assert np.allclose(similarities[: len(others)], [-value for value, _ in others[:k]], atol=1e-5)


@pytest.mark.parametrize("seed", range(4))
def test_the_index_and_its_chance_are_what_slow_loops_count(seed: int) -> None:
    z, owners, labels, values = draw_rows(seed)
    queries = np.arange(0, 60, 2)
    _, rows = find_other_patients(z, queries, owners, 5, 1.0)
    so, os = count_shared(labels, values, queries, rows)
    chances = expect_shared(labels, values, owners, queries)
    for place, query in enumerate(queries):
        shared = {True: [0, 0], False: [0, 0]}  # among the nearest, and among all of other patients: SO and OS
        others = [row for row in range(60) if owners[row] != owners[query]]
        for is_near, group in ((True, rows[place]), (False, others)):
            for row in group:
                if min(labels[query], labels[row], values[query], values[row]) < 0:
                    continue
                same_label, same_value = labels[query] == labels[row], values[query] == values[row]
                shared[is_near][0] += same_label and not same_value
                shared[is_near][1] += same_value and not same_label
        assert [so[place].sum(), os[place].sum()] == shared[True]
        assert [chances[0][place], chances[1][place]] == pytest.approx([n / len(others) for n in shared[False]])


def test_both_patients_of_a_pair_are_resampled() -> None:
    patients, weights = np.array([[0, 0, 1], [1, 2, 2]]), np.array([[1.0, 1, 1], [2, 0, 1], [0, 3, 0]])
    assert sum_pairs(np.array([5.0, 7, 11]), patients, weights).tolist() == [23, 14, 0]


# ---- means over cells, and what they come from


def test_means_are_over_patients_then_over_cells_and_resampled_by_patient() -> None:
    scores, patients, cells = np.array([1.0, 0, 1, 1]), np.array([0, 0, 1, 2]), np.array([0, 0, 0, 1])
    found = average_cells(scores, patients, cells, 2, np.array([[1.0, 1, 1], [2, 0, 1], [1, 1, 0]]))
    assert np.allclose(found.means, [[0.75, 1], [0.5, 1], [0.75, np.nan]], equal_nan=True)
    assert np.allclose(found.errors, np.sqrt(0.125 / np.array([2, 1]))), "(0.25^2 + 0.25^2 + 0) / (3 - 2) per patient"


def test_an_interval_is_never_narrower_than_the_standard_error_allows() -> None:
    flat = np.full(101, 0.7)
    assert to_value(flat, 0.95).low == 0.7
    assert to_value(flat, 0.95, error=0.1).low == pytest.approx(0.7 - 1.96 * 0.1, abs=1e-3)
    assert to_value(flat, 0.95, error=0.03, spread=0.04).high == pytest.approx(0.7 + 1.96 * 0.05, abs=1e-3)
    assert to_value(np.array([0.7, np.nan, np.nan, 0.7]), 0.95).low is None


def test_an_encoder_of_the_label_alone_is_at_chance() -> None:
    means = np.array([[[1.0, 0, np.nan], [0, 1, 0]]])  # it predicts value 0 for label 0, value 1 for label 1
    value, chance = above_chance(means)
    assert value[0] == pytest.approx(chance) == pytest.approx((1 / 2 + 1 / 3) / 2)
    everything, _ = above_chance(np.ones((1, 2, 3)))
    assert everything[0] == pytest.approx(1)


def make_sample(seed: int, labels_per_patient: int = 1, patients: int = 24, patches: int = 6) -> AuditedSample:
    rng = np.random.default_rng(seed)
    owners = np.arange(patients).repeat(patches)
    z = rng.normal(size=(len(owners), 5)).astype(np.float32)
    unit = z / np.linalg.norm(z, axis=1, keepdims=True)
    labels = owners % 2 if labels_per_patient == 1 else np.arange(len(owners)) % 2
    return AuditedSample(z, unit @ unit.T, owners, labels, owners // 2 % 2)


@pytest.mark.parametrize("seed", range(3))
def test_the_probe_never_learns_from_a_patient_that_it_is_asked_for(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    sample, asked = make_sample(seed), []

    def watch(sample: AuditedSample, learn: np.ndarray, ask: np.ndarray) -> np.ndarray:
        assert not set(sample.patients[learn]) & set(sample.patients[ask])
        asked.extend(np.flatnonzero(ask))
        return sample.values[ask]

    monkeypatch.setattr(shortcuts, "_predict_values", watch)
    value, chance = shortcuts.probe_variable(sample, add_resamples(24, 50, 0), 0.99, np.random.default_rng(seed))
    assert sorted(asked) == list(range(len(sample.labels)))
    assert (value.value, chance) == (1.0, 0.5)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10**6), wanted=st.integers(0, 12))
def test_a_reference_never_has_the_own_patient_and_always_as_many_of_every_label(seed: int, wanted: int) -> None:
    sample = make_sample(seed)
    counts = np.array([wanted, 5])
    reference = draw_reference(sample, sample.labels, counts, np.random.default_rng(seed))
    hidden = reference.hide(sample, np.arange(len(sample.labels)))
    for row in range(len(sample.labels)):
        seen = reference.rows[~hidden[row]]
        assert sample.patients[row] not in sample.patients[seen]
        for label in (0, 1):
            own = label == sample.labels[row]
            there = len(set(sample.patients[seen[sample.labels[seen] == label]]))
            assert there == min(counts[label], 12 - own)


# ---- the rule


def make_column(**changes: object) -> ColumnAudit:
    """A column that is clear."""
    flat = Value(value=0.5, low=0.4, high=0.6)
    none = Value(value=0.0, low=-0.1, high=0.1)
    fields: dict[str, object] = {
        "column": "site",
        "values": ("a", "b"),
        "patients": 40,
        "table": ((10, 10), (10, 10)),
        "notes": (),
        "association": Value(value=0.1),
        "association_p": 0.5,
        "robustness": flat,
        "robustness_chance": 0.5,
        "probe": flat,
        "probe_chance": 0.5,
        "seen": flat,
        "unseen": flat,
        "unseen_drop": none,
        "balanced": flat,
        "correlated": flat,
        "correlated_drop": none,
    }
    return decide(ColumnAudit.model_validate(fields | changes))


PREDICTED = {"probe": Value(value=0.9, low=0.8, high=1.0)}
DROP = Value(value=0.2, low=0.1, high=0.3)
RULES: list[tuple[dict[str, object], str, str]] = [
    (
        {},
        "clear",
        r"The site cannot clearly be predicted from the embeddings \(50 % right at equal label, 50 % by chance\)\.$",
    ),
    (
        PREDICTED,
        "visible",
        r"The site can be predicted from the embeddings \(90 % .*, but no effect on the label was measured\.$",
    ),
    (
        {**PREDICTED, "association_p": SIGNIFICANT},
        "flagged",
        r"label and site go together in this cohort \(Cramer's V 0\.10",
    ),
    ({**PREDICTED, "unseen_drop": DROP}, "flagged", r"20 points lower where no reference patient has the same site\.$"),
    ({"association_p": 0.001, "unseen_drop": DROP}, "clear", r"cannot clearly be predicted from the embeddings"),
    ({**PREDICTED, "correlated_drop": DROP}, "at risk", r"20 points lower with reference patients in whom they do\.$"),
    (
        {**PREDICTED, "robustness": Value(value=0.2, low=0.1, high=0.49)},
        "at risk",
        r"near each other by their site rather",
    ),
    (
        {**PREDICTED, "association": Value(value=INSEPARABLE)},
        "cannot be told apart",
        r"Add patients in whom they differ\.$",
    ),
    ({**PREDICTED, "table": ((9, 0, 3), (0, 9, 0))}, "cannot be told apart", r"cannot be told apart on this cohort"),
    ({"probe": Value(value=None, why="there is nobody")}, "not measured", r"of the site: there is nobody\.$"),
    ({"probe": Value(value=0.9)}, "not measured", r"too few patients"),
]


@pytest.mark.parametrize(("changes", "outcome", "sentence"), RULES)
def test_the_rule(changes: dict[str, object], outcome: str, sentence: str) -> None:
    column = make_column(**changes)
    assert column.outcome == outcome
    assert re.search(sentence, column.sentence), column.sentence


# ---- columns


def test_dates_are_binned_by_time_and_rare_values_left_out(tmp_path: Path) -> None:
    made = make_embeddings(tmp_path / "made", classes=("2020-01-03", "2020-02", "2019-12-31", "2021-05-05"), patches=2)
    (dates,) = find_variables(made, AuditConfig(columns=("label",), bins=2))
    names = made.table.column("label")
    assert {name: dates.values[code] for name, code in zip(names, dates.codes, strict=True)} == {
        "2019-12-31": "1 of 2",
        "2020-01-03": "1 of 2",
        "2020-02": "2 of 2",
        "2021-05-05": "2 of 2",
    }
    (patients,) = find_variables(made, AuditConfig(columns=("slide",)))
    assert (patients.values, set(patients.codes)) == ((), {-1})
    assert patients.notes == ("Left out: 48 values that only one patient has.",)


def test_slides_of_one_hue_are_one_group_although_they_differ_more_in_brightness() -> None:
    rng = np.random.default_rng(0)
    hue = np.arange(60) % 2
    colours = 0.6 + rng.normal(size=(60, 1)) * 0.1 + 0.02 * np.outer(hue * 2 - 1, [1, 0, -1])
    colours += rng.normal(size=(60, 3)) * 0.002
    found = cluster_colours(colours, 2, 0)
    assert len(set(zip(found.tolist(), hue.tolist(), strict=True))) == 2
    assert cluster_colours(np.full((9, 3), 0.5), 3, 0).tolist() == [0] * 9, "one colour is one group"
    assert cluster_colours(np.eye(3), 3, 0).tolist() == [0] * 3, "too few slides to group"


def test_columns_are_found_by_name_and_a_lost_store_is_said(tmp_path: Path) -> None:
    made = make_embeddings(tmp_path / "made")
    found = find_variables(made, AuditConfig())
    assert [variable.name for variable in found] == ["site", "colour"]
    assert found[1].obstacle == "the store 'store' is not there, or has changed, so that their colours cannot be read"
    with pytest.raises(UserError, match=r"columns: .* has no column of names 'scaner'; it has patient, .*`colour`\."):
        find_variables(made, AuditConfig(columns=("scaner",)))


# ---- whole audits


def test_what_cannot_be_measured_says_why(tmp_path: Path) -> None:
    made = make_embeddings(tmp_path / "made", classes=("a", "b"), patients=4, patches=4)
    site, slide, colour = audit(made, "site", "slide", "colour").columns
    assert site.outcome in ("clear", "visible", "at risk", "flagged")
    assert (slide.outcome, slide.sentence) == (
        "not measured",
        "Nothing can be said of the slide: no value has two patients.",
    )
    gone = "the store 'store' is not there, or has changed, so that their colours cannot be read"
    assert colour.sentence == f"Nothing can be said of the colour: {gone}."
    (label,) = audit(made, "label").columns
    assert label.outcome == "cannot be told apart"
    assert label.robustness.why == "label and variable cannot be told apart"
    (unlabelled,) = audit(relabel(made, lambda *_: None), "site").columns
    assert unlabelled.association.why == unlabelled.unseen_drop.why == "the patches have no labels"
    assert unlabelled.probe.value is not None


def test_equal_embeddings_are_not_judged(tmp_path: Path) -> None:
    made = make_embeddings(tmp_path / "made", classes=("a", "b"))
    object.__setattr__(made, "vectors", np.ones_like(made.vectors))
    (site,) = audit(made, "site").columns
    assert (
        site.sentence
        == "Nothing can be said of the site: all embeddings are nearly equal, so nothing can be predicted from them."
    )


def test_notes_say_what_was_sampled_and_what_the_encoder_has_seen(tmp_path: Path) -> None:
    made = make_embeddings(tmp_path / "made", patches=3)
    assert audit(made, "site", queries=20).notes == (
        "The neighbours of 20 of 108 patches were searched, sampled evenly over patients.",
        "The encoder was trained on 9 of these 18 patients.",
    )
    other = make_embeddings(tmp_path / "other", learned=None)
    assert audit(other, "site").notes == ("What the encoder was trained on is not known; it may be these patients.",)
    with pytest.raises(UserError, match=r"has no column of names 'grade'; it has patient, .* Set label="):
        audit(made, "site", label="grade")
    with pytest.raises(UserError, match=r"splits: 'val' is not a split of"):
        audit(made, "site", splits=("val",))


def test_the_same_audit_twice_is_the_same(tmp_path: Path) -> None:
    made = make_embeddings(tmp_path / "made")
    assert audit(made, "site") == audit(made, "site")


def find_outcomes(folder: Path, seed: int, **cohort: object) -> dict[str, str]:
    made = draw_embeddings(folder / f"{seed}", seed=seed, **cohort)  # type: ignore[arg-type]
    columns = run_audit(made, AuditConfig(columns=("site", "colour"))).columns
    return {column.column: column.outcome for column in columns}


@pytest.mark.whole
def test_a_planted_stain_confound_is_flagged_and_none_is_not(tmp_path: Path) -> None:
    """Labels that go with the stain in 38 of 40 patients (a correlation of 0.9), or in half of them."""
    assert find_outcomes(tmp_path / "planted", 0, agreeing=38) == {"site": "flagged", "colour": "flagged"}
    assert find_outcomes(tmp_path / "none", 0, agreeing=20) == {"site": "at risk", "colour": "at risk"}


@pytest.mark.slow
def test_confounds_are_flagged_in_19_of_20_cohorts_and_cohorts_without_in_1_of_20(tmp_path: Path) -> None:
    """Without one: stain independent of the label, and a site that goes with the label but does not show."""
    cohorts: dict[str, dict[str, object]] = {
        "planted": {"agreeing": 38},
        "independent": {"agreeing": 20},
        "invisible": {"agreeing": 38, "stained": False},
    }
    for name, cohort in cohorts.items():
        outcomes = [find_outcomes(tmp_path / name, seed, **cohort) for seed in range(20)]
        for column in ("site", "colour"):
            flagged = sum(outcome[column] == "flagged" for outcome in outcomes)
            assert flagged >= 19 if name == "planted" else flagged <= 1, (name, column, flagged)


def test_a_column_called_colour_is_not_taken_for_the_colour_of_slides(tmp_path: Path) -> None:
    made = make_embeddings(tmp_path / "embeddings")
    own = replace(made, table=made.table.add_names("colour", made.table.column("site").tolist()))
    by_name = {variable.name: variable for variable in find_variables(own, AuditConfig())}
    assert list(by_name) == ["site", "computed:colour"]
    assert "their colours cannot be read" in by_name["computed:colour"].obstacle  # the store is not there
    (named,) = find_variables(own, AuditConfig(columns=("colour",)))
    assert (named.name, named.values) == ("colour", ("site 0", "site 1"))
    (alone,) = find_variables(made, AuditConfig(columns=("computed:colour",)))
    assert alone.name == "colour"

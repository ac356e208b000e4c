"""Patients are never on two sides, nor sites where they are kept; labels are shared out as exactly as can be."""

import math
import random
from collections import Counter, defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hidisc.ground.errors import UserError
from hidisc.patches.splits import find_split_doubts, split_patients
from hidisc.settings.prepare import SplitConfig

LABELS = st.dictionaries(st.text(min_size=1, max_size=4), st.sampled_from(["a", "b", "c", None]), max_size=60)
FRACTIONS = st.dictionaries(
    st.sampled_from(["train", "val", "test", "hold"]),
    st.sampled_from([0.05, 0.1, 0.2, 1 / 3, 0.29, 0.7, 1]),
    min_size=2,
)
SEEDS = st.integers(0, 2**32)
HALVES = SplitConfig(fractions={"train": 0.5, "test": 0.5})


def shares_of(config: SplitConfig) -> dict[str, float]:
    total = sum(config.fractions.values())
    return {side: fraction / total for side, fraction in config.fractions.items()}


@given(LABELS, FRACTIONS, SEEDS)
def test_every_label_is_shared_out_to_within_one_patient(
    labels: dict[str, str | None], fractions: dict[str, float], seed: int
) -> None:
    config = SplitConfig(fractions=fractions)
    sides = split_patients(labels, config, seed)
    assert sides.keys() == labels.keys()
    counts = Counter((labels[patient], side) for patient, side in sides.items())
    for label, patients in Counter(labels.values()).items():
        for side, share in shares_of(config).items():
            exact = share * patients
            assert math.floor(exact + 1e-6) <= counts[label, side] <= math.ceil(exact - 1e-6)


@given(LABELS, FRACTIONS, SEEDS)
def test_the_order_of_the_patients_does_not_matter(
    labels: dict[str, str | None], fractions: dict[str, float], seed: int
) -> None:
    shuffled = list(labels.items())
    random.Random(seed).shuffle(shuffled)
    config = SplitConfig(fractions=fractions)
    assert split_patients(labels, config, seed) == split_patients(dict(shuffled), config, seed)


@given(LABELS, st.integers(2, 7), SEEDS)
def test_folds_are_equal_to_within_one_patient(labels: dict[str, str | None], folds: int, seed: int) -> None:
    sides = split_patients(labels, SplitConfig(folds=folds), seed)
    sizes = Counter(sides.values())
    names = [f"fold-{number}" for number in range(1, folds + 1)]
    assert set(sizes) <= set(names)
    assert max(sizes[name] for name in names) - min(sizes[name] for name in names) <= 1


def test_sides_have_their_share_even_where_every_label_is_rare() -> None:
    """Ten diagnoses of one patient each: rounding label by label alone could put all ten on one side."""
    labels = {f"P{n}": f"diagnosis {n}" for n in range(10)}
    assert Counter(split_patients(labels, SplitConfig(), seed=0).values()) == {"train": 8, "test": 2}


def test_a_label_that_fills_its_share_exactly_gets_no_patient_more() -> None:
    """0.29 x 100 is 28.999999999999996 in floats: 29 are its share, not 29 and one left over."""
    config = SplitConfig(fractions={"x": 0.29, "y": 0.355, "z": 0.355})
    labels = {f"A{n}": "a" for n in range(100)} | {f"{label}{n}": label for label in "bcdef" for n in range(3)}
    for seed in range(5):
        sides = split_patients(labels, config, seed)
        assert sum(side == "x" for patient, side in sides.items() if patient.startswith("A")) == 29


def test_the_left_over_patients_of_a_label_go_to_different_sides() -> None:
    """Pairs of a label at 49 % : the largest side lacks most, but may have only one of each pair."""
    config = SplitConfig(fractions={"x": 0.49, "y": 0.255, "z": 0.255})
    labels = {f"{label}{n}": label for label in "abcde" for n in range(2)}
    sides = split_patients(labels, config, seed=0)
    assert max(Counter((labels[patient], side) for patient, side in sides.items()).values()) == 1


def test_a_share_of_nothing_gets_nobody() -> None:
    config = SplitConfig(fractions={"train": 1, "test": 0})
    assert set(split_patients({f"P{n}": None for n in range(9)}, config, 0).values()) == {"train"}


def test_seeds_decide() -> None:
    labels = {f"P{n}": "ab"[n % 2] for n in range(40)}
    first = split_patients(labels, HALVES, seed=1)
    assert first == split_patients(labels, HALVES, seed=1)
    assert len({tuple(sorted(split_patients(labels, HALVES, seed).items())) for seed in range(10)}) == 10


def test_a_known_split_stays_what_it_was() -> None:
    """A changed draw would move test patients of published stores into training."""
    labels = {f"P{n}": "ab"[n % 2] for n in range(8)}
    sides = split_patients(labels, SplitConfig(fractions={"train": 0.75, "test": 0.25}), seed=7)
    assert sorted(patient for patient, side in sides.items() if side == "test") == ["P1", "P4"]


# Whole sites

SITES = st.dictionaries(
    st.text(min_size=1, max_size=3),
    st.tuples(st.sampled_from("ab"), st.sets(st.sampled_from(["Ulm", "Graz", "Bern", "Lyon", None]), min_size=1)),
    min_size=1,
    max_size=30,
).filter(lambda patients: any(site for _, sites in patients.values() for site in sites))
KEEP = SplitConfig(fractions={"train": 0.6, "test": 0.4}, keep_sites=True)


@given(SITES, SEEDS)
def test_no_site_is_on_two_sides(patients: dict[str, tuple[str, set[str | None]]], seed: int) -> None:
    """At the level of slides: each of a patient's slides lies at one of its sites and on the patient's side."""
    labels = {patient: label for patient, (label, _) in patients.items()}
    sites = {patient: seen for patient, (_, seen) in patients.items()}
    sides = split_patients(labels, KEEP, seed, sites)
    assert sides.keys() == labels.keys()
    sides_of_site = defaultdict(set)
    for patient, seen in sites.items():
        for site in seen - {None}:
            sides_of_site[site].add(sides[patient])
    assert all(len(found) == 1 for found in sides_of_site.values())


def test_a_patient_seen_at_two_sites_ties_them() -> None:
    labels = dict.fromkeys("abcd", "x")
    sites: dict[str, set[str | None]] = {"a": {"Ulm"}, "b": {"Ulm", "Graz"}, "c": {"Graz"}, "d": {"Bern"}}
    for seed in range(8):
        sides = split_patients(labels, KEEP, seed, sites)
        assert sides["a"] == sides["b"] == sides["c"] != sides["d"]


def test_whole_sites_come_near_the_shares() -> None:
    """12 sites of 10 patients, two labels at each: 60 : 40 is met to within a site."""
    labels = {f"{site}-{n}": "ab"[n % 2] for site in range(12) for n in range(10)}
    sites: dict[str, set[str | None]] = {patient: {patient.split("-")[0]} for patient in labels}
    sides = split_patients(labels, KEEP, 0, sites)
    assert abs(Counter(sides.values())["train"] - 72) <= 5
    assert len(set(sides.values())) == 2


def test_keeping_sites_that_nobody_named_is_refused() -> None:
    with pytest.raises(UserError) as caught:
        split_patients({"P1": None}, KEEP, 0, {"P1": {None}})
    assert str(caught.value) == (
        "split.keep_sites is on, but no slide has a site. Fill in the `site` column, or --set split.keep_sites=false."
    )


def test_one_large_site_is_quick() -> None:
    """A chain of 20,000 links to walk for each patient would take a minute."""
    labels = {f"P{n}": None for n in range(20_000)}
    sides = split_patients(labels, KEEP, 0, {patient: {"Ulm"} for patient in labels})
    assert len(set(sides.values())) == 1


def test_a_class_that_training_never_sees_is_named() -> None:
    rows = [(f"P{n}", "ab"[n % 2], "train") for n in range(20)] + [(f"T{n}", "abc"[n % 3], "test") for n in range(12)]
    [doubt] = find_split_doubts(rows)
    assert doubt == (
        "class 'c' is in the split 'test' and not in 'train', so no test patient of it can be predicted correctly. "
        "Choose other splits, or evaluate with --folds."
    )
    assert find_split_doubts([(patient, "a", split) for patient, _, split in rows]) == []
    assert find_split_doubts([(patient, label, "test") for patient, label, _ in rows]) == []


@pytest.mark.parametrize(("patients", "said"), [(0, 0), (1, 1), (9, 1), (10, 0)])
def test_so_few_test_patients_show_nothing(patients: int, said: int) -> None:
    rows = [("P", "a", "train"), *((f"T{n}", "a", "test") for n in range(patients) for _ in range(3))]
    doubts = find_split_doubts(rows)
    assert len(doubts) == said
    if said:
        assert doubts[0].startswith(
            f"{patients} test patient{'s' * (patients > 1)} can show nothing: in `hidisc evaluate`"
        )

"""Patches are sampled evenly over patients; folds hold whole patients, and every label is spread over them."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hidisc.evaluation.probes.folds import assign_folds, count_before, find_lacking, find_patients, sample_per_patient
from hidisc.evaluation.task import choose_task
from hidisc.settings.evaluate import EvaluateConfig
from tests.evaluation.made import make_embeddings


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def test_patients_are_those_of_the_coarsest_level(tmp_path: Path) -> None:
    bank = choose_task(made := make_embeddings(tmp_path / "e"), made, EvaluateConfig()).bank
    names = bank.names("patient")
    patients = find_patients(bank, ("patient", "slide", "patch"))
    assert len({*zip(patients, names, strict=True)}) == len(np.unique(patients)) == len(np.unique(names)) == 9
    assert len(np.unique(find_patients(bank, ("slide", "patch")))) == 18
    assert len(np.unique(find_patients(bank, ("patch",)))) == len(bank)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=15), st.integers(1, 60), st.integers(0, 99))
def test_everybody_gives_as_many_until_they_have_no_more(sizes: list[int], count: int, seed: int) -> None:
    patients = rng(seed).permutation(np.repeat(np.arange(len(sizes)), sizes))
    drawn = sample_per_patient(patients, count, rng(seed))
    assert len(drawn) == min(count, len(patients))
    assert (np.diff(drawn) > 0).all()
    given_by = np.bincount(patients[drawn], minlength=len(sizes))
    for who, size in enumerate(sizes):  # who gives fewer than another by two has no more to give
        assert given_by[who] == size or given_by[who] >= given_by.max() - 1


def test_a_draw_is_at_random_and_by_the_seed() -> None:
    patients = np.repeat(np.arange(3), 1000)
    first, again, other = (sample_per_patient(patients, 90, rng(seed)) for seed in (0, 0, 1))
    assert (first == again).all()
    assert len(np.intersect1d(first, other)) < 15
    assert 400 < (first % 1000).mean() < 600  # not the first of each
    lone = [int(sample_per_patient(np.arange(10), 1, rng(seed))[0]) for seed in range(200)]
    assert len(set(lone)) == 10


@given(st.lists(st.sets(st.integers(0, 3), min_size=1, max_size=2), min_size=1, max_size=20), st.integers(0, 99))
def test_patients_stay_whole_and_labels_are_spread(labels_of: list[set[int]], seed: int) -> None:
    patients = np.array([who for who, labels in enumerate(labels_of) for _ in labels for _ in range(3)])
    labels = np.array([label for labels in labels_of for label in sorted(labels) for _ in range(3)])
    folds = assign_folds(patients, labels, 3, rng(seed))
    assert all(len(np.unique(folds[patients == who])) == 1 for who in np.unique(patients))
    alone = [labels for labels in labels_of if len(labels) > 1] == []
    for label in np.unique(labels):
        counts = [len(np.unique(patients[(labels == label) & (folds == fold)])) for fold in range(3)]
        if alone:
            assert counts == sorted(counts, reverse=True)
            assert counts[0] - counts[2] <= 1
    shuffled = rng(seed).permutation(len(patients))
    assert (assign_folds(patients[shuffled], labels[shuffled], 3, rng(seed)) == folds[shuffled]).all()


def test_a_patient_of_several_labels_counts_for_the_rarest() -> None:
    # Everybody has label 0, two have label 1 as well: these two are kept apart, whatever the seed.
    patients, labels = np.array([0, 0, 1, 1, 2, 3, 4, 5]), np.array([0, 1, 0, 1, 0, 0, 0, 0])
    for seed in range(20):
        folds = assign_folds(patients, labels, 3, rng(seed))
        assert folds[0] != folds[2]
        assert find_lacking(folds, labels) is None


def test_who_is_where_depends_on_the_seed() -> None:
    patients, labels = np.arange(20), np.arange(20) % 2
    dealt = {tuple(assign_folds(patients, labels, 5, rng(seed))) for seed in range(5)}
    assert len(dealt) == 5


@pytest.mark.parametrize(
    ("folds", "labels", "lacking"),
    [
        ([0, 1, 0, 1], [0, 0, 1, 1], None),
        ([0, 1, 0, 0], [0, 0, 1, 1], 1),
        ([0, 0, 0], [2, 2, 2], 2),
        ([0, 1, 1, 2], [0, 0, 3, 0], 3),
        ([0, 2, 0, 2], [0, 0, 1, 1], None),
    ],
)
def test_a_label_that_one_fold_has_whole_is_found(folds: list[int], labels: list[int], lacking: int | None) -> None:
    assert find_lacking(np.array(folds), np.array(labels)) == lacking


@given(st.lists(st.integers(-2, 4), max_size=30))
def test_counting_before(values: list[int]) -> None:
    slow = [values[:place].count(value) for place, value in enumerate(values)]
    assert count_before(np.array(values, np.int64)).tolist() == slow

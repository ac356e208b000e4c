"""Folds of cross-validation: every patient once, labels balanced, sites whole."""

from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hidisc.ground.errors import UserError
from hidisc.patches.splits import make_folds
from hidisc.patches.table import SCHEMA, PatchTable
from hidisc.settings.evaluate import FoldsConfig

WHERE = Path("store")


def table_of(patients: list[tuple[str, str | None, str | None]]) -> PatchTable:
    """One patch each of patients given as name, label and site."""
    columns = dict(zip(("patient", "label", "site"), zip(*patients, strict=True), strict=True))
    arrays = [
        pa.array(columns.get(field.name, [None] * len(patients)), pa.string()).dictionary_encode()
        if pa.types.is_dictionary(field.type)
        else pa.nulls(len(patients), field.type)
        for field in SCHEMA
    ]
    return PatchTable(pa.table(arrays, schema=SCHEMA))


COHORTS = st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("xyz")), min_size=8, max_size=40).map(
    lambda drawn: [(f"p{number}", label, site) for number, (label, site) in enumerate(drawn)]
)


@settings(deadline=None, max_examples=50)
@given(COHORTS, st.integers(2, 5), st.integers(0, 3))
def test_every_patient_is_in_one_fold_and_labels_are_balanced(
    patients: list[tuple[str, str, str]], number: int, seed: int
) -> None:
    folds = make_folds(table_of(patients), FoldsConfig(number=number, seed=seed), "label", WHERE)
    assert sorted(name for fold in folds for name in fold) == sorted(name for name, _, _ in patients)
    label_of = {name: label for name, label, _ in patients}
    for label in "abc":
        counts = [Counter(label_of[name] for name in fold)[label] for fold in folds]
        assert max(counts) - min(counts) <= 1
    again = make_folds(table_of(patients[::-1]), FoldsConfig(number=number, seed=seed), "label", WHERE)
    assert again == folds  # the order of the table does not matter


def test_another_seed_gives_other_folds() -> None:
    table = table_of([(f"p{number}", "ab"[number % 2], None) for number in range(20)])
    assert len({make_folds(table, FoldsConfig(number=4, seed=seed), "label", WHERE) for seed in range(5)}) == 5


@settings(deadline=None, max_examples=30)
@given(COHORTS)
def test_sites_stay_whole(patients: list[tuple[str, str, str]]) -> None:
    site_of = {name: site for name, _, site in patients}
    table, sites = table_of(patients), set(site_of.values())
    if len(sites) < 2:
        with pytest.raises(UserError, match="needs two sites or more that share no patient"):
            make_folds(table, FoldsConfig(by="each-site"), "label", WHERE)
        return
    each = make_folds(table, FoldsConfig(by="each-site"), "label", WHERE)
    assert [{site_of[name] for name in fold} for fold in each].count(set()) == 0
    assert len(each) == len(sites)
    two = make_folds(table, FoldsConfig(number=2, by="site"), "label", WHERE)
    assert not {site_of[name] for name in two[0]} & {site_of[name] for name in two[1]}


def test_patients_without_a_label_are_judged_by_nobody() -> None:
    table = table_of([("a", "x", None), ("b", "y", None), ("c", None, None)])
    assert sorted(sum(make_folds(table, FoldsConfig(number=2), "label", WHERE), ())) == ["a", "b"]


def test_a_patient_of_two_labels_is_in_one_fold() -> None:
    table = table_of([("a", "x", None), ("a", "y", None), ("b", "y", None), ("c", "x", None)])
    assert sorted(sum(make_folds(table, FoldsConfig(number=2), "label", WHERE), ())) == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("patients", "config", "sentence"),
    [
        (
            [("a", None, None)],
            FoldsConfig(number=2),
            "no patient of store has a label, so folds cannot judge anyone. Give it a `label` column.",
        ),
        (
            [("a", "x", None), ("b", "y", None)],
            FoldsConfig(number=3),
            "3 folds need 3 patients with a label or more, and store has 2. Give fewer --folds.",
        ),
        (
            [("a", "x", "s"), ("b", "y", None)],
            FoldsConfig(by="each-site"),
            "folds.by=each-site needs the site of every patient, and store does not say that of 'b'. Fill in the "
            "`site` column, or --set folds.by=patient.",
        ),
        (
            [("a", "x", "s"), ("b", "y", "s"), ("c", "y", "s")],
            FoldsConfig(number=2, by="site"),
            "2 folds by site need 2 sites or more that share no patient, and store has 1 site. Give fewer --folds, or "
            "--set folds.by=patient.",
        ),
    ],
)
def test_what_cannot_be_folded_is_said(
    patients: list[tuple[str, str | None, str | None]], config: FoldsConfig, sentence: str
) -> None:
    with pytest.raises(UserError) as caught:
        make_folds(table_of(patients), config, "label", WHERE)
    assert str(caught.value) == sentence


def test_one_fold_is_refused() -> None:
    with pytest.raises(ValueError, match="one fold would leave no reference patients"):
        FoldsConfig(number=1)

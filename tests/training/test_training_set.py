"""Which patches are learned from: those of the sides asked for, and labels only where they are asked for."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from hidisc.ground.errors import UserError
from hidisc.objectives.objective import load_settings
from hidisc.patches.store import PatchStore
from hidisc.training.build import TrainingSet, choose_training_set
from tests.patches.pictures import make_store as store_of
from tests.patches.pictures import pictures_of
from tests.training.stores import TEST, TRAIN, make_store, tiny


@pytest.fixture(scope="module")
def opened(store: Path) -> PatchStore:
    return PatchStore.load(store)


def chosen(store: PatchStore, *changes: str) -> TrainingSet:
    config = tiny(*changes)
    return choose_training_set(store, config, load_settings(config.objective))


def values(training_set: TrainingSet, column: str, rows: np.ndarray) -> set[str]:
    codes, names = training_set.store.table.codes(column)
    return {names[code] for code in codes[rows]}


@pytest.mark.parametrize("levels", ["[patient, slide, patch]", "[slide, patch]", "[patch]"])
def test_patients_of_the_other_side_are_never_drawn(opened: PatchStore, levels: str) -> None:
    changes = (f"batch.levels={levels}", "batch.draw={}")
    training_set = chosen(opened, *changes)
    sampler = training_set.sampler(tiny(*changes), world=1)
    drawn = np.concatenate([sampler.draw(step).ancestry[:, -1] for step in range(60)])
    assert values(training_set, "patient", drawn) == set(TRAIN)
    assert set(drawn) == set(training_set.tree.leaves), "everything else is drawn sooner or later"
    assert len(training_set.tree.leaves) == len(TRAIN) * 2 * 6


def test_several_sides(opened: PatchStore) -> None:
    training_set = chosen(opened, "data.splits=[test, train]")
    assert values(training_set, "patient", training_set.tree.leaves) == {*TRAIN, *TEST}


def test_every_slide_is_recorded_with_its_checksum(opened: PatchStore) -> None:
    found = chosen(opened, "data.splits=[test]").slides()
    assert [(slide.patient, slide.slide) for slide in found] == [(p, f"{p}/{p}-{s}") for p in TEST for s in "xy"]
    assert {slide.slide: slide.checksum for slide in found} == {
        entry.slide: entry.checksum for entry in opened.info.slides if entry.patient in TEST
    }
    assert len({slide.checksum for slide in found}) == 4


@pytest.mark.parametrize(
    ("changes", "used"),
    [
        ((), ()),
        (("batch.balance=true",), ("class balance",)),
        (("objective={name: supcon}",), ("objective",)),
        (("objective={name: supervised}", "batch.balance=true"), ("objective", "class balance")),
        (("monitor.every=1", "monitor.split=test"), ("monitor",)),
        (("objective={name: supcon}", "monitor.every=1", "monitor.split=test"), ("objective", "monitor")),
        *(((f"objective={{name: {name}}}",), ()) for name in ("simclr", "simsiam", "byol", "vicreg")),
    ],
)
def test_what_labels_were_used_for(opened: PatchStore, changes: tuple[str, ...], used: tuple[str, ...]) -> None:
    training_set = chosen(opened, *changes)
    assert training_set.labels_used == used
    assert training_set.classes == (("a", "b") if set(used) - {"monitor"} else ())


def test_balance_draws_labels_equally_often(opened: PatchStore) -> None:
    config = tiny("batch.balance=true", "batch.images=16", "data.splits=[train, test]")
    training_set = choose_training_set(opened, config, load_settings(config.objective))
    labels = opened.table.codes("label")[0]
    for step in range(5):
        drawn = training_set.sampler(config, world=1).draw(step).ancestry[:, -1]
        assert Counter(labels[drawn].tolist()) == {0: 4, 1: 4}


def test_a_side_that_is_not_there(opened: PatchStore) -> None:
    with pytest.raises(UserError) as caught:
        chosen(opened, "data.splits=[train, trian]")
    assert str(caught.value) == (
        f"data.splits: 'trian' is not a split of {opened.path}, which has train, test. Choose among these."
    )


@pytest.mark.parametrize("changes", ["objective={name: supcon}", "batch.balance=true"])
def test_labels_that_are_not_there(tmp_path: Path, changes: str) -> None:
    store = store_of(tmp_path, pictures_of("P1/A", "P2/A", "P3/A"))
    with pytest.raises(UserError, match=r"need labels, and the patches to learn from have fewer than two\. Give the"):
        chosen(store, changes)
    assert chosen(store).labels_used == ()


def test_patches_without_a_label_are_left_out_only_when_labels_are_used(tmp_path: Path) -> None:
    opened = PatchStore.load(make_store(tmp_path, unlabelled=("P0",)))
    labelled = chosen(opened, "objective={name: supcon}")
    assert values(labelled, "patient", labelled.tree.leaves) == set(TRAIN) - {"P0"}
    assert "P0" not in {slide.patient for slide in labelled.slides()}
    plain = chosen(opened)
    assert values(plain, "patient", plain.tree.leaves) == set(TRAIN)

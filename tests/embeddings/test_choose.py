"""Which patches: sides, and a sample a slide that depends on nothing but its name and the seed."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from hidisc.embeddings.model import choose_rows
from hidisc.ground.errors import UserError
from hidisc.patches.store import PatchStore
from hidisc.settings.embed import EmbedConfig
from tests.training.stores import make_store


@pytest.fixture(scope="module")
def opened(store: Path) -> PatchStore:
    return PatchStore.load(store)


def drawn(store: PatchStore, **settings: object) -> np.ndarray:
    return choose_rows(store, EmbedConfig.model_validate(settings))


def test_everything_or_some_sides(opened: PatchStore) -> None:
    assert drawn(opened).tolist() == list(range(len(opened)))
    rows = drawn(opened, splits=["test"])
    assert set(opened.table.column("split")[rows]) == {"test"}
    assert len(rows) == (opened.table.column("split") == "test").sum()


def test_as_many_of_every_slide_as_asked_for(opened: PatchStore) -> None:
    rows = drawn(opened, per_slide=4, seed=1)
    assert set(Counter(opened.table.column("slide")[rows]).values()) == {4}
    assert rows.tolist() == sorted(set(rows.tolist()))
    assert drawn(opened, per_slide=4, seed=1).tolist() == rows.tolist()
    assert drawn(opened, per_slide=4, seed=2).tolist() != rows.tolist()
    assert drawn(opened, per_slide=100).tolist() == list(range(len(opened)))


def test_every_patch_is_as_likely(opened: PatchStore) -> None:
    counts = np.zeros(len(opened))
    for seed in range(300):
        counts[drawn(opened, per_slide=3, seed=seed)] += 1
    assert counts.min() > 100  # of 300 draws of half the patches, 150 expected, sd 8.7
    assert counts.max() < 200


def test_a_slides_sample_does_not_depend_on_the_others(opened: PatchStore) -> None:
    rows, fewer = drawn(opened, per_slide=3, seed=5), drawn(opened, per_slide=3, seed=5, splits=["test"])
    assert set(fewer.tolist()) <= set(rows.tolist())


def test_slides_are_drawn_differently(opened: PatchStore) -> None:
    rows = drawn(opened, per_slide=3, seed=5)
    patterns = {tuple(group) for group in np.array(opened.table.column("patch"))[rows].reshape(-1, 3).tolist()}
    assert len(patterns) > 3


def test_what_cannot_be_chosen(opened: PatchStore, tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        drawn(opened, splits=["val"])
    assert str(caught.value) == (
        f"splits: 'val' is not a split of {opened.path}, which has train, test. Choose among these."
    )
    made = make_store(tmp_path, patches=1)
    whole = PatchStore.load(made)
    empty = PatchStore(whole.artefact, whole.info, whole.table.select(np.zeros(0, np.int64)))
    with pytest.raises(UserError, match=r"holds no patches to embed\. See its pictures/ for what was dropped"):
        drawn(empty)

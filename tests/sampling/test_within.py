"""Batches within a site or within similar colours: who shares one, how often everyone comes, on all ranks alike."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hidisc.ground.errors import UserError
from hidisc.patches.folders import find_folder
from hidisc.patches.store import PatchStore
from hidisc.sampling.hierarchy import Hierarchy
from hidisc.sampling.sampler import Sampler
from hidisc.sampling.within import Groups, arrange_ring, group_roots
from hidisc.training.build import choose_training_set
from hidisc.verbs.imports import import_patches
from tests.patches.pictures import write_pictures
from tests.sampling.test_sampler import batch_config, even, roots_of
from tests.training.stores import losses, outcome, tiny, train, train_until

SITES = {"P0": "A", "P1": "B", "P2": "A", "P3": "A", "P4": "A", "P5": "B", "P6": "A", "P7": "A"}
"""Six patients of A and two of B."""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight patients with two slides each; the number of a patient decides how red it is."""
    folder = tmp_path_factory.mktemp("sites")
    rng = np.random.default_rng(0)
    shade = {patient: 40 + 20 * [3, 6, 0, 7, 1, 5, 2, 4][int(patient[1])] for patient in SITES}
    pictures = {
        f"{patient}/{patient}-{slide}/{number}.png": np.uint8([shade[patient], 90, 120])
        + rng.integers(0, 30, (32, 32, 3), dtype=np.uint8)
        for patient in SITES
        for slide in "xy"
        for number in range(4)
    }
    rows = [f"{patient},a,train,{site}" for patient, site in SITES.items()]
    (folder / "patients.csv").write_text("\n".join(["patient,label,split,site", *rows]) + "\n")
    source = find_folder(write_pictures(folder / "pictures", pictures), folder / "patients.csv")
    import_patches(source, folder / "store", workers=0)
    return folder / "store"


def names_of(store: PatchStore, roots: list[int]) -> list[str]:
    """The patients that root numbers stand for."""
    tree = Hierarchy().grow(store.table, np.ones(len(store), bool))
    codes, names = store.table.codes("patient")
    return [names[code] for code in codes[tree.leaves[tree.root_leaves()[roots]]]]


@st.composite
def grouped(draw) -> tuple[list[int], int, int]:
    """Sizes of groups, roots of a batch and a seed."""
    return draw(st.lists(st.integers(1, 9), min_size=1, max_size=4)), draw(st.integers(1, 6)), draw(st.integers(0, 999))


@given(grouped())
@settings(max_examples=25)
def test_a_batch_is_of_one_group_and_groups_come_in_proportion(case: tuple[list[int], int, int]) -> None:
    sizes, roots, seed = case
    owner = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(sizes)), sizes))
    members = tuple(np.flatnonzero(owner == group) for group in range(len(sizes)))
    within = Groups(members, tuple(map(str, range(len(sizes)))))
    sampler = Sampler(even(sum(sizes), 1, 1), batch_config(roots, 1, 1), seed, within=within)
    turns: Counter[int] = Counter()
    seen: Counter[int] = Counter()
    for step in range(2 * sum(sizes)):
        batch = roots_of(sampler.draw(step), 1)
        (group,) = {int(owner[root]) for root in batch}
        turns[group] += 1
        seen.update(batch)
        distinct = min(roots, sizes[group])
        assert len(set(batch)) == distinct, "nobody twice while there are others"
        assert max(Counter(batch).values()) == -(-roots // distinct)
    assert dict(turns) == {group: 2 * size for group, size in enumerate(sizes)}, "two cycles"
    for group, size in enumerate(sizes):
        per_pass = -(-size // roots)  # batches in which everyone comes once, and some twice to fill the last
        for root in members[group]:
            assert seen[root] >= 2 * size // per_pass * (roots // size if roots > size else 1)


def test_everyone_is_drawn_equally_often_in_the_long_run() -> None:
    sizes, roots, steps = [7, 3, 2], 3, 12 * 200
    owner = np.repeat(np.arange(3), sizes)
    within = Groups(tuple(np.flatnonzero(owner == group) for group in range(3)), ("a", "b", "c"))
    sampler = Sampler(even(12, 1, 1), batch_config(roots, 1, 1), 0, within=within)
    seen = Counter(root for step in range(steps) for root in roots_of(sampler.draw(step), 1))
    expected = roots * steps / 12
    assert all(abs(seen[root] / expected - 1) < 0.05 for root in range(12))


@pytest.mark.parametrize("is_ring", [False, True])
def test_ranks_share_the_batch_of_one(is_ring: bool) -> None:
    members = (np.arange(12),) if is_ring else (np.arange(0, 12, 2), np.arange(1, 12, 2))
    within = Groups(members, ("x",) * len(members), is_ring)
    for step in range(30):
        one = Sampler(even(12), batch_config(4), 5, within=within).draw(step)
        two = [Sampler(even(12), batch_config(4), 5, world=2, within=within).draw(step, rank) for rank in range(2)]
        np.testing.assert_array_equal(np.concatenate([draw.ancestry for draw in two]), one.ancestry)


def test_a_ring_has_neighbours_of_similar_colour_and_no_end() -> None:
    rng = np.random.default_rng(0)
    redness = rng.permutation(11) / 11
    colours = np.column_stack([redness, 0.5 - redness, np.full(11, 0.3)]) + rng.normal(0, 1e-3, (11, 3))
    ring = arrange_ring(colours)
    assert sorted(ring) == list(range(11))
    places = np.argsort(np.argsort(redness))[ring]
    assert np.abs(places - np.roll(places, 1)).max() == 2
    assert ring.tolist() == arrange_ring(colours).tolist()


def test_similar_colours_share_a_batch_and_everyone_comes_in_a_pass(store: Path) -> None:
    opened = PatchStore.load(store)
    config = tiny("batch.within=colour", "batch.images=32")
    sampler = choose_training_set(opened, config).sampler(config, world=1)
    shades = {patient: [3, 6, 0, 7, 1, 5, 2, 4][int(patient[1])] for patient in SITES}
    batches = []
    for number in range(20):
        pair = [names_of(opened, roots_of(sampler.draw(2 * number + half), 4)) for half in range(2)]
        assert sorted(pair[0] + pair[1]) == sorted(SITES), "a pass of 8 patients in batches of 4"
        batches += pair
    for batch in batches:
        ranks = sorted(shades[patient] for patient in batch)
        assert ranks[-1] - ranks[0] <= 6, "four neighbours of a ring of eight: never the palest with the reddest"
        assert not {0, 7} <= set(ranks)
    assert len({frozenset(batch) for batch in batches}) > 4, "batches differ from pass to pass"


def test_patients_of_a_site_share_a_batch(store: Path) -> None:
    opened = PatchStore.load(store)
    config = tiny("batch.within=site", "batch.images=16")
    sampler = choose_training_set(opened, config).sampler(config, world=1)
    sites = [{SITES[name] for name in names_of(opened, roots_of(sampler.draw(step), 4))} for step in range(16)]
    assert Counter(next(iter(site)) for site in sites if len(site) == 1) == {"A": 12, "B": 4}


def test_small_groups_are_said_and_a_run_goes_on_exactly(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for within in ("site", "colour"):
        said: list[str] = []
        whole = train(store, tmp_path / within, f"batch.within={within}", said=said)
        assert said == (
            [
                "note: a batch of 32 images draws 4 patients and there are 2 of 'B': some repeat within a batch, as "
                "positives. Smaller batch.images avoid it."
            ]
            if within == "site"
            else []
        )
        out = tmp_path / f"{within} again"
        for step in (1, 3, 6):
            train_until(step, monkeypatch, store, out, f"batch.within={within}")
        train(store, out, f"batch.within={within}")
        assert outcome(out) == outcome(whole.path)
    plain = train(store, tmp_path / "plain")
    assert losses(plain.path) != losses(tmp_path / "site")


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (("batch.within=scanner",), "batch.within: 'scanner' is no column of names in this store. It can be `colour`"),
        (("batch.within=slide",), "batch.within: 'slide' is not the same for all patches of a patient. Use"),
        (
            ("batch.within=colour", "batch.levels=[patch]", "batch.draw={}"),
            "batch.within=colour puts patients in order, and batch.levels has only `patch`. Leave it out.",
        ),
        (("batch.within=site", "batch.balance=true"), "leave one of them out."),
    ],
)
def test_what_cannot_be(store: Path, tmp_path: Path, changes: tuple[str, ...], sentence: str) -> None:
    with pytest.raises(UserError) as caught:
        train(store, tmp_path / "run", *changes)
    assert sentence in str(caught.value)


def test_too_few_patients_of_a_site_for_the_devices(store: Path) -> None:
    config, opened = tiny("batch.within=site", "batch.images=24"), PatchStore.load(store)
    with pytest.raises(UserError) as caught:
        choose_training_set(opened, config).sampler(config, world=3)
    assert str(caught.value) == "patients to share out to 3 devices: only 2 of the rarest site. Use fewer devices."


def test_a_column_with_gaps(tmp_path: Path) -> None:
    picture = np.zeros((16, 16, 3), np.uint8)
    pictures = {f"P{n}/S{n}/0.png": picture + np.uint8(n) for n in range(2)}
    (tmp_path / "patients.csv").write_text("patient,site\nP0,A\nP1,\n")
    source = find_folder(write_pictures(tmp_path / "pictures", pictures), tmp_path / "patients.csv")
    import_patches(source, tmp_path / "store", workers=0)
    opened = PatchStore.load(tmp_path / "store")
    with pytest.raises(UserError) as caught:
        group_roots(opened, Hierarchy().grow(opened.table, np.ones(2, bool)), "site")
    assert str(caught.value) == (
        "batch.within: 1 of 2 patches have no 'site'. Fill that column of the cohort and run `hidisc prepare` again, "
        "or use another column."
    )

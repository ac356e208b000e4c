"""What a step sees: everyone in turn, siblings that differ while they can, the same on every machine and every day."""

import tracemalloc
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from hidisc.ground.errors import UserError
from hidisc.patches.table import PatchTable, names_column
from hidisc.sampling.hierarchy import Tree
from hidisc.sampling.sampler import Draw, Sampler
from hidisc.settings.train import BatchConfig
from tests.sampling.test_hierarchy import FIVE, grow, table_of
from tests.sampling.test_shuffle import surprise

THREE = ("patient", "slide", "patch")
SEEDS = st.integers(0, 2**32)


def cohort(*patients: Sequence[int]) -> PatchTable:
    """A table of patients, each given as the patches of its slides."""
    rows = [
        (f"p{number}", f"s{slide}")  # slides have the same names under every patient
        for number, slides in enumerate(patients)
        for slide, patches in enumerate(slides)
        for _ in range(patches)
    ]
    return table_of(THREE, rows)


def even(patients: int, slides: int = 3, patches: int = 5) -> Tree:
    return grow(cohort(*[[patches] * slides] * patients), *THREE)


def batch_config(roots: int, slides: int = 2, patches: int = 2, views: int = 2) -> BatchConfig:
    """`roots` patients a batch."""
    return BatchConfig(images=roots * slides * patches * views, draw={"slide": slides, "patch": patches}, views=views)


def roots_of(draw: Draw, each: int) -> list[int]:
    """The patients of a batch in order, `each` patches of everyone."""
    found = draw.ancestry[:, 0].reshape(-1, each)
    assert (found == found[:, :1]).all()
    return found[:, 0].tolist()


@dataclass(frozen=True)
class Case:
    """A table, a batch to draw from it and on how many devices."""

    levels: tuple[str, ...]
    rows: list[tuple[str, ...]]
    counts: list[int]
    """Drawn of each level, from coarse to fine; the first over all devices."""
    views: int
    world: int
    seed: int
    step: int

    @cached_property
    def tree(self) -> Tree:
        return grow(table_of(self.levels, self.rows), *self.levels)

    @property
    def config(self) -> BatchConfig:
        draw = dict(zip(self.levels[1:], self.counts[1:], strict=True))
        images = prod(self.counts) * self.views
        return BatchConfig(levels=self.levels, images=images, draw=draw, views=self.views)

    def sampler(self, world: int | None = None) -> Sampler:
        return Sampler(self.tree, self.config, self.seed, self.world if world is None else world)

    def batch(self) -> Draw:
        """The batch over all devices, in the order of the ranks."""
        draws = [self.sampler().draw(self.step, rank) for rank in range(self.world)]
        return Draw(*(np.concatenate([getattr(draw, name) for draw in draws]) for name in ("places", "ancestry")))


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """One to five levels, few and many below each, fewer and more than are drawn."""
    levels = FIVE[draw(st.integers(0, 4)) :]
    names = st.tuples(*[st.sampled_from("abcde")] * (len(levels) - 1))
    runs = draw(st.lists(st.tuples(names, st.integers(1, 7)), min_size=1, max_size=25))
    rows = [name for name, length in runs for _ in range(length)]
    world = draw(st.integers(1, 3))
    counts = [world * draw(st.integers(1, 3)), *(draw(st.integers(1, 4)) for _ in levels[1:])]
    roots = len({row[:1] for row in rows}) if len(levels) > 1 else len(rows)
    assume(roots >= world)
    views = draw(st.integers(2, 3))
    return Case(levels, rows, counts, views, world, draw(SEEDS), draw(st.integers(0, 1000)))


# ---- one batch


@given(cases())
def test_ancestry_is_that_of_the_table(case: Case) -> None:
    """The last id is the table row, and every other one stands for one path of names."""
    batch, tree = case.batch(), case.tree
    assert batch.ancestry.shape == (prod(case.counts), len(case.levels))
    np.testing.assert_array_equal(tree.leaves[batch.places], batch.ancestry[:, -1])
    for depth in range(len(case.levels) - 1):
        paths = [case.rows[row][: depth + 1] for row in batch.ancestry[:, -1]]
        pairs = set(zip(batch.ancestry[:, depth].tolist(), paths, strict=True))
        assert len(pairs) == len({node for node, _ in pairs}) == len({path for _, path in pairs})


@given(cases(), st.integers(0, 1000))
def test_an_id_means_the_same_in_every_step(case: Case, other: int) -> None:
    means: defaultdict[tuple[int, int], set[tuple[str, ...]]] = defaultdict(set)
    for step in (case.step, other):
        for ids in case.sampler().draw(step).ancestry.tolist():
            for depth, node in enumerate(ids[:-1]):
                means[depth, node].add(case.rows[ids[-1]][: depth + 1])
    assert all(len(found) == 1 for found in means.values())


@given(cases())
def test_siblings_stand_next_to_each_other(case: Case) -> None:
    batch = case.batch()
    nested = batch.ancestry.reshape(*case.counts, len(case.levels))
    for depth in range(len(case.levels)):
        one = nested[..., depth].reshape(prod(case.counts[: depth + 1]), -1)
        assert (one == one[:, :1]).all()


@given(cases())
def test_children_differ_while_there_are_enough_and_come_in_turn_when_not(case: Case) -> None:
    """Also over the copies of a node that stands in the batch more than once."""
    batch = case.batch()
    children = [defaultdict(set) for _ in case.levels[1:]]
    for row, names in enumerate(case.rows):
        for depth, below in enumerate(children):
            below[names[: depth + 1]].add(names[: depth + 2] if depth + 2 < len(case.levels) else row)
    for depth, below in enumerate(children):
        size = prod(case.counts[: depth + 2])
        drawn = defaultdict(list)
        for *_, row in batch.ancestry[:: len(batch.places) // size].tolist():
            names = case.rows[row]
            drawn[names[: depth + 1]].append(names[: depth + 2] if depth + 2 < len(case.levels) else row)
        for parent, found in drawn.items():
            enough = min(len(below[parent]), len(found))
            assert len(set(found[:enough])) == enough
            assert found == [found[place % len(below[parent])] for place in range(len(found))]


@given(cases())
def test_roots_differ_while_there_are_enough(case: Case) -> None:
    roots = roots_of(case.batch(), prod(case.counts[1:]))
    enough = min(case.tree.roots, case.counts[0])
    assert len(roots) == case.counts[0]
    if enough == case.counts[0]:
        assert len(set(roots)) == enough
    assert case.sampler().repeats == (case.tree.roots < case.counts[0])
    assert case.sampler().roots == case.counts[0]


@given(cases())
def test_roots_come_in_turn_on_one_device_when_there_are_too_few(case: Case) -> None:
    roots = roots_of(case.sampler(world=1).draw(case.step), prod(case.counts[1:]))
    times = Counter(roots)
    assert len(times) == min(case.tree.roots, case.counts[0])
    assert max(times.values()) - min(times.values()) <= 1


def test_a_slide_that_is_repeated_gives_other_patches() -> None:
    """One slide of four patches, drawn twice, two patches each: all four, as the paper's batch wants."""
    tree = grow(cohort([4], [9, 9]), *THREE)
    for step in range(50):
        nested = Sampler(tree, batch_config(2), 0).draw(step).ancestry.reshape(2, 2, 2, 3)
        single = nested[nested[:, 0, 0, 0] == 0][0]
        assert (single[..., 1] == single[0, 0, 1]).all()
        assert len(set(single[..., 2].ravel().tolist())) == 4


def test_a_patient_that_is_repeated_gives_other_slides() -> None:
    tree = grow(cohort([2, 2, 2, 2]), *THREE)
    for step in range(50):
        draw = Sampler(tree, batch_config(2), 0).draw(step)
        assert len(set(draw.ancestry[:, 1].tolist())) == 4


def test_levels_that_are_not_named_draw_one() -> None:
    config = BatchConfig(images=12, draw={"patch": 2}, views=2)
    draw = Sampler(even(5), config, 0).draw(0)
    assert draw.ancestry.shape == (6, 3)
    assert [len(set(draw.ancestry[:, depth].tolist())) for depth in range(3)] == [3, 3, 6]


# ---- a pass


@given(st.integers(1, 40), st.integers(1, 10), SEEDS, st.integers(0, 3))
@settings(max_examples=40)
def test_a_pass_sees_everyone_before_anyone_again(patients: int, roots: int, seed: int, number: int) -> None:
    sampler = Sampler(even(patients, 1, 1), batch_config(roots, 1, 1), seed)
    steps = -(-patients // roots)
    seen = [root for step in range(number * steps, (number + 1) * steps) for root in roots_of(sampler.draw(step), 1)]
    assert sorted(seen[:patients]) == list(range(patients))
    assert seen == [seen[place % patients] for place in range(len(seen))]  # the last batch is filled from the first


@pytest.mark.parametrize("patients", [24, 4100])
def test_passes_differ(patients: int) -> None:
    sampler = Sampler(even(patients, 1, 1), batch_config(4, 1, 1), 0)
    steps = patients // 4
    first, second = ([roots_of(sampler.draw(number * steps + step), 1) for step in range(6)] for number in (0, 1))
    assert first != second


def test_a_long_pass_sees_everyone() -> None:
    """More patients than an order is written out for."""
    sampler = Sampler(even(5000, 1, 1), batch_config(128, 1, 1), 3)
    seen = np.concatenate([sampler.draw(step).ancestry[:, 0] for step in range(40)])
    assert sorted(seen[:5000]) == list(range(5000))
    np.testing.assert_array_equal(seen[5000:], seen[:120])


# ---- a pure function of (seed, step, rank)


@given(cases())
def test_a_fresh_sampler_draws_the_same_in_any_order(case: Case) -> None:
    steps = [case.step, 0, case.step + 1, case.step]
    old = case.sampler()
    drawn = {(step, rank): old.draw(step, rank) for step in reversed(steps) for rank in range(case.world)}
    for step in steps:
        for rank in reversed(range(case.world)):
            again = case.sampler().draw(step, rank)
            np.testing.assert_array_equal(again.places, drawn[step, rank].places)
            np.testing.assert_array_equal(again.ancestry, drawn[step, rank].ancestry)


def test_seeds_and_steps_and_ranks_give_different_batches() -> None:
    tree = even(200)
    draws = [
        Sampler(tree, batch_config(8), seed, world=2).draw(step, rank).places
        for seed in range(6)
        for step in range(60)
        for rank in range(2)
    ]
    assert len({tuple(places.tolist()) for places in draws}) == len(draws)


def test_the_same_patients_give_other_patches_in_the_next_pass() -> None:
    tree = even(2, 4, 50)
    draws = [frozenset(Sampler(tree, batch_config(2), 0).draw(step).places.tolist()) for step in range(40)]
    assert len(set(draws)) == 40


def test_the_global_generator_is_neither_read_nor_moved() -> None:
    sampler = Sampler(even(20), batch_config(4), 0)
    np.random.seed(1)  # noqa: NPY002 - the state that must not matter
    before, first = np.random.get_state()[1].tolist(), sampler.draw(3)  # noqa: NPY002
    assert np.random.get_state()[1].tolist() == before  # noqa: NPY002
    np.random.seed(2)  # noqa: NPY002
    np.testing.assert_array_equal(sampler.draw(3).places, first.places)


@pytest.mark.parametrize(
    ("patients", "rows"),
    [
        (7, [52, 54, 55, 58, 41, 42, 46, 48, 10, 12, 15, 17]),
        (5000, [40141, 40142, 40146, 40148, 43182, 43184, 43185, 43188, 16960, 16962, 16965, 16967]),
    ],
)
def test_known_batches_stay_what_they_were(patients: int, rows: list[int]) -> None:
    """A changed draw would give a run that is resumed other batches than it was begun with."""
    draw = Sampler(even(patients, 2, 5), batch_config(3), 7).draw(11)
    assert draw.ancestry[:, -1].tolist() == rows


# ---- several devices


@given(cases())
def test_devices_share_out_the_batch_of_one(case: Case) -> None:
    assume(case.tree.roots >= case.counts[0])
    one = case.sampler(world=1).draw(case.step)
    np.testing.assert_array_equal(case.batch().places, one.places)
    np.testing.assert_array_equal(case.batch().ancestry, one.ancestry)


@pytest.mark.parametrize("patients", [12, 13, 5000])
def test_devices_share_out_just_enough_and_more_than_enough(patients: int) -> None:
    tree, config = even(patients), batch_config(12)
    for step in range(5):
        one = Sampler(tree, config, 0).draw(step).places
        three = [Sampler(tree, config, 0, world=3).draw(step, rank).places for rank in range(3)]
        np.testing.assert_array_equal(np.concatenate(three), one)


@given(cases())
def test_devices_share_no_root(case: Case) -> None:
    """Also when there are fewer than are drawn."""
    draws = [case.sampler().draw(case.step, rank) for rank in range(case.world)]
    assert {len(draw.places) for draw in draws} == {prod(case.counts) // case.world}
    roots = [set(draw.ancestry[:, 0].tolist()) for draw in draws]
    assert len(set.union(*roots)) == sum(map(len, roots))


@given(cases())
def test_no_root_is_left_out_when_there_are_too_few(case: Case) -> None:
    """A device repeats its own, so that one with room for all of its share shows all of it."""
    assume(case.tree.roots <= case.counts[0])
    for rank in range(case.world):
        roots = set(case.sampler().draw(case.step, rank).ancestry[:, 0].tolist())
        share = len(range(rank, case.tree.roots, case.world))
        assert len(roots) == min(share, case.counts[0] // case.world)


# ---- everyone equally often


def test_every_patient_equally_often_also_by_the_rest_of_a_pass() -> None:
    """Ten patients, four a batch: two of the last batch are a second time in their pass; nobody is favoured."""
    sampler = Sampler(even(10, 1, 1), batch_config(4, 1, 1), 5)
    seen = np.array([roots_of(sampler.draw(step), 1) for step in range(3 * 1000)])
    again = seen.reshape(1000, 12)[:, 10:]
    counts = np.bincount(again.ravel(), minlength=10)
    assert surprise(counts) < 4
    np.testing.assert_array_equal(np.bincount(seen.ravel(), minlength=10), 1000 + counts)


def test_two_patients_meet_equally_often() -> None:
    sampler = Sampler(even(8, 1, 1), batch_config(2, 1, 1), 6)
    meet = np.zeros((8, 8), int)
    for step in range(2500):
        first, second = roots_of(sampler.draw(step), 1)
        meet[first, second] += 1
    assert np.diag(meet).sum() == 0
    assert surprise(meet[~np.eye(8, dtype=bool)]) < 4


def test_every_patient_equally_often_on_every_device_when_there_are_too_few() -> None:
    sampler = Sampler(even(3, 1, 1), batch_config(4, 1, 1), 5, world=2)
    for rank in range(2):
        seen = np.concatenate([sampler.draw(step, rank).ancestry[:, 0] for step in range(1500)])
        assert surprise(np.bincount(seen, minlength=3) / 2) < 4  # a patient that is alone comes twice


def test_every_slide_and_patch_equally_often_whatever_their_number() -> None:
    """A slide of 2 patches is drawn as often as one of 12 of the same patient; each of its patches more often."""
    patches = [2, 12, 4, 6]
    tree = grow(cohort(patches, [1]), *THREE)
    sampler = Sampler(tree, batch_config(1, 2, 1), 1)
    draws = [draw.ancestry for draw in map(sampler.draw, range(4000)) if draw.ancestry[0, 0] == 0]
    slides = np.bincount(np.concatenate(draws)[:, 1], minlength=4)
    assert surprise(slides[:4]) < 4
    rows = np.bincount(np.concatenate(draws)[:, 2], minlength=sum(patches))
    for first, count in zip(np.cumsum(patches) - patches, patches, strict=True):
        assert surprise(rows[first : first + count]) < 4
    pairs = Counter(frozenset(draw[:, 1].tolist()) for draw in draws)
    assert len(pairs) == 6
    assert surprise(list(pairs.values())) < 4


def test_every_pair_of_patches_equally_often() -> None:
    sampler = Sampler(even(1, 1, 6), batch_config(1, 1, 2), 2)
    pairs = Counter(tuple(sampler.draw(step).ancestry[:, 2].tolist()) for step in range(2500))
    assert len(pairs) == 30
    assert surprise(list(pairs.values())) < 4


def test_every_patch_equally_often_without_levels_above() -> None:
    table = cohort([30], [70])
    sampler = Sampler(grow(table, "patch"), BatchConfig(levels=("patch",), images=32, draw={}, views=2), 4)
    seen = np.concatenate([sampler.draw(step).ancestry[:, 0] for step in range(7 * 300)]).reshape(300, 112)
    assert (np.sort(seen[:, :100]) == np.arange(100)).all()
    assert surprise(np.bincount(seen[:, 100:].ravel(), minlength=100)) < 4


def test_what_one_step_draws_says_nothing_of_the_next() -> None:
    sampler = Sampler(even(1, 5, 1), batch_config(1, 1, 1), 3)
    slides = np.concatenate([sampler.draw(step).ancestry[:, 1] for step in range(2000)])
    joint = np.zeros((5, 5), int)
    np.add.at(joint, (slides[:-1], slides[1:]), 1)
    assert surprise(joint) < 4


def test_patients_of_one_batch_draw_independently() -> None:
    sampler = Sampler(even(2, 5, 1), batch_config(2, 1, 1), 3)
    draws = (sampler.draw(step).ancestry for step in range(2000))
    slides = np.array([draw[np.argsort(draw[:, 0]), 1] for draw in draws])
    joint = np.zeros((5, 5), int)
    np.add.at(joint, tuple((slides % 5).T), 1)
    assert surprise(joint) < 4


# ---- class balance


def balanced(labels: Sequence[int], roots: int, world: int = 1, seed: int = 0) -> Sampler:
    return Sampler(even(len(labels), 2, 3), batch_config(roots), seed, world, np.array(labels, np.int32))


LABELS = st.lists(st.integers(0, 2), min_size=3, max_size=30)


@given(LABELS, st.integers(1, 4), st.integers(1, 3), SEEDS, st.integers(0, 500))
def test_every_label_equally_often_in_every_batch_of_every_device(
    labels: list[int], share: int, world: int, seed: int, step: int
) -> None:
    groups = Counter(labels)
    assume(min(groups.values()) >= world)
    sampler = balanced(labels, share * world * len(groups), world, seed)
    draws = [sampler.draw(step, rank) for rank in range(world)]
    roots = [roots_of(draw, 4) for draw in draws]
    for found in roots:
        assert Counter(labels[root] for root in found) == dict.fromkeys(groups, share)
    assert sum(len(set(found)) for found in roots) == len({root for found in roots for root in found})
    assert sampler.repeats == (min(groups.values()) < share * world)
    if not sampler.repeats:
        assert len({root for found in roots for root in found}) == share * world * len(groups)
        one = balanced(labels, share * world * len(groups), 1, seed).draw(step)
        assert sorted(one.places) == sorted(np.concatenate([draw.places for draw in draws]))


def test_a_pass_over_a_label_sees_all_of_it_before_anyone_again() -> None:
    labels = [0] * 10 + [1] * 4 + [2] * 3
    sampler = balanced(labels, 6)
    seen: dict[int, list[int]] = {0: [], 1: [], 2: []}
    for step in range(20):
        for root in roots_of(sampler.draw(step), 4):
            seen[labels[root]].append(root)
    assert [sorted(seen[0][first : first + 10]) for first in (0, 10, 20, 30)] == [list(range(10))] * 4
    assert [sorted(seen[1][first : first + 4]) for first in range(0, 40, 4)] == [list(range(10, 14))] * 10
    assert [sorted(seen[2][first : first + 3]) for first in range(0, 40, 4)] == [[14, 15, 16]] * 10


def test_every_patient_of_a_label_equally_often() -> None:
    sampler = balanced([0] * 7 + [1] * 3, 4)
    seen = np.concatenate([sampler.draw(step).ancestry[::4, 0] for step in range(2500)])
    counts = np.bincount(seen, minlength=10)
    assert counts[:7].sum() == counts[7:].sum() == 5000
    assert surprise(counts[:7]) < 4
    assert surprise(counts[7:]) < 4


def test_labels_are_shuffled_apart() -> None:
    """Two labels of as many patients each: not the same places of both in every step."""
    sampler = balanced([0] * 6 + [1] * 6, 2)
    pairs = [tuple(roots_of(sampler.draw(step), 4)) for step in range(1500)]
    joint = np.zeros((6, 6), int)
    np.add.at(joint, tuple((np.sort(pairs, axis=1) - [0, 6]).T), 1)
    assert surprise(joint) < 4


# ---- cost


@pytest.fixture(scope="module")
def tcga() -> PatchTable:
    """11.3 million patches on 1,703 slides of 879 patients, the paper's TCGA."""
    rng = np.random.default_rng(0)
    counts = rng.multinomial(11_300_000, np.full(1703, 1 / 1703)).tolist()
    patients = np.sort(np.r_[np.arange(879), rng.integers(0, 879, 1703 - 879)])
    columns = {"patient": names_column([f"p{patient}" for patient in patients], counts)}
    columns["slide"] = names_column([f"s{number}" for number in range(1703)], counts)
    return PatchTable(pa.table(columns))


@pytest.mark.parametrize("levels", [THREE, ("slide", "patch"), ("patch",)])
def test_a_batch_of_millions_needs_no_memory_of_their_size(tcga: PatchTable, levels: tuple[str, ...]) -> None:
    config = BatchConfig(levels=levels, images=1024, draw=dict.fromkeys(levels[1:], 2), views=2)
    sampler = Sampler(grow(tcga, *levels), config, 0)
    tracemalloc.start()
    try:
        draws = [sampler.draw(step) for step in (0, 10**6)]
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert [draw.places.shape for draw in draws] == [(512,)] * 2
    assert peak < 2**20


def test_ancestry_in_millions(tcga: PatchTable) -> None:
    draw = Sampler(grow(tcga, *THREE), BatchConfig(images=1024), 0).draw(123)
    for depth, level in enumerate(THREE[:-1]):
        codes = tcga.codes(level)[0][draw.ancestry[:, 2]]
        assert len(set(zip(codes.tolist(), draw.ancestry[:, depth].tolist(), strict=True))) == len(set(codes.tolist()))


# ---- what is refused


def refusal(tree: Tree, config: BatchConfig, world: int = 1, labels: Sequence[int] | None = None) -> str:
    with pytest.raises(UserError) as caught:
        Sampler(tree, config, 0, world, None if labels is None else np.array(labels, np.int32))
    return str(caught.value)


def test_nothing_to_learn_from() -> None:
    table = cohort([3])
    assert refusal(grow(table.select(np.zeros(3, bool)), *THREE), BatchConfig()) == (
        "there is no patch to learn from. Check data.splits and the store's `split` column."
    )


@pytest.mark.parametrize("draw", [{"patient": 2}, {"region": 2}, {"slide": 0}, {"slide": 2, "patch": -1}])
def test_draw_that_cannot_be(draw: dict[str, int]) -> None:
    assert refusal(even(4), BatchConfig(draw=draw)) == (
        f"batch.draw = {draw}: below 'patient' it can name slide, patch, each at least 1. "
        "Change batch.draw or batch.levels."
    )


def test_a_draw_below_the_last_level() -> None:
    tree = grow(cohort([3]), "patch")
    assert refusal(tree, BatchConfig(levels=("patch",))) == (
        "batch.draw = {'slide': 2, 'patch': 2}: below 'patch' there is nothing to draw. Set batch.draw={}."
    )


def test_images_that_do_not_come_out_even() -> None:
    assert refusal(even(4), BatchConfig(images=100)) == (
        "batch.images = 100 is not a multiple of 8 (8 images per patient). Set batch.images=96."
    )
    assert refusal(even(4), BatchConfig(images=100), world=3, labels=[0, 0, 0, 1]) == (
        "batch.images = 100 is not a multiple of 48 (8 images per patient x 2 labels x 3 devices). Set batch.images=96."
    )
    assert refusal(even(4), BatchConfig(images=4)) == (
        "batch.images = 4 is not a multiple of 8 (8 images per patient). Set batch.images=8."
    )


@given(st.integers(2, 2000), st.integers(1, 4), st.integers(1, 5), st.integers(1, 3), st.booleans())
def test_the_suggested_number_works(images: int, slides: int, patches: int, world: int, by_label: bool) -> None:
    tree, labels = even(8, 1, 1), [0, 1] * 4 if by_label else None
    config = BatchConfig(images=images, draw={"slide": slides, "patch": patches})
    assume(images % (slides * patches * 2 * world * (2 if by_label else 1)))
    suggested = int(refusal(tree, config, world, labels).rsplit("Set batch.images=", 1)[1].rstrip("."))
    config = config.model_copy(update={"images": suggested})
    sampler = Sampler(tree, config, 0, world, None if labels is None else np.array(labels, np.int32))
    assert sum(len(sampler.draw(0, rank).places) for rank in range(world)) * 2 == suggested


def test_more_devices_than_patients() -> None:
    assert refusal(even(3), batch_config(8), world=4) == (
        "patients to share out to 4 devices: only 3. Use fewer devices."
    )
    assert refusal(even(5), batch_config(12), world=3, labels=[0, 0, 0, 1, 1]) == (
        "patients to share out to 3 devices: only 2 of the rarest label. Use fewer devices."
    )
    Sampler(even(3), batch_config(9), 0, world=3)

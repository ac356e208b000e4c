"""Batches come in order whatever reads them, and a patch that cannot be read is replaced, counted and named."""

import shutil
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

from hidisc.ground.errors import UserError
from hidisc.patches.folders import find_folder, find_opensrh
from hidisc.patches.store import InputRule, PatchStore, as_input
from hidisc.sampling.batches import Batch, Batches, as_tensor, to_input
from hidisc.sampling.hierarchy import Hierarchy
from hidisc.sampling.sampler import Sampler
from hidisc.settings.prepare import ImportConfig
from hidisc.settings.train import BatchConfig, DataConfig
from hidisc.verbs.prepare import import_patches
from tests.patches.pictures import make_store, noise, pictures_of, write_pictures
from tests.patches.test_opensrh import study, write_opensrh
from tests.patches.test_store import damage_patch

PATCHES = 6
PICTURES = pictures_of("P1/A", "P1/B", "P2/A", "P3/A", "P4/A", "P4/B", patches=PATCHES)
FOUR = BatchConfig(images=32)
"""All four patients, two slides each, two patches, two views."""
NONE_BESIDE = " No other patch beside it can be read ({} tried): repair or remove that slide, then train again."


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of four patients with labels; not to be changed."""
    folder = tmp_path_factory.mktemp("made")
    (folder / "patients.csv").write_text("patient,label\nP1,b\nP2,a\nP3,\nP4,b\n")
    source = find_folder(write_pictures(folder / "patches", PICTURES), folder / "patients.csv")
    import_patches(source, folder / "store", ImportConfig(), workers=0)
    return folder / "store"


@pytest.fixture
def own(made: Path, tmp_path: Path) -> Path:
    """A copy of the store to damage; the rows of its first slide are table rows 0 ... 5."""
    return shutil.copytree(made, tmp_path / "store")


def batches_of(path: Path, config: BatchConfig = FOUR, seed: int = 0, rank: int = 0, **data: object) -> Batches:
    """All patches of a store, as training reads them."""
    store = PatchStore.load(path)
    tree = Hierarchy(config.levels).grow(store.table, np.ones(len(store), bool))
    return Batches(store, tree, Sampler(tree, config, seed), DataConfig(**data), seed, rank)


def equal(one: Batch, other: Batch) -> bool:
    same = all(torch.equal(getattr(one, name), getattr(other, name)) for name in ("pixels", "ancestry", "labels"))
    return same and (one.step, one.bad) == (other.step, other.bad)


def readers() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("hidisc-read")]


# ---- what a batch holds


def test_pixels_and_ids_are_those_of_the_draw(made: Path) -> None:
    batches, store = batches_of(made), PatchStore.load(made)
    sampler = batches._sampler
    labels = store.table.column("label")
    names = store.table.codes("label")[1]
    for step, batch in enumerate(batches.steps(0, 5)):
        draw = sampler.draw(step)
        rows = draw.ancestry[:, -1]
        assert (batch.step, batch.bad) == (step, ())
        assert (batch.pixels.shape, batch.pixels.dtype) == ((16, 3, 16, 16), torch.uint8)
        np.testing.assert_array_equal(batch.ancestry.numpy(), draw.ancestry)
        np.testing.assert_array_equal(batch.pixels.permute(0, 2, 3, 1).numpy(), store.read_many(rows))
        np.testing.assert_allclose(
            to_input(batch.pixels, "unit").permute(0, 2, 3, 1).numpy(),
            as_input(store.read_many(rows), "unit"),
            atol=1e-7,
        )
        assert [names[code] if code >= 0 else None for code in batch.labels.tolist()] == labels[rows].tolist()
        assert {tensor.dtype for tensor in (batch.ancestry, batch.labels)} == {torch.int64}
    assert (batches.read, batches.bad) == (5 * 16, 0)


def test_pixels_lie_as_they_are_stored(made: Path) -> None:
    """Channels last, which convolutions want; no copy on the way."""
    batch = batches_of(made).load(0)
    assert batch.pixels.is_contiguous(memory_format=torch.channels_last)


def test_sixteen_bit_srh_becomes_its_input_on_the_device(tmp_path: Path) -> None:
    meta = {f"NIO_{n}": study(f"NIO_{n}", "hgg") for n in range(3)}
    source = find_opensrh(write_opensrh(tmp_path / "opensrh", meta, {"train": [*meta], "val": []}))
    import_patches(source, tmp_path / "store", workers=0)
    store = PatchStore.load(tmp_path / "store")
    for batch in batches_of(tmp_path / "store", BatchConfig(images=24)).steps(0, 3):
        expected = as_input(store.read_many(batch.ancestry[:, -1].numpy()), "srh")
        assert (batch.pixels.shape, batch.pixels.dtype) == ((12, 2, 16, 16), torch.int16)
        np.testing.assert_array_equal(to_input(batch.pixels, "srh").permute(0, 2, 3, 1).numpy(), expected)


@pytest.mark.parametrize(
    ("rule", "dtype"), [("unit", "uint8"), ("unit", "uint16"), ("srh", "uint16"), ("srh", "uint8")]
)
def test_input_is_bit_for_bit_that_of_its_definition(rule: InputRule, dtype: str) -> None:
    pixels = np.random.default_rng(0).integers(0, np.iinfo(dtype).max, (3, 9, 9, 2), dtype, endpoint=True)
    pixels[0, 0, :3, 0], pixels[0, 0, :3, 1] = (0, 1, np.iinfo(dtype).max), (np.iinfo(dtype).max, 0, 0)
    expected = as_input(pixels, rule)
    np.testing.assert_array_equal(to_input(as_tensor(pixels), rule).permute(0, 2, 3, 1).numpy(), expected)


def test_to_input_leaves_the_batch_as_it_was(made: Path) -> None:
    batch = batches_of(made).load(0)
    before = batch.pixels.clone()
    assert to_input(batch.pixels, "unit").dtype == torch.float32
    assert torch.equal(batch.pixels, before)


@pytest.mark.parametrize("levels", [("patch",), ("patient", "patch"), ("slide", "patch")])
def test_shallower_hierarchies(made: Path, levels: tuple[str, ...]) -> None:
    config = BatchConfig(levels=levels, images=16, draw=dict.fromkeys(levels[1:], 2))
    store = PatchStore.load(made)
    for batch in batches_of(made, config).steps(0, 3):
        assert batch.ancestry.shape == (8, len(levels))
        rows = batch.ancestry[:, -1].numpy()
        np.testing.assert_array_equal(batch.pixels.permute(0, 2, 3, 1).numpy(), store.read_many(rows))


# ---- in order, whatever reads them


@pytest.mark.parametrize(("threads", "ahead"), [(1, 1), (2, 1), (2, 4), (8, 3), (3, 64)])
def test_threads_change_nothing(made: Path, threads: int, ahead: int) -> None:
    alone = [batches_of(made).load(step) for step in range(9)]
    found = list(batches_of(made, threads=threads, prefetch=ahead).steps(0, 9))
    assert len(found) == 9
    assert all(map(equal, found, alone))


def test_going_on_at_a_step_gives_the_rest(made: Path) -> None:
    whole = list(batches_of(made).steps(0, 8))
    rest = list(batches_of(made).steps(5, 8))
    assert len(rest) == 3
    assert all(map(equal, rest, whole[5:]))


def test_no_steps_no_batches(made: Path) -> None:
    assert list(batches_of(made).steps(4, 4)) == []
    assert readers() == []


def test_only_so_many_are_read_ahead(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    batches = batches_of(made, threads=4, prefetch=2)
    started = []
    load = batches.load
    monkeypatch.setattr(batches, "load", lambda step: (started.append(step), load(step))[1])
    for batch in batches.steps(0, 20):
        time.sleep(0.005)  # long enough for idle threads to begin what they were given
        assert max(started) <= batch.step + 2
    assert sorted(started) == list(range(20))


def test_ranks_read_their_own_share(made: Path) -> None:
    store = PatchStore.load(made)
    tree = Hierarchy().grow(store.table, np.ones(len(store), bool))
    sampler = Sampler(tree, FOUR, 0, world=2)
    one = batches_of(made).load(3)
    both = [Batches(store, tree, sampler, DataConfig(), 0, rank).load(3) for rank in (0, 1)]
    assert torch.equal(torch.cat([batch.pixels for batch in both]), one.pixels)
    assert torch.equal(torch.cat([batch.ancestry for batch in both]), one.ancestry)


def test_closed_early_no_thread_is_left(made: Path) -> None:
    steps = batches_of(made, threads=3).steps(0, 10**6)
    next(steps)
    assert readers()
    steps.close()
    assert readers() == []


def test_an_error_while_training_leaves_no_thread(made: Path) -> None:
    def train(steps: Iterator[Batch]) -> None:
        for batch in steps:
            if batch.step == 2:
                raise RuntimeError("loss is not finite")

    steps = batches_of(made, threads=3).steps(0, 10**6)
    with pytest.raises(RuntimeError, match="not finite"):
        train(steps)
    del steps
    assert readers() == []


def test_a_store_with_few_shards_open_is_read_by_many_threads(tmp_path: Path) -> None:
    """Shards are closed under the threads that read them."""
    slides = [f"P{number}/S" for number in range(12)]
    expected = make_store(tmp_path, pictures_of(*slides, patches=4), pixels={"codec": "raw"}).read_many(range(48))
    store = PatchStore.load(tmp_path / "store")
    store._most_open = 2
    orders = [np.random.default_rng(seed).integers(0, len(store), 1500) for seed in range(8)]

    def check(rows: np.ndarray) -> int:
        return sum(not np.array_equal(store.read(row), expected[row]) for row in rows)

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(check, orders)) == 0
    assert len(store._open) <= 2


# ---- patches that cannot be read


def replaced(path: Path, steps: int = 12, **data: object) -> list[Batch]:
    """Batches of a store some of whose patches cannot be read."""
    return list(batches_of(path, max_bad_share=1, **data).steps(0, steps))


def test_a_bad_patch_is_replaced_by_another_of_its_slide(own: Path) -> None:
    clean = [batches_of(own).load(step) for step in range(12)]
    shard = damage_patch(own, 2)
    store, times = PatchStore.load(own), 0
    for before, after in zip(clean, replaced(own), strict=True):
        bad = before.ancestry[:, -1] == 2
        times += int(bad.sum())
        rows = after.ancestry[:, -1].numpy()
        assert 2 not in rows
        assert set(rows[bad]) <= {0, 1, 3, 4, 5}
        assert torch.equal(after.ancestry[:, :-1], before.ancestry[:, :-1])  # the same slide of the same patient
        assert torch.equal(after.ancestry[~bad], before.ancestry[~bad])
        np.testing.assert_array_equal(after.pixels.permute(0, 2, 3, 1).numpy(), store.read_many(rows))
        assert torch.equal(after.labels, before.labels)
        assert len(after.bad) == bad.sum()
        for sentence in after.bad:
            assert sentence.startswith(f"patch 2 of {shard} cannot be decoded (")
    assert times > 3


def test_what_replaces_it_is_decided_by_the_step_alone(own: Path) -> None:
    damage_patch(own, 2)
    first = replaced(own, threads=1)
    assert all(map(equal, replaced(own, threads=8), first))
    assert all(map(equal, (batches_of(own).load(step) for step in reversed(range(12))), reversed(first)))


def test_another_step_is_given_another_patch(own: Path) -> None:
    """Also where the bad one stands at the same place of the batch, and in the end every good one of the slide."""
    damage_patch(own, 2)
    given: dict[int, set[int]] = {}
    for step, batch in enumerate(replaced(own, steps=60)):
        drawn = batches_of(own)._sampler.draw(step).ancestry[:, -1]
        for index in np.flatnonzero(drawn == 2):
            given.setdefault(int(index), set()).add(int(batch.ancestry[index, -1]))
    assert max(map(len, given.values())) > 1
    assert set.union(*given.values()) == {0, 1, 3, 4, 5}


def test_bad_patches_are_counted(own: Path) -> None:
    damage_patch(own, 2)
    batches = batches_of(own, max_bad_share=1)
    named = sum(len(batch.bad) for batch in batches.steps(0, 12))
    assert batches.bad == named > 3
    assert batches.read == 12 * 16


def test_replacements_that_are_bad_too_are_passed_over(own: Path) -> None:
    """All but one of the slide: whoever is drawn, the last good one is found."""
    for row in (0, 1, 2, 3, 5):
        damage_patch(own, row)
    seen = set()
    for batch in replaced(own):
        first_slide = batch.ancestry[:, 1] == batch.ancestry[batch.ancestry[:, -1] == 4, 1][:1]
        seen |= set(batch.ancestry[first_slide, -1].tolist())
        assert all(sentence.startswith("patch ") for sentence in batch.bad)
    assert seen == {4}


def stop(path: Path, steps: int = 2000, **data: object) -> str:
    """The sentence that reading stops with."""
    with pytest.raises(UserError) as caught:
        for _ in batches_of(path, **data).steps(0, steps):
            pass
    assert readers() == []
    return str(caught.value)


def test_too_many_bad_patches_stop_the_reading(own: Path) -> None:
    """A whole slide of six but one: about a tenth of what is read."""
    for row in range(5):
        damage_patch(own, row)
    shard = own / PatchStore.load(own).info.shards[0]
    sentence = stop(own, max_bad_share=0.05)
    words = sentence.split()
    bad, read = int(words[0]), int(words[3].replace(",", ""))
    assert bad > 0.05 * max(read, 1000)
    assert bad - 16 * 6 <= 0.05 * max(read, 1000)  # and not long before
    start = f"{bad} of the {read:,} patches read so far cannot be read, more than data.max_bad_share = 0.05 allows; "
    assert sentence.startswith(f"{start}the last: patch ")
    assert f" of {shard} cannot be decoded (" in sentence


def test_a_share_of_nothing_stops_at_the_first(own: Path) -> None:
    damage_patch(own, 2)
    assert stop(own, max_bad_share=0).startswith("1 of the ")


def test_a_few_bad_patches_in_the_beginning_do_not_stop(own: Path) -> None:
    """One bad patch of the first sixteen is no share yet."""
    damage_patch(own, 2)
    batches = batches_of(own, max_bad_share=0.01)
    assert next(batch.step for batch in batches.steps(0, 100) if batch.bad) * 16 < 500


def test_bad_patches_within_the_share_do_not_stop(own: Path) -> None:
    damage_patch(own, 2)
    batches = batches_of(own, max_bad_share=0.1)
    assert sum(1 for _ in batches.steps(0, 300)) == 300
    assert 0.01 < batches.bad / batches.read < 0.1


@pytest.mark.parametrize("spoil", ["decode", "missing"])
def test_a_slide_of_which_nothing_can_be_read_stops_with_its_name(
    own: Path, spoil: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard = own / PatchStore.load(own).info.shards[0]
    if spoil == "decode":
        for row in range(PATCHES):
            damage_patch(own, row)
    else:
        shard.unlink()
    reads = count_reads(monkeypatch)
    sentence = stop(own, max_bad_share=1)
    assert sentence.startswith("patch ")
    assert f" of {shard} cannot be decoded (" in sentence
    assert sentence.endswith(NONE_BESIDE.format(5))
    assert len(reads) < 200  # it does not go on trying


def count_reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The rows that stores are asked for from now on."""
    rows: list[int] = []
    read: Callable[..., np.ndarray] = PatchStore.read
    monkeypatch.setattr(PatchStore, "read", lambda store, row, out=None: (rows.append(row), read(store, row, out))[1])
    return rows


def test_a_large_slide_is_not_read_through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sixty patches that cannot be read: eight others are tried, not fifty-nine."""
    store = make_store(tmp_path, pictures_of("P1/A", patches=60)).path
    shard = store / PatchStore.load(store).info.shards[0]
    shard.unlink()
    reads = count_reads(monkeypatch)
    assert stop(store, threads=1, prefetch=1, max_bad_share=1).endswith(NONE_BESIDE.format(8))
    assert len(set(reads[:9])) == 9
    assert len(reads) <= 2 * 9


def test_one_level_also_replaces_from_the_same_slide(own: Path) -> None:
    """Without levels above the patch every patch is a sibling, but another slide is another picture."""
    damage_patch(own, 2)
    config = BatchConfig(levels=("patch",), images=16, draw={})
    clean = batches_of(own, config)._sampler
    for step in range(30):
        drawn = clean.draw(step).ancestry[:, -1]
        rows = batches_of(own, config).load(step).ancestry[:, -1].numpy()
        assert set(rows[drawn == 2]) <= {0, 1, 3, 4, 5}


def test_a_slide_of_one_bad_patch_stops(tmp_path: Path) -> None:
    pictures = {**pictures_of("P1/A", patches=1), "P2/A/0.png": noise(9)}
    store = make_store(tmp_path, pictures).path
    damage_patch(store, 0)
    assert stop(store, max_bad_share=1).endswith(NONE_BESIDE.format(0))

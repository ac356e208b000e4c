"""The look at nearest neighbours: what it says is right, and training does not notice it."""

import math
import shutil
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
import torch

from hidisc.ground.errors import UserError
from hidisc.models.encoder import Encoder, build_encoder
from hidisc.patches.store import PatchStore
from hidisc.settings.train import DataConfig, MonitorConfig
from hidisc.training.monitor import Monitor
from tests.training.stores import damage, make_store, outcome, tiny, train

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def opened(store: Path) -> PatchStore:
    return PatchStore.load(store)


@pytest.fixture
def encoder() -> Encoder:
    torch.manual_seed(0)
    return build_encoder("test_resnet", {}, None, channels=3, size_px=32)


def look(store: PatchStore, encoder: Encoder, seed: int = 0, **settings: int | str) -> float:
    config = MonitorConfig.model_validate({"every": 1, "split": "test", **settings})
    return Monitor(store, config, DataConfig(), seed).accuracy(encoder, CPU)


def is_share(value: float, count: int) -> bool:
    """Whether a number is so many of `count`."""
    return abs(value * count - round(value * count)) < 1e-4


def rows_of(store: PatchStore, side: str) -> list[int]:
    codes, sides = store.table.codes("split")
    return np.flatnonzero(codes == sides.index(side)).tolist()


def by_hand(store: PatchStore, encoder: Encoder, k: int) -> float:
    """All patches of the test side against all of the training side, one at a time."""
    labels = store.table.codes("label")[0]
    embedded = {}
    for row in rows_of(store, "train") + rows_of(store, "test"):
        x = torch.from_numpy(store.read(row).astype(np.float32) / 255).permute(2, 0, 1)[None]
        with torch.no_grad():
            z = encoder.eval().features(x)[0].double()
        embedded[row] = z / z.norm()
    right = 0
    for row in rows_of(store, "test"):
        near = sorted(rows_of(store, "train"), key=lambda other: -float(embedded[row] @ embedded[other]))[:k]
        votes: dict[int, float] = defaultdict(float)
        for other in near:
            votes[labels[other]] += float(embedded[row] @ embedded[other])
        right += max(votes, key=lambda label: votes[label]) == labels[row]
    return right / len(rows_of(store, "test"))


@pytest.mark.parametrize("k", [1, 3, 20])
def test_the_accuracy_is_that_of_a_slow_loop(opened: PatchStore, encoder: Encoder, k: int) -> None:
    found = look(opened, encoder, k=k)
    assert found == pytest.approx(by_hand(opened, encoder, k))
    assert 0.3 < found < 1, "neither hopeless nor too easy to tell anything"


def test_more_neighbours_than_patches(opened: PatchStore, encoder: Encoder) -> None:
    assert look(opened, encoder, k=10_000) == pytest.approx(by_hand(opened, encoder, 10_000))


def test_labels_that_show_are_told(opened: PatchStore) -> None:
    """The label is the brightness, so the mean of the pixels tells it and a constant does not."""

    class Mean(torch.nn.Module):
        def features(self, x: torch.Tensor) -> torch.Tensor:
            return torch.stack([x.mean(dim=(1, 2, 3)) - 0.44, torch.full((len(x),), 0.1)], dim=1)

    class Constant(torch.nn.Module):
        def features(self, x: torch.Tensor) -> torch.Tensor:
            return torch.ones(len(x), 2)

    assert look(opened, Mean()) == 1.0  # type: ignore[arg-type]
    assert look(opened, Constant()) == 0.5  # type: ignore[arg-type]


def test_a_sample_of_fewer_patches_is_the_same_every_time(opened: PatchStore, encoder: Encoder) -> None:
    seen = [look(opened, encoder, seed=seed, patches=9, k=1) for seed in (0, 0, 1, 2, 3, 4)]
    assert seen[0] == seen[1]
    assert len(set(seen)) > 1
    assert all(is_share(value, 9) for value in seen)


def test_the_encoder_is_left_as_it_was(opened: PatchStore, encoder: Encoder) -> None:
    encoder.train()
    before = {name: value.clone() for name, value in encoder.state_dict().items()}
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    look(opened, encoder)
    assert torch.equal(torch.rand(1), expected), "no random number was drawn"
    assert all(module.training for module in encoder.modules())
    assert all(torch.equal(value, before[name]) for name, value in encoder.state_dict().items())


def test_a_training_that_is_watched_is_the_same(store: Path, tmp_path: Path) -> None:
    alone = train(store, tmp_path / "alone")
    watched = train(store, tmp_path / "watched", "monitor.every=2", "monitor.split=test", "monitor.k=3")
    rows = watched.metrics()
    looks = [row["knn_accuracy"] for row in rows]
    assert [not math.isnan(value) for value in looks] == [False, True, False, True, False, True]
    assert all(0 <= value <= 1 for value in looks[1::2])
    mine, others = outcome(alone.path), outcome(watched.path)
    assert (mine["encoder"], mine["checkpoint"]) == (others["encoder"], others["checkpoint"])
    assert [row["loss"] for row in rows] == [row["loss"] for row in alone.metrics()]


def test_a_look_that_is_due_between_rows_has_its_row(store: Path, tmp_path: Path) -> None:
    watch = ("monitor.every=3", "monitor.split=test")
    rows = train(store, tmp_path / "run", *watch, "log.every=4", "optim.steps=7").metrics()
    assert [(row["step"], not math.isnan(row["knn_accuracy"])) for row in rows] == [
        (3, True),
        (4, False),
        (6, True),
        (7, True),
    ]


def test_patches_without_a_label_are_left_out(tmp_path: Path, encoder: Encoder) -> None:
    store = PatchStore.load(make_store(tmp_path, unlabelled=("T0", "P0", "P1")))
    assert store.table.codes("label")[0][rows_of(store, "test")].tolist() == [-1] * 12 + [1] * 12
    seen = look(store, encoder, k=5)
    assert is_share(seen, 12)


def test_a_patch_that_cannot_be_read_is_left_out(store: Path, tmp_path: Path, encoder: Encoder) -> None:
    own = shutil.copytree(store, tmp_path / "store")
    opened = PatchStore.load(own)
    damage(own, rows_of(opened, "test")[3], rows_of(opened, "train")[5])
    seen = look(PatchStore.load(own), encoder)
    assert is_share(seen, 23)


def test_no_split_is_watched_unless_it_is_named() -> None:
    """Least of all the one of the final test, whose labels would choose the settings."""
    assert MonitorConfig().split is None
    with pytest.raises(UserError) as caught:
        tiny("monitor.every=50")
    assert str(caught.value) == (
        "settings:\n  monitor = {'every': 50}: every = 50 needs a split to watch, neither learned from nor the final "
        "test. Prepare one with --set 'split.fractions={train: 0.7, val: 0.1, test: 0.2}' and add --set "
        "monitor.split=val."
    )
    assert tiny("monitor.every=50", "monitor.split=val").monitor.split == "val"


def test_a_side_that_is_not_there(opened: PatchStore, encoder: Encoder) -> None:
    with pytest.raises(UserError) as caught:
        look(opened, encoder, split="val")
    assert str(caught.value) == (
        f"monitor.split: 'val' is not a split of {opened.path}, which has train, test. Choose among these."
    )


def test_a_side_that_is_learned_from(opened: PatchStore, encoder: Encoder) -> None:
    with pytest.raises(UserError, match=r"monitor.split = 'train' is learned from \(data.splits\), so it tells"):
        look(opened, encoder, split="train")


def test_a_side_without_labels(tmp_path: Path, encoder: Encoder) -> None:
    store = PatchStore.load(make_store(tmp_path, unlabelled=("T0", "T1")))
    with pytest.raises(UserError, match=r"monitor.split = 'test': there are no labelled patches to compare\."):
        look(store, encoder)

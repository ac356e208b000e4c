"""A tiny store, tiny settings, and what a run leaves behind, for the tests of training."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from hidisc.ground.progress import Progress
from hidisc.models.card import WEIGHTS
from hidisc.patches.folders import find_folder
from hidisc.patches.shard import Shard
from hidisc.patches.store import PatchStore
from hidisc.settings.config import load_config
from hidisc.settings.prepare import ImportConfig
from hidisc.settings.train import TrainConfig
from hidisc.training.checkpoint import list_checkpoints, read_checkpoint
from hidisc.training.log import METRICS, read_metrics
from hidisc.training.run import Run
from hidisc.verbs import train as verb
from hidisc.verbs.prepare import import_patches
from tests.patches.pictures import write_pictures

TRAIN = tuple(f"P{number}" for number in range(6))
TEST = ("T0", "T1")
TINY = (
    "model.backbone=test_resnet",
    "model.head.dim=8",
    "model.head.hidden_dim=16",
    "batch.images=32",
    "optim.steps=6",
    "log.every=1",
    "checkpoint.every=2",
    "data.threads=1",
)
TIMES = ("images_per_s", "wait_share")
"""Columns of metrics.csv that no two runs share."""


def make_store(
    folder: Path,
    patches: int = 6,
    size_px: int = 32,
    unlabelled: tuple[str, ...] = (),
    scales: tuple[float, ...] = (),
) -> Path:
    """A store of 8 patients, 2 of them on the test side, with 2 slides each; the label decides the brightness.

    With scales, as many patches in turn are one place.
    """
    rng = np.random.default_rng(3)
    labels = {patient: "ab"[number % 2] for number, patient in enumerate((*TRAIN, *TEST))}
    pictures = {
        f"{patient}/{patient}-{slide}/{number}.png": _draw(rng, size_px, bright=label == "b")
        for patient, label in labels.items()
        for slide in "xy"
        for number in range(patches)
    }
    rows = [
        f"{patient},{'' if patient in unlabelled else label},{'train' if patient in TRAIN else 'test'}"
        for patient, label in labels.items()
    ]
    (folder / "patients.csv").write_text("\n".join(["patient,label,split", *rows]) + "\n")
    source = find_folder(write_pictures(folder / "pictures", pictures), folder / "patients.csv")
    for row, _ in source.slides if scales else ():
        row.columns["place"] = [str(number // len(scales)) for number in range(patches)]
        row.columns["mpp"] = [str(scales[number % len(scales)]) for number in range(patches)]
    import_patches(source, folder / "store", ImportConfig(), workers=0)
    return folder / "store"


def _draw(rng: np.random.Generator, size_px: int, bright: bool) -> NDArray[np.uint8]:
    """Coarse noise around a colour, (size_px, size_px, 3)."""
    blocks = rng.integers(0, 200, (8, 8, 3), dtype=np.uint8).repeat(size_px // 8, 0).repeat(size_px // 8, 1)
    return blocks + np.uint8(25 if bright else 0)


def tiny(*changes: str, recipe: str | None = None) -> TrainConfig:
    """Settings of a training of a second."""
    return load_config(TrainConfig, recipe, [*TINY, *changes])


def train(store: Path, out: Path, *changes: str, said: list[str] | None = None) -> Run:
    """Train on one CPU with tiny settings; that two test patients show nothing is said to every one, and left out."""
    every: list[str] = []
    run = verb.train(store, out, tiny(*changes), device="cpu", devices=1, say=every.append)
    assert run is not None
    if said is not None:
        said += [sentence for sentence in every if "can show nothing" not in sentence]
    return run


class Stopped(BaseException):
    """A process that ends between two steps, as far as one can have it without ending it."""


def train_until(step: int, monkeypatch: pytest.MonkeyPatch, store: Path, out: Path, *changes: str) -> None:
    """Begin or go on with a training, and end it in the middle of a step."""

    class Counted(Progress):
        done = 0

        def advance(self, count: int = 1) -> None:
            self.done += count
            if count and self.done == step:
                raise Stopped

    @contextmanager
    def show(*_: object) -> Iterator[Progress]:
        yield Counted()

    with monkeypatch.context() as patch:
        patch.setattr(verb, "show_training", show)
        with pytest.raises(Stopped):
            train(store, out, *changes)


def losses(run: Path) -> list[dict[str, float]]:
    """The rows of metrics.csv without the columns of time."""
    return [{name: value for name, value in row.items() if name not in TIMES} for row in read_metrics(run / METRICS)]


def outcome(run: Path) -> dict[str, object]:
    """What two runs that are the same have in common, to the last bit."""
    last = list_checkpoints(run)[-1]
    info, tensors = read_checkpoint(last)
    return {
        "losses": [repr(row) for row in losses(run)],
        "encoder": (run / WEIGHTS).read_bytes(),
        "checkpoint": (last.name, info.groups, {name: value.numpy().tobytes() for name, value in tensors.items()}),
    }


def damage(store: Path, *indices: int) -> None:
    """Overwrite the first bytes of stored patches, given by their rows in the table, so that they do not decode."""
    opened = PatchStore.load(store)
    shard, row = (opened.table.column(name) for name in ("shard", "row"))
    for index in indices:
        path = store / opened.info.shards[shard[index]]
        patch = bytes(Shard(path)[int(row[index])])
        data = path.read_bytes()
        assert data.count(patch) == 1
        path.write_bytes(data.replace(patch, b"damaged!" + patch[8:]))

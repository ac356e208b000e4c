"""An error that one of several processes meets ends all of them with its own words, said once."""

import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from hidisc.embeddings.embeddings import EMBEDDINGS
from hidisc.models.backbone import read_tensors
from hidisc.models.card import WEIGHTS
from hidisc.objectives.objective import load_settings
from hidisc.patches.store import PatchStore
from hidisc.settings.config import load_config
from hidisc.settings.train import TrainConfig
from hidisc.training.build import choose_training_set
from hidisc.training.checkpoint import list_checkpoints, read_checkpoint
from hidisc.training.log import METRICS, read_metrics
from hidisc.training.run import RUN
from tests.commands import ENVIRONMENT, Ended, Forks, run, signal_at
from tests.training.stores import TINY, damage, make_store

STRICT = ("batch.images=48", "data.max_bad_share=0", "optim.steps=30", "checkpoint.every=1000")
"""Each of two ranks reads 12 patches in a step, and the first one that cannot be read is an error."""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_store(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def own(store: Path, tmp_path: Path) -> Path:
    """A copy of the store to damage."""
    return shutil.copytree(store, tmp_path / "store")


def read_by(store: Path, changes: Sequence[str], rank: int, steps: int) -> list[set[int]]:
    """The rows of the table that a rank of two reads in each of the first steps."""
    config, opened = load_config(TrainConfig, None, list(changes)), PatchStore.load(store)
    material = choose_training_set(opened, config, load_settings(config.objective))
    sampler = material.sampler(config, 2)
    return [set(material.tree.leaves[sampler.draw(step, rank).places].tolist()) for step in range(steps)]


def damage_for_the_second(store: Path, changes: Sequence[str], step: int) -> int:
    """Damage a patch that the second rank reads at a step and that nobody else reads until then; its row."""
    first, second = (read_by(store, changes, rank, step + 1) for rank in (0, 1))
    row = min(second[step] - set().union(*first, *second[:step]))
    damage(store, row)
    return row


def name_of(store: Path, row: int) -> str:
    """What an error calls a patch."""
    opened = PatchStore.load(store)
    shard, number = (int(opened.table.column(name)[row]) for name in ("shard", "row"))
    return f"patch {number} of {store / opened.info.shards[shard]} cannot be decoded ("


def settings(*changes: str) -> list[str]:
    return [word for change in changes for word in ("--set", change)]


def by_torchrun(*command: str) -> Ended:
    """Run a command as two processes that torchrun starts."""
    words = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "hidisc", *command]
    done = subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, check=False, env=ENVIRONMENT, timeout=180
    )
    return Ended(done.returncode, done.stdout, done.stderr)


def sentence_of(store: Path, row: int, step: int) -> str:
    """What a training says of a damaged patch that the second of two ranks meets at a step."""
    return (
        f"hidisc: 1 of the {12 * (step + 1)} patches read so far cannot be read, more than data.max_bad_share = 0 "
        f"allows; the last: {name_of(store, row)}"
    )


@pytest.mark.whole
@pytest.mark.parametrize(("seed", "step", "is_started_by_us"), [(0, 0, True), (1, 1, False), (3, 4, False)])
def test_a_patch_that_only_the_second_rank_cannot_read(
    own: Path, forks: Forks, tmp_path: Path, seed: int, step: int, is_started_by_us: bool
) -> None:
    """The command starts the second process, or finds it started as by torchrun."""
    changes = (*TINY, *STRICT, f"seed={seed}")
    row = damage_for_the_second(own, changes, step)
    out = tmp_path / "run"
    words = ["train", str(own), "--out", str(out), "--device", "cpu", "--devices", "2", *settings(*changes)]
    ended = run(*words) if is_started_by_us else forks.run(*words, ranks=2)
    assert ended.said.startswith(sentence_of(own, row, step))
    assert ended.said.count("\n") == 1
    assert (ended.code, ended.result) == (2, "")
    assert not (out / RUN).exists()


@pytest.mark.whole
def test_the_same_by_torchrun(own: Path, tmp_path: Path) -> None:
    """torchrun has its own exit code and report, in which the first rank ended with 2."""
    changes = (*TINY, *STRICT)
    row = damage_for_the_second(own, changes, 2)
    out = tmp_path / "run"
    ended = by_torchrun("train", str(own), "--out", str(out), "--device", "cpu", "--devices", "2", *settings(*changes))
    ours = [line for line in ended.said.splitlines() if "hidisc: " in line]
    assert len(ours) == 1
    assert ours[0].startswith(sentence_of(own, row, 2))
    assert "gloo" not in ended.said
    assert (ended.code, ended.result) == (1, "")
    assert re.search(r"rank\s+: 0 .*\n\s+exitcode\s+: 2 ", ended.said)


@pytest.mark.whole
def test_a_patch_that_only_the_second_rank_cannot_embed(own: Path, forks: Forks, tmp_path: Path) -> None:
    """Ranks embed blocks of 16 patches in turn and wait for each other at the end only."""
    damage(own, 17)
    out = tmp_path / "embeddings"
    changes = settings("batch=1", "max_bad_share=0", "threads=1")
    words = ("embed", str(own), "timm:test_resnet", "--out", str(out), "--device", "cpu", "--devices", "2", *changes)
    ended = forks.run(*words, ranks=2)
    said = [line for line in ended.said.splitlines() if not line.startswith("note: ")]
    assert said[0].startswith(f"warning: {name_of(own, 17)}")
    assert said[1:] == [
        "hidisc: 1 of the 2 patches read so far cannot be read, more than max_bad_share = 0 allows. "
        f"Run `hidisc doctor {own}`."
    ]
    assert (ended.code, ended.result) == (2, "")
    assert not (out / EMBEDDINGS).exists()


@pytest.mark.whole
@pytest.mark.parametrize("recipe", ["byol", "vicreg"])
def test_recipes_that_share_batch_statistics(store: Path, forks: Forks, tmp_path: Path, recipe: str) -> None:
    """Two CPU devices learn what one does: the same losses, and the same running statistics in the encoder."""
    small = ("batch.images=48", "views.ops=[]", "optim.steps=4", "optim.learning_rate=1e-5", "log.min_rank=0")
    changes = (*TINY, *small, *(["objective.predictor_dim=16"] if recipe == "byol" else []))
    outs = {devices: tmp_path / devices for devices in ("1", "2")}
    for devices, out in outs.items():
        words = ("--out", str(out), "--device", "cpu", "--devices", devices, "--recipe", recipe)
        ended = forks.run("train", str(store), *words, *settings(*changes), ranks=int(devices))
        assert (ended.code, ended.said) == (0, "")
    one, two = (read_metrics(out / METRICS) for out in outs.values())
    assert [row["loss"] for row in two] == pytest.approx([row["loss"] for row in one], rel=1e-5)
    assert two[0]["grad_norm"] == pytest.approx(one[0]["grad_norm"], rel=1e-5)
    mine, its = (read_tensors(out / WEIGHTS) for out in outs.values())
    assert mine.keys() == its.keys()
    # some weights have no gradient but noise, and AdamW's steps
    for name in [name for name in mine if "running_" in name]:
        torch.testing.assert_close(its[name], mine[name], rtol=1e-5, atol=1e-5, msg=lambda text, name=name: name + text)


@pytest.mark.whole
def test_a_signal_between_two_rows_of_metrics(store: Path, forks: Forks, tmp_path: Path) -> None:
    """Ranks ask each other after every tenth batch, whether or not anything is logged."""
    out = tmp_path / "run"
    changes = (*TINY, "batch.images=48", "optim.steps=100000", "log.every=100000", "checkpoint.every=10")
    words = ("train", str(store), "--out", str(out), "--device", "cpu", "--devices", "2", *settings(*changes))
    # as a scheduler does: to everyone
    ended = forks.run(*words, at=signal_at("checkpoint.saved", sent="SIGTERM", to="group"), ranks=2)
    step = read_checkpoint(list_checkpoints(out)[-1])[0].step
    sentence = f"stopped after step {step}, which is saved: run the same command to go on.\n"
    said = [line for line in ended.said.splitlines(keepends=True) if not line.startswith("step ")]  # after some seconds
    assert (ended.code, said) == (143, [sentence])
    assert step == 20

"""Threads of a training on a CPU: the faster of one and all, the same when a run goes on, the user's where set."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from hidisc.patches.store import PatchStore
from hidisc.settings.config import load_config
from hidisc.settings.train import TrainConfig
from hidisc.training.checkpoint import list_checkpoints, read_checkpoint
from hidisc.verbs import threads as verb
from hidisc.verbs.threads import time_threads, use_threads
from tests.models.hub import make_hub
from tests.training.stores import make_store, outcome, tiny, train, train_until

SAID = "1 of 2 threads is faster for this network on this machine now"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_store(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(autouse=True)
def _two_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(verb, "_FEW_STEPS", 1)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def measured(monkeypatch: pytest.MonkeyPatch, one_s: float, all_s: float) -> None:
    monkeypatch.setattr(verb, "time_threads", lambda *_: (one_s, all_s))


def threads_of(run: Path) -> int | None:
    return read_checkpoint(list_checkpoints(run)[-1])[0].threads


@pytest.mark.parametrize(("one_s", "all_s", "threads"), [(1.0, 0.6, 2), (1.0, 0.9, 1), (1.0, 10.0, 1)])
def test_all_threads_are_used_where_they_are_clearly_faster(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one_s: float, all_s: float, threads: int
) -> None:
    measured(monkeypatch, one_s, all_s)
    said: list[str] = []
    train(store, tmp_path / "run", said=said)
    assert threads_of(tmp_path / "run") == threads
    assert (SAID in said) == (threads == 1)
    assert torch.get_num_threads() == 2


@pytest.mark.parametrize("one_is_faster_first", [True, False])
def test_a_run_goes_on_with_the_threads_it_was_begun_with(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one_is_faster_first: bool
) -> None:
    measured(monkeypatch, 1.0, 2.0 if one_is_faster_first else 0.5)
    train(store, tmp_path / "whole")
    train_until(5, monkeypatch, store, tmp_path / "run")
    measured(monkeypatch, 1.0, 0.5 if one_is_faster_first else 2.0)
    train(store, tmp_path / "run")
    assert threads_of(tmp_path / "run") == (1 if one_is_faster_first else 2)
    assert outcome(tmp_path / "run") == outcome(tmp_path / "whole")


def test_the_number_that_the_user_gives_is_used(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("measured in vain")

    monkeypatch.setattr(verb, "time_threads", refuse)
    opened, config = PatchStore.load(store), tiny()
    with use_threads(1, opened, tmp_path, config, print):
        assert torch.get_num_threads() == 1
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    with use_threads(None, opened, tmp_path, config, print):
        assert torch.get_num_threads() == 2
    monkeypatch.delenv("OMP_NUM_THREADS")
    monkeypatch.setattr(verb, "_FEW_STEPS", 100)
    with use_threads(None, opened, tmp_path, config, print):  # too short to be worth it
        assert torch.get_num_threads() == 2


def test_threads_are_timed_without_touching_random_numbers(store: Path) -> None:
    state = torch.get_rng_state()
    one_s, all_s = time_threads(PatchStore.load(store), tiny(), 2)
    assert min(one_s, all_s) > 0
    assert one_s + all_s < 20  # a second where nobody else is at work
    assert torch.equal(state, torch.get_rng_state())


def test_a_backbone_of_the_hub_is_timed_too(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_hub(tmp_path / "hub", monkeypatch).add("lab/net", "test_resnet")
    config = load_config(TrainConfig, "hidisc-patient+laptop", ["model.backbone=hf-hub:lab/net"])
    assert min(time_threads(PatchStore.load(store), config, 2)) > 0

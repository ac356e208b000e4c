"""Threads of a training on a CPU: one for a small network, the same when a run goes on, the user's where set."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from hidisc.patches.store import PatchStore
from hidisc.settings.config import load_config
from hidisc.settings.train import TrainConfig
from hidisc.training.checkpoint import list_checkpoints, read_checkpoint
from hidisc.verbs import train as verb
from hidisc.verbs.train import choose_threads
from tests.models.hub import make_hub
from tests.training.stores import make_store, outcome, tiny, train, train_until

SAID = "1 of 2 threads computes: set OMP_NUM_THREADS for another number"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_store(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(autouse=True)
def _two_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def threads_of(run: Path) -> int | None:
    return read_checkpoint(list_checkpoints(run)[-1])[0].threads


@pytest.mark.parametrize(("largest", "threads"), [(verb._SMALL, 1), (1000, 2)])
def test_a_small_network_is_computed_by_one_thread(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, largest: int, threads: int
) -> None:
    monkeypatch.setattr(verb, "_SMALL", largest)
    said: list[str] = []
    train(store, tmp_path / "run", said=said)
    assert threads_of(tmp_path / "run") == threads
    assert (SAID in said) == (threads == 1)
    assert torch.get_num_threads() == 2


def test_large_images_and_large_networks_are_computed_by_all_threads(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = tiny("model.backbone=resnet18")
    assert choose_threads(PatchStore.load(store), tmp_path, large) == 2
    monkeypatch.setattr(verb, "_SMALL_PX", 31)  # patches have 32
    assert choose_threads(PatchStore.load(store), tmp_path, tiny()) == 2


@pytest.mark.parametrize("is_small_first", [True, False])
def test_a_run_goes_on_with_the_threads_it_was_begun_with(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_small_first: bool
) -> None:
    small, large = 1_000_000, 1000
    monkeypatch.setattr(verb, "_SMALL", small if is_small_first else large)
    train(store, tmp_path / "whole")
    train_until(5, monkeypatch, store, tmp_path / "run")
    monkeypatch.setattr(verb, "_SMALL", large if is_small_first else small)
    train(store, tmp_path / "run")
    assert threads_of(tmp_path / "run") == (1 if is_small_first else 2)
    assert outcome(tmp_path / "run") == outcome(tmp_path / "whole")


def test_the_number_that_the_user_gives_is_used(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = verb.train(store, tmp_path / "given", tiny(), device="cpu", devices=1, threads=2)
    assert given is not None
    assert threads_of(tmp_path / "given") == 2
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert choose_threads(PatchStore.load(store), tmp_path / "run", tiny()) == 2


def test_threads_are_chosen_without_touching_random_numbers(store: Path, tmp_path: Path) -> None:
    state = torch.get_rng_state()
    assert choose_threads(PatchStore.load(store), tmp_path, tiny()) == 1
    assert torch.equal(state, torch.get_rng_state())


def test_threads_are_chosen_for_a_backbone_of_the_hub_too(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_hub(tmp_path / "hub", monkeypatch).add("lab/net", "test_resnet")
    config = load_config(TrainConfig, "hidisc-patient+laptop", ["model.backbone=hf-hub:lab/net"])
    assert choose_threads(PatchStore.load(store), tmp_path / "run", config) == 1

"""Checkpoints: whole or not there, few, and refused by name when they are not what they should be."""

import json
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from hidisc.ground import files
from hidisc.ground.errors import UserError
from hidisc.settings.train import CheckpointConfig
from hidisc.training.checkpoint import list_checkpoints, load_checkpoint, read_checkpoint, save_checkpoint

INFO: dict[str, Any] = {"store": "abc", "seconds": 1.5, "bad_patches": 3, "scaler": {"scale": 2.0}}


def make(width: int = 4, steps: int = 3, seed: int = 0) -> tuple[nn.Module, torch.optim.Optimizer]:
    """A small module and its optimiser after a few steps."""
    torch.manual_seed(seed)
    learner = nn.Sequential(nn.Linear(3, width), nn.BatchNorm1d(width), nn.Linear(width, 2))
    optimizer = torch.optim.AdamW(learner.parameters(), lr=0.01, weight_decay=0.3)
    for _ in range(steps):
        optimizer.zero_grad()
        learner(torch.randn(8, 3)).square().mean().backward()
        optimizer.step()
    return learner, optimizer


def save(run: Path, step: int, keep: int = 2, width: int = 4, at: tuple[int, ...] = ()) -> Path:
    return save_checkpoint(run, *make(width), CheckpointConfig(keep=keep, at=at), step=step, **INFO)


def steps_of(run: Path) -> list[int]:
    return [read_checkpoint(path)[0].step for path in list_checkpoints(run)]


def refusal(path: Path, width: int = 4) -> str:
    with pytest.raises(UserError) as caught:
        load_checkpoint(path, *make(width))
    said = str(caught.value)
    assert said.startswith(f"checkpoint {path} ")
    assert said.endswith(". Remove it to go on from the one before, or give a new --out.")
    return said.removeprefix(f"checkpoint {path} ").split(". Remove")[0]


def with_header(path: Path, **changes: Any) -> None:
    """Write a checkpoint again with other values in its header; None leaves one out."""
    info, tensors = read_checkpoint(path)
    header = {**info.model_dump(mode="json"), **changes}
    save_file(tensors, path, {"hidisc": json.dumps({k: v for k, v in header.items() if v is not None})})


def test_all_of_it_comes_back_bit_for_bit(tmp_path: Path) -> None:
    learner, optimizer = make()
    path = save_checkpoint(tmp_path, learner, optimizer, CheckpointConfig(), step=7, **INFO)
    other, its_optimizer = make(steps=1, seed=1)
    info = load_checkpoint(path, other, its_optimizer)
    assert (info.step, info.model_dump(include=set(INFO))) == (7, INFO)
    for name, value in learner.state_dict().items():
        assert torch.equal(other.state_dict()[name], value)
    old, new = optimizer.state_dict(), its_optimizer.state_dict()
    assert [{**group, "betas": tuple(group["betas"])} for group in new["param_groups"]] == old["param_groups"]
    assert {n: {k: v.tolist() for k, v in s.items()} for n, s in new["state"].items()} == {
        n: {k: v.tolist() for k, v in s.items()} for n, s in old["state"].items()
    }


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.int64, torch.bool])
def test_tensors_of_any_kind(tmp_path: Path, dtype: torch.dtype) -> None:
    learner = nn.Module()
    learner.register_buffer("values", torch.tensor([[1, 0], [3, 1]]).to(dtype).T)
    learner.register_buffer("one", torch.tensor(1).to(dtype))
    learner.weight = nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.AdamW(learner.parameters())
    path = save_checkpoint(tmp_path, learner, optimizer, CheckpointConfig(), step=1, **INFO)
    tensors = read_checkpoint(path)[1]
    assert torch.equal(tensors["learner.values"], learner.values)
    assert tensors["learner.one"].shape == ()


def test_only_the_newest_stay(tmp_path: Path) -> None:
    for step in (2, 4, 999, 1000, 20_000):
        save(tmp_path, step, keep=3)
    assert steps_of(tmp_path) == [999, 1000, 20_000]


def test_those_asked_for_stay_for_good_beside_the_newest(tmp_path: Path) -> None:
    for step in (2, 4, 999, 1000, 20_000, 20_001):
        save(tmp_path, step, keep=2, at=(2, 999, 7))
    assert steps_of(tmp_path) == [2, 999, 20_000, 20_001]
    save(tmp_path, 30_000, keep=1, at=(999,))
    assert steps_of(tmp_path) == [999, 30_000]


def test_the_old_one_goes_only_when_the_new_one_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = save(tmp_path, 2, keep=1)

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    for step in ("sync", "replace"):
        with monkeypatch.context() as patch:
            patch.setattr(*((files, "sync") if step == "sync" else (Path, "replace")), fail)
            with pytest.raises(OSError, match="No space"):
                save(tmp_path, 4, keep=1)
        assert list(old.parent.iterdir()) == [old]
        read_checkpoint(old)


def test_what_is_being_written_is_no_checkpoint(tmp_path: Path) -> None:
    whole = save(tmp_path, 2)
    for name in (".part-step-00000004.safetensors-1", "step-4.safetensors.tmp", "step-.safetensors", "step-4x.txt"):
        (whole.parent / name).write_bytes(b"half")
    assert list_checkpoints(tmp_path) == [whole]
    assert list_checkpoints(tmp_path / "nowhere") == []


@pytest.mark.parametrize("keep", [0, 4, 100, -1])
def test_truncated(tmp_path: Path, keep: int) -> None:
    path = save(tmp_path, 2)
    os.truncate(path, keep if keep >= 0 else path.stat().st_size - 1)
    assert refusal(path).startswith("is damaged (")


def test_a_flipped_bit_is_noticed_wherever_it_is(tmp_path: Path) -> None:
    path = save(tmp_path, 2)
    whole = path.read_bytes()
    tensors_begin = 8 + int.from_bytes(whole[:8], "little")
    for place in range(tensors_begin, len(whole), 13):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(UserError, match=r"is damaged \(its checksum differs\)"):
            read_checkpoint(path)
    path.write_bytes(bytes([whole[0] ^ 1]) + whole[1:])
    assert refusal(path).startswith("is damaged (")


def test_safetensors_of_somebody_else(tmp_path: Path) -> None:
    path = save(tmp_path, 2)
    save_file(load_file(path), path)
    assert refusal(path) == "was not written by hidisc"
    save_file(load_file(path), path, {"format": "pt"})
    assert refusal(path) == "was not written by hidisc"


def test_of_another_version(tmp_path: Path) -> None:
    path = save(tmp_path, 2)
    for changes in ({"format": "hidisc-checkpoint-2"}, {"momentum": 0.5}, {"seconds": None}, {"step": "two"}):
        save(tmp_path, 2)
        with_header(path, **changes)
        assert refusal(path) == "was written by another version of hidisc"
    save_file({"a": torch.zeros(1)}, path, {"hidisc": "no JSON"})
    assert refusal(path) == "was written by another version of hidisc"


def test_of_another_model(tmp_path: Path) -> None:
    assert refusal(save(tmp_path, 2, width=5), width=4) == "is of another model"


def test_of_another_optimiser(tmp_path: Path) -> None:
    path = save(tmp_path, 2)
    (group,) = read_checkpoint(path)[0].groups
    with_header(path, groups=[{**group, "params": [0, 1]}])
    assert refusal(path) == "is of another model"


def test_tensors_of_another_name(tmp_path: Path) -> None:
    path = save(tmp_path, 2)
    learner, optimizer = make()
    learner.register_buffer("more", torch.zeros(1))
    save_checkpoint(tmp_path, learner, optimizer, CheckpointConfig(), step=2, **INFO)
    assert refusal(path) == "is of another model"


class Bomb:
    """Leaves a trace when it is unpickled."""

    def __init__(self, trace: Path) -> None:
        self._trace = trace

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.write_text, (self._trace, "it ran")


@pytest.mark.parametrize("write", ["pickle", "torch.save"])
def test_a_pickle_is_refused_and_never_run(tmp_path: Path, write: str) -> None:
    path, trace = save(tmp_path, 2), tmp_path / "trace"
    if write == "pickle":
        path.write_bytes(pickle.dumps(Bomb(trace)))
    else:
        torch.save({"learner": Bomb(trace)}, path)
    assert refusal(path).startswith("is damaged (")
    assert not trace.exists()
    pickle.loads(pickle.dumps(Bomb(trace)))
    assert trace.read_text() == "it ran", "the bomb must be one"


def test_one_that_is_gone(tmp_path: Path) -> None:
    assert refusal(tmp_path / "checkpoints" / "step-00000002.safetensors").startswith("is damaged (No such file")

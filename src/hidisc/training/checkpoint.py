"""Checkpoints: all a killed run needs, as safetensors with a JSON header; nothing is unpickled.

What a step sees is a function of its number, so weights, optimiser state and that number are everything.
"""

import json
import re
import zlib
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import Field, ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from hidisc.ground.errors import UserError
from hidisc.ground.files import Record, write_atomic
from hidisc.ground.stop import reached
from hidisc.settings.train import CheckpointConfig

FOLDER = "checkpoints"
_NAME = re.compile(r"step-(\d+)\.safetensors")


class CheckpointInfo(Record):
    """The header of a checkpoint."""

    format: Literal["hidisc-checkpoint-1"] = "hidisc-checkpoint-1"
    step: int
    """Steps done."""
    store: str
    """Checksum of the table of patches that is learned from."""
    seconds: float
    """Time spent so far."""
    bad_patches: int
    """Unreadable patches met so far."""
    scaler: dict[str, float] = Field({})
    """State of float16's loss scaling."""
    threads: int | None = None
    """Threads that the run computes with on a CPU; null: not known."""
    groups: list[dict[str, Any]]
    """Settings of the optimiser's parameter groups."""
    checksum: int
    """CRC-32 of all tensors."""


def save_checkpoint(
    run: Path, learner: torch.nn.Module, optimizer: torch.optim.Optimizer, config: CheckpointConfig, **info: Any
) -> Path:
    """Write the checkpoint of a step, then remove all but the newest `config.keep` and those of steps `config.at`."""
    state = optimizer.state_dict()
    tensors = {f"learner.{name}": value for name, value in learner.state_dict().items()}
    for number, values in state["state"].items():
        tensors |= {f"optimizer.{number}.{name}": torch.as_tensor(value) for name, value in values.items()}
    tensors = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    threads = torch.get_num_threads()
    header = CheckpointInfo(groups=state["param_groups"], checksum=_checksum(tensors), threads=threads, **info)
    path = checkpoint_path(run, header.step)
    path.parent.mkdir(exist_ok=True)
    write_atomic(path, save(tensors, {"hidisc": header.model_dump_json()}))
    remove_old(run, config)
    reached("checkpoint.saved", path)
    return path


def remove_old(run: Path, config: CheckpointConfig) -> None:
    """Remove all checkpoints but the newest `config.keep` and those of steps `config.at`."""
    for old in set(list_checkpoints(run)[: -config.keep]) - {checkpoint_path(run, step) for step in config.at}:
        old.unlink()


def load_checkpoint(path: Path, learner: torch.nn.Module, optimizer: torch.optim.Optimizer) -> CheckpointInfo:
    """Put a checkpoint's state into a learner and its optimiser; a damaged or foreign file is refused."""
    info, tensors = read_checkpoint(path)
    weights = {name.removeprefix("learner."): value for name, value in tensors.items() if name.startswith("learner.")}
    state: dict[int, dict[str, Tensor]] = {}
    for name, value in tensors.items():
        if name.startswith("optimizer."):
            _, number, key = name.split(".", 2)
            state.setdefault(int(number), {})[key] = value
    try:
        learner.load_state_dict(weights)
        optimizer.load_state_dict({"state": state, "param_groups": info.groups})
    except (RuntimeError, ValueError, KeyError) as error:
        raise _refuse(path, "is of another model") from error
    return info


def read_checkpoint(path: Path) -> tuple[CheckpointInfo, dict[str, Tensor]]:
    """Header and tensors of a checkpoint, verified."""
    try:
        with safe_open(path, "pt") as file:
            header = (file.metadata() or {}).get("hidisc")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
    except (SafetensorError, OSError, ValueError) as error:
        raise _refuse(path, f"is damaged ({error})") from error
    if header is None:
        raise _refuse(path, "was not written by hidisc")
    try:
        info = CheckpointInfo.model_validate(json.loads(header))
    except (ValidationError, ValueError) as error:
        raise _refuse(path, "was written by another version of hidisc") from error
    if _checksum(tensors) != info.checksum:
        raise _refuse(path, "is damaged (its checksum differs)")
    return info, tensors


def checkpoint_path(run: Path, step: int) -> Path:
    """The file of a step's checkpoint, which need not exist."""
    return run / FOLDER / f"step-{step:08d}.safetensors"


def list_checkpoints(run: Path) -> list[Path]:
    """Checkpoints of a run, oldest first."""
    return sorted(path for path in (run / FOLDER).glob("step-*.safetensors") if _NAME.fullmatch(path.name))


def _checksum(tensors: dict[str, Tensor]) -> int:
    crc = 0
    for name in sorted(tensors):
        crc = zlib.crc32(name.encode(), crc)
        crc = zlib.crc32(tensors[name].flatten().view(torch.uint8).numpy().data, crc)
    return crc


def _refuse(path: Path, why: str) -> UserError:
    return UserError(f"checkpoint {path} {why}. Remove it to go on from the one before, or give a new --out.")

"""Whether the backbone is compiled: decided when a run begins, recorded in config.yaml, and kept when it goes on.

A compiled network differs from a plain one in the last digits, so a run is one or the other from its first step to its
last, on whatever device it goes on.
"""

from collections.abc import Callable
from importlib.util import find_spec
from os import environ
from pathlib import Path
from shutil import which

from lightning_fabric import Fabric

from hidisc.artefacts.artefact import read_settings
from hidisc.ground.errors import UserError
from hidisc.settings.train import TrainConfig

LONG_RUN_STEPS = 10_000
"""At a quarter of a second per step and a tenth of it saved, two minutes of compiling are repaid after 4,800 steps."""


def pays_to_compile(device: str, steps: int) -> bool:
    """Whether a run of so many steps on a kind of device is compiled where nobody says so."""
    return device == "cuda" and steps >= LONG_RUN_STEPS


def decide_compile(config: TrainConfig, out: Path, fabric: Fabric, say: Callable[[str], None]) -> TrainConfig:
    """The config with true or false for `compute.compile=auto`: as the run was begun, else what pays on the device."""
    if config.compute.compile != "auto":
        return config
    decided = ((read_settings(out) or {}).get("compute") or {}).get("compile")
    if not isinstance(decided, bool):
        pays = pays_to_compile(fabric.device.type, config.optim.steps)
        missing = find_missing_compiler(fabric.device.type)
        decided = pays and missing is None
        if pays and fabric.is_global_zero:
            not_compiled = f"is not compiled, which would be faster: {missing} is missing"
            say(f"compute.compile=auto: the backbone {not_compiled if missing else 'is compiled, which takes minutes'}")
    return config.model_copy(update={"compute": config.compute.model_copy(update={"compile": decided})})


def check_compiler(config: TrainConfig, device: str) -> None:
    """Refuse a run that is to be compiled where that is not possible."""
    missing = find_missing_compiler(device) if config.compute.compile is True else None
    if missing:
        raise UserError(
            f"compute.compile = true: {missing} is missing on this machine, for {device}. Install it, or train anew "
            "with --set compute.compile=false and a new --out."
        )


def find_missing_compiler(device: str) -> str | None:
    """What torch.compile lacks on this machine to compile for a kind of device, None if nothing."""
    if device == "cuda" and find_spec("triton") is None:
        return "the package triton"
    variable, *names = ("CC", "cc", "gcc", "clang") if device == "cuda" else ("CXX", "c++", "g++", "clang++")
    return None if any(map(which, [environ.get(variable, ""), *names])) else "a C++ compiler"

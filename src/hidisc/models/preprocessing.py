"""`preprocessing.json` beside an exported network: what to feed it, and what it has seen."""

import hashlib
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from hidisc.ground.checksums import hash_file
from hidisc.ground.errors import UserError
from hidisc.ground.records import Record
from hidisc.models.history import History
from hidisc.patches.inputs import InputRule

PREPROCESSING = "preprocessing.json"
PIXELS: dict[InputRule, str] = {"unit": "8-bit / 255", "srh": "srh"}
"""What `preprocessing.json` calls the rules of `patches/inputs.py`."""
BEFORE: Literal["before the network"] = "before the network"
INSIDE: Literal["inside the network"] = "inside the network"


class Preprocessing(Record):
    """`preprocessing.json`: what to feed an exported network; null: not known."""

    backbone: str | None = None
    """timm's name."""
    channels: int | None = None
    size_px: int | None = None
    """Side of the pictures."""
    mpp: float | None = None
    """Micrometres per pixel at which it learned."""
    pixels: str | None = None
    """How stored pixels become the input: `8-bit / 255`, or a rule of `patches/inputs.py`."""
    value_range: tuple[float, float] = (0, 1)
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    """One value per channel."""
    mean_and_std_are_applied: Literal["before the network", "inside the network"] = BEFORE
    features: int | None = None
    """Width of the embedding."""
    history: History | None = None
    """What the network has seen, with hashes of patients' names; null: not known."""
    weights: str | None = None
    """SHA-256 of the file of weights that all this is about."""


def read_preprocessing(folder: Path) -> Preprocessing | None:
    """`preprocessing.json` of a folder, None when there is none."""
    path = folder / PREPROCESSING
    if not path.is_file():
        return None
    try:
        return Preprocessing.model_validate_json(path.read_bytes())
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise UserError(
            f"{path} is damaged, or not what `hidisc export` writes ({where}: {first['msg']}). Correct it, or move it "
            "away and say what to feed the encoder with --set model.size_px, model.mean and model.std."
        ) from error


def hash_weights(file: Path) -> str:
    """SHA-256 of a file of weights, and of the one beside it that large ONNX files keep them in."""
    beside = file.with_name(f"{file.name}.data")
    if not beside.is_file():
        return hash_file(file)
    return hashlib.sha256(f"{hash_file(file)} {hash_file(beside)}".encode()).hexdigest()

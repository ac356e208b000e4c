"""EncoderCard: `encoder.json`, which says what the weights beside it are; reading it needs no torch."""

import json
from pathlib import Path
from typing import Any, Literal

from hidisc.artefacts.artefact import read_settings
from hidisc.ground.checksums import unseal
from hidisc.ground.errors import UserError
from hidisc.ground.records import Record
from hidisc.models.history import NOTHING, History
from hidisc.models.preprocessing import PIXELS, Preprocessing
from hidisc.patches.inputs import InputRule
from hidisc.patches.record import SlideId
from hidisc.settings.train import HeadConfig

WEIGHTS, CARD = "encoder.safetensors", "encoder.json"
BOTH = "Copy both files from one run."
"""What to do about two files that do not belong together."""


class EncoderCard(Record):
    """`encoder.json`: how to build the encoder, what to feed it and what it has seen."""

    format: Literal["hidisc-encoder-2"] = "hidisc-encoder-2"
    backbone: str
    """The architecture's name in timm's registry, so that opening an encoder asks no hub."""
    options: dict[str, Any]
    """Further arguments of the timm model, its `img_size` among them where it takes one."""
    head: HeadConfig | None
    """None: the objective had no projection."""
    channels: int
    size_px: int
    """Side of the patches learned from."""
    mpp: float | None
    """Their micrometres per pixel."""
    input: InputRule
    """How stored pixels become the input (`patches/inputs.py`); always float in [0, 1]."""
    mean: tuple[float, ...]
    std: tuple[float, ...]
    """The encoder itself subtracts the mean and divides by this; one value per channel."""
    features: int
    """Width of the embedding."""
    classes: tuple[str, ...] = ()
    """Labels a supervised run can predict, in the order of its scores."""
    history: History = NOTHING
    """What it has seen, for leakage checks."""
    weights: str = ""
    """SHA-256 of encoder.safetensors beside it."""

    def describe(self) -> Preprocessing:
        """What the backbone takes and has seen, in the words of `preprocessing.json`."""
        return Preprocessing(
            backbone=self.backbone,
            channels=self.channels,
            size_px=self.size_px,
            mpp=self.mpp,
            pixels=PIXELS[self.input],
            mean=self.mean,
            std=self.std,
            features=self.features,
            history=self.history,
        )


def read_card(folder: Path) -> EncoderCard:
    """`encoder.json` of a folder."""
    path = folder / CARD
    if not path.is_file():
        raise UserError(f"{folder} holds no encoder (no {CARD}). Give the folder of a finished `hidisc train`.")
    data = path.read_bytes()
    try:
        return _read_old(data, folder) or unseal(data, EncoderCard)
    except ValueError as error:
        raise UserError(f"{path} is damaged ({error}). {BOTH}") from error


def _read_old(data: bytes, folder: Path) -> EncoderCard | None:
    """The card of an encoder of hidisc 0.1, None of a later one.

    It does not say what the starting weights had seen. A run that started from none has config.yaml to say so.
    """
    known = json.loads(data)
    if not isinstance(known, dict) or known.pop("format", None) != "hidisc-encoder-1":
        return None
    settings = read_settings(folder) or {}
    history = History(
        slides=tuple(SlideId.model_validate(slide) for slide in known.pop("learned_from", ())),
        is_complete=settings.get("model", {"weights": "?"}).get("weights") is None,
        labels_used=tuple(known.pop("labels_used", ())),
    )
    return EncoderCard.model_validate({**known, "history": history})

"""What an encoder is and what it has seen, readable without torch: `encoder.json` and `preprocessing.json`."""

import hashlib
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from hidisc.ground.errors import UserError
from hidisc.ground.files import Record, hash_file, unseal
from hidisc.patches.record import SlideId
from hidisc.patches.store import InputRule
from hidisc.settings.train import HeadConfig

_HASHED = "sha256:"


class History(Record):
    """Slides and labels of all trainings up to now; histories compose (`then`)."""

    slides: tuple[SlideId, ...] = ()
    """Every slide that was learned from, as far as known."""
    is_complete: bool = True
    """Whether `slides` is complete: false if the training started from weights of unknown history."""
    labels_used: tuple[str, ...] = ()
    """The purposes that labels were used for; empty: none, as far as known."""
    started_from: tuple[str, ...] = ()
    """SHA-256 of the weights of every encoder that this one was made from, as far as known."""

    def after(self, *weights: str) -> "History":
        """The history of what is made from weights with these SHA-256, whose history this is."""
        return self.model_copy(
            update={"started_from": tuple(dict.fromkeys((*self.started_from, *filter(None, weights))))}
        )

    def then(self, slides: tuple[SlideId, ...], labels_used: tuple[str, ...]) -> "History":
        """This history, and a training after it."""
        return History(
            slides=tuple(dict.fromkeys((*self.slides, *slides))),
            is_complete=self.is_complete,
            labels_used=tuple(dict.fromkeys((*self.labels_used, *labels_used))),
            started_from=self.started_from,
        )

    def without_names(self) -> "History":
        """The same with hashes in place of names, for files that leave the lab; leakage checks compare these too."""
        slides = [SlideId(patient=hash_name(seen.patient), slide="", checksum=seen.checksum) for seen in self.slides]
        return self.model_copy(update={"slides": tuple(slides)})

    @property
    def patients(self) -> tuple[str, ...]:
        """The patients it has learned from; names, or hashes of names."""
        return tuple(dict.fromkeys(slide.patient for slide in self.slides))


NOTHING = History()
"""Of random weights."""
UNKNOWN = History(is_complete=False)
"""Of weights from elsewhere."""


def trust_history(history: History | None) -> History:
    """The history of weights that come without their run: an empty history counts as not known."""
    if history is None or history.slides:
        return history or UNKNOWN
    return UNKNOWN.after(*history.started_from)


def hash_name(patient: str) -> str:
    """A patient's name as it stands in files that leave the lab."""
    if patient.startswith(_HASHED):
        return patient
    return _HASHED + hashlib.sha256(patient.encode("utf-8", "surrogatepass")).hexdigest()


PREPROCESSING = "preprocessing.json"
PIXELS: dict[InputRule, str] = {"unit": "8-bit / 255", "srh": "srh"}
"""What `preprocessing.json` calls the rules by which stored pixels become the input (`patches.store.as_input`)."""
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
    """How stored pixels become the input: `8-bit / 255` or `srh`."""
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
    """SHA-256 of a file of weights, together with the `.data` file in which large ONNX files keep them."""
    beside = file.with_name(f"{file.name}.data")
    if not beside.is_file():
        return hash_file(file)
    return hashlib.sha256(f"{hash_file(file)} {hash_file(beside)}".encode()).hexdigest()


WEIGHTS, CARD = "encoder.safetensors", "encoder.json"
BOTH = "Copy both files from one run."
"""The advice when the two files do not belong together."""


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
    """The rule by which stored pixels become the input, float in [0, 1] (`patches.store.as_input`)."""
    mean: tuple[float, ...]
    std: tuple[float, ...]
    """The encoder itself subtracts `mean` and divides by `std`; one value per channel."""
    features: int
    """Width of the embedding."""
    classes: tuple[str, ...] = ()
    """Labels a supervised run can predict, in the order of its scores."""
    history: History = NOTHING
    """The slides and labels it has learned from, for leakage checks."""
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
            history=self.history.after(self.weights),
        )


def read_card(folder: Path) -> EncoderCard:
    """`encoder.json` of a folder."""
    path = folder / CARD
    if not path.is_file():
        raise UserError(f"{folder} holds no encoder (no {CARD}). Give the folder of a finished `hidisc train`.")
    data = path.read_bytes()
    if b'"hidisc-encoder-1"' in data:
        raise UserError(f"{path} is of hidisc 0.1, and encoders of this version are not read. Train again.")
    try:
        return unseal(data, EncoderCard)
    except ValueError as error:
        raise UserError(f"{path} is damaged ({error}). {BOTH}") from error

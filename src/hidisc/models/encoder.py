"""Encoder: backbone and projection head, and the two files it lives in (`encoder.safetensors`, `encoder.json`)."""

from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import ValidationError
from safetensors.torch import save
from torch import Tensor, nn

from hidisc.config import Closed
from hidisc.errors import UserError
from hidisc.models.backbone import count_features, create_backbone, read_tensors
from hidisc.models.hub import find_architecture
from hidisc.patches.inputs import InputRule
from hidisc.paths import AnyPath
from hidisc.runs import write_atomic
from hidisc.settings.training import HeadConfig

WEIGHTS, CARD = "encoder.safetensors", "encoder.json"


class LearnedSlide(Closed):
    """A slide an encoder has seen."""

    patient: str
    slide: str
    checksum: str
    """SHA-256 of the slide file."""


class EncoderCard(Closed):
    """`encoder.json`: how to build the encoder, what to feed it and what it has seen."""

    format: Literal["hidisc-encoder-1"] = "hidisc-encoder-1"
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
    """Their micrometres a pixel."""
    input: InputRule
    """How stored pixels become the input (`patches/inputs.py`); always float in [0, 1]."""
    mean: tuple[float, ...]
    std: tuple[float, ...]
    """The encoder itself subtracts the mean and divides by this, a channel each."""
    features: int
    """Width of the embedding."""
    classes: tuple[str, ...] = ()
    """Labels a supervised run can predict, in the order of its scores."""
    labels_used: tuple[str, ...] = ()
    """What labels were used for; empty: not at all."""
    learned_from: tuple[LearnedSlide, ...] = ()
    """Every slide it has seen, for leakage checks."""


class Encoder(nn.Module):
    """`features(x)` is the embedding (B, features) that is kept, `project(x)` what the loss sees (B, dim).

    x (B, C, H, W) float in [0, 1].
    """

    def __init__(self, card: EncoderCard, backbone: nn.Module) -> None:
        super().__init__()
        self.card = card
        self.backbone = backbone
        self.head = _make_head(card.features, card.head) if card.head else None
        self.classifier = nn.Linear(card.features, len(card.classes)) if card.classes else None
        self.mean: Tensor
        self.std: Tensor
        self._scale = any(card.mean) or any(value != 1 for value in card.std)
        self.register_buffer("mean", torch.tensor(card.mean)[:, None, None], persistent=False)
        self.register_buffer("std", torch.tensor(card.std)[:, None, None], persistent=False)

    def features(self, x: Tensor) -> Tensor:
        """(B, features)."""
        return self.backbone((x - self.mean) / self.std if self._scale else x)

    def project(self, x: Tensor) -> Tensor:
        """(B, dim)."""
        features = self.features(x)
        return self.head(features) if self.head is not None else features

    @property
    def dim(self) -> int:
        """Width of what the loss sees."""
        return self.card.head.dim if self.card.head else self.card.features

    def classify_features(self, features: Tensor) -> Tensor:
        """(B, classes) logits of features (B, features); only of a supervised encoder."""
        if self.classifier is None:
            raise UserError("this encoder predicts no labels. Train one with `--recipe supervised`.")
        return self.classifier(features)

    def forward(self, x: Tensor) -> Tensor:
        """The embedding."""
        return self.features(x)

    def save(self, folder: AnyPath, card: EncoderCard | None = None) -> None:
        """Write both files; the weights first, so that a card never stands without them."""
        folder = Path(folder)
        tensors = {name: value.detach().cpu().contiguous() for name, value in self.state_dict().items()}
        write_atomic(folder / WEIGHTS, save(tensors, {"format": "hidisc-encoder-1"}))
        write_atomic(folder / CARD, ((card or self.card).model_dump_json(indent=1) + "\n").encode())

    @classmethod
    def load(cls, folder: AnyPath) -> "Encoder":
        """Read an encoder back, in evaluation mode, on the CPU; nothing is unpickled."""
        folder = Path(folder)
        card = read_card(folder)
        said_by = f"{folder / CARD}: backbone"
        backbone, _ = create_backbone(card.backbone, card.channels, card.size_px, card.options, None, said_by=said_by)
        encoder = cls(card, backbone)
        state = read_tensors(folder / WEIGHTS)
        try:
            encoder.load_state_dict(state)
        except RuntimeError as error:
            raise UserError(
                f"{folder / WEIGHTS} does not fit {CARD} beside it. Copy both files from one run."
            ) from error
        return encoder.eval()


def build_encoder(
    backbone: str,
    options: dict[str, Any],
    head: HeadConfig | None,
    *,
    channels: int,
    size_px: int,
    mpp: float | None = None,
    input: InputRule = "unit",
    weights: str | None = None,
    classes: tuple[str, ...] = (),
) -> Encoder:
    """A new encoder, its random weights from torch's seed; given weights bring the mean and deviation they expect."""
    made_as = find_architecture(backbone, options)
    net, options = create_backbone(made_as.name, channels, size_px, made_as.options, weights, made_as.notes)
    mean, std = _scale_of(net, weights, channels)
    card = EncoderCard(
        backbone=made_as.name,
        options=options,
        head=head,
        channels=channels,
        size_px=size_px,
        mpp=mpp,
        input=input,
        mean=mean,
        std=std,
        features=count_features(net, channels, size_px),
        classes=classes,
    )
    return Encoder(card, net)


def _scale_of(net: nn.Module, weights: str | None, channels: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """(mean, std) a channel: none for random weights, else what the weights were trained with."""
    if weights is not None and Path(weights).name == WEIGHTS and (Path(weights).parent / CARD).is_file():
        card = read_card(Path(weights).parent)
        return card.mean, card.std
    known: dict[str, Any] = getattr(net, "pretrained_cfg", None) or {}
    if weights is not None and len(known.get("mean", ())) == channels:
        return tuple(known["mean"]), tuple(known["std"])
    return (0.0,) * channels, (1.0,) * channels


def read_card(folder: Path) -> EncoderCard:
    """`encoder.json` of a folder."""
    path = folder / CARD
    if not path.is_file():
        raise UserError(f"{folder} holds no encoder (no {CARD}). Give the folder of a finished `hidisc train`.")
    try:
        return EncoderCard.model_validate_json(path.read_bytes())
    except ValidationError as error:
        raise UserError(f"{path} is damaged or of another version of hidisc ({error.errors()[0]['msg']}).") from error


def _make_head(width: int, config: HeadConfig) -> nn.Sequential:
    """Linear layers with batch normalisation and ReLU between."""
    layers: list[nn.Module] = []
    for number in range(config.layers):
        last = number == config.layers - 1
        out = config.dim if last else config.hidden_dim
        norm = config.norm_last if last else config.norm
        layers.append(nn.Linear(width, out, bias=not norm))  # a bias before batch normalisation does nothing
        if norm:
            layers.append(nn.BatchNorm1d(out, affine=not last))
        if not last:
            layers.append(nn.ReLU(inplace=True))
        width = out
    return nn.Sequential(*layers)

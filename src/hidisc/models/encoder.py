"""Encoder: backbone and projection head, and the two files it lives in (`encoder.safetensors`, `encoder.json`)."""

import hashlib
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor, nn

from hidisc.ground.checksums import hash_file, seal
from hidisc.ground.errors import UserError
from hidisc.ground.files import write_atomic
from hidisc.ground.paths import AnyPath
from hidisc.models.backbone import count_features, create_backbone, read_tensors
from hidisc.models.card import BOTH, CARD, WEIGHTS, EncoderCard, read_card
from hidisc.models.history import NOTHING, trust_history
from hidisc.models.hub import find_architecture
from hidisc.models.preprocessing import Preprocessing, read_preprocessing
from hidisc.patches.inputs import InputRule
from hidisc.settings.train import HeadConfig


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
        data = save(tensors, {"format": "hidisc-encoder-2"})
        write_atomic(folder / WEIGHTS, data)
        bound = (card or self.card).model_copy(update={"weights": hashlib.sha256(data).hexdigest()})
        write_atomic(folder / CARD, seal(bound))

    @classmethod
    def load(cls, folder: AnyPath) -> "Encoder":
        """Read an encoder back, in evaluation mode, on the CPU; nothing is unpickled."""
        folder = Path(folder)
        card = read_card(folder)
        said_by = f"{folder / CARD}: backbone"
        backbone, _ = create_backbone(card.backbone, card.channels, card.size_px, card.options, None, said_by=said_by)
        encoder = cls(card, backbone)
        state = read_tensors(folder / WEIGHTS)
        if card.weights and hash_file(folder / WEIGHTS) != card.weights:
            raise UserError(f"{folder / WEIGHTS} is not the file that {CARD} beside it speaks of. {BOTH}")
        try:
            encoder.load_state_dict(state)
        except RuntimeError as error:
            raise UserError(f"{folder / WEIGHTS} does not fit {CARD} beside it. {BOTH}") from error
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
    mean, std, history = (0.0,) * channels, (1.0,) * channels, NOTHING
    if weights is not None:
        beside = describe_weights(Path(weights))
        of_timm: dict[str, Any] = getattr(net, "pretrained_cfg", None) or {}
        if beside.mean is not None and beside.std is not None:
            mean, std = beside.mean, beside.std
        elif len(of_timm.get("mean", ())) == channels:
            mean, std = tuple(of_timm["mean"]), tuple(of_timm["std"])
        history = trust_history(beside.history)
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
        history=history,
    )
    return Encoder(card, net)


def describe_weights(weights: Path) -> Preprocessing:
    """What the files beside weights say of them: `encoder.json`, else `preprocessing.json`; nothing without either.

    A history counts only where it is bound to this very file by its SHA-256, and so does all of `preprocessing.json`.
    """
    if weights.name == WEIGHTS and (weights.parent / CARD).is_file():
        card = read_card(weights.parent)
        is_bound = card.weights == hash_file(weights)
        return card.describe().model_copy(update={} if is_bound else {"history": None})
    exported = read_preprocessing(weights.parent) if weights.is_file() else None
    return exported if exported is not None and exported.weights == hash_file(weights) else Preprocessing()


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

"""A map of vectors: vectors of an encoder -> better ones; and its two files (`map.safetensors`, `map.json`).

A map fits the vectors of one encoder: those of another have other directions, even where they are as many.
"""

import hashlib
from pathlib import Path
from typing import Literal

import torch
from safetensors.torch import save
from torch import Tensor, nn

from hidisc.ground.errors import UserError
from hidisc.ground.files import AnyPath, Record, hash_file, seal, unseal, write_atomic
from hidisc.models.backbone import read_tensors
from hidisc.models.card import MAP_CARD, MAP_WEIGHTS, History
from hidisc.models.linear_maps import LinearMap
from hidisc.settings.train import MapKind

_BOTH = "Copy both files from one run."


class MapCard(Record):
    """`map.json`: what the map is, whose vectors it takes, and the slides that map and encoder have seen."""

    format: Literal["hidisc-map-1"] = "hidisc-map-1"
    kind: MapKind
    takes: int
    """Numbers of a vector that it takes."""
    features: int
    """Numbers of a vector that it gives."""
    layers: int = 0
    """Of an adapter."""
    hidden_dim: int = 0
    """Width between the two layers of an adapter."""
    shrinkage: float | None = None
    """How far a covariance was shrunk towards a multiple of the identity."""
    encoder: str
    """Checksum of the encoder whose vectors it takes."""
    encoder_name: str
    history: History
    """The slides and labels that the encoder and the map have learned from."""
    weights: str = ""
    """SHA-256 of map.safetensors beside it."""


class Affine(nn.Module):
    """y = A (x - mean), or x - mean; (B, D) -> (B, d)."""

    mean: Tensor
    matrix: Tensor | None

    def __init__(self, card: MapCard) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(card.takes))
        self.register_buffer("matrix", None if card.kind == "centre" else torch.zeros(card.features, card.takes))

    def forward(self, x: Tensor) -> Tensor:
        """In the precision of the map."""
        centred = x - self.mean
        return centred if self.matrix is None else centred @ self.matrix.T


class Adapter(nn.Module):
    """y = x + s f((x - mean) / s): f is one linear layer or two, the last of which begins with zeros, so that y = x.

    `mean` (D,) and `scale` s (1,), the vectors' deviation, are those of the vectors learned from, so that one learning
    rate suits the vectors of every encoder.
    """

    mean: Tensor
    scale: Tensor

    def __init__(self, card: MapCard) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(card.takes))
        self.register_buffer("scale", torch.ones(1))
        inner = [nn.Linear(card.takes, card.hidden_dim), nn.GELU()] if card.layers == 2 else []
        last = nn.Linear(card.hidden_dim if inner else card.takes, card.takes)
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
        self.layers = nn.Sequential(*inner, last)

    def forward(self, x: Tensor) -> Tensor:
        """(B, D)."""
        return x + self.scale * self.layers((x - self.mean) / self.scale)


class VectorMap(nn.Module):
    """What `models.encoder.Encoder` is for pictures: `features(x)` is kept, `project(x)` is the input of the loss."""

    keeps_statistics, note, runs_on_cpu_only = False, "", False

    def __init__(self, card: MapCard) -> None:
        super().__init__()
        self.card = card
        self.backbone: Affine | Adapter = Adapter(card) if card.kind == "adapter" else Affine(card)

    @classmethod
    def of_linear(cls, card: MapCard, made: LinearMap) -> "VectorMap":
        """A map that was made in closed form."""
        new = cls(card)
        new.backbone.mean.copy_(torch.from_numpy(made.mean))
        if made.matrix is not None:
            new.get_buffer("backbone.matrix").copy_(torch.from_numpy(made.matrix))
        return new.eval()

    def features(self, x: Tensor) -> Tensor:
        """(B, features) of vectors (B, takes)."""
        return self.backbone(x)

    project = forward = features

    def project_features(self, features: Tensor) -> Tensor:
        """The input of the loss: there is no head, the loss moves what is kept."""
        return features

    @property
    def dim(self) -> int:
        """Width of the input of the loss."""
        return self.card.features

    def save(self, folder: AnyPath, card: MapCard | None = None) -> None:
        """Write both files; the weights first, so that a card never stands without them."""
        folder = Path(folder)
        tensors = {name: value.detach().cpu().contiguous() for name, value in self.state_dict().items()}
        data = save(tensors, {"format": "hidisc-map-1"})
        write_atomic(folder / MAP_WEIGHTS, data)
        bound = (card or self.card).model_copy(update={"weights": hashlib.sha256(data).hexdigest()})
        write_atomic(folder / MAP_CARD, seal(bound))

    @classmethod
    def load(cls, folder: AnyPath) -> "VectorMap":
        """Read a map back, in evaluation mode, on the CPU; nothing is unpickled."""
        folder = Path(folder)
        try:
            card = unseal((folder / MAP_CARD).read_bytes(), MapCard)
        except ValueError as error:
            raise UserError(f"{folder / MAP_CARD} is damaged ({error}). {_BOTH}") from error
        if hash_file(folder / MAP_WEIGHTS) != card.weights:
            raise UserError(f"{folder / MAP_WEIGHTS} is not the file that {MAP_CARD} beside it speaks of. {_BOTH}")
        new = cls(card)
        try:
            new.load_state_dict(read_tensors(folder / MAP_WEIGHTS))
        except RuntimeError as error:
            raise UserError(f"{folder / MAP_WEIGHTS} does not fit {MAP_CARD} beside it. {_BOTH}") from error
        return new.eval()

"""Encoder: backbone and projection head, and the two files it lives in (`encoder.safetensors`, `encoder.json`)."""

import hashlib
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor, nn

from hidisc.artefacts.artefact import open_artefact, read_kind
from hidisc.artefacts.inputs import ANY_INPUTS, START, ExpectedInputs
from hidisc.ground.errors import UserError
from hidisc.ground.files import AnyPath, digest, hash_file, seal, write_atomic
from hidisc.models.backbone import HUB, count_features, create_backbone, find_architecture, read_tensors
from hidisc.models.card import (
    BEFORE,
    BOTH,
    CARD,
    NOTHING,
    WEIGHTS,
    EncoderCard,
    Preprocessing,
    read_card,
    read_preprocessing,
    trust_history,
)
from hidisc.patches.store import InputRule
from hidisc.settings.train import HeadConfig

_BESIDE_START = f"the description beside {START}"
"""What is fed to the weights and what they have seen, as an input."""
TIMM_WEIGHTS = "model.safetensors"
"""The weights in a timm folder."""
Scale = tuple[tuple[float, ...], tuple[float, ...]]
"""(mean, std) of the input, one value per channel."""


Images = Tensor | tuple[Tensor, ...]
"""Pictures (B, C, H, W), or views (M, V, C, H, W) of the same patches, one tensor per size."""


class Encoder(nn.Module):
    """`features(x)` is the embedding (B, features) that is kept, `project(x)` (B, dim) is the input of the loss.

    x (B, C, H, W) float in [0, 1]. Of views in several sizes, the rows of a patch come next to each other, those of
    the first size first.
    """

    def __init__(self, card: EncoderCard, backbone: nn.Module) -> None:
        super().__init__()
        self.card = card
        self.note = ""
        """A note for the user about its input; may be empty."""
        self.keeps_statistics = False
        """Whether batch normalisation in the backbone keeps its statistics in training too."""
        self.backbone = backbone
        self.head = _make_head(card.features, card.head) if card.head else None
        self.classifier = nn.Linear(card.features, len(card.classes)) if card.classes else None
        self.mean: Tensor
        self.std: Tensor
        self._scale = any(card.mean) or any(value != 1 for value in card.std)
        self.register_buffer("mean", torch.tensor(card.mean)[:, None, None], persistent=False)
        self.register_buffer("std", torch.tensor(card.std)[:, None, None], persistent=False)

    def train(self, mode: bool = True) -> "Encoder":
        """Set training or evaluation mode; batch statistics that are kept are used in both."""
        super().train(mode)
        if self.keeps_statistics:
            for module in self.backbone.modules():
                if getattr(module, "running_mean", None) is not None:
                    module.training = False
        return self

    def features(self, x: Images) -> Tensor:
        """(B, features)."""
        if isinstance(x, Tensor):
            return self.backbone((x - self.mean) / self.std if self._scale else x)
        sizes = [self.features(views.flatten(0, 1)).view(*views.shape[:2], -1) for views in x]
        return torch.cat(sizes, dim=1).flatten(0, 1)

    def project(self, x: Images) -> Tensor:
        """(B, dim)."""
        return self.project_features(self.features(x))

    def project_features(self, features: Tensor) -> Tensor:
        """(B, dim) the input of the loss, from features (B, features)."""
        return self.head(features) if self.head is not None else features

    @property
    def dim(self) -> int:
        """Width of the input of the loss."""
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
    scale: Scale | None = None,
    classes: tuple[str, ...] = (),
) -> Encoder:
    """A new encoder, its random weights from torch's seed; `scale` (mean, std) replaces that of the weights."""
    weights = find_weights(weights)
    made_as = find_architecture(backbone, options)
    net, options = create_backbone(made_as.name, channels, size_px, made_as.options, weights, made_as.notes)
    beside = describe_weights(weights)
    (mean, std), note = _choose_scale(scale, weights, beside, getattr(net, "pretrained_cfg", None) or {}, channels)
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
        history=NOTHING if weights is None else trust_history(beside.history),
    )
    encoder = Encoder(card, net)
    encoder.note = note
    return encoder


def hash_given_weights(given: str, backbone: nn.Module) -> str:
    """SHA-256 of the weights that `model.weights` names: of the file, else of the tensors of the backbone with them."""
    file = Path(str(find_weights(given)))
    return hash_file(file) if file.is_file() else hash_tensors(backbone)


def hash_tensors(net: nn.Module) -> str:
    """SHA-256 of weights that are in no file."""
    digest = hashlib.sha256()
    for name, value in sorted(net.state_dict().items()):
        digest.update(f"{name} {value.dtype} {tuple(value.shape)} ".encode())
        digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def find_weights(given: str | None) -> str | None:
    """The file that `model.weights` stands for: a folder means the encoder in it, `hub` and None stay."""
    if given is None or given == HUB or not Path(given).is_dir():
        return given
    folder = Path(given)
    if read_kind(folder) == "train":
        open_artefact(folder, "train", check=(WEIGHTS, CARD))
    for name in (WEIGHTS, TIMM_WEIGHTS):
        if (folder / name).is_file():
            return str(folder / name)
    raise UserError(
        f"model.weights = {given!r} is a folder without an encoder (no {WEIGHTS}, no {TIMM_WEIGHTS}). Give the folder "
        "of a finished `hidisc train`, one that `hidisc export --to timm` wrote, or a .safetensors file."
    )


def hash_start(given: str | None, expected: ExpectedInputs = ANY_INPUTS) -> dict[str, str]:
    """Checksums of a file of starting weights and of the description beside it; others than expected are refused.

    Nothing for random weights and those of the hub.
    """
    weights, found = find_weights(given), {}
    if weights is None:
        return {}
    if Path(weights).is_file():
        found[START] = hash_file(Path(weights))
        if (beside := describe_weights(weights)) != Preprocessing():
            found[_BESIDE_START] = digest(beside.model_dump(mode="json"))
    expected.compare(START, found.get(START), f"{START} = {given!r}")
    expected.compare(_BESIDE_START, found.get(_BESIDE_START), f"the description beside {START} = {given!r}")
    return found


def _choose_scale(
    given: Scale | None, weights: str | None, beside: Preprocessing, of_timm: dict[str, Any], channels: int
) -> tuple[Scale, str]:
    """The (mean, std) of the input, and a note for the user where they are a guess."""
    if given is not None:
        if {len(values) for values in given} != {channels}:
            raise UserError(
                f"model.mean = {list(given[0])} and model.std = {list(given[1])}: the patches have {channels} "
                "channels. Give one value of each per channel."
            )
        return given, ""
    if weights is None:
        return ((0.0,) * channels, (1.0,) * channels), ""
    if beside.mean is not None and beside.std is not None:
        return _for_channels((beside.mean, beside.std), channels), ""
    is_known = bool(of_timm.get("mean")) and (weights == HUB or len(of_timm["mean"]) == channels)
    of_weights = (tuple(of_timm["mean"]), tuple(of_timm["std"])) if is_known else ((0.0,), (1.0,))
    scale = _for_channels(of_weights, channels)
    if is_known and weights == HUB:
        return scale, ""
    used = "those of timm's own weights are used" if is_known else "pixels are fed as they are"
    return scale, (
        f"note: nothing says which mean and standard deviation the pixels had that model.weights = {weights!r} learned "
        f"from; {used} (mean {list(scale[0])}, std {list(scale[1])}). Give others with model.mean and model.std."
    )


def _for_channels(scale: Scale, channels: int) -> Scale:
    """A scale for so many channels: as it is, or the averages of its values where its weights had other channels."""
    if len(scale[0]) == channels:
        return scale
    mean, std = (sum(values) / len(values) for values in scale)
    return (mean,) * channels, (std,) * channels


def describe_weights(given: str | Path | None) -> Preprocessing:
    """The description in the file beside weights: `encoder.json`, else `preprocessing.json`; an empty one without both.

    A history counts only where it is bound to this very file by its SHA-256. A `preprocessing.json` of another file
    counts for nothing; one that names no file, as people write it, says what to feed.
    """
    found = find_weights(str(given)) if given is not None else None
    if found is None:
        return Preprocessing()
    weights = Path(found)
    if weights.name == WEIGHTS and (weights.parent / CARD).is_file():
        card = read_card(weights.parent)
        is_bound = card.weights == hash_file(weights)
        return card.describe().model_copy(update={} if is_bound else {"history": None})
    said = read_preprocessing(weights.parent) if weights.is_file() else None
    if said is None or said.mean_and_std_are_applied != BEFORE or said.weights not in (None, hash_file(weights)):
        return Preprocessing()
    return said if said.weights else said.model_copy(update={"history": None})


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


@torch.no_grad()
def effective_rank(z: Tensor) -> float:
    """How many directions z (N, D) really uses: exp(entropy of the singular values) of its first 2,048 rows.

    1 when collapsed, at most min(N, D).

    Roy and Vetterli, EUSIPCO 2007; Garrido et al., "RankMe", ICML 2023.
    """
    z = z[:2048].double() if z.device.type != "mps" else z[:2048].cpu().double()
    gram = z @ z.T if z.shape[0] <= z.shape[1] else z.T @ z
    if not torch.isfinite(gram).all():
        return float("nan")
    singular = torch.linalg.eigvalsh(gram).clamp(min=0).sqrt()
    share = singular / singular.sum().clamp(min=1e-30)
    return float(torch.special.entr(share).sum().exp())

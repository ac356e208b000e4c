"""Backbones through timm by name; weights come from safetensors files or from timm's hub, never from a pickle."""

from pathlib import Path
from typing import Any

import timm
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from hidisc.errors import UserError

HUB = "hub"
_OURS = ("in_chans", "num_classes", "pretrained", "pretrained_cfg", "pretrained_cfg_overlay", "checkpoint_path")
"""Arguments of timm that are set here, or bring weights that need not be safetensors."""


def create_backbone(
    name: str, channels: int, size_px: int, options: dict[str, Any], weights: str | None
) -> tuple[nn.Module, dict[str, Any]]:
    """A timm model (B, C, H, W) -> (B, features), random from torch's seed or with `weights`; and its options."""
    if not timm.is_model(name) and not name.startswith(("hf-hub:", "hf_hub:", "local-dir:")):
        close = timm.list_models(f"*{name.split('.')[0]}*")[:5] or timm.list_models("resnet*")[:5]
        raise UserError(f"model.backbone = {name!r} is no timm model. Near it are {', '.join(close)}.")
    ours = [option for option in _OURS if option in options]
    if ours:
        raise UserError(
            f"model.options has {ours[0]!r}, which is not yours to set: channels come from the store, weights from "
            "model.weights. Leave it out."
        )
    try:
        try:  # transformers must know the size of the picture, others do not take it
            used = {"img_size": size_px, **options}
            backbone = _create(name, channels, used, weights == HUB)
        except TypeError:
            used = options
            backbone = _create(name, channels, used, weights == HUB)
    except (TypeError, AssertionError, ValueError) as error:
        raise UserError(
            f"model.backbone = {name!r} cannot be made for {channels} channels of {size_px} px with model.options = "
            f"{options} ({error})."
        ) from error
    except (OSError, RuntimeError) as error:
        raise UserError(
            f"the weights of {name!r} cannot be fetched ({str(error).splitlines()[0]}). Download them elsewhere and "
            "give the .safetensors file as model.weights."
        ) from error
    if weights is not None and weights != HUB:
        _load_weights(backbone, Path(weights), name)
    return backbone, used


def _create(name: str, channels: int, options: dict[str, Any], pretrained: bool) -> nn.Module:
    return timm.create_model(name, pretrained=pretrained, in_chans=channels, num_classes=0, **options)


def _load_weights(backbone: nn.Module, path: Path, name: str) -> None:
    """Start from a file: an encoder of ours, or the state of the same timm model (its classifier is left out)."""
    state = {key.removeprefix("backbone."): value for key, value in read_tensors(path).items()}
    own = backbone.state_dict()
    missing = [key for key in own if key not in state]
    wrong = [key for key in own if key in state and state[key].shape != own[key].shape]
    if missing or wrong:
        raise UserError(
            f"model.weights = {str(path)!r} does not fit {name!r}: {len(missing)} of {len(own)} tensors are missing "
            f"and {len(wrong)} have another shape (first: {(missing + wrong)[0]!r}). Give the weights of this backbone "
            f"with {_channels(backbone)} input channels."
        )
    backbone.load_state_dict({key: state[key] for key in own})


def read_tensors(path: Path) -> dict[str, Tensor]:
    """All tensors of a safetensors file."""
    if not path.is_file():
        raise UserError(f"{path} does not exist. Give a .safetensors file.")
    try:
        return load_file(path)
    except (SafetensorError, ValueError, KeyError) as error:
        raise UserError(
            f"{path} is not a safetensors file, or damaged ({error}). Other formats can run code when they are opened "
            "and are not read: convert with `safetensors.torch.save_file(state_dict, ...)` where you trust the file."
        ) from error


def _channels(backbone: nn.Module) -> int:
    first = next(p for p in backbone.parameters() if p.ndim == 4)
    return int(first.shape[1])


@torch.inference_mode()
def count_features(backbone: nn.Module, channels: int, size_px: int) -> int:
    """Width of what a backbone gives for a picture."""
    was_training = backbone.training
    backbone.eval()
    try:
        width = int(backbone(torch.zeros(1, channels, size_px, size_px)).shape[-1])
    except (AssertionError, RuntimeError) as error:
        raise UserError(
            f"the backbone takes no pictures of {channels} channels and {size_px} px ({str(error).splitlines()[0]}). "
            "Change model.backbone or model.options, or prepare patches of another size."
        ) from error
    backbone.train(was_training)
    return width

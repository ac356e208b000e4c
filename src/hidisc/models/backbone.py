"""Backbones through timm by name; weights come as safetensors, from a file or from the hub, never from a pickle."""

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from hidisc.ground.errors import UserError
from hidisc.models.hub import HUB_NAMES, fetch_weights, first_line

HUB = "hub"
RGB = 3
_OURS = ("in_chans", "num_classes", "pretrained", "pretrained_cfg", "pretrained_cfg_overlay", "checkpoint_path")
"""Arguments of timm that are set here, or bring weights that need not be safetensors."""


def create_backbone(
    name: str,
    channels: int,
    size_px: int,
    options: dict[str, Any],
    weights: str | None,
    notes: dict[str, Any] | None = None,
    said_by: str = "model.backbone",
) -> tuple[nn.Module, dict[str, Any]]:
    """A timm model (B, C, H, W) -> (B, features), random from torch's seed or with `weights`; and its options.

    `name` is one of timm's registry, so that only the weights of the hub ask the network; `notes` are those of
    `hub.Architecture`, and `said_by` is where the name stands, for messages.
    """
    _refuse_name(name, said_by)
    ours = [option for option in _OURS if option in options]
    if ours:
        raise UserError(
            f"model.options has {ours[0]!r}, which is not yours to set: channels come from the store, weights from "
            "model.weights. Leave it out."
        )
    try:
        extra: dict[str, Any] = {"pretrained_cfg": notes} if notes else {}
        if weights == HUB:
            # `source` and `custom_load` would lead timm to the hub again, or to a reader of other formats
            given = {"file": fetch_weights(name, notes), "source": "", "custom_load": False}
            extra |= {"pretrained": True, "pretrained_cfg_overlay": given}
        try:  # transformers must know the size of the picture, others do not take it
            used = {"img_size": size_px, **options}
            backbone = _create(name, channels, used, extra)
        except TypeError:
            used = options
            backbone = _create(name, channels, used, extra)
    except (TypeError, AssertionError, ValueError, RuntimeError, KeyError, SafetensorError) as error:
        of_hub = " and the hub's weights" if weights == HUB else ""
        raise UserError(
            f"{said_by} = {name!r} cannot be made for {channels} channels of {size_px} px with model.options = "
            f"{options}{of_hub} ({first_line(error)})."
        ) from error
    if weights is not None and weights != HUB:
        _load_weights(backbone, Path(weights), name)
    return backbone, used


def _create(name: str, channels: int, options: dict[str, Any], extra: dict[str, Any]) -> nn.Module:
    import timm

    return timm.create_model(name, in_chans=channels, num_classes=0, **extra, **options)


def _refuse_name(name: str, said_by: str) -> None:
    """Refuse what is not in timm's registry: a folder, a name of the hub, a slip of the pen."""
    import timm

    if name.startswith("local-dir:"):
        folder = name.removeprefix("local-dir:")
        raise UserError(
            f"{said_by} = {name!r} is a folder, from which timm may read a pickle. Give the `architecture` that its "
            f"config.json names instead, and --set model.weights={folder}/model.safetensors."
        )
    if name.startswith(HUB_NAMES):
        raise UserError(
            f"{said_by} = {name!r} is a name of the hub, which is asked when an encoder is built and not when it is "
            "opened. Put the `architecture` and `model_args` of the hub's config.json in the place of the backbone "
            "and its options, or train again."
        )
    if not timm.is_model(name):
        close = timm.list_models(f"*{name.split('.')[0]}*")[:5] or timm.list_models("resnet*")[:5]
        raise UserError(f"{said_by} = {name!r} is no timm model. Near it are {', '.join(close)}.")


def _load_weights(backbone: nn.Module, path: Path, name: str) -> None:
    """Start from a file: an encoder of ours, or the state of the same timm model (its classifier is left out)."""
    state = {key.removeprefix("backbone."): value for key, value in read_tensors(path).items()}
    own = backbone.state_dict()
    _fit_channels(state, own, backbone)
    missing = [key for key in own if key not in state]
    wrong = [key for key in own if key in state and state[key].shape != own[key].shape]
    if missing or wrong:
        raise UserError(
            f"model.weights = {str(path)!r} does not fit {name!r}: {len(missing)} of {len(own)} tensors are missing "
            f"and {len(wrong)} have another shape (first: {(missing + wrong)[0]!r}). Give the weights of this backbone "
            f"with {own[_first_layer(backbone)].shape[1]} input channels."
        )
    backbone.load_state_dict({key: state[key] for key in own})


def _fit_channels(state: dict[str, Tensor], own: dict[str, Tensor], backbone: nn.Module) -> None:
    """Turn a first layer for red, green and blue into one for other channels, as timm does for weights of the hub."""
    from timm.models import adapt_input_conv

    first = _first_layer(backbone)
    given, channels = state.get(first), own[first].shape[1]
    if given is not None and given.ndim == 4 and given.shape[1] == RGB and channels != RGB:
        state[first] = adapt_input_conv(channels, given)


def count_depths(backbone: nn.Module) -> dict[str, int]:
    """For each parameter of a timm model the blocks from the head down to it, by timm's own grouping: 1 in the last."""
    from timm.models import group_parameters

    layers: dict[str, int] = group_parameters(backbone, backbone.group_matcher(coarse=False), reverse=True)  # type: ignore[operator]
    return {name: max(layers.values()) + 1 - layer for name, layer in layers.items()}


def list_tokens(backbone: nn.Module) -> set[str]:
    """Parameters of a timm model that are no vectors and need no weight decay all the same, as timm says: tokens."""
    return backbone.no_weight_decay() if hasattr(backbone, "no_weight_decay") else set()  # type: ignore[operator]


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


def _first_layer(backbone: nn.Module) -> str:
    """The name of the weights of the first convolution."""
    return next(name for name, value in backbone.named_parameters() if value.ndim == 4)


@torch.inference_mode()
def count_features(
    backbone: nn.Module,
    channels: int,
    size_px: int,
    advice: str = "Change model.backbone or model.options, or prepare patches of another size.",
) -> int:
    """Width of what a backbone gives for a picture; one that takes no such pictures is refused with the advice."""
    was_training = backbone.training
    backbone.eval()
    try:
        width = int(backbone(torch.zeros(1, channels, size_px, size_px)).shape[-1])
    except (AssertionError, RuntimeError) as error:
        raise UserError(
            f"the backbone takes no pictures of {channels} channels and {size_px} px ({first_line(error)}). {advice}"
        ) from error
    backbone.train(was_training)
    return width

"""Backbones through timm by name; weights come as safetensors, from a file or a hub, never from a pickle.

The network is asked here and nowhere else: when an encoder is built, not when it is opened; and when one is pushed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import HfApi, hf_hub_download
from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from hidisc.ground.errors import UserError

HUB_NAMES = ("hf-hub:", "hf_hub:")
"""How a name begins that stands for a model on the hub."""
_CONVERT = (
    "Convert them with `safetensors.torch.save_file(state_dict, ...)` where you trust the file, and give it as "
    "model.weights."
)


@dataclass(frozen=True)
class Architecture:
    """A network as timm builds it without asking the hub."""

    name: str
    """In timm's registry."""
    options: dict[str, Any]
    """Further arguments of the timm model."""
    notes: dict[str, Any] | None = None
    """What the hub says of its weights (timm's `pretrained_cfg`); None: what timm itself knows of the name."""


def find_architecture(name: str, options: dict[str, Any]) -> Architecture:
    """The architecture of a name: `hf-hub:owner/name` is looked up on the hub, any other name is timm's own."""
    if not name.startswith(HUB_NAMES):
        return Architecture(name, options)
    import timm

    try:
        notes, architecture, args = timm.models.load_model_config_from_hf(name.partition(":")[2])
        theirs = {key: value for key, value in args.items() if value is not None}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, AssertionError, EntryNotFoundError) as error:
        raise UserError(
            f"the description of model.backbone = {name!r} cannot be fetched ({first_line(error)}). Give the timm "
            "name of its architecture as model.backbone and its .safetensors file as model.weights."
        ) from error
    for ours in ("in_chans", "num_classes"):
        theirs.pop(ours, None)
    return Architecture(architecture, {**theirs, **options}, notes)


def fetch_weights(name: str, notes: dict[str, Any] | None) -> str:
    """The safetensors file that the hub holds for a model; without such a file, timm itself would load a pickle."""
    if notes is None:
        import timm

        known = timm.get_pretrained_cfg(name)
        notes = vars(known) if known else {}
    repo, _, revision = (notes.get("hf_hub_id") or "").partition("@")
    if not repo and notes.get("url"):
        raise UserError(
            f"timm has the weights of {name!r} as a pickle only ({notes['url']}), which can run code when it is "
            f"opened. {_CONVERT}"
        )
    if not repo:
        raise UserError(f"timm has no weights for {name!r}. Give a .safetensors file as model.weights, or null.")
    file = _safe_file(notes.get("hf_hub_filename"))
    try:
        return str(hf_hub_download(repo, file, revision=revision or None))
    except LocalEntryNotFoundError as error:
        raise _not_fetched(name, error) from error
    except EntryNotFoundError as error:
        raise UserError(
            f"the hub has the weights of {name!r} as a pickle only ({repo} holds no {file}), which can run code when "
            f"it is opened. {_CONVERT}"
        ) from error
    except (OSError, RuntimeError, ValueError) as error:
        raise _not_fetched(name, error) from error


def push_files(folder: Path, files: Sequence[str], repo: str) -> str:
    """Copy files of a folder to a repository of the hub, which is made (private) if needed; returns its address."""
    try:
        api = HfApi()
        address = api.create_repo(repo, private=True, exist_ok=True)
        api.upload_folder(
            repo_id=repo, folder_path=folder, allow_patterns=list(files), commit_message="Encoder exported by hidisc"
        )
    except Exception as error:
        raise UserError(
            f"{folder} was written, but --push {repo} failed ({first_line(error)}). Give OWNER/NAME, log in with "
            "`hf auth login`, and run the same command again."
        ) from error
    return str(address)


def _not_fetched(name: str, error: BaseException) -> UserError:
    return UserError(
        f"the weights of {name!r} cannot be fetched ({first_line(error)}). Download them elsewhere and give the "
        ".safetensors file as model.weights."
    )


def _safe_file(named: str | None) -> str:
    """The name under which the hub keeps the safetensors of a file of weights, as timm's own export writes it."""
    if not named or named == "pytorch_model.bin":
        return "model.safetensors"
    if named == "open_clip_pytorch_model.bin":
        return "open_clip_model.safetensors"
    return str(Path(named).with_suffix(".safetensors"))


def first_line(error: BaseException) -> str:
    """The first line of an error's message."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


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
    `Architecture`, and `said_by` is the setting or file that gives the name, for messages.
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
    """Refuse names that are not in timm's registry: folders, names of the hub, misspelt names."""
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
    """Adapt the weights of a first layer for red, green and blue to other channels, as timm does for the hub."""
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
    """Parameters of a timm model that timm excludes from weight decay although they are no vectors: tokens."""
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
    """Width of a backbone's output; a backbone that does not take such pictures is refused with `advice`."""
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

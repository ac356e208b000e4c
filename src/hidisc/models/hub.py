"""What the hub says of a model and holds for it: an architecture that timm builds by itself, weights as safetensors.

The network is asked here and nowhere else: when an encoder is built, not when it is opened; and when one is pushed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi, hf_hub_download
from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

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
    """What a name stands for: `hf-hub:owner/name` is looked up on the hub, any other name is timm's own."""
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
    """The safetensors file that the hub holds for a model; timm itself would go on to a pickle where there is none."""
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
    """Put files of a folder into a repository of the hub, a new private one if there is none; its address."""
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
    """What an error of a library says, without what follows."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]

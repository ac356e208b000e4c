"""Encoders made elsewhere (TorchScript, ONNX, a timm folder) as modules; the steps between patches and any encoder."""

import json
import warnings
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import timm
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hidisc.ground.errors import UserError
from hidisc.models.backbone import HUB_NAMES, create_backbone, first_line
from hidisc.models.card import Preprocessing, read_preprocessing
from hidisc.models.encoder import TIMM_WEIGHTS

TORCHSCRIPT_SUFFIXES = (".pt", ".pth", ".ts", ".torchscript")
ONNX_SUFFIX = ".onnx"
TIMM_CONFIG = "config.json"


class Prepared(nn.Module):
    """Pixels (B, C, H, W) float in [0, 1] -> (B, D) float32: resized, scaled, encoded, pooled.

    With `turns`, the vector of a picture is the mean over its eight flips and quarter turns.
    `runs_on_cpu_only` is true for a network that no `.to(device)` moves.
    """

    def __init__(
        self,
        net: nn.Module,
        size_px: int,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        *,
        turns: bool = False,
    ) -> None:
        super().__init__()
        self.net = net
        self.turns = turns
        self.size_px = size_px
        self.runs_on_cpu_only = isinstance(net, OnnxNet)
        self.mean: Tensor | None
        self.std: Tensor | None
        self.register_buffer("mean", None if mean is None else torch.tensor(mean)[:, None, None], persistent=False)
        self.register_buffer("std", None if std is None else torch.tensor(std)[:, None, None], persistent=False)

    def encode(self, x: Tensor) -> Any:
        """Whatever the network itself gives."""
        if x.shape[-2:] != (self.size_px, self.size_px):
            x = F.interpolate(x, (self.size_px, self.size_px), mode="bicubic", antialias=True).clamp(0, 1)
        if self.mean is not None:
            x = x - self.mean
        if self.std is not None:
            x = x / self.std
        return self.net(x)

    def forward(self, x: Tensor) -> Tensor:
        """One vector per picture (B, D)."""
        if not self.turns:
            return self._embed(x)
        turned = [side.rot90(quarters, (2, 3)) for side in (x, x.flip(3)) for quarters in range(4)]
        return torch.stack([self._embed(view) for view in turned]).mean(dim=0)

    def _embed(self, x: Tensor) -> Tensor:
        given = _tensors_of(self.encode(x))[0][1]
        return (given.mean(dim=(2, 3)) if given.ndim == 4 else given).float()


@torch.inference_mode()
def check_output(net: Prepared, channels: int, size_px: int, name: str) -> tuple[int, tuple[str, ...]]:
    """(D, notes on the output for the user), by encoding two grey pictures; an output without vectors is refused."""
    try:
        given = net.encode(torch.full((2, channels, size_px, size_px), 0.5))
    except _errors_of_running() as error:
        raise UserError(
            f"{name} takes no pictures of {channels} channels and {net.size_px} px ({_last_line(error)}). Give the "
            "side it takes with --set model.size_px=224, or a store with its channels."
        ) from error
    tensors = _tensors_of(given)
    if not tensors:
        raise UserError(
            f"{name} returns {type(given).__name__}, not a tensor. Export it so that it returns (B, D), one vector per "
            "picture."
        )
    key, first = tensors[0]
    shape = tuple(first.shape)
    is_map = first.ndim == 4 and shape[2] == shape[3]  # pictures are square, so a map that is not is something else
    if first.ndim == 3:
        raise UserError(
            f"{name} returns tokens {shape}, and which of them stand for the picture is not known. Export it so that "
            "it returns (B, D): the class token, or the mean of the others."
        )
    if (first.ndim != 2 and not is_map) or shape[0] != 2 or not shape[1]:
        raise UserError(
            f"{name} returns {shape} for a batch of 2, not one vector per picture. Export it so that it returns (B, D) "
            "for any B."
        )
    notes = []
    if len(tensors) > 1:
        notes.append(f"it returns {len(tensors)} outputs, of which the first ({key}) is kept")
    if is_map:
        notes.append(f"it returns maps of {shape[2]} x {shape[3]}, which are averaged")
    return shape[1], tuple(notes)


def _tensors_of(given: Any, key: str = "0") -> list[tuple[str, Tensor]]:
    """The tensors in the output of a network, each with its key or position."""
    if isinstance(given, Tensor):
        return [(key, given)]
    if isinstance(given, Mapping):
        return [pair for name, value in given.items() for pair in _tensors_of(value, str(name))]
    if isinstance(given, list | tuple):
        return [pair for index, value in enumerate(given) for pair in _tensors_of(value, str(index))]
    return []


class TorchScriptNet(nn.Module):
    """A TorchScript file; read anew for the device of its input, because frozen weights cannot be moved.

    A TorchScript file is a program, though one that cannot reach Python or the file system: nothing is unpickled by
    Python, but what it computes is for its author to answer for.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        _refuse_pickled(path)
        self.path = path
        self.on = torch.device("cpu")
        try:
            self.net = _load_script(path, self.on)
        except (RuntimeError, ValueError) as error:
            raise UserError(f"{path} is a damaged TorchScript file ({first_line(error)}).") from error

    def forward(self, x: Tensor) -> Any:
        """Whatever the file's program gives."""
        if x.device != self.on:
            self.net, self.on = _load_script(self.path, x.device), x.device
        return self.net(x)


def _load_script(path: Path, device: torch.device) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TorchScript is deprecated, and what many tools write
        net: nn.Module = torch.jit.load(str(path), map_location=device)  # type: ignore[no-untyped-call]
    return net.eval()


def _refuse_pickled(path: Path) -> None:
    """Refuse all but TorchScript, which is a zip with `code` in it; a zip without, or no zip, is a pickle."""
    if path.stat().st_size == 0:
        raise UserError(f"{path} is empty. Copy it again.")
    with path.open("rb") as file:
        zipped = file.read(2) == b"PK"
    if zipped and not zipfile.is_zipfile(path):
        raise UserError(f"{path} is cut short or damaged. Copy it again.")
    if zipped:
        with zipfile.ZipFile(path) as archive:
            if any("/code/" in name for name in archive.namelist()):
                return
    raise UserError(
        f"{path} is a pickled checkpoint, which can run code when it is opened, and is not read. Convert it where you "
        "trust it: to TorchScript with `torch.jit.save(torch.jit.trace(model, images), ...)`, or its state dict with "
        "`safetensors.torch.save_file(...)` for `timm:NAME --set model.weights=FILE`."
    )


class OnnxNet(nn.Module):
    """An ONNX file, run by onnxruntime on the CPU wherever its input is; a fixed batch size is filled up."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3  # its warnings are about the machine's devices
        options.intra_op_num_threads = torch.get_num_threads()
        try:
            self.session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        except _runtime_errors() as error:
            raise UserError(f"{path} is not an ONNX file that can be run ({_last_words(error)}).") from error
        inputs = self.session.get_inputs()
        if len(inputs) != 1:
            names = ", ".join(taken.name for taken in inputs)
            raise UserError(
                f"{path} has {len(inputs)} inputs ({names or 'none'}). Export it with one: pictures (B, C, H, W)."
            )
        (taken,) = inputs
        self.shape: tuple[int | None, ...] = tuple(size if isinstance(size, int) else None for size in taken.shape)
        """Of the input; None: any size."""
        if taken.type not in _ONNX_TYPES or len(self.shape) != 4:
            raise UserError(
                f"{path} takes {taken.type} of shape {list(taken.shape)}. Export it for floats of shape (B, C, H, W)."
            )
        self.dtype = _ONNX_TYPES[taken.type]
        self.input = taken.name
        self.outputs = tuple(given.name for given in self.session.get_outputs())

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        """Outputs by name, on the device of x."""
        images = x.detach().to("cpu", torch.float32).numpy().astype(self.dtype, copy=False)
        pieces = [self._run(piece) for piece in _split(images, self.shape[0])]
        joined = (np.concatenate(of_one)[: len(images)] for of_one in zip(*pieces, strict=True))
        return {name: torch.from_numpy(values).to(x.device) for name, values in zip(self.outputs, joined, strict=True)}

    def _run(self, images: np.ndarray[Any, Any]) -> list[np.ndarray[Any, Any]]:
        return [np.atleast_1d(values) for values in self.session.run(None, {self.input: images})]


_ONNX_TYPES = {"tensor(float)": np.float32, "tensor(float16)": np.float16, "tensor(double)": np.float64}


def _split(images: np.ndarray[Any, Any], batch: int | None) -> Iterator[np.ndarray[Any, Any]]:
    """Pictures in pieces of a fixed size; the last piece is filled up with its last picture. None: one piece."""
    if batch is None:
        yield images
        return
    for start in range(0, len(images), batch):
        piece = images[start : start + batch]
        missing = batch - len(piece)
        yield np.concatenate([piece, piece[-1:].repeat(missing, axis=0)]) if missing else piece


def _errors_of_running() -> tuple[type[Exception], ...]:
    """The exceptions of a network that cannot take its input."""
    return (AssertionError, AttributeError, IndexError, RuntimeError, TypeError, ValueError, *_runtime_errors())


def _runtime_errors() -> tuple[type[Exception], ...]:
    """The exceptions of onnxruntime, which have no common base class."""
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    return tuple(kind for kind in vars(state).values() if isinstance(kind, type) and issubclass(kind, Exception))


def _last_words(error: BaseException) -> str:
    """The end of a message of onnxruntime, which begins with codes and paths."""
    return first_line(error).rpartition(" : ")[2].rpartition("failed:")[2]


def _last_line(error: BaseException) -> str:
    """The last line of a message of TorchScript, which begins with a traceback."""
    return (str(error).strip() or type(error).__name__).splitlines()[-1]


def size_of_timm(name: str) -> int | None:
    """Side of the pictures that timm's weights of this name learned from, None when timm does not say."""
    try:
        if name.startswith(HUB_NAMES):
            known: dict[str, Any] = timm.models.load_model_config_from_hf(name.partition(":")[2])[0]
        else:
            weights = timm.get_pretrained_cfg(name) if timm.is_model(name) else None
            known = {"input_size": weights.input_size} if weights else {}
        return int(known["input_size"][-1])
    except (OSError, RuntimeError, ValueError, KeyError, AssertionError):
        return None  # `create_backbone` says what is wrong with the name or the network


def open_timm_folder(folder: Path) -> tuple[nn.Module, Preprocessing]:
    """The network (B, C, H, W) -> (B, D) in a timm folder (`config.json`, `model.safetensors`), and what to feed it.

    `preprocessing.json` counts before config.json. Nothing is unpickled, as timm itself might.
    """
    path = folder / TIMM_CONFIG
    try:
        config = json.loads(path.read_bytes())
        name, args = str(config["architecture"]), dict(config.get("model_args") or {})
        known = dict(config.get("pretrained_cfg") or {})
        channels = int(args.pop("in_chans", None) or (known.get("input_size") or [3])[0])
        size_px = int((known.get("input_size") or [224])[-1])
        mean, std = known.get("mean"), known.get("std")
        args.pop("num_classes", None)
        fed = Preprocessing(backbone=name, channels=channels, size_px=size_px, mean=mean, std=std)
    except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
        raise UserError(f"{path} is missing, damaged or not a timm model's ({error!r}).") from error
    fed = read_preprocessing(folder) or fed
    weights = str(folder / TIMM_WEIGHTS)
    net, _ = create_backbone(name, channels, fed.size_px or size_px, args, weights, said_by=f"{path}: architecture")
    return net, fed

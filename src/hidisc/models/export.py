"""An encoder as other tools read it: a timm folder, ONNX or TorchScript; each is read back and compared."""

import json
import logging
import warnings
from pathlib import Path
from typing import Any, Literal

import numpy as np
import timm
import torch
from safetensors.torch import save
from torch import Tensor

from hidisc.errors import UserError
from hidisc.models.encoder import Encoder
from hidisc.runs import beside, write_atomic

Target = Literal["timm", "onnx", "torchscript"]
PREPROCESSING = "preprocessing.json"
FILES: dict[Target, str] = {"timm": "model.safetensors", "onnx": "encoder.onnx", "torchscript": "encoder.pt"}
_CLOSE = 1e-4


def export_encoder(encoder: Encoder, out: Path, to: Target) -> float:
    """Write the backbone to a folder; the largest difference of its embeddings from ours, relative to their size."""
    encoder = encoder.eval()
    write = {"timm": _to_timm, "onnx": _to_onnx, "torchscript": _to_torchscript}[to]
    card = encoder.card
    x = torch.rand(3, card.channels, card.size_px, card.size_px, generator=torch.Generator().manual_seed(0))
    write(encoder, out, x)
    write_atomic(out / PREPROCESSING, (json.dumps(_preprocessing(encoder, to), indent=1) + "\n").encode())
    with torch.inference_mode():
        ours = encoder.features(x)
        theirs = run_exported(out, to, x)
    difference = float((ours - theirs).abs().max() / ours.abs().max().clamp(min=1e-6))
    if not difference <= _CLOSE:
        raise UserError(
            f"the exported {out / FILES[to]} gives other embeddings than the encoder (relative difference "
            f"{difference:.1g}, at most {_CLOSE:g} is rounding). Try another format."
        )
    return difference


def run_exported(folder: Path, to: Target, x: Tensor) -> Tensor:
    """Embeddings (B, features) of x (B, C, H, W) in [0, 1] by what `export_encoder` wrote."""
    if to == "onnx":
        import onnxruntime

        session = onnxruntime.InferenceSession(str(folder / FILES[to]), providers=["CPUExecutionProvider"])
        found: Any = session.run(None, {"images": x.numpy()})[0]
        return torch.from_numpy(np.asarray(found))
    if to == "torchscript":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # TorchScript is deprecated, and what many tools read
            return torch.jit.load(str(folder / FILES[to]))(x)  # type: ignore[no-untyped-call]
    model = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    known = json.loads((folder / PREPROCESSING).read_text(encoding="utf-8"))
    mean, std = (torch.tensor(known[name])[:, None, None] for name in ("mean", "std"))
    return model((x - mean) / std)


def _to_timm(encoder: Encoder, out: Path, x: Tensor) -> None:
    """A folder for `timm.create_model("local-dir:FOLDER", pretrained=True)`."""
    card = encoder.card
    config = {
        "architecture": card.backbone,
        "num_classes": 0,
        "num_features": card.features,
        "model_args": {**card.options, "in_chans": card.channels},
        "pretrained_cfg": {
            "input_size": [card.channels, card.size_px, card.size_px],
            "mean": list(card.mean),
            "std": list(card.std),
            "num_classes": 0,
        },
    }
    state = {name: value.contiguous() for name, value in encoder.backbone.state_dict().items()}
    write_atomic(out / FILES["timm"], save(state, {"format": "pt"}))
    write_atomic(out / "config.json", (json.dumps(config, indent=1) + "\n").encode())


def _to_onnx(encoder: Encoder, out: Path, x: Tensor) -> None:
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            encoder,
            (x,),
            input_names=["images"],
            output_names=["features"],
            dynamic_shapes={"x": {0: torch.export.Dim("batch")}},
            dynamo=True,
            verbose=False,
        )
    if program is None:
        raise UserError(f"{encoder.card.backbone!r} cannot be written as ONNX. Try --to torchscript.")
    write_atomic(out / FILES["onnx"], program.model_proto.SerializeToString())


def _to_torchscript(encoder: Encoder, out: Path, x: Tensor) -> None:
    part = beside(out / FILES["torchscript"])
    with warnings.catch_warnings(), torch.inference_mode():
        warnings.simplefilter("ignore")
        traced: Any = torch.jit.trace(encoder, x)  # type: ignore[no-untyped-call]
        torch.jit.save(torch.jit.freeze(traced), str(part))
    part.replace(out / FILES["torchscript"])


def _preprocessing(encoder: Encoder, to: Target) -> dict[str, Any]:
    """What to feed the exported network."""
    card = encoder.card
    return {
        "backbone": card.backbone,
        "channels": card.channels,
        "size_px": card.size_px,
        "mpp": card.mpp,
        "pixels": "8-bit / 255" if card.input == "unit" else card.input,
        "value_range": [0, 1],
        "mean": list(card.mean),
        "std": list(card.std),
        "mean_and_std_are_applied": "before the network" if to == "timm" else "inside the network",
        "features": card.features,
    }

"""An encoder as other tools read it (timm, ONNX, TorchScript, torch.export, WSInfer), read back and compared.

`preprocessing.json` beside it says what to feed it; `models/foreign.py` runs TorchScript and ONNX of any origin.
WSInfer, and so QuPath, wants TorchScript with a linear classifier and `config.json` (spec 1.0).
"""

import json
import logging
import warnings
from pathlib import Path
from typing import Any, Literal

import timm
import torch
from safetensors.torch import save
from torch import Tensor, nn

from hidisc.ground.errors import UserError
from hidisc.ground.files import beside, replaced, write_atomic
from hidisc.ground.seeds import Purpose, make_seed
from hidisc.models.card import BEFORE, INSIDE, PREPROCESSING, Preprocessing, hash_weights, read_preprocessing
from hidisc.models.encoder import TIMM_WEIGHTS, Encoder
from hidisc.models.foreign import TIMM_CONFIG, OnnxNet, TorchScriptNet

Target = Literal["timm", "onnx", "torchscript", "exported"]
FILES: dict[Target, str] = {
    "timm": TIMM_WEIGHTS,
    "onnx": "encoder.onnx",
    "torchscript": "encoder.pt",
    "exported": "encoder.pt2",
}
_CLOSE = 1e-4
_WRITTEN_BY_TORCH = ("version", "byteorder", ".data/serialization_id")
"""Records of a file of TorchScript that the writer adds by itself."""


def export_encoder(encoder: Encoder, out: Path, to: Target) -> float:
    """Write the backbone to a folder; the largest difference of its embeddings from ours, relative to their size."""
    encoder = encoder.eval()
    write = {"timm": _to_timm, "onnx": _to_onnx, "torchscript": save_script, "exported": _to_exported}[to]
    card = encoder.card
    write(encoder, draw_pictures(encoder), out / FILES[to])
    preprocessing = card.describe().model_copy(
        update={
            "mean_and_std_are_applied": BEFORE if to == "timm" else INSIDE,
            "history": card.history.after(card.weights).without_names(),
            "weights": hash_weights(out / FILES[to]),
        }
    )
    write_atomic(out / PREPROCESSING, (preprocessing.model_dump_json(indent=1) + "\n").encode())
    return compare_exported(encoder, out, to)


def compare_exported(encoder: Encoder, out: Path, to: Target) -> float:
    """The largest difference of an exported encoder's embeddings from ours; more than rounding is refused."""
    x = draw_pictures(encoder)
    with torch.inference_mode():
        ours = encoder.eval().features(x)
        theirs = run_exported(out, to, x)
    difference = float((ours - theirs).abs().max() / ours.abs().max().clamp(min=1e-6))
    if not difference <= _CLOSE:
        raise UserError(
            f"the exported {out / FILES[to]} gives other embeddings than the encoder (relative difference "
            f"{difference:.1g}, at most {_CLOSE:g} is rounding). Try another format."
        )
    return difference


def draw_pictures(encoder: Encoder) -> Tensor:
    """(3, C, H, W) in [0, 1], to compare an export with."""
    card, generator = encoder.card, torch.Generator().manual_seed(make_seed(0, Purpose.EXPORT_CHECK))
    return torch.rand(3, card.channels, card.size_px, card.size_px, generator=generator)


def run_exported(folder: Path, to: Target, x: Tensor) -> Tensor:
    """Embeddings (B, features) of x (B, C, H, W) in [0, 1] by the files that `export_encoder` wrote."""
    if to == "onnx":
        return OnnxNet(folder / FILES[to])(x)["features"]
    if to == "torchscript":
        return TorchScriptNet(folder / FILES[to])(x)
    if to == "exported":
        embeddings: Tensor = torch.export.load(folder / FILES[to]).module()(x)
        return embeddings
    model = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    known = read_preprocessing(folder) or Preprocessing()
    mean, std = (torch.tensor(values)[:, None, None] for values in (known.mean, known.std))
    return model((x - mean) / std)


def _to_timm(encoder: Encoder, x: Tensor, path: Path) -> None:
    """The weights and `config.json`, for `timm.create_model("local-dir:FOLDER", pretrained=True)`."""
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
            "interpolation": "bicubic",
            "crop_pct": 1.0,  # patches are seen whole; timm's own default cuts an eighth off
            "num_classes": 0,
        },
    }
    state = {name: value.contiguous() for name, value in encoder.backbone.state_dict().items()}
    write_atomic(path, save(state, {"format": "pt"}))
    write_atomic(path.with_name(TIMM_CONFIG), (json.dumps(config, indent=1) + "\n").encode())


def _to_onnx(encoder: Encoder, x: Tensor, path: Path) -> None:
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
    proto = program.model_proto
    for node in proto.graph.node:  # they hold lines of source with the folders of this machine
        del node.metadata_props[:]
    write_atomic(path, proto.SerializeToString())


def save_script(network: nn.Module, x: Tensor, path: Path) -> None:
    """Write a network as TorchScript, traced with x, without the lines of source that torch adds for debugging.

    These hold the folders of this machine, and so perhaps the name of whoever uses it.
    """
    traced_to = beside(path)
    try:
        with warnings.catch_warnings(), torch.inference_mode():
            warnings.simplefilter("ignore")  # TorchScript is deprecated, and what many tools read
            traced: Any = torch.jit.trace(network, x)  # type: ignore[no-untyped-call]
            torch.jit.save(torch.jit.freeze(traced), str(traced_to))
        reader = torch._C.PyTorchFileReader(str(traced_to))
        with replaced(path) as part, part.open("wb") as file:
            writer = torch._C.PyTorchFileWriter(file)
            for name in reader.get_all_records():
                if name not in _WRITTEN_BY_TORCH and not name.endswith(".debug_pkl"):
                    data = reader.get_record(name)
                    writer.write_record(name, data, len(data))
            writer.write_end_of_file()
    finally:
        traced_to.unlink(missing_ok=True)


def _to_exported(encoder: Encoder, x: Tensor, path: Path) -> None:
    """The successor of TorchScript, for `torch.export.load(FILE).module()`; any batch size."""
    program = torch.export.export(encoder, (x,), dynamic_shapes={"x": {0: torch.export.Dim("batch")}})
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # with the folders of this machine
    with replaced(path) as part, part.open("wb") as file:
        torch.export.save(program, file)


SCRIPT, CONFIG = "torchscript_model.pt", "config.json"
_NEVER = -1e4
"""Logit of a class that the classifier does not know."""


class EncoderWithClassifier(nn.Module):
    """Logits (B, L) of pictures (B, C, H, W) whose mean and standard deviation were applied before."""

    def __init__(self, encoder: Encoder, weights: Tensor, biases: Tensor) -> None:
        super().__init__()
        self.backbone = encoder.backbone
        self.classifier = nn.Linear(weights.shape[1], len(weights))
        with torch.no_grad():
            self.classifier.weight.copy_(weights)
            self.classifier.bias.copy_(biases)

    def forward(self, x: Tensor) -> Tensor:
        """The logits, of which WSInfer takes the softmax."""
        logits: Tensor = self.classifier(self.backbone(x))
        return logits


def fill_classes(weights: Tensor, biases: Tensor, present: Any, classes: int) -> tuple[Tensor, Tensor]:
    """A linear layer of the classes `present` (codes) as a layer of all classes; the added ones are never predicted."""
    full, bias = torch.zeros(classes, weights.shape[1], dtype=weights.dtype), torch.full((classes,), _NEVER)
    full[present], bias[present] = weights, biases.to(bias.dtype)
    return full, bias


def write_wsinfer(
    encoder: Encoder, layer: tuple[Tensor, Tensor], classes: tuple[str, ...], size_px: int, mpp: float, out: Path
) -> None:
    """Write both files; `size_px` and `mpp`: of the patches that are cut and then resized to the encoder's input."""
    card = encoder.card
    model = EncoderWithClassifier(encoder.eval(), *layer).eval()
    save_script(model, torch.rand(2, card.channels, card.size_px, card.size_px), out / SCRIPT)
    config = {
        "spec_version": "1.0",
        "architecture": card.backbone,
        "num_classes": len(classes),
        "class_names": list(classes),
        "patch_size_pixels": size_px,
        "spacing_um_px": mpp,
        "transform": [
            {"name": "Resize", "arguments": {"size": card.size_px}},
            {"name": "ToTensor"},
            {"name": "Normalize", "arguments": {"mean": list(card.mean), "std": list(card.std)}},
        ],
    }
    write_atomic(out / CONFIG, (json.dumps(config, indent=1) + "\n").encode())


def run_wsinfer(folder: Path, x: Tensor) -> Tensor:
    """Probabilities (B, L) of x (B, C, H, W) in [0, 1], as WSInfer reads what `write_wsinfer` wrote."""
    config = json.loads((folder / CONFIG).read_bytes())
    known = config["transform"][-1]["arguments"]
    mean, std = (torch.tensor(known[name])[:, None, None] for name in ("mean", "std"))
    logits: Tensor = TorchScriptNet(folder / SCRIPT)((x - mean) / std)
    return logits.softmax(dim=1)

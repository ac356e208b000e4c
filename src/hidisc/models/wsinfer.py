"""An encoder with a linear classifier as WSInfer, and so QuPath, runs it: TorchScript and `config.json` (spec 1.0)."""

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hidisc.ground.files import write_atomic
from hidisc.models.encoder import Encoder
from hidisc.models.export import save_script
from hidisc.models.foreign import TorchScriptNet

SCRIPT, CONFIG = "torchscript_model.pt", "config.json"
_NEVER = -1e4
"""Logit of a class that the classifier does not know."""


class PatchClassifier(nn.Module):
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
    """The layer of some classes (codes `present`) as one of all classes; the others are never predicted."""
    full, bias = torch.zeros(classes, weights.shape[1], dtype=weights.dtype), torch.full((classes,), _NEVER)
    full[present], bias[present] = weights, biases.to(bias.dtype)
    return full, bias


def write_wsinfer(
    encoder: Encoder, layer: tuple[Tensor, Tensor], classes: tuple[str, ...], size_px: int, mpp: float, out: Path
) -> None:
    """Write both files; `size_px` and `mpp`: of the patches that are cut and then resized to the encoder's input."""
    card = encoder.card
    model = PatchClassifier(encoder.eval(), *layer).eval()
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

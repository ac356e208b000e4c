"""Evaluate someone else's encoder by the same protocol as your own, beside an untrained network.

    python examples/judge_a_foreign_encoder.py [STORE ENCODER]

ENCODER is anything that `hidisc embed` takes: a TorchScript or ONNX file, or `timm:NAME`. Without arguments a small
cohort is drawn, and the encoder is a TorchScript file that sees only the mean colours of a patch; an encoder that beats
it has learned more than the stain. Writes the folder `judged`; takes a minute on a CPU.
"""

import sys
import warnings
from pathlib import Path

import torch
from torch import Tensor, nn

from hidisc import (
    EvaluateConfig,
    PrepareConfig,
    ReportConfig,
    draw_cohort,
    embed,
    evaluate,
    load_config,
    prepare,
    report,
)

OUT = Path("judged")
PREPARE = load_config(PrepareConfig, None, ["grid.size_px=48", "split.fractions={train: 0.5, test: 0.5}"])
EVALUATE = load_config(EvaluateConfig, None, ["probes=[knn]", "knn.k=20"])  # few reference patches, so few neighbours


class Colours(nn.Module):
    """(B, 3, H, W) in [0, 1] -> (B, 6): mean and standard deviation of each colour."""

    def forward(self, x: Tensor) -> Tensor:
        """Describe a patch by its colours alone."""
        return torch.cat([x.mean(dim=(2, 3)), x.std(dim=(2, 3))], dim=1)


def draw_store() -> Path:
    """A store of drawn slides: 24 patients, four diagnoses, 48 px patches, half of the patients held out."""
    prepare(draw_cohort(OUT / "cohort", patients=24, slides=2, fields=8), OUT / "store", PREPARE, workers=0)
    return OUT / "store"


def write_encoder() -> str:
    """Write an encoder as a TorchScript file, as others may give you one."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TorchScript is deprecated, but many tools write it
        traced = torch.jit.trace(Colours(), torch.rand(2, 3, 48, 48))  # type: ignore[no-untyped-call]
        traced.save(str(OUT / "colours.pt"))
    return str(OUT / "colours.pt")


def main() -> None:
    """Embed, evaluate and report both encoders."""
    store, encoder = (Path(sys.argv[1]), sys.argv[2]) if len(sys.argv) > 2 else (draw_store(), write_encoder())
    OUT.mkdir(exist_ok=True)
    scores = []
    for name, model in {"foreign": encoder, "untrained": "timm:test_resnet"}.items():
        embed(store, model, OUT / f"embeddings-{name}", name=name, say=print, shown=False)
        evaluated = evaluate(OUT / f"embeddings-{name}", OUT / f"scores-{name}", EVALUATE)
        print(evaluated.verdict())
        for diagnostic in evaluated.info.diagnostics:
            if diagnostic.name in ("neighbour of the same patient", "neighbour of the same site"):
                print(f"  {diagnostic.meaning}")
        scores.append(evaluated.path)
    page = report(scores, OUT / "report.html", ReportConfig(points=500))
    print(f"open {page} in a browser")


if __name__ == "__main__":
    main()

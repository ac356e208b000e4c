"""Judge someone else's encoder by the protocol that yours is judged by, side by side with untrained weights.

    python examples/judge_a_foreign_encoder.py [STORE ENCODER]

ENCODER is anything `hidisc embed` takes: a TorchScript or ONNX file, or `timm:NAME`. Without arguments a small cohort
is drawn, and the encoder is a TorchScript file that knows nothing but the mean colours of a patch: one that beats it
sees more than the stain. Writes `judged/`; a minute on a CPU.
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
EVALUATE = load_config(EvaluateConfig, None, ["probes=[knn]", "knn.k=20"])  # a small bank, a few neighbours


class Colours(nn.Module):
    """(B, 3, H, W) in [0, 1] -> (B, 6): mean and standard deviation of each colour."""

    def forward(self, x: Tensor) -> Tensor:
        """What a glance at the stain tells."""
        return torch.cat([x.mean(dim=(2, 3)), x.std(dim=(2, 3))], dim=1)


def draw_store() -> Path:
    """A store of drawn slides: 24 patients, four diagnoses, 48 px patches, half of the patients held out."""
    prepare(draw_cohort(OUT / "cohort", patients=24, slides=2, fields=8), OUT / "store", PREPARE, workers=0)
    return OUT / "store"


def write_encoder() -> str:
    """A TorchScript file, as others may hand you one."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TorchScript is deprecated, and what many tools write
        traced = torch.jit.trace(Colours(), torch.rand(2, 3, 48, 48))  # type: ignore[no-untyped-call]
        traced.save(str(OUT / "colours.pt"))
    return str(OUT / "colours.pt")


def main() -> None:
    """Embed, evaluate, report."""
    store, encoder = (Path(sys.argv[1]), sys.argv[2]) if len(sys.argv) > 2 else (draw_store(), write_encoder())
    OUT.mkdir(exist_ok=True)
    scores = []
    for name, model in {"foreign": encoder, "untrained": "timm:test_resnet"}.items():
        embed(store, model, OUT / f"embeddings-{name}", name=name, say=print, shown=False)
        judged = evaluate(OUT / f"embeddings-{name}", OUT / f"scores-{name}", EVALUATE, shown=False)
        print(judged.verdict())
        for found in judged.info.diagnostics:
            if found.name in ("neighbour of the same patient", "neighbour of the same site"):
                print(f"  {found.meaning}")
        scores.append(judged.path)
    page = report(scores, OUT / "report.html", ReportConfig(points=500))
    print(f"open {page} in a browser")


if __name__ == "__main__":
    main()

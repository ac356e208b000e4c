"""What `hidisc benchmark --folds` costs beside the trainings it consists of.

    python bench/folds.py

One row, three folds, 400 steps of 64 at 48 px, one after the other on one thread: the whole command (planning, cutting
the patients, embedding, judging by neighbours, pooling, the page) against the sum of the seconds that its trainings
have measured themselves.
"""

import tempfile
import time
from pathlib import Path

import torch

from harness import Claim
from hidisc.benchmarking.benchmark import benchmark
from hidisc.settings.benchmark import SuiteConfig
from hidisc.settings.prepare import GridConfig, PrepareConfig
from hidisc.slides.synthetic import draw_cohort
from hidisc.training.run import Run
from hidisc.verbs.prepare import prepare

SIZE_PX = 48


def claims() -> list[Claim]:
    """The claim of this file."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        cohort = draw_cohort(folder / "drawn", patients=12, slides=2, fields=12, field_px=SIZE_PX, seed=0)
        prepare(cohort, folder / "store", PrepareConfig(grid=GridConfig(size_px=SIZE_PX)), workers=0)
        suite = SuiteConfig.model_validate(
            {
                "title": "folds",
                "rows": [{"name": "HiDisc-Patient", "recipe": "hidisc-patient+weak"}],
                "seeds": 1,
                "floors": False,
                "folds": {"number": 3},
                "small": {"recipe": "laptop", "changes": ["optim.steps=400"]},
            }
        )
        began = time.perf_counter()
        benchmark(suite, folder / "store", folder / "out", workers=1, device="cpu")
        whole = time.perf_counter() - began
        trained = sum(Run.load(run).info.seconds for run in sorted((folder / "out").glob("cells/*/run")))
    return [Claim("--folds 3, the whole command : the sum of its trainings", whole, trained, "s", 1.1, False)]


if __name__ == "__main__":
    for claim in claims():
        print(claim)

"""Drawing a batch: under 2 ms from 11.3 million patches, and no slower from 100,000 patients than from 100.

    python bench/drawing.py

The table of `bench/table.py` (the paper's TCGA), batches of 512 images and of 512 patches (1,024 images, two views
of each), as HiDisc draws them (patients, slides, patches) and as SimCLR does (patches). Times are means over five
steps, the best of 150 rounds.
"""

import tracemalloc

import numpy as np
import pyarrow as pa

from harness import Claim, best_of
from hidisc.patches.table import PatchTable, names_column
from hidisc.sampling.hierarchy import Hierarchy, Tree
from hidisc.sampling.sampler import Sampler
from hidisc.settings.train import BatchConfig
from table import make_table

STEPS, ROUNDS = 5, 150
PATIENTS = (100, 1_000, 10_000, 100_000)
HIDISC = BatchConfig(images=512)
SIMCLR = BatchConfig(levels=("patch",), images=512, draw={})


def grow(table: PatchTable, config: BatchConfig) -> Tree:
    """The tree of all patches."""
    return Hierarchy(config.levels).grow(table, np.ones(len(table), bool))


def make_cohort(patients: int, slides: int = 2, patches: int = 10) -> PatchTable:
    """A table of that many patients, as large as a batch needs."""
    names = [f"{number}" for number in range(patients * slides)]
    counts = [patches] * len(names)
    patient = names_column([names[number // slides] for number in range(len(names))], counts)
    return PatchTable(pa.table({"patient": patient, "slide": names_column(names, counts)}))


def milliseconds(**samplers: Sampler) -> dict[str, float]:
    """A batch's time each."""
    calls = {name: lambda drawn=drawn: [drawn.draw(step) for step in range(STEPS)] for name, drawn in samplers.items()}
    return {name: 1000 * seconds / STEPS for name, seconds in best_of(ROUNDS, **calls).items()}


def kilobytes(sampler: Sampler) -> float:
    """The most memory a batch's drawing takes at once."""
    sampler.draw(0)
    tracemalloc.start()
    try:
        sampler.draw(1)
        return tracemalloc.get_traced_memory()[1] / 1024
    finally:
        tracemalloc.stop()


def claims() -> list[Claim]:
    """Time every size in the same rounds."""
    table = make_table()
    of_millions = milliseconds(
        **{
            f"{name}, {what}": Sampler(grow(table, config), config.model_copy(update={"images": images}), seed=0)
            for name, config in (("patients, slides, patches", HIDISC), ("patches", SIMCLR))
            for what, images in (("512 images", 512), ("512 patches", 1024))
        }
    )
    samplers = {str(patients): Sampler(grow(make_cohort(patients), HIDISC), HIDISC, seed=0) for patients in PATIENTS}
    by_patients = milliseconds(**samplers)
    few, *more = by_patients.values()
    least, *most = (kilobytes(sampler) for sampler in samplers.values())
    return [
        *(Claim(f"drawing {name} of 11.3 M : 2 ms", time, 2, "ms", 1, False) for name, time in of_millions.items()),
        Claim("drawing 512 images, slowest of 10^3 to 10^5 patients : of 100", max(more), few, "ms", 1.5, False),
        Claim("its memory, most of 10^3 to 10^5 patients : of 100", max(most), least, "KB", 1.5, False),
    ]


if __name__ == "__main__":
    print(*claims(), sep="\n")

"""Batches read by two threads against two worker processes: a torch DataLoader around the same reading.

    python bench/reading.py

Drawn tissue as JPEG patches of 300 px and of 96 px, batches of 64 patches, everything in the page cache. Both sides
have two workers, four batches ahead and an idle consumer; the processes stay alive from round to round.
"""

import tempfile
from pathlib import Path

from torch.utils.data import DataLoader, Dataset

from harness import Claim, best_of
from hidisc.config import BatchConfig, DataConfig, ImportConfig, PixelsConfig
from hidisc.patches.folders import find_folder
from hidisc.patches.store import PatchStore
from hidisc.sampling.batches import Batch, Batches
from hidisc.sampling.hierarchy import Hierarchy
from hidisc.sampling.sampler import Sampler
from hidisc.verbs.imports import import_patches
from reads import write_files

WORKERS, AHEAD, PATCHES, ROUNDS = 2, 4, 64, 8
STEPS = {300: 24, 96: 120}
"""Batches a round, by the side of a patch in px: about a second each."""


class Loads(Dataset[Batch]):
    """The same batches as a map from step to batch, for worker processes."""

    def __init__(self, batches: Batches, steps: int) -> None:
        self._batches, self._steps = batches, steps

    def __len__(self) -> int:
        return self._steps

    def __getitem__(self, step: int) -> Batch:
        return self._batches.load(step)


def open_batches(path: Path) -> Batches:
    """Batches of 64 patches: four patients, four slides, the paper's two views, sixteen patches each."""
    store = PatchStore.load(path)
    tree = Hierarchy().grow(store.table, store.table.column("row") >= 0)
    config = BatchConfig(images=2 * PATCHES, draw={"patch": PATCHES // tree.roots})
    return Batches(store, tree, Sampler(tree, config, seed=0), DataConfig(threads=WORKERS, ahead=AHEAD), seed=0)


def take(batches: object) -> int:
    """Go through batches as training would; their patches."""
    return sum(len(batch.pixels) for batch in batches)


def measure(path: Path, steps: int) -> tuple[float, float]:
    """(threads, processes) in patches a second."""
    batches = open_batches(path)
    loader = DataLoader(
        Loads(batches, steps),
        batch_size=None,
        num_workers=WORKERS,
        prefetch_factor=AHEAD // WORKERS,
        persistent_workers=True,
    )
    seconds = best_of(ROUNDS, threads=lambda: take(batches.steps(0, steps)), processes=lambda: take(loader))
    return steps * PATCHES / seconds["threads"], steps * PATCHES / seconds["processes"]


def claims() -> list[Claim]:
    """Measure both sizes of patch."""
    found = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_files(folder)
        for size_px, steps in STEPS.items():
            config = ImportConfig(pixels=PixelsConfig(codec="jpeg"), resize_px=size_px)
            import_patches(find_folder(folder / "jpg"), folder / f"store-{size_px}", config, workers=0)
            threads, processes = measure(folder / f"store-{size_px}", steps)
            found.append(Claim(f"reading {size_px} px, threads : processes", threads, processes, "patches/s", 1))
    return found


if __name__ == "__main__":
    print(*claims(), sep="\n")

"""Batches read by two threads against two worker processes: a torch DataLoader around the same reading.

    python bench/reading.py

Drawn tissue as JPEG patches of 300 px and of 96 px, batches of 64 patches, everything in the page cache. Both sides
have two workers, four batches ahead and an idle consumer; the processes stay alive from round to round. Beside
patches per second, what a patch costs in processor time, of which a training step on the same cores has that much less.
"""

import os
import tempfile
import time
from collections.abc import Callable, Iterable
from multiprocessing import active_children
from pathlib import Path

from torch.utils.data import DataLoader, Dataset

from harness import Claim
from hidisc.patches.folders import find_folder
from hidisc.patches.store import PatchStore
from hidisc.sampling.batches import Batch, Batches
from hidisc.sampling.hierarchy import Hierarchy
from hidisc.sampling.sampler import Sampler
from hidisc.settings.prepare import ImportConfig, PixelsConfig
from hidisc.settings.train import BatchConfig, DataConfig
from hidisc.verbs.prepare import import_patches
from reads import write_files

WORKERS, AHEAD, PATCHES, ROUNDS = 2, 4, 64, 12
STEPS = {300: 16, 96: 100}
"""Batches a round, by the side of a patch in px: about as much work each."""


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
    return Batches(store, tree, Sampler(tree, config, seed=0), DataConfig(threads=WORKERS, prefetch=AHEAD), seed=0)


def take(batches: Iterable[Batch]) -> None:
    """Go through batches as training would."""
    for batch in batches:
        assert len(batch.pixels) == PATCHES


def processor_seconds() -> float:
    """Of this process and of the workers it has."""
    pids = [os.getpid(), *(child.pid for child in active_children())]
    fields = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids]
    return sum(int(field[11]) + int(field[12]) for field in fields) / os.sysconf("SC_CLK_TCK")


def measure(path: Path, steps: int) -> tuple[dict[str, float], dict[str, float]]:
    """(patches per second, processor microseconds per patch), each of `threads` and of `processes`."""
    batches = open_batches(path)
    loader = DataLoader(
        Loads(batches, steps),
        batch_size=None,
        num_workers=WORKERS,
        prefetch_factor=AHEAD // WORKERS,
        persistent_workers=True,
    )
    calls: dict[str, Callable[[], None]] = {
        "threads": lambda: take(batches.steps(0, steps)),
        "processes": lambda: take(loader),
    }
    fewest = dict.fromkeys(calls, (float("inf"), float("inf")))
    for number in range(ROUNDS + 1):
        for name, call in calls.items():
            start, spent = time.perf_counter(), processor_seconds()
            call()
            found = time.perf_counter() - start, processor_seconds() - spent
            if number:  # the first round starts the workers
                fewest[name] = tuple(map(min, fewest[name], found))
    patches = steps * PATCHES
    rate = {name: patches / seconds for name, (seconds, _) in fewest.items()}
    return rate, {name: 1e6 * spent / patches for name, (_, spent) in fewest.items()}


def claims() -> list[Claim]:
    """Measure both sizes of patch."""
    found = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_files(folder)
        for size_px, steps in STEPS.items():
            config = ImportConfig(pixels=PixelsConfig(codec="jpeg"), resize_px=size_px)
            import_patches(find_folder(folder / "jpg"), folder / f"store-{size_px}", config, workers=0)
            rate, spent = measure(folder / f"store-{size_px}", steps)
            what = f"reading {size_px} px, threads : processes"
            found += [
                Claim(what, rate["threads"], rate["processes"], "patches/s", 1),
                Claim(f"{what}, processor time", spent["threads"], spent["processes"], "us per patch", 1, False),
            ]
    return found


if __name__ == "__main__":
    print(*claims(), sep="\n")

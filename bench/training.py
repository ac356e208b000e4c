"""The whole training loop against a bare one, and against the number of patients.

    python bench/training.py

ResNet-18, 96 px, batches of 64, all threads on both sides. The bare loop is forward, backward and optimiser on one
tensor in memory with the simplest loss there is; ours samples, reads JPEG patches, makes strong views, writes down.
"""

import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch

from harness import Claim, peak_bytes
from hidisc.ground.progress import SILENT
from hidisc.models.encoder import build_encoder
from hidisc.objectives.objective import load_settings
from hidisc.patches.store import PatchStore
from hidisc.patches.table import PatchTable
from hidisc.settings.config import load_config
from hidisc.settings.prepare import GridConfig, PrepareConfig
from hidisc.settings.train import TrainConfig
from hidisc.slides.synthetic import draw_cohort
from hidisc.training.fit import fit
from hidisc.training.log import METRICS, read_metrics
from hidisc.training.processes import start
from hidisc.verbs.prepare import prepare

IMAGES, SIZE_PX, STEPS = 64, 96, 6
FEW, MANY = 100, 100_000


def make_store(folder: Path, patients: int = 12) -> PatchStore:
    """Drawn slides as a store of 96 px JPEG patches."""
    cohort = draw_cohort(folder / "drawn", patients=patients, slides=2, fields=12, field_px=SIZE_PX, seed=0)
    config = PrepareConfig(grid=GridConfig(size_px=SIZE_PX), split={"fractions": {"train": 1.0, "test": 0.0}})
    prepare(cohort, folder / "store", config, workers=0)
    return PatchStore.load(folder / "store")


def images_per_s(store: PatchStore, out: Path, *changes: str) -> float:
    """The best rate over the rows of a run's metrics, the first (which warms up) left out."""
    settings = [f"batch.images={IMAGES}", f"optim.steps={4 * STEPS}", f"log.every={STEPS}", "checkpoint.every=100000"]
    config = load_config(TrainConfig, "hidisc-patient", [*settings, *changes])
    with start("32", "cpu", 1, 1) as fabric:
        fit(fabric, store, out, config, load_settings(config.objective), SILENT)
    return max(row["images_per_s"] for row in read_metrics(out / METRICS)[1:])


def bare_images_per_s() -> float:
    """Forward, backward and optimiser on one tensor in memory; the best of four blocks of steps."""
    encoder = build_encoder("resnet18", {}, TrainConfig().model.head, channels=3, size_px=SIZE_PX)
    encoder = encoder.train().to(memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(encoder.parameters(), 1e-3)
    x = torch.rand(IMAGES, 3, SIZE_PX, SIZE_PX).to(memory_format=torch.channels_last)
    rates = []
    for _ in range(4):
        began = time.perf_counter()
        for _ in range(STEPS):
            encoder.project(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        rates.append(IMAGES * STEPS / (time.perf_counter() - began))
    return max(rates[1:])


def with_patients(store: PatchStore, patients: int) -> PatchStore:
    """The store with a table of that many patients, two slides of ten patches each, over the same pixels."""
    rows = np.arange(patients * 20, dtype=np.int32)
    known = len(store)

    def names(column: np.ndarray, count: int) -> pa.DictionaryArray:
        return pa.DictionaryArray.from_arrays(column, pa.array([str(i) for i in range(count)]))

    table = {
        "patient": names(rows // 20, patients),
        "slide": names(rows // 10, patients * 2),
        "label": names(rows * 0, 1),
        "split": pa.DictionaryArray.from_arrays(rows * 0, pa.array(["train"])),
        "shard": store.table.column("shard")[rows % known],
        "row": store.table.column("row")[rows % known],
    }
    return PatchStore(store.artefact, store.info, PatchTable(pa.table(table)))


def measure_patients(store: Path, patients: int) -> tuple[float, float]:
    """(ms a step, peak GB) of training on that many patients, small network, in a process of its own."""
    with tempfile.TemporaryDirectory() as name:
        larger = with_patients(PatchStore.load(store), patients)
        rate = images_per_s(larger, Path(name), "model.backbone=test_resnet", "views.ops=[flips]", "optim.steps=60")
    return 1e3 * IMAGES / rate, peak_bytes() / 2**30


def in_fresh_process(store: Path, patients: int) -> tuple[float, float]:
    """`measure_patients` in a new process, so that its peak is its own."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(measure_patients, store, patients).result()


def claims() -> list[Claim]:
    """Measure, both sides in turn."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        store = make_store(folder)
        ours, bare = 0.0, 0.0
        for turn in range(2):
            bare = max(bare, bare_images_per_s())
            (folder / f"run{turn}").mkdir()
            ours = max(ours, images_per_s(store, folder / f"run{turn}", "model.backbone=resnet18"))
        few, many = [], []
        for _ in range(2):
            few.append(in_fresh_process(folder / "store", FEW))
            many.append(in_fresh_process(folder / "store", MANY))
    (few_ms, few_gb), (many_ms, many_gb) = map(min, zip(*few, strict=True)), map(min, zip(*many, strict=True))
    return [
        Claim("whole training loop : bare forward + backward + optimiser, ResNet-18", ours, bare, "images/s", 0.9),
        Claim(f"a step with {MANY:,} patients : with {FEW}", many_ms, few_ms, "ms", 1.15, higher_is_better=False),
        Claim(f"peak memory with {MANY:,} patients : with {FEW}", many_gb, few_gb, "GB", 1.3, higher_is_better=False),
    ]


if __name__ == "__main__":
    for claim in claims():
        print(claim)

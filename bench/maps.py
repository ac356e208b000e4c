"""Maps of vectors: in closed form against NumPy's covariance alone, and the step of an adapter against a bare one.

    python bench/maps.py

1,000,000 vectors of 1,280 numbers in a file (5 GB, random), of 500 patients with 4 slides each; all threads on both
sides. NumPy's side is the covariance of all vectors in float64, added up over blocks of the same size; ours reads the
same file, adds up the covariance within slides and patients as well, in five parts, chooses the shrinkage and solves.
The bare step of an adapter has the same layer, batch, loss and optimiser on vectors and views in memory.
"""

import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
import torch.nn.functional as F

from harness import Claim, best_of
from hidisc.ground.progress import SILENT
from hidisc.models.card import NOTHING
from hidisc.models.linear_maps import measure_moments, whiten
from hidisc.models.vector_map import MapCard
from hidisc.objectives.hidisc import hidisc_loss
from hidisc.objectives.objective import load_settings
from hidisc.patches.record import SlideId
from hidisc.patches.table import PatchTable
from hidisc.sampling.hierarchy import Hierarchy
from hidisc.settings.config import load_config
from hidisc.settings.level_names import LevelNames
from hidisc.settings.train import TrainConfig
from hidisc.training.fit import fit
from hidisc.training.log import METRICS, read_metrics
from hidisc.training.processes import start
from hidisc.training.vectors import VectorSet, VectorsInfo

ROWS, DIM, BLOCK = 1_000_000, 1_280, 4_096
PATIENTS, SLIDES = 500, 4
STEPS = 10


def make_vectors(path: Path, rows: int) -> np.ndarray:
    """A file of random vectors (N, D), as a memory map."""
    made = np.lib.format.open_memmap(path, "w+", np.float32, (rows, DIM))
    rng = np.random.default_rng(0)
    for first in range(0, rows, BLOCK):
        made[first : first + BLOCK] = rng.standard_normal((min(BLOCK, rows - first), DIM), dtype=np.float32)
    made.flush()
    return np.load(path, mmap_mode="r")


def make_table(rows: int) -> PatchTable:
    """A table of so many patches, the patches of a slide next to each other."""
    slide = np.sort(np.arange(rows) % (PATIENTS * SLIDES)).astype(np.int32)

    def names(codes: np.ndarray) -> pa.DictionaryArray:
        return pa.DictionaryArray.from_arrays(codes, pa.array([str(code) for code in range(codes.max() + 1)]))

    same = np.zeros(rows, np.int32)
    columns = {"patient": names(slide // SLIDES), "slide": names(slide), "label": names(same), "split": names(same)}
    return PatchTable(pa.table({**columns, "mpp": np.full(rows, 0.5, np.float32)}))


def covariance(vectors: np.ndarray) -> np.ndarray:
    """NumPy's, of blocks in float64."""
    total, square = np.zeros(DIM), np.zeros((DIM, DIM))
    for first in range(0, len(vectors), BLOCK):
        x = np.asarray(vectors[first : first + BLOCK], np.float64)
        total += x.sum(axis=0)
        square += x.T @ x
    return square / len(vectors) - np.outer(total, total) / len(vectors) ** 2


def whiten_within(vectors: np.ndarray, table: PatchTable) -> np.ndarray | None:
    """The map of `--recipe whiten-within`."""
    tree = Hierarchy().grow(table, np.ones(len(table), bool))
    return whiten(measure_moments(vectors, tree, "here"), 256, None, 1, "here").matrix


def adapter_images_per_s(vectors: VectorSet, out: Path) -> float:
    """The best rate over the rows of metrics.csv of `--recipe hidisc-adapter`, the first left out."""
    changes = [f"optim.steps={4 * STEPS}", f"log.every={STEPS}", "checkpoint.every=100000", "data.splits=['0']"]
    config = load_config(TrainConfig, "hidisc-adapter", changes)
    with start("32", "cpu", 1, 1) as fabric:
        fit(fabric, vectors, out, config, load_settings(config.objective), SILENT)
    return max(row["images_per_s"] for row in read_metrics(out / METRICS)[1:])


def bare_images_per_s() -> float:
    """Views of vectors in memory, a residual layer, HiDisc's loss and AdamW; the best of four blocks of steps."""
    config = load_config(TrainConfig, "hidisc-adapter")
    patches, views = config.batch.images // config.batch.views, config.batch.views
    layer = torch.nn.Linear(DIM, DIM)
    torch.nn.init.zeros_(layer.weight)
    optimizer = torch.optim.AdamW(layer.parameters(), 1e-3)
    x = torch.randn(patches, DIM)
    ids = torch.arange(patches)
    per_slide = config.batch.draw["patch"]
    ancestry = torch.stack([ids // (per_slide * config.batch.draw["slide"]), ids // per_slide, ids], dim=1)
    ancestry = ancestry.repeat_interleave(views, 0)
    rates = []
    for _ in range(4):
        began = time.perf_counter()
        for _ in range(STEPS):
            seen = x[:, None].repeat(1, views, 1)
            seen += torch.randn(seen.shape) * config.map.noise
            seen = torch.where(torch.rand(seen.shape) < config.map.dropout, torch.zeros(()), seen).flatten(0, 1)
            loss, _ = hidisc_loss(F.normalize(seen + layer(seen), dim=1), ancestry, [1, 1, 1], 0.1)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        rates.append(config.batch.images * STEPS / (time.perf_counter() - began))
    return max(rates[1:])


def claims() -> list[Claim]:
    """Return both claims."""
    with tempfile.TemporaryDirectory() as folder:
        vectors, table = make_vectors(Path(folder) / "vectors.npy", ROWS), make_table(ROWS)
        seconds = best_of(2, ours=lambda: whiten_within(vectors, table), numpy=lambda: covariance(vectors))
        slides = tuple(SlideId(patient=str(n // SLIDES), slide=str(n), checksum="") for n in range(PATIENTS * SLIDES))
        card = MapCard(kind="centre", takes=DIM, features=DIM, encoder="", encoder_name="random", history=NOTHING)
        given = VectorSet(Path(folder), VectorsInfo(slides, LevelNames()), table, vectors, "", card)
        ours, bare = adapter_images_per_s(given, Path(folder) / "run"), bare_images_per_s()
    return [
        Claim(
            "whiten-within of 1,000,000 x 1,280 against NumPy's covariance alone",
            seconds["ours"],
            seconds["numpy"],
            "s",
            1.5,
            higher_is_better=False,
        ),
        Claim("step of hidisc-adapter against a bare one", bare / ours, 1.0, "x", 1.15, higher_is_better=False),
    ]


if __name__ == "__main__":
    for claim in claims():
        print(claim)

"""`hidisc doctor --measure`: how fast this machine is, and what a cohort then takes of time, disk and memory."""

import math
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hidisc.evaluation.neighbours import find_neighbours
from hidisc.ground.files import AnyPath
from hidisc.ground.machine import count_cores
from hidisc.ground.progress import Say, ignore
from hidisc.ground.seeds import Purpose, make_rng, make_seed
from hidisc.objectives.objective import load_settings
from hidisc.patches.store import PatchStore
from hidisc.sampling.batches import Batches, to_input
from hidisc.settings.train import TrainConfig
from hidisc.slides.synthetic import draw_cohort
from hidisc.training.build import build_learner, build_optimizer, choose_training_set
from hidisc.training.processes import start
from hidisc.training.step import ViewMaker, take_step
from hidisc.verbs.prepare import prepare

SECONDS = 3.0
"""How long each rate is measured, after one call that warms up."""
FEW_IMAGES, FIELDS, BANK, QUERIES, NEIGHBOURS = 16, 16, 50_000, 512, 200
ROW_BYTES = 36
"""Memory of an opened store per patch: nine columns of 4 bytes."""


@dataclass(frozen=True)
class Rates:
    """What was measured: units per second, of one core where the device is a CPU, and bytes."""

    device: str
    cores: int
    backbone: str
    size_px: int
    cut: float
    """Patches per second of a core that `prepare` makes of a drawn slide, read at 0.25 and stored at 0.5 um per px."""
    read: float
    """Stored patches per second of a core."""
    views: float
    """Views per second on the device."""
    train: float
    """Images per second of whole training steps, views included, on the device."""
    embed: float
    """Patches per second on the device."""
    search: float
    """Comparisons of a query with a row of the bank, per second on the device."""
    stored_bytes: float
    """A patch on disk."""
    pixel_bytes: int
    """A patch decoded."""
    width: int
    """Numbers per embedding."""
    model_bytes: int
    """The weights of everything that learns."""
    image_bytes: int
    """What a training step keeps of an image for its backward pass."""


@dataclass(frozen=True)
class CohortSize:
    """How much there is to do; the defaults are the paper's TCGA cohort, 400 patches per slide in its evaluation."""

    slides: int = 1_703
    patches: int = 11_300_000
    reference: int = 544_960
    test: int = 136_240

    @classmethod
    def of(cls, store: PatchStore, splits: tuple[str, ...]) -> "CohortSize":
        """That of a store, all of whose patches are evaluated; the patients of `splits` are the reference."""
        reference = int(store.table.in_splits(splits, "data.splits", store.path).sum())
        return cls(len(store.info.slides), len(store), reference, len(store) - reference)


@dataclass(frozen=True)
class Need:
    """What one step of the work takes."""

    step: str
    hours: float
    on: str
    """What the hours are of: `core`, or a kind of device."""
    disk_gb: float
    memory_gb: float
    memory_of: str


def estimate_needs(rates: Rates, size: CohortSize, config: TrainConfig) -> list[Need]:
    """Time, disk and memory of a cohort: counts divided by rates."""
    images = config.batch.images * config.optim.accumulate * config.optim.steps
    batch = config.batch.images * rates.image_bytes + 4 * rates.model_bytes  # weights, gradients and two moments
    ahead = (config.data.prefetch + 2) * config.batch.images // config.batch.views * rates.pixel_bytes
    opened, vector = ROW_BYTES * size.patches, 4 * rates.width
    device = "core" if rates.device == "cpu" else rates.device
    found = [
        ("prepare", size.patches / rates.cut, "core", size.patches * rates.stored_bytes, 1e9, "per worker"),
        ("train", images / rates.train, device, 3 * rates.model_bytes, batch, "of the devices together"),
        ("train, reading", images / config.batch.views / rates.read, "core", 0, opened + ahead, "per process"),
        ("embed", size.patches / rates.embed, device, size.patches * vector, opened, "per process"),
        ("evaluate", size.test * size.reference / rates.search, device, 0, 2e9, "knn.memory_gb"),
    ]
    return [Need(step, s / 3600, on, disk / 1e9, memory / 1e9, of) for step, s, on, disk, memory, of in found]


def measure_machine(
    store_path: AnyPath | None,
    config: TrainConfig,
    *,
    device: str = "auto",
    say: Say = ignore,
) -> tuple[Rates, CohortSize, list[Need]]:
    """Measure all rates in about a minute, and estimate the cohort of a store, or the paper's if there is none."""
    given = PatchStore.load(store_path) if store_path is not None else None
    with tempfile.TemporaryDirectory() as name, start(config.compute.precision, device, 1, 1) as fabric:
        say("measuring: prepare ...")
        cut, drawn = _measure_cutting(Path(name))
        store = given or drawn
        rows = make_rng(0, Purpose.MEASURED_PATCHES).permutation(len(store))[:512]
        say("measuring: reading, training, embedding, search ...")
        read = _rate(len(rows), lambda: store.read_many(rows))
        stored = sum((store.path / shard).stat().st_size for shard in store.info.shards) / max(1, len(store))
        learned = _measure_learning(fabric, store, config)
        rates = Rates(
            device=fabric.device.type,
            cores=count_cores(),
            backbone=config.model.backbone,
            size_px=store.info.size_px,
            cut=cut,
            read=read,
            search=_measure_search(learned["width"], fabric.device.type),
            stored_bytes=stored,
            pixel_bytes=math.prod(store.shape) * store.dtype.itemsize,
            **learned,
        )
    size = CohortSize.of(given, config.data.splits) if given else CohortSize()
    return rates, size, estimate_needs(rates, size, config)


def _measure_cutting(folder: Path) -> tuple[float, PatchStore]:
    """Patches per second of `prepare` in this process, and the store it made."""
    cohort = draw_cohort(folder, patients=3, slides=1, fields=FIELDS, field_px=600, mpp=0.25)
    began = time.process_time()
    built = prepare(cohort, folder / "store", workers=0)
    seconds = time.process_time() - began
    store = PatchStore.load(built.out)
    return len(store) / seconds, store


def _measure_learning(fabric: Any, store: PatchStore, config: TrainConfig) -> dict[str, Any]:
    """Views, training steps and embedding on the device; on a CPU with few images, as its speed is that of many."""
    per_root = config.batch.views * math.prod(config.batch.draw.get(level, 1) for level in config.batch.levels[1:])
    few = per_root * max(2, FEW_IMAGES // per_root)
    kind = fabric.device.type
    images = few if kind == "cpu" else config.batch.images
    config = config.model_copy(update={"batch": config.batch.model_copy(update={"images": images})})
    objective = load_settings(config.objective)
    training_set = choose_training_set(store, config, objective)
    learner = build_learner(training_set, config, objective, 1)
    sampler = training_set.sampler(config, 1)
    batch = Batches(store, training_set.tree, sampler, config.data, config.seed).load(0)
    model: Any = learner
    module, optimizer = fabric.setup(model, build_optimizer(learner, config))
    make, pixels = ViewMaker(config, store), fabric.to_device(batch.pixels)
    kept: dict[int, int] = {}

    def step() -> float:
        done = take_step(fabric, module, optimizer, [batch], config, make, progress=0.5, wants_norm=False)
        return float(done.losses["loss"])  # waits for the device

    def embed() -> float:
        with fabric.autocast(), torch.inference_mode():
            return float(learner.encoder.features(to_input(pixels, store.info.input)).sum())

    def note(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    learner.train()
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        step()
    weights = {value.untyped_storage().data_ptr(): value.nbytes for value in learner.parameters()}
    train = _rate(images, step, kind)
    learner.eval()
    return {
        "views": _rate(
            images,
            lambda: float(make(pixels, torch.Generator().manual_seed(make_seed(0, Purpose.MEASURED_VIEWS)))[0].sum()),
            kind,
        ),
        "train": train,
        "embed": _rate(len(pixels), embed, kind),
        "width": learner.encoder.card.features,
        "model_bytes": sum(weights.values()),
        "image_bytes": sum(nbytes for address, nbytes in kept.items() if address not in weights) // images,
    }


def _measure_search(width: int, device: str) -> float:
    """Comparisons per second of exact nearest neighbours in a bank of random vectors."""
    rng = make_rng(0, Purpose.MEASURED_VECTORS)
    bank, queries = (rng.standard_normal((rows, width), np.float32) for rows in (BANK, QUERIES))
    return _rate(BANK * QUERIES, lambda: list(find_neighbours(queries, bank, NEIGHBOURS, device=device)), device)


def _rate(units: int, call: Callable[[], object], device: str = "cpu") -> float:
    """Units per second, each call doing so many; on a CPU per second of a core, whatever else the machine does."""
    clock = time.process_time if device == "cpu" else time.perf_counter
    call()
    calls, began = 0, clock()
    while calls == 0 or clock() - began < SECONDS:
        call()
        calls += 1
    return units * calls / (clock() - began)


def as_record(rates: Rates, size: CohortSize, needs: list[Need]) -> dict[str, Any]:
    """All of it for `--json`."""
    return {"rates": asdict(rates), "cohort": asdict(size), "needs": [asdict(need) for need in needs]}


def describe_needs(rates: Rates, size: CohortSize, needs: list[Need], config: TrainConfig) -> str:
    """All of it in sentences and a table."""
    images = config.batch.images * config.optim.accumulate * config.optim.steps
    lines = [
        f"Measured now, {rates.backbone} at {rates.size_px} px on {rates.device}; rates of a CPU are of one core, "
        f"of which there are {rates.cores}:",
        f"  prepare   {rates.cut:,.3g} patches/s (drawn here), {rates.stored_bytes / 1e3:,.3g} KB per patch",
        f"  reading   {rates.read:,.4g} patches/s",
        f"  views     {rates.views:,.4g} views/s",
        f"  training  {rates.train:,.4g} images/s, {rates.image_bytes / 1e6:,.3g} MB per image",
        f"  embedding {rates.embed:,.4g} patches/s, {rates.width:,} numbers each",
        f"  search    {rates.search / BANK:,.4g} queries/s in a bank of {BANK:,}",
        "",
        f"{size.slides:,} slides, {size.patches:,} patches, {images:,} images of training; evaluation of {size.test:,} "
        f"patches against {size.reference:,}:",
        f"  {'':<16}{'time':>22}{'disk':>12}{'memory':>12}",
    ]
    for need in needs:
        hours = f"{_round(need.hours)} {need.on}-hours"
        lines.append(
            f"  {need.step:<16}{hours:>22}{_round(need.disk_gb) + ' GB':>12}{_round(need.memory_gb) + ' GB':>12} "
            f"{need.memory_of}"
        )
    lines.append("Divide the hours by the number of cores or devices.")
    return "\n".join(lines)


def _round(value: float) -> str:
    """Two digits, and whole numbers from 100 on."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.2g}"

"""`hidisc train`: a PatchStore -> a Run with an encoder; Embeddings -> a Run with a map of vectors."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch

from hidisc.artefacts.artefact import make, read_kind
from hidisc.artefacts.inputs import ANY_INPUTS, EMBEDDINGS, STORE, ExpectedInputs
from hidisc.embeddings.embeddings import Embeddings
from hidisc.ground.errors import UserError
from hidisc.ground.files import AnyPath, full_disk_said
from hidisc.ground.progress import Progress, Say, ignore
from hidisc.models.backbone import create_backbone, find_architecture
from hidisc.models.card import CARD, MAP_CARD, MAP_WEIGHTS, WEIGHTS
from hidisc.models.vector_map import MapCard
from hidisc.objectives.objective import find_objective, load_settings
from hidisc.patches.splits import warn_of_few
from hidisc.patches.store import PatchStore
from hidisc.settings.config import Config, differences
from hidisc.settings.train import MapConfig, TrainConfig
from hidisc.training.build import Source, choose_training_set, find_start, rows_to_learn
from hidisc.training.checkpoint import list_checkpoints, read_checkpoint, remove_old
from hidisc.training.fit import fit, write_run
from hidisc.training.log import METRICS
from hidisc.training.processes import finished_before, made_by_first, start
from hidisc.training.run import RUN, STAIN, Run
from hidisc.training.step import decide_compile
from hidisc.training.vectors import VectorSet, VectorsInfo, solve
from hidisc.verbs.progress import show_training

_SMALL, _SMALL_PX = 1_000_000, 96
"""Parameters and image size up to which one thread computes a network: its operations are too short to be shared."""


def train(
    store_path: AnyPath,
    out: AnyPath,
    config: TrainConfig | None = None,
    *,
    device: str = "auto",
    devices: str | int = "auto",
    nodes: int = 1,
    threads: int | None = None,
    say: Say = ignore,
    watch: Progress | None = None,
    expected: ExpectedInputs = ANY_INPUTS,
) -> Run | None:
    """Learn an encoder from a store, or a map from embeddings; an unfinished run goes on from its last checkpoint.

    On several devices every process calls this and only the first gets the run, the others None. `threads`: threads
    to compute with on a CPU; None: as `choose_threads` has it. `watch` is told of every step, instead of a progress
    bar. Inputs other than `expected` are refused.
    """
    config, out = config or TrainConfig(), Path(out)
    objective = load_settings(config.objective)
    config = config.model_copy(update={"objective": objective.model_dump(mode="json")})
    store = open_source(store_path, expected)
    is_map = isinstance(store, VectorSet)
    _check_map(config, store, find_objective(objective).uses_head)
    inputs = {EMBEDDINGS if is_map else STORE: store.checksum, **find_start(config, expected)}
    with (
        start(config.compute.precision, device, devices, nodes) as fabric,
        full_disk_said("What has been saved is whole"),
        made_by_first(fabric, make(out, "train", config := decide_compile(config, out, fabric, say), inputs)) as work,
    ):
        is_first = fabric.is_global_zero
        if not finished_before(fabric, work, say):
            if isinstance(store, VectorSet) and config.map.kind != "adapter":
                if work is not None:
                    _solve(store, out, config, objective, say)
                    work.finish((RUN, MAP_CARD, MAP_WEIGHTS))
                fabric.barrier()
                return Run.load(out) if is_first else None
            if is_first and list_checkpoints(out) and not (out / METRICS).exists():
                say(
                    f"note: {out / METRICS} is lost. What was measured up to the last checkpoint cannot be made again "
                    "without training anew, in a new --out; the encoder is as it was."
                )
            if is_first:
                _note_single_slides(store, config, objective, say)
                split, names = store.table.codes("split")
                is_test = np.isin(split, [code for code, name in enumerate(names) if name == "test"])
                for doubt in warn_of_few(len(np.unique(store.table.codes("patient")[0][is_test]))):
                    say(f"note: {doubt}")
            if threads is None and fabric.device.type == "cpu" and fabric.world_size == 1:
                threads = choose_threads(store, out, config)
                all_threads = torch.get_num_threads()
                if threads < all_threads:
                    say(f"{threads} of {all_threads} threads computes: set OMP_NUM_THREADS for another number")
            with (
                _use_threads(threads),
                show_training(config.optim.steps, is_first and watch is None, store.info.level_names, say) as bar,
            ):
                fit(fabric, store, out, config, objective, watch or bar, ExpectedInputs(out, inputs))
            if work is not None:
                remove_old(out, config.checkpoint)  # what a run that was killed after its last step has left
                checkpoints = [path.relative_to(out).as_posix() for path in list_checkpoints(out)]
                stain = [STAIN] if "cohort_stain" in config.views.ops else []
                learned = (MAP_CARD, MAP_WEIGHTS) if is_map else (CARD, WEIGHTS)
                work.finish((RUN, *learned, METRICS, *stain), checkpoints)
    return Run.load(out) if is_first else None


def open_source(path: AnyPath, expected: ExpectedInputs = ANY_INPUTS) -> Source:
    """What is at a path, to learn from: a store, or embeddings, whose vectors are; others than expected are refused."""
    if read_kind(Path(path)) != "embed":
        return PatchStore.load(path, expected)
    embeddings = Embeddings.load(path, expected)
    info, model, width = embeddings.info, embeddings.info.model, embeddings.vectors.shape[1]
    card = MapCard(
        kind="centre",
        takes=width,
        features=width,
        encoder=model.checksum,
        encoder_name=model.name,
        history=model.history.after(model.checksum),
    )
    about = VectorsInfo(info.slides, info.level_names)
    return VectorSet(embeddings.path, about, embeddings.table, embeddings.vectors, embeddings.checksum, card)


_IDLE = {
    "adapter": ("views", "model", "monitor", "map.dim", "map.keep", "map.level", "map.shrinkage"),
    None: ("views", "model", "monitor", "optim", "compute", "objective", "batch.images", "batch.draw", "batch.views"),
}
"""Settings that do nothing for an adapter, and for the other maps."""


def _check_map(config: TrainConfig, source: Source, uses_head: bool) -> None:
    """Refuse a map of a store, an encoder of vectors, and settings that would do nothing."""
    kind = config.map.kind
    if not isinstance(source, VectorSet):
        if kind is not None:
            raise UserError(
                f"map.kind = {kind!r} learns from vectors, and {source.path} holds pictures. Give embeddings: "
                f"`hidisc embed {source.path} ENCODER --out embeddings`, then train on these."
            )
        return
    if kind is None:
        raise UserError(
            f"{source.path} holds vectors, from which a map is learned. Give a recipe for vectors: --recipe "
            "whiten-within, whiten, centre, linear-hidisc or hidisc-adapter."
        )
    if not uses_head:
        raise UserError(f"objective.name = {config.objective['name']!r} learns from pictures only. Give hidisc.")
    default = TrainConfig(map=MapConfig(kind=kind)).model_dump(mode="json")
    default["objective"] = load_settings(TrainConfig().objective).model_dump(mode="json")
    groups = _IDLE["adapter" if kind == "adapter" else None]
    for change in differences(default, config.model_dump(mode="json")):
        name = change.partition(":")[0]
        if name.startswith(groups) and not (kind == "linear-hidisc" and name.startswith("objective.weights")):
            raise UserError(f"{name} is set, and map.kind = {kind!r} has no use for it. Leave it out.")


def _solve(vectors: VectorSet, out: Path, config: TrainConfig, objective: Config, say: Say) -> None:
    """Make a map in closed form, and the folder of its run."""
    training_set, began = choose_training_set(vectors, config, objective), time.monotonic()
    made, images = solve(vectors, training_set.tree, config, say), len(training_set.tree.leaves)
    seconds = round(time.monotonic() - began, 1)
    done = {"steps": 0, "images": images, "seconds": seconds, "devices": "1 x cpu, 64", "bad_patches": 0}
    write_run(out, config, training_set, made, **done)


def choose_threads(store: Source, out: Path, config: TrainConfig) -> int:
    """Threads for a training on a CPU: as many as the run was begun with, one for a small network, all for others.

    Sums over one thread and over several differ in the last bits, so a run goes on with the threads it was begun with.
    The number that the user sets in OMP_NUM_THREADS is not changed.
    """
    most = torch.get_num_threads()
    if "OMP_NUM_THREADS" in os.environ or most == 1:
        return most
    checkpoints = list_checkpoints(out)
    if checkpoints:
        return min(read_checkpoint(checkpoints[-1])[0].threads or most, most)
    if isinstance(store, VectorSet) or store.info.size_px > _SMALL_PX:
        return most
    made_as = find_architecture(config.model.backbone, config.model.options)
    with torch.random.fork_rng(devices=[]):
        backbone, _ = create_backbone(
            made_as.name, store.input_channels, store.info.size_px, made_as.options, None, made_as.notes
        )
    return 1 if sum(each.numel() for each in backbone.parameters()) <= _SMALL else most


@contextmanager
def _use_threads(threads: int | None) -> Iterator[None]:
    """Let torch compute with so many threads in the block; None: with as many as before."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _note_single_slides(store: Source, config: TrainConfig, objective: Config, say: Say) -> None:
    """Say that the patient level and the slide level are the same where every patient has one slide."""
    weights = getattr(objective, "weights", {})
    levels = [level for level in ("patient", "slide") if level in config.batch.levels and weights.get(level, 1) > 0]
    if config.objective["name"] != "hidisc" or len(levels) < 2:
        return
    rows = rows_to_learn(store, config.data)
    patients, slides = (len(np.unique(store.table.codes(level)[0][rows])) for level in levels)
    if patients == slides:
        say(
            "note: every patient has one slide, so the patient level and the slide level are the same; "
            "--recipe hidisc-slide is the method for such cohorts."
        )

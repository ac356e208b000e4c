"""`hidisc train`: a PatchStore -> a Run with an encoder."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch

from hidisc.artefacts.artefact import make
from hidisc.artefacts.inputs import ANY_INPUTS, STORE, ExpectedInputs
from hidisc.ground.files import AnyPath, full_disk_said
from hidisc.ground.progress import Progress, Say, ignore
from hidisc.models.backbone import create_backbone, find_architecture
from hidisc.models.card import CARD, WEIGHTS
from hidisc.objectives.objective import load_settings
from hidisc.patches.splits import warn_of_few
from hidisc.patches.store import PatchStore
from hidisc.settings.config import Config
from hidisc.settings.train import TrainConfig
from hidisc.training.build import find_start, rows_to_learn
from hidisc.training.checkpoint import list_checkpoints, read_checkpoint, remove_old
from hidisc.training.fit import fit
from hidisc.training.log import METRICS
from hidisc.training.processes import finished_before, made_by_first, start
from hidisc.training.run import RUN, STAIN, Run
from hidisc.training.step import decide_compile
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
    """Learn an encoder from a store; an unfinished run goes on from its last checkpoint.

    On several devices every process calls this and only the first gets the run, the others None. `threads`: threads
    to compute with on a CPU; None: as `choose_threads` has it. `watch` is told of every step, instead of a progress
    bar. Inputs other than `expected` are refused.
    """
    config, out = config or TrainConfig(), Path(out)
    objective = load_settings(config.objective)
    config = config.model_copy(update={"objective": objective.model_dump(mode="json")})
    store = PatchStore.load(store_path, expected)
    inputs = {STORE: store.checksum, **find_start(config, expected)}
    with (
        start(config.compute.precision, device, devices, nodes) as fabric,
        full_disk_said("What has been saved is whole"),
        made_by_first(fabric, make(out, "train", config := decide_compile(config, out, fabric, say), inputs)) as work,
    ):
        is_first = fabric.is_global_zero
        if not finished_before(fabric, work, say):
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
                work.finish((RUN, CARD, WEIGHTS, METRICS, *stain), checkpoints)
    return Run.load(out) if is_first else None


def choose_threads(store: PatchStore, out: Path, config: TrainConfig) -> int:
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
    if store.info.size_px > _SMALL_PX:
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


def _note_single_slides(store: PatchStore, config: TrainConfig, objective: Config, say: Say) -> None:
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

"""The training loop, read top to bottom: build, resume, step, write down, save."""

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from math import nan
from pathlib import Path
from typing import Any

import torch
from lightning.fabric import Fabric

from hidisc.ground.files import write_atomic
from hidisc.ground.machine import versions
from hidisc.ground.steps import reached
from hidisc.ground.stop import StopRequest
from hidisc.models.effective_rank import effective_rank
from hidisc.patches.store import PatchStore
from hidisc.sampling.batches import Batch, Batches
from hidisc.settings.train import TrainConfig
from hidisc.training.build import build_learner, build_optimizer, choose_training_set
from hidisc.training.checkpoint import CheckpointInfo, list_checkpoints, load_checkpoint, save_checkpoint
from hidisc.training.learner import Learner
from hidisc.training.log import TrainingLog
from hidisc.training.monitor import Monitor
from hidisc.training.processes import asks_others, check_others, mean_of_all, on_any, sum_of_all
from hidisc.training.run import RUN, RunInfo
from hidisc.training.sanity import check_finite, check_rank, check_weights, note_finite
from hidisc.training.schedule import learning_rate
from hidisc.training.step import take_step
from hidisc.training.training_set import TrainingSet

_PACKAGES = ("hidisc", "torch", "torchvision", "timm", "lightning", "numpy")


@dataclass(frozen=True)
class StepsDone:
    """How far a run is, for whoever shows it."""

    step: int
    steps: int
    row: dict[str, float]
    """The last row of metrics, empty before the first."""


Say = Callable[[str], None]
Watch = Callable[[StepsDone], None]


def fit(fabric: Fabric, store: PatchStore, out: Path, config: TrainConfig, say: Say, watch: Watch) -> None:
    """Train, from the beginning or from the last checkpoint, and write the encoder and `run.json`.

    The caller holds `out`. Memory: the model with its gradients and two moments, the activations of one batch and
    the batches read ahead; nothing grows with the number of patches but the table's few bytes a patch.
    """
    training_set = choose_training_set(store, config)
    sampler = training_set.sampler(config, fabric.world_size)
    if sampler.repeats and fabric.is_global_zero:
        say(
            f"note: a batch of {config.batch.images} images draws {sampler.roots} {config.batch.levels[0]}s and there "
            f"are {training_set.tree.roots}: some repeat within a batch, as positives. Smaller batch.images avoid it."
        )
    learner: Any = build_learner(training_set, config, fabric.world_size)
    learner, optimizer = fabric.setup(learner, build_optimizer(learner, config))
    module: Learner = learner.module

    done = _resume(fabric, out, module, optimizer.optimizer, say)
    rank, pin = fabric.global_rank, fabric.device.type == "cuda"
    batches = Batches(store, training_set.tree, sampler, config.data, config.seed, rank, pin=pin)
    monitor = Monitor(store, config.monitor, config.data, config.seed) if config.monitor.every else None
    log = TrainingLog(fabric, out, config, done.step)
    began = time.monotonic()
    first_bad = torch.full((), -1, device=fabric.device)  # a step; on the device, so that none waits to look at it

    def save(step: int) -> None:
        check_finite(fabric, int(first_bad), out)
        check_weights(fabric, module, step, out)
        bad_patches = done.bad_patches + sum_of_all(fabric, batches.bad)
        if fabric.is_global_zero:
            save_checkpoint(
                out,
                module,
                optimizer.optimizer,
                config.checkpoint,
                step=step,
                store=store.checksum,
                seconds=done.seconds + time.monotonic() - began,
                bad_patches=bad_patches,
                scaler=_scaler_state(fabric),
            )

    steps, accumulate = config.optim.steps, config.optim.accumulate

    def read(step: int) -> Iterator[Batch]:
        for _ in range(accumulate):
            asked = time.monotonic()
            batch = next(source)
            log.waited += time.monotonic() - asked
            for reason in batch.bad:
                say(f"warning: step {step}: {reason} Another patch of its slide was taken.")
            yield batch

    learner.train()
    source = batches.steps(done.step * accumulate, steps * accumulate)
    with closing(log), closing(source), StopRequest() as stop, torch.random.fork_rng(devices=[]):
        for step in range(done.step + 1, steps + 1):
            check_others(fabric)
            is_looked_at = monitor is not None and monitor.is_due(step, steps)
            is_logged = step % config.log.every == 0 or step == steps or is_looked_at
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(step - 1, config.optim)
            taken = take_step(
                fabric,
                learner,
                optimizer,
                read(step),
                config,
                colour=store.is_colour,
                progress=step / steps,
                wants_norm=is_logged,
            )
            first_bad = note_finite(first_bad, taken.losses["loss"], step)

            if is_logged:
                values = {name: mean_of_all(fabric, value) for name, value in taken.losses.items()}
                values |= {"learning_rate": learning_rate(step - 1, config.optim), "grad_norm": float(taken.norm)}
                values["effective_rank"] = effective_rank(taken.embeddings)
                if monitor:
                    values["knn_accuracy"] = monitor.accuracy(module.encoder, fabric.device) if is_looked_at else nan
                log.write(step, values)
                check_finite(fabric, int(first_bad), out)
                check_rank(fabric, values["effective_rank"], step, config, out)
            watch(StepsDone(step, steps, log.row))
            if fabric.is_global_zero:
                reached("step.done")

            is_asked = is_logged or asks_others(step, accumulate, fabric.world_size)
            if is_asked and step < steps and on_any(fabric, stop.received is not None):
                save(step)
                if fabric.is_global_zero:
                    say(f"stopped after step {step:,}, which is saved: run the same command to go on.")
                stop.grant()
            if step % config.checkpoint.every == 0 or step in config.checkpoint.at or step == steps:
                save(step)

    bad_patches = done.bad_patches + sum_of_all(fabric, batches.bad)
    if fabric.is_global_zero:
        seconds = done.seconds + time.monotonic() - began
        _finish(out, module, training_set, config, fabric, round(seconds, 1), bad_patches)
    fabric.barrier()


def _resume(fabric: Fabric, out: Path, learner: Learner, optimizer: torch.optim.Optimizer, say: Say) -> CheckpointInfo:
    """Go on from the newest checkpoint; step 0 when there is none."""
    found = list_checkpoints(out)
    if not found:
        return CheckpointInfo(step=0, store="", seconds=0, bad_patches=0, groups=[], checksum=0)
    info = load_checkpoint(found[-1], learner, optimizer)
    scaler = getattr(fabric.strategy.precision, "scaler", None)
    if scaler is not None and info.scaler:
        scaler.load_state_dict(info.scaler)
    if fabric.is_global_zero:
        say(f"going on after step {info.step:,} ({found[-1]})")
    return info


def _scaler_state(fabric: Fabric) -> dict[str, float]:
    scaler = getattr(fabric.strategy.precision, "scaler", None)
    return dict(scaler.state_dict()) if scaler is not None else {}


def _finish(
    out: Path,
    learner: Learner,
    training_set: TrainingSet,
    config: TrainConfig,
    fabric: Fabric,
    seconds: float,
    bad: int,
) -> None:
    """Write the encoder with what it has seen, then `run.json`."""
    slides = training_set.slides()
    history = learner.encoder.card.history.then(slides, training_set.labels_used)
    card = learner.encoder.card.model_copy(update={"history": history})
    learner.encoder.save(out, card)
    info = RunInfo(
        objective=config.objective["name"],
        backbone=config.model.backbone,
        seed=config.seed,
        steps=config.optim.steps,
        images=config.batch.images * config.optim.accumulate * config.optim.steps,
        seconds=seconds,
        devices=f"{fabric.world_size} x {fabric.device.type}, {config.compute.precision}",
        store=training_set.store.checksum,
        splits=config.data.splits,
        patients=tuple(dict.fromkeys(slide.patient for slide in slides)),
        slides=len(slides),
        patches=len(training_set.tree.leaves),
        labels_used=training_set.labels_used,
        bad_patches=bad,
        versions=versions(*_PACKAGES),
    )
    write_atomic(out / RUN, (info.model_dump_json(indent=1) + "\n").encode())

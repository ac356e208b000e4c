"""The training loop, read top to bottom: plan and resume; learn, log, stop or save at every step; finish."""

import time
from collections.abc import Iterator
from contextlib import closing
from math import nan
from pathlib import Path
from typing import Any

import torch
from lightning_fabric import Fabric

from hidisc.artefacts.inputs import ANY_INPUTS, ExpectedInputs
from hidisc.ground.files import write_atomic
from hidisc.ground.machine import versions
from hidisc.ground.progress import Progress
from hidisc.ground.stop import StopRequest, reached
from hidisc.models.encoder import effective_rank
from hidisc.patches.store import PatchStore
from hidisc.sampling.batches import Batch
from hidisc.settings.config import Config
from hidisc.settings.train import TrainConfig
from hidisc.training.checkpoint import CheckpointInfo, list_checkpoints, load_checkpoint, save_checkpoint
from hidisc.training.log import TrainingLog
from hidisc.training.monitor import check_entropy, check_finite, check_rank, check_weights, note_finite
from hidisc.training.plan import Plan, make_plan
from hidisc.training.processes import asks_others, check_others, mean_of_all, on_any, sum_of_all
from hidisc.training.run import RUN, RunInfo
from hidisc.training.step import StepResult, take_step

_PACKAGES = ("hidisc", "torch", "torchvision", "timm", "lightning-fabric", "numpy")


def fit(
    fabric: Fabric,
    store: PatchStore,
    out: Path,
    config: TrainConfig,
    objective: Config,
    progress: Progress,
    begun: ExpectedInputs = ANY_INPUTS,
) -> None:
    """Train, from the beginning or from the last checkpoint, and write the encoder and `run.json`.

    The caller holds `out`, which was `begun` from inputs; `objective` are the settings of the objective that the config
    names. Memory: the model with its gradients and two moments, the activations of one batch and the batches read
    ahead; nothing grows with the number of patches but the few bytes per patch of the table.
    """
    plan = make_plan(fabric, store, out, config, objective, progress, begun)
    learner, optimizer = _wrap(fabric, plan)
    resumed, began = _resume(fabric, plan, progress), time.monotonic()
    steps, accumulate = config.optim.steps, config.optim.accumulate
    first_bad_step = torch.full((), -1, device=fabric.device)  # read when a row or a checkpoint is due
    is_frozen = False
    log = TrainingLog(fabric, out, config, resumed.step)
    batches = plan.batches.steps(resumed.step * accumulate, steps * accumulate)
    progress.advance(resumed.step)
    with closing(log), closing(batches), StopRequest() as stop, torch.random.fork_rng(devices=[]):
        for step in range(resumed.step + 1, steps + 1):
            check_others(fabric)
            if plan.is_frozen(step) != is_frozen:
                is_frozen = plan.is_frozen(step)
                plan.learner.encoder.backbone.requires_grad_(not is_frozen)
                learner, optimizer = _wrap(fabric, plan)
            for group in optimizer.param_groups:
                group["lr"] = plan.learning_rate(step) * group.get("scale", 1)
            result = take_step(
                fabric,
                learner,
                optimizer,
                _read_batches(batches, step, accumulate, log, progress),
                config,
                plan.views,
                progress=step / steps,
                wants_norm=plan.is_logged(step),
                stains=plan.stains,
            )
            first_bad_step = note_finite(first_bad_step, result.losses["loss"], step)
            if plan.is_logged(step):
                log.write(step, _measure_row(fabric, plan, step, result))
                check_finite(fabric, int(first_bad_step), out)
                check_rank(fabric, log.row["effective_rank"], step, config, out)
                check_entropy(fabric, log.row, step, config, out)
            elif not log.row:
                log.show(step, _read_losses(fabric, result))
            progress.show(log.row)
            progress.advance()
            if fabric.is_global_zero:
                reached("step.done")
            may_stop = step < steps and (plan.is_logged(step) or asks_others(step, accumulate, fabric.world_size))
            is_stopped = may_stop and on_any(fabric, stop.received is not None)
            if is_stopped or plan.is_saved(step):
                check_finite(fabric, int(first_bad_step), out)
                check_weights(fabric, plan.learner, step, out)
                _save(fabric, plan, step, *_count_up(fabric, plan, resumed, began))
            if is_stopped:
                if fabric.is_global_zero:
                    progress.say(f"stopped after step {step:,}, which is saved: run the same command to go on.")
                stop.grant()
    _finish(fabric, plan, *_count_up(fabric, plan, resumed, began))
    fabric.barrier()


def _wrap(fabric: Fabric, plan: Plan) -> tuple[Any, Any]:
    """Learner and optimiser as Fabric wraps them; needed anew when other weights learn: ranks share gradients."""
    module: Any = plan.learner
    learner, optimizer = fabric.setup(module, plan.optimizer)
    learner.train()
    return learner, optimizer


def _find_scaler(fabric: Fabric) -> Any:
    """The scaler of the loss in float16; None in other precisions."""
    return getattr(fabric.strategy.precision, "scaler", None)


def _resume(fabric: Fabric, plan: Plan, progress: Progress) -> CheckpointInfo:
    """Load the newest checkpoint; step 0 when there is none."""
    checkpoints = list_checkpoints(plan.out)
    if not checkpoints:
        return CheckpointInfo(step=0, store="", seconds=0, bad_patches=0, groups=[], checksum=0)
    info = load_checkpoint(checkpoints[-1], plan.learner, plan.optimizer)
    scaler = _find_scaler(fabric)
    if scaler is not None and info.scaler:
        scaler.load_state_dict(info.scaler)
    if fabric.is_global_zero:
        progress.say(f"going on after step {info.step:,} ({checkpoints[-1]})")
    return info


def _read_batches(
    batches: Iterator[Batch], step: int, accumulate: int, log: TrainingLog, progress: Progress
) -> Iterator[Batch]:
    """The batches of a step; the user is told of bad patches, and the log of the time spent waiting."""
    for _ in range(accumulate):
        asked = time.monotonic()
        batch = next(batches)
        log.waited += time.monotonic() - asked
        for reason in batch.bad:
            progress.say(f"warning: step {step}: {reason} Another patch of its slide was taken.")
        yield batch


def _read_losses(fabric: Fabric, result: StepResult) -> dict[str, float]:
    """The losses of a step by name, means over ranks; waits for the device."""
    return {name: mean_of_all(fabric, value) for name, value in result.losses.items()}


def _measure_row(fabric: Fabric, plan: Plan, step: int, result: StepResult) -> dict[str, float]:
    """The values of a row of metrics.csv; waits for the device."""
    row = _read_losses(fabric, result)
    row |= {"learning_rate": plan.learning_rate(step), "grad_norm": float(result.norm)}
    row["effective_rank"] = effective_rank(result.embeddings)
    if plan.monitor is not None:
        encoder = plan.learner.encoder
        row["knn_accuracy"] = plan.monitor.accuracy(encoder, fabric.device) if plan.is_monitored(step) else nan
    return row


def _count_up(fabric: Fabric, plan: Plan, resumed: CheckpointInfo, began: float) -> tuple[float, int]:
    """Seconds of training and bad patches of all ranks so far, over all resumptions."""
    bad_patches = resumed.bad_patches + sum_of_all(fabric, plan.batches.bad)
    return resumed.seconds + time.monotonic() - began, bad_patches


def _save(fabric: Fabric, plan: Plan, step: int, seconds: float, bad_patches: int) -> None:
    """Write the checkpoint of a step, on the first rank."""
    if fabric.is_global_zero:
        scaler = _find_scaler(fabric)
        save_checkpoint(
            plan.out,
            plan.learner,
            plan.optimizer,
            plan.config.checkpoint,
            step=step,
            store=plan.store.checksum,
            seconds=seconds,
            bad_patches=bad_patches,
            scaler=dict(scaler.state_dict()) if scaler is not None else {},
        )


def _finish(fabric: Fabric, plan: Plan, seconds: float, bad_patches: int) -> None:
    """Write the encoder with what it has seen, then `run.json`, on the first rank."""
    if not fabric.is_global_zero:
        return
    config, training_set, encoder = plan.config, plan.training_set, plan.learner.encoder
    slides = training_set.slides()
    history = encoder.card.history.then(slides, training_set.labels_used)
    encoder.save(plan.out, encoder.card.model_copy(update={"history": history}))
    info = RunInfo(
        objective=config.objective["name"],
        backbone=config.model.backbone,
        seed=config.seed,
        steps=config.optim.steps,
        images=config.batch.images * config.optim.accumulate * config.optim.steps,
        seconds=round(seconds, 1),
        devices=f"{fabric.world_size} x {fabric.device.type}, {config.compute.precision}",
        store=plan.store.checksum,
        splits=config.data.splits,
        patients=tuple(dict.fromkeys(slide.patient for slide in slides)),
        slides=len(slides),
        patches=len(training_set.tree.leaves),
        labels_used=training_set.labels_used,
        bad_patches=bad_patches,
        versions=versions(*_PACKAGES),
        level_names=plan.store.info.level_names,
    )
    write_atomic(plan.out / RUN, (info.model_dump_json(indent=1) + "\n").encode())

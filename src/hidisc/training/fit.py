"""The training loop, read top to bottom: build and resume; learn, log, stop or save at every step; finish."""

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from math import nan, prod
from pathlib import Path
from typing import Any

import torch
from lightning_fabric import Fabric

from hidisc.ground.errors import UserError
from hidisc.ground.files import seal, unseal, write_atomic
from hidisc.ground.machine import versions
from hidisc.ground.stop import StopRequest, reached
from hidisc.models.encoder import effective_rank
from hidisc.patches.store import PatchStore
from hidisc.sampling.batches import Batch, Batches
from hidisc.sampling.cohort_stain import CohortStain, StainTable, measure_stains
from hidisc.settings.train import TrainConfig
from hidisc.training.build import build_learner, build_optimizer, choose_training_set
from hidisc.training.checkpoint import CheckpointInfo, list_checkpoints, load_checkpoint, save_checkpoint
from hidisc.training.log import TrainingLog
from hidisc.training.monitor import (
    Monitor,
    check_entropy,
    check_finite,
    check_rank,
    check_weights,
    note_finite,
)
from hidisc.training.processes import asks_others, check_others, mean_of_all, on_any, run_on_first_rank, sum_of_all
from hidisc.training.run import RUN, STAIN, RunInfo
from hidisc.training.step import (
    Learner,
    StepResult,
    ViewMaker,
    check_compiler,
    is_backbone_frozen,
    learning_rate,
    take_step,
)

_PACKAGES = ("hidisc", "torch", "torchvision", "timm", "lightning-fabric", "numpy")


@dataclass(frozen=True)
class StepsDone:
    """How far a run is, for whoever shows it."""

    step: int
    steps: int
    row: dict[str, float]
    """The last row of metrics; before the first one, the losses and the speed of the first step."""


Say = Callable[[str], None]
Watch = Callable[[StepsDone], None]


def fit(fabric: Fabric, store: PatchStore, out: Path, config: TrainConfig, say: Say, watch: Watch) -> None:
    """Train, from the beginning or from the last checkpoint, and write the encoder and `run.json`.

    The caller holds `out`. Memory: the model with its gradients and two moments, the activations of one batch and
    the batches read ahead; nothing grows with the number of patches but the few bytes per patch of the table.
    """
    training, steps = _Training(fabric, store, out, config, say), config.optim.steps
    with closing(training.log), closing(training.source), StopRequest() as stop, torch.random.fork_rng(devices=[]):
        for step in range(training.resumed.step + 1, steps + 1):
            check_others(fabric)
            result = training.learn(step)
            if training.is_logged(step):
                training.write_row(step, result)
            elif not training.log.row:
                training.log.show(step, training.read_losses(result))
            watch(StepsDone(step, steps, training.log.row))
            if fabric.is_global_zero:
                reached("step.done")
            if step < steps and training.may_stop(step) and on_any(fabric, stop.received is not None):
                training.save(step)
                training.say_once(f"stopped after step {step:,}, which is saved: run the same command to go on.")
                stop.grant()
            if step % config.checkpoint.every == 0 or step in config.checkpoint.at or step == steps:
                training.save(step)
    training.finish()
    fabric.barrier()


class _Training:
    """What a run is made of, and what `fit` does with it; built in the state of the newest checkpoint."""

    def __init__(self, fabric: Fabric, store: PatchStore, out: Path, config: TrainConfig, say: Say) -> None:
        self._fabric, self._store, self._out, self._config, self._say = fabric, store, out, config, say
        self._training_set = choose_training_set(store, config)
        sampler = self._training_set.sampler(config, fabric.world_size)
        if sampler.repeats:
            self.say_once(
                f"note: a batch of {config.batch.images} images draws {sampler.roots} {config.batch.levels[0]}s and "
                f"there are {self._training_set.tree.roots}: some repeat within a batch, as "
                "positives. Smaller batch.images avoid it."
            )
        check_compiler(config, fabric.device.type)
        learner: Any = build_learner(self._training_set, config, fabric.world_size)
        self._note_single()
        self._learner, self._optimizer = fabric.setup(learner, build_optimizer(learner, config))
        self._module: Learner = self._learner.module
        if self._module.encoder.note:
            self.say_once(self._module.encoder.note)
        self.resumed = self._resume()
        rank, pin = fabric.global_rank, fabric.device.type == "cuda"
        self._stains = self._measure_stains()
        self._batches = Batches(store, self._training_set.tree, sampler, config.data, config.seed, rank, pin=pin)
        accumulate = config.optim.accumulate
        self.source = self._batches.steps(self.resumed.step * accumulate, config.optim.steps * accumulate)
        self._monitor = Monitor(store, config.monitor, config.data, config.seed) if config.monitor.every else None
        self._make_views = ViewMaker(config, store)
        self.log = TrainingLog(fabric, out, config, self.resumed.step)
        self._began = time.monotonic()
        self._first_bad_step = torch.full((), -1, device=fabric.device)  # read when a row or a checkpoint is due
        self._learner.train()

    def _note_single(self) -> None:
        """Say which units lack positives because theirs must differ at a finer level; refuse when all of them do."""
        levels, draw = self._config.batch.levels, self._config.batch.draw
        for level, inner in self._config.objective.get("across", {}).items():
            single, units = self._training_set.count_single(level, inner)
            between = levels[levels.index(level) + 1 : levels.index(inner) + 1]
            is_drawn_once = prod(draw.get(name, 1) for name in between) == 1
            if single == units or is_drawn_once:
                why = f"every {level} has" if single == units else f"batch.draw takes of every {level}"
                raise UserError(
                    f"objective.across = {{{level}: {inner}}}, and {why} one {inner}, so there are no positives at "
                    "that level. Leave it out, or change batch.draw."
                )
            if single:
                self.say_once(
                    f"note: {single} of {units} {level}s have one {inner} and so no positives at that level "
                    "(objective.across)."
                )

    def say_once(self, sentence: str) -> None:
        """Say a sentence on the first rank only."""
        if self._fabric.is_global_zero:
            self._say(sentence)

    def _resume(self) -> CheckpointInfo:
        """Load the newest checkpoint; step 0 when there is none."""
        checkpoints = list_checkpoints(self._out)
        if not checkpoints:
            return CheckpointInfo(step=0, store="", seconds=0, bad_patches=0, groups=[], checksum=0)
        info = load_checkpoint(checkpoints[-1], self._module, self._optimizer.optimizer)
        if self._scaler is not None and info.scaler:
            self._scaler.load_state_dict(info.scaler)
        self.say_once(f"going on after step {info.step:,} ({checkpoints[-1]})")
        return info

    def _measure_stains(self) -> StainTable | None:
        """The stains of the slides where views need them; measured once, by the first rank, and kept in the run."""
        if "cohort_stain" not in self._config.views.ops:
            return None
        path = self._out / STAIN

        def measure() -> None:
            if not path.is_file():
                cohort = measure_stains(self._store, self._training_set.tree.leaves, self._config.seed)
                write_atomic(path, seal(cohort))

        run_on_first_rank(self._fabric, measure)
        try:
            return StainTable(self._store, unseal(path.read_bytes(), CohortStain))
        except ValueError as error:
            raise UserError(f"{path} is damaged ({error}). Remove it: it is measured again.") from error

    @property
    def _scaler(self) -> Any:
        """What scales the loss of float16, None in other precisions."""
        return getattr(self._fabric.strategy.precision, "scaler", None)

    def learn(self, step: int) -> StepResult:
        """Take one optimiser step, and note whether its loss was finite; nothing waits for the device."""
        self._freeze(is_backbone_frozen(step - 1, self._config.optim))
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate(step - 1, self._config.optim) * group.get("scale", 1)
        result = take_step(
            self._fabric,
            self._learner,
            self._optimizer,
            self._read_batches(step),
            self._config,
            self._make_views,
            progress=step / self._config.optim.steps,
            wants_norm=self.is_logged(step),
            stains=self._stains,
        )
        self._first_bad_step = note_finite(self._first_bad_step, result.losses["loss"], step)
        return result

    def _freeze(self, frozen: bool) -> None:
        """Have the backbone learn or not; ranks that share gradients are told anew whose gradients there are."""
        backbone = self._module.encoder.backbone
        if next(backbone.parameters()).requires_grad == frozen:
            backbone.requires_grad_(not frozen)
            self._learner, self._optimizer = self._fabric.setup(self._module, self._optimizer.optimizer)
            self._learner.train()

    def _read_batches(self, step: int) -> Iterator[Batch]:
        """The batches of a step, as many as are accumulated; bad patches are said, time spent waiting is counted."""
        for _ in range(self._config.optim.accumulate):
            asked = time.monotonic()
            batch = next(self.source)
            self.log.waited += time.monotonic() - asked
            for reason in batch.bad:
                self._say(f"warning: step {step}: {reason} Another patch of its slide was taken.")
            yield batch

    def _is_monitored(self, step: int) -> bool:
        every = self._config.monitor.every
        return every is not None and (step % every == 0 or step == self._config.optim.steps)

    def is_logged(self, step: int) -> bool:
        """Whether a row of metrics.csv is due."""
        return step % self._config.log.every == 0 or step == self._config.optim.steps or self._is_monitored(step)

    def read_losses(self, result: StepResult) -> dict[str, float]:
        """The losses of a step by name, means over ranks; waits for the device."""
        return {name: mean_of_all(self._fabric, value) for name, value in result.losses.items()}

    def write_row(self, step: int, result: StepResult) -> None:
        """Write a row of metrics.csv, then stop a run that learns nothing any more."""
        row = self.read_losses(result)
        row |= {"learning_rate": learning_rate(step - 1, self._config.optim), "grad_norm": float(result.norm)}
        row["effective_rank"] = effective_rank(result.embeddings)
        if self._monitor is not None:
            encoder, device = self._module.encoder, self._fabric.device
            row["knn_accuracy"] = self._monitor.accuracy(encoder, device) if self._is_monitored(step) else nan
        self.log.write(step, row)
        check_finite(self._fabric, int(self._first_bad_step), self._out)
        check_rank(self._fabric, row["effective_rank"], step, self._config, self._out)
        check_entropy(self._fabric, row, step, self._config, self._out)

    def may_stop(self, step: int) -> bool:
        """Whether ranks ask each other after a step if one of them was told to stop."""
        return self.is_logged(step) or asks_others(step, self._config.optim.accumulate, self._fabric.world_size)

    def save(self, step: int) -> None:
        """Write the checkpoint of a step, unless its numbers are not finite."""
        check_finite(self._fabric, int(self._first_bad_step), self._out)
        check_weights(self._fabric, self._module, step, self._out)
        seconds, bad_patches = self._count_up()
        if self._fabric.is_global_zero:
            save_checkpoint(
                self._out,
                self._module,
                self._optimizer.optimizer,
                self._config.checkpoint,
                step=step,
                store=self._store.checksum,
                seconds=seconds,
                bad_patches=bad_patches,
                scaler=dict(self._scaler.state_dict()) if self._scaler is not None else {},
            )

    def _count_up(self) -> tuple[float, int]:
        """Seconds of training and bad patches of all ranks so far, over all resumptions."""
        bad_patches = self.resumed.bad_patches + sum_of_all(self._fabric, self._batches.bad)
        return self.resumed.seconds + time.monotonic() - self._began, bad_patches

    def finish(self) -> None:
        """Write the encoder with what it has seen, then `run.json`."""
        seconds, bad_patches = self._count_up()
        if not self._fabric.is_global_zero:
            return
        config, training_set, encoder = self._config, self._training_set, self._module.encoder
        slides = training_set.slides()
        history = encoder.card.history.then(slides, training_set.labels_used)
        encoder.save(self._out, encoder.card.model_copy(update={"history": history}))
        info = RunInfo(
            objective=config.objective["name"],
            backbone=config.model.backbone,
            seed=config.seed,
            steps=config.optim.steps,
            images=config.batch.images * config.optim.accumulate * config.optim.steps,
            seconds=round(seconds, 1),
            devices=f"{self._fabric.world_size} x {self._fabric.device.type}, {config.compute.precision}",
            store=self._store.checksum,
            splits=config.data.splits,
            patients=tuple(dict.fromkeys(slide.patient for slide in slides)),
            slides=len(slides),
            patches=len(training_set.tree.leaves),
            labels_used=training_set.labels_used,
            bad_patches=bad_patches,
            versions=versions(*_PACKAGES),
            level_names=self._store.info.level_names,
        )
        write_atomic(self._out / RUN, (info.model_dump_json(indent=1) + "\n").encode())

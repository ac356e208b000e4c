"""The plan of a training: everything that is built once, before the first step, and stays as it is."""

from dataclasses import dataclass
from math import prod
from pathlib import Path

import torch
from lightning_fabric import Fabric

from hidisc.artefacts.inputs import ExpectedInputs
from hidisc.ground.errors import UserError
from hidisc.ground.files import seal, unseal, write_atomic
from hidisc.ground.progress import Progress
from hidisc.patches.store import PatchStore
from hidisc.sampling.batches import Batches
from hidisc.sampling.cohort_stain import CohortStain, StainTable, measure_stains
from hidisc.settings.config import Config
from hidisc.settings.train import TrainConfig
from hidisc.training.build import TrainingSet, build_learner, build_optimizer, choose_training_set, find_start
from hidisc.training.monitor import Monitor
from hidisc.training.processes import run_on_first_rank
from hidisc.training.run import STAIN
from hidisc.training.step import Learner, ViewMaker, check_compiler, is_backbone_frozen, learning_rate


@dataclass(frozen=True)
class Plan:
    """The patches, the learner and all that a training step needs; only the weights inside change."""

    store: PatchStore
    out: Path
    config: TrainConfig
    training_set: TrainingSet
    learner: Learner
    optimizer: torch.optim.Optimizer
    batches: Batches
    views: ViewMaker
    monitor: Monitor | None
    """None: no accuracy is measured during training."""
    stains: StainTable | None
    """The stains of the slides; None: no view needs them."""

    def is_monitored(self, step: int) -> bool:
        """Whether the accuracy of nearest neighbours is measured after a step."""
        every = self.config.monitor.every
        return every is not None and (step % every == 0 or step == self.config.optim.steps)

    def is_logged(self, step: int) -> bool:
        """Whether a row of metrics.csv is written after a step."""
        return step % self.config.log.every == 0 or step == self.config.optim.steps or self.is_monitored(step)

    def is_saved(self, step: int) -> bool:
        """Whether a checkpoint is written after a step."""
        checkpoint = self.config.checkpoint
        return step % checkpoint.every == 0 or step in checkpoint.at or step == self.config.optim.steps

    def is_frozen(self, step: int) -> bool:
        """Whether the backbone keeps its weights in a step."""
        return is_backbone_frozen(step - 1, self.config.optim)

    def learning_rate(self, step: int) -> float:
        """The learning rate of a step."""
        return learning_rate(step - 1, self.config.optim)


def make_plan(
    fabric: Fabric,
    store: PatchStore,
    out: Path,
    config: TrainConfig,
    objective: Config,
    progress: Progress,
    begun: ExpectedInputs,
) -> Plan:
    """Build all that a training needs; settings that do not fit the store or the machine are refused.

    `objective`: the settings of the objective, as `objectives.objective.load_settings` returns them. `begun`: what the
    run was begun from; starting weights that were replaced since are refused.
    """
    training_set = choose_training_set(store, config, objective)
    sampler = training_set.sampler(config, fabric.world_size)
    notes = []
    if sampler.repeats:
        notes.append(
            f"note: a batch of {config.batch.images} images draws {sampler.roots} {config.batch.levels[0]}s and "
            f"there are {training_set.tree.roots}: some repeat within a batch, as "
            "positives. Smaller batch.images avoid it."
        )
    check_compiler(config, fabric.device.type)
    learner = build_learner(training_set, config, objective, fabric.world_size)
    find_start(config, begun)  # after they are read: these are the weights of the run
    notes += _check_across(training_set, config, getattr(objective, "across", {}))
    notes += [learner.encoder.note] if learner.encoder.note else []
    if fabric.is_global_zero:
        for note in notes:
            progress.say(note)
    rank, pin = fabric.global_rank, fabric.device.type == "cuda"
    return Plan(
        store=store,
        out=out,
        config=config,
        training_set=training_set,
        learner=learner,
        optimizer=build_optimizer(learner, config),
        batches=Batches(store, training_set.tree, sampler, config.data, config.seed, rank, pin=pin),
        views=ViewMaker(config, store),
        monitor=Monitor(store, config.monitor, config.data, config.seed) if config.monitor.every else None,
        stains=_find_stains(fabric, training_set, out, config) if "cohort_stain" in config.views.ops else None,
    )


def _check_across(training_set: TrainingSet, config: TrainConfig, across: dict[str, str]) -> list[str]:
    """Notes on units that have no positives because theirs must differ at a finer level; refused if no unit has any."""
    levels, draw, notes = config.batch.levels, config.batch.draw, []
    for level, inner in across.items():
        single, units = training_set.count_single(level, inner)
        between = levels[levels.index(level) + 1 : levels.index(inner) + 1]
        is_drawn_once = prod(draw.get(name, 1) for name in between) == 1
        if single == units or is_drawn_once:
            why = f"every {level} has" if single == units else f"batch.draw takes of every {level}"
            raise UserError(
                f"objective.across = {{{level}: {inner}}}, and {why} one {inner}, so there are no positives at "
                "that level. Leave it out, or change batch.draw."
            )
        if single:
            notes.append(
                f"note: {single} of {units} {level}s have one {inner} and so no positives at that level "
                "(objective.across)."
            )
    return notes


def _find_stains(fabric: Fabric, training_set: TrainingSet, out: Path, config: TrainConfig) -> StainTable:
    """The stains of the slides, which the first rank measures once and writes to the run."""
    path, store = out / STAIN, training_set.store

    def measure() -> None:
        if not path.is_file():
            write_atomic(path, seal(measure_stains(store, training_set.tree.leaves, config.seed)))

    run_on_first_rank(fabric, measure)
    try:
        return StainTable(store, unseal(path.read_bytes(), CohortStain))
    except ValueError as error:
        raise UserError(f"{path} is damaged ({error}). Remove it: it is measured again.") from error

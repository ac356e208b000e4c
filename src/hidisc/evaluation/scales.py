"""An evaluation scale by scale: the patches of one scale, judged by reference patches of the same scale."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from hidisc.evaluation.bootstrap import score_level
from hidisc.evaluation.predictions import Predictions
from hidisc.evaluation.scores import LevelScores, ScaleScores, scale_file
from hidisc.evaluation.task import LabelledPatches, Task
from hidisc.ground.files import make_folder
from hidisc.patches.table import SAME_SCALE
from hidisc.settings.evaluate import EvaluateConfig

Predict = Callable[[Task], Sequence[Predictions]]
"""Predictions of a task at every level, by the first probe."""


def find_scales(task: Task) -> list[float]:
    """The scales, finest first, that both bank and queries have; empty where there are not several."""
    bank, queries = (np.unique(patches.names("mpp")) for patches in (task.bank, task.queries))
    shared = [float(mpp) for mpp in queries.round(4) if np.isclose(bank, mpp, rtol=SAME_SCALE).any()]
    return shared if len(shared) > 1 else []


def at_scale(task: Task, mpp: float) -> Task:
    """The task with the patches of one scale alone, in the bank and in the queries."""
    return replace(task, bank=_choose(task.bank, mpp), queries=_choose(task.queries, mpp))


def _choose(patches: LabelledPatches, mpp: float) -> LabelledPatches:
    chosen = np.isclose(patches.names("mpp"), mpp, rtol=SAME_SCALE)
    aligned = None if patches.aligned is None else patches.aligned[chosen]
    return replace(patches, rows=patches.rows[chosen], labels=patches.labels[chosen], aligned=aligned)


def score_scales(
    task: Task, floor: Task | None, predict: Predict, out: Path, config: EvaluateConfig
) -> tuple[tuple[ScaleScores, ...], list[str]]:
    """Judge every scale, and colour alone beside it; writes the predictions, and returns the names of their files."""
    found, files = [], []
    for mpp in find_scales(task):
        scored: dict[bool, tuple[LevelScores, ...]] = {True: ()}
        for of_floor, of in ((False, task), (True, floor)):
            here = None if of is None else at_scale(of, mpp)
            if here is None or not len(here.bank) or not len(here.queries):
                continue
            predictions = predict(here)
            files += save_scale(predictions, mpp, out, of_floor)
            scored[of_floor] = tuple(
                score_level(level, task.positive, config.bootstrap, config.seed) for level in predictions
            )
        found.append(ScaleScores(mpp=mpp, levels=scored[False], floor=scored[True]))
    return tuple(found), files


def save_scale(predictions: Sequence[Predictions], mpp: float, out: Path, of_floor: bool) -> list[str]:
    """Write the predictions of a scale; the names of their files."""
    files = [scale_file(mpp, level.level, of_floor) for level in predictions]
    for file, level in zip(files, predictions, strict=True):
        make_folder((out / file).parent)
        level.save(out / file)
    return files

"""An evaluation scale by scale: the patches of one scale, judged by reference patches of the same scale."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from hidisc.evaluation.levels import write_levels
from hidisc.evaluation.predictions import Predictions
from hidisc.evaluation.scores import LevelScores, ScaleScores, scale_file
from hidisc.evaluation.task import LabelledPatches, Task
from hidisc.patches.table import SAME_SCALE
from hidisc.settings.evaluate import EvaluateConfig

Predict = Callable[[float, bool], Sequence[Predictions]]
"""Predictions at every level from the patches of one scale, or from their colour alone; none where there are none."""


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
    scales: Iterable[float], predict: Predict, out: Path, positive: int, config: EvaluateConfig
) -> tuple[tuple[ScaleScores, ...], list[str]]:
    """Judge every scale, and colour alone beside it; writes the predictions, and returns the names of their files."""
    found: list[ScaleScores] = []
    files: list[str] = []
    for mpp in scales:
        scored: dict[bool, tuple[LevelScores, ...]] = {}
        for of_floor in (False, True):
            predictions = predict(mpp, of_floor)
            names = {level.level: scale_file(mpp, level.level, of_floor) for level in predictions}
            scored[of_floor] = write_levels(predictions, names, out, positive, config)
            files += names.values()
        found.append(ScaleScores(mpp=mpp, levels=scored[False], floor=scored[True]))
    return tuple(found), files

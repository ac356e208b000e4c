"""Scores of patches averaged to slides, patients, or any level of a hierarchy."""

import numpy as np
from numpy.typing import NDArray

from hidisc.evaluation.predictions import Predictions
from hidisc.evaluation.task import LabelledPatches, Task
from hidisc.ground.columns import Columns


def patch_predictions(task: Task, scores: NDArray[np.float64]) -> Predictions:
    """Scores (N, L) of the query patches with their names and places."""
    patches = task.queries
    units: Columns = {level: patches.names(level) for level in task.levels[:-1]}
    units |= {name: patches.embeddings.table.column(name)[patches.rows] for name in ("patch", "x", "y")}
    return Predictions("patch", task.classes, {**units, "row": patches.rows}, patches.labels, scores)


def pool_patches(task: Task, scores: NDArray[np.float64], level: str, second_softmax: bool = False) -> Predictions:
    """Mean scores (G, L) of the units of a level above the patch; units of several labels are left out and counted.

    `second_softmax`: of a patch's scores before they are averaged, as the public code has it.
    """
    patches = task.queries
    if second_softmax:
        scores = np.exp(scores)
        scores = scores / scores.sum(axis=1, keepdims=True)
    above = task.levels[: task.levels.index(level) + 1]
    units, first = group(patches, above)
    counts = np.bincount(units)
    means = np.stack([np.bincount(units, scores[:, code]) / counts for code in range(scores.shape[1])], axis=1)
    pure = has_one_label(units, patches.labels)
    names: Columns = {name: patches.names(name)[first[pure]] for name in above}
    return Predictions(level, task.classes, names, patches.labels[first[pure]], means[pure], int((~pure).sum()))


def pool_units(predictions: Predictions, level: str) -> Predictions:
    """Mean scores of coarser units, of predictions of finer ones that are not patches; each finer one counts alike."""
    names = list(predictions.units)
    above = names[: names.index(level) + 1]
    codes = [np.unique(predictions.units[name], return_inverse=True)[1] for name in above]
    units, first = _group_codes(codes)
    counts = np.bincount(units)
    scores = predictions.scores
    means = np.stack([np.bincount(units, scores[:, code]) / counts for code in range(scores.shape[1])], axis=1)
    pure = has_one_label(units, predictions.truth)
    kept: Columns = {name: predictions.units[name][first[pure]] for name in above}
    truth = predictions.truth[first[pure]]
    return Predictions(level, predictions.classes, kept, truth, means[pure], int((~pure).sum()))


def group(patches: LabelledPatches, levels: tuple[str, ...]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(N,) which unit each patch is in, by all its ancestors and not its name alone; (G,) a first patch of each."""
    return _group_codes([patches.codes(level) for level in levels])


def has_one_label(units: NDArray[np.int64], labels: NDArray[np.int64]) -> NDArray[np.bool_]:
    """(G,) whether all members of a unit have the same label."""
    count = int(units.max()) + 1
    low, high = np.full(count, np.iinfo(np.int64).max), np.full(count, -1)
    np.minimum.at(low, units, labels)
    np.maximum.at(high, units, labels)
    found: NDArray[np.bool_] = low == high
    return found


def _group_codes(
    codes: list[NDArray[np.int32]] | list[NDArray[np.int64]],
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    units = np.zeros(len(codes[0]), np.int64)
    first = np.zeros(1, np.int64)
    for finer in codes:
        combined = units * (int(finer.max()) + 2) + finer + 1
        _, first, units = np.unique(combined, return_index=True, return_inverse=True)
    return units, first

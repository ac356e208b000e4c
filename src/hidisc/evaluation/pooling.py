"""Scores of patches averaged to slides, patients, or any level of a hierarchy."""

import numpy as np

from hidisc.evaluation.predictions import Predictions
from hidisc.evaluation.task import Task
from hidisc.evaluation.units import Floats, Ints, Units, group
from hidisc.ground.columns import Columns


def patch_predictions(task: Task, scores: Floats) -> Predictions:
    """Scores (N, L) of the test patches with their names and positions."""
    patches = task.queries
    more = ("mpp",) if "place" in patches.embeddings.table.names else ()
    columns: Columns = {name: patches.names(name) for name in (*task.levels[:-1], "patch", "x", "y", *more)}
    return Predictions("patch", task.classes, {**columns, "row": patches.rows}, patches.labels, scores)


def pool_patches(task: Task, scores: Floats, level: str, second_softmax: bool = False) -> Predictions:
    """Mean scores (G, L) of the units of a level above the patch; units of several labels are left out and counted.

    `second_softmax` is applied to a patch's scores before they are averaged, as in the public code.
    """
    patches = task.queries
    if second_softmax:
        scores = np.exp(scores)
        scores = scores / scores.sum(axis=1, keepdims=True)
    levels = task.levels[: task.levels.index(level) + 1]
    columns: Columns = {name: patches.names(name) for name in levels}
    return _pool(level, task.classes, columns, patches.units(levels), patches.labels, scores)


def pool_units(predictions: Predictions, level: str) -> Predictions:
    """Mean scores of coarser units from predictions of finer ones, such as patients from slides, equally weighted."""
    names = list(predictions.units)
    columns = {name: predictions.units[name] for name in names[: names.index(level) + 1]}
    units = group([np.unique(column, return_inverse=True)[1] for column in columns.values()])
    return _pool(level, predictions.classes, columns, units, predictions.truth, predictions.scores)


def _pool(
    level: str, classes: tuple[str, ...], columns: Columns, units: Units, labels: Ints, scores: Floats
) -> Predictions:
    """Mean scores of the units that have one label; columns, labels (N,) and scores (N, L) are of the finer level."""
    has_one = units.have_one_label(labels)
    first = units.first[has_one]
    means = units.sums(scores)[has_one] / units.counts[has_one, None]
    names: Columns = {name: column[first] for name, column in columns.items()}
    return Predictions(level, classes, names, labels[first], means, int((~has_one).sum()))

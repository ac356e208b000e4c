"""Predictions: a probe's scores of every patch, slide or patient, with the true labels; averaged to any level."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hidisc.evaluation.task import Floats, Ints, Task, Units, group
from hidisc.ground.columns import Columns, load_columns, save_columns
from hidisc.ground.files import AnyPath

TRUTH, PREDICTED, SCORE, FOLD = "label", "predicted", "score: ", "judged in fold"


@dataclass(frozen=True)
class Predictions:
    """G units of one level; L classes."""

    level: str
    classes: tuple[str, ...]
    units: Columns
    """(G,) each: the names of a unit and of those above it, coarsest first; for patches also patch, x, y and row."""
    truth: NDArray[np.int64]
    """(G,) codes into `classes`."""
    scores: NDArray[np.float64]
    """(G, L), rows sum to 1."""
    left_out: int = 0
    """Units left out because their patches have several labels, so that they have no true label."""
    fold: NDArray[np.int64] | None = None
    """(G,) the fold that judged each, where folds were pooled; a score means something else in each."""

    def __len__(self) -> int:
        return len(self.truth)

    @property
    def predicted(self) -> NDArray[np.int64]:
        """(G,) the class of the largest score."""
        return self.scores.argmax(axis=1)

    @property
    def cluster(self) -> str:
        """The coarsest level, normally the patient: what the bootstrap resamples."""
        return next(iter(self.units))

    @property
    def clusters(self) -> NDArray[np.object_]:
        """(G,) name of the coarsest unit (the patient) each belongs to."""
        return self.units[self.cluster]

    def split_by_fold(self) -> list[NDArray[np.bool_]]:
        """(G,) each: the units of every fold, whose scores can be compared; all units where there are no folds."""
        if self.fold is None:
            return [np.ones(len(self), bool)]
        return [self.fold == number for number in np.unique(self.fold)]

    def save(self, path: Path) -> None:
        """Write as Parquet: units, `label`, `predicted`, the fold if any, and one column `score: CLASS` per class."""
        names = np.array(self.classes, object)
        columns = {**self.units, TRUTH: names[self.truth], PREDICTED: names[self.predicted]}
        columns |= {} if self.fold is None else {FOLD: self.fold}
        columns |= {SCORE + name: self.scores[:, code] for code, name in enumerate(self.classes)}
        save_columns(path, columns)

    @classmethod
    def load(cls, path: AnyPath, level: str, left_out: int = 0) -> "Predictions":
        """Read back what `save` wrote."""
        columns = load_columns(Path(path))
        classes = tuple(name.removeprefix(SCORE) for name in columns if name.startswith(SCORE))
        code = {name: number for number, name in enumerate(classes)}
        truth = np.array([code[name] for name in columns.pop(TRUTH)], np.int64)
        columns.pop(PREDICTED)
        fold = columns.pop(FOLD, None)
        scores = np.stack([columns.pop(SCORE + name) for name in classes], axis=1)
        return cls(level, classes, columns, truth, scores, left_out, fold)


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

"""Patches sampled evenly over patients, and patients assigned to folds of cross-validation."""

import numpy as np

from hidisc.evaluation.metrics import Ints
from hidisc.evaluation.task import LabelledPatches


def find_patients(patches: LabelledPatches, levels: tuple[str, ...]) -> Ints:
    """(N,) the unit of the coarsest level, normally the patient, of each patch; without such a level, the patch."""
    codes = patches.codes(levels[0]) if len(levels) > 1 else np.arange(len(patches))
    return codes.astype(np.int64)


def sample_per_patient(patients: Ints, count: int, rng: np.random.Generator) -> Ints:
    """At most `count` indices into `patients` (N,), ascending, as evenly over patients as their patches allow.

    The patches are shuffled; then every patient's first patch is taken, every patient's second, and so on.
    """
    if len(patients) <= count:
        return np.arange(len(patients))
    shuffled = rng.permutation(len(patients))
    round_number = count_before(patients[shuffled])
    return np.sort(shuffled[np.argsort(round_number, kind="stable")[:count]])


def assign_folds(patients: Ints, labels: Ints, folds: int, rng: np.random.Generator) -> Ints:
    """(N,) the fold of each row, given `patients` (N,) and `labels` (N,); all rows of a patient are in one fold.

    The patients of each label are assigned to folds 0, 1, 2, 0, 1, ... in random order: with 3 folds, 4 patients of
    label A and 2 of label B, fold 0 has two of A and one of B, fold 1 one of each, fold 2 one of A. So fold 0 has every
    label. A patient of several labels counts for the one that the fewest patients have.
    """
    names, patient = np.unique(patients, return_inverse=True)
    has_label = np.zeros((len(names), int(labels.max()) + 1), bool)
    has_label[patient, labels] = True
    patients_of_label = has_label.sum(axis=0)
    rarest_label = np.where(has_label, patients_of_label, len(names) + 1).argmin(axis=1)
    shuffled = rng.permutation(len(names))
    fold = np.empty(len(names), np.int64)
    fold[shuffled] = count_before(rarest_label[shuffled]) % folds
    return fold[patient]


def find_lacking(folds: Ints, labels: Ints) -> int | None:
    """The first label that only one fold has, so that none is left when that fold is held out, or None; both (N,)."""
    for fold in np.unique(folds):
        lacking = np.setdiff1d(labels, labels[folds != fold])
        if len(lacking):
            return int(lacking[0])
    return None


def count_before(values: Ints) -> Ints:
    """(N,) how often each value occurs before it: [7, 5, 7, 7, 5] gives [0, 0, 1, 2, 1]."""
    order = np.argsort(values, kind="stable")  # [1, 4, 0, 2, 3]: equal values together, in their own order
    _, start, length = np.unique(values[order], return_index=True, return_counts=True)  # [0, 2] and [2, 3]
    before = np.empty(len(values), np.int64)
    before[order] = np.arange(len(values)) - np.repeat(start, length)  # position within the run of equal values
    return before

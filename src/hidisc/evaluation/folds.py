"""Patches of the bank drawn alike of every patient, and patients dealt into folds."""

import numpy as np
from numpy.typing import NDArray

from hidisc.evaluation.task import LabelledPatches


def find_patients(patches: LabelledPatches, levels: tuple[str, ...]) -> NDArray[np.int64]:
    """(N,) which unit of the coarsest level, normally the patient, each patch is of; with no level above, its own."""
    codes = patches.codes(levels[0]) if len(levels) > 1 else np.arange(len(patches))
    return codes.astype(np.int64)


def sample_per_patient(patients: NDArray[np.int64], count: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """At most `count` places of `patients` (N,), ascending; nobody gives one more before all have given as many."""
    if len(patients) <= count:
        return np.arange(len(patients))
    order = rng.permutation(len(patients))
    turn = count_before(patients[order])
    return np.sort(order[np.argsort(turn, kind="stable")[:count]])


def deal_patients(
    patients: NDArray[np.int64], labels: NDArray[np.int64], folds: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """(N,) fold of each row, whole patients together, given their `patients` (N,) and `labels` (N,).

    The patients of each label are dealt in turn, beginning with fold 0, which so has one of every label. A patient of
    several labels counts for the one that the fewest patients have.
    """
    names, who = np.unique(patients, return_inverse=True)
    has = np.zeros((len(names), int(labels.max()) + 1), bool)
    has[who, labels] = True
    label = np.where(has, has.sum(axis=0), len(names) + 1).argmin(axis=1)
    order = rng.permutation(len(names))
    fold = np.empty(len(names), np.int64)
    fold[order] = count_before(label[order]) % folds
    return fold[who]


def find_lacking(folds: NDArray[np.int64], labels: NDArray[np.int64]) -> int | None:
    """The first label that is missing when some fold is left out, or None; both (N,)."""
    for fold in np.unique(folds):
        lacking = np.setdiff1d(labels, labels[folds != fold])
        if len(lacking):
            return int(lacking[0])
    return None


def count_before(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """(N,) how often each value has come before."""
    order = np.argsort(values, kind="stable")
    first = np.flatnonzero(np.diff(values[order], prepend=values[order[:1]] - 1))
    lengths = np.diff(np.append(first, len(values)))
    before = np.empty(len(values), np.int64)
    before[order] = np.arange(len(values)) - np.repeat(first, lengths)
    return before

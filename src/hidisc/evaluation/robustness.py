"""The robustness index: whether the neighbours of a patch among other patients share its label or its nuisance.

Of the k nearest patches, SO have the same label and another value of the nuisance, OS another label and the same value.
SO / (SO + OS) is 1 where the label alone decides who is near, and 0 where the nuisance does (PathoROB, 2025).
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from hidisc.evaluation.neighbours import find_neighbours
from hidisc.evaluation.units import Floats, Ints

Similarities = NDArray[np.float32]


class Vectors(Protocol):
    """Rows (N, D) that are read when they are asked for, by their numbers."""

    def __len__(self) -> int: ...
    def __getitem__(self, rows: Ints, /) -> Similarities: ...


@dataclass(frozen=True)
class _Rows:
    """Some rows of vectors, read when they are asked for."""

    vectors: Vectors
    rows: Ints

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, part: slice) -> Similarities:
        return self.vectors[self.rows[part]]


def find_other_patients(
    vectors: Vectors, queries: Ints, patients: Ints, k: int, memory_gb: float, device: str = "cpu"
) -> tuple[Similarities, Ints]:
    """Similarities and rows (Q, k) of the patches of other patients nearest to the rows `queries` (Q,), nearest first.

    The patients are halved again and again; each half looks for neighbours in the other one. So two patients meet once,
    a patient never meets itself, and all of it costs one search. Where there are fewer than k, rows are -1.
    """
    order = np.argsort(patients, kind="stable")  # patches by patient
    starts = np.append(np.unique(patients[order], return_index=True)[1], len(order))
    asked = np.argsort(patients[queries], kind="stable")
    asked_starts = np.searchsorted(patients[queries][asked], patients[order][starts[:-1]])
    asked_starts = np.append(asked_starts, len(queries))
    similarities = np.full((len(queries), k), -np.inf, np.float32)
    rows = np.full((len(queries), k), -1)
    waiting = [(0, len(starts) - 1)]
    while waiting:
        first, last = waiting.pop()
        middle = (first + last) // 2
        if first == middle:
            continue
        waiting += [(first, middle), (middle, last)]
        for asking, offering in (((first, middle), (middle, last)), ((middle, last), (first, middle))):
            who = asked[asked_starts[asking[0]] : asked_starts[asking[1]]]
            bank = order[starts[offering[0]] : starts[offering[1]]]
            if not len(who):
                continue
            for block, near, found in find_neighbours(
                _Rows(vectors, queries[who]), _Rows(vectors, bank), k, memory_gb, device
            ):
                _merge(similarities, rows, who[block], near.astype(np.float32), bank[found])
    return similarities, rows


def _merge(similarities: Similarities, rows: Ints, who: Ints, near: Similarities, found: Ints) -> None:
    """Put what was found for some queries (n,) among the nearest so far, in place."""
    both = np.concatenate([similarities[who], near], axis=1)
    both_rows = np.concatenate([rows[who], found], axis=1)
    best = np.argsort(-both, axis=1, kind="stable")[:, : similarities.shape[1]]
    similarities[who], rows[who] = np.take_along_axis(both, best, 1), np.take_along_axis(both_rows, best, 1)


def count_shared(labels: Ints, values: Ints, queries: Ints, neighbours: Ints) -> tuple[Floats, Floats]:
    """Whether each neighbour is SO, and OS, as 0 or 1 (Q, k): of rows `queries` (Q,), -1 where there is no neighbour.

    `labels` and `values` (N,) are negative where not known; a pair of which something is not known is neither.
    """
    label, value = labels[queries][:, None], values[queries][:, None]
    theirs, their_values = labels[neighbours], values[neighbours]
    known = (neighbours >= 0) & (label >= 0) & (value >= 0) & (theirs >= 0) & (their_values >= 0)
    same_label, same_value = theirs == label, their_values == value
    so, os = known & same_label & ~same_value, known & ~same_label & same_value
    return so.astype(np.float64), os.astype(np.float64)


def expect_shared(labels: Ints, values: Ints, patients: Ints, queries: Ints) -> tuple[Floats, Floats]:
    """How likely a neighbour of each query is SO, and OS (Q,), if all patches of other patients are equally likely."""
    known = (labels >= 0) & (values >= 0)
    own = np.zeros((patients.max() + 1, labels.max() + 1, values.max() + 1))  # (P, L, C) patches
    np.add.at(own, (patients[known], labels[known], values[known]), 1)
    others = own.sum(axis=0) - own
    candidates = len(patients) - np.bincount(patients)
    patient, label, value = patients[queries], labels[queries], values[queries]
    both, counts = others[patient, label, value], known[queries] / np.maximum(candidates[patient], 1)
    so = others.sum(axis=2)[patient, label] - both
    os = others.sum(axis=1)[patient, value] - both
    return so * counts, os * counts


def sum_pairs(counts: Floats, patients: Ints, weights: Floats) -> Floats:
    """(B,) sum of `counts` (n,) over pairs of `patients` (2, n), each as often as both are drawn, by `weights` (B, P).

    The neighbours' patients are resampled too: a few patients may be near to all others.
    """
    people = weights.shape[1]
    table = torch.sparse_coo_tensor(
        torch.from_numpy(patients), torch.from_numpy(counts), (people, people), check_invariants=True
    )
    drawn = torch.from_numpy(weights.T.copy())  # (P, B)
    return ((table @ drawn) * drawn).sum(dim=0).numpy()

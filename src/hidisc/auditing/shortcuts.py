"""The robustness index: whether the neighbours of a patch among other patients share its label or its nuisance.

Of the k nearest patches, SO have the same label and another value of the nuisance, OS another label and the same value.
SO / (SO + OS) is 1 where the label alone decides who is near, and 0 where the nuisance does (PathoROB, 2025).

What a nuisance does to an encoder: how well it is predicted at equal label, and what it costs the label's accuracy.

All numbers are means over cells (a label, or a label with a value of the nuisance) of means over the patients in them:
a large patient, a common label or a common site counts no more than another. `weights` (B + 1, P) says how often
each patient counts: once in the first row, and as drawn in the B bootstrap resamples below it.
"""

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from hidisc.evaluation.compare import draw_weights
from hidisc.evaluation.metrics import Floats, Ints, Value, divide
from hidisc.evaluation.neighbours import find_neighbours
from hidisc.evaluation.probes.folds import assign_folds
from hidisc.evaluation.probes.knn import vote

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


_FOLDS, _DRAWS = 5, 10
_PENALTY, _ITERATIONS, _TEMPERATURE = 0.1, 200, 0.07
FEW = 2
"""Least patients of a cell: what one patient shows may be that patient."""


@dataclass(frozen=True)
class Sample:
    """n patches of which the label and the value of the nuisance are known, P patients, L labels, C values."""

    z: NDArray[np.float32]
    """(n, D) embeddings."""
    cosines: NDArray[np.float32]
    """(n, n)."""
    patients: Ints
    """(n,) 0 to P - 1."""
    labels: Ints
    values: Ints

    @property
    def cells(self) -> Ints:
        """(n,) the label and the value of each patch as one number."""
        return self.labels * (int(self.values.max()) + 1) + self.values

    def count_patients(self) -> Ints:
        """(L, C) patients that have patches of each label and value."""
        pairs = np.unique(np.stack([self.labels, self.values, self.patients]), axis=1)
        table = np.zeros((self.labels.max() + 1, self.values.max() + 1), np.int64)
        np.add.at(table, (pairs[0], pairs[1]), 1)
        return table


def add_resamples(patients: int, resamples: int, seed: int) -> Floats:
    """(B + 1, P) weights: all patients once, then the bootstrap resamples."""
    return np.concatenate([np.ones((1, patients)), draw_weights(patients, resamples, seed)])


@dataclass(frozen=True)
class CellMeans:
    """Means of G cells, in the cohort and in the resamples."""

    means: Floats
    """(B + 1, G), NaN where no patient has the cell."""
    errors: Floats
    """(G,) standard error of each mean, from one variance between patients for all cells: two patients of a cell say
    nothing of theirs, and resampling them hardly more."""


def average_cells(scores: Floats, patients: Ints, cells: Ints, count: int, weights: Floats) -> CellMeans:
    """Mean over patients of the mean score (n,) of their patches in each of `count` cells."""
    sums, patches = np.zeros((weights.shape[1], count)), np.zeros((weights.shape[1], count))
    np.add.at(sums, (patients, cells), scores)
    np.add.at(patches, (patients, cells), 1)
    own, there = sums / np.maximum(patches, 1), (patches > 0).astype(np.float64)  # (P, G)
    means = divide(weights @ own, weights @ there)
    freedom = max(1.0, there.sum() - (there.sum(axis=0) > 0).sum())
    variance = (there * np.square(own - np.nan_to_num(means[0]))).sum() / freedom
    return CellMeans(means, np.sqrt(variance / np.maximum(there.sum(axis=0), 1)))


def to_value(resampled: Floats, interval: float, error: float = 0.0, spread: float = 0.0) -> Value:
    """The first number of (B + 1,) with an interval: of the others, or by the standard error where that is wider.

    NaN are resamples without the patients needed. `spread` is the standard deviation that other reference patients
    would add; it widens the interval, which stays between -1 and 1, or 0 and 1 where no resample is negative.
    """
    value, rest = float(resampled[0]), resampled[1:][~np.isnan(resampled[1:])]
    if len(rest) <= len(resampled) // 2:
        return Value(value=value, why="it has no interval: too few patients, or bootstrap.resamples=0")
    ends = np.quantile(rest, [(1 - interval) / 2, (1 + interval) / 2])
    z = NormalDist().inv_cdf((1 + interval) / 2)
    below, above = (math.hypot(max(part, z * error), z * spread) for part in (value - ends[0], ends[1] - value))
    least = 0.0 if rest.min() >= 0 <= value else -1.0
    return Value(value=value, low=max(least, value - below), high=min(1.0, value + above))


def probe_nuisance(
    sample: Sample, weights: Floats, interval: float, rng: np.random.Generator
) -> tuple[Value, float | None]:
    """How well a linear probe predicts the nuisance at equal label, for patients it has not seen; and its chance.

    Only cells of two patients or more count, and labels with two such cells. In learning every cell weighs the same, so
    that the label says nothing of the nuisance; an encoder that reflects the label alone is then right for one of the
    values of a label and wrong for the others: 1 / (number of values), whatever it predicts.
    """
    eligible = sample.count_patients() >= FEW
    eligible &= eligible.sum(axis=1, keepdims=True) > 1
    if not eligible.any():
        return Value(value=None, why="no label has two values with two patients each"), None
    cells = sample.cells
    folds = assign_folds(sample.patients, cells, _FOLDS, rng)
    right = np.zeros(len(cells))
    for fold in np.unique(folds):
        held_out = folds == fold
        right[held_out] = _predict_values(sample, ~held_out, held_out) == sample.values[held_out]
    found = average_cells(right, sample.patients, cells, eligible.size, weights)
    resampled, chance = above_chance(np.where(eligible, found.means.reshape(-1, *eligible.shape), np.nan))
    parts = eligible / np.maximum(eligible.sum(axis=1, keepdims=True), 1) / eligible.any(axis=1).sum()  # of each cell
    return to_value(resampled, interval, float(np.linalg.norm(parts.ravel() * found.errors))), chance


def _predict_values(sample: Sample, learn: Ints, ask: Ints) -> Ints:
    """The nuisance of some patches (a mask), by logistic regression on others, all cells of which weigh the same."""
    values, cells = sample.values[learn], sample.cells[learn]
    if len(np.unique(values)) == 1:
        return np.full(int(ask.sum()), values[0])
    heaviness = len(cells) / (len(np.unique(cells)) * np.bincount(cells)[cells])
    model = make_pipeline(StandardScaler(), LogisticRegression(C=_PENALTY, max_iter=_ITERATIONS))
    model.fit(sample.z[learn], values, logisticregression__sample_weight=heaviness)
    predicted: Ints = model.predict(sample.z[ask])
    return predicted


def above_chance(means: Floats) -> tuple[Floats, float]:
    """Mean over labels of the means of their cells (B + 1, L, C), and its chance in the cohort; NaN cells are absent.

    A resample may lack a cell, and so have another chance; what it has above that is added to the cohort's.
    """
    there = (~np.isnan(means)).sum(axis=2)  # (B + 1, L)
    counts = there > 1
    of_label = divide(np.nansum(means, axis=2), there.astype(np.float64))
    excess = np.where(counts, of_label - 1 / np.maximum(there, 1), 0).sum(axis=1)
    labels = counts.sum(axis=1).astype(np.float64)
    chance = float((1 / there[0][counts[0]]).mean())
    return divide(excess, labels) + chance, chance


@dataclass(frozen=True)
class Reference:
    """Patches (r,) whose labels are known, so chosen that a patient who is asked for never makes their number smaller.

    Every group (a label or a cell) has as many patients as wanted, and a spare one, who stands in for a patient of the
    group while that patient is asked for. Without it, the own label would be rarer among the others, by one patient.
    """

    rows: Ints
    groups: Ints
    """(r,) of each patch."""
    is_spare: NDArray[np.bool_]
    """(r,)."""

    def hide(self, sample: Sample, ask: Ints) -> NDArray[np.bool_]:
        """(q, r) which patches do not count for the patches `ask` (q,): their own patient's, and spare ones."""
        patients = sample.patients[self.rows]
        has = np.zeros((int(sample.patients.max()) + 1, int(self.groups.max(initial=0)) + 1), bool)
        has[patients[~self.is_spare], self.groups[~self.is_spare]] = True
        asked = sample.patients[ask]
        return (asked[:, None] == patients) | (self.is_spare & ~has[asked][:, self.groups])


def draw_reference(sample: Sample, groups: Ints, wanted: Ints, rng: np.random.Generator) -> Reference:
    """Patients of every group, as many as `wanted` (G,) and one spare if there is; `groups` (n,) of the patches."""
    rows, is_spare = [], []
    for number, patients in enumerate(wanted):
        of_group = np.flatnonzero(groups == number)
        order = rng.permutation(np.unique(sample.patients[of_group]))
        for chosen, spare in ((order[:patients], False), (order[patients : patients + 1], True)):
            found = of_group[np.isin(sample.patients[of_group], chosen if patients else [])]
            rows.append(found)
            is_spare.append(np.full(len(found), spare))
    every = np.concatenate(rows)
    return Reference(every, groups[every], np.concatenate(is_spare))


def predict_labels(sample: Sample, ask: Ints, reference: Reference, k: int) -> Ints:
    """Labels (q,) of the patches `ask` (q,) by their k nearest of the reference patches; -1 where there is none.

    A label's votes are divided by its reference patches, so that a label that is rare among them can win.
    """
    k = min(k, len(reference.rows))
    if not k:
        return np.full(len(ask), -1)
    near = sample.cosines[np.ix_(ask, reference.rows)]
    near[reference.hide(sample, ask)] = -np.inf
    similarities, nearest = (best.numpy() for best in torch.from_numpy(near).topk(k))
    empty = np.isneginf(similarities[:, 0])
    similarities[empty] = 0
    labels = sample.labels[reference.rows]
    votes = vote(similarities, labels[nearest], int(sample.labels.max()) + 1, _TEMPERATURE)
    commonness = np.maximum(np.bincount(labels, minlength=votes.shape[1]), 1)
    return np.where(empty, -1, (votes / commonness).argmax(axis=1))


@dataclass(frozen=True)
class Paired:
    """Whether the labels of patches are predicted right under two conditions."""

    rows: Ints
    """(m,) the patches that were asked for."""
    before: Floats
    """(R, m) in each of R draws of reference patients."""
    after: Floats
    """(R, m), or (1, m) where nothing was drawn."""


def compare_unseen(sample: Sample, k: int, rng: np.random.Generator) -> Paired:
    """With reference patients of all values, as many of every label, and with all those of other values."""
    before, after = np.zeros((_DRAWS, len(sample.labels))), np.zeros((1, len(sample.labels)))
    for value in np.unique(sample.values):
        ask, others = np.flatnonzero(sample.values == value), np.flatnonzero(sample.values != value)
        fixed = Reference(others, sample.labels[others], np.zeros(len(others), bool))
        after[0, ask] = predict_labels(sample, ask, fixed, k) == sample.labels[ask]
        pairs = np.unique(np.stack([sample.labels[others], sample.patients[others]]), axis=1)
        wanted = np.bincount(pairs[0], minlength=sample.labels.max() + 1)  # (L,) reference patients
        for right in before:
            reference = draw_reference(sample, sample.labels, wanted, rng)
            right[ask] = predict_labels(sample, ask, reference, k) == sample.labels[ask]
    return Paired(np.arange(len(sample.labels)), before, after)


def correlate_reference(sample: Sample, k: int, rng: np.random.Generator) -> Paired | None:
    """With reference patients in whom label and nuisance are independent, and with such in whom they go together.

    Every label has as many reference patients: evenly of all its values, or all of one value, which is not the same one
    for all labels. None where fewer than two labels have two values with two patients each.
    """
    table = sample.count_patients()
    eligible = table >= FEW
    eligible &= eligible.sum(axis=1, keepdims=True) > 1  # (L, C)
    labels = np.flatnonzero(eligible.any(axis=1))
    if len(labels) < 2:
        return None
    ask, patients = np.flatnonzero(eligible[sample.labels, sample.values]), int(table[eligible].min()) - 1
    right = np.zeros((2, 2 * _DRAWS, len(ask)))
    for draw in range(2 * _DRAWS):
        orders = [rng.permutation(np.flatnonzero(eligible[label])) for label in labels]
        if len({order[0] for order in orders}) == 1:
            orders[-1] = np.roll(orders[-1], 1)
        for condition, width in enumerate((None, 1)):  # all values of a label, or the first alone
            wanted = np.zeros_like(table)
            for label, order in zip(labels, orders, strict=True):
                np.add.at(wanted[label], np.resize(order[:width], patients), 1)
            reference = draw_reference(sample, sample.cells, wanted.ravel(), rng)
            right[condition, draw] = predict_labels(sample, ask, reference, k) == sample.labels[ask]
    return Paired(ask, right[0], right[1])

"""Shortcuts in numbers: whether near patches share the label or a technical variable, and what the variable costs.

Robustness index (PathoROB, 2025): of the nearest patches of other patients, count those of the same label and another
value of the variable, and those of another label and the same value. The share of the first among both is 1 where the
label alone decides which patches are near, and 0 where the variable alone decides.

Other numbers are means over cells (a label, or a label with a value of the variable) of means over the patients in
them: a large patient, a common label or a common site counts no more than another. `weights` (B + 1, P) says how often
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


class RowsOnDisk(Protocol):
    """Rows (N, D) that are read from disk by their numbers."""

    def __len__(self) -> int: ...
    def __getitem__(self, rows: Ints, /) -> Similarities: ...


@dataclass(frozen=True)
class _ChosenRows:
    """Some rows of vectors, read from disk block by block."""

    vectors: RowsOnDisk
    rows: Ints

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, part: slice) -> Similarities:
        return self.vectors[self.rows[part]]


def find_other_patients(
    vectors: RowsOnDisk, queries: Ints, patients: Ints, k: int, memory_gb: float, device: str = "cpu"
) -> tuple[Similarities, Ints]:
    """Similarities and rows (Q, k) of the patches of other patients nearest to the rows `queries` (Q,), nearest first.

    The patients are halved again and again, and each half is searched for neighbours of the other half. So every pair
    of patients is searched once, no patient is compared with itself, and the whole costs as much as one search. Where
    other patients have fewer than k patches, rows are -1.
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
            members = asked[asked_starts[asking[0]] : asked_starts[asking[1]]]
            bank = order[starts[offering[0]] : starts[offering[1]]]
            if not len(members):
                continue
            asking_rows, bank_rows = _ChosenRows(vectors, queries[members]), _ChosenRows(vectors, bank)
            for block, near, nearest in find_neighbours(asking_rows, bank_rows, k, memory_gb, device):
                _merge(similarities, rows, members[block], near.astype(np.float32), bank[nearest])
    return similarities, rows


def _merge(similarities: Similarities, rows: Ints, members: Ints, near: Similarities, nearest: Ints) -> None:
    """Merge new neighbours of some queries (n,) into the nearest ones so far, in place."""
    both = np.concatenate([similarities[members], near], axis=1)
    both_rows = np.concatenate([rows[members], nearest], axis=1)
    best = np.argsort(-both, axis=1, kind="stable")[:, : similarities.shape[1]]
    similarities[members], rows[members] = np.take_along_axis(both, best, 1), np.take_along_axis(both_rows, best, 1)


def count_shared(labels: Ints, values: Ints, queries: Ints, neighbours: Ints) -> tuple[Floats, Floats]:
    """Which neighbours (Q, k) of `queries` (Q,) share the label alone, and which share the value alone, as 0 or 1.

    A neighbour is -1 where there is none. `labels` and `values` (N,) are negative where they are not known; a pair with
    an unknown label or value counts as neither.
    """
    label, value = labels[queries][:, None], values[queries][:, None]
    theirs, their_values = labels[neighbours], values[neighbours]
    known = (neighbours >= 0) & (label >= 0) & (value >= 0) & (theirs >= 0) & (their_values >= 0)
    same_label, same_value = theirs == label, their_values == value
    return (known & same_label & ~same_value).astype(float), (known & ~same_label & same_value).astype(float)


def expect_shared(labels: Ints, values: Ints, patients: Ints, queries: Ints) -> tuple[Floats, Floats]:
    """Probability (Q,) that a random patch of another patient shares the label alone, and the value alone."""
    known = (labels >= 0) & (values >= 0)
    own = np.zeros((patients.max() + 1, labels.max() + 1, values.max() + 1))  # (P, L, C) patches
    np.add.at(own, (patients[known], labels[known], values[known]), 1)
    others = own.sum(axis=0) - own
    candidates = len(patients) - np.bincount(patients)
    patient, label, value = patients[queries], labels[queries], values[queries]
    both, counts = others[patient, label, value], known[queries] / np.maximum(candidates[patient], 1)
    label_alone, value_alone = others.sum(axis=2)[patient, label] - both, others.sum(axis=1)[patient, value] - both
    return label_alone * counts, value_alone * counts


def sum_pairs(counts: Floats, patients: Ints, weights: Floats) -> Floats:
    """(B,) sum of `counts` (n,) over pairs of `patients` (2, n), each as often as both are drawn, by `weights` (B, P).

    The neighbours' patients are resampled too: a few patients may be near to all others.
    """
    total = weights.shape[1]
    table = torch.sparse_coo_tensor(
        torch.from_numpy(patients), torch.from_numpy(counts), (total, total), check_invariants=True
    )
    drawn = torch.from_numpy(weights.T.copy())  # (P, B)
    return ((table @ drawn) * drawn).sum(dim=0).numpy()


_FOLDS, _DRAWS = 5, 10
_PENALTY, _ITERATIONS, _TEMPERATURE = 0.1, 200, 0.07
FEW = 2
"""Fewest patients of a cell; with one patient, value and patient cannot be told apart."""


@dataclass(frozen=True)
class AuditedSample:
    """n patches whose label and value of the variable are known, of P patients, L labels and C values."""

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

    def find_eligible(self) -> NDArray[np.bool_]:
        """(L, C) cells of `FEW` patients or more, of labels with two such cells or more."""
        enough = self.count_patients() >= FEW
        return enough & (enough.sum(axis=1, keepdims=True) > 1)


def add_resamples(patients: int, resamples: int, seed: int) -> Floats:
    """(B + 1, P) weights: all patients once, then the bootstrap resamples."""
    return np.concatenate([np.ones((1, patients)), draw_weights(patients, resamples, seed)])


@dataclass(frozen=True)
class CellMeans:
    """Means of G cells, in the cohort and in the resamples."""

    means: Floats
    """(B + 1, G), NaN where no patient has the cell."""
    errors: Floats
    """(G,) standard error of each mean, from one variance between patients for all cells: the two or three patients of
    one cell are too few to estimate a variance of its own."""


def average_cells(scores: Floats, patients: Ints, cells: Ints, count: int, weights: Floats) -> CellMeans:
    """Mean over patients of the mean score (n,) of their patches in each of `count` cells."""
    sums, patches = np.zeros((weights.shape[1], count)), np.zeros((weights.shape[1], count))
    np.add.at(sums, (patients, cells), scores)
    np.add.at(patches, (patients, cells), 1)
    own, has_cell = sums / np.maximum(patches, 1), (patches > 0).astype(np.float64)  # (P, G)
    means = divide(weights @ own, weights @ has_cell)
    freedom = max(1.0, has_cell.sum() - (has_cell.sum(axis=0) > 0).sum())
    variance = (has_cell * np.square(own - np.nan_to_num(means[0]))).sum() / freedom
    return CellMeans(means, np.sqrt(variance / np.maximum(has_cell.sum(axis=0), 1)))


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


def probe_variable(
    sample: AuditedSample, weights: Floats, interval: float, rng: np.random.Generator
) -> tuple[Value, float | None]:
    """Accuracy of a linear probe for the variable at equal label, for patients not learned from; and its chance.

    Only cells of two patients or more count, and labels with two such cells. All cells weigh the same in learning, so
    that the label says nothing about the variable. With an encoder that reflects the label alone, the probe is then
    right for one value of a label and wrong for the others: 1 / (number of values), whatever it predicts.
    """
    eligible = sample.find_eligible()
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


def _predict_values(sample: AuditedSample, learn: Ints, ask: Ints) -> Ints:
    """Values of the patches `ask` (a mask), by logistic regression on others (`learn`) whose cells weigh the same."""
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

    A resample may lack a cell and so have another chance: its excess over its own chance is added to the chance of the
    cohort.
    """
    cells = (~np.isnan(means)).sum(axis=2)  # (B + 1, L)
    counts = cells > 1
    mean_of_label = divide(np.nansum(means, axis=2), cells.astype(np.float64))
    excess = np.where(counts, mean_of_label - 1 / np.maximum(cells, 1), 0).sum(axis=1)
    labels = counts.sum(axis=1).astype(np.float64)
    chance = float((1 / cells[0][counts[0]]).mean())
    return divide(excess, labels) + chance, chance


@dataclass(frozen=True)
class Reference:
    """Reference patches (r,) whose number of patients per group stays the same, whoever the test patient is.

    Every group (a label or a cell) has as many patients as wanted, and one spare patient. While a patient of the group
    is the test patient, the spare one stands in. Without the spare patient, the label of the test patient would be
    rarer among the reference patients than other labels.
    """

    rows: Ints
    groups: Ints
    """(r,) of each patch."""
    is_spare: NDArray[np.bool_]
    """(r,)."""

    def hide(self, sample: AuditedSample, ask: Ints) -> NDArray[np.bool_]:
        """(q, r) which reference patches do not count for test patches `ask` (q,): the own patient's and spare ones."""
        patients = sample.patients[self.rows]
        has = np.zeros((int(sample.patients.max()) + 1, int(self.groups.max(initial=0)) + 1), bool)
        has[patients[~self.is_spare], self.groups[~self.is_spare]] = True
        asked = sample.patients[ask]
        return (asked[:, None] == patients) | (self.is_spare & ~has[asked][:, self.groups])


def draw_reference(sample: AuditedSample, groups: Ints, wanted: Ints, rng: np.random.Generator) -> Reference:
    """Patients of every group, as many as `wanted` (G,) and one spare if there is; `groups` (n,) of the patches."""
    rows, is_spare = [], []
    for number, patients in enumerate(wanted):
        members = np.flatnonzero(groups == number)
        order = rng.permutation(np.unique(sample.patients[members]))
        for chosen, spare in ((order[:patients], False), (order[patients : patients + 1], True)):
            patches = members[np.isin(sample.patients[members], chosen if patients else [])]
            rows.append(patches)
            is_spare.append(np.full(len(patches), spare))
    every = np.concatenate(rows)
    return Reference(every, groups[every], np.concatenate(is_spare))


def predict_labels(sample: AuditedSample, ask: Ints, reference: Reference, k: int) -> Ints:
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
    """(m,) the test patches."""
    before: Floats
    """(R, m) in each of R draws of reference patients."""
    after: Floats
    """(R, m), or (1, m) where nothing was drawn."""


def compare_unseen(sample: AuditedSample, k: int, rng: np.random.Generator) -> Paired:
    """Before: reference patients of all values, as many of each label as after. After: all those of other values."""
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


def correlate_reference(sample: AuditedSample, k: int, rng: np.random.Generator) -> Paired | None:
    """Before: reference patients in whom label and variable are independent. After: those in whom they go together.

    Every label has the same number of reference patients: evenly from all its values, or all from one value, which
    differs between labels. None where fewer than two labels have two values with two patients each.
    """
    table, eligible = sample.count_patients(), sample.find_eligible()
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

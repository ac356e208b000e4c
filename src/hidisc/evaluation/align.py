"""Embeddings with the differences between sites (or other values of a column) taken out, as ComBat does.

W. E. Johnson, C. Li and A. Rabinovic, "Adjusting batch effects in microarray expression data using empirical Bayes
methods", Biostatistics 2007. Each value of the column shifts and scales every dimension. Both are estimated from the
bank alone, shrunk towards what they are on average over the dimensions (a value with few patches is shrunk more), and
taken out of bank and queries.

What differs between sites because their patients differ is taken out as well: if the labels are not spread over the
sites alike, this removes disease. Rows of one patient count as independent, so that shrinkage is weak.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from hidisc.evaluation.metrics import Floats
from hidisc.evaluation.task import Codes, Task
from hidisc.ground.errors import UserError
from hidisc.ground.text import count

_ROUNDS, _CLOSE = 100, 1e-6
_LEAST = 1e-12
"""A variance below this counts as no variance."""


@dataclass(frozen=True, eq=False)
class Alignment:
    """The shift and scale of every value of a column, in dimensions that are standardised by `mean` and `std` (D,)."""

    mean: Floats
    std: Floats
    shifts: dict[int, Floats]
    """By code, (D,)."""
    scales: dict[int, Floats]
    """By code, (D,) standard deviations."""

    def apply(self, z: NDArray[np.floating], codes: Codes) -> NDArray[np.float32]:
        """Rows (N, D) without what their value adds; those whose value was not fitted stay as they are."""
        aligned = z.astype(np.float64)
        for code, shift in self.shifts.items():
            rows = codes == code
            standard = (aligned[rows] - self.mean) / self.std
            aligned[rows] = (standard - shift) / self.scales[code] * self.std + self.mean
        return aligned.astype(np.float32)


def align_task(task: Task, column: str) -> tuple[Task, tuple[str, ...]]:
    """The task with the differences between the values of a column taken out, and the values that the bank lacks.

    Memory: all vectors of the bank and of the queries.
    """
    for patches in (task.bank, task.queries):
        known = patches.embeddings.table.names
        if column not in known:
            raise UserError(
                f"align = {column!r}: {patches.embeddings.path} has no such column of names; it has {', '.join(known)}."
            )
    numbers: dict[str, int] = {}
    codes = [  # they mean the same for bank and queries
        np.array([-1 if name is None else numbers.setdefault(name, len(numbers)) for name in patches.names(column)])
        for patches in (task.bank, task.queries)
    ]
    bank, queries, unseen = align(task.bank.vectors(), codes[0], task.queries.vectors(), codes[1])
    names = list(numbers)
    aligned = replace(task, bank=replace(task.bank, exchanged=bank), queries=replace(task.queries, exchanged=queries))
    return aligned, tuple(names[code] for code in unseen)


def align(
    bank: NDArray[np.floating], bank_codes: Codes, queries: NDArray[np.floating], query_codes: Codes
) -> tuple[NDArray[np.float32], NDArray[np.float32], tuple[int, ...]]:
    """Bank (M, D) and queries (N, D) aligned by codes (M,) and (N,) of a column, fitted on the bank.

    Third are the codes of queries that the bank lacks, or has too few rows of: such rows stay as they are, and so do
    rows without a value (-1).
    """
    fitted = fit_alignment(bank, bank_codes)
    unseen = sorted({int(code) for code in np.unique(query_codes) if code >= 0} - fitted.shifts.keys())
    return fitted.apply(bank, bank_codes), fitted.apply(queries, query_codes), tuple(unseen)


def fit_alignment(z: NDArray[np.floating], codes: Codes) -> Alignment:
    """The alignment of rows (N, D); values with one row, which has no spread, are not fitted."""
    values = [int(code) for code in np.unique(codes[codes >= 0]) if (codes == code).sum() > 1]
    if len(values) < 2:
        raise UserError(
            f"align: the reference patients have {count(len(values), 'value')} of that column with two or more "
            "patches, and two are needed. Leave `align` out."
        )
    rows = [z[codes == value].astype(np.float64) for value in values]
    every = np.concatenate(rows)
    mean = every.mean(axis=0)
    within = sum(np.square(part - part.mean(axis=0)).sum(axis=0) for part in rows) / len(every)
    std = np.sqrt(np.where(within > _LEAST, within, 1.0))  # a dimension without spread has no scale to take out
    shifts, scales = {}, {}
    for value, part in zip(values, rows, strict=True):
        shifts[value], scales[value] = _shrink((part - mean) / std)
    return Alignment(mean, std, shifts, scales)


def _shrink(z: Floats) -> tuple[Floats, Floats]:
    """Shift and scale (D,) of the standardised rows (n, D) of one value, as posterior means (Eq. 3.1 of the paper).

    Priors over the dimensions, by moments: shifts are normal, variances inverse gamma. Each of the two needs the other,
    so they are computed in turn until they stay.
    """
    n, means, variances = len(z), z.mean(axis=0), z.var(axis=0, ddof=1)
    prior, spread = means.mean(), means.var(ddof=1) if len(means) > 1 else 0.0
    centre, width = variances.mean(), variances.var(ddof=1) if len(variances) > 1 else 0.0
    shift, variance = means, variances
    if width > _LEAST:  # else all dimensions have one variance, which is their mean
        shape, rate = 2 + centre**2 / width, centre + centre**3 / width
    for _ in range(_ROUNDS):
        new_shift = (n * spread * means + variance * prior) / (n * spread + variance).clip(_LEAST)
        squares = np.square(z - new_shift).sum(axis=0)
        new_variance = (rate + squares / 2) / (n / 2 + shape - 1) if width > _LEAST else np.full_like(means, centre)
        change = max(np.abs(new_shift - shift).max(), np.abs(new_variance - variance).max())
        shift, variance = new_shift, new_variance
        if change < _CLOSE:
            break
    return shift, np.sqrt(variance.clip(_LEAST))

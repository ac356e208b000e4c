"""Which rows belong to which unit (a patient, a slide): grouping, sums and means of groups, written once."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Codes = NDArray[np.integer[Any]]
"""(N,) a number for each row's name at one level; negative where the name is missing."""


@dataclass(frozen=True)
class Units:
    """N rows in G units, numbered from 0 in the order of their codes."""

    of_row: Ints
    """(N,) the unit of each row."""
    first: Ints
    """(G,) the first row of each unit."""

    def __len__(self) -> int:
        return len(self.first)

    @property
    def counts(self) -> Ints:
        """(G,) rows of each unit."""
        return np.bincount(self.of_row, minlength=len(self))

    def rows(self) -> list[Ints]:
        """The rows of each unit, ascending."""
        return np.split(np.argsort(self.of_row, kind="stable"), np.cumsum(self.counts)[:-1])

    def sums(self, values: Floats) -> Floats:
        """(G, C) sums of values (N, C) over the rows of each unit."""
        return np.stack([np.bincount(self.of_row, column, minlength=len(self)) for column in values.T], axis=1)

    def have_one_label(self, labels: Ints) -> NDArray[np.bool_]:
        """(G,) whether all rows of a unit have the same label, of labels (N,)."""
        differs = labels != labels[self.first][self.of_row]
        return np.bincount(self.of_row[differs], minlength=len(self)) == 0


def group(codes: Sequence[Codes]) -> Units:
    """Group rows (N,) by their codes at several levels, coarse to fine.

    A unit is known by the names of all its ancestors: slide 1 of patient A is not slide 1 of patient B.
    """
    of_row, first = np.zeros(len(codes[0]), np.int64), np.zeros(1, np.int64)
    for level in codes:
        # one number for each pair (unit so far, code): sorting pairs of millions of rows would take minutes
        pairs = of_row * (int(level.max(initial=-1)) + 2) + level + 1
        _, first, of_row = np.unique(pairs, return_index=True, return_inverse=True)
    return Units(of_row, first)

"""Shuffled passes and distinct draws whose cost does not grow with what is drawn from."""

from math import isqrt

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
_SMALL = 4096
_ROUNDS = 3


def shuffled(positions: Ints, size: int, rng: np.random.Generator) -> Ints:
    """What stands at `positions` (B,) of a random order of 0 ... size - 1; one order per state of `rng`.

    Up to a few thousand, the order itself; beyond, a keyed permutation of a grid that `size` just fits in (a Feistel
    network, walked on from the few numbers that are not below `size`), which costs the same for a million and for a
    billion.
    """
    if size <= _SMALL:
        return rng.permutation(size)[positions]
    keys = rng.integers(0, 2**63, (_ROUNDS, 2), dtype=np.uint64)
    rows = isqrt(size - 1) + 1
    grid = np.array([rows, -(-size // rows)], np.uint64)
    values = _permute(positions.astype(np.uint64), keys, grid)
    while (outside := np.flatnonzero(values >= size)).size:
        values[outside] = _permute(values[outside], keys, grid)
    return values.astype(np.int64)


def _permute(values: NDArray[np.uint64], keys: NDArray[np.uint64], grid: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """One-to-one on the numbers of the places of a grid (rows, columns): each half in turn moves the other around."""
    rows, columns = grid
    row, column = values // columns, values % columns
    for row_key, column_key in keys:
        row = (row + _mix(column ^ row_key) % rows) % rows
        column = (column + _mix(row ^ column_key) % columns) % columns
    return row * columns + column


def _mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Every bit of the result depends on every bit of the value (the finaliser of splitmix64, Steele et al. 2014)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def draw_distinct(sizes: Ints, count: int, rng: np.random.Generator) -> Ints:
    """(B, count) different numbers below `sizes` (B,), in random order; repeated in turn where there are fewer."""
    different = min(count, int(sizes.max()))
    drawn = np.empty((len(sizes), different), np.int64)
    for place in range(different):
        value = rng.integers(0, np.maximum(sizes - place, 1))
        # step over what was drawn before: uniform over the numbers that are left
        left_before = np.sort(drawn[:, :place], axis=1) - np.arange(place)
        drawn[:, place] = value + (left_before <= value[:, None]).sum(axis=1)
    turns = np.arange(count) % np.minimum(sizes, different)[:, None]
    return np.take_along_axis(drawn, turns, axis=1)

"""Maps of vectors in closed form: centred, whitened, whitened within units, or turned to where units differ.

All of them are computed from a few sums over the vectors (`Moments`), which are read once, block by block, so that
memory grows with D^2 and not with N. No label is used.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hidisc.ground.errors import UserError
from hidisc.ground.progress import Watch
from hidisc.ground.seeds import Purpose, make_rng
from hidisc.ground.text import count
from hidisc.sampling.hierarchy import Tree

Floats = NDArray[np.float64]
_ROWS = 4096
"""Rows that are read at once, and from which the shift is estimated."""
_PARTS = 5
"""Parts of the patients, each of which is left out once when the shrinkage is chosen."""
_SHRINKAGES = np.array([0.0001, 0.0003, 0.001, 0.003, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.8, 1.0])
_COMPONENTS = 256
"""Most principal components that are kept unless it is said how many."""
_FLAT = 1e-11
"""A direction whose variance is below this share of the largest counts as one in which nothing varies."""


@dataclass(frozen=True)
class Moments:
    """Sums over n vectors less a fixed `shift` (D,), which keeps them small: float64 then loses nothing."""

    rows: int
    shift: Floats
    sum: Floats
    """(D,)."""
    square: Floats
    """(D, D) sum of x x'."""
    units: tuple[int, ...]
    """How many units each level has, from coarse to fine."""
    squares_of_units: tuple[Floats, ...]
    """For each level (D, D), the sum over its units of n m m', m being the mean of the unit's n vectors."""

    def __add__(self, other: "Moments") -> "Moments":
        """The moments of both together; no unit may be in both."""
        squares = zip(self.squares_of_units, other.squares_of_units, strict=True)
        return Moments(
            self.rows + other.rows,
            self.shift,
            self.sum + other.sum,
            self.square + other.square,
            tuple(mine + theirs for mine, theirs in zip(self.units, other.units, strict=True)),
            tuple(mine + theirs for mine, theirs in squares),
        )

    @property
    def mean(self) -> Floats:
        """(D,)."""
        return self.shift + self.sum / self.rows

    def scatter(self, level: int | None) -> tuple[Floats, int]:
        """(D, D) squares around the mean of each unit of a level (None: around the mean of all), and their freedom."""
        if level is None:
            return self.square - np.outer(self.sum, self.sum) / self.rows, self.rows - 1
        return self.square - self.squares_of_units[level], self.rows - self.units[level]

    def covariance(self, level: int | None = None) -> Floats:
        """(D, D) the covariance within the units of a level; None: of all vectors."""
        scatter, freedom = self.scatter(level)
        return scatter / max(freedom, 1)


def measure_moments(
    vectors: NDArray[Any], tree: Tree, where: Path | str, seed: int = 0, watch: Watch | None = None
) -> tuple[Moments, ...]:
    """The moments of the rows of `vectors` (N, D) that are leaves of a tree, in parts that share no unit.

    The coarsest units (patients) are shared out to at most five parts, at random. Vectors that are not finite are
    refused, under the name of the place `where` they are.
    """
    order, ids, parts = _order_by_part(tree, seed)
    spread = order[np.linspace(0, len(order) - 1, min(len(order), _ROWS)).astype(np.int64)]
    shift = np.nan_to_num(np.asarray(vectors[np.sort(spread)], np.float64).mean(axis=0), posinf=0, neginf=0)
    return tuple(
        _sum_rows(vectors, order[part], [of_level[part] for of_level in ids], shift, where, watch) for part in parts
    )


def _order_by_part(tree: Tree, seed: int) -> tuple[NDArray[np.int32], list[NDArray[np.int64]], list[slice]]:
    """Rows (N,), part by part and the units of every level together; the unit (N,) of each row; the rows of a part."""
    leaves = len(tree.leaves)
    ids: list[NDArray[np.int64]] = []
    bounds = np.arange(leaves + 1)
    for starts in reversed(tree.starts):
        bounds = bounds[starts]
        ids.insert(0, np.repeat(np.arange(len(bounds) - 1), np.diff(bounds)))
    roots = ids[0] if ids else np.arange(leaves)
    number = max(1, min(_PARTS, tree.roots))
    part_of_root = make_rng(seed, Purpose.SHRINKAGE_PARTS).permutation(tree.roots) % number
    part = part_of_root[roots]
    order = np.argsort(part, kind="stable")
    ends = np.cumsum(np.bincount(part, minlength=number))
    parts = [slice(int(end - size), int(end)) for end, size in zip(ends, np.diff(ends, prepend=0), strict=True)]
    return tree.leaves[order], [of_level[order] for of_level in ids], parts


def _sum_rows(
    vectors: NDArray[Any],
    rows: NDArray[np.int32],
    ids: Sequence[NDArray[np.int64]],
    shift: Floats,
    where: Path | str,
    watch: Watch | None,
) -> Moments:
    """The moments of some rows (n,), whose units at every level, `ids` (n,), follow each other."""
    dim = vectors.shape[1]
    total, square = np.zeros(dim), np.zeros((dim, dim))
    levels = [_UnitSums(of_level, dim) for of_level in ids]
    for start in range(0, len(rows), _ROWS):
        block = rows[start : start + _ROWS]
        x = np.asarray(vectors[block], np.float64)
        x -= shift
        added = x.sum(axis=0)
        if not np.isfinite(added).all():
            wrong = block[~np.isfinite(x).all(axis=1)]
            raise UserError(
                f"{where} has {count(len(wrong), 'vector')} with NaN or infinity among {len(block):,}, such as that of "
                f"row {int(wrong[0]):,}. Make these vectors anew, or leave their patients out with data.leave_out."
            )
        total += added
        square += x.T @ x
        for level in levels:
            level.add(x, start)
        if watch is not None:
            watch(len(block))
    squares = tuple(level.finish() for level in levels)
    return Moments(len(rows), shift, total, square, tuple(level.units for level in levels), squares)


class _UnitSums:
    """Adds n m m' of units that follow each other in blocks of rows; a unit may go on in the next block."""

    def __init__(self, ids: NDArray[np.int64], dim: int) -> None:
        self._heads = np.flatnonzero(np.diff(ids, prepend=-1))
        self._ends = np.r_[self._heads[1:], len(ids)]
        self.units = len(self._heads)
        self._square, self._open = np.zeros((dim, dim)), np.zeros(dim)

    def add(self, x: Floats, start: int) -> None:
        """Add a block of rows (n, D), the first of which is row `start`."""
        stop = start + len(x)
        first, last = np.searchsorted(self._heads, [start, stop])  # units that begin in this block
        begins_inside = self._heads[first:last] - start
        continues = not (len(begins_inside) and begins_inside[0] == 0)
        sums = np.add.reduceat(x, np.r_[0, begins_inside] if continues else begins_inside, axis=0)
        units = np.arange(first - continues, last)
        sums[0] += self._open if continues else 0
        is_done = self._ends[units] <= stop
        done = sums[is_done] / np.sqrt(self._ends[units] - self._heads[units])[is_done, None]
        self._square += done.T @ done
        self._open = np.zeros(x.shape[1]) if is_done[-1] else sums[-1]

    def finish(self) -> Floats:
        """(D, D)."""
        return self._square


@dataclass(frozen=True)
class LinearMap:
    """y = A (x - mean): what a closed form gives."""

    mean: Floats
    """(D,)."""
    matrix: Floats | None
    """A (d, D); None: x is only centred."""
    shrinkage: float | None = None
    """How far the covariance was shrunk towards a multiple of the identity; None: it was not needed."""

    def apply(self, x: NDArray[Any]) -> NDArray[np.float32]:
        """(n, d) of vectors (n, D)."""
        centred = np.asarray(x, np.float32) - self.mean.astype(np.float32)
        return centred if self.matrix is None else centred @ self.matrix.T.astype(np.float32)


def centre(parts: Sequence[Moments]) -> LinearMap:
    """Vectors less their mean."""
    return LinearMap(_add(parts).mean, None)


def whiten(
    parts: Sequence[Moments], dim: int | None, shrinkage: float | None, level: int | None, where: str
) -> LinearMap:
    """The first `dim` principal components, whitened by their covariance within the units of a level (None: of all).

    `dim` None: 256, or as many as vary. `shrinkage`: the share of the identity in the covariance; None: as predicts
    left-out patients best. `where`: what a message calls the vectors.
    """
    moments = _add(parts)
    basis = _find_components(moments, dim, where)
    values, directions, shrinkage = _shrink_within(parts, basis, level, shrinkage, where)
    return LinearMap(moments.mean, (directions / np.sqrt(values)).T @ basis.T, shrinkage)


def whiten_floor(parts: Sequence[Moments]) -> LinearMap:
    """`whiten` within the finest units of whatever vectors there are.

    Where no unit has two vectors that differ, by the variance of all; where none vary, vectors are only centred.
    """
    moments = _add(parts)
    if np.trace(moments.covariance()) <= 0:
        return LinearMap(moments.mean, None)
    level = len(moments.units) - 1
    scatter, freedom = moments.scatter(level)
    has_pairs = freedom > 0 and np.trace(scatter) > _FLAT * np.trace(moments.square)
    return whiten(parts, None, None, level if has_pairs else None, "the bank")


def turn_to_units(
    parts: Sequence[Moments], dim: int | None, keep: int, shrinkage: float | None, weights: Sequence[float], where: str
) -> LinearMap:
    """The directions in which units differ most, as against the vectors within them; `keep` of `dim` components.

    With W the covariance within units (a mean over the levels, with their `weights`; shrunk as in `whiten`) and B what
    is left of the covariance of all: v'W v = 1, and B v = r W v with the largest r. What HiDisc asks of an encoder, the
    same for vectors of one unit and different for others, is asked here of a linear map, as Fisher did for classes.
    """
    if dim is not None and keep > dim:
        raise UserError(f"map.keep = {keep} is more than map.dim = {dim}. Set map.keep={dim} or less.")
    if not sum(weights):
        raise UserError("objective.weights: linear-hidisc needs a level above the patch whose weight is above 0.")
    moments = _add(parts)
    basis, total, shrinkages = _find_components(moments, dim, where), sum(weights), []
    within = np.zeros((basis.shape[1], basis.shape[1]))
    for level, weight in enumerate(weights):
        if weight:
            values, directions, chosen = _shrink_within(parts, basis, level, shrinkage, where)
            within += weight / total * (directions * values) @ directions.T
            shrinkages.append(chosen)
    values, directions = np.linalg.eigh(within)
    whitening = directions / np.sqrt(values)
    _, turned = np.linalg.eigh(_project(_project(moments.covariance(), basis), whitening))  # ascending, and S = B + W
    kept = turned[:, ::-1][:, :keep]
    return LinearMap(moments.mean, (whitening @ kept).T @ basis.T, max(shrinkages))


def _add(parts: Sequence[Moments]) -> Moments:
    first, *others = parts
    for part in others:
        first = first + part
    return first


def check_dim(dim: int, width: int, where: str) -> None:
    """Refuse more components than vectors have numbers."""
    if dim > width:
        raise UserError(
            f"map.dim = {dim}, and the vectors of {where} have {count(width, 'number')}. Set map.dim={width} or less."
        )


def _find_components(moments: Moments, dim: int | None, where: str) -> Floats:
    """(D, dim) the principal components of largest variance; `dim` None: at most 256."""
    if dim is not None:
        check_dim(dim, len(moments.mean), where)
    values, directions = np.linalg.eigh(moments.covariance())
    varying = int((values > _FLAT * max(values[-1], 0)).sum()) if values[-1] > 0 else 0
    if not varying:
        raise UserError(f"the {moments.rows:,} vectors of {where} to learn from are all the same. Give others.")
    if dim is not None and varying < dim:
        raise UserError(
            f"map.dim = {dim}, and the {moments.rows:,} vectors of {where} to learn from vary in "
            f"{count(varying, 'direction')} only. Set map.dim={varying} or less."
        )
    return directions[:, ::-1][:, : dim or min(varying, _COMPONENTS)]


def _shrink_within(
    parts: Sequence[Moments], basis: Floats, level: int | None, shrinkage: float | None, where: str
) -> tuple[Floats, Floats, float]:
    """Eigenvalues (d,) and eigenvectors (d, d) of the covariance within units, shrunk; and how far it was shrunk."""
    moments = _add(parts)
    if moments.scatter(level)[1] < 1:
        raise UserError(
            f"{where}: no unit has two vectors to learn from, so there is no covariance within units. Choose a coarser "
            "map.level."
        )
    values, directions = np.linalg.eigh(_project(moments.covariance(level), basis))
    if values.mean() <= 0 or values.mean() < _FLAT * np.trace(_project(moments.covariance(), basis)) / len(values):
        raise UserError(f"{where}: the vectors of a unit are all the same, so there is no covariance within units.")
    if shrinkage is None:
        shrinkage = _choose_shrinkage(parts, basis, level)
    return _shrink(values, shrinkage), directions, shrinkage


def _project(covariance: Floats, basis: Floats) -> Floats:
    return basis.T @ covariance @ basis


def _shrink(values: Floats, shrinkage: float | Floats) -> Floats:
    """Eigenvalues (d,) of a covariance of which a share is replaced by the identity times their mean."""
    clipped = values.clip(min=0)
    return np.maximum((1 - shrinkage) * clipped + shrinkage * clipped.mean(), _FLAT * clipped.mean())


def _choose_shrinkage(parts: Sequence[Moments], basis: Floats, level: int | None) -> float:
    """The shrinkage by which the covariance of some patients is the likeliest for those that are left out.

    The likelihood is that of normal vectors; every part of the patients is left out once.
    """
    if len(parts) < 2:
        return 0.1  # with one patient, nobody can be left out
    losses = np.zeros(len(_SHRINKAGES))
    for number, left_out in enumerate(parts):
        values, directions = np.linalg.eigh(
            _project(_add([part for at, part in enumerate(parts) if at != number]).covariance(level), basis)
        )
        scatter, freedom = left_out.scatter(level)
        along = np.einsum("ij,ij->j", directions, _project(scatter, basis) @ directions)
        for at, shrinkage in enumerate(_SHRINKAGES):
            shrunk = _shrink(values, float(shrinkage))
            losses[at] += freedom * np.log(shrunk).sum() + (along / shrunk).sum()
    return float(_SHRINKAGES[int(losses.argmin())])


def list_blocks(rows: int) -> Iterator[slice]:
    """Slices of at most 4,096 rows."""
    yield from (slice(start, start + _ROWS) for start in range(0, rows, _ROWS))

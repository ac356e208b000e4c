"""Sampler: the batch of a step, a pure function of (seed, step, rank), so that a run has no sampler to save.

Shuffled passes and draws without repetition, at a cost that does not grow with the store.
"""

from dataclasses import dataclass
from math import isqrt, prod

import numpy as np
from numpy.typing import NDArray

from hidisc.ground.errors import UserError
from hidisc.ground.seeds import Purpose, make_rng
from hidisc.sampling.hierarchy import Tree
from hidisc.settings.train import BatchConfig

Ints = NDArray[np.int64]
_SMALL = 4096
_ROUNDS = 3


def shuffled(positions: Ints, size: int, rng: np.random.Generator) -> Ints:
    """The numbers at `positions` (B,) of a random order of 0 ... size - 1; one order per state of `rng`.

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
    """A permutation of the numbers of a grid's cells (rows, columns): row and column shift each other in turn."""
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


@dataclass(frozen=True)
class Draw:
    """The patches of one rank's batch, M = P S K of them, siblings next to each other."""

    places: Ints
    """(M,) where each is in the tree's `leaves`."""
    ancestry: Ints
    """(M, levels) the node of every level it belongs to, from coarse to fine; the last is its table row."""


class Sampler:
    """Draws P roots (patients), S of their children each (slides), K of theirs (patches), at any depth.

    A pass goes over all roots in a random order before any root comes again; its last batch is filled up with the
    roots that were first in the pass. Within a batch every node is drawn once while there are
    enough of them, and repeated in turn when there are not; ranks share no root. A batch costs the same for a
    store of any size.
    """

    def __init__(
        self,
        tree: Tree,
        config: BatchConfig,
        seed: int,
        world: int = 1,
        labels: NDArray[np.int32] | None = None,
    ) -> None:
        """`labels` (roots,): draw the roots of each label equally often."""
        _check_draw(tree, config)
        self._tree, self._seed, self._world = tree, seed, world
        self._children = [config.draw.get(level, 1) for level in tree.levels[1:]]
        self._groups = None if labels is None else [np.flatnonzero(labels == label) for label in np.unique(labels)]
        groups = len(self._groups) if self._groups else 1
        images_per_root = prod(self._children) * config.views
        _check_images(config.images, images_per_root, groups, world, tree.levels[0])
        self.roots = config.images // images_per_root
        """P, over all ranks."""
        fewest = min((len(group) for group in self._groups or ()), default=tree.roots)
        if fewest < world:
            rarest = " of the rarest label" if self._groups else ""
            raise UserError(
                f"{tree.levels[0]}s to share out to {world} devices: only {fewest}{rarest}. Use fewer devices."
            )
        self.repeats = fewest < self.roots // groups
        """Whether roots are repeated within a batch because there are too few."""

    def draw(self, step: int, rank: int = 0) -> Draw:
        """The batch of a step, counted from 0, for one rank."""
        nodes = self._roots(step)
        ids = [nodes]
        rng = make_rng(self._seed, Purpose.BATCH, step)
        for starts, count in zip(self._tree.starts, self._children, strict=True):
            nodes = _draw_children(nodes, starts, count, rng)
            ids = [*(np.repeat(above, count) for above in ids), nodes]
        mine = slice(rank * len(nodes) // self._world, (rank + 1) * len(nodes) // self._world)
        ids[-1] = self._tree.leaves[nodes].astype(np.int64)
        return Draw(nodes[mine], np.stack(ids, axis=1)[mine])

    def _roots(self, step: int) -> Ints:
        """(P,) roots of a step; the roots of a rank are next to each other."""
        if self._groups is None:
            return self._take(self._tree.roots, self.roots, step, 0).ravel()
        share = self.roots // len(self._groups)
        taken = [group[self._take(len(group), share, step, number)] for number, group in enumerate(self._groups)]
        return np.concatenate(taken, axis=1).ravel()

    def _take(self, size: int, count: int, step: int, group: int) -> Ints:
        """(world, count / world) of 0 ... size - 1."""
        steps_per_pass = -(-size // count)
        number, step_of_pass = divmod(step, steps_per_pass)
        rng = make_rng(self._seed, Purpose.PATIENT_ORDER, number, group)
        each = count // self._world
        if size >= count:
            positions = (step_of_pass * count + np.arange(count)) % size
            return shuffled(positions, size, rng).reshape(self._world, each)
        order = rng.permutation(size)  # too few: each rank repeats its own
        return np.stack([np.resize(order[rank :: self._world], each) for rank in range(self._world)])


def _check_draw(tree: Tree, config: BatchConfig) -> None:
    """Refuse a tree without patches, and `batch.draw` that names other levels than those below the first."""
    if not len(tree.leaves):
        raise UserError("there is no patch to learn from. Check data.splits and the store's `split` column.")
    first, *below = tree.levels
    if any(level not in below or count < 1 for level, count in config.draw.items()):
        can = f"it can name {', '.join(below)}, each at least 1. Change batch.draw or batch.levels."
        nothing = "there is nothing to draw. Set batch.draw={}."
        raise UserError(f"batch.draw = {config.draw}: below {first!r} {can if below else nothing}")


def _check_images(images: int, images_per_root: int, groups: int, world: int, root: str) -> None:
    """Refuse a number of images that cannot be shared out equally to roots, labels and devices."""
    unit = images_per_root * groups * world
    if images % unit or not images:
        near = max(unit, round(images / unit) * unit)
        raise UserError(
            f"batch.images = {images} is not a multiple of {unit} ({images_per_root} images per {root}"
            f"{f' x {groups} labels' if groups > 1 else ''}{f' x {world} devices' if world > 1 else ''}). "
            f"Set batch.images={near}."
        )


def _draw_children(nodes: Ints, starts: Ints, count: int, rng: np.random.Generator) -> Ints:
    """(B x count,) children of `nodes` (B,); a node that is drawn twice contributes different children each time."""
    unique, which, copies = np.unique(nodes, return_inverse=True, return_counts=True)
    first = starts[unique]
    drawn = draw_distinct(starts[unique + 1] - first, count * int(copies.max()), rng)
    order = np.argsort(which, kind="stable")
    nth = np.empty(len(nodes), np.int64)  # how often the node was drawn before
    nth[order] = np.arange(len(nodes)) - np.repeat(np.cumsum(copies) - copies, copies)
    return (first[which, None] + drawn[which[:, None], nth[:, None] * count + np.arange(count)]).ravel()

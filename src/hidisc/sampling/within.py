"""Which patients are drawn into a batch together: those of one site or of similar colour, which then tells nothing."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from hidisc.ground.errors import UserError
from hidisc.patches.inputs import as_input
from hidisc.patches.store import PatchError, PatchStore
from hidisc.sampling.hierarchy import Tree
from hidisc.sampling.shuffle import Ints

COLOUR = "colour"
_PATCHES = 16
"""Patches of each patient whose colours are averaged."""


@dataclass(frozen=True, eq=False)
class Groups:
    """Roots of a tree in groups, each batch within one of them."""

    members: tuple[Ints, ...]
    """The roots of each group."""
    names: tuple[str, ...]
    is_ring: bool = False
    """Whether a batch is a run of neighbours in the order of a group, whose end meets its beginning."""


def group_roots(store: PatchStore, tree: Tree, within: str) -> Groups:
    """The roots that share a value of the column `within`, or one ring of them by colour."""
    if within == COLOUR:
        return Groups((arrange_ring(_mean_colours(store, tree)),), (COLOUR,), is_ring=True)
    codes, names = _root_codes(store, tree, within)
    values = np.unique(codes)
    return Groups(tuple(np.flatnonzero(codes == value) for value in values), tuple(names[value] for value in values))


def arrange_ring(colours: NDArray[np.float64]) -> Ints:
    """Roots in a ring whose neighbours have similar colours (roots, C).

    Roots are put in order along the direction in which their colours differ most. The ring goes through this order by
    every second root and comes back by the others, so that neighbours are at most two places apart everywhere.
    """
    centred = colours - colours.mean(axis=0)
    axis = np.linalg.svd(centred, full_matrices=False)[2][0]
    axis = axis * np.sign(axis[np.abs(axis).argmax()])
    order = np.argsort((centred @ axis).round(9), kind="stable")
    return np.concatenate([order[::2], order[1::2][::-1]])


def _root_codes(store: PatchStore, tree: Tree, column: str) -> tuple[NDArray[np.int32], tuple[str, ...]]:
    """(roots,) the value of a column of every root, which must have one and not several."""
    if column not in store.table.names:
        raise UserError(
            f"batch.within: {column!r} is no column of names in this store. It can be `{COLOUR}` or one of "
            f"{', '.join(store.table.names)}; further columns of a cohort or of `hidisc import table` are kept."
        )
    codes, names = store.table.codes(column)
    first = tree.root_leaves()
    of_leaves, of_roots = codes[tree.leaves], codes[tree.leaves[first]]
    if (of_leaves < 0).any():
        raise UserError(
            f"batch.within: {(of_leaves < 0).sum():,} of {len(of_leaves):,} patches have no {column!r}. Fill that "
            "column of the cohort and run `hidisc prepare` again, or use another column."
        )
    if (np.repeat(of_roots, np.diff(np.r_[first, len(of_leaves)])) != of_leaves).any():
        raise UserError(
            f"batch.within: {column!r} is not the same for all patches of a {tree.levels[0]}. Use a column that is."
        )
    return of_roots, names


def _mean_colours(store: PatchStore, tree: Tree) -> NDArray[np.float64]:
    """(roots, C) mean input of a few patches of every root, spread evenly over its slides."""
    if len(tree.levels) == 1:
        raise UserError(
            f"batch.within={COLOUR} puts patients in order, and batch.levels has only `patch`. Leave it out."
        )
    ends = np.r_[tree.root_leaves(), len(tree.leaves)]
    return np.stack([_mean_colour(store, tree.leaves[start:end]) for start, end in pairwise(ends)])


def _mean_colour(store: PatchStore, rows: NDArray[np.int32]) -> NDArray[np.float64]:
    """(C,) mean input of a few of some patches; those that cannot be read are passed over."""
    means = []
    for row in rows[np.linspace(0, len(rows) - 1, min(_PATCHES, len(rows))).astype(int)]:
        try:
            means.append(as_input(store.read(int(row)), store.info.input).mean(axis=(0, 1), dtype=np.float64))
        except PatchError as error:
            last = error
    if not means:
        raise UserError(f"{last} batch.within={COLOUR} can read no patch of its patient: repair or remove that slide.")
    return np.mean(means, axis=0)

"""Hierarchy: the ordered levels everything else takes its levels from; Tree: who is below whom in a patch table."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from hidisc.ground.errors import UserError
from hidisc.patches.table import PatchTable


@dataclass(frozen=True)
class Hierarchy:
    """Levels from coarse to fine; the last one is the patch itself, the others are columns of the patch table."""

    levels: tuple[str, ...] = ("patient", "slide", "patch")

    def __post_init__(self) -> None:
        """Refuse levels that are no hierarchy."""
        if not self.levels or self.levels[-1] != "patch" or len(set(self.levels)) != len(self.levels):
            raise UserError(
                f"levels {list(self.levels)} are no hierarchy. Name each level once, from coarse to fine, `patch` "
                "last: --set 'batch.levels=[patient, slide, patch]'."
            )

    def grow(self, table: PatchTable, rows: NDArray[np.bool_]) -> "Tree":
        """The tree of those patches of a table that the mask `rows` (N,) marks."""
        chosen = np.flatnonzero(rows).astype(np.int32)
        if len(self.levels) == 1 or not len(chosen):
            return Tree(self.levels, (), chosen)
        codes = np.stack([self._codes(table, level, chosen) for level in self.levels[:-1]])
        # siblings mostly follow each other: sort runs of them, not millions of rows
        first = np.flatnonzero(np.r_[True, (codes[:, 1:] != codes[:, :-1]).any(axis=0)])
        length = np.diff(np.r_[first, len(chosen)])
        order = np.lexsort(codes[::-1, first])
        ancestors, first, length = codes[:, first[order]], first[order], length[order]
        before = np.cumsum(length) - length
        leaves = chosen[np.repeat(first - before, length) + np.arange(len(chosen))]
        # a node begins wherever its own name or one above it changes
        changes = np.logical_or.accumulate(np.diff(ancestors, axis=1, prepend=-1) != 0, axis=0)
        heads = [np.flatnonzero(level) for level in changes]
        starts = [np.r_[np.searchsorted(finer, coarser), len(finer)] for coarser, finer in pairwise(heads)]
        starts.append(np.r_[before[heads[-1]], len(chosen)])
        return Tree(self.levels, tuple(starts), leaves)

    def _codes(self, table: PatchTable, level: str, rows: NDArray[np.int32]) -> NDArray[np.int32]:
        """(N,) which `level` each of the rows belongs to."""
        named = table.names
        if level not in named:
            raise UserError(
                f"batch.levels: {level!r} is no column of names in this store. Levels above `patch` can be "
                f"{', '.join(named)}; `hidisc import table` takes further columns."
            )
        codes = table.codes(level)[0][rows]
        missing = int((codes < 0).sum())
        if missing:
            raise UserError(
                f"batch.levels: {missing:,} of {len(rows):,} patches have no {level!r}. Fill that column of the "
                "cohort and run `hidisc prepare` again, or leave the level out."
            )
        return codes


@dataclass(frozen=True)
class Tree:
    """The nodes of every level, numbered so that the children of a node follow each other.

    Memory: 4 bytes a patch, 8 bytes a node above.
    """

    levels: tuple[str, ...]
    starts: tuple[NDArray[np.int64], ...]
    """A level above the patch each: children of its node i are `starts[i]` to `starts[i + 1]` of the next level."""
    leaves: NDArray[np.int32]
    """(N,) table row of each patch, in the order of the tree."""

    @property
    def roots(self) -> int:
        """Nodes of the coarsest level."""
        return len(self.starts[0]) - 1 if self.starts else len(self.leaves)

    def root_leaves(self) -> NDArray[np.int64]:
        """(roots,) the first patch of every root, as a place in `leaves`."""
        first = np.arange(self.roots)
        for starts in self.starts:
            first = starts[first]
        return first

    def siblings(self, leaf: int) -> tuple[int, int]:
        """The range of places in `leaves` that the patch at `leaf` shares its parent with."""
        if not self.starts:
            return 0, len(self.leaves)
        parent = int(np.searchsorted(self.starts[-1], leaf, side="right")) - 1
        return int(self.starts[-1][parent]), int(self.starts[-1][parent + 1])

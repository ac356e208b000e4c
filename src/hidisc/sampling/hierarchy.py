"""Hierarchy: the levels from coarse to fine; Tree: the units of each level and their children in a patch table."""

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
        """Refuse levels that do not form a hierarchy."""
        if not self.levels or self.levels[-1] != "patch" or len(set(self.levels)) != len(self.levels):
            raise UserError(
                f"levels {list(self.levels)} are no hierarchy. Name each level once, from coarse to fine, `patch` "
                "last: --set 'batch.levels=[patient, slide, patch]'."
            )

    def grow(self, table: PatchTable, rows: NDArray[np.bool_]) -> "Tree":
        """The tree of those patches of a table that the mask `rows` (N,) marks.

        Six rows, all of them marked, with the levels patient, slide and patch:

            row      0   1   2   3   4   5
            patient  A   A   B   B   B   A
            slide    A1  A1  B1  B2  B2  A1

        1. Sorted by patient, then by slide, the rows are 0 1 5 2 3 4: these are the `leaves`.
        2. A patient begins at the leaves 0 and 3, a slide at the leaves 0, 3 and 4: where its own name or a name above
           it changes (slides of different patients may have the same name).
        3. Patient A begins with slide 0 and B with slide 1, so `starts` of the patients is 0 1 3, whose last number is
           the end; the slides begin with the leaves 0, 3 and 4, so `starts` of the slides is 0 3 4 6.
        """
        chosen = np.flatnonzero(rows).astype(np.int32)
        if len(self.levels) == 1 or not len(chosen):
            return Tree(self.levels, (), chosen)
        codes = [self._codes(table, level, chosen) for level in self.levels[:-1]]
        order = np.lexsort(codes[::-1])  # its last key is the one that counts first
        heads, is_new = [], np.zeros(len(chosen), bool)
        for code in codes:
            is_new |= np.diff(code[order], prepend=-1) != 0
            heads.append(np.flatnonzero(is_new))
        starts = [np.r_[np.searchsorted(finer, coarser), len(finer)] for coarser, finer in pairwise(heads)]
        starts.append(np.r_[heads[-1], len(chosen)])
        return Tree(self.levels, tuple(starts), chosen[order])

    def _codes(self, table: PatchTable, level: str, rows: NDArray[np.int32]) -> NDArray[np.int32]:
        """(N,) which `level` each of the rows belongs to."""
        named = table.names
        if level not in named:
            raise UserError(
                f"batch.levels: {level!r} is no column of names in this store. Levels above `patch` can be "
                f"{', '.join(named)}; further columns of a cohort or of `hidisc import table` are kept."
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

    Memory: 4 bytes per patch and 8 bytes per node above.
    """

    levels: tuple[str, ...]
    starts: tuple[NDArray[np.int64], ...]
    """For each level above the patch: children of its node i are nodes `starts[i]` to `starts[i + 1]` of the next."""
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

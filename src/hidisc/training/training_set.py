"""TrainingSet: which patches of a store a run learns from, and the record of whom they belong to."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hidisc.ground.errors import UserError
from hidisc.patches.record import SlideId
from hidisc.patches.store import PatchStore
from hidisc.sampling.hierarchy import Hierarchy, Tree
from hidisc.sampling.sampler import Sampler
from hidisc.settings.train import DataConfig, TrainConfig


@dataclass(frozen=True)
class TrainingSet:
    """The tree of the patches to learn from; labels only where they are asked for."""

    store: PatchStore
    tree: Tree
    classes: tuple[str, ...]
    """Names of the label codes of batches; empty when labels are not used."""
    labels_used: tuple[str, ...]
    """What labels are used for; empty when they are not."""

    @classmethod
    def choose(cls, store: PatchStore, config: TrainConfig, needs_labels: bool) -> "TrainingSet":
        """The patches of the splits to learn from; with labels, only those that have one."""
        rows = rows_to_learn(store, config.data)
        used = []
        classes: tuple[str, ...] = ()
        if needs_labels or config.batch.balance:
            label, classes = store.table.codes("label")
            rows &= label >= 0
            if len(np.unique(label[rows])) < 2:
                raise UserError(
                    f"objective {config.objective['name']!r} and batch.balance need labels, and the patches to learn "
                    "from have fewer than two. Give the cohort a `label` column and prepare it again."
                )
            used = ["objective"] * needs_labels + ["class balance"] * config.batch.balance
        if config.monitor.every is not None:
            used.append("monitor")
        tree = Hierarchy(config.batch.levels).grow(store.table, rows)
        return cls(store, tree, classes, tuple(used))

    def sampler(self, config: TrainConfig, world: int) -> Sampler:
        """The sampler of a run; balanced, a root counts as of the label of its first patch."""
        labels = None
        if config.batch.balance:
            labels = self.store.table.codes("label")[0][self.tree.leaves[self.tree.root_leaves()]]
        return Sampler(self.tree, config.batch, config.seed, world, labels)

    def count_single(self, level: str, inner: str) -> tuple[int, int]:
        """How many units of a level have one unit of a finer level, and how many units there are."""
        first, last = (self.tree.levels.index(name) for name in (level, inner))
        starts = np.arange(len(self.tree.starts[first]))
        for of_level in self.tree.starts[first:last]:
            starts = of_level[starts]
        return int((np.diff(starts) == 1).sum()), len(starts) - 1

    @property
    def mpp(self) -> float | None:
        """Micrometres per px of the patches to learn from; None: not known, or several."""
        scales = np.unique(self.store.table.column("mpp")[self.tree.leaves]).round(4)
        return float(scales[0]) if len(scales) == 1 and not np.isnan(scales[0]) else None

    def slides(self) -> tuple[SlideId, ...]:
        """Every slide with a patch to learn from."""
        codes, names = self.store.table.codes("slide")
        return list_slides(self.store, codes[self.tree.leaves], names)


def rows_to_learn(store: PatchStore, data: DataConfig) -> NDArray[np.bool_]:
    """(N,) which patches are learned from: those of some splits and scales, without some patients."""
    rows = store.table.in_splits(data.splits, "data.splits", store.path)
    if data.mpp is not None:
        rows &= store.table.at_scales(data.mpp, "data.mpp", store.path)
    return rows & ~store.table.of_patients(data.leave_out, "data.leave_out", store.path)


def list_slides(store: PatchStore, codes: NDArray[np.int32], names: Sequence[str]) -> tuple[SlideId, ...]:
    """The slides of a store that codes (N,) of names stand for, with the checksums of their files."""
    present = {names[code] for code in np.unique(codes)}
    return tuple(
        SlideId(patient=slide.patient, slide=slide.slide, checksum=slide.checksum)
        for slide in store.info.slides
        if slide.slide in present
    )

"""One embedding per place, made from the embeddings of its patches at all scales: their mean, or concatenated."""

from dataclasses import replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from hidisc.evaluation.task import LabelledPatches, Task
from hidisc.ground.errors import UserError
from hidisc.ground.text import count
from hidisc.patches.table import SAME_SCALE

How = Literal["mean", "concatenate"]


def join_places(task: Task, how: How) -> tuple[Task, str]:
    """The task with one row per place instead of one per patch, and a sentence with both numbers.

    A place stands under its finest patch. Embeddings are brought to length 1 first, so that every scale weighs alike.
    `mean` takes the scales that a place has; `concatenate` leaves out places that lack one. Memory: all vectors of the
    bank and of the queries.
    """
    for patches in (task.bank, task.queries):
        if "place" not in patches.embeddings.table.names:
            raise UserError(
                f"places={how}: {patches.embeddings.path} has no column `place`. Prepare with several scales: "
                "--set 'grid.mpp=[0.5, 1.0, 2.0]'."
            )
    scales = np.unique(np.concatenate([patches.names("mpp") for patches in (task.bank, task.queries)]))
    bank, queries = (_join(patches, how, scales) for patches in (task.bank, task.queries))
    if not len(bank) or not len(queries):
        raise UserError(f"places={how}: no place has patches of all {len(scales)} scales. Use places=mean.")
    before, after = len(task.bank) + len(task.queries), len(bank) + len(queries)
    return replace(task, bank=bank, queries=queries), f"{count(before, 'patch')} joined to {count(after, 'place')}"


def _join(patches: LabelledPatches, how: How, scales: NDArray[np.float32]) -> LabelledPatches:
    """One row per place: the row of its finest patch, with the vectors of all its patches joined."""
    mpp = patches.names("mpp")
    if (patches.codes("place") < 0).any() or np.isnan(mpp).any():
        raise UserError(f"places={how}: some patches of {patches.embeddings.path} have no place or no mpp. Fill both.")
    units = patches.units(("patient", "slide", "place"))
    scale = np.array([np.flatnonzero(np.isclose(scales, patch_mpp, rtol=SAME_SCALE))[0] for patch_mpp in mpp])
    vectors = patches.vectors()
    vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True).clip(min=1e-12)
    slots = np.zeros((len(units), len(scales), vectors.shape[1]), np.float32)
    filled = np.zeros((len(units), len(scales)), np.int64)
    np.add.at(slots, (units.of_row, scale), vectors)
    np.add.at(filled, (units.of_row, scale), 1)
    if filled.max(initial=0) > 1:
        raise UserError(f"places={how}: {patches.embeddings.path} has a place with two patches of one scale.")
    by_place = np.lexsort((scale, units.of_row))  # the patches of a place next to each other, the finest first
    finest = by_place[np.cumsum(units.counts) - units.counts]
    order, lacking = np.argsort(finest), (filled == 0).sum(axis=1)
    if how == "mean":
        joined = (slots.sum(axis=1) / filled.sum(axis=1, keepdims=True)).astype(np.float32)
    else:
        order, joined = order[lacking[order] == 0], slots.reshape(len(units), -1)
    chosen = finest[order]
    return replace(patches, rows=patches.rows[chosen], labels=patches.labels[chosen], exchanged=joined[order])

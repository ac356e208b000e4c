"""Which patches are embedded: some splits of a store, and of each slide all or as many as asked for."""

import numpy as np
from numpy.typing import NDArray

from hidisc.ground.errors import UserError
from hidisc.ground.seeds import Purpose, make_rng
from hidisc.patches.store import PatchStore
from hidisc.settings.embed import EmbedConfig


def choose_rows(store: PatchStore, config: EmbedConfig) -> NDArray[np.int64]:
    """(N,) rows of the store's table, ascending; a slide's draw depends on the seed and its own name only."""
    is_chosen = np.ones(len(store), bool)
    if config.splits is not None:
        is_chosen &= store.table.in_splits(config.splits, "splits", store.path)
    if config.mpp is not None:
        is_chosen &= store.table.at_scales(config.mpp, "mpp", store.path)
    if not is_chosen.any():
        raise UserError(f"{store.path} holds no patches to embed. See its pictures/ for what was dropped.")
    if config.per_slide is None:
        return np.flatnonzero(is_chosen)
    drawn = []
    for slide, rows in store.table.rows_by("slide").items():
        rows = rows[is_chosen[rows]]
        if len(rows) > config.per_slide:
            rows = make_rng(config.seed, Purpose.EMBEDDED_PATCHES, slide).choice(rows, config.per_slide, replace=False)
        drawn.append(rows)
    return np.sort(np.concatenate(drawn))

"""Which patches are embedded: some splits of a store, and of each slide all or as many as asked for."""

import numpy as np
from numpy.typing import NDArray

from hidisc.ground.errors import UserError
from hidisc.ground.seeds import Purpose, make_rng
from hidisc.patches.store import PatchStore
from hidisc.settings.embed import EmbedConfig


def choose_rows(store: PatchStore, config: EmbedConfig) -> NDArray[np.int64]:
    """(N,) rows of the store's table, ascending; a slide's draw depends on the seed and its own name only."""
    rows = np.arange(len(store))
    if config.splits is not None:
        rows = np.flatnonzero(store.table.in_splits(config.splits, "splits", store.path))
    if config.mpp is not None:
        rows = rows[store.table.at_scales(config.mpp, "mpp", store.path)[rows]]
    if config.per_slide is not None:
        rows = _draw(store, rows, config.per_slide, config.seed)
    if not len(rows):
        raise UserError(f"{store.path} holds no patches to embed. See its pictures/ for what was dropped.")
    return rows


def _draw(store: PatchStore, rows: NDArray[np.int64], count: int, seed: int) -> NDArray[np.int64]:
    """Up to `count` rows of each slide, without replacement."""
    codes, names = store.table.codes("slide")
    codes = codes[rows]
    order = np.argsort(codes, kind="stable")
    starts = np.searchsorted(codes[order], np.arange(len(names) + 1))
    kept = []
    for number, name in enumerate(names):
        places = order[starts[number] : starts[number + 1]]
        if len(places) > count:
            places = make_rng(seed, Purpose.EMBEDDED_PATCHES, name).choice(places, count, replace=False)
        kept.append(places)
    return rows[np.sort(np.concatenate(kept))]

"""Which patches are on the maps of a report, the same for all encoders where possible, and what they are."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import zip_longest

import numpy as np
from numpy.typing import NDArray

from hidisc.embeddings.embeddings import Embeddings
from hidisc.evaluation.predictions import Predictions
from hidisc.evaluation.scores import Scores
from hidisc.reporting.evaluated import EvaluatedModel
from hidisc.reporting.tiles import PatchReader, Sprite, pack_sprite


@dataclass(frozen=True)
class MapInput:
    """N patches of one encoder, of which some are drawn on its map."""

    name: str
    embeddings: Embeddings
    rows: NDArray[np.int64]
    """(N,) rows of the embeddings."""
    predicted: NDArray[np.int64] | None
    """(N,) codes into `classes`; None where no probe scored patches."""
    classes: tuple[str, ...]
    label: str
    """Column of the table that holds the classes."""


def find_map_input(model: EvaluatedModel) -> MapInput | None:
    """Return the test patches of a model's first evaluation whose embeddings exist; None where none do.

    Of embeddings that were not evaluated these are the patches of the test split, or all where there is no such split.
    """
    for embeddings, scores in zip_longest(model.embeddings, model.scores):
        if embeddings is None:
            continue
        splits = embeddings.table.column("split")
        if scores is None:
            is_test = splits == "test"
            rows = np.flatnonzero(is_test) if is_test.any() else np.arange(len(embeddings))
            return MapInput(model.name, embeddings, rows, None, (), "label")
        info = scores.info
        label = str(info.config["label"])
        predictions = judge_patches(scores)
        if predictions is not None:
            rows = predictions.units["row"]
            return MapInput(model.name, embeddings, rows, predictions.predicted, info.classes, label)
        is_query = np.isin(splits, np.array(info.config["queries"], object))
        is_query &= np.isin(embeddings.table.column(label), np.array(info.classes, object))
        return MapInput(model.name, embeddings, np.flatnonzero(is_query), None, info.classes, label)
    return None


def judge_patches(scores: Scores) -> Predictions | None:
    """Return the predictions of the test patches: by the nearest neighbours, else by the first probe that has any."""
    probes = sorted(scores.info.probes, key=lambda probe: probe.name != "knn")
    finest = scores.info.levels[-1]
    name = next((probe.name for probe in probes if probe.level(finest) is not None), None)
    return None if name is None else scores.predictions(name, finest)


@dataclass(frozen=True)
class Points:
    """M patches on the maps of E encoders."""

    places: tuple[NDArray[np.int64], ...]
    """Per encoder (n,) indices into the `rows` of its input, in random order."""
    patch: tuple[NDArray[np.int64], ...]
    """Per encoder (n,) which of the M patches they are."""
    home: NDArray[np.int64]
    """(M, 2) an encoder that has the patch, and the index into the `rows` of its input."""
    shared: bool
    """Whether all encoders show the same patches."""


def choose_points(inputs: Sequence[MapInput], count: int, rng: np.random.Generator) -> Points:
    """Draw `count` patches at random, the same for all encoders where they have enough in common."""
    stores = list(dict.fromkeys(map_input.embeddings.info.store_checksum for map_input in inputs))
    keys = [_identify(map_input, stores.index(map_input.embeddings.info.store_checksum)) for map_input in inputs]
    common = reduce(np.intersect1d, keys)
    shared = len(common) >= min(count, min(map(len, keys)) / 2)
    drawn = rng.permutation(common)[:count]
    numbers: dict[int, int] = {}
    home: list[tuple[int, int]] = []
    places, patch = [], []
    for encoder, own in enumerate(keys):
        order = np.argsort(own)
        chosen = drawn if shared else rng.permutation(own)[:count]
        indices = order[np.searchsorted(own, chosen, sorter=order)]
        for key, index in zip(chosen.tolist(), indices.tolist(), strict=True):
            if key not in numbers:
                numbers[key] = len(home)
                home.append((encoder, index))
        places.append(indices)
        patch.append(np.array([numbers[key] for key in chosen.tolist()], np.int64))
    return Points(tuple(places), tuple(patch), np.array(home, np.int64).reshape(-1, 2), shared)


def _identify(map_input: MapInput, store: int) -> NDArray[np.int64]:
    """(N,) numbers that are equal for the same patch of the same store, whatever else was embedded."""
    shard, row = (map_input.embeddings.table.column(name)[map_input.rows].astype(np.int64) for name in ("shard", "row"))
    return store << 60 | shard << 30 | row


@dataclass(frozen=True)
class Column:
    """What the M patches of the maps are, by one name."""

    key: str
    title: str
    names: tuple[str, ...]
    codes: NDArray[np.int64]
    """(M,) into `names`, -1 where it is not known."""


def name_points(inputs: Sequence[MapInput], points: Points) -> tuple[Column, ...]:
    """Return class, patient, slide and site of the M patches; the class first, and a site only where there is one."""
    classes = tuple(dict.fromkeys(name for map_input in inputs for name in map_input.classes))
    columns = []
    for key, title in (("label", "class"), ("patient", "patient"), ("slide", "slide"), ("site", "site")):
        values = np.full(len(points.home), None, object)
        for encoder, map_input in enumerate(inputs):
            here = points.home[:, 0] == encoder
            column = map_input.embeddings.table.column(map_input.label if key == "label" else key)
            values[here] = column[map_input.rows[points.home[here, 1]]]
        known = sorted({str(value) for value in values if value is not None})
        names = tuple(dict.fromkeys((*classes, *known) if key == "label" else known))
        codes = {name: code for code, name in enumerate(names)}
        if names or key == "label":
            columns.append(Column(key, title, names, np.array([codes.get(value, -1) for value in values], np.int64)))
    return tuple(columns)


def read_points(reader: PatchReader, inputs: Sequence[MapInput], points: Points, side_px: int) -> Sprite | None:
    """Return pictures of the M patches; None where a store cannot be read, for then most of them would be missing."""
    tiles = np.empty((len(points.home), side_px, side_px, 3), np.uint8)
    for encoder, map_input in enumerate(inputs):
        here = points.home[:, 0] == encoder
        own = reader.tiles(map_input.embeddings, map_input.rows[points.home[here, 1]], side_px)
        if own is None:
            return None
        tiles[here] = own
    return pack_sprite(tiles)

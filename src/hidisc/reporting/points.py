"""Pictures of patches, and the points of the map with them."""

import base64
import io
import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import reduce
from itertools import zip_longest
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from hidisc.embeddings.embeddings import Embeddings, find_rows_in_store
from hidisc.evaluation.predictions import Predictions
from hidisc.evaluation.scores import Scores
from hidisc.ground.machine import count_cores
from hidisc.patches.store import PatchError, PatchStore
from hidisc.reporting.evaluated import EvaluatedModel
from hidisc.reporting.prepared import encode, to_address
from hidisc.slides.slide import as_rgb, shrink

GREY = 214
"""Grey level of the tile of a patch that cannot be read."""
_SPRITE_PX = 4096
"""Longest side of one picture of many tiles: phones refuse larger ones."""
_QUALITY = 80


class PatchReader:
    """Reads the patches that embeddings were made of, from their stores, each of which is opened once."""

    def __init__(self) -> None:
        self._stores: dict[tuple[Path, str], PatchStore | str] = {}
        self.unreadable = 0
        """Patches shown as grey tiles."""

    @property
    def missing(self) -> tuple[str, ...]:
        """Why there are no pictures of some embeddings, one sentence per store."""
        return tuple(store for store in self._stores.values() if isinstance(store, str))

    def tiles(self, embeddings: Embeddings, rows: NDArray[np.int64], side_px: int) -> NDArray[np.uint8] | None:
        """Return pictures (n, side_px, side_px, 3) of some rows (n,) of the embeddings; None without their store."""
        store = self.open_store(embeddings)
        return None if store is None else self.read(store, find_rows_in_store(embeddings, rows, store), side_px)

    def open_store(self, embeddings: Embeddings) -> PatchStore | None:
        """The store that embeddings were made of; None where it is gone or has changed."""
        if embeddings.info.store is None:  # the check for near-duplicates says so
            return None
        path = (embeddings.path / embeddings.info.store).resolve()
        key = (path, embeddings.info.store_checksum)
        if key not in self._stores:
            reason = f"the store {path.name!r} is not where it was, or has changed. Embed it again to see its pictures."
            self._stores[key] = embeddings.open_store() or reason
        store = self._stores[key]
        return None if isinstance(store, str) else store

    def read(self, store: PatchStore, rows: NDArray[np.int64], side_px: int) -> NDArray[np.uint8]:
        """Return pictures (n, side_px, side_px, 3) of rows (n,) of a store; grey where a patch cannot be read."""

        def look(row: int) -> NDArray[np.uint8] | None:
            try:
                return shrink(as_rgb(store.read(row)), side_px)
            except PatchError:
                return None

        tiles = np.full((len(rows), side_px, side_px, 3), GREY, np.uint8)
        with ThreadPoolExecutor(count_cores()) as pool:  # decoding releases the interpreter's lock
            for number, tile in enumerate(pool.map(look, rows.tolist())):
                if tile is None:
                    self.unreadable += 1
                else:
                    tiles[number] = tile
        return tiles


@dataclass(frozen=True)
class Sprite:
    """N tiles on as few large pictures as possible: tile i is on picture i // each, and there row by row."""

    uris: tuple[str, ...]
    side_px: int
    across: int
    """Tiles in a row of a picture."""
    each: int
    """Tiles on a full picture."""


def pack_sprite(tiles: NDArray[np.uint8]) -> Sprite:
    """Lay out tiles (N, side_px, side_px, 3) on large pictures, white where none is left."""
    side = tiles.shape[1]
    most = _SPRITE_PX // side
    across = min(most, max(1, math.ceil(math.sqrt(len(tiles)))))
    each = across * most
    # JPEG mixes the colours of blocks of 16 px, across the edges of tiles that such blocks do not fit
    sharp = side % 16 != 0
    uris = []
    for start in range(0, len(tiles), each):
        part = tiles[start : start + each]
        down = math.ceil(len(part) / across)
        full = np.full((down * across, side, side, 3), 255, np.uint8)
        full[: len(part)] = part
        picture = full.reshape(down, across, side, side, 3).swapaxes(1, 2).reshape(down * side, across * side, 3)
        uris.append(to_uri(picture, sharp))
    return Sprite(tuple(uris), side, across, each)


def to_uri(rgb: NDArray[np.uint8], sharp: bool = False) -> str:
    """Return a picture (H, W, 3) as the address of a JPEG that holds all of it; `sharp` keeps all of its colour."""
    options = {"quality": _QUALITY, "subsampling": 0 if sharp else 2, "optimize": True}
    return to_address("image/jpeg", encode(Image.fromarray(rgb), "JPEG", **options))


def from_uri(uri: str) -> NDArray[np.uint8]:
    """Return the pixels (H, W, 3) of a picture that `to_uri` wrote."""
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(uri.split(",", 1)[1]))))


@dataclass(frozen=True)
class MapInput:
    """N patches of one encoder, of which some are drawn on its map."""

    name: str
    embeddings: Embeddings
    rows: NDArray[np.int64]
    """The rows (N,) of the patches in the embeddings."""
    predicted: NDArray[np.int64] | None
    """Codes (N,) of the predicted classes into `classes`; None where no probe scored patches."""
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
            return MapInput(model.name, embeddings, rows, predictions.predicted, info.endpoint.classes, label)
        is_query = np.isin(splits, np.array(info.config["queries"], object))
        is_query &= np.isin(embeddings.table.column(label), np.array(info.endpoint.classes, object))
        return MapInput(model.name, embeddings, np.flatnonzero(is_query), None, info.endpoint.classes, label)
    return None


def judge_patches(scores: Scores) -> Predictions | None:
    """Return the predictions of the test patches: by the nearest neighbours, else by the first probe that has any."""
    probes = sorted(scores.info.probes, key=lambda probe: probe != "knn")
    finest = scores.info.levels[-1]
    probe = next((probe for probe in probes if scores.info.find(finest, probe) is not None), None)
    return None if probe is None else scores.predictions(probe, finest)


@dataclass(frozen=True)
class Points:
    """M patches on the maps of E encoders."""

    places: tuple[NDArray[np.int64], ...]
    """Per encoder, indices (n,) into the `rows` of its input, in random order."""
    patch: tuple[NDArray[np.int64], ...]
    """Per encoder, the numbers (n,) of these patches among the M patches."""
    home: NDArray[np.int64]
    """For each patch (M, 2): an encoder that has the patch, and the index into the `rows` of its input."""
    shared: bool
    """Whether all encoders show the same patches."""


def choose_points(inputs: Sequence[MapInput], count: int, rng: np.random.Generator) -> Points:
    """Draw `count` patches at random, the same for all encoders where they have enough in common."""
    names: dict[tuple[str, str], int] = {}
    keys = [_identify(map_input, names) for map_input in inputs]
    common = reduce(np.intersect1d, keys)
    shared = len(common) >= min(count, min(map(len, keys)) / 2)
    drawn = rng.permutation(common)[:count]
    numbers: dict[int, int] = {}
    home: dict[int, tuple[int, int]] = {}
    places, patch = [], []
    for encoder, own in enumerate(keys):
        order = np.argsort(own)
        chosen = drawn if shared else rng.permutation(own)[:count]
        indices = order[np.searchsorted(own, chosen, sorter=order)]
        for key, index in zip(chosen.tolist(), indices.tolist(), strict=True):
            numbers.setdefault(key, len(home))
            home.setdefault(key, (encoder, index))
        places.append(indices)
        patch.append(np.array([numbers[key] for key in chosen.tolist()], np.int64))
    return Points(tuple(places), tuple(patch), np.array([*home.values()], np.int64).reshape(-1, 2), shared)


def _identify(map_input: MapInput, names: dict[tuple[str, str], int]) -> NDArray[np.int64]:
    """Numbers (N,) that are equal for the same patch of the same patches, in whichever embeddings it is.

    `names` numbers the slides by the checksum of their patches and their name, and grows.
    """
    info, table = map_input.embeddings.info, map_input.embeddings.table
    codes, slides = table.codes("slide")
    numbers = np.array([names.setdefault((info.store_checksum, slide), len(names)) for slide in slides], np.int64)
    return numbers[codes[map_input.rows]] << 32 | table.column("patch")[map_input.rows].astype(np.int64)


@dataclass(frozen=True)
class MapColumn:
    """One column of the M patches of the maps: a code per patch and a name per code."""

    key: str
    title: str
    names: tuple[str, ...]
    codes: NDArray[np.int64]
    """Codes (M,) into `names`; -1 where the name is not known."""


def name_points(inputs: Sequence[MapInput], points: Points) -> tuple[MapColumn, ...]:
    """Return class, patient, slide and site of the M patches; the class first, and a site only where there is one."""
    classes = tuple(dict.fromkeys(name for map_input in inputs for name in map_input.classes))
    columns = []
    for key, title in (("label", "class"), ("patient", "patient"), ("slide", "slide"), ("site", "site")):
        values = np.full(len(points.home), None, object)
        for encoder, map_input in enumerate(inputs):
            own = points.home[:, 0] == encoder
            column = map_input.embeddings.table.column(map_input.label if key == "label" else key)
            values[own] = column[map_input.rows[points.home[own, 1]]]
        known = sorted({str(value) for value in values if value is not None})
        names = tuple(dict.fromkeys((*classes, *known) if key == "label" else known))
        codes = {name: code for code, name in enumerate(names)}
        if names or key == "label":
            columns.append(MapColumn(key, title, names, np.array([codes.get(value, -1) for value in values], np.int64)))
    return tuple(columns)


def read_points(reader: PatchReader, inputs: Sequence[MapInput], points: Points, side_px: int) -> Sprite | None:
    """Return pictures of the M patches; None where a store cannot be read, because most pictures would be missing."""
    tiles = np.empty((len(points.home), side_px, side_px, 3), np.uint8)
    for encoder, map_input in enumerate(inputs):
        own = points.home[:, 0] == encoder
        pictures = reader.tiles(map_input.embeddings, map_input.rows[points.home[own, 1]], side_px)
        if pictures is None:
            return None
        tiles[own] = pictures
    return pack_sprite(tiles)

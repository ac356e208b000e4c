"""Patches on the page: which are on the map and which on the sheets of neighbours, and their pictures."""

import base64
import io
import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial, reduce
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from numpy.typing import NDArray
from PIL import Image

from hidisc.embeddings.embeddings import Embeddings
from hidisc.evaluation.duplicates import store_rows
from hidisc.evaluation.predictions import Predictions
from hidisc.evaluation.scores import Scores
from hidisc.ground.machine import count_cores
from hidisc.patches.store import PatchError, PatchStore
from hidisc.reporting.evaluated import EvaluatedModel
from hidisc.reporting.figures import GREY as GREY_TEXT
from hidisc.reporting.figures import INK, figure_style, shorten
from hidisc.slides.display import as_rgb, shrink

GREY = 214
"""Level of the tile that stands for a patch that cannot be read."""
SHEET_PX = 112
"""Side of a picture on a sheet of neighbours: larger than on the map, for there are few."""
_SPRITE_PX = 4096
"""Longest side of one picture of many: phones refuse larger ones."""
_QUALITY = 80


class PatchReader:
    """Reads the patches that embeddings were made of, from their stores, each of which is opened once."""

    def __init__(self) -> None:
        self._stores: dict[tuple[Path, str], PatchStore | str] = {}
        self.unreadable = 0
        """Patches shown as grey tiles."""

    @property
    def missing(self) -> tuple[str, ...]:
        """Why there are no pictures of some embeddings, a sentence a store."""
        return tuple(store for store in self._stores.values() if isinstance(store, str))

    def tiles(self, embeddings: Embeddings, rows: NDArray[np.int64], side_px: int) -> NDArray[np.uint8] | None:
        """(n, side_px, side_px, 3) pictures of some rows (n,) of the embeddings; None without their store."""
        place = (embeddings.path / embeddings.info.store).resolve()
        key = (place, embeddings.info.store_checksum)
        if key not in self._stores:
            gone = f"the store {place.name!r} is not where it was, or has changed. Embed it again to see its pictures."
            self._stores[key] = embeddings.open_store() or gone
        store = self._stores[key]
        if isinstance(store, str):
            return None
        places = store_rows(embeddings, rows, store)
        with ThreadPoolExecutor(count_cores()) as pool:  # decoding lets go of the interpreter
            found = list(pool.map(partial(_read, store, side_px), places.tolist()))
        self.unreadable += sum(tile is None for tile in found)
        out = np.full((len(found), side_px, side_px, 3), GREY, np.uint8)
        for number, tile in enumerate(found):
            if tile is not None:
                out[number] = tile
        return out


def _read(store: PatchStore, side_px: int, index: int) -> NDArray[np.uint8] | None:
    """A patch as a small picture, None where it cannot be decoded."""
    try:
        return shrink(as_rgb(store.read(index)), side_px)
    except PatchError:
        return None


@dataclass(frozen=True)
class Sprite:
    """N pictures on as few large ones as can be: picture i is on sheet i // each, and there row by row."""

    uris: tuple[str, ...]
    side_px: int
    across: int
    """Pictures in a row of a sheet."""
    each: int
    """Pictures of a full sheet."""


def pack_sprite(tiles: NDArray[np.uint8]) -> Sprite:
    """Lay out tiles (N, side_px, side_px, 3)."""
    side = tiles.shape[1]
    most = _SPRITE_PX // side
    across = min(most, max(1, math.ceil(math.sqrt(len(tiles)))))
    each = across * most
    # JPEG mixes the colours of blocks of 16 px, across the edges of tiles that such blocks do not fit
    sharp = side % 16 != 0
    sheets = [_lay(tiles[start : start + each], across) for start in range(0, len(tiles), each)]
    return Sprite(tuple(to_uri(sheet, sharp) for sheet in sheets), side, across, each)


def _lay(tiles: NDArray[np.uint8], across: int) -> NDArray[np.uint8]:
    """Tiles (n, S, S, 3), `across` in a row, white where there is none left."""
    side, rows = tiles.shape[1], math.ceil(len(tiles) / across)
    full = np.full((rows * across, side, side, 3), 255, np.uint8)
    full[: len(tiles)] = tiles
    grid = full.reshape(rows, across, side, side, 3).swapaxes(1, 2)
    return np.ascontiguousarray(grid).reshape(rows * side, across * side, 3)


def to_uri(rgb: NDArray[np.uint8], sharp: bool = False) -> str:
    """A picture (H, W, 3) as the address of a JPEG that holds all of it; `sharp` keeps all of its colour."""
    buffer = io.BytesIO()
    Image.fromarray(rgb).save(buffer, "JPEG", quality=_QUALITY, subsampling=0 if sharp else 2, optimize=True)
    return f"data:image/jpeg;base64,{base64.b64encode(buffer.getvalue()).decode()}"


# ---- the map


@dataclass(frozen=True)
class MapInput:
    """N patches of one encoder, of which some are drawn on its map."""

    name: str
    embeddings: Embeddings
    rows: NDArray[np.int64]
    """(N,) rows of the embeddings."""
    predicted: NDArray[np.int64] | None
    """(N,) codes into `classes`; None where no probe judged patches."""
    classes: tuple[str, ...]
    label: str
    """Column of the table that holds them."""


def find_map_input(model: EvaluatedModel) -> MapInput | None:
    """The query patches of a model's first evaluation whose embeddings are there; None where none are.

    Of embeddings that were not evaluated: their test split, or all where there is none.
    """
    for place, found in enumerate(model.embeddings):
        if found is None:
            continue
        if not model.scores:
            is_test = found.table.column("split") == "test"
            rows = np.flatnonzero(is_test) if is_test.any() else np.arange(len(found))
            return MapInput(model.name, found, rows, None, (), "label")
        info = model.scores[place].info
        label = str(info.config["label"])
        judged = judge_patches(model.scores[place])
        if judged is not None:
            return MapInput(model.name, found, judged.units["row"], judged.predicted, info.classes, label)
        asked = np.isin(found.table.column("split"), np.array(info.config["queries"], object))
        asked &= np.isin(found.table.column(label), np.array(info.classes, object))
        return MapInput(model.name, found, np.flatnonzero(asked), None, info.classes, label)
    return None


def judge_patches(scores: Scores) -> Predictions | None:
    """What was said of every query patch: by the nearest neighbours, else by the first probe that judged patches."""
    probes = sorted(scores.info.probes, key=lambda probe: probe.name != "knn")
    finest = scores.info.levels[-1]
    named = next((probe.name for probe in probes if probe.level(finest) is not None), None)
    return None if named is None else scores.predictions(named, finest)


@dataclass(frozen=True)
class Points:
    """M patches on the maps of E encoders."""

    places: tuple[NDArray[np.int64], ...]
    """Of each encoder (n,) places among its inputs rows, in random order."""
    patch: tuple[NDArray[np.int64], ...]
    """Of each encoder (n,) which of the M patches they are."""
    home: NDArray[np.int64]
    """(M, 2) an encoder that has the patch, and the place there."""
    shared: bool
    """Whether all encoders show the same patches."""


def choose_points(inputs: Sequence[MapInput], count: int, rng: np.random.Generator) -> Points:
    """`count` patches at random, the same for all encoders where they have enough in common."""
    stores = {one.embeddings.info.store_checksum: 0 for one in inputs}
    stores = {checksum: number for number, checksum in enumerate(stores)}
    keys = [_identify(one, stores[one.embeddings.info.store_checksum]) for one in inputs]
    common = reduce(np.intersect1d, keys)
    shared = len(common) >= min(count, min(map(len, keys)) / 2)
    drawn = rng.permutation(common)[:count]
    numbers: dict[int, int] = {}
    home: list[tuple[int, int]] = []
    places, patch = [], []
    for encoder, own in enumerate(keys):
        order = np.argsort(own)
        chosen = drawn if shared else rng.permutation(own)[:count]
        at = order[np.searchsorted(own, chosen, sorter=order)]
        for key, place in zip(chosen.tolist(), at.tolist(), strict=True):
            if key not in numbers:
                numbers[key] = len(home)
                home.append((encoder, place))
        places.append(at)
        patch.append(np.array([numbers[key] for key in chosen.tolist()], np.int64))
    return Points(tuple(places), tuple(patch), np.array(home, np.int64).reshape(-1, 2), shared)


def _identify(inputs: MapInput, store: int) -> NDArray[np.int64]:
    """(N,) numbers that are equal for the same patch of the same store, whatever else was embedded."""
    shard, row = (inputs.embeddings.table.column(name)[inputs.rows].astype(np.int64) for name in ("shard", "row"))
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
    """Class, patient, slide and site of the M patches; the class first, and a site only where there is one."""
    classes = tuple(dict.fromkeys(name for one in inputs for name in one.classes))
    columns = []
    for key, title in (("label", "class"), ("patient", "patient"), ("slide", "slide"), ("site", "site")):
        values = np.full(len(points.home), None, object)
        for encoder, one in enumerate(inputs):
            here = points.home[:, 0] == encoder
            column = one.label if key == "label" else key
            values[here] = one.embeddings.table.column(column)[one.rows[points.home[here, 1]]]
        found = sorted({str(value) for value in values if value is not None})
        names = classes + tuple(name for name in found if name not in classes) if key == "label" else tuple(found)
        code = {name: number for number, name in enumerate(names)}
        if names or key == "label":
            columns.append(Column(key, title, names, np.array([code.get(value, -1) for value in values], np.int64)))
    return tuple(columns)


def read_points(reader: PatchReader, inputs: Sequence[MapInput], points: Points, side_px: int) -> Sprite | None:
    """Pictures of the M patches; None where a store cannot be read, for then most of them would be missing."""
    tiles = np.empty((len(points.home), side_px, side_px, 3), np.uint8)
    for encoder, one in enumerate(inputs):
        here = points.home[:, 0] == encoder
        found = reader.tiles(one.embeddings, one.rows[points.home[here, 1]], side_px)
        if found is None:
            return None
        tiles[here] = found
    return pack_sprite(tiles)


# ---- sheets of nearest neighbours


@dataclass(frozen=True)
class Shown:
    """A patch on a sheet."""

    uri: str | None
    label: str
    patient: str
    agrees: bool
    """Whether its label is the query's."""
    similarity: float | None = None


@dataclass(frozen=True)
class SheetRow:
    """A query, what it was taken for, and the patches of the bank nearest to it, nearest first."""

    query: Shown
    predicted: str
    neighbours: tuple[Shown, ...]


def choose_queries(predictions: Predictions, count: int, right: bool, rng: np.random.Generator) -> NDArray[np.int64]:
    """Places of patches that were taken for what they are (or not), at random; new patients first."""
    found = rng.permutation(np.flatnonzero((predictions.predicted == predictions.truth) == right))
    seen: dict[object, int] = {}
    turn = []
    for patient in predictions.clusters[found]:
        turn.append(seen.get(patient, 0))
        seen[patient] = turn[-1] + 1
    return found[np.argsort(turn, kind="stable")][:count]


def make_sheet(
    reader: PatchReader,
    queries: Embeddings,
    bank: Embeddings,
    predictions: Predictions,
    neighbours: tuple[NDArray[np.int64], NDArray[np.float32]],
    places: NDArray[np.int64],
    label: str,
) -> tuple[SheetRow, ...]:
    """Rows of the patches at `places` of the predictions; `label` is the column of the bank's table to show."""
    near, similar = (found[places] for found in neighbours)
    names = np.array(predictions.classes, object)
    truth, predicted = names[predictions.truth[places]], names[predictions.predicted[places]]
    asked = _show(reader, queries, predictions.units["row"][places], truth, truth)
    rows = []
    for query, known, said, row, alike in zip(asked, truth, predicted, near, similar, strict=True):
        there = row >= 0  # a bank smaller than what was to be kept leaves gaps
        labels = bank.table.column(label)[row[there]]
        found = _show(reader, bank, row[there], labels, np.full(len(labels), known, object), alike[there])
        rows.append(SheetRow(query, str(said), tuple(found)))
    return tuple(rows)


@figure_style()
def draw_sheet(rows: Sequence[SheetRow]) -> Figure:
    """A sheet as a figure: a row a query, its neighbours bordered green (its class) or orange and dashed (another)."""
    most = max((len(row.neighbours) for row in rows), default=0)
    wide, tall = most + 1.4, 1.42 * len(rows)
    figure = Figure(figsize=(0.95 * wide, 0.95 * max(tall, 1)))
    axes = figure.add_subplot()
    axes.set(xlim=(0, wide), ylim=(max(tall, 1), 0))
    axes.set_axis_off()
    for number, row in enumerate(rows):
        wrong = "" if row.predicted == row.query.label else f"taken for {row.predicted}"
        _place(axes, row.query, 0.1, 1.42 * number, wrong)
        for place, shown in enumerate(row.neighbours):
            _place(axes, shown, 1.4 + place, 1.42 * number, f"{shown.similarity:.3f}")
    return figure


def _place(axes: Axes, shown: Shown, left: float, top: float, below: str) -> None:
    """One patch with its label, patient and a third line; a query (no similarity) has no border."""
    side = 0.92
    if shown.uri is not None:
        with Image.open(io.BytesIO(base64.b64decode(shown.uri.split(",", 1)[1]))) as image:
            axes.imshow(np.asarray(image), extent=(left, left + side, top + side, top), aspect="equal")
    if shown.similarity is not None or shown.uri is None:
        looks = ("#0a6e5c", "-") if shown.agrees else ("#d1571f", (0, (2, 1)))
        axes.add_patch(Rectangle((left, top), side, side, fill=False, lw=1.6, edgecolor=looks[0], ls=looks[1]))
    lines = ((shown.label, "bold", INK), (shown.patient, "normal", GREY_TEXT), (below, "normal", GREY_TEXT))
    for number, (text, weight, colour) in enumerate(lines):
        place = (left, top + side + 0.12 + 0.13 * number)
        axes.text(*place, shorten(text, 17), fontsize=5.5, weight=weight, color=colour, va="center")


def _show(
    reader: PatchReader,
    embeddings: Embeddings,
    rows: NDArray[np.int64],
    labels: NDArray[np.object_],
    truth: NDArray[np.object_],
    similar: NDArray[np.float32] | None = None,
) -> list[Shown]:
    """Rows (n,) of embeddings as pictures under their labels (n,)."""
    tiles = reader.tiles(embeddings, rows, SHEET_PX)
    patients = embeddings.table.column("patient")[rows]
    return [
        Shown(
            uri=None if tiles is None else to_uri(tiles[place]),
            label=str(labels[place]),
            patient=str(patients[place]),
            agrees=bool(labels[place] == truth[place]),
            similarity=None if similar is None else float(similar[place]),
        )
        for place in range(len(rows))
    ]

"""Embeddings: one vector per patch beside the patches' own table, and labels that people gave to patches.

They are made from a store, or imported as features that another tool has extracted; the latter have no store.

A label is kept in `labels/NAME.parquet` beside the embeddings. A row names a patch by the checksum of its slide's file,
its number in the slide, and its place and scale. So labels stay with their patches when slides are added to the store
or another encoder embeds them, and are refused where a slide was cut in another way. `NAME` is then a column of the
embeddings like those of the cohort.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from hidisc.artefacts.artefact import Artefact, open_artefact
from hidisc.ground.columns import Columns, load_columns, save_columns
from hidisc.ground.errors import UserError
from hidisc.ground.files import AnyPath, Record, hash_file, name_related, relate
from hidisc.ground.progress import Result
from hidisc.ground.text import count
from hidisc.models.card import History
from hidisc.patches.record import SlideGeometry, SlideId
from hidisc.patches.store import PatchStore
from hidisc.patches.table import PatchTable
from hidisc.settings.level_names import LevelNames

EMBEDDINGS, VECTORS, PATCHES = "embeddings.json", "embeddings.npy", "patches.parquet"

ModelKind = Literal["run", "encoder", "timm", "torchscript", "onnx", "colour", "features"]


class ModelCard(Record):
    """The encoder that made the embeddings, and the slides it has seen."""

    name: str
    """Its name in tables."""
    kind: ModelKind
    source: str
    """Where it was, relative to the embeddings: a folder or a file; or `timm:NAME` or `colour`; of features that were
    imported, where their files were."""
    checksum: str
    """SHA-256 of its weights; of features that were imported, of the encoder's name and the width of its vectors."""
    group: str
    """The same for trainings that differ in nothing but their seed."""
    seed: int | None = None
    """Of its training (or of its random weights)."""
    objective: str | None = None
    backbone: str | None = None
    size_px: int
    """Side of the pictures that it takes; stored patches are resized to it. 0: not known, of features."""
    history: History
    """The slides and labels that it has learned from."""

    def relate_source(self, home: Path, out: Path) -> "ModelCard":
        """The card with its folder or file, which it names as seen from `home`, named as seen from the folder `out`."""
        source = home / self.source
        is_path = self.kind != "colour" and source.exists()  # a folder may have the floor's name, such as `out` itself
        return self.model_copy(update={"source": relate(source, out)}) if is_path else self


class EmbeddingsInfo(Record):
    """`embeddings.json`."""

    rows: int
    dim: int
    dtype: Literal["float32", "float16"]
    model: ModelCard
    store: str | None
    """Where the store was, relative to the embeddings, for pictures; None: features of other tools, without one."""
    store_checksum: str
    """Of its patches; without a store, of their names and places."""
    slides: tuple[SlideId, ...]
    """Every slide that was embedded, with the checksum of its file."""
    splits: tuple[str, ...] | None
    per_slide: int | None
    seed: int
    bad_patches: int
    """Patches that could not be read and are left out."""
    versions: dict[str, str | None]
    level_names: LevelNames = LevelNames()
    """The names of the levels in pages and messages."""
    geometries: tuple[SlideGeometry, ...] = ()
    """Without a store: how large the patches of each slide are on it."""


@dataclass(frozen=True)
class Embeddings:
    """`Embeddings.load(path)`: `vectors` (N, D) is a read-only memory map, `table` has the N patches in its order."""

    artefact: Artefact
    info: EmbeddingsInfo
    table: PatchTable
    vectors: NDArray[Any]
    labels_checksum: str | None = None
    """SHA-256 of the file whose labels were added to the table ; None: no labels were added."""

    @classmethod
    def load(cls, path: AnyPath) -> "Embeddings":
        """Open finished embeddings; unfinished or damaged ones are refused with what to do."""
        path = Path(path)
        artefact = open_artefact(path, "embed")
        info = EmbeddingsInfo.model_validate_json((path / EMBEDDINGS).read_bytes())
        vectors = np.load(path / VECTORS, mmap_mode="r", allow_pickle=False)
        return cls(artefact, info, PatchTable.load(path / PATCHES), vectors)

    @property
    def path(self) -> Path:
        """Their folder."""
        return self.artefact.path

    def result(self) -> Result:
        """How many patches are embedded, and in how many numbers each."""
        info = self.info
        words = info.level_names
        bad = f", {count(info.bad_patches, f'unreadable {words.patch}')} left out" if info.bad_patches else ""
        patches, slides = words.count(info.rows, "patch"), words.count(len(info.slides), "slide")
        sentence = f"{patches} of {slides} as {info.dim} numbers each{bad}"
        record = info.model_dump(mode="json", exclude={"slides": True, "model": {"history": {"slides"}}})
        return Result(f"{self.path}: {sentence}", {"embeddings": str(self.path), **record})

    def refuse_coarse(self, store: PatchStore | None, reader: str) -> None:
        """Refuse patches of coarser scales than a slide's squares, whose size is all that a reader knows."""
        scales = self.table.scales().tolist()
        finest = store.scales[0] if store is not None and store.info.scales else min(scales, default=None)
        if "place" in self.table.names and any(scale != finest for scale in scales):
            raise UserError(
                f"{self.path} has patches of {', '.join(f'{scale:g}' for scale in scales)} um/px, and {reader} takes "
                f"those of the finest scale alone. Embed these: hidisc embed STORE ENCODER --set 'mpp=[{finest:g}]'."
            )

    def open_store(self) -> PatchStore | None:
        """The store they were made from; None when there was none, it is not there any more, or has changed since."""
        if self.info.store is None:
            return None
        try:
            store = PatchStore.load(self.path / self.info.store)
        except UserError:
            return None
        return store if store.checksum == self.info.store_checksum else None

    @property
    def why_no_pictures(self) -> str:
        """Why there are no pictures of their patches where `open_store` gives None, without a full stop."""
        if self.info.store is None:
            return "the embeddings were imported, without pictures of their patches"
        return f"the store {name_related(self.info.store, self.path)!r} is not there, or has changed"

    def read_geometries(self) -> dict[str, SlideGeometry]:
        """By slide, how large its patches are on it; empty where the store is needed and is not there."""
        if self.info.store is None:
            return {geometry.slide: geometry for geometry in self.info.geometries}
        store, wanted = self.open_store(), set(self.table.codes("slide")[1])
        entries = store.info.slides if store is not None else ()
        return {each.slide: store.geometry(each) for each in entries if store and each.slide in wanted}

    def __len__(self) -> int:
        return len(self.vectors)


def find_rows_in_store(embeddings: Embeddings, rows: NDArray[np.int64], store: PatchStore) -> NDArray[np.int64]:
    """(n,) the rows of the store's table with the patches of some rows (n,) of embeddings that were made from it."""
    if store.checksum != embeddings.info.store_checksum:
        raise UserError(
            f"store {store.path} has changed since {embeddings.path} was made from it. Embed it again to see its "
            "pictures."
        )
    if embeddings.info.store is None:
        return _find_by_name(embeddings.table, rows, store.table)
    shard, row = (embeddings.table.column(name)[rows].astype(np.int64) for name in ("shard", "row"))
    # of millions of patches only those in the same shards are searched
    near = np.flatnonzero(np.isin(store.table.column("shard"), np.unique(shard)))
    stored_shard, stored_row = (store.table.column(name)[near].astype(np.int64) for name in ("shard", "row"))
    width = max(stored_row.max(initial=0), row.max(initial=0)) + 1
    stored, wanted = stored_shard * width + stored_row, shard * width + row
    missing = int((~np.isin(wanted, stored)).sum())
    if missing:
        raise UserError(
            f"store {store.path} does not hold {missing:,} of the patches of {embeddings.path}. Embed it again."
        )
    order = np.argsort(stored)
    return near[order[np.searchsorted(stored, wanted, sorter=order)]]


def _find_by_name(table: PatchTable, rows: NDArray[np.int64], stored: PatchTable) -> NDArray[np.int64]:
    """(n,) the rows of imported patches in another table of the same patches, by their slides and numbers."""
    numbers = {name: number for number, name in enumerate(stored.codes("slide")[1])}

    def address(of: PatchTable) -> NDArray[np.int64]:
        codes, names = of.codes("slide")
        slides = np.array([numbers.get(name, len(numbers)) for name in names], np.int64)
        return slides[codes] << 32 | of.column("patch").astype(np.int64)

    known = address(stored)
    order = np.argsort(known)
    found = order[np.searchsorted(known, address(table)[rows], sorter=order).clip(max=len(order) - 1)]
    if (known[found] != address(table)[rows]).any():
        raise UserError("these embeddings have patches that the other ones lack. Import both from the same files.")
    return found


LABELS = "labels"
"""The folder of these labels, beside the folder that they are about."""
_PLACE = ("checksum", "x", "y", "mpp")
_COLUMNS = ("slide", "patch", *_PLACE, "label")


def labels_file(folder: Path, name: str) -> Path:
    """The file of the labels called `name` for the patches in a folder; a name that is no file name is refused."""
    if not name or len(name) > 60 or not all(letter.isalnum() or letter in "_-" for letter in name):
        raise UserError(f"{name!r} cannot name a set of labels. Use letters, digits, - and _, 60 at most.")
    return folder.resolve().parent / LABELS / f"{name}.parquet"


def save_labels(
    path: Path, table: PatchTable, slides: Sequence[SlideId], labels: NDArray[np.object_], others: Columns
) -> None:
    """Write the labels (N,) of the patches of a table, and those of `others`, wholly or not at all."""
    rows = np.flatnonzero(labels != None)  # noqa: E711 - elementwise
    facts = {**_list_facts(table, slides), "label": labels}
    columns = {name: np.concatenate([facts[name][rows], *([others[name]] if others else [])]) for name in _COLUMNS}
    path.parent.mkdir(exist_ok=True)
    save_columns(path, columns)


def load_labels(path: Path, table: PatchTable, slides: Sequence[SlideId]) -> tuple[NDArray[np.object_], Columns]:
    """(N,) the label of each patch of a table, or None; and the rows of patches that the table does not have."""
    given = load_columns(path)
    if set(given) != set(_COLUMNS):
        raise UserError(f"{path} does not hold labels of hidisc: its columns are {', '.join(given)}.")
    facts, rows_of = _list_facts(table, slides), table.rows_by("slide")
    labels, is_other = np.full(len(table), None, object), np.ones(len(given["slide"]), bool)
    for slide in dict.fromkeys(given["slide"].tolist()):
        if slide not in rows_of:
            continue
        wanted, rows = np.flatnonzero(given["slide"] == slide), rows_of[slide]
        rows = rows[np.argsort(facts["patch"][rows])]
        places = np.searchsorted(facts["patch"][rows], given["patch"][wanted]).clip(max=len(rows) - 1)
        is_here = facts["patch"][rows[places]] == given["patch"][wanted]
        rows, wanted = rows[places][is_here], wanted[is_here]
        if not all(_agree(facts[name][rows], given[name][wanted]) for name in _PLACE):
            raise UserError(
                f"{path}: slide {slide!r} is another file, or was cut in another way, since these labels were given, "
                "so they would stand at wrong places. Use the store that they were given to."
            )
        labels[rows] = given["label"][wanted]
        is_other[wanted] = False
    return labels, {name: values[is_other] for name, values in given.items()}


def add_labels(embeddings: Embeddings, name: str) -> Embeddings:
    """The embeddings with the labels called `name` as a column; as they are, where they have it or no file does."""
    path = embeddings.path.resolve().parent / LABELS / f"{name}.parquet"
    if name in embeddings.table.columns or "/" in name or not path.is_file():
        return embeddings
    labels, _ = load_labels(path, embeddings.table, embeddings.info.slides)
    table = embeddings.table.add_names(name, labels.tolist())
    return replace(embeddings, table=table, labels_checksum=hash_file(path))


def _list_facts(table: PatchTable, slides: Sequence[SlideId]) -> Columns:
    """(N,) each: the columns that identify a patch, and those that must not have changed since it was labelled."""
    codes, names = table.codes("slide")
    checksums = {slide.slide: slide.checksum for slide in slides}
    of_code = np.array([checksums.get(name) for name in names] or [None], object)
    facts = {name: table.column(name) for name in ("slide", "patch", "x", "y", "mpp")}
    return {**facts, "checksum": of_code[codes]}


def _agree(one: NDArray[Any], other: NDArray[Any]) -> bool:
    """Whether two columns are equal; missing values equal each other."""
    if one.dtype == object:
        return bool((one == other).all())
    return bool(np.array_equal(one, other, equal_nan=one.dtype.kind == "f"))

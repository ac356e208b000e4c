"""Embeddings: one vector per patch beside the patches' own table, made from a store or imported without one."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from hidisc.artefacts.artefact import Artefact, open_artefact
from hidisc.artefacts.inputs import ANY_INPUTS, ExpectedInputs
from hidisc.artefacts.inputs import EMBEDDINGS as EMBEDDINGS_INPUT
from hidisc.embeddings.given_names import GivenNames, find_given_names
from hidisc.ground.errors import UserError
from hidisc.ground.files import AnyPath, Record, name_related, relate
from hidisc.ground.progress import Result
from hidisc.ground.text import count
from hidisc.models.card import NOTHING, History
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
    start: str | None = None
    """Where the vectors that a map was applied to were, relative to the embeddings; null: made from pictures."""
    start_checksum: str | None = None
    """Of the embeddings that hold these."""
    geometries: tuple[SlideGeometry, ...] = ()
    """Without a store: how large the patches of each slide are on it."""


@dataclass(frozen=True)
class Embeddings:
    """`Embeddings.load(path)`: `vectors` (N, D) is a read-only memory map, `table` has the N patches in its order."""

    artefact: Artefact
    info: EmbeddingsInfo
    table: PatchTable
    vectors: NDArray[Any]
    given: GivenNames | None = None
    """The names that people gave to the patches and that were added to the table as a column; None: none were."""

    @classmethod
    def load(cls, path: AnyPath, expected: ExpectedInputs = ANY_INPUTS) -> "Embeddings":
        """Open finished embeddings; unfinished or damaged ones, or others than expected, are refused."""
        path = Path(path)
        artefact = open_artefact(path, "embed")
        expected.compare(EMBEDDINGS_INPUT, artefact.checksum, f"the folder of embeddings {path}")
        info = EmbeddingsInfo.model_validate_json((path / EMBEDDINGS).read_bytes())
        vectors = np.load(path / VECTORS, mmap_mode="r", allow_pickle=False)
        return cls(artefact, info, PatchTable.load(path / PATCHES), vectors)

    @property
    def path(self) -> Path:
        """Their folder."""
        return self.artefact.path

    @property
    def checksum(self) -> str:
        """Names the vectors and all that is known of them."""
        return self.artefact.checksum

    @property
    def labels_checksum(self) -> str | None:
        """SHA-256 of the file whose names were added to the table; None: no names were added."""
        return self.given.checksum if self.given is not None else None

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


def without_vectors(store: PatchStore | Embeddings) -> Embeddings:
    """The patches of a store as embeddings of no dimension: what can be asked of them before an encoder is trained."""
    if isinstance(store, Embeddings):
        return store
    card = ModelCard(name="", kind="encoder", source="", checksum="", group="", size_px=0, history=NOTHING)
    info = EmbeddingsInfo(
        rows=len(store),
        dim=0,
        dtype="float32",
        model=card,
        store=".",
        store_checksum=store.checksum,
        slides=tuple(store.info.slides),
        splits=None,
        per_slide=None,
        seed=0,
        bad_patches=0,
        versions={},
    )
    return Embeddings(store.artefact, info, store.table, np.zeros((len(store), 0), np.float32))


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


def add_labels(embeddings: Embeddings, label: str) -> Embeddings:
    """The embeddings with the names that people gave to patches as the column `label`; as they are where it is theirs.

    `label`: a column of the table, a set of given names, or `given:NAME` for such a set alone.
    """
    found = find_given_names(embeddings.path, label, embeddings.table, embeddings.info.slides)
    if found is None:
        return embeddings
    table = embeddings.table.add_names(label, found.labels.tolist())
    return replace(embeddings, table=table, given=found)

"""Embeddings: one vector per patch beside the patches' own table."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from hidisc.artefacts.artefact import Artefact, open_artefact
from hidisc.ground.errors import UserError
from hidisc.ground.files import relate
from hidisc.ground.paths import AnyPath
from hidisc.ground.records import Record
from hidisc.models.history import History
from hidisc.patches.record import SlideId
from hidisc.patches.store import PatchStore
from hidisc.patches.table import PatchTable
from hidisc.settings.level_names import LevelNames

EMBEDDINGS, VECTORS, PATCHES = "embeddings.json", "embeddings.npy", "patches.parquet"

ModelKind = Literal["run", "encoder", "timm", "torchscript", "onnx", "colour"]


class ModelCard(Record):
    """Whose encoder made the embeddings, and what it has seen."""

    name: str
    """What tables call it."""
    kind: ModelKind
    source: str
    """Where it was, relative to the embeddings: a folder or a file; or `timm:NAME` or `colour`."""
    checksum: str
    """SHA-256 of its weights."""
    group: str
    """The same for trainings that differ in nothing but their seed."""
    seed: int | None = None
    """Of its training (or of its random weights)."""
    objective: str | None = None
    backbone: str | None = None
    size_px: int
    """Side of what it is fed; stored patches are resized to it."""
    history: History
    """What it has seen."""

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
    store: str
    """Where the store was, relative to the embeddings, for pictures."""
    store_checksum: str
    """Of its patches."""
    slides: tuple[SlideId, ...]
    """Every slide that was embedded, with the checksum of its file."""
    splits: tuple[str, ...] | None
    per_slide: int | None
    seed: int
    bad_patches: int
    """Patches that could not be read and are left out."""
    versions: dict[str, str | None]
    level_names: LevelNames = LevelNames()
    """What people read calls the levels so."""


@dataclass(frozen=True)
class Embeddings:
    """`Embeddings.load(path)`: `vectors` (N, D) is a read-only memory map, `table` has the N patches in its order."""

    artefact: Artefact
    info: EmbeddingsInfo
    table: PatchTable
    vectors: NDArray[Any]
    labels_checksum: str | None = None
    """SHA-256 of the file whose labels were added to the table (`annotations.py`); None: none were."""

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
        """The store they were made from; None when it is not there any more, or has changed since."""
        try:
            store = PatchStore.load(self.path / self.info.store)
        except UserError:
            return None
        return store if store.checksum == self.info.store_checksum else None

    def __len__(self) -> int:
        return len(self.vectors)

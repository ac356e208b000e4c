"""Embeddings: one vector a patch beside the patches' own table; `embeddings.json` is written last."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from hidisc.config import Closed
from hidisc.errors import UserError
from hidisc.models.encoder import LearnedSlide
from hidisc.patches.store import FileEntry, check_size
from hidisc.patches.table import PatchTable
from hidisc.paths import AnyPath
from hidisc.runs import read_finished

EMBEDDINGS, VECTORS, PATCHES = "embeddings.json", "embeddings.npy", "patches.parquet"

ModelKind = Literal["run", "encoder", "timm", "torchscript", "onnx"]


class ModelCard(Closed):
    """Whose encoder made the embeddings, and what it has seen."""

    name: str
    """What tables call it."""
    kind: ModelKind
    source: str
    """As it was given: a folder, a file or `timm:NAME`."""
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
    learned_from: tuple[LearnedSlide, ...] | None = None
    """Every slide it has seen; null: not known, so that overlap cannot be ruled out."""
    labels_used: tuple[str, ...] = ()
    """What labels were used for in its training; empty: nothing known of."""


class EmbeddingsInfo(Closed):
    """`embeddings.json`."""

    format: Literal["hidisc-embeddings-1"] = "hidisc-embeddings-1"
    rows: int
    dim: int
    dtype: Literal["float32", "float16"]
    model: ModelCard
    store: str
    """Where the store was, for pictures."""
    store_checksum: str
    """Of its table of patches."""
    slides: tuple[LearnedSlide, ...]
    """Every slide that was embedded, with the checksum of its file."""
    splits: tuple[str, ...] | None
    per_slide: int | None
    seed: int
    bad_patches: int
    """Patches that could not be read and are left out."""
    vectors: FileEntry
    patches: FileEntry
    versions: dict[str, str | None]


@dataclass(frozen=True)
class Embeddings:
    """`Embeddings.load(path)`: `vectors` (N, D) is a read-only memory map, `table` has the N patches in its order."""

    path: Path
    info: EmbeddingsInfo
    table: PatchTable
    vectors: NDArray[Any]

    @classmethod
    def load(cls, path: AnyPath) -> "Embeddings":
        """Open finished embeddings; unfinished or cut-short ones are refused with what to do."""
        path = Path(path)
        unfinished = f"embeddings {path} are not finished. Run the same `hidisc embed` again; it goes on."
        absent = f"{path} holds no embeddings (no {EMBEDDINGS}). Make them with `hidisc embed`."
        info = read_finished(path / EMBEDDINGS, EmbeddingsInfo, "embed", unfinished, absent)
        for entry in (info.vectors, info.patches):
            problem = check_size(path, entry)
            if problem:
                raise UserError(f"embeddings {path} are damaged: {problem}. Delete the folder and embed again.")
        vectors = np.load(path / VECTORS, mmap_mode="r", allow_pickle=False)
        return cls(path, info, PatchTable.load(path / PATCHES), vectors)

    def __len__(self) -> int:
        return len(self.vectors)

"""PatchStore: the patches of a cohort on disk, read at random by training, embedding and the explorer."""

import resource
from collections import OrderedDict
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from threading import Lock
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from pydantic import ValidationError

from hidisc.config import Closed
from hidisc.errors import UserError
from hidisc.patches.codec import CodecName, decode
from hidisc.patches.inputs import InputRule, input_channels
from hidisc.patches.record import BOXES, RECORD, THUMBNAIL, ShardFile, SlideRecord
from hidisc.patches.shard import Shard
from hidisc.patches.table import PatchTable
from hidisc.paths import AnyPath
from hidisc.runs import read_kind
from hidisc.slides.cohort import hash_file
from hidisc.slides.slide import Pixels

FORMAT = "hidisc-patches-1"
STORE, PATCHES, DROPPED = "store.json", "patches.parquet", "dropped.parquet"


class PatchError(UserError):
    """A stored patch that cannot be decoded."""


class FileEntry(Closed):
    """A file of the store with what it must be."""

    path: str
    """Relative to the store."""
    bytes: int
    checksum: str
    """SHA-256."""


class SlideEntry(Closed):
    """A slide of the store."""

    patient: str
    slide: str
    folder: str
    """Relative to the store."""
    checksum: str
    """SHA-256 of the slide file; names it in leakage checks."""
    kept: int
    dropped: int
    record_checksum: str
    """SHA-256 of the folder's slide.json, which names the rest of its files."""


class Failure(Closed):
    """A slide that could not be prepared."""

    patient: str
    slide: str
    path: str
    reason: str


class StoreInfo(Closed):
    """`store.json`: what the store holds and how to read it; written last, so a store without it is unfinished."""

    format: Literal["hidisc-patches-1"] = "hidisc-patches-1"
    size_px: int
    mpp: float | None
    channels: int
    dtype: Literal["uint8", "uint16"]
    codec: CodecName
    input: InputRule
    """How stored pixels become a network's input (`patches/inputs.py`)."""
    patches: FileEntry
    dropped: FileEntry
    shards: tuple[FileEntry, ...]
    """The column `shard` counts these."""
    slides: tuple[SlideEntry, ...]
    failures: tuple[Failure, ...]


class PatchStore:
    """An opened store: `store.table` has N rows, `store.read(i)` is the i-th patch (size_px, size_px, C).

    Safe with threads and with forked and spawned workers: shards are read-only memory maps opened at first use, and a
    pickled store opens itself anew. Memory: the table, plus the pages the kernel keeps of what was read.
    """

    def __init__(self, path: Path, info: StoreInfo, table: PatchTable) -> None:
        self.path = path
        self.info = info
        self.table = table
        self.shape = (info.size_px, info.size_px, info.channels)
        self.dtype = np.dtype(info.dtype)
        self._shard: NDArray[np.int32] = table.column("shard")
        self._row: NDArray[np.int32] = table.column("row")
        self._open: OrderedDict[int, Shard] = OrderedDict()
        self._lock = Lock()
        # a memory map holds a file descriptor: leave most of them to the rest of the process
        self._most_open = max(16, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4)

    @classmethod
    def load(cls, path: AnyPath) -> "PatchStore":
        """Open a finished store; an unfinished or cut-short one is refused with what to do."""
        path = Path(path)
        info = read_info(path)
        for file in (info.patches, info.dropped):
            problem = check_size(path, file)
            if problem:
                raise UserError(f"store {path} is damaged: {problem}. Run the same `hidisc prepare` or `import` again.")
        return cls(path, info, PatchTable.load(path / info.patches.path))

    def __len__(self) -> int:
        return len(self.table)

    @property
    def input_channels(self) -> int:
        """Channels of a network's input."""
        return input_channels(self.info.input, self.info.channels)

    @property
    def is_colour(self) -> bool:
        """Whether the channels of the input are red, green and blue."""
        return self.info.input == "unit" and self.info.channels == 3

    def read(self, index: int, out: Pixels | None = None) -> Pixels:
        """Patch (size_px, size_px, C) of row `index`, into `out` if given; raises PatchError naming a damaged one."""
        shard, row = int(self._shard[index]), int(self._row[index])
        try:
            return decode(self._opened(shard)[row], self.info.codec, self.shape, self.dtype, out)
        except (ValueError, RuntimeError, OSError, IndexError) as error:
            name = self.info.shards[shard].path
            raise PatchError(
                f"patch {row} of {self.path / name} cannot be decoded ({error}). "
                f"Run `hidisc doctor {self.path}` to see what is damaged."
            ) from error

    def read_many(self, indices: Sequence[int] | NDArray[np.integer[Any]]) -> Pixels:
        """Patches (N, size_px, size_px, C) of several rows."""
        out = np.empty((len(indices), *self.shape), self.dtype)
        for place, index in enumerate(indices):
            self.read(int(index), out[place])
        return out

    def _opened(self, shard: int) -> Shard:
        with self._lock:
            opened = self._open.get(shard)
            if opened is None:
                opened = self._open[shard] = Shard(self.path / self.info.shards[shard].path)
                if len(self._open) > self._most_open:
                    self._open.popitem(last=False)
            else:
                self._open.move_to_end(shard)
            return opened

    def record(self, slide: SlideEntry) -> SlideRecord:
        """How one slide was cut."""
        return SlideRecord.load(self.path / slide.folder)

    def dropped(self) -> PatchTable:
        """The candidate boxes that were not kept, with their scores."""
        return PatchTable.load(self.path / self.info.dropped.path)

    def thumbnail(self, slide: SlideEntry) -> tuple[Pixels, float] | None:
        """(pixels (h, w, 3), level-0 px a thumbnail px) of a slide, None for imported patches."""
        scale = self.record(slide).thumbnail_downsample
        if scale is None:
            return None
        data = (self.path / slide.folder / THUMBNAIL).read_bytes()
        return np.asarray(Image.open(BytesIO(data)).convert("RGB")), scale

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path.absolute()}  # a worker may stand in another folder

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(PatchStore.load(state["path"]).__dict__)


def read_info(path: Path) -> StoreInfo:
    """`store.json` of a finished store."""
    file = path / STORE
    if not file.is_file():
        if read_kind(path) not in (None, "train"):
            raise UserError(f"store {path} is not finished. Run the command that makes it again; it goes on.")
        raise UserError(f"{path} is not a patch store (no {STORE}). Make one with `hidisc prepare` or `hidisc import`.")
    try:
        return StoreInfo.model_validate_json(file.read_bytes())
    except ValidationError as error:
        raise UserError(f"{file} is damaged or of another version of hidisc ({error.errors()[0]['msg']}).") from error


def check_size(path: Path, file: FileEntry) -> str | None:
    """What is wrong with the presence and size of a file, None when nothing is."""
    found = path / file.path
    if not found.is_file():
        return f"{file.path} is missing"
    if found.stat().st_size != file.bytes:
        return f"{file.path} has {found.stat().st_size} bytes instead of {file.bytes}"
    return None


def verify_store(path: Path) -> list[str]:
    """Everything that is wrong with a store: each file's presence, size and checksum. Empty: all is well."""
    info = read_info(path)
    entries = [info.patches, info.dropped, *info.shards]
    problems = []
    for slide in info.slides:
        record = path / slide.folder / RECORD
        if not record.is_file() or hash_file(record) != slide.record_checksum:
            problems.append(f"{slide.folder}/{RECORD} is missing or has changed")
            continue
        known = SlideRecord.load(record.parent)
        boxes = record.parent / BOXES
        if not boxes.is_file() or hash_file(boxes) != known.boxes_checksum:
            problems.append(f"{slide.folder}/{BOXES} is missing or has changed")
        if known.thumbnail_downsample is not None and not (record.parent / THUMBNAIL).is_file():
            problems.append(f"{slide.folder}/{THUMBNAIL} is missing")
    for file in entries:
        problem = check_size(path, file)
        if problem is None and hash_file(path / file.path) != file.checksum:
            problem = f"{file.path} has changed (its checksum differs)"
        if problem:
            problems.append(problem)
    return problems


def shard_entry(folder: str, shard: ShardFile) -> FileEntry:
    """A slide's shard as a file of the store."""
    return FileEntry(path=f"{folder}/{shard.name}", bytes=shard.bytes, checksum=shard.checksum)

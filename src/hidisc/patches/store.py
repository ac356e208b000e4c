"""PatchStore: the patches of a cohort, read in any order; stored pixels as a network sees them."""

from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property
from io import BytesIO
from pathlib import Path
from threading import Lock
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from hidisc.artefacts import inputs
from hidisc.artefacts.artefact import CONFIG, Artefact, DamagedError, open_artefact
from hidisc.artefacts.inputs import ANY_INPUTS, ExpectedInputs
from hidisc.ground.errors import UserError
from hidisc.ground.files import AnyPath, Record, digest, find_problem
from hidisc.patches.codec import CodecName, decode
from hidisc.patches.record import RECORD, THUMBNAIL, SlideGeometry, SlideId, SlideRecord
from hidisc.patches.shard import Shard, assemble
from hidisc.patches.table import SAME_SCALE, PatchTable
from hidisc.settings.level_names import LevelNames
from hidisc.slides.slide import Pixels

InputRule = Literal["unit", "srh"]
SRH_SCALE = 65536
SRH_OFFSET = 5000


def input_channels(rule: InputRule, stored_channels: int) -> int:
    """How many channels `as_input` gives."""
    return 3 if rule == "srh" else stored_channels


def as_input(pixels: Pixels, rule: InputRule) -> NDArray[np.float32]:
    """Float pixels (..., C') in [0, 1] from stored ones (..., C).

    `unit` divides by the largest value. `srh` takes the 16-bit channels CH2, CH3 divided by 65536 and puts
    CH3 - CH2 + 5000/65536 in front, all clamped to [0, 1], as OpenSRH and HiDisc do.
    """
    if rule == "unit":
        return pixels.astype(np.float32) / np.float32(np.iinfo(pixels.dtype).max)
    ch2, ch3 = (pixels[..., channel].astype(np.float32) / SRH_SCALE for channel in (0, 1))
    third = ch3 - ch2 + np.float32(SRH_OFFSET / SRH_SCALE)
    return np.stack([third, ch2, ch3], axis=-1).clip(0, 1)


STORE, PATCHES, DROPPED, FAILURES = "store.json", "patches.parquet", "dropped.parquet", "failures.csv"


class PatchError(UserError):
    """A stored patch that cannot be decoded."""


class SlideEntry(SlideId):
    """A slide of the store."""

    folder: str
    """Relative to the store."""
    kept: int
    dropped: int


class SlideFailure(Record):
    """A slide that could not be prepared."""

    patient: str
    slide: str
    path: str
    reason: str


class StoreInfo(Record):
    """`store.json`: what the store holds and how to read it."""

    size_px: int
    mpp: float | None
    """Micrometres per patch px; null where it is not known, or where there are several scales."""
    channels: int
    dtype: Literal["uint8", "uint16"]
    codec: CodecName
    input: InputRule
    """How stored pixels become a network's input (`patches/store.py:as_input`)."""
    shards: tuple[str, ...]
    """Files of encoded patches, relative to the store; the column `shard` counts these."""
    slides: tuple[SlideEntry, ...]
    failures: tuple[SlideFailure, ...]
    level_names: LevelNames = LevelNames()
    """The words for patient, slide and patch in all that people read."""
    scales: tuple[float, ...] = ()
    """Micrometres per patch px of a store of several scales, the finest first."""

    def to_json(self) -> bytes:
        """What `store.json` holds; one scale is not listed, so that such a store is as it always was."""
        return (self.model_dump_json(indent=1, exclude=None if self.scales else {"scales"}) + "\n").encode()


class PatchStore:
    """An opened store: `store.table` has N rows, `store.read(i)` is the i-th patch (size_px, size_px, C).

    Safe with threads and with forked and spawned workers: shards are read-only memory maps opened at first use, and a
    pickled store opens itself anew. Memory: the table, plus the pages the kernel keeps of what was read.
    """

    def __init__(self, artefact: Artefact, info: StoreInfo, table: PatchTable) -> None:
        self.artefact = artefact
        self.path = artefact.path
        self.info = info
        self.table = table
        self.shape = (info.size_px, info.size_px, info.channels)
        self.dtype = np.dtype(info.dtype)
        self._shard: NDArray[np.int32] = table.column("shard")
        self._row: NDArray[np.int32] = table.column("row")
        self._open: OrderedDict[int, Shard] = OrderedDict()
        self._owners: dict[int, str] = {}
        """Whose patches each shard that was opened before holds."""
        self._damaged: set[int] = set()
        self._lock = Lock()
        # a memory map holds a file descriptor: leave most of them to the rest of the process
        self._most_open = max(16, _count_descriptors() // 4)

    @classmethod
    def load(cls, path: AnyPath, expected: ExpectedInputs = ANY_INPUTS) -> "PatchStore":
        """Open a finished store; an unfinished or damaged one, or another than is expected, is refused."""
        path = Path(path)
        said = f"the store {path}"
        try:
            artefact = open_artefact(path, "prepare", "import", check=(CONFIG, STORE, PATCHES, DROPPED, FAILURES))
        except DamagedError:
            raise
        except UserError:
            expected.compare(inputs.STORE, None, said)
            raise
        info = StoreInfo.model_validate_json((path / STORE).read_bytes())
        store = cls(artefact, info, PatchTable.load(path / PATCHES))
        expected.compare(inputs.STORE, store.checksum, said)
        return store

    @cached_property
    def checksum(self) -> str:
        """Names the patches: their table and their pixels."""
        files = self.artefact.files
        return digest([files[PATCHES].sha256, *(files[shard].sha256 for shard in self.info.shards)])

    def __len__(self) -> int:
        return len(self.table)

    @property
    def scales(self) -> tuple[float, ...]:
        """Micrometres per patch px of all scales, the finest first; empty: not known."""
        return self.info.scales or (() if self.info.mpp is None else (self.info.mpp,))

    def are_finest(self, mpp: NDArray[Any] | None) -> NDArray[np.bool_] | np.bool_:
        """(N,) which of some patches, by their mpp (N,), are of the finest scale; all are where there is one."""
        if mpp is None or not self.info.scales:
            return np.True_
        return np.isclose(mpp, self.scales[0], rtol=SAME_SCALE)

    @property
    def input_channels(self) -> int:
        """Channels of a network's input."""
        return input_channels(self.info.input, self.info.channels)

    @property
    def is_colour(self) -> bool:
        """Whether the channels of the input are red, green and blue."""
        return self.info.input == "unit" and self.info.channels == 3

    def read(self, index: int, out: Pixels | None = None) -> Pixels:
        """Patch (size_px, size_px, C) of row `index`, into `out` if given; raises PatchError naming a damaged one.

        A store that is another one by now is refused with ChangedInputError: its patches are not left out as damaged.
        """
        shard, row = int(self._shard[index]), int(self._row[index])
        try:
            opened = self._opened(shard)
            if opened.per_side > 1:
                return assemble(opened, row, self.info.codec, self.shape, self.dtype, out)
            return decode(opened[row], self.info.codec, self.shape, self.dtype, out)
        except (ValueError, RuntimeError, OSError, IndexError) as error:
            name = self.info.shards[shard]
            raise PatchError(
                f"patch {row} of {self.path / name} cannot be decoded ({error}). "
                f"Run `hidisc doctor {self.path}` to see what is damaged."
            ) from error

    def read_many(self, indices: Sequence[int] | NDArray[np.integer[Any]]) -> Pixels:
        """Patches (N, size_px, size_px, C) of several rows."""
        out = np.empty((len(indices), *self.shape), self.dtype)
        for pixels, index in zip(out, indices, strict=True):
            self.read(int(index), pixels)
        return out

    def _opened(self, shard: int) -> Shard:
        with self._lock:
            opened = self._open.get(shard)
            if opened is None:
                opened = self._open[shard] = self._open_shard(shard)
                if len(self._open) > self._most_open:
                    self._open.popitem(last=False)
            else:
                self._open.move_to_end(shard)
            return opened

    def _open_shard(self, shard: int) -> Shard:
        """Open a shard; raises ValueError for that of another slide or store, whose patches are whole all the same."""
        name = self.info.shards[shard]
        try:
            if shard not in self._owners:
                self._verify(name)
            opened = Shard(self.path / name)
            if opened.owner != self._owners.setdefault(shard, opened.owner):
                raise ValueError(f"{name} belongs to another slide or store")
            return opened
        except (UserError, ValueError, OSError):
            if shard not in self._damaged:  # comparing the store once per shard is enough
                with suppress(DamagedError):  # another store, or none, is refused; a damaged one is still this one
                    PatchStore.load(self.path, self._expect_same())
                self._damaged.add(shard)
            raise

    def _verify(self, name: str) -> None:
        """Raise ValueError for a shard that is not as it was written."""
        folder, _, file = name.rpartition("/")
        record_entry, shard_entry = self.artefact.files[f"{folder}/{RECORD}"], self.artefact.files[name]
        problem = find_problem(self.path, shard_entry, "size") or find_problem(self.path, record_entry)
        if problem:
            raise ValueError(problem)
        SlideRecord.load(self.path / folder).open_shard(self.path / folder, file)

    def _expect_same(self) -> ExpectedInputs:
        return ExpectedInputs(checksums={inputs.STORE: self.checksum})

    def record(self, slide: SlideEntry) -> SlideRecord:
        """How one slide was cut."""
        return SlideRecord.load(self.artefact.use(f"{slide.folder}/{RECORD}").parent)

    def geometry(self, slide: SlideEntry) -> SlideGeometry:
        """How large the patches of one slide are on it."""
        return self.record(slide).geometry

    def dropped(self) -> PatchTable:
        """The candidate boxes that were not kept, with their scores."""
        return PatchTable.load(self.path / DROPPED)

    def thumbnail(self, slide: SlideEntry) -> tuple[Pixels, float] | None:
        """(pixels (h, w, 3), level-0 px per thumbnail px) of a slide, None for imported patches."""
        scale = self.record(slide).thumbnail_downsample
        if scale is None:
            return None
        data = self.artefact.use(f"{slide.folder}/{THUMBNAIL}").read_bytes()
        return np.asarray(Image.open(BytesIO(data)).convert("RGB")), scale

    def __getstate__(self) -> dict[str, Any]:
        # a worker may stand in another folder, and open it after it has changed
        return {"path": self.path.absolute(), "expected": self._expect_same()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(PatchStore.load(**state).__dict__)


def _count_descriptors() -> int:
    """Files that a process may have open at once."""
    try:
        import resource
    except ImportError:  # Windows
        return 512
    return int(resource.getrlimit(resource.RLIMIT_NOFILE)[0])

"""`slide.json`, the record of one slide, and the work of one slide, from whatever it is read."""

import hashlib
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import Field

from hidisc.ground.errors import UserError
from hidisc.ground.files import FileEntry, Record, describe_file, digest, find_problem, seal, unseal
from hidisc.ground.progress import Watch
from hidisc.patches.codec import encode
from hidisc.patches.shard import Shard, ShardWriter
from hidisc.settings.config import Config, keep_facts
from hidisc.settings.prepare import PixelsConfig
from hidisc.slides.grid import Boxes
from hidisc.slides.slide import Pixels, SlideError
from hidisc.slides.tissue import pixel_std

RECORD = "slide.json"
BOXES = "boxes.parquet"
FIRST_SHARD = "patches-0.arrow"
THUMBNAIL = "thumbnail.jpg"
SAMPLES = "samples.jpg"
SHARDS = "shards"
"""Folder of the slides' folders."""


class SlideId(Record):
    """The identity of a slide, to know it again in another store or under another name."""

    patient: str
    slide: str
    checksum: str
    """SHA-256 of the slide file; names it in leakage checks."""


class SlideGeometry(Record):
    """How large the patches of a slide are on it; null: not known."""

    slide: str
    size_px: int | None = None
    """Side of a patch in its own pixels."""
    extent: float | None = None
    """Side of a patch in level-0 px."""
    mpp: float | None = None
    """Micrometres per level-0 px; 1 where all that is known of places is micrometres."""
    width: int | None = None
    height: int | None = None
    """Level-0 px."""
    origin: tuple[int, int] | None = None
    """Level-0 px (x, y) at which QuPath's coordinates begin."""

    @property
    def patch_mpp(self) -> float | None:
        """Micrometres per patch px."""
        return self.mpp * self.extent / self.size_px if self.mpp and self.extent and self.size_px else None


class RecordError(UserError):
    """A slide.json that is damaged."""


class SlideRecord(Record):
    """One slide as it was cut: the facts its pixels depend on, how it was done, and every file of its folder."""

    slide: str
    checksum: str
    """SHA-256 of the slide file (of the patch files in order, for imported slides); names it in leakage checks."""
    sample: str
    """Checksum of samples of what was read (`sample_file`), to notice a file that is another one now."""
    settings: str
    """Checksum of the settings that its pixels depend on."""
    reader: str
    width: int | None = None
    height: int | None = None
    """Level-0 px; null for imported patches."""
    mpp: float | None = None
    """Micrometres per level-0 px that it was cut at."""
    file_mpp: float | None = None
    """What the file itself says of that; null: nothing."""
    downsample: float | None = None
    """Level-0 px per patch px of the finest scale."""
    origin: tuple[int, int] | None = None
    """Level-0 px (x, y) at which QuPath's coordinates begin; null for imported patches."""
    size_px: int
    channels: int
    dtype: str
    boxes: int
    """Candidate boxes, each a row of boxes.parquet."""
    glass: int = 0
    """Boxes of the grid without a trace of tissue, which were not read."""
    thumbnail_downsample: float | None = None
    """Level-0 px per thumbnail px; null when there is no thumbnail."""
    stain: dict[str, Any] | None = None
    """Stains the slide was normalised from (slide mode)."""
    stain_fallbacks: int = 0
    """Stored patches of the finest scale left as they were because no stains could be estimated."""
    spacing_mm: tuple[float, float, float] | None = None
    """Millimetres of a pixel across and down and from one slice to the next; null for all but volumes."""
    window: tuple[float, float] | None = None
    """Values of a volume that became black and white; null for all but volumes."""
    files: tuple[FileEntry, ...] = Field(min_length=2)
    """All that lies beside slide.json, but for later predictions."""

    @property
    def geometry(self) -> SlideGeometry:
        """How large its patches are on it; a patch that was imported as a file is its own level 0."""
        extent = self.size_px * (self.downsample or 1.0)
        known = {name: getattr(self, name) for name in ("slide", "size_px", "mpp", "width", "height", "origin")}
        return SlideGeometry(extent=extent, **known)

    @property
    def shards(self) -> list[str]:
        """Names of the files with the encoded patches of the finest scale, in the order they were written."""
        return [name for name in self.all_shards if ".scale-" not in name]

    @property
    def all_shards(self) -> list[str]:
        """Names of the files with the encoded patches of all scales."""
        return [file.path for file in self.files if file.path.endswith(".arrow")]

    def open_shard(self, folder: Path, name: str) -> Shard:
        """Open a shard of the slide's folder; raises ValueError when it is damaged or another slide's or store's."""
        shard = Shard(folder / name)
        if shard.owner != name_owner(self.slide, self.sample, self.settings, name):
            raise ValueError(f"{name} belongs to another slide or store")
        return shard

    @classmethod
    def load(cls, folder: Path) -> "SlideRecord":
        """Read `slide.json` of a slide's folder."""
        path = folder / RECORD
        try:
            return unseal(path.read_bytes(), cls)
        except (OSError, ValueError) as error:
            raise RecordError(
                f"{path} is missing or damaged ({error}). Run the command that made the store again: it repairs that."
            ) from error

    def save(self, folder: Path) -> None:
        """Write `slide.json` into a folder that is not in place yet."""
        (folder / RECORD).write_bytes(seal(self))


def list_boxes(record: SlideRecord, scores: pa.Table) -> Boxes:
    """The boxes of a slide that was cut here, by its `boxes.parquet`."""
    assert record.downsample is not None
    extent = record.size_px * record.downsample
    return Boxes(scores["x"].to_numpy(), scores["y"].to_numpy(), extent, record.downsample)


def describe_files(folder: Path) -> tuple[FileEntry, ...]:
    """The files of a slide's folder, by name."""
    return tuple(describe_file(path) for path in sorted(folder.iterdir()) if path.name != RECORD)


def is_whole(folder: Path, record: SlideRecord) -> bool:
    """Whether a slide's files are as they were written; of the large shards only size and owner are compared.

    A damaged patch is found when it is read.
    """
    shards = record.all_shards
    if any(find_problem(folder, file, "size" if file.path in shards else "crc32") for file in record.files):
        return False
    try:
        for shard in shards:
            record.open_shard(folder, shard)
    except (OSError, ValueError):
        return False
    return True


def name_owner(slide: str, sample: str, settings: str, shard: str) -> str:
    """A checksum that names whose patches a shard holds, from the facts that stand in `slide.json` as well."""
    return digest([slide, sample, settings, shard])


def slide_folder(slide: str) -> str:
    """The folder of a slide, relative to its store."""
    return f"{SHARDS}/{folder_name(slide)}"


def folder_name(slide: str) -> str:
    """A file-system-safe folder name for any slide id: what is readable of it and a hash of all of it."""
    readable = re.sub(r"[^A-Za-z0-9_-]+", "-", slide).strip("-")[:40]
    return f"{readable or 'slide'}-{hashlib.sha256(slide.encode()).hexdigest()[:10]}"


class SlideTask(ABC):
    """All a worker needs to know of one slide; it is sent there, so it pickles."""

    folder: Path
    """Where the slide's folder is to be, absolute."""
    config: Config

    @property
    @abstractmethod
    def source(self) -> Path:
        """What is read, for messages."""

    @abstractmethod
    def size_bytes(self) -> int:
        """Bytes to read."""

    @abstractmethod
    def sample(self) -> str:
        """Checksum of samples of what is read."""

    def refuse_change(self, sample: str) -> None:
        """Refuse what changed while it was read, such as a file that is still being copied, by its sample before."""
        if self.sample() != sample:
            raise SlideError(
                f"{self.source} changed while it was read. Wait until it is copied, then run the same command again."
            )

    @abstractmethod
    def run(self, report: Watch) -> SlideRecord:
        """Make the folder, which appears whole or not at all; `report` is told how many boxes were read."""

    @cached_property
    def settings(self) -> str:
        """Checksum of the settings that pixels depend on."""
        return digest(keep_facts(type(self.config), self.config.model_dump(mode="json")))

    def find_change(self, record: SlideRecord) -> str | None:
        """Why the slide must be read anew although it is there; None: it need not."""
        return "its settings" if record.settings != self.settings else None

    def lacks_patches(self, record: SlideRecord) -> bool:
        """Whether a slide that is there must be opened again for more patches: never where all are stored."""
        return False


def store_patches(
    part: Path, patches: Iterable[Pixels], patch_bytes: int, owner: str, config: PixelsConfig, report: Watch
) -> None:
    """Write patches that are all stored, and their scores, into a slide's folder."""
    stds = []
    with ShardWriter(part / FIRST_SHARD, patch_bytes, owner) as shard:
        for index, pixels in enumerate(patches):
            stds.append(pixel_std(pixels))
            shard.append(index, encode(pixels, config.codec, config.quality))
            report(1)
    scores = {"tissue_fraction": np.full(len(stds), np.nan, np.float32), "pixel_std": np.array(stds, np.float32)}
    pq.write_table(pa.table(scores), part / BOXES, compression="zstd")

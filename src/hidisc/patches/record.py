"""What is known of one slide in a store: `slide.json`, the file whose presence makes its folder whole."""

import hashlib
import re
from pathlib import Path
from typing import Any

from pydantic import Field

from hidisc.config import Closed

RECORD = "slide.json"
BOXES = "boxes.parquet"
THUMBNAIL = "thumbnail.jpg"
SAMPLES = "samples.jpg"


class ShardFile(Closed):
    """One file of encoded patches."""

    name: str
    """File name inside the slide's folder."""
    rows: int
    bytes: int
    checksum: str
    """SHA-256."""


class SlideRecord(Closed):
    """One slide as it was cut; says how, and names every file of its folder."""

    slide: str
    checksum: str
    """SHA-256 of the slide file (of the patch files in order, for imported slides); names it in leakage checks."""
    source_bytes: int
    """Size of what was read, to notice a file that has changed since."""
    listing: str | None = None
    """SHA-256 of the names and sizes of the patch files in order; null for slides."""
    reader: str
    width: int | None = None
    height: int | None = None
    """Level-0 px; null for imported patches."""
    mpp: float | None = None
    """Micrometres a level-0 px that was cut at."""
    downsample: float | None = None
    """Level-0 px a patch px."""
    size_px: int
    channels: int
    dtype: str
    boxes: int
    """Candidate boxes, each a row of boxes.parquet."""
    boxes_checksum: str
    glass: int = 0
    """Boxes of the grid without a trace of tissue, which were not read."""
    thumbnail_downsample: float | None = None
    """Level-0 px a thumbnail px; null when there is no thumbnail."""
    stain: dict[str, Any] | None = None
    """Stains the slide was normalised from (slide mode)."""
    stain_fallbacks: int = 0
    """Stored patches left as they were because no stains could be estimated."""
    shards: tuple[ShardFile, ...] = Field(min_length=1)

    @classmethod
    def load(cls, folder: Path) -> "SlideRecord":
        """Read `slide.json` of a slide's folder."""
        return cls.model_validate_json((folder / RECORD).read_bytes())

    def to_json(self) -> bytes:
        """The bytes of `slide.json`."""
        return (self.model_dump_json(indent=1) + "\n").encode()


def is_whole(folder: Path, record: SlideRecord) -> bool:
    """Whether a slide's files are there and of the right size; their content is for `hidisc doctor` to check."""
    sizes = {shard.name: shard.bytes for shard in record.shards}
    there = all((folder / name).is_file() and (folder / name).stat().st_size == size for name, size in sizes.items())
    return there and (folder / BOXES).is_file()


def folder_name(slide: str) -> str:
    """A file-system-safe folder name for any slide id: what is readable of it and a hash of all of it."""
    readable = re.sub(r"[^A-Za-z0-9_-]+", "-", slide).strip("-")[:40]
    return f"{readable or 'slide'}-{hashlib.sha256(slide.encode()).hexdigest()[:10]}"

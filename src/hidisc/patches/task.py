"""The work of one slide of a store, whatever it is read from: a worker makes its folder."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from hidisc.ground.checksums import digest
from hidisc.ground.tasks import Report
from hidisc.patches.codec import encode
from hidisc.patches.record import BOXES, FIRST_SHARD, SlideRecord
from hidisc.patches.shard import ShardWriter
from hidisc.settings.config import Config, keep_facts
from hidisc.settings.prepare import PixelsConfig
from hidisc.slides.slide import Pixels
from hidisc.slides.tissue import pixel_std


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

    @abstractmethod
    def run(self, report: Report) -> SlideRecord:
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


def write_patches(
    part: Path, patches: Iterable[Pixels], patch_bytes: int, owner: str, config: PixelsConfig, report: Report
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

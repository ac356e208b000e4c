"""The patch files of one slide -> its folder in the store."""

import hashlib
import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from hidisc.ground.checksums import digest, sample_file
from hidisc.ground.files import new_folder
from hidisc.patches.codec import check_codec, encode
from hidisc.patches.cut import Report
from hidisc.patches.record import BOXES, FIRST_SHARD, SlideRecord, describe_files, name_owner
from hidisc.patches.shard import ShardWriter
from hidisc.settings.config import keep_facts
from hidisc.settings.imports import ImportConfig
from hidisc.slides.reader import open_slide
from hidisc.slides.resample import resize
from hidisc.slides.slide import Pixels, SlideError
from hidisc.slides.tissue import pixel_std


@dataclass(frozen=True)
class PackTask:
    """All a worker needs to know to pack one slide's patch files."""

    slide: str
    folder: Path
    """Where the slide's folder is to be, absolute."""
    paths: tuple[Path, ...]
    config: ImportConfig

    @property
    def source(self) -> Path:
        """The folder of the first patch."""
        return self.paths[0].parent

    def size_bytes(self) -> int:
        """Bytes to read."""
        return sum(path.stat().st_size for path in self.paths)

    def sample(self) -> str:
        """Checksum of the files' names below their common folder and of samples of each, in the order of the table."""
        root = os.path.commonpath([path.parent for path in self.paths])
        try:
            return digest([[path.relative_to(root).as_posix(), sample_file(path)] for path in self.paths])
        except OSError as error:
            raise SlideError(f"{error.filename} cannot be read ({error.strerror}). Copy it again.") from error

    @cached_property
    def settings(self) -> str:
        """Checksum of the settings that pixels depend on."""
        return digest(keep_facts(ImportConfig, self.config.model_dump(mode="json")))

    def find_change(self, record: SlideRecord) -> str | None:
        """Why the slide must be packed anew although it is there; None: it need not."""
        return "its settings" if record.settings != self.settings else None

    def lacks_patches(self, record: SlideRecord) -> bool:
        """Never: every patch is stored, whatever the filter."""
        return False

    def run(self, report: Report) -> SlideRecord:
        """Pack the slide."""
        return pack_slide(self, report)


def pack_slide(task: PackTask, report: Report = lambda _: None) -> SlideRecord:
    """Encode a slide's patch files into its folder, which appears whole or not at all."""
    digest = hashlib.sha256()
    stds = np.empty(len(task.paths), np.float32)
    with new_folder(task.folder) as part:
        first = read_patch(task.paths[0], task.config.resize_px)
        check_codec(task.config.pixels.codec, first.shape[2], first.dtype)
        sample = task.sample()
        owner = name_owner(task.slide, sample, task.settings, FIRST_SHARD)
        with ShardWriter(part / FIRST_SHARD, first.nbytes, owner) as shard:
            for index, path in enumerate(task.paths):
                pixels = read_patch(path, task.config.resize_px) if index else first
                _check(path, pixels, task.paths[0], first)
                stds[index] = pixel_std(pixels)
                digest.update(path.read_bytes())
                shard.append(index, encode(pixels, task.config.pixels.codec, task.config.pixels.quality))
                report(1)
        unknown = np.full(len(stds), np.nan, np.float32)
        pq.write_table(pa.table({"tissue_fraction": unknown, "pixel_std": stds}), part / BOXES, compression="zstd")
        record = SlideRecord(
            slide=task.slide,
            checksum=digest.hexdigest(),
            sample=sample,
            settings=task.settings,
            reader="patch files",
            mpp=task.config.mpp,
            size_px=first.shape[0],
            channels=first.shape[2],
            dtype=str(first.dtype),
            boxes=len(task.paths),
            files=describe_files(part),
        )
        record.save(part)
    return record


def read_patch(path: Path, resize_px: int | None) -> Pixels:
    """All pixels (H, W, C) of a patch file, brought to a side of `resize_px` where one is given."""
    with open_slide(path) as slide:
        pixels = slide.read(0, 0, 0, slide.width, slide.height)
    if resize_px is None:
        return pixels
    height, width, _ = pixels.shape
    return resize(pixels, resize_px, resize_px, (0, 0, width, height))


def _check(path: Path, pixels: Pixels, first_path: Path, first: Pixels) -> None:
    """Refuse a patch that is not square or not like the first one of its slide."""
    if pixels.shape[0] != pixels.shape[1] or pixels.shape != first.shape or pixels.dtype != first.dtype:
        raise SlideError(
            f"{path} has {_kind(pixels)}; patches of a store are square and alike ({first_path.name}: {_kind(first)}). "
            "Bring them to one size with --set resize_px=64 or another side."
        )


def _kind(pixels: Pixels) -> str:
    height, width, channels = pixels.shape
    return f"{width} x {height} px in {channels} channels of {pixels.dtype}"

"""One scan -> its folder in the store: the slices of a volume, encoded, and how they were made."""

import hashlib
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from hidisc.ground.checksums import digest, sample_file
from hidisc.ground.files import new_folder
from hidisc.patches.codec import encode
from hidisc.patches.cut import Report
from hidisc.patches.people import People
from hidisc.patches.record import BOXES, FIRST_SHARD, SlideRecord, describe_files, name_owner
from hidisc.patches.shard import ShardWriter
from hidisc.patches.volume import Volume, cut_slices
from hidisc.settings.config import keep_facts
from hidisc.settings.imports import VolumesConfig
from hidisc.slides.cohort import SlideRow
from hidisc.slides.slide import SlideError
from hidisc.slides.tissue import pixel_std


class VolumeFiles(Protocol):
    """The files of one volume; sent to workers, so it pickles."""

    @property
    def paths(self) -> tuple[Path, ...]:
        """Everything that is read, in order."""

    def read(self) -> Volume:
        """The volume; raises SlideError with what is wrong, without names of files or patients."""


@dataclass(frozen=True)
class VolumeSource:
    """The scans of an import, each with its files."""

    root: Path
    scans: tuple[tuple[SlideRow, VolumeFiles], ...]
    warnings: tuple[str, ...] = ()
    is_private: bool = False
    """Whether names of files may tell who a patient is, so that the store must not hold them."""
    key_file: Path | None = None
    """Where the secret of the pseudonyms is."""


FoundVolume = tuple[SlideRow, int, Callable[[int | None], VolumeFiles]]
"""Whose it is, how many frames it has, and its files for one frame or, with None, for the only one."""


def gather_scans(
    root: Path, volumes: Iterable[FoundVolume], people: People, warnings: Sequence[str], *, is_private: bool
) -> VolumeSource:
    """One scan per volume, or per frame where a volume has several, under the names that the store may hold."""
    scans = []
    for row, frames, choose_frame in volumes:
        known = people.describe(row)
        for frame in range(frames) if frames > 1 else (None,):
            name = known.slide if frame is None else f"{known.slide}/frame{frame + 1:03}"
            scans.append((replace(known, slide=name), choose_frame(frame)))
    return VolumeSource(root, tuple(scans), (*warnings, *people.find_warnings()), is_private, people.key_file)


def list_files(root: Path) -> list[Path]:
    """Files below a folder in order, also in linked folders, each folder once; hidden ones are left out."""
    found, entered = [], set()
    for folder, folders, names in os.walk(root, followlinks=True):
        entered.add(Path(folder).resolve())
        folders[:] = [name for name in folders if name[0] != "." and (Path(folder) / name).resolve() not in entered]
        found += [path for name in names if name[0] != "." and (path := Path(folder) / name).is_file()]
    return sorted(found)


@dataclass(frozen=True)
class ScanTask:
    """All a worker needs to know to cut one volume into slices."""

    scan: str
    folder: Path
    """Where the scan's folder is to be, absolute."""
    files: VolumeFiles
    config: VolumesConfig
    source: Path
    """What the list of failures names: the file, or the folder of all volumes where names are private."""

    def size_bytes(self) -> int:
        """Bytes to read."""
        return sum(path.stat().st_size for path in self.files.paths)

    def sample(self) -> str:
        """Checksum of samples of the files, in order, whatever their names."""
        try:
            return digest([sample_file(path) for path in self.files.paths])
        except OSError as error:
            raise SlideError(f"a file of the volume cannot be read ({error.strerror}). Copy it again.") from error

    @cached_property
    def settings(self) -> str:
        """Checksum of the settings that pixels depend on."""
        return digest(keep_facts(VolumesConfig, self.config.model_dump(mode="json")))

    def find_change(self, record: SlideRecord) -> str | None:
        """Why the volume must be cut anew although it is there; None: it need not."""
        return "its settings" if record.settings != self.settings else None

    def lacks_patches(self, record: SlideRecord) -> bool:
        """Never: every slice is stored, whatever the filter."""
        return False

    def run(self, report: Report) -> SlideRecord:
        """Cut the volume."""
        return cut_scan(self, report)


def cut_scan(task: ScanTask, report: Report = lambda _: None) -> SlideRecord:
    """Encode a volume's slices into its scan's folder, which appears whole or not at all."""
    config, sample = task.config, task.sample()
    volume = task.files.read()
    slices = cut_slices(volume, config)
    stds = np.empty(slices.count, np.float32)
    owner = name_owner(task.scan, sample, task.settings, FIRST_SHARD)
    with new_folder(task.folder) as part:
        with ShardWriter(part / FIRST_SHARD, config.size_px**2 * config.bits // 8, owner) as shard:
            for index, pixels in enumerate(slices.pixels):
                stds[index] = pixel_std(pixels)
                shard.append(index, encode(pixels, config.pixels.codec, config.pixels.quality))
                report(1)
        unknown = np.full(len(stds), np.nan, np.float32)
        pq.write_table(pa.table({"tissue_fraction": unknown, "pixel_std": stds}), part / BOXES, compression="zstd")
        record = SlideRecord(
            slide=task.scan,
            checksum=_hash_values(volume),
            sample=sample,
            settings=task.settings,
            reader="volume",
            size_px=config.size_px,
            channels=1,
            dtype=f"uint{config.bits}",
            boxes=slices.count,
            spacing_mm=slices.spacing_mm,
            window=slices.window,
            files=describe_files(part),
        )
        record.save(part)
    return record


def _hash_values(volume: Volume) -> str:
    """SHA-256 of the values alone, so that a scan is known again under another header, name or compression."""
    shape = "x".join(map(str, volume.values.shape))
    return hashlib.sha256(shape.encode() + np.ascontiguousarray(volume.values).tobytes()).hexdigest()

"""One scan -> its folder in the store: the slices of a volume, encoded, and how they were made."""

import hashlib
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np

from hidisc.ground.checksums import digest, sample_file
from hidisc.ground.files import new_folder
from hidisc.ground.tasks import Report
from hidisc.patches.people import People
from hidisc.patches.record import FIRST_SHARD, SlideRecord, describe_files, name_owner
from hidisc.patches.task import SlideTask, write_patches
from hidisc.patches.volume import Volume, cut_slices
from hidisc.settings.imports import VolumesConfig
from hidisc.slides.cohort import SlideRow
from hidisc.slides.slide import SlideError


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
class ScanTask(SlideTask):
    """The files of one volume, to be cut into slices."""

    scan: str
    folder: Path
    files: VolumeFiles
    config: VolumesConfig
    named: Path
    """What the list of failures names: the file, or the folder of all volumes where names are private."""

    @property
    def source(self) -> Path:
        """What may be named."""
        return self.named

    def size_bytes(self) -> int:
        """Bytes to read."""
        return sum(path.stat().st_size for path in self.files.paths)

    def sample(self) -> str:
        """Checksum of samples of the files, in order, whatever their names."""
        try:
            return digest([sample_file(path) for path in self.files.paths])
        except OSError as error:
            raise SlideError(f"a file of the volume cannot be read ({error.strerror}). Copy it again.") from error

    def run(self, report: Report) -> SlideRecord:
        """Encode the slices of the volume into the scan's folder."""
        config, sample = self.config, self.sample()
        volume = self.files.read()
        slices = cut_slices(volume, config)
        owner = name_owner(self.scan, sample, self.settings, FIRST_SHARD)
        with new_folder(self.folder) as part:
            patch_bytes = config.size_px**2 * config.bits // 8
            write_patches(part, slices.pixels, patch_bytes, owner, config.pixels, report)
            record = SlideRecord(
                slide=self.scan,
                checksum=_hash_values(volume),
                sample=sample,
                settings=self.settings,
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

"""Patch files of one slide packed into its folder in the store."""

import hashlib
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from hidisc.ground.errors import UserError
from hidisc.ground.files import digest, new_folder, sample_file
from hidisc.ground.progress import Watch, ignore
from hidisc.patches.codec import check_codec
from hidisc.patches.record import FIRST_SHARD, SlideRecord, SlideTask, describe_files, name_owner, store_patches
from hidisc.patches.store import InputRule
from hidisc.settings.prepare import ImportConfig
from hidisc.slides.cohort import SlideRow, admit
from hidisc.slides.reader import open_slide
from hidisc.slides.resample import resize
from hidisc.slides.slide import Pixels, SlideError


@dataclass(frozen=True)
class PatchFile(SlideRow):
    """One patch file (`path`) and what is known of its slide."""

    name: str = ""


@dataclass(frozen=True)
class Source:
    """The slides of an import, each with its patch files in order."""

    root: Path
    slides: tuple[tuple[SlideRow, tuple[Path, ...]], ...]
    input: InputRule = "unit"
    warnings: tuple[str, ...] = ()
    may_lack_split: bool = False
    """Whether some patients are in no split, and `warnings` say so."""

    def __post_init__(self) -> None:
        """Refuse what no cohort may have, and warn of names that look alike."""
        rows = [row for row, _ in self.slides]
        warnings = admit(self.root, rows, self.warnings, may_lack_split=self.may_lack_split)
        object.__setattr__(self, "warnings", warnings)


def group_by_slide(patches: Iterable[PatchFile], label_level: str) -> list[tuple[SlideRow, tuple[Path, ...]]]:
    """Slides and their files, in order of first appearance.

    Imported slides are often numbered within a patient ("1", "2"), so a slide's name in the store is `patient/slide`.
    """
    groups: dict[tuple[str, str], list[PatchFile]] = defaultdict(list)
    for patch in patches:
        groups[patch.patient, patch.slide].append(patch)
    slides = []
    patient_of: dict[str, str] = {}
    for (patient, slide), files in groups.items():
        first = files[0]
        name = f"{patient}/{slide}"
        if patient_of.setdefault(name, patient) != patient:
            raise UserError(
                f"patients {patient_of[name]!r} and {patient!r} both have a slide {name!r}. Rename one of them."
            )
        columns: dict[str, list[str | None]] = {"name": [file.name for file in files]}
        if label_level == "patch":
            columns["label"] = [file.label for file in files]
        if first.mpp is not None:
            columns["mpp"] = [str(file.mpp) for file in files]
        for column in first.more:
            columns[column] = [file.more[column] for file in files]
        row = SlideRow(patient, name, first.path, first.label, None, first.site, first.split, first.row, columns)
        slides.append((row, tuple(file.path for file in files)))
    return slides


@dataclass(frozen=True)
class PackTask(SlideTask):
    """The patch files of one slide, to be packed."""

    slide: str
    folder: Path
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

    def run(self, report: Watch = ignore) -> SlideRecord:
        """Encode the patch files into the slide's folder."""
        content = hashlib.sha256()
        with new_folder(self.folder) as part:
            sample = self.sample()
            first = read_patch(self.paths[0], self.config.resize_px)
            check_codec(self.config.pixels.codec, first.shape[2], first.dtype)

            def read() -> Iterator[Pixels]:
                for path in self.paths:
                    pixels = first if path == self.paths[0] else read_patch(path, self.config.resize_px)
                    _check(path, pixels, self.paths[0], first)
                    content.update(path.read_bytes())
                    yield pixels

            owner = name_owner(self.slide, sample, self.settings, FIRST_SHARD)
            store_patches(part, read(), first.nbytes, owner, self.config.pixels, report)
            record = SlideRecord(
                slide=self.slide,
                checksum=content.hexdigest(),
                sample=sample,
                settings=self.settings,
                reader="patch files",
                mpp=self.config.mpp,
                size_px=first.shape[0],
                channels=first.shape[2],
                dtype=str(first.dtype),
                boxes=len(self.paths),
                files=describe_files(part),
            )
            self.refuse_change(sample)
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

"""Patches that exist as files already: found, checked whole, grouped by slide."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from hidisc.ground.errors import UserError
from hidisc.patches.inputs import InputRule
from hidisc.slides.cohort import SlideRow


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

"""Patches that exist as files already: found, checked whole, grouped by slide."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from hidisc.ground.errors import UserError
from hidisc.patches.commit import Member
from hidisc.patches.inputs import InputRule


@dataclass(frozen=True)
class PatchFile:
    """One patch file and what is known of it; `more` are columns of the user's own."""

    patient: str
    slide: str
    name: str
    path: Path
    label: str | None = None
    site: str | None = None
    split: str | None = None
    more: dict[str, str | None] = field(default_factory=dict)


@dataclass(frozen=True)
class Source:
    """The slides of an import, each with its patch files in order."""

    root: Path
    slides: tuple[tuple[Member, tuple[Path, ...]], ...]
    input: InputRule = "unit"
    warnings: tuple[str, ...] = ()


def group_by_slide(patches: Iterable[PatchFile], label_level: str) -> list[tuple[Member, tuple[Path, ...]]]:
    """Members and their files, in order of first appearance.

    Imported slides are often numbered within a patient ("1", "2"), so a slide's name in the store is `patient/slide`.
    """
    groups: dict[tuple[str, str], list[PatchFile]] = defaultdict(list)
    for patch in patches:
        groups[patch.patient, patch.slide].append(patch)
    slides = []
    named: dict[str, str] = {}
    for (patient, slide), files in groups.items():
        first = files[0]
        name = f"{patient}/{slide}"
        if named.setdefault(name, patient) != patient:
            raise UserError(f"patients {named[name]!r} and {patient!r} both have a slide {name!r}. Rename one of them.")
        columns: dict[str, list[str | None]] = {"name": [file.name for file in files]}
        if label_level == "patch":
            columns["label"] = [file.label for file in files]
        for column in first.more:
            columns[column] = [file.more[column] for file in files]
        member = Member(patient, name, first.label, first.site, first.split, columns)
        slides.append((member, tuple(file.path for file in files)))
    return slides

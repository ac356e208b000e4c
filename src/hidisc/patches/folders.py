"""Patch files in folders (`patient/slide/patch.png`) or listed in a CSV -> a source to import."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal
from unicodedata import normalize

from hidisc.ground.errors import UserError
from hidisc.ground.paths import AnyPath
from hidisc.ground.spreadsheet import Sheet, read_sheet
from hidisc.patches.people import read_patients
from hidisc.patches.sources import PatchFile, Source, group_by_slide
from hidisc.slides.cohort import (
    REQUIRED,
    WRITTEN,
    find_disagreements,
    find_half_split,
    names_of,
    read_row,
    refuse,
    refuse_if_all_missing,
)
from hidisc.slides.twins import Name, find_twins, fold

SUFFIXES = {".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp"}
LabelLevel = Literal["patient", "slide", "patch"]


def find_folder(root: AnyPath, patients_csv: AnyPath | None = None) -> Source:
    """Patches in `root/patient/slide/patch.png`; labels, sites and splits from a CSV of patients, if there is one."""
    root, patients_csv = Path(root), None if patients_csv is None else Path(patients_csv)
    if not root.is_dir():
        raise UserError(f"{root} is not a folder. Give the folder that holds one folder per patient.")
    sheet = read_sheet(patients_csv, ("patient",)) if patients_csv else None
    rows = read_patients(sheet) if sheet else {}
    patches, odd, problems = [], [], []
    for path in sorted({*root.rglob("*"), *root.glob("*/*/*")}):  # `rglob` alone does not enter linked folders
        parts = path.relative_to(root).parts
        if any(part.startswith(".") for part in parts) or path.suffix.lower() not in SUFFIXES or not path.is_file():
            continue
        if len(parts) != 3:
            odd.append(f"{'/'.join(parts)} is not at patient/slide/patch and is left out.")
            continue
        if not all(map(_is_text, parts)):
            problems.append(f"{'/'.join(parts)!r} has letters that are not UTF-8 in its name. Rename it.")
            continue
        # as a CSV's cells: macOS takes accents apart in file names
        patient, slide, name = (normalize("NFC", part) for part in (*parts[:2], path.stem))
        label, site, split = (rows.get(patient, {}).get(fact) or None for fact in ("label", "site", "split"))
        patches.append(PatchFile(patient, slide, path, label, None, site, split, name=name))
    refuse(root, problems)
    if not patches:
        raise UserError(f"{root} holds no pictures at patient/slide/patch.png ({', '.join(sorted(SUFFIXES))}).")
    without = sorted({patch.patient for patch in patches} - rows.keys()) if rows else []
    odd += [f"patient {patient!r} is not in {patients_csv} and has no label." for patient in without]
    twins = find_twins([*_names_in(patches), *(_names_of(sheet) if sheet else ())])
    warnings = [*(f"{patients_csv}: {warning}" for warning in (sheet.warnings if sheet else ())), *twins, *odd]
    return Source(root, tuple(group_by_slide(patches, "patient")), warnings=tuple(warnings))


def find_table(table_csv: AnyPath, label_level: LabelLevel = "patient") -> Source:
    """Patches of a CSV: `patient, slide, path`, optionally `patch, label, mpp, site, split`; other columns are kept."""
    table_csv = Path(table_csv)
    sheet = read_sheet(table_csv, REQUIRED)
    refuse_if_all_missing(sheet)
    own = [name for name in sheet.columns if name not in (*REQUIRED, "patch", "label", "mpp", "site", "split")]
    taken = [name for name in own if name in WRITTEN and name != "place"]
    if taken:
        raise UserError(f"{table_csv}: column {taken[0]!r} is one that hidisc writes itself. Rename it.")
    patches: list[PatchFile] = []
    problems: list[str] = []
    seen: dict[Path, int] = {}
    for number, cells in sheet.rows:
        row = read_row(number, cells, table_csv.parent, problems.append, own)
        if row is None:
            continue
        if seen.setdefault(row.path, number) != number:
            problems.append(
                f"row {number}: file {cells['path']!r} was listed in row {seen[row.path]} already. Remove one."
            )
        patches.append(PatchFile(**vars(row), name=cells.get("patch") or row.path.stem))
    problems += [*find_disagreements(patches, label_level), *find_half_split(patches), *_find_half_scales(patches)]
    refuse(table_csv, [f"{table_csv.name} {problem}" for problem in problems])
    warnings = [*sheet.warnings, *find_twins(names_of(patches, slides_within_patients=True))]
    return Source(
        table_csv,
        tuple(group_by_slide(patches, label_level)),
        warnings=tuple(f"{table_csv.name}: {warning}" for warning in warnings),
    )


def _find_half_scales(patches: list[PatchFile]) -> list[str]:
    """Say which row is the first without an mpp, where others have one."""
    without = [patch.row for patch in patches if patch.mpp is None]
    if not without or len(without) == len(patches):
        return []
    return [
        f"row {without[0]}: mpp is empty, and other rows have it. Fill it in all {len(without):,} rows, or in none."
    ]


def _is_text(name: str) -> bool:
    """Whether a file's name is Unicode; other bytes (an old server's Latin-1) cannot be written to a table."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _names_in(patches: Iterable[PatchFile]) -> Iterator[Name]:
    """The names of the folders, with the folder each stands for."""
    for patient, slide in dict.fromkeys((patch.patient, patch.slide) for patch in patches):
        yield Name("patient", patient, f"folder {patient}")
        yield Name("slide", slide, f"folder {patient}/{slide}", fold(patient))


def _names_of(sheet: Sheet) -> Iterator[Name]:
    """The names in a CSV of patients, with their rows."""
    for number, cells in sheet.rows:
        for kind in ("patient", "label", "site", "split"):
            yield Name(kind, cells.get(kind, ""), f"{sheet.path.name} row {number}")

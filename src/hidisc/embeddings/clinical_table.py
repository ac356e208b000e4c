"""The table beside feature files: whose slide each file is, with labels and further columns.

It is the table of a cohort without the column `path`. A row is found by the name of the slide, which is the name of
the feature file without its ending. A table of patients, without a column of slides, is enough where names say whose
they are: TCGA barcodes, or files that are called as the patients.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Literal

from hidisc.embeddings.feature_files import SUFFIXES
from hidisc.embeddings.slide_features import SlideFeatures
from hidisc.ground.errors import UserError
from hidisc.ground.spreadsheet import Sheet, read_sheet
from hidisc.ground.text import count, name_some
from hidisc.slides.cohort import (
    SlideRow,
    doubt_columns,
    fill_row,
    find_lookalikes,
    find_problems,
    refuse,
)
from hidisc.slides.draft import TCGA
from hidisc.slides.names import FOR_PEOPLE, OPTIONAL, REQUIRED, is_ours
from hidisc.slides.reader import list_suffixes

PATIENT = ("patient", "case_id", "patient_id")
"""Names of the column of patients, ours first; the second one is CLAM's."""
SLIDE = ("slide", "slide_id", "filename")
"""Names of the columns of slides, ours first, then CLAM's and STAMP's; where there are several, any of them may name
the feature file, and the first one is the name of the slide."""
_LISTED = 20
"""Names that are listed in a note."""


@dataclass(frozen=True)
class Match:
    """Slides that have both a row and features, in the order of the table."""

    rows: tuple[SlideRow, ...]
    features: tuple[SlideFeatures, ...]
    notes: tuple[str, ...]
    """Sentences on what has no partner, and on what is doubtful in the table."""


def match_table(
    path: Path, features: Sequence[SlideFeatures], source: Path, label_level: Literal["patient", "slide"]
) -> Match:
    """Read and check a table, and find the row of each slide; every problem is reported at once in one UserError."""
    sheet = read_sheet(path, ())
    patient = next((name for name in PATIENT if name in sheet.columns), None)
    if patient is None:
        raise UserError(
            f"{path}: column 'patient' is missing. Its columns are {', '.join(sheet.columns)}; a patient per row and, "
            f"unless the files have TCGA barcodes, the `slide` are needed. Add or rename."
        )
    named = tuple(name for name in SLIDE if name in sheet.columns)
    problems: list[str] = []
    rows = _read_rows(sheet, patient, named, problems)
    keys: dict[str, list[int]] = defaultdict(list)
    for number, (row, names) in enumerate(rows):
        for key in dict.fromkeys(names or [row.patient]):
            keys[key].append(number)
    if named:
        taken, left = _find_slides(keys, features, problems)
    else:
        for patient_rows in keys.values():
            first, again = rows[patient_rows[0]][0], rows[patient_rows[-1]][0]
            if again is not first:
                problems.append(
                    f"row {again.row}: patient {again.patient!r} was listed in row {first.row} already. Remove one of "
                    "the rows, or add a column `slide`."
                )
        taken, left = _find_patients(keys, features)
    matched = [
        replace(row, slide=row.slide or found.slide, path=found.path)
        for number, (row, _) in enumerate(rows)
        for found in taken.get(number, ())
    ]
    refuse_two_files(matched)
    checked = [row for row, _ in rows] if named else matched
    problems += find_problems(checked, "patient" if label_level == "patient" else "patch")
    refuse(path, [f"{path.name} {problem}" for problem in problems])
    unused = [row.slide or row.patient for number, (row, _) in enumerate(rows) if number not in taken]
    if not matched:
        what = "slides" if named else "patients"
        raise UserError(
            f"{path}: none of its {what} has a feature file in {source}. The table has {name_some(unused)}; the files "
            f"are called {name_some(found.slide for found in features)}. Write the names of the files, without their "
            "ending, into a column `slide`."
        )
    notes = [*sheet.warnings, *doubt_columns(sheet), *find_lookalikes(checked)]
    sentences = [f"warning: {path.name}: {note}" for note in notes if not _is_known(note, (patient, *named))]
    for without, what in ((left, f"of {source} without a row in {path.name}"), (unused, f"without a file in {source}")):
        noun = "feature file" if without is left else "slide" if named else "patient"
        if without:
            of_table = "" if without is left else f" of {path.name}"
            sentences.append(
                f"note: {count(len(without), noun)}{of_table} {what}, left out: {name_some(without, _LISTED)}."
            )
    order = [found for number in range(len(rows)) for found in taken.get(number, ())]
    return Match(tuple(matched), tuple(order), tuple(sentences))


def refuse_two_files(rows: Sequence[SlideRow]) -> None:
    """Refuse two feature files of one slide."""
    first: dict[str, SlideRow] = {}
    for row in rows:
        before = first.setdefault(row.slide, row)
        if before.path != row.path:
            raise UserError(
                f"slide {row.slide!r} has two feature files: {before.path} and {row.path}. Leave one of them in the "
                "folder."
            )


def _is_known(note: str, columns: Iterable[str]) -> bool:
    """Whether a note doubts a column that is read here under this name."""
    return any(note.startswith(f"column {name!r}") for name in columns)


def _read_rows(
    sheet: Sheet, patient: str, named: Sequence[str], problems: list[str]
) -> list[tuple[SlideRow, list[str]]]:
    """The rows of a table, each with the names under which its feature file is looked for."""
    known = {patient, *named, *REQUIRED, *OPTIONAL, *FOR_PEOPLE}
    own = [name for name in sheet.columns if name not in known and not is_ours(name)]
    rows = []
    for number, cells in sheet.rows:
        cell_of_slide = [cells[name] for name in named if cells[name]]
        if not cells[patient] or (named and not cell_of_slide):
            empty = patient if not cells[patient] else named[0]
            problems.append(f"row {number}: {empty} empty. Fill in or remove the row.")
            continue
        names = [name for cell in cell_of_slide for name in _list_names(cell)]
        slide = _strip_ending(PurePosixPath(cell_of_slide[0].replace("\\", "/")).name) if named else ""
        slide = cell_of_slide[0] if named and named[0] == "slide" else slide
        row = fill_row(number, cells, cells[patient], slide, Path(), problems.append, own)
        rows.append((row, names))
    return rows


def _list_names(cell: str) -> list[str]:
    """The names that a cell may mean: as typed, without folders, without the ending of a slide or feature file."""
    bare = PurePosixPath(cell.replace("\\", "/")).name
    return [cell, bare, _strip_ending(bare)]


def _strip_ending(name: str) -> str:
    """The name of a file without the ending of slides or feature files; other dots belong to the name."""
    suffix = PurePosixPath(name).suffix
    return name.removesuffix(suffix) if suffix.lower() in list_suffixes() | set(SUFFIXES) else name


def _find_slides(
    keys: dict[str, list[int]], features: Sequence[SlideFeatures], problems: list[str]
) -> tuple[dict[int, list[SlideFeatures]], list[str]]:
    """The features of each row, and the slides without a row; a file that several rows may mean is a problem."""
    taken: dict[int, list[SlideFeatures]] = defaultdict(list)
    left = []
    for found in features:
        names = [name for name in (found.full_name, found.slide) if name]
        names += [_strip_ending(name) for name in names]
        if TCGA.match(found.slide):  # the name of a file goes on behind the barcode: TCGA-XX-0001-01Z-00-DX1.UUID
            names.append(found.slide.partition(".")[0])
        numbers = next((keys[name] for name in names if name in keys), None)
        if numbers is None:
            left.append(found.slide)
            continue
        taken[numbers[0]].append(found)
        if len(numbers) > 1:
            problems.append(
                f"has several rows for the feature file {found.path.name}. Write its name without the ending into the "
                "column `slide` of one of them."
            )
    return taken, left


def _find_patients(
    keys: dict[str, list[int]], features: Sequence[SlideFeatures]
) -> tuple[dict[int, list[SlideFeatures]], list[str]]:
    """The same by the names of patients: the first 12 characters of a TCGA barcode, or the whole name."""
    upper = {name.upper(): numbers for name, numbers in keys.items() if re.match(TCGA, name)}
    taken: dict[int, list[SlideFeatures]] = defaultdict(list)
    left = []
    for found in features:
        barcode = TCGA.match(found.slide)
        numbers = keys.get(found.slide) or (upper.get(barcode[1].upper()) if barcode else None)
        if numbers:
            taken[numbers[0]].append(found)
        else:
            left.append(found.slide)
    return taken, left

"""cohort.csv: the slides of a study, one row each; and what the slides of every cohort must pass, wherever from."""

import difflib
import hashlib
import stat
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Literal

from hidisc.ground.errors import UserError
from hidisc.ground.files import AnyPath, digest, hash_file, sample_file
from hidisc.ground.spreadsheet import Sheet, read_sheet
from hidisc.ground.text import count
from hidisc.settings.prepare import PLAUSIBLE_MPP
from hidisc.slides.names import FOR_PEOPLE, OPTIONAL, REQUIRED, Name, find_fault, find_twins, fold, is_ours

_SHOWN = 50  # problems listed in full; a wrong column would otherwise print thousands
_SHOWN_CHARACTERS = 20_000  # of all of them; long names would otherwise fill screens


@dataclass(frozen=True)
class SlideRow:
    """One slide as the lab describes it: a row of the cohort, or the patch files of a slide that is imported."""

    patient: str
    slide: str
    path: Path
    """The slide file; of an imported slide, its first patch file."""
    label: str | None = None
    mpp: float | None = None
    """Micrometres per level-0 pixel; overrides what the file says."""
    site: str | None = None
    split: str | None = None
    row: int = field(default=0, compare=False)
    """The row number a spreadsheet shows."""
    columns: dict[str, list[str | None]] = field(default_factory=dict)
    """Further columns of an imported slide, one value per patch; `label` in here overrides the slide's."""
    more: dict[str, str | None] = field(default_factory=dict)
    """Further columns of the user's own, such as scanner, date, stain or block."""


@dataclass(frozen=True)
class Cohort:
    """The slides of a study in the order of the CSV."""

    path: Path
    slides: tuple[SlideRow, ...]
    warnings: tuple[str, ...] = ()

    @classmethod
    def load(cls, path: AnyPath, label_level: Literal["patient", "slide"] = "patient") -> "Cohort":
        """Read and check a cohort CSV; every problem found is reported at once in one UserError."""
        path = Path(path)
        sheet = read_sheet(path, REQUIRED)
        refuse_if_all_missing(sheet)
        problems: list[str] = []
        own = [name for name in sheet.columns if name not in (*REQUIRED, *OPTIONAL, *FOR_PEOPLE) and not is_ours(name)]
        slides = [
            row for number, cells in sheet.rows if (row := read_row(number, cells, path.parent, problems.append, own))
        ]
        doubles, warnings = _find_same_content(slides)
        problems += [*find_problems(slides, "patient" if label_level == "patient" else "patch"), *doubles]
        refuse(path, [f"{path.name} {problem}" for problem in problems])

        warnings = [*sheet.warnings, *doubt_columns(sheet), *find_lookalikes(slides), *warnings]
        return cls(path, tuple(slides), tuple(f"{path.name}: {warning}" for warning in warnings))


def doubt_columns(sheet: Sheet) -> Iterator[str]:
    """Warnings of columns that are not kept, or may be misspelt."""
    for name in sheet.columns:
        meant = difflib.get_close_matches(name, [known for known in OPTIONAL if known not in sheet.columns], 1, 0.7)
        if is_ours(name):
            yield f"column {name!r} is one that hidisc writes itself, and is not kept. Rename it to keep it."
        elif meant and name not in REQUIRED + OPTIONAL:
            yield f"column {name!r} is kept as a column of your own. If it is meant as {meant[0]!r}, rename it."


def find_problems(
    rows: Sequence[SlideRow],
    label_level: Literal["patient", "slide", "patch"] = "patch",
    *,
    may_lack_split: bool = False,
) -> list[str]:
    """Why a cohort cannot be used, whatever it was made from: a sentence per row that is wrong.

    `Cohort.load` calls this and `find_lookalikes`; `Source` and `VolumeSource`, which anyone may make, call `admit`.
    """
    return [
        *_find_faulty_names(rows),
        *_find_repeats(rows),
        *find_disagreements(rows, label_level),
        *([] if may_lack_split else find_half_split(rows)),
    ]


def find_lookalikes(rows: Iterable[SlideRow], *, slides_within_patients: bool = False) -> list[str]:
    """A warning for every pair of names that people take for one."""
    return find_twins(names_of(rows, slides_within_patients=slides_within_patients))


def admit(
    source: Path, rows: Sequence[SlideRow], warnings: Iterable[str], *, may_lack_split: bool = False
) -> tuple[str, ...]:
    """The warnings about the slides of a source, with those of names that look alike; what cannot be used is refused.

    Slides of sources are named within their patient.
    """
    refuse(source, find_problems(rows, may_lack_split=may_lack_split))
    where = f"{source.name}: " if source.is_file() else ""
    twins = find_lookalikes(rows, slides_within_patients=True)
    return tuple(dict.fromkeys([*(f"{where}{twin}" for twin in twins), *warnings]))


def _where(row: SlideRow) -> str:
    """Where a slide is listed."""
    return f"row {row.row}" if row.row else f"slide {row.slide!r}"


def _find_faulty_names(rows: Iterable[SlideRow]) -> list[str]:
    """Names that are missing, cannot be written to a table, or are those of columns that hidisc writes."""
    problems = []
    for row in rows:
        given = {"patient": row.patient, "slide": row.slide, "label": row.label, "site": row.site, "split": row.split}
        for what, name in given.items():
            fault = find_fault(name) if name or what in ("patient", "slide") else None
            if fault:
                problems.append(f"{_where(row)}: {what} {fault}")
    columns = dict.fromkeys(name for row in rows for name in row.more)
    problems += [_refuse_column(name) for name in columns if name in (*REQUIRED, *OPTIONAL) or is_ours(name)]
    columns = dict.fromkeys(name for row in rows for name in row.columns)
    known = ("label", "mpp", "name", "place")  # what patch files have of them is the user's
    problems += [_refuse_column(name) for name in columns if (name in REQUIRED or is_ours(name)) and name not in known]
    return problems


def _refuse_column(name: str) -> str:
    return f"column {name!r} is one that hidisc writes itself. Rename it."


def names_of(rows: Iterable[SlideRow], *, slides_within_patients: bool = False) -> Iterator[Name]:
    """Every name of the rows with its row; slides may be named within the cohort or within their patient."""
    for row in rows:
        where = _where(row)
        slide = row.slide.removeprefix(f"{row.patient}/") if slides_within_patients else row.slide
        yield Name("patient", row.patient, where)
        yield Name("slide", slide, where, fold(row.patient) if slides_within_patients else "")
        known = {"label": row.label, "site": row.site, "split": row.split, **row.more}
        yield from (Name(name, value or "", where) for name, value in known.items())
        for name, values in row.columns.items():
            if name not in ("name", "mpp", "place"):
                yield from (Name(name, value or "", where) for value in dict.fromkeys(values))


def refuse_if_all_missing(sheet: Sheet) -> None:
    """Raise one sentence when a CSV lists several files and none is there: it was moved, or they were."""
    folder = sheet.path.parent
    listed = [cells["path"] for _, cells in sheet.rows if cells["path"]]
    if len(listed) < 2 or any(locate(folder, cell)[1] is not None or _kind(folder / cell) for cell in listed):
        return
    raise UserError(
        f"{sheet.path}: none of the {len(listed)} files exists. Paths are relative to the folder of the CSV "
        f"({folder.resolve()}); the first one tried is {folder.resolve() / listed[0]}. Move the CSV back to where its "
        "paths start, or correct the column `path`."
    )


def refuse(source: Path, problems: Sequence[str]) -> None:
    """Raise all problems of a source at once, the first fifty in full; do nothing when there are none."""
    if not problems:
        return
    lengths = accumulate(map(len, problems[:_SHOWN]))
    shown = list(problems[: max(1, sum(length <= _SHOWN_CHARACTERS for length in lengths))])
    if len(problems) > len(shown):
        shown.append(f"... and {len(problems) - len(shown)} more.")
    raise UserError("\n  ".join([f"{source} has {count(len(problems), 'problem')}:", *shown]))


def read_row(
    number: int, cells: dict[str, str], folder: Path, problem: Callable[[str], None], own: Sequence[str] = ()
) -> SlideRow | None:
    """A row of a CSV of slides or patches, with the user's `own` columns; None: it lacks what is required.

    `problem` is called with what is wrong.
    """
    empty = [name for name in REQUIRED if not cells[name]]
    if empty:
        problem(f"row {number}: {' and '.join(empty)} empty. Fill in or remove the row.")
        return None
    path, size = locate(folder, cells["path"])
    if size is None:
        what = "is a folder" if _kind(path) == stat.S_IFDIR else "does not exist"
        problem(
            f"row {number}: file {cells['path']!r} of slide {cells['slide']!r} {what}. "
            f"Paths are relative to the CSV ({folder.resolve()}). Correct the path or remove the row."
        )
    elif size == 0:
        problem(f"row {number}: file {cells['path']!r} is empty (0 bytes). Copy it again or remove the row.")
    return fill_row(number, cells, cells["patient"], cells["slide"], path, problem, own)


def fill_row(
    number: int,
    cells: dict[str, str],
    patient: str,
    slide: str,
    path: Path,
    problem: Callable[[str], None],
    own: Sequence[str],
) -> SlideRow:
    """The row of a slide whose patient, name and file are known, with its optional cells and the user's `own`."""
    mpp = None
    if cells.get("mpp"):
        try:
            mpp = float(cells["mpp"].replace(",", "."))  # the decimal comma of a semicolon CSV
        except ValueError:
            mpp = float("nan")
        if not PLAUSIBLE_MPP[0] <= mpp <= PLAUSIBLE_MPP[1]:
            problem(
                f"row {number}: mpp {cells['mpp']!r} is not a number of micrometres per pixel "
                f"(usually 0.2 to 1). Correct it, or leave it empty to use the file's own."
            )
            mpp = None
    return SlideRow(
        patient=patient,
        slide=slide,
        path=path,
        label=cells.get("label") or None,
        mpp=mpp,
        site=cells.get("site") or None,
        split=cells.get("split") or None,
        row=number,
        more={name: cells[name] or None for name in own},
    )


def locate(folder: Path, cell: str) -> tuple[Path, int | None]:
    """The file a cell means and its size: as typed, with macOS's decomposed accents, or Windows's backslashes."""
    for name in (cell, unicodedata.normalize("NFD", cell), cell.replace("\\", "/")):
        if _kind(folder / name) == stat.S_IFREG:
            return folder / name, (folder / name).stat().st_size
    return folder / cell, None


def find_files(cohort: Path) -> dict[str, Path]:
    """The path of the file of each slide of a cohort; the file need not exist."""
    sheet = read_sheet(cohort, REQUIRED)
    return {cells["slide"]: locate(cohort.parent, cells["path"])[0] for _, cells in sheet.rows if cells["path"]}


def _kind(path: Path) -> int | None:
    """The file type bits of `stat`; None where nothing is, or nothing can be under such a name."""
    try:
        return stat.S_IFMT(path.stat().st_mode)
    except (OSError, ValueError):
        return None


def _find_repeats(slides: Iterable[SlideRow]) -> list[str]:
    """Slides listed twice, or under two patients."""
    problems = []
    first: dict[str, SlideRow] = {}
    for row in slides:
        before = first.setdefault(row.slide, row)
        if before is not row and before.patient == row.patient:
            problems.append(
                f"{_where(row)}: slide {row.slide!r} was listed in {_where(before)} already. Remove one of them."
            )
        elif before is not row:
            problems.append(
                f"{_where(row)}: slide {row.slide!r} is listed under patients {before.patient!r} "
                f"({_where(before)}) and {row.patient!r}. A slide belongs to one patient. Fix one of them."
            )
    return problems


def find_half_split(slides: Sequence[SlideRow]) -> list[str]:
    """Slides without a split where others have one: they would silently be in none."""
    without = [row for row in slides if row.split is None]
    if not without or len(without) == len(slides):
        return []
    more = f", here and in {count(len(without) - 1, 'more row')}," if len(without) > 1 else ","
    return [
        f"{_where(without[0])}: split is empty{more} but not in the others. "
        "Fill in all of them, or empty the column to have the split drawn."
    ]


def find_disagreements(rows: Iterable[SlideRow], label_level: Literal["patient", "slide", "patch"]) -> list[str]:
    """Rows that contradict each other about a patient's split, a slide's site, or the label of a patient (or slide)."""
    problems = []
    labelled: dict[tuple[str, ...], SlideRow] = {}
    placed: dict[tuple[str, str], SlideRow] = {}
    first_rows: dict[str, SlideRow] = {}
    for row in rows:
        unit = (row.patient,) if label_level == "patient" else (row.patient, row.slide)
        known = labelled.setdefault(unit, row)
        if known.label != row.label and label_level != "patch":
            below = "slide" if label_level == "patient" else "patch"
            problems.append(
                f"{_where(row)}: {label_level} {unit[-1]!r} has label {row.label!r}, but {known.label!r} in "
                f"{_where(known)}. A {label_level} has one label. Fix one of the rows, or --set label_level={below}."
            )
        first = placed.setdefault((row.patient, row.slide), row)
        if first.site != row.site:
            problems.append(
                f"{_where(row)}: slide {row.slide!r} is of site {row.site!r}, but of {first.site!r} in "
                f"{_where(first)}. A slide comes from one site. Fix one of the rows."
            )
        first = first_rows.setdefault(row.patient, row)
        if first.split != row.split:
            problems.append(
                f"{_where(row)}: patient {row.patient!r} is in split {row.split!r}, but in {first.split!r} in "
                f"{_where(first)}. A patient is in one split only. Fix one of the rows."
            )
    return problems


def _find_same_content(slides: Iterable[SlideRow]) -> tuple[list[str], list[str]]:
    """Files that are byte for byte the same: (problems across patients, warnings within a patient).

    Only files of equal size are read at all, and whole only when samples of them agree, so that a terabyte of
    different slides costs a `stat` each.
    """
    groups = [[row for row in slides if _kind(row.path) == stat.S_IFREG and row.path.stat().st_size]]
    keys: tuple[Callable[[Path], Hashable], ...] = (lambda path: path.stat().st_size, sample_file, hash_slide)
    for key in keys:
        groups = [group for rows in groups for group in _group(rows, key)]
    problems, warnings = [], []
    for first, *others in groups:
        for row in others:
            if row.patient != first.patient:
                problems.append(
                    f"row {row.row}: slide {row.slide!r} of patient {row.patient!r} is the same file content "
                    f"as slide {first.slide!r} of patient {first.patient!r} (row {first.row}). One of the "
                    f"two paths or patients is wrong. Fix one of the rows."
                )
            elif row.slide != first.slide:
                warnings.append(
                    f"rows {first.row} and {row.row}: slides {first.slide!r} and {row.slide!r} are the same "
                    f"file content; patient {row.patient!r} counts it twice."
                )
    return problems, warnings


def _group(rows: Iterable[SlideRow], key: Callable[[Path], Hashable]) -> list[list[SlideRow]]:
    """Two or more rows whose files have an equal key, for every such key; unreadable files are left to the reader."""
    groups: dict[Hashable, list[SlideRow]] = defaultdict(list)
    for row in rows:
        with suppress(OSError):
            groups[key(row.path)].append(row)
    return [group for group in groups.values() if len(group) > 1]


def sample_slide(path: Path) -> str:
    """Checksum of samples of a slide: of its file, and of the files beside it where it is only a stub (MRXS)."""
    folder = path.with_suffix("")
    if path.suffix.lower() != ".mrxs" or not folder.is_dir():
        return sample_file(path)
    parts = sorted(file for file in folder.iterdir() if file.is_file())
    return digest([sample_file(path), *([file.name, sample_file(file)] for file in parts)])


def hash_slide(path: Path) -> str:
    """SHA-256 that names a slide: of its file, and of the index beside it where the file is only a stub (MRXS)."""
    index = path.with_suffix("") / "Slidedat.ini"
    if path.suffix.lower() == ".mrxs" and index.is_file():
        return hashlib.sha256(f"{hash_file(path)} {hash_file(index)}".encode()).hexdigest()
    return hash_file(path)

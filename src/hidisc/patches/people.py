"""Whose slides or volumes they are: a CSV of patients, and pseudonyms in place of their names."""

import hmac
import os
import secrets
from collections.abc import Callable, Iterable, Set
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from hidisc.ground.errors import UserError
from hidisc.ground.files import AnyPath
from hidisc.ground.spreadsheet import read_sheet
from hidisc.ground.text import name_some
from hidisc.slides.cohort import SlideRow, refuse
from hidisc.slides.names import Name, find_twins, fold_patient, is_ours

_KNOWN = ("patient", "label", "site", "split")
_LEAST_KEY = 16
Files = TypeVar("Files")
"""What belongs to a slide, of whatever kind."""


class People:
    """What is known of every patient, and what the store calls them.

    A pseudonym is the HMAC-SHA256 of a name with a secret key, 16 hexadecimal digits of it. The same key gives the same
    pseudonyms, so that a cohort can grow. Without the key, nobody can find the name from a pseudonym, not even by
    trying all names.
    """

    def __init__(self, patients_csv: AnyPath | None, key_file: AnyPath | None = None) -> None:
        self._csv = None if patients_csv is None else Path(patients_csv)
        self._rows, self._warnings = ({}, ()) if self._csv is None else _read_described(self._csv)
        self.key_file = None if key_file is None else Path(key_file)
        self._key = None if self.key_file is None else _read_key(self.key_file)

    def describe(self, slides: Iterable[tuple[SlideRow, Files]]) -> tuple[list[tuple[SlideRow, Files]], list[str]]:
        """(slides, each with its files, and with what the CSV says of their patients; warnings).

        A CSV that contradicts what is known of a slide is refused.
        """
        if self._csv is None:
            return list(slides), []
        problems: list[str] = []
        described = [(self._describe(row, problems.append), files) for row, files in slides]
        refuse(self._csv, list(dict.fromkeys(problems)))
        return described, self._find_unmatched({row.patient for row, _ in described})

    def _describe(self, row: SlideRow, problem: Callable[[str], None]) -> SlideRow:
        """A slide with what is known of its patient."""
        cells = self._rows.get(row.patient)
        if cells is None:
            cells = dict.fromkeys(next(iter(self._rows.values())), "")
        known = {"label": row.label, "site": row.site, "split": row.split, **row.more}
        for name, cell in cells.items():
            values = row.columns[name] if name in row.columns else [known.get(name)]
            other = next((value for value in values if cell and value and value != cell), None)
            if other is not None:
                problem(
                    f"patient {row.patient!r} has {name} {cell!r}, but {other!r} in the table of slides. Correct one "
                    "of them, or leave the column out of one of the tables."
                )
        label, site, split = (cells.get(name) or known[name] for name in _KNOWN[1:])
        own = {name: value or row.more.get(name) for name, value in cells.items() if name not in _KNOWN}
        own = {name: value for name, value in own.items() if name not in row.columns}
        return replace(row, label=label, site=site, split=split, more={**row.more, **own})

    def _find_unmatched(self, patients: Set[str]) -> list[str]:
        """Patients without a row and rows without slides; refuses the former where the CSV says who is held out."""
        missing = sorted(patients - self._rows.keys())
        idle = {fold_patient(name): name for name in self._rows if name not in patients}
        alike = [(name, idle[fold_patient(name)]) for name in missing if fold_patient(name) in idle]
        hint = "".join(f" Is {name!r} the {listed!r} of the CSV?" for name, listed in alike[:3])
        if missing and any(cells.get("split") for cells in self._rows.values()):
            raise UserError(
                f"{self._csv} gives splits, but does not list the patients {name_some(missing)}: they would be in no "
                f"split.{hint} Add them, or leave out the column `split`."
            )
        said = []
        if missing:
            said.append(f"{self._csv} does not list the patients {name_some(missing)}; they have no label.{hint}")
        if idle:
            said.append(f"{self._csv} lists patients who have no slides: {name_some(idle.values())}.")
        return [*self._warnings, *said]

    def hide(self, row: SlideRow) -> SlideRow:
        """A slide under the names that the store may hold."""
        if self._key is None:
            return row
        names = (row.patient, row.slide)
        patient, slide = (hmac.new(self._key, name.encode(), "sha256").hexdigest()[:16] for name in names)
        return replace(row, patient=patient, slide=f"{patient}/{slide}")


def _read_described(path: Path) -> tuple[dict[str, dict[str, str]], tuple[str, ...]]:
    """(the row of every patient of a CSV of patients, warnings)."""
    sheet = read_sheet(path, ("patient",))
    taken = [name for name in sheet.columns if is_ours(name) or name in ("mpp", "slide", "path")]
    if taken:
        raise UserError(f"{path}: column {taken[0]!r} is one that hidisc writes itself. Rename it.")
    problems, names = [], list[Name]()
    rows: dict[str, dict[str, str]] = {}
    for number, cells in sheet.rows:
        patient = cells["patient"]
        if not patient:
            problems.append(f"row {number}: patient empty. Fill in or remove the row.")
        elif patient in rows:
            problems.append(f"row {number}: patient {patient!r} was listed already. Remove one of the rows.")
        rows[patient] = cells
        names += [Name(kind, cells.get(kind, ""), f"row {number}") for kind in _KNOWN]
    refuse(path, [f"{path.name} {problem}" for problem in problems])
    return rows, tuple(f"{path}: {warning}" for warning in (*sheet.warnings, *find_twins(names)))


def _read_key(path: Path) -> bytes:
    """The secret in a file; one is made where there is no file."""
    if not path.exists():
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(secrets.token_hex(32) + "\n")
    key = path.read_bytes().strip()
    if len(key) < _LEAST_KEY:
        raise UserError(
            f"{path} holds {len(key)} characters, and a key of fewer than {_LEAST_KEY} can be guessed. Name a file "
            "that does not exist, and it is made with a random key."
        )
    return key

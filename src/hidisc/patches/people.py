"""Whose volumes they are: a CSV of patients, and pseudonyms in place of their names."""

import hmac
import os
import secrets
from dataclasses import replace
from pathlib import Path

from hidisc.ground.errors import UserError
from hidisc.ground.files import AnyPath
from hidisc.ground.spreadsheet import Sheet, read_sheet
from hidisc.ground.text import name_some
from hidisc.slides.cohort import SlideRow, refuse
from hidisc.slides.column_names import is_ours

_KNOWN = ("patient", "label", "site", "split")
_LEAST_KEY = 16


class People:
    """What is known of every patient, and what the store calls them.

    A pseudonym is the HMAC-SHA256 of a name with a secret key, 16 hexadecimal digits of it. The same key gives the same
    pseudonyms, so that a cohort can grow. Without the key, nobody can find the name from a pseudonym, not even by
    trying all names.
    """

    def __init__(self, patients_csv: AnyPath | None, key_file: AnyPath | None) -> None:
        self._csv = None if patients_csv is None else Path(patients_csv)
        self._rows = {} if self._csv is None else _read_described(self._csv)
        self.key_file = None if key_file is None else Path(key_file)
        self._key = None if self.key_file is None else _read_key(self.key_file)
        self._missing: dict[str, None] = {}

    def describe(self, row: SlideRow) -> SlideRow:
        """A scan's row with what is known of its patient, under the names that the store may hold."""
        if self._csv is not None:
            cells = self._rows.get(row.patient)
            if cells is None:
                self._missing[row.patient] = None
            cells = cells or dict.fromkeys(next(iter(self._rows.values())), "")
            label, site, split = (cells.get(name) or None for name in _KNOWN[1:])
            own = {name: value or None for name, value in cells.items() if name not in _KNOWN}
            row = replace(row, label=label, site=site, split=split, more={**row.more, **own})
        if self._key is None:
            return row
        patient = self._hide(row.patient)
        return replace(row, patient=patient, slide=f"{patient}/{self._hide(row.slide)}")

    def find_warnings(self) -> list[str]:
        """Patients that the CSV does not list; refuses them where the CSV says who is held out."""
        if not self._missing:
            return []
        listed = name_some(self._missing)
        if any(cells.get("split") for cells in self._rows.values()):
            raise UserError(
                f"{self._csv} gives splits, but does not list the patients {listed}: they would be in no split. Add "
                "them, or leave out the column `split`."
            )
        return [f"{self._csv} does not list the patients {listed}; they have no label."]

    def _hide(self, name: str) -> str:
        assert self._key is not None
        return hmac.new(self._key, name.encode(), "sha256").hexdigest()[:16]


def read_patients(sheet: Sheet) -> dict[str, dict[str, str]]:
    """The row of every patient of a CSV of patients."""
    problems = []
    rows: dict[str, dict[str, str]] = {}
    for number, cells in sheet.rows:
        if cells["patient"] in rows:
            problems.append(f"row {number}: patient {cells['patient']!r} was listed already. Remove one of the rows.")
        rows[cells["patient"]] = cells
    refuse(sheet.path, [f"{sheet.path.name} {problem}" for problem in problems])
    return rows


def _read_described(path: Path) -> dict[str, dict[str, str]]:
    """The same of a CSV whose further columns are kept."""
    sheet = read_sheet(path, ("patient",))
    taken = [name for name in sheet.columns if is_ours(name) or name in ("mpp", "slide", "path")]
    if taken:
        raise UserError(f"{path}: column {taken[0]!r} is one that hidisc writes itself. Rename it.")
    return read_patients(sheet)


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

"""The first sheet of an Excel workbook (.xlsx) as the rows of text that a CSV of it would have."""

import io
from datetime import datetime
from itertools import chain
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import ParseError
from zipfile import BadZipFile

from hidisc.ground.errors import UserError
from hidisc.ground.text import count

_DAMAGE = (BadZipFile, ParseError, OSError, KeyError, ValueError, TypeError, AttributeError, IndexError, EOFError)
"""What openpyxl raises of files that are no workbooks."""


def read_workbook(path: Path, data: bytes) -> tuple[list[list[str]], list[str]]:
    """(the rows of the first sheet that is not hidden, warnings); numbers and dates as plain text."""
    from openpyxl import load_workbook

    try:
        results, formulas = (load_workbook(io.BytesIO(data), data_only=only) for only in (True, False))
        visible = [number for number, sheet in enumerate(results.worksheets) if sheet.sheet_state == "visible"]
        sheet, as_typed = results.worksheets[visible[0]], formulas.worksheets[visible[0]]
        rows = [list(row) for row in sheet.iter_rows()]
    except _DAMAGE as error:
        raise UserError(
            f"{path} is no Excel workbook, or damaged ({error}). Save the table as CSV (UTF-8) and give that file."
        ) from error
    typed = [cell for cell in chain.from_iterable(as_typed.iter_rows()) if cell.data_type == "f"]
    if typed and all(sheet[cell.coordinate].value is None for cell in typed):
        raise UserError(
            f"{path}: cell {typed[0].coordinate} is a formula whose result is not in the file. Open the workbook in a "
            "spreadsheet program and save it, or save it as CSV."
        )
    wrong = next((cell for cell in chain.from_iterable(rows) if cell.data_type == "e"), None)
    if wrong is not None:
        raise UserError(f"{path}: cell {wrong.coordinate} is the error {wrong.value}. Correct it, or empty the cell.")
    others = len(visible) - 1
    warning = f"the first sheet, {sheet.title!r}, is read, and {count(others, 'other sheet')} not." if others else ""
    return [_trim([_as_text(cell) for cell in row]) for row in rows], [warning] if warning else []


def _trim(row: list[str]) -> list[str]:
    """A row without the empty cells behind its last one: all rows of a sheet are as long as the longest."""
    while row and not row[-1]:
        row.pop()
    return row


def _as_text(cell: Any) -> str:
    """A cell as people see it: no `.0`, leading zeros where the format has them, ISO dates."""
    value = cell.value
    if value is None:
        return ""
    if isinstance(value, datetime):
        return value.isoformat(" ").removesuffix(" 00:00:00")
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool) and set(cell.number_format) == {"0"}:
        return str(value).zfill(len(cell.number_format))
    return str(value)

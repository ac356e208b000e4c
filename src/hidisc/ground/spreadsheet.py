"""A table as spreadsheets write it: CSV (byte-order marks, semicolons, CR line ends, stray spaces) or Excel.

Of a workbook (.xlsx) the first sheet is read, as the rows of text that a CSV of it would have.
"""

import csv
import io
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from hidisc.ground.errors import UserError
from hidisc.ground.text import plural
from hidisc.ground.workbook import read_workbook

_ON_ONE_LINE = ("patient", "slide", "patch", "path", "label", "site", "split")
"""Columns of names, in which a line break is a slip: a quote that was not closed, or a stray Enter in a spreadsheet."""

_FORMULA = re.compile(r"'*\s*[=+\-@＝＋－＠]|'*[\t\r\n]")
"""How a cell begins that a spreadsheet program may treat as a formula, which can run commands; and such a cell behind
the apostrophes that make it text."""
_NUMBER = r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?"
_FIGURE = re.compile(rf"{_NUMBER}( [\[(]{_NUMBER}(, {_NUMBER})?[\])])?")
"""A number, alone or with its deviation or interval as our tables print it; no formula, whatever its sign."""
LONGEST = 5000
"""Characters that a name may have; a longer one is a quote that was not closed, or another kind of file."""
_SHOWN = 20

_Row = tuple[int, dict[str, str]]
"""The row number that a spreadsheet shows, and the cells by column."""


@dataclass(frozen=True)
class Sheet:
    """The rows of a CSV as `{column: value}`, each with the row number a spreadsheet shows for it."""

    path: Path
    columns: tuple[str, ...]
    rows: tuple[_Row, ...]
    warnings: tuple[str, ...] = ()


def read_sheet(path: Path, required: Sequence[str]) -> Sheet:
    """Read a CSV of any common encoding and delimiter; column names are lower-cased, cells stripped.

    For example the bytes that Excel writes in Germany, here with an empty first line,

        \r\nPatient;slide;path\r\nP1;S1;"a;b.tiff"\r\n;;\r\n

    become columns ("patient", "slide", "path") and one row, (3, {"patient": "P1", "slide": "S1", "path": "a;b.tiff"}):
    the header stands in row 2 of the spreadsheet, and row 4 is empty.
    """
    data, delimiter, said = _read_bytes(path), "", list[str]()
    if data.startswith(b"PK\x03\x04"):
        records, said = read_workbook(path, data)
    else:
        lines, first_row, delimiter = _find_header(_decode(path, data))
        records = list(enumerate(_split(path, lines, delimiter, first_row), start=first_row))
    if not any(cell.strip() for _, record in records for cell in record):
        named = ", ".join(required) or "patient, slide"
        raise UserError(f"{path} is empty. It needs a header row with {named} and one row per slide.")
    header_row, header = records[0]
    columns = _read_columns(path, header, header_row, required)
    rows = _read_rows(path, records[1:], columns, delimiter)
    _refuse_line_breaks(path, rows)
    warnings = _find_swallowed_rows([(header_row, {name: name for name in columns}), *rows], len(columns), delimiter)
    return Sheet(path, tuple(filter(None, columns)), tuple(rows), (*said, *warnings))


def _find_header(text: str) -> tuple[str, int, str]:
    """(the lines from the header on, the header's row number in a spreadsheet, what separates cells)."""
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    lines = text.lstrip("\n")
    header_row = 1 + len(text) - len(lines)
    if lines.lower().startswith("sep="):  # Excel's own hint, which it does not show as a row
        hint, _, lines = lines.partition("\n")
        return lines, header_row, hint[4:5] or ","
    return lines, header_row, max(",;\t", key=lines.partition("\n")[0].count)


def _read_columns(path: Path, header: Sequence[str], header_row: int, required: Sequence[str]) -> tuple[str, ...]:
    """The names of all columns, empty ones included; refuses a header that lacks a required one or has one twice."""
    columns = tuple(_clean(cell).lower() for cell in header)
    _refuse_long(path, header_row, {"the name of a column": max(columns, key=len, default="")})
    missing = [name for name in required if name not in columns]
    if missing:
        quoted = ", ".join(map(repr, missing))
        raise UserError(
            f"{path}: {plural('column', len(missing))} {quoted} {'is' if len(missing) == 1 else 'are'} missing. "
            f"Its columns are {_list_columns(columns)}; {', '.join(required)} are needed. Add or rename."
        )
    doubled = sorted(name for name, times in Counter(columns).items() if name and times > 1)
    if doubled:
        raise UserError(f"{path}: column {doubled[0]!r} is in the header twice. Remove one of them.")
    return columns


def _read_rows(
    path: Path, records: Iterable[tuple[int, Sequence[str]]], columns: Sequence[str], delimiter: str
) -> list[_Row]:
    """The rows that are not empty; refuses cells behind the last column, names that are too long, and no rows."""
    rows, long = [], []
    for number, record in records:
        cells = [_clean(cell) for cell in record]
        if any(cells[len(columns) :]):
            long.append(number)
        if any(cells):  # spreadsheets leave wholly empty rows behind
            named = zip_longest(columns, cells[: len(columns)], fillvalue="")
            rows.append((number, {name: cell for name, cell in named if name}))
    for number, row in rows:
        _refuse_long(path, number, {name: row[name] for name in (*_ON_ONE_LINE, "mpp") if name in row})
    if long:  # an unquoted decimal comma would pass for a smaller number
        raise UserError(
            f"{path} row {long[0]}{_and_more(long, 'row')}: more cells than the {len(columns)} columns of the header. "
            f"{f'Quote cells that contain {delimiter!r}, or name' if delimiter else 'Name'} the column."
        )
    if not rows:
        raise UserError(f"{path} has a header but no rows. Add one row per slide.")
    return rows


def format_csv(columns: Sequence[str], rows: Iterable[Sequence[str | float | None]]) -> str:
    """The text of a CSV that spreadsheet programs show and do not run; None is an empty cell.

    Text is always quoted: Python 3.11 leaves a lone CR unquoted, and a program that separates cells by semicolons would
    find the beginning of a cell inside of one.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n", quoting=csv.QUOTE_NONNUMERIC)
    for row in (columns, *rows):
        writer.writerow([guard_cell(cell) if isinstance(cell, str) else cell for cell in row])
    return text.getvalue()


def guard_cell(cell: str) -> str:
    """The text with an apostrophe before it where it could be treated as a formula; `read_sheet` takes it off again."""
    return f"'{cell}" if _FORMULA.match(cell) and not _FIGURE.fullmatch(cell) else cell


def unguard_cell(cell: str) -> str:
    """The text that `guard_cell` was given."""
    return cell[1:] if cell.startswith("'") and _FORMULA.match(cell) else cell


def _split(path: Path, lines: str, delimiter: str, header_row: int) -> list[list[str]]:
    """The cells of every row; quotes that do not match are refused, for they would swallow the rows behind them."""
    records: list[list[str]] = []
    reader = csv.reader(io.StringIO(lines), delimiter=delimiter, strict=True)
    read = 0
    try:
        for record in reader:
            records.append(record)
            read = reader.line_num
    except csv.Error as error:
        # only a quote makes one row of several lines; a single line can simply be too long for a cell
        if "field limit" in str(error) and reader.line_num - read < 2:
            raise UserError(f"{path} is not a CSV file ({error}). Save the table as CSV (UTF-8).") from error
        raise UserError(
            f'{path} row {header_row + len(records)}: a quote (") opens a cell in this row and is not closed where the '
            "cell ends, so that the rows behind it would be lost. Close or remove the quote; a quote inside a quoted "
            'cell is written twice ("").'
        ) from error
    return records


def _refuse_line_breaks(path: Path, rows: Sequence[_Row]) -> None:
    """Refuse names on two lines, with the first row and how many more there are."""
    broken = [
        (number, name, cells[name])
        for number, cells in rows
        for name in _ON_ONE_LINE
        if len(cells.get(name, "").splitlines()) > 1
    ]
    if broken:
        number, name, cell = broken[0]
        shown = cell if len(cell) <= 60 else f"{cell[:60]}..."
        raise UserError(
            f"{path} row {number}{_and_more(broken, 'cell')}: {name} {shown!r} contains a line break. A {name} stands "
            'on one line: remove the line break, or close the quote (") that opens the cell.'
        )


def _find_swallowed_rows(rows: Sequence[_Row], columns: int, delimiter: str) -> list[str]:
    """A warning of cells that hold a whole row: a note may have several lines, but seldom one with as many cells."""
    found = [
        (number, name.splitlines()[0])
        for number, cells in rows
        for name, cell in cells.items()
        if delimiter and any(line.count(delimiter) == columns - 1 for line in cell.splitlines()[1:])
    ]
    if not found:
        return []
    number, column = found[0]
    return [
        f"row {number}{_and_more(found, 'cell')}: the cell of column {column!r} has several lines, and one of them has "
        f'{columns} cells, as many as a row. If it is a row, close the quote (") that opens the cell.'
    ]


def _refuse_long(path: Path, row: int, cells: Mapping[str, str]) -> None:
    """Refuse a name that no sentence could show, and no one can have meant."""
    for what, cell in cells.items():
        if len(cell) > LONGEST:
            raise UserError(
                f"{path} row {row}: {what} has {len(cell):,} characters, more than {LONGEST:,}. Shorten it, or close "
                'the quote (") that opens the cell.'
            )


def _list_columns(columns: Sequence[str]) -> str:
    """The first names of columns, shortened, and how many more there are."""
    names = list(filter(None, columns))
    shown = [name if len(name) <= 60 else f"{name[:60]}..." for name in names[:_SHOWN]]
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{', '.join(shown)}{more}"


def _and_more(listed: Sequence[object], noun: str) -> str:
    """What follows the first of several: ` (and 2 more rows)`; nothing when it is the only one."""
    return f" (and {len(listed) - 1} more {plural(noun, len(listed) - 1)})" if len(listed) > 1 else ""


def _read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        raise UserError(f"{path} does not exist. Give the path of your CSV file.") from error
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}). Give the path of your CSV file.") from error


def _decode(path: Path, data: bytes) -> str:
    if data.startswith(b"\xd0\xcf\x11\xe0"):
        raise UserError(f"{path} is an old Excel workbook (.xls). Save it as .xlsx or CSV (UTF-8) and give that file.")
    # cp1252 is what Excel's plain "CSV" is in western Europe
    encodings = ["utf-16"] if data.startswith((b"\xff\xfe", b"\xfe\xff")) else ["utf-8-sig", "cp1252"]
    for encoding in encodings:
        try:
            text = data.decode(encoding)
        except UnicodeDecodeError:
            continue
        if "\0" not in text:
            return text
    raise UserError(f"{path} is not a text file. Save the table as CSV (UTF-8) and give that file.")


def _clean(cell: str) -> str:
    """Strip spaces (no-break ones too) and compose accents, so that one name is one string on every system."""
    bare = unguard_cell(cell.strip().strip("\ufeff\u200b").strip())
    return unicodedata.normalize("NFC", bare.strip())

"""A CSV as spreadsheets really write it (byte-order marks, semicolons, CR line ends, stray spaces) -> rows."""

import csv
import io
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hidisc.errors import UserError

_NAMES = ("patient", "slide", "patch", "path", "label", "mpp", "site", "split")
_LONGEST = 5000
"""Characters that a name may have; a longer one is a quote that was not closed, or another kind of file."""
_SHOWN = 20


@dataclass(frozen=True)
class Sheet:
    """The rows of a CSV as `{column: value}`, each with the row number a spreadsheet shows for it."""

    path: Path
    columns: tuple[str, ...]
    rows: tuple[tuple[int, dict[str, str]], ...]


def read_sheet(path: Path, required: Sequence[str]) -> Sheet:
    """Read a CSV of any common encoding and delimiter; column names are lower-cased, cells stripped."""
    text = _decode(path)
    whole = text.replace("\r\n", "\n").replace("\r", "\n")
    lines = whole.lstrip("\n")
    header_row = 1 + len(whole) - len(lines)
    if lines.lower().startswith("sep="):  # Excel's own hint, which it does not show as a row
        hint, _, lines = lines.partition("\n")
        delimiter = hint[4:5] or ","
    else:
        delimiter = max(",;\t", key=lines.partition("\n")[0].count)
    try:
        records = list(csv.reader(io.StringIO(lines), delimiter=delimiter))
    except csv.Error as error:
        raise UserError(f"{path} is not a CSV file ({error}). Save the table as CSV (UTF-8).") from error
    if not records or not any(cell.strip() for record in records for cell in record):
        raise UserError(f"{path} is empty. It needs a header row with {', '.join(required)} and a row a slide.")

    columns = tuple(_clean(cell).lower() for cell in records[0])
    _refuse_long(path, header_row, {"the name of a column": max(columns, key=len, default="")})
    missing = [name for name in required if name not in columns]
    if missing:
        raise UserError(
            f"{path}: {_column(missing)} missing. Its columns are {_list(list(filter(None, columns)))}; "
            f"{', '.join(required)} are needed. Add or rename."
        )
    doubled = sorted(name for name, count in Counter(columns).items() if name and count > 1)
    if doubled:
        raise UserError(f"{path}: column {doubled[0]!r} stands twice in the header. Remove one of them.")
    rows, long = [], []
    for number, record in enumerate(records[1:], start=header_row + 1):
        cells = [_clean(cell) for cell in record]
        if any(cells[len(columns) :]):
            long.append(number)
        if any(cells):  # spreadsheets leave wholly empty rows behind
            cells += [""] * (len(columns) - len(cells))
            rows.append((number, {name: cell for name, cell in zip(columns, cells, strict=False) if name}))
    for number, found in rows:
        _refuse_long(path, number, {name: found[name] for name in _NAMES if name in found})
    if long:  # an unquoted decimal comma would pass for a smaller number
        more = f" (and {len(long) - 1} more rows)" if len(long) > 1 else ""
        raise UserError(
            f"{path} row {long[0]}{more}: more cells than the {len(columns)} columns of the header. "
            f"Quote cells that contain {delimiter!r}, or name the column."
        )
    if not rows:
        raise UserError(f"{path} has a header but no rows. Add one row a slide.")
    return Sheet(path, tuple(filter(None, columns)), tuple(rows))


def _refuse_long(path: Path, row: int, cells: Mapping[str, str]) -> None:
    """Refuse a name that no sentence could show, and no one can have meant."""
    for what, cell in cells.items():
        if len(cell) > _LONGEST:
            raise UserError(
                f"{path} row {row}: {what} has {len(cell):,} characters, more than {_LONGEST:,}. Shorten it, or close "
                'the quote (") that opens the cell.'
            )


def _list(names: Sequence[str]) -> str:
    """The first names of columns, shortened, and how many more there are."""
    shown = [name if len(name) <= 60 else f"{name[:60]}..." for name in names[:_SHOWN]]
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{', '.join(shown)}{more}"


def _decode(path: Path) -> str:
    try:
        data = path.read_bytes()
    except FileNotFoundError as error:
        raise UserError(f"{path} does not exist. Give the path of your CSV file.") from error
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}). Give the path of your CSV file.") from error
    if data.startswith((b"PK\x03\x04", b"\xd0\xcf\x11\xe0")):
        raise UserError(f"{path} is an Excel workbook. Save it as CSV (UTF-8) and give that file.")
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
    return unicodedata.normalize("NFC", cell.strip().strip("\ufeff\u200b").strip())


def _column(names: Sequence[str]) -> str:
    quoted = ", ".join(repr(name) for name in names)
    return f"column {quoted} is" if len(names) == 1 else f"columns {quoted} are"

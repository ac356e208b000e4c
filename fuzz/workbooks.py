"""Excel workbooks: odd cells, which must read as a CSV of them does, and damaged bytes, parts and XML."""

import csv
import io
import warnings
from collections.abc import Callable
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile

from openpyxl import Workbook
from openpyxl.cell.cell import ILLEGAL_CHARACTERS_RE

from fuzz.harness import INPUT, Judge, Kind, Outcome, Wrong, judge
from fuzz.mutations import Rng, mutate
from fuzz.tables import _BLANK, CELLS, COLUMNS
from hidisc.ground.errors import UserError
from hidisc.ground.spreadsheet import Sheet, read_sheet

PLACES = ("XFD1048576", "A1048576", "XFD1", "AZ40", "A2", "C3")
FORMATS = (
    "General", "0", "000", '"P"000', "000-000", "#,##0.00", "0%", "0.00E+00", "yyyy-mm-dd", "[h]:mm", ";;;", "@",
    '"P"@', '[<5]"a"0;0', '_("$"* #,##0_)', "# ?/?", "?", "[$-407]d. mmm", '"', "\\", "[", "0;;", "General;General",
    "0" * 200,
)  # fmt: skip
NUMBERS = (0, 8, -8, 0.5, 1e-300, 1e14, 1e15, 1e300, 60, 2958466, -0.0)


class Workbooks(Kind):
    """Workbooks as `read_sheet` is given them."""

    name, limit_s, memory_bytes = "workbooks", 30, 2**31
    groups = ("texts", "numbers", "layout", "bytes", "parts")

    def prepare(self, home: Path) -> None:
        """A whole workbook, which is damaged as bytes."""
        book = Workbook()
        for row in _texts():
            book.active.append(row)
        book.active["B3"].number_format, book.active["B3"] = '"P"000', 8
        book.save(home / "whole.xlsx")
        read_sheet(home / "whole.xlsx", ("patient",))

    def open(self, home: Path, folder: Path) -> Judge:
        """Every input is a workbook of its own."""
        whole = (home / "whole.xlsx").read_bytes()
        warnings.simplefilter("ignore")

        def say(rng: Rng, index: int) -> Outcome:
            path = folder / INPUT / "table.xlsx"
            group = self.group_of(index)
            return judge(lambda: TRIED[group](path, whole, rng))

        return say


def _texts() -> list[list[str]]:
    return [list(COLUMNS), *([f"P{n}", f"S{n}", f"{n}.png", "a", "0.5", "here", "train", "fine"] for n in range(4))]


def try_texts(path: Path, whole: bytes, rng: Rng) -> None:
    """A workbook of texts reads as the CSV with the same texts, or both are refused."""
    table = _texts()
    for _ in range(int(rng.integers(1, 4))):
        row = table[int(rng.integers(len(table)))]
        text = CELLS[int(rng.integers(len(CELLS)))][:32_767]
        row[int(rng.integers(len(row)))] = "" if ILLEGAL_CHARACTERS_RE.search(text) else text  # openpyxl refuses these
    if not table[0][-1].strip(_BLANK):  # of a CSV, a last column without a name is left out
        table[0][-1] = COLUMNS[-1]
    book = Workbook()
    for number, row in enumerate(table, start=1):
        for place, cell in enumerate(row, start=1):
            book.active.cell(number, place).value = cell
            if book.active.cell(number, place).data_type != "s":  # a formula, or an error
                book.active.cell(number, place).data_type = "s"
    book.save(path)
    lines = io.StringIO()
    csv.writer(lines, quoting=csv.QUOTE_ALL).writerows(table)
    as_csv = path.with_suffix(".csv")
    as_csv.write_bytes(lines.getvalue().encode())
    sheets = [_read(each) for each in (path, as_csv)]
    if any(isinstance(sheet, UserError) for sheet in sheets):
        if not all(isinstance(sheet, UserError) for sheet in sheets):
            raise Wrong(f"the workbook and the CSV are not judged alike: {sheets}")
        raise next(sheet for sheet in sheets if isinstance(sheet, UserError))
    found = [_without_breaks(sheet) for sheet in sheets if isinstance(sheet, Sheet)]
    if found[0] != found[1]:
        raise Wrong(f"{found[0]} were read of the workbook, and {found[1]} of the CSV")


def _read(path: Path) -> Sheet | UserError:
    try:
        return read_sheet(path, ("patient", "slide", "path"))
    except UserError as error:
        return error


def _without_breaks(sheet: Sheet) -> tuple[object, ...]:
    """What was read; XML and CSV differ in how they end lines, and row numbers behind a cell of several lines."""
    return sheet.columns, [
        {name: cell.replace("\r\n", "\n").replace("\r", "\n") for name, cell in row.items()} for _, row in sheet.rows
    ]


def try_numbers(path: Path, whole: bytes, rng: Rng) -> None:
    """Numbers in all formats: two that are shown in other ways are never read as one."""
    book = Workbook()
    book.active.append(["patient"])
    for row in range(2, 6):
        cell = book.active.cell(row, 1)
        cell.value = NUMBERS[int(rng.integers(len(NUMBERS)))]
        cell.number_format = FORMATS[int(rng.integers(len(FORMATS)))]
    book.save(path)
    sheet = read_sheet(path, ("patient",))
    for number, row in sheet.rows:
        code = str(book.active.cell(number, 1).number_format)
        if "P" in code and code != '"P"@' and not row["patient"].lstrip("-").startswith("P"):
            raise Wrong(f"{code!r} was read as {row['patient']!r}")


def try_layout(path: Path, whole: bytes, rng: Rng) -> None:
    """Stray cells, merged cells, hidden rows and sheets, formulas and errors."""
    book = Workbook()
    for row in [[]] * int(rng.integers(4)) + _texts():
        book.active.append(row)
    sheet = book.active
    merged = False
    for _ in range(int(rng.integers(1, 4))):
        place = PLACES[int(rng.integers(len(PLACES)))]
        change = int(rng.integers(5))
        if change == 0:
            sheet[place] = (" ", "x", "=A1", "#N/A")[int(rng.integers(4))]
        elif change == 1:
            sheet.merge_cells("A2:A3")
            merged = True
        elif change == 2:
            sheet.row_dimensions[int(rng.integers(1, 9))].hidden = True
        elif change == 3:
            book.create_sheet("other", 0)
        else:
            book.create_sheet("hidden", 0).sheet_state = ("hidden", "veryHidden")[int(rng.integers(2))]
    book.save(path)
    rows = 4 + (sheet["A1048576"].value == "x")  # far below, it is a row of its own
    if len(read_sheet(path, ("patient",)).rows) != rows and book.worksheets[0] is sheet:
        raise Wrong("4 rows were written, and others read")
    if merged and book.worksheets[0] is sheet and sheet["A2"].value:
        raise Wrong("merged cells were read")


def try_bytes(path: Path, whole: bytes, rng: Rng) -> None:
    """Damaged bytes of the file."""
    path.write_bytes(mutate(whole, rng)[0])
    read_sheet(path, ("patient",))


def try_parts(path: Path, whole: bytes, rng: Rng) -> None:
    """One part of the file, damaged before it is packed, or missing."""
    with ZipFile(io.BytesIO(whole)) as old, ZipFile(path, "w", ZIP_DEFLATED) as new:
        chosen = old.namelist()[int(rng.integers(len(old.namelist())))]
        for name in old.namelist():
            if name != chosen:
                new.writestr(name, old.read(name))
            elif rng.random() < 0.9:
                new.writestr(name, mutate(old.read(name), rng)[0])
    read_sheet(path, ("patient",))


TRIED: dict[str, Callable[[Path, bytes, Rng], None]] = {
    "texts": try_texts,
    "numbers": try_numbers,
    "layout": try_layout,
    "bytes": try_bytes,
    "parts": try_parts,
}

"""A workbook reads as the CSV that a spreadsheet program would save of it."""

import datetime
from pathlib import Path

import pytest
from openpyxl import Workbook

from hidisc.ground.errors import UserError
from hidisc.ground.spreadsheet import Sheet, read_sheet

REQUIRED = ("patient", "slide", "path")


def read(folder: Path, book: Workbook) -> Sheet:
    book.save(folder / "cohort.xlsx")
    return read_sheet(folder / "cohort.xlsx", REQUIRED)


def book_of(*rows: list[object]) -> Workbook:
    book = Workbook()
    for row in rows:
        book.active.append(row)
    return book


def test_cells_are_what_people_see(tmp_path: Path) -> None:
    book = book_of([], ["Patient", "slide", "path", "mpp", "date", "age"], [7, " S1", "a.svs", 0.2528, None, 63.0])
    book.active["A3"].number_format = "000"
    book.active["E3"] = datetime.datetime(2021, 3, 9)
    sheet = read(tmp_path, book)
    assert sheet.columns == ("patient", "slide", "path", "mpp", "date", "age")
    cells = {"patient": "007", "slide": "S1", "path": "a.svs", "mpp": "0.2528", "date": "2021-03-09", "age": "63"}
    assert sheet.rows == ((3, cells),)
    assert sheet.warnings == ()


def test_the_first_sheet_that_is_shown_is_read_and_that_is_said(tmp_path: Path) -> None:
    book = book_of(["hidden"])
    book.active.sheet_state = "hidden"
    for title, name in (("slides", "P1"), ("old", "P2")):
        book.create_sheet(title)
        for row in (list(REQUIRED), [name, "S", "a.svs"]):
            book[title].append(row)
    sheet = read(tmp_path, book)
    assert sheet.rows[0][1]["patient"] == "P1"
    assert sheet.warnings == ("the first sheet, 'slides', is read, and 1 other sheet not.",)


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        (["P", "S", "=A2"], "cell C2 is a formula whose result is not in the file. Open the workbook in a spreadsheet"),
        (["P", "S", "#N/A"], "cell C2 is the error #N/A. Correct it, or empty the cell."),
        (["P", "S", "a.svs", "more"], "row 2: more cells than the 3 columns of the header. Name the column."),
        (["P", "S", None], None),
    ],
)
def test_what_cannot_be_read_is_said_with_its_cell(tmp_path: Path, row: list[object], sentence: str | None) -> None:
    book = book_of(list(REQUIRED), row)
    if sentence is None:
        assert read(tmp_path, book).rows == ((2, {"patient": "P", "slide": "S", "path": ""}),)
        return
    with pytest.raises(UserError) as caught:
        read(tmp_path, book)
    assert sentence in str(caught.value)


def test_another_zip_file_is_no_workbook(tmp_path: Path) -> None:
    (tmp_path / "cohort.xlsx").write_bytes(b"PK\x03\x04rest")
    with pytest.raises(UserError, match=r"is no Excel workbook, or damaged .*Save the table as CSV \(UTF-8\)"):
        read_sheet(tmp_path / "cohort.xlsx", REQUIRED)


def test_an_empty_workbook(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"is empty. It needs a header row"):
        read(tmp_path, Workbook())

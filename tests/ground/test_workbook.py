"""A workbook reads as the CSV that a spreadsheet program would save of it."""

import datetime
import subprocess
import sys
from io import BytesIO
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile

import pytest
from openpyxl import Workbook

from hidisc.ground import workbook
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


def test_a_stray_cell_in_the_last_row_and_column_costs_nothing(tmp_path: Path) -> None:
    book = book_of(list(REQUIRED), ["P", "S", "a.svs"])
    book.active["XFD1048576"] = " "
    book.save(tmp_path / "cohort.xlsx")
    assert (tmp_path / "cohort.xlsx").stat().st_size < 10_000
    # in a process of its own, which can be ended and has little memory
    code = (
        "import resource, sys; from pathlib import Path; from hidisc.ground.spreadsheet import read_sheet\n"
        "resource.setrlimit(resource.RLIMIT_AS, (2**30, 2**30))\n"
        "print(len(read_sheet(Path(sys.argv[1]), ('patient',)).rows))"
    )
    words = [sys.executable, "-c", code, str(tmp_path / "cohort.xlsx")]
    assert subprocess.run(words, capture_output=True, text=True, timeout=60).stdout == "1\n"
    book.active["XFD1048576"] = "x"
    book.save(tmp_path / "cohort.xlsx")
    with pytest.raises(UserError, match="row 1048576: more cells than the 3 columns of the header"):
        read_sheet(tmp_path / "cohort.xlsx", REQUIRED)


def test_more_cells_than_memory_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    book = book_of(list(REQUIRED), *([f"P{number}", f"S{number}", "a.svs"] for number in range(20)))
    monkeypatch.setattr(workbook, "MAX_CELLS", 63)
    assert len(read(tmp_path, book).rows) == 20
    monkeypatch.setattr(workbook, "MAX_CELLS", 62)
    with pytest.raises(UserError, match=r"more than 62 cells up to row 21, and is not read. Save the table as CSV"):
        read(tmp_path, book)
    monkeypatch.setattr(workbook, "MAX_BYTES", 1000)
    with pytest.raises(UserError, match=r"cohort.xlsx unpacks to 0 MB, and workbooks of up to 0 MB are read. Save"):
        read(tmp_path, book)


@pytest.mark.parametrize("area", ["A2:A3", "B1:C1"])
def test_merged_cells_are_refused_by_name(tmp_path: Path, area: str) -> None:
    book = book_of(list(REQUIRED), ["P", "S", "a.svs"], ["P", "T", "b.svs"])
    book.active.merge_cells("E7:F9")  # shows nothing
    assert len(read(tmp_path, book).rows) == 2
    book.active.merge_cells(area)
    with pytest.raises(UserError) as caught:
        read(tmp_path, book)
    assert (
        f"cells {area} are merged, so that only the first of them has a value. Unmerge them, and fill in every cell."
        in str(caught.value)
    )


def test_hidden_rows_are_read_and_named(tmp_path: Path) -> None:
    book = book_of(list(REQUIRED), *([f"P{number}", f"S{number}", "a.svs"] for number in range(5)))
    for row in (3, 5, 90):
        book.active.row_dimensions[row].hidden = True
    sheet = read(tmp_path, book)
    assert len(sheet.rows) == 5
    assert sheet.warnings == (
        "2 rows of the sheet (the first is row 3) are hidden, perhaps by a filter, and read all the same. "
        "Delete what is not meant.",
    )


@pytest.mark.parametrize(
    ("value", "code", "shown"),
    [
        (8, '"P"000', "P008"),
        (8, "\\P000", "P008"),
        (8, '"P-"0', "P-8"),
        (123456, "000-000", "123-456"),
        (7, "000-000", "000-007"),
        (1234567, "00-00", "12345-67"),
        (-8, "000", "-008"),
        (-8, '000;"M"000', "M008"),
        (0, '000;-000;"none"', "none"),
        (8, '[$P]000', "P008"),
        (8, '0" um"', "8 um"),
        (5, '"yes"', "yes"),
        (8, "@", "8"),
        (8, 'General" mm"', "8 mm"),
        # measures stay the exact number
        (0.2528, "0.00", "0.2528"),
        (1234.5, "#,##0.00", "1234.5"),
        (1234.5, '_-* #,##0.00 "€"_-', "1234.5"),
        (-1234, '_("$"* #,##0_);_("$"* \\(#,##0\\)', "-1234"),
        (2.7, "0", "2.7"),
        (1e-05, "0.00E+00", "1e-05"),
        (0.5, "# ?/?", "0.5"),
        (0.1 + 0.2, "General", "0.3"),
        (0.25, "0%", "25%"),
        (True, "General", "True"),
        # text
        ("8", '"P"@', "P8"),
        ("08", "0", "08"),
        ("8", "General", "8"),
        # dates
        (44264.5, "dd/mm/yyyy hh:mm", "2021-03-09 12:00:00"),
        (44264, '[$-407]d. mmmm yyyy', "2021-03-09"),
        (1.5, "[h]:mm", "1 day, 12:00:00"),
    ],
)  # fmt: skip
def test_a_cell_is_what_its_format_shows(tmp_path: Path, value: object, code: str, shown: str) -> None:
    book = book_of(["patient"], [value])
    book.active["A2"].number_format = code
    book.save(tmp_path / "cohort.xlsx")
    assert read_sheet(tmp_path / "cohort.xlsx", ("patient",)).rows == ((2, {"patient": shown}),)


@pytest.mark.parametrize(
    ("value", "code", "sentence"),
    [
        (
            8.5,
            '"P"000',
            "cell A2 is 8.5, and its format '\"P\"000' shows something else, which cannot be read. Give it",
        ),
        (8.5, "000.0", "shows something else"),
        (8, '[<10]"P"0;0', "shows something else"),
        (8, ";;;", "shows something else"),
        (8.25, '0.0" mm"', "shows something else"),
        ("8", ";;;", "cell A2 is text that its format ';;;' does not show. Give it the format Text"),
        (1234567890123456, "0", "cell A2 is a number of more than 15 digits, and spreadsheets keep no more, so that"),
        (-5, "yyyy-mm-dd", "cell A2 is -5, which is no date, and has the format of one. Correct it."),
    ],
)
def test_a_format_that_cannot_be_read_is_refused(tmp_path: Path, value: object, code: str, sentence: str) -> None:
    book = book_of(["patient"], [value])
    book.active["A2"].number_format = code
    book.save(tmp_path / "cohort.xlsx")
    with pytest.raises(UserError) as caught:
        read_sheet(tmp_path / "cohort.xlsx", ("patient",))
    assert sentence in str(caught.value)


def test_other_programs_write_other_xml(tmp_path: Path) -> None:
    """Prefixes, texts in their cells, phonetic texts, cells without names, parts with absolute paths, dates of 1904."""
    main = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
    kinds = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
    parts = {
        "_rels/.rels": f'<Relationships><Relationship Id="a" Type="{kinds}/officeDocument" Target="/x/book.xml"/>'
        "</Relationships>",
        "x/_rels/book.xml.rels": f'<Relationships><Relationship Id="c" Type="{kinds}/chartsheet" Target="c.xml"/>'
        f'<Relationship Id="s" Type="{kinds}/worksheet" Target="/x/s.xml"/>'
        f'<Relationship Id="t" Type="{kinds}/sharedStrings" Target="../t.xml"/>'
        f'<Relationship Id="y" Type="{kinds}/styles" Target="y.xml"/></Relationships>',
        "x/book.xml": f'<x:workbook xmlns:x="{main}" xmlns:r="{kinds}"><x:workbookPr date1904="1"/><x:sheets>'
        '<x:sheet name="chart" r:id="c"/><x:sheet name="one" r:id="s"/></x:sheets></x:workbook>',
        "x/y.xml": '<styleSheet><cellStyleXfs><xf numFmtId="9"/></cellStyleXfs><cellXfs><xf/><xf numFmtId="14"/>'
        "</cellXfs></styleSheet>",
        "t.xml": "<sst><si><t>patient</t></si><si><r><t>da</t></r><r><t>te</t></r><rPh><t>DATE</t></rPh></si></sst>",
        "x/s.xml": f'<x:worksheet xmlns:x="{main}"><x:sheetData><x:row><x:c t="s"><x:v>0</x:v></x:c>'
        '<x:c t="s"><x:v>1</x:v></x:c></x:row><x:row r="4"><x:c t="inlineStr"><x:is><x:t>P1</x:t>'
        '<x:rPh><x:t>spoken</x:t></x:rPh></x:is></x:c><x:c s="1"><x:v>42802</x:v></x:c></x:row>'
        '<x:row><x:c t="str"><x:f>A1</x:f><x:v>P2</x:v></x:c><x:c t="str"><x:f>B1</x:f><x:v></x:v></x:c></x:row>'
        "</x:sheetData></x:worksheet>",
    }
    with ZipFile(tmp_path / "cohort.xlsx", "w") as book:
        for name, text in parts.items():
            book.writestr(name, text)
    sheet = read_sheet(tmp_path / "cohort.xlsx", ("patient",))
    assert sheet.columns == ("patient", "date")
    assert sheet.rows == ((4, {"patient": "P1", "date": "2021-03-09"}), (5, {"patient": "P2", "date": ""}))


def test_a_workbook_that_unpacks_without_end_is_refused(tmp_path: Path) -> None:
    book = book_of(["patient"], ["P1"])
    book.save(packed := BytesIO())
    with ZipFile(packed) as old, ZipFile(tmp_path / "cohort.xlsx", "w", ZIP_DEFLATED) as new:
        for name in old.namelist():
            new.writestr(name, old.read(name))
        new.getinfo("xl/styles.xml").file_size = 10**12
    with pytest.raises(UserError, match="unpacks to 1,000,000 MB, and workbooks of up to 400 MB are read"):
        read_sheet(tmp_path / "cohort.xlsx", ("patient",))
    with ZipFile(packed) as old, ZipFile(tmp_path / "cohort.xlsx", "w") as new:
        for name in old.namelist():
            data = old.read(name)
            new.writestr(name, b'<!DOCTYPE x [<!ENTITY a "b">]><x>&a;</x>' if name == "xl/styles.xml" else data)
    with pytest.raises(UserError, match=r"is no Excel workbook, or damaged .it declares a document type"):
        read_sheet(tmp_path / "cohort.xlsx", ("patient",))

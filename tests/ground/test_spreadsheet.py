"""A CSV in every shape spreadsheets leave it in."""

import csv
import io
import unicodedata
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hidisc.ground import spreadsheet
from hidisc.ground.errors import UserError
from hidisc.ground.spreadsheet import Sheet, format_csv, guard_cell, read_sheet, unguard_cell

PLAIN = "patient,slide,path\nP1,S1,a.svs\nP2,S2,b.svs\n"
ROWS = (
    (2, {"patient": "P1", "slide": "S1", "path": "a.svs"}),
    (3, {"patient": "P2", "slide": "S2", "path": "b.svs"}),
)
REQUIRED = ("patient", "slide", "path")


def read(folder: Path, data: bytes | str) -> Sheet:
    path = folder / "cohort.csv"
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return read_sheet(path, REQUIRED)


def refusal(folder: Path, data: bytes | str) -> str:
    with pytest.raises(UserError) as caught:
        read(folder, data)
    return str(caught.value)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(PLAIN.encode(), id="plain"),
        pytest.param(PLAIN.encode("utf-8-sig"), id="byte-order mark"),
        pytest.param(PLAIN.replace(",", "\t").encode("utf-16"), id="Excel's Unicode text"),
        pytest.param(b"\xfe\xff" + PLAIN.encode("utf-16-be"), id="UTF-16 big-endian"),
        pytest.param(PLAIN.replace(",", ";").encode(), id="semicolons"),
        pytest.param(PLAIN.replace(",", "\t").encode(), id="tabs"),
        pytest.param(PLAIN.replace("\n", "\r\n").encode(), id="CRLF"),
        pytest.param(PLAIN.replace("\n", "\r").encode(), id="CR"),
        pytest.param(PLAIN.rstrip("\n").encode(), id="no last line end"),
        pytest.param(PLAIN.replace("patient,slide,path", " Patient ,SLIDE,Path").encode(), id="header case and spaces"),
        pytest.param(PLAIN.replace("S1", " S1\t").replace("P1", "\u00a0P1\u00a0").encode(), id="spaces around cells"),
        pytest.param(PLAIN.replace("P1", "\u200bP1").encode(), id="zero-width space"),
        pytest.param(PLAIN.replace("\n", ",,\n").encode(), id="trailing empty columns"),
        pytest.param((PLAIN + ",,\n,,\n\n").encode(), id="trailing empty rows"),
        pytest.param(PLAIN.replace("S1", '"S1"').replace("path", '"path"').encode(), id="quoted"),
        pytest.param(("sep=;\n" + PLAIN.replace(",", ";")).encode(), id="sep=; which Excel hides"),
        pytest.param(("\ufeffSep=\t\r\n" + PLAIN.replace(",", "\t")).encode(), id="sep=tab after a mark"),
    ],
)
def test_variants_read_as_the_plain_table(tmp_path: Path, data: bytes) -> None:
    sheet = read(tmp_path, data)
    assert sheet.columns == REQUIRED
    assert sheet.rows == ROWS


def test_western_excel_encoding(tmp_path: Path) -> None:
    assert read(tmp_path, PLAIN.replace("P1", "Müller – é").encode("cp1252")).rows[0][1]["patient"] == "Müller – é"


def test_composed_and_decomposed_accents_are_one_name(tmp_path: Path) -> None:
    sheet = read(tmp_path, "patient,slide,path\nZo\u00eb,S1,a\nZoe\u0308,S2,b\n")
    assert sheet.rows[0][1]["patient"] == sheet.rows[1][1]["patient"]


def test_row_numbers_are_the_spreadsheets(tmp_path: Path) -> None:
    """Empty rows and line breaks inside cells count as a spreadsheet counts them."""
    sheet = read(tmp_path, '\n\npatient,slide,path,note\nP1,S1,a,"two\nlines"\n\nP2,S2,b,\n')
    assert [number for number, _ in sheet.rows] == [4, 6]
    assert sheet.rows[0][1]["note"] == "two\nlines"
    assert sheet.warnings == ()


def test_short_rows_are_filled_up(tmp_path: Path) -> None:
    assert read(tmp_path, "patient,slide,path,label\nP1,S1,a\n").rows[0][1]["label"] == ""


def test_delimiters_inside_quotes(tmp_path: Path) -> None:
    assert read(tmp_path, 'patient,slide,path\n"Doe, Jane","S;1",a\n').rows[0][1] == {
        "patient": "Doe, Jane",
        "slide": "S;1",
        "path": "a",
    }


def test_a_row_longer_than_the_header_is_refused(tmp_path: Path) -> None:
    """`1,5` in a comma CSV would otherwise be read as 1 micrometre a pixel."""
    said = refusal(tmp_path, "patient,slide,path,mpp\nP1,S1,a,0.5\nP2,S2,b,1,5\nP3,S3,c,1,5\n")
    assert "cohort.csv row 3 (and 1 more row): more cells than the 4 columns of the header." in said
    assert "Quote cells that contain ',', or name the column." in said


FOUR = "patient,slide,path\nP1,S1,a.svs\nP2,S2,b.svs\nP3,S3,c.svs\nP4,S4,d.svs\n"


@pytest.mark.parametrize(
    ("data", "row"),
    [
        pytest.param(FOUR.replace("P3", '"P3'), 4, id="never closed"),
        pytest.param(FOUR.replace("c.svs", '"c.svs'), 4, id="never closed, in the last column"),
        pytest.param(FOUR.replace("patient", '"patient'), 1, id="in the header"),
        pytest.param(FOUR.replace("S2", '"S2').replace("S4", '"S4"'), 3, id="closed by the quote of another cell"),
        pytest.param(FOUR.replace("S2", '"S2"x'), 3, id="letters behind the closing quote"),
        pytest.param("\n\n" + FOUR.replace("P1", '"P1'), 4, id="below empty rows"),
        pytest.param(FOUR.replace("P2", '"P2') + "P,S,x.svs\n" * 20_000, 3, id="too many rows behind it for one cell"),
        pytest.param(FOUR.replace(",", ";").replace("P3", '"P3'), 4, id="semicolons"),
    ],
)
def test_quotes_that_do_not_match_are_refused_with_their_row(tmp_path: Path, data: str, row: int) -> None:
    """An unclosed quote makes one cell of all the rows behind it, and slides would be lost without a word."""
    assert refusal(tmp_path, data) == (
        f'{tmp_path / "cohort.csv"} row {row}: a quote (") opens a cell in this row and is not closed where the cell '
        "ends, so that the rows behind it would be lost. Close or remove the quote; a quote inside a quoted cell is "
        'written twice ("").'
    )


def test_a_quote_inside_a_cell_is_a_letter(tmp_path: Path) -> None:
    rows = read(tmp_path, 'patient,slide,path\nP1,5" core,a\nP2,"5"" core",b\n').rows
    assert [cells["slide"] for _, cells in rows] == ['5" core', '5" core']


@pytest.mark.parametrize("column", ["patient", "slide", "patch", "path", "label", "site", "split"])
@pytest.mark.parametrize("line_break", ["\n", "\r\n", "\r", "\u2028"])
def test_names_on_two_lines_are_refused_with_their_row(tmp_path: Path, column: str, line_break: str) -> None:
    """Two quotes that do not belong together make one legal cell of what lies between them."""
    columns = ["patient", "slide", "path", "patch", "label", "site", "split"]
    cells = [f'"x{line_break}y"' if name == column else name for name in columns]
    data = "\n".join([",".join(row) for row in (columns, columns, cells)])
    shown = "'x\\u2028y'" if line_break == "\u2028" else "'x\\ny'"
    assert refusal(tmp_path, data) == (
        f"{tmp_path / 'cohort.csv'} row 3: {column} {shown} contains a line break. A {column} stands on one line: "
        'remove the line break, or close the quote (") that opens the cell.'
    )
    more = refusal(tmp_path, data + "\n" + ",".join(cells))
    assert f"row 3 (and 1 more cell): {column} {shown} contains a line break." in more


def test_a_line_break_at_the_end_of_a_cell_is_no_name(tmp_path: Path) -> None:
    assert read(tmp_path, PLAIN.replace("P1", '"P1\n"')).rows == ROWS


def test_a_note_that_holds_a_row_is_warned_of(tmp_path: Path) -> None:
    """In a column of the user's own a line break is legal, so a swallowed row can only be suspected."""
    sheet = read(tmp_path, 'patient,slide,path,note\nP1,S1,a,"one\nP2,S2,b,two"\nP3,S3,c,"fine,\nnot two, but one"\n')
    assert sheet.warnings == (
        "row 2: the cell of column 'note' has several lines, and one of them has 4 cells, as many as a row. If it is a "
        'row, close the quote (") that opens the cell.',
    )
    sheet = read(tmp_path, 'patient,slide,path,"note\nP1,S1,a,x"\n' + 'P2,S2,b,"x\nP3,S3,c,x"\n')
    assert sheet.warnings[0].startswith("row 1 (and 1 more cell): the cell of column 'note' has several lines")
    assert len(sheet.warnings) == 1


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        ("", "is empty. It needs a header row with patient, slide, path and one row per slide."),
        (" \n,,\n", "is empty. It needs a header row"),
        ("sep=;\n", "is empty. It needs a header row"),
        ("patient,slide,path\n", "has a header but no rows. Add one row per slide."),
        ("patient,slide,path\n,,\n", "has a header but no rows. Add one row per slide."),
        ("patient,slide\nP,S\n", "column 'path' is missing. Its columns are patient, slide; patient, slide, path are"),
        ("a,b\nP,S\n", "columns 'patient', 'slide', 'path' are missing. Its columns are a, b;"),
        ("patient,slide,path,Slide\nP,S,a,b\n", "column 'slide' is in the header twice. Remove one of them."),
        (
            b"\xd0\xcf\x11\xe0rest",
            "is an old Excel workbook (.xls). Save it as .xlsx or CSV (UTF-8) and give that file.",
        ),
        (bytes(range(256)), "is not a text file. Save the table as CSV (UTF-8) and give that file."),
        (b"\xff\xfea", "is not a text file. Save the table as CSV (UTF-8) and give that file."),
        ("patient,slide,path\nP,S," + "x" * 200_000, "is not a CSV file (field larger than field limit"),
    ],
)
def test_refusals(tmp_path: Path, data: bytes | str, sentence: str) -> None:
    assert sentence in refusal(tmp_path, data)


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (
            f"patient,slide,path\nP,S,a\nP,{'x' * 5001},b\n",
            'row 3: slide has 5,001 characters, more than 5,000. Shorten it, or close the quote (") that opens the',
        ),
        (f"patient,slide,path,{'x' * 9000}\nP,S,a,b\n", "row 1: the name of a column has 9,000 characters, more than"),
        (
            ",".join(f"column {number}" for number in range(30_000)),
            "column 17, column 18, column 19 and 29980 more; patient, slide, path are needed. Add or rename.",
        ),
    ],
    ids=["cell", "column", "columns"],
)
def test_what_no_sentence_could_show(tmp_path: Path, data: str, sentence: str) -> None:
    said = refusal(tmp_path, data)
    assert sentence in said
    assert len(said) < 1000


def test_a_long_note_is_none_of_our_names(tmp_path: Path) -> None:
    assert len(read(tmp_path, f"patient,slide,path,note\nP,S,a,{'x' * 9000}\n").rows) == 1


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"none\.csv does not exist\. Give the path of your CSV file\."):
        read_sheet(tmp_path / "none.csv", REQUIRED)
    with pytest.raises(UserError, match=r"cannot be read \(Is a directory\)\. Give the path of your CSV file\."):
        read_sheet(tmp_path, REQUIRED)


# ---- written so that spreadsheet programs show it and do not run it


@pytest.mark.parametrize(
    "formula",
    [
        "=1+1",
        "+cmd|' /C calc'!A0",
        "-2+3+cmd|' /C calc'!A0",
        "@SUM(A1)",
        "\t=1",
        "\r=1",
        "\n=1",
        " =1",
        "\u00a0=1",
        "\tP1",
        "＝1",
        "'=1",
        "''@x",
        "-",
        "-P1",
        "+1.5 [=1, 2]",
        "-1;=2",
        "+1_000",
        "-inf",
    ],
)
def test_what_could_be_a_formula_is_text(formula: str) -> None:
    assert guard_cell(formula) == f"'{formula}"
    assert unguard_cell(guard_cell(formula)) == formula
    assert format_csv(["a"], [[formula]]) == f'"a"\n"\'{formula}"\n'
    assert format_csv([formula], []) == f'"\'{formula}"\n'


@pytest.mark.parametrize(
    "plain",
    ["-0.5", "+1.2", "-1e-05", "+1.2 [-0.3, +2.7]", "-3.1 (0.2)", "-.5", "P-1", "a=b", "x@y", "'quoted'", "–", "", "'"],
)
def test_numbers_and_plain_text_are_left_alone(plain: str) -> None:
    assert guard_cell(plain) == plain
    assert unguard_cell(plain) == plain
    assert format_csv(["a"], [[plain]]) == f'"a"\n"{plain}"\n'


def test_numbers_are_not_quoted_and_nothing_is_empty() -> None:
    assert format_csv(["a", "b", "c"], [[-1, -0.5, None]]) == '"a","b","c"\n-1,-0.5,""\n'


def test_a_semicolon_does_not_begin_a_cell() -> None:
    """Spreadsheet programs of half of Europe separate cells by semicolons, outside of quotes."""
    (row,) = list(csv.reader(io.StringIO(format_csv(["a"], [["x;=1+1"]])), delimiter=";"))[1:]
    assert row == ["x;=1+1"]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    rows=st.lists(
        st.tuples(*[st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Z", "Cf", "M"]), min_size=1)] * 3),
        min_size=1,
        max_size=4,
    ),
    prefix=st.sampled_from(["", "=", "+", "-", "@", "'", "'=", "''+", "'-1", "'x"]),
)
def test_what_is_written_reads_back(tmp_path: Path, rows: list[tuple[str, str, str]], prefix: str) -> None:
    names = [tuple(unicodedata.normalize("NFC", prefix + cell) for cell in row) for row in rows]
    sheet = read(tmp_path, format_csv(REQUIRED, names))
    assert [tuple(cells.values()) for _, cells in sheet.rows] == names


def test_there_is_one_place_where_text_becomes_csv() -> None:
    """So that no table is forgotten; metrics.csv has rows of numbers and guards its header itself."""
    source = Path(spreadsheet.__file__).parents[1]
    writing = {
        path.name
        for path in source.rglob("*.py")
        if "csv.writer(" in (text := path.read_text()) or "DictWriter" in text
    }
    assert writing == {"spreadsheet.py", "log.py"}


IDS = st.text(st.characters(codec="cp1252", exclude_categories=["Cc", "Zs"]), min_size=1, max_size=12).filter(
    lambda text: unguard_cell(text) == text
)
"""What survives stripping and every encoding; spaces, line ends and apostrophes have tests of their own."""


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    rows=st.lists(st.tuples(IDS, IDS, IDS), min_size=1, max_size=6),
    delimiter=st.sampled_from(",;\t"),
    line_end=st.sampled_from(["\n", "\r\n", "\r"]),
    quoting=st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
    encoding=st.sampled_from(["utf-8", "utf-8-sig", "utf-16"]),
)
def test_any_table_in_any_dialect_comes_back(
    tmp_path: Path,
    rows: list[tuple[str, str, str]],
    delimiter: str,
    line_end: str,
    quoting: int,
    encoding: str,
) -> None:
    text = io.StringIO()
    writer = csv.writer(text, delimiter=delimiter, lineterminator=line_end, quoting=quoting)
    writer.writerows([REQUIRED, *rows])
    sheet = read(tmp_path, text.getvalue().encode(encoding))
    assert [tuple(cells.values()) for _, cells in sheet.rows] == rows
    assert [number for number, _ in sheet.rows] == list(range(2, 2 + len(rows)))

"""An Excel workbook (.xlsx): the rows of its first sheet as people see them.

The XML is read here, cell by cell: merged cells, hidden rows, number formats, errors and formulas without a result must
all be noticed, and a cell in the last row and column must cost no more than any other.
"""

import io
import re
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from posixpath import basename, dirname, join, normpath
from xml.parsers.expat import ExpatError, ParserCreate
from zipfile import BadZipFile, ZipFile

from hidisc.ground.cell_format import show_number, show_text
from hidisc.ground.errors import UserError
from hidisc.ground.text import count

_DAMAGE = (BadZipFile, ExpatError, OSError, KeyError, ValueError, IndexError, EOFError, RuntimeError, zlib.error)
"""What files that are no workbooks raise."""
MAX_BYTES = 400_000_000
"""Of one part of a workbook, unpacked."""
MAX_CELLS = 5_000_000
"""Of the sheet, counted to the last cell of every row; they take up to 1 GB."""
_REFERENCE = re.compile(r"([A-Z]{1,3})([0-9]{1,7})")

Row = tuple[int, list[str]]
"""The row number that a spreadsheet shows, and its cells to the last one that is not empty."""


def read_workbook(path: Path, data: bytes) -> tuple[list[Row], list[str]]:
    """(the rows of the first sheet that is not hidden, warnings); numbers and dates as text, empty rows left out."""
    try:
        with ZipFile(io.BytesIO(data)) as file:
            book = _Book(path, file)
            part, title, others, is_1904 = _find_sheet(book)
            sheet = _Sheet(path, _read_strings(book), _read_formats(book), is_1904)
            book.parse(part, sheet.start, sheet.end, sheet.add)
    except _DAMAGE as error:
        raise UserError(
            f"{path} is no Excel workbook, or damaged ({error}). Save the table as CSV (UTF-8) and give that file."
        ) from error
    sheet.refuse_merged()
    warnings = [f"the first sheet, {title!r}, is read, and {count(others, 'other sheet')} not."] if others else []
    return sorted(sheet.rows.items()), [*warnings, *sheet.find_hidden()]


@dataclass
class _Sheet:
    """A sheet while its XML is read: what is called at the start and at the end of every element, and with its text."""

    path: Path
    strings: list[str]
    formats: list[str]
    is_1904: bool
    rows: dict[int, list[str]] = field(default_factory=dict)
    _merged: list[str] = field(default_factory=list)
    _hidden: set[int] = field(default_factory=set)
    _row: int = 0
    _column: int = 0
    _cells: int = 0
    _cell: Mapping[str, str] = field(default_factory=dict)
    _has_formula: bool = False
    _text: list[str] = field(default_factory=list)
    _is_open: bool = False
    """Whether text that comes is that of the cell."""
    _is_spoken: bool = False
    """Whether it says how a Japanese name is spoken."""

    def start(self, name: str, given: Mapping[str, str]) -> None:
        """Take up a row, a cell, or what stands in one."""
        if name == "row":
            self._row, self._column = int(given.get("r", self._row + 1)), 0
            if given.get("hidden") in ("1", "true"):
                self._hidden.add(self._row)
        elif name == "c":
            place = _locate(given["r"]) if "r" in given else (self._row, self._column + 1)
            (self._row, self._column), self._cell, self._text, self._has_formula = place, given, [], False
        elif name in ("v", "t"):
            self._is_open = not self._is_spoken
        elif name == "rPh":
            self._is_spoken = True
        elif name == "f":
            self._has_formula = True
        elif name == "mergeCell":
            self._merged.append(given["ref"])

    def add(self, text: str) -> None:
        """Take up text."""
        if self._is_open:
            self._text.append(text)

    def end(self, name: str) -> None:
        """Put a cell into its row."""
        if name in ("v", "t"):
            self._is_open = False
        elif name == "rPh":
            self._is_spoken = False
        elif name == "c":
            text = self._read_cell("".join(self._text))
            if text.strip():
                row = self.rows.setdefault(self._row, [])
                self._cells += max(0, self._column - len(row))
                if self._cells > MAX_CELLS:
                    raise UserError(
                        f"{self.path}: the sheet has more than {MAX_CELLS:,} cells up to row {self._row}, and is not "
                        "read. Save the table as CSV (UTF-8), without columns that are not needed, and give that file."
                    )
                row += [""] * (self._column - len(row))
                row[self._column - 1] = text

    def _read_cell(self, text: str) -> str:
        """What a cell shows."""
        kind = self._cell.get("t", "n")
        if self._has_formula and not text and kind != "str":
            raise UserError(
                f"{self.path}: cell {self._name()} is a formula whose result is not in the file. Open the workbook in "
                "a spreadsheet program and save it, or save it as CSV."
            )
        if kind == "e":
            raise UserError(f"{self.path}: cell {self._name()} is the error {text}. Correct it, or empty the cell.")
        if not text:
            return ""
        if kind == "b":
            return str(text == "1" or text == "true")
        if kind == "d":
            return text.replace("T", " ").removesuffix(" 00:00:00")
        code = self.formats[int(self._cell.get("s", 0))] if self.formats else "General"
        try:
            if kind == "n":
                return show_number(text, code, is_1904=self.is_1904)
            return show_text(self.strings[int(text)] if kind == "s" else text, code)
        except ValueError as error:
            raise UserError(f"{self.path}: cell {self._name()} {error}.") from error

    def _name(self) -> str:
        """The name of the cell, such as AB12."""
        letters, rest = "", self._column
        while rest:
            rest, letter = divmod(rest - 1, 26)
            letters = chr(ord("A") + letter) + letters
        return f"{letters}{self._row}"

    def refuse_merged(self) -> None:
        """Refuse merged cells that show something: all but the first of them are empty in the file."""
        shown = []
        for area in self._merged:
            row, column = _locate(area.partition(":")[0])
            if len(self.rows.get(row, [])) >= column and self.rows[row][column - 1]:
                shown.append(area)
        if shown:
            more = f" (and {count(len(shown) - 1, 'more range')})" if len(shown) > 1 else ""
            raise UserError(
                f"{self.path}: cells {shown[0]}{more} are merged, so that only the first of them has a value. Unmerge "
                "them, and fill in every cell."
            )

    def find_hidden(self) -> list[str]:
        """A warning of hidden rows: a filter may hide what was not meant to be read."""
        hidden = sorted(self._hidden & self.rows.keys())
        if not hidden:
            return []
        return [
            f"{count(len(hidden), 'row')} of the sheet (the first is row {hidden[0]}) {_is(hidden)} hidden, perhaps by "
            "a filter, and read all the same. Delete what is not meant."
        ]


def _is(listed: list[int]) -> str:
    return "is" if len(listed) == 1 else "are"


def _locate(cell: str) -> tuple[int, int]:
    """(row, column), counted from 1, of a cell such as AB12."""
    match = _REFERENCE.fullmatch(cell)
    if match is None:
        raise ValueError(f"{cell[:20]!r} is no cell")
    column = 0
    for letter in match[1]:
        column = column * 26 + ord(letter) - ord("A") + 1
    return int(match[2]), column


class _Book:
    """The parts of a workbook, and what they name."""

    def __init__(self, path: Path, file: ZipFile) -> None:
        self._path, self._file = path, file
        self.main = next(part for kind, part, _ in self._relate("") if kind == "officeDocument")
        self.parts = self._relate(self.main)
        """(kind, place, name in the main part) of every part."""

    def find(self, kind: str) -> str | None:
        """The first part of a kind, if there is one."""
        return next((part for each, part, _ in self.parts if each == kind), None)

    def _relate(self, part: str) -> list[tuple[str, str, str]]:
        """The kind, the place and the name of every part that a part names."""
        found = []

        def start(name: str, given: Mapping[str, str]) -> None:
            if name == "Relationship" and given.get("TargetMode") != "External":
                place = normpath(join("/", dirname(part), given["Target"])).lstrip("/")
                found.append((given["Type"].rpartition("/")[2], place, given["Id"]))

        self.parse(join(dirname(part), "_rels", f"{basename(part)}.rels"), start)
        return found

    def parse(
        self,
        part: str,
        start: Callable[[str, Mapping[str, str]], None],
        end: Callable[[str], None] = lambda name: None,
        add: Callable[[str], None] = lambda text: None,
    ) -> None:
        """Call `start` and `end` with the name of every element, without its namespace, and `add` with texts."""
        info = self._file.getinfo(part)
        if info.file_size > MAX_BYTES:
            raise UserError(
                f"{self._path} unpacks to {info.file_size / 1e6:,.0f} MB, and workbooks of up to {MAX_BYTES / 1e6:.0f} "
                "MB are read. Save the table as CSV (UTF-8) and give that file."
            )
        parser = ParserCreate()
        parser.buffer_text = True
        parser.StartElementHandler = lambda name, given: start(name.rpartition(":")[2], given)
        parser.EndElementHandler = lambda name: end(name.rpartition(":")[2])
        parser.CharacterDataHandler = add
        parser.StartDoctypeDeclHandler = _refuse_doctype
        with self._file.open(info) as file:
            parser.ParseFile(file)


def _refuse_doctype(*_: object) -> None:
    raise ValueError("it declares a document type, which no workbook does")


def _find_sheet(book: _Book) -> tuple[str, str, int, bool]:
    """(part of the first sheet that is shown, its title, how many others are shown, whether dates begin in 1904)."""
    parts = {name: part for kind, part, name in book.parts if kind == "worksheet"}
    sheets: list[tuple[str, str]] = []
    is_1904 = False

    def start(name: str, given: Mapping[str, str]) -> None:
        nonlocal is_1904
        if name == "sheet" and given.get("state", "visible") == "visible":
            names = [value for key, value in given.items() if key.endswith(":id")]
            sheets.extend((parts[each], given["name"]) for each in names if each in parts)  # a chart can be a sheet
        elif name == "workbookPr":
            is_1904 = given.get("date1904") in ("1", "true")

    book.parse(book.main, start)
    if not sheets:
        raise ValueError("it shows no sheet")
    return *sheets[0], len(sheets) - 1, is_1904


def _read_strings(book: _Book) -> list[str]:
    """The texts that cells refer to by number."""
    strings: list[str] = []
    text: list[str] = []
    is_open = is_spoken = False

    def start(name: str, given: Mapping[str, str]) -> None:
        nonlocal is_open, is_spoken
        is_spoken = name == "rPh" or (is_spoken and name != "si")
        is_open = name == "t" and not is_spoken

    def end(name: str) -> None:
        nonlocal is_open, is_spoken
        is_open, is_spoken = False, is_spoken and name != "rPh"
        if name == "si":
            strings.append("".join(text))
            text.clear()

    def add(part: str) -> None:
        if is_open:
            text.append(part)

    strings_part = book.find("sharedStrings")
    if strings_part is not None:
        book.parse(strings_part, start, end, add)
    return strings


def _read_formats(book: _Book) -> list[str]:
    """The number format of every style."""
    from openpyxl.styles.numbers import BUILTIN_FORMATS

    codes: dict[int, str] = dict(BUILTIN_FORMATS)
    styles: list[int] = []
    is_of_cells = False

    def start(name: str, given: Mapping[str, str]) -> None:
        nonlocal is_of_cells
        is_of_cells = name == "cellXfs" or (is_of_cells and name != "cellStyles")
        if name == "numFmt" and not styles:  # behind the styles there are formats of other things
            codes[int(given["numFmtId"])] = given["formatCode"]
        elif name == "xf" and is_of_cells:
            styles.append(int(given.get("numFmtId", 0)))

    styles_part = book.find("styles")
    if styles_part is not None:
        book.parse(styles_part, start)
    return [codes.get(style, "General") for style in styles]

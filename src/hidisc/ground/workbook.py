"""An Excel workbook (.xlsx): the rows of its first sheet as people see them.

The XML is read here, cell by cell: merged cells, hidden rows, number formats, errors and formulas without a result must
all be noticed, and a cell in the last row and column must cost no more than any other.
"""

import io
import re
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from posixpath import basename, dirname, join, normpath
from xml.etree.ElementTree import Element, TreeBuilder
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
_BLOCK = 2**16
_WHOLE = ("si", "r", "c", "is")
"""Elements that are kept with what stands in them. How a Japanese name is spoken (`rPh`) is none of them."""
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
            sheet.read(book.find_all(part, "row", "c", "mergeCell"))
    except _DAMAGE as error:
        raise UserError(
            f"{path} is no Excel workbook, or damaged ({error}). Save the table as CSV (UTF-8) and give that file."
        ) from error
    sheet.refuse_merged()
    warnings = [f"the first sheet, {title!r}, is read, and {count(others, 'other sheet')} not."] if others else []
    return sorted(sheet.rows.items()), [*warnings, *sheet.find_hidden()]


@dataclass
class _Sheet:
    """A sheet, and what its cells refer to."""

    path: Path
    strings: list[str]
    formats: list[str]
    is_1904: bool
    rows: dict[int, list[str]] = field(default_factory=dict)
    _merged: list[str] = field(default_factory=list)
    _hidden: set[int] = field(default_factory=set)

    def read(self, elements: Iterable[tuple[Element, Element]]) -> None:
        """Take up the cells, each before its row, and which rows and cells are hidden or merged."""
        last = column = cells = 0
        for element, parent in elements:
            if element.tag == "mergeCell":
                self._merged.append(element.attrib["ref"])
            elif parent.tag != {"c": "row", "row": "sheetData"}[element.tag]:
                raise ValueError("a row or a cell stands in another")
            elif element.tag == "row":
                last, column = int(element.get("r", last + 1)), 0
                if element.get("hidden") in ("1", "true"):
                    self._hidden.add(last)
            else:
                place = element.get("r")
                number, column = (int(parent.get("r", last + 1)), column + 1) if place is None else _locate(place)
                text = self._show(element, number, column)
                if text.strip():
                    row = self.rows.setdefault(number, [])
                    cells += max(0, column - len(row))
                    if cells > MAX_CELLS:
                        raise UserError(
                            f"{self.path}: the sheet has more than {MAX_CELLS:,} cells up to row {number}, and is not "
                            "read. Save the table as CSV (UTF-8), without columns that are not needed, and give that "
                            "file."
                        )
                    row += [""] * (column - len(row))
                    row[column - 1] = text

    def _show(self, cell: Element, row: int, column: int) -> str:
        kind, text = cell.get("t", "n"), _read_text(cell)
        where = f"{self.path}: cell {_name(row, column)}"
        if cell.find("f") is not None and not text and kind != "str":
            raise UserError(
                f"{where} is a formula whose result is not in the file. Open the workbook in a spreadsheet program and "
                "save it, or save it as CSV."
            )
        if kind == "e":
            raise UserError(f"{where} is the error {text}. Correct it, or empty the cell.")
        if not text:
            return ""
        if kind == "b":
            return str(text in ("1", "true"))
        if kind == "d":
            return text.replace("T", " ").removesuffix(" 00:00:00")
        code = self.formats[int(cell.get("s", 0))] if self.formats else "General"
        try:
            if kind == "n":
                return show_number(text, code, is_1904=self.is_1904)
            return show_text(self.strings[int(text)] if kind == "s" else text, code)
        except ValueError as error:
            raise UserError(f"{where} {error}.") from error

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
        are = "is" if len(hidden) == 1 else "are"
        return [
            f"{count(len(hidden), 'row')} of the sheet (the first is row {hidden[0]}) {are} hidden, perhaps by a "
            "filter, and read all the same. Delete what is not meant."
        ]


def _locate(cell: str) -> tuple[int, int]:
    """(row, column), counted from 1, of a cell such as AB12."""
    match = _REFERENCE.fullmatch(cell)
    if match is None:
        raise ValueError(f"{cell[:20]!r} is no cell")
    column = 0
    for letter in match[1]:
        column = column * 26 + ord(letter) - ord("A") + 1
    return int(match[2]), column


def _name(row: int, column: int) -> str:
    """The name of a cell, such as AB12."""
    letters = ""
    while column:
        column, letter = divmod(column - 1, 26)
        letters = chr(ord("A") + letter) + letters
    return f"{letters}{row}"


def _read_text(element: Element) -> str:
    """The text of a cell, or of one of the texts that cells refer to."""
    return "".join(part.text or "" for part in element.iter() if part.tag in ("v", "t"))


class _Book:
    """The parts of a workbook, and what they name."""

    def __init__(self, path: Path, file: ZipFile) -> None:
        self._path, self._file = path, file
        self.main = next(part for kind, part, _ in self._relate("") if kind == "officeDocument")
        self.parts = self._relate(self.main)
        """(kind, place, name in the main part) of every part."""

    def _relate(self, part: str) -> list[tuple[str, str, str]]:
        """The kind, the place and the name of every part that a part names."""
        found = []
        for element, _ in self.find_all(join(dirname(part), "_rels", f"{basename(part)}.rels"), "Relationship"):
            if element.get("TargetMode") != "External":
                place = normpath(join("/", dirname(part), element.attrib["Target"])).lstrip("/")
                found.append((element.attrib["Type"].rpartition("/")[2], place, element.attrib["Id"]))
        return found

    def find_kind(self, kind: str, *names: str) -> Iterator[tuple[Element, Element]]:
        """`find_all` of the first part of a kind; nothing where there is no such part."""
        part = next((part for each, part, _ in self.parts if each == kind), None)
        return iter(()) if part is None else self.find_all(part, *names)

    def find_all(self, part: str, *names: str) -> Iterator[tuple[Element, Element]]:
        """The elements with some names when they end, without namespaces, each with the one that it stands in."""
        info = self._file.getinfo(part)
        if info.file_size > MAX_BYTES:
            raise UserError(
                f"{self._path} unpacks to {info.file_size / 1e6:,.0f} MB, and workbooks of up to {MAX_BYTES / 1e6:.0f} "
                "MB are read. Save the table as CSV (UTF-8) and give that file."
            )
        tree, ended = TreeBuilder(), list[tuple[Element, Element]]()
        opened = [Element("")]

        def start(name: str, given: dict[str, str]) -> None:
            opened.append(tree.start(name.rpartition(":")[2], given))

        def end(name: str) -> None:
            element, parent = tree.end(name.rpartition(":")[2]), opened[-2]
            del opened[-1]
            if element.tag in names:
                ended.append((element, parent))
            if parent.tag not in _WHOLE and len(parent):
                del parent[-1]  # it need not be kept

        parser = ParserCreate()
        parser.buffer_text = True
        parser.StartElementHandler, parser.EndElementHandler = start, end
        parser.CharacterDataHandler, parser.StartDoctypeDeclHandler = tree.data, _refuse_doctype
        with self._file.open(info) as file:
            while block := file.read(_BLOCK):
                parser.Parse(block)
                yield from ended
                ended.clear()
            parser.Parse(b"", True)


def _refuse_doctype(*_: object) -> None:
    raise ValueError("it declares a document type, which no workbook does")


def _find_sheet(book: _Book) -> tuple[str, str, int, bool]:
    """(part of the first sheet that is shown, its title, how many others are shown, whether dates begin in 1904)."""
    parts = {name: part for kind, part, name in book.parts if kind == "worksheet"}
    sheets: list[tuple[str, str]] = []
    is_1904 = False
    for element, _ in book.find_all(book.main, "sheet", "workbookPr"):
        if element.tag == "workbookPr":
            is_1904 = element.get("date1904") in ("1", "true")
        elif element.get("state", "visible") == "visible":
            names = [value for key, value in element.items() if key.endswith(":id")]
            sheets += [(parts[name], element.attrib["name"]) for name in names if name in parts]  # it can be a chart
    if not sheets:
        raise ValueError("it shows no sheet")
    return *sheets[0], len(sheets) - 1, is_1904


def _read_strings(book: _Book) -> list[str]:
    """The texts that cells refer to by number."""
    return [_read_text(element) for element, _ in book.find_kind("sharedStrings", "si")]


def _read_formats(book: _Book) -> list[str]:
    """The number format of every style."""
    from openpyxl.styles.numbers import BUILTIN_FORMATS

    codes: dict[int, str] = dict(BUILTIN_FORMATS)
    styles: list[int] = []
    for element, parent in book.find_kind("styles", "numFmt", "xf"):
        if element.tag == "numFmt" and parent.tag == "numFmts":  # other things have formats as well
            codes[int(element.attrib["numFmtId"])] = element.attrib["formatCode"]
        elif parent.tag == "cellXfs":
            styles.append(int(element.get("numFmtId", 0)))
    return [codes.get(style, "General") for style in styles]

"""Tables as people make them and worse: `cohort.csv`, the table of `import table`, the patients of `import folder`.

Half of them are well formed but odd (cells, columns, encodings, delimiters): whoever reads one must account for all of
its rows. The others are damaged as bytes: what is read of them must not contradict itself.
"""

import csv
import io
import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fuzz.harness import INPUT, Judge, Kind, Outcome, Wrong, judge
from fuzz.mutations import Rng, mutate
from hidisc.patches.folders import find_folder, find_table
from hidisc.patches.pack import Source
from hidisc.slides.cohort import Cohort

PATIENTS, SLIDES = 5, 2
FILES = [f"s{number}.png" for number in range(PATIENTS * SLIDES)]
ODD_FILES = ("Größe 1.png", "a'b.png", "=1+1.png", "x;y,z.png")
COLUMNS = ("patient", "slide", "path", "label", "mpp", "site", "split", "note")
CELLS = (
    "", " ", "0", "-1", "nan", "inf", "1e999", "0,25", "1_0", "٣", "NA", "None", "true",
    "=1+1", "@SUM(A1)", "+cmd|' /C calc'!A0", "-2+3", "\t=1", "'=1",
    "a\nb", "a\r\nb", '"', '""', 'a"b', ",", ";", "\t", "a,b;c", "\\", "%s", "{0}", "${x}", "<b>&amp;</b>",
    "\x07", "\x1b[31mred", "\x7f", "\x85", "\u2028", "\u202egnp.exe", "\u200b", "\u200f", "\ufeffP1", "\u00a0P1\u00a0",
    "P1\u200b", "Ｐ１", "p1", "P 1", "P\u00a01", "ﬁ", "e\u0301", "é", "😀", "\U0010ffff", "𝔓1", "ß", "İ",
    "x" * 300, "x" * 900, "x" * 5000, "x" * 100_000, "\u202e" * 4900, "=" * 4900, "é" * 140_000,
    "../../etc/passwd", "/etc/passwd", "/dev/zero", "/dev/stdin", ".", "..", "~", "C:\\slides\\s0.png", "file:///s0.png",
    "slides", "empty.png", "slides/" + "a" * 300 + ".png", "/".join(["a"] * 3000), "slides\\s0.png", "slides/./s0.png",
    "slides//s1.png", "SLIDES/S0.PNG", "slides/link.png", "slides/circle.png", "CON", "a:b", "*?", "s0.png ",
)  # fmt: skip
ENCODINGS = (*["utf-8"] * 12, "utf-8-sig", "utf-16", "cp1252", "utf-16-le", "utf-32", "mac_roman", "cp437")
DELIMITERS = (*[","] * 8, ";", ";", "\t", "|", ":")
ENDS = ("\n", "\n", "\r\n", "\r")

Table = list[list[str]]


@dataclass(frozen=True)
class _Written:
    """A table as a file, and the rows that whoever reads it must account for; None: it is damaged."""

    path: Path
    rows: list[dict[str, str]] | None


class Tables(Kind):
    """Tables of slides, of patches and of patients."""

    name, limit_s, memory_bytes = "tables", 20, 2**31

    def __init__(self) -> None:
        """The readers of tables take turns."""
        self.groups = tuple(READERS)

    def prepare(self, home: Path) -> None:
        """The files that the tables name, all of different content."""
        (home / "slides").mkdir()
        for number, name in enumerate((*FILES, *ODD_FILES)):
            (home / "slides" / name).write_bytes(b"pixels" * (number + 1))
        (home / "empty.png").touch()
        (home / "slides" / "link.png").symlink_to("s0.png")
        (home / "slides" / "circle.png").symlink_to("circle.png")
        for patient in range(PATIENTS):
            folder = home / "folder" / f"P{patient}" / "S"
            folder.mkdir(parents=True)
            (folder / "1.png").write_bytes(b"a patch")

    def open(self, home: Path, folder: Path) -> Judge:
        """The tables lie in a folder of their own and name files by way of a link."""
        for name in ("slides", "folder", "empty.png"):
            (folder / name).symlink_to(home / name)

        def say(rng: Rng, index: int) -> Outcome:
            reader = READERS[self.group_of(index)]
            written = write(folder, folder / INPUT, rng, of_patients=reader is read_patients)
            return judge(lambda: reader(written, folder))

        return say


# Making


def write(folder: Path, kept: Path, rng: Rng, *, of_patients: bool = False) -> _Written:
    """Write a table of slides or `of_patients`, changed; a copy is kept."""
    table = [list(COLUMNS), *_base_rows(rng)]
    if of_patients:  # one row each, and no columns of slides
        table = [[row[0], row[3], *row[5:]] for row in table[:1] + table[1::SLIDES]]
    for _ in range(int(rng.choice([0, 1, 1, 2, 4]))):
        _change(table, rng)
    encoding, delimiter, end = _pick(ENCODINGS, rng), _pick(DELIMITERS, rng), _pick(ENDS, rng)
    table = [[_encodable(cell, encoding) for cell in row] for row in table]
    data = _serialise(table, delimiter, end, rng).encode(encoding)
    damaged = rng.random() < 0.5
    if damaged:
        data, _ = mutate(data, rng, most=2)
    path = folder / "table.csv"
    path.write_bytes(data)
    (kept / path.name).write_bytes(data)
    # nothing in a file tells these two from cp1252: their letters are read as others
    is_known = not damaged and encoding not in ("mac_roman", "cp437")
    return _Written(path, _rows_of(table) if is_known else None)


def _base_rows(rng: Rng) -> Table:
    """A correct table: one row per slide."""
    rows = []
    for patient in range(PATIENTS):
        for slide in range(SLIDES):
            name = FILES[patient * SLIDES + slide]
            label, split = "ab"[patient % 2], "train" if patient < 3 else "test"
            rows.append([f"P{patient}", f"S{patient}-{slide}", f"slides/{name}", label, "0.5", "here", split, "fine"])
    if rng.random() < 0.2:
        rows[-1][2] = f"slides/{_pick(ODD_FILES, rng)}"
    if rng.random() < 0.2:
        for row in rows:
            row[6] = ""
    return rows


def _change(table: Table, rng: Rng) -> None:
    """One change of a table that a person could make."""
    row = int(rng.integers(len(table)))
    cells = table[row]
    cell = int(rng.integers(len(cells))) if cells else 0
    change = int(rng.integers(13))
    if change == 12:
        cells += [f"column {number}" for number in range(int(rng.integers(60_000)))]
    elif change <= 4 and cells:
        cells[cell] = _pick(CELLS, rng)
    elif change == 5 and cells:
        cells[cell] = _twin(cells[cell], rng)
    elif change == 6:
        table.insert(row, list(table[int(rng.integers(len(table)))]))
    elif change == 7 and len(table) > 1:
        del table[row]
    elif change == 8:
        table.insert(row, [""] * int(rng.integers(10)))
    elif change == 9:
        cells += [""] * int(rng.integers(3)) + ["more"] * int(rng.integers(2))
    elif change == 10:
        del cells[cell:]
    else:
        _change_column(table, rng)


def _change_column(table: Table, rng: Rng) -> None:
    column = int(rng.integers(len(COLUMNS)))
    change = int(rng.integers(5))
    for number, row in enumerate(table):
        if column >= len(row):
            continue
        if change == 0:
            del row[column]
        elif change == 1:
            row.append(row[column])
        elif change == 2:
            row.insert(0, row.pop(column))
        elif change == 3 and number == 0:
            row[column] = _pick(("", "Patient ", "PATH", "shard", "name", "x", *CELLS), rng)
        elif change == 4 and number > 0:
            row[column] = ""


def _twin(text: str, rng: Rng) -> str:
    """The same name to a person."""
    twins = (str.upper, str.lower, str.title, lambda t: f" {t}", lambda t: f"{t}\u00a0", lambda t: f"{t}\u200b",
             lambda t: unicodedata.normalize("NFD", t), lambda t: "".join(chr(ord(c) + 0xFEE0) if "!" <= c <= "~" else c for c in t))  # fmt: skip # noqa: E501
    return twins[int(rng.integers(len(twins)))](text)


def _serialise(table: Table, delimiter: str, end: str, rng: Rng) -> str:
    text = io.StringIO()
    quoting = csv.QUOTE_ALL if rng.random() < 0.3 else csv.QUOTE_MINIMAL
    writer = csv.writer(text, delimiter=delimiter, lineterminator=end, quoting=quoting)
    for row in table:
        # Python 3.11 leaves a lone CR unquoted
        writer.writerow(row) if not any("\r" in cell for cell in row) else text.write(_quote(row, delimiter) + end)
    hint = _pick((delimiter, delimiter, "", '"', " ", "a"), rng)
    return (f"sep={hint}{end}" if rng.random() < 0.1 else "") + text.getvalue()


def _quote(row: Sequence[str], delimiter: str) -> str:
    return delimiter.join('"' + cell.replace('"', '""') + '"' for cell in row)


def _encodable(text: str, encoding: str) -> str:
    return text.encode(encoding, "replace").decode(encoding) if encoding != "utf-16" else text


def _pick(items: Sequence[str], rng: Rng) -> str:
    return items[int(rng.integers(len(items)))]


def _rows_of(table: Table) -> list[dict[str, str]]:
    """The rows of a table that hold anything, as `{column: cell}`, in order."""
    header = next(number for number, row in enumerate([*table, ["-"]]) if row)  # empty lines above it are none
    names = [_clean(cell).lower() for cell in table[header]] if header < len(table) else []
    rows = ([_clean(cell) for cell in row] for row in table[header + 1 :])
    return [dict(zip(names, row, strict=False)) for row in rows if any(row)]


def _clean(cell: str) -> str:
    """A cell as it is meant."""
    cell = cell.replace("\r\n", "\n").replace("\r", "\n").strip().strip("\ufeff\u200b").strip()
    return unicodedata.normalize("NFC", cell)


# Judging


def read_cohort(written: _Written, _: Path) -> None:
    """A cohort that is read has every row once, and no patient contradicts another row of theirs."""
    cohort = Cohort.load(written.path)
    slides = cohort.slides
    _expect_rows(written, [(row.patient, row.slide) for row in slides], cohort.warnings)
    _expect_one("patient", "split", [(row.patient, row.split) for row in slides])
    _expect_one("patient", "label", [(row.patient, row.label) for row in slides])
    _expect_one("slide", "patient", [(row.slide, row.patient) for row in slides])
    if len({row.slide for row in slides}) < len(slides):
        raise Wrong("a slide is there twice")
    for row in slides:
        if not row.path.is_file() or not row.path.stat().st_size:
            raise Wrong(f"slide {row.slide!r} has no file {str(row.path)!r}")
        if row.mpp is not None and not 0.01 <= row.mpp <= 20:
            raise Wrong(f"slide {row.slide!r} has a scale of {row.mpp}")
    if len({row.split is None for row in slides}) > 1:
        raise Wrong("some slides are in no split")


def read_table(written: _Written, _: Path) -> None:
    """A table of patches that is read has every row once."""
    source = find_table(written.path)
    found = [(slide.patient, slide.slide) for slide, paths in source.slides for _ in paths]
    rows = (
        None if written.rows is None else [(row["patient"], f"{row['patient']}/{row['slide']}") for row in written.rows]
    )
    if rows is not None and sorted(tuple(map(_bare, row)) for row in rows) != sorted(
        tuple(map(_bare, row)) for row in found
    ):
        raise Wrong(f"{len(rows)} rows became {len(found)} patches, or others")
    if rows is None:
        _expect_lines(written.path, len(found), source.warnings)
    paths = [path for _, paths in source.slides for path in paths]
    if len(set(paths)) < len(paths) or not all(path.is_file() for path in paths):
        raise Wrong("a patch is there twice, or is no file")
    _expect_consistent(source)


def read_patients(written: _Written, folder: Path) -> None:
    """Patches in folders have what the table of patients says of them."""
    source = find_folder(folder / "folder", written.path)
    if len(source.slides) != PATIENTS:
        raise Wrong(f"{PATIENTS} patients in folders became {len(source.slides)}")
    _expect_consistent(source)
    said = {row["patient"]: row for row in written.rows or ()}
    for slide, _ in source.slides:
        row = said.get(slide.patient, {})
        expected = [row.get(name) or None for name in ("label", "site", "split")]
        if written.rows is not None and [slide.label, slide.site, slide.split] != expected:
            raise Wrong(f"patient {slide.patient!r} is {[slide.label, slide.site, slide.split]}, not {expected}")


READERS: dict[str, Callable[[_Written, Path], None]] = {
    "cohort.csv": read_cohort,
    "import table": read_table,
    "import folder --patients": read_patients,
}


def _expect_consistent(source: Source) -> None:
    _expect_one("slide", "patient", [(slide.slide, slide.patient) for slide, _ in source.slides])
    _expect_one("patient", "split", [(slide.patient, slide.split) for slide, _ in source.slides])
    _expect_one("patient", "label", [(slide.patient, slide.label) for slide, _ in source.slides])


def _expect_one(unit: str, fact: str, pairs: Sequence[tuple[str, str | None]]) -> None:
    """Every unit has one value of a fact."""
    first: dict[str, str | None] = {}
    for name, value in pairs:
        if first.setdefault(name, value) != value:
            raise Wrong(f"{unit} {name!r} has {fact} {first[name]!r} and {value!r}")


def _expect_rows(written: _Written, found: Sequence[tuple[str, str]], warnings: Sequence[str]) -> None:
    """The rows of a well-formed table, in order; of a damaged one, as many as it has lines."""
    if written.rows is None:
        _expect_lines(written.path, len(found), warnings)
        return
    expected = [(row.get("patient", ""), row.get("slide", "")) for row in written.rows]
    if [tuple(map(_bare, names)) for names in found] != [tuple(map(_bare, names)) for names in expected]:
        raise Wrong(f"{len(expected)} rows were written and {len(found)} read, or others: {expected} {list(found)}")


def _bare(name: str) -> str:
    """A name without the apostrophes that make text of a formula, which may be left on or taken off."""
    return "/".join(part.lstrip("'").strip() for part in name.split("/"))


_BLANK = "\ufeff\u200b,;\t\" '\u00a0"


def _expect_lines(path: Path, found: int, warnings: Sequence[str]) -> None:
    """A damaged table that is read has a row for every line with as many cells as the header.

    A note may have several lines; if one of them looks like a row, there is a warning.
    """
    data = path.read_bytes()
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        text = data.decode("utf-16")
    else:
        try:
            text = data.decode("utf-8-sig")
        except UnicodeDecodeError:
            text = data.decode("cp1252")
    lines = [line for line in re.split(r"\r\n|\r|\n", text) if line.strip(_BLANK)]
    if lines and lines[0].lower().startswith("sep="):
        del lines[0]
    delimiter = max(",;\t", key=lines[0].count)
    rows = sum(line.count(delimiter) >= lines[0].count(delimiter) for line in lines[1:])
    if found < rows and not any("several lines" in warning for warning in warnings):
        raise Wrong(f"{rows} lines became {found} rows")

"""A folder of slides -> a draft of `cohort.csv`: what the names and the files say, and what is doubtful about it."""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from unicodedata import normalize

from hidisc.ground.errors import UserError
from hidisc.ground.files import relate
from hidisc.ground.progress import Result
from hidisc.ground.spreadsheet import format_csv
from hidisc.ground.tasks import prefetch
from hidisc.ground.text import count, name_some
from hidisc.slides.names import FOR_PEOPLE, OPTIONAL, REQUIRED, WRITTEN, fold_patient, is_text
from hidisc.slides.reader import list_suffixes, open_slide
from hidisc.slides.slide import SlideError

NO_PATIENT = "the name does not say whose slide it is: fill in patient, or draft again with --pattern"
NO_FIT = "the name does not fit the pattern: fill in patient, or draft again with another --pattern"
NO_SCALE = "the file does not say its scale: fill in mpp, or give `hidisc prepare` --assume-mpp"
SAME_NAME = "another file has the same name: it may be the same slide"
TCGA = re.compile(r"(TCGA-([A-Z0-9]{2})-[A-Z0-9]{4})(?![A-Z0-9])", re.IGNORECASE)
"""A barcode: project, tissue source site and participant name the patient."""


@dataclass
class DraftRow:
    """One slide file as the draft lists it."""

    path: Path
    names: dict[str, str]
    """What its name says, by column: patient, slide, and whatever the pattern names."""
    doubts: list[str] = field(default_factory=list)
    mpp: float | None = None
    width: int = 0
    height: int = 0
    reader: str = ""


@dataclass(frozen=True)
class Draft:
    """The rows of a draft, and files that are not in it with the reasons."""

    rows: tuple[DraftRow, ...]
    left_out: tuple[str, ...]
    columns: tuple[str, ...]

    @property
    def patients(self) -> int:
        """How many patients are named."""
        return len({row.names["patient"] for row in self.rows if row.names.get("patient")})

    def count_doubts(self) -> dict[str, int]:
        """Every doubt, and how many slides it is about."""
        return dict(Counter(doubt for row in self.rows for doubt in row.doubts))

    def result(self, path: Path) -> Result:
        """How many slides of how many patients the draft at `path` has, and how many rows are to be checked."""
        doubtful = sum(bool(row.doubts) for row in self.rows)
        unknown = sum(not row.names.get("patient") for row in self.rows)
        more = f" ({count(unknown, 'slide')} without one)" if unknown else ""
        more += f", {count(doubtful, 'row')} to check (column `doubt`)" if doubtful else ""
        sentence = f"{path}: {count(len(self.rows), 'slide')} of {count(self.patients, 'patient')}{more}"
        record = {"cohort": str(path), "slides": len(self.rows), "patients": self.patients, "doubtful": doubtful}
        return Result(sentence, {**record, "doubts": self.count_doubts(), "left_out": list(self.left_out)})

    def to_csv(self, folder: Path) -> str:
        """The draft as a CSV that is to lie in `folder`."""
        return format_csv(self.columns, [self._cells(row, folder) for row in self.rows])

    def _cells(self, row: DraftRow, folder: Path) -> list[str | float | None]:
        known: dict[str, str | float | None] = {**row.names, "path": relate(row.path, folder)}
        about_file = (row.mpp, f"{row.width} x {row.height}", row.reader, "; ".join(row.doubts))
        known |= dict(zip(FOR_PEOPLE, about_file, strict=True))
        return [known.get(column) for column in self.columns]


class NamePattern:
    """How names are built, such as `{patient}_{slide}` or, with folders, `{patient}/{slide}`; `*` is anything."""

    def __init__(self, text: str) -> None:
        literals, self.fields = re.split(r"\{[a-z_][a-z0-9_]*\}", text), re.findall(r"\{([a-z_][a-z0-9_]*)\}", text)
        self._parts = text.count("/") + 1
        self._refuse(text, literals)
        # read with every field as short and as long as possible: where the two differ, the name can be read in two ways
        self._readings = [re.compile("".join(self._translate(literals, any_name))) for any_name in ("[^/]+?", "[^/]+")]

    def _refuse(self, text: str, literals: Sequence[str]) -> None:
        """Raise for a pattern that cannot be meant."""
        wrong = ""
        taken = [name for name in self.fields if name in (*WRITTEN, *FOR_PEOPLE, "path")]
        if any("{" in literal or "}" in literal for literal in literals):
            wrong = "has braces that name no column (small letters, digits and _)"
        elif "patient" not in self.fields:
            wrong = "does not say where the name of the patient is"
        elif taken:
            wrong = f"has {{{taken[0]}}}, a column that hidisc writes itself"
        elif len(set(self.fields)) < len(self.fields):
            wrong = "has a column twice"
        elif "" in literals[1:-1]:
            wrong = "has two columns with nothing between them"
        if wrong:
            raise UserError(
                f"--pattern {text!r} {wrong}. Write column names in braces and what stands between them, such as "
                "'{patient}_{slide}' for names of files, or '{patient}/{slide}' for folders of patients."
            )

    def _translate(self, literals: Sequence[str], any_name: str) -> Iterator[str]:
        for literal, name in zip(literals, [*self.fields, ""], strict=True):
            yield "[^/]*".join(map(re.escape, literal.split("*")))
            if name:
                yield f"(?P<{name}>{any_name})"

    def read(self, path: PurePath) -> tuple[dict[str, str], list[str]]:
        """What a path (relative, without suffix) says, and the doubts; nothing where it does not fit in one way."""
        tail = "/".join(path.parts[-self._parts :])
        short, long = (reading.fullmatch(tail) for reading in self._readings)
        if short is None or long is None:
            return {}, [NO_FIT]
        if short.groupdict() != long.groupdict():
            one, other = (", ".join(map(repr, match.groupdict().values())) for match in (short, long))
            return {}, [f"the pattern fits the name in two ways ({one} or {other}): fill in patient"]
        return short.groupdict(), []


def draft_rows(root: Path, pattern: NamePattern | None, done: Callable[[int], None] = lambda _: None) -> Draft:
    """List the slides below a folder; `done` is called with the number of files looked at since the last call."""
    files, left_out = _find_files(root)
    rows: list[DraftRow] = []
    for path, found in zip(files, prefetch(_read_file, files, None, 16), strict=True):
        if isinstance(found, DraftRow):
            rows.append(found)
        else:
            left_out.append(f"{path.relative_to(root)}: {found}")
        done(1)
    rows = _join_dicom(rows)
    for row in rows:
        row.names, doubts = _read_names(_name_path(row.path, root), pattern)
        row.doubts += doubts if row.mpp or row.names.get("mpp") else [*doubts, NO_SCALE]
    _name_slides(rows, root)
    _mark_twins(rows)
    own = [name for name in (pattern.fields if pattern else ()) if name not in REQUIRED + OPTIONAL]
    return Draft(tuple(rows), tuple(left_out), (*REQUIRED, *OPTIONAL, *own, *FOR_PEOPLE))


def _find_files(root: Path) -> tuple[list[Path], list[str]]:
    """The files that may be slides, in order, and why others are not looked at."""
    files, left_out = [], []
    others: Counter[str] = Counter()
    for path in sorted(root.rglob("*")):
        parts = path.relative_to(root).parts
        # the folder beside an MRXS file holds its pixels
        is_pixels = len(parts) > 1 and path.parent.with_name(f"{path.parent.name}.mrxs").is_file()
        if is_pixels or any(part.startswith(".") for part in parts):
            continue
        if path.is_dir():
            if path.is_symlink():
                left_out.append(f"{path.relative_to(root)}: a link to a folder, which is not entered")
        elif path.suffix.lower() in list_suffixes():
            files.append(path)
        else:
            others[path.suffix.lower() or path.name] += 1
    if others:
        left_out.append(f"{count(sum(others.values()), 'file')} that cannot be slides ({name_some(others)})")
    return files, left_out


def _read_file(path: Path) -> DraftRow | str:
    """A slide's size, scale and reader; or why it is no slide."""
    if not is_text(str(path)):
        return "letters that are not UTF-8 are in its name; rename it"
    try:
        with open_slide(path) as slide:
            return DraftRow(path, {}, [], slide.mpp, slide.width, slide.height, slide.reader)
    except SlideError as error:
        return str(error).removeprefix(f"{path} ")


def _join_dicom(rows: Iterable[DraftRow]) -> list[DraftRow]:
    """One row for the DICOM files of a folder: each level of a slide is a file, and any of them opens all."""
    joined: list[DraftRow] = []
    files: dict[Path, list[DraftRow]] = defaultdict(list)
    for row in rows:
        is_dicom = row.path.suffix.lower() == ".dcm"
        if not is_dicom or not files[row.path.parent]:
            joined.append(row)
        if is_dicom:
            files[row.path.parent].append(row)
    for first, *others in files.values():
        if others:
            first.doubts.append(f"{len(others) + 1} DICOM files of one folder are treated as one slide")
    return joined


def _read_names(path: PurePath, pattern: NamePattern | None) -> tuple[dict[str, str], list[str]]:
    """What the name of a slide and its folders say by a pattern, or as a TCGA barcode; and the doubts."""
    if pattern is not None:
        return pattern.read(path)
    if barcode := TCGA.match(path.name):
        return {"patient": barcode[1].upper(), "site": barcode[2].upper()}, []
    return {}, [NO_PATIENT]


def _name_path(path: Path, root: Path) -> PurePath:
    """What names a slide, relative to the root: its file without suffixes; of DICOM, a file per level, the folder."""
    if path.suffix.lower() == ".dcm" and path.parent != root:
        named: PurePath = path.parent
    else:
        named = path.with_name(path.stem[:-4] if path.stem.lower().endswith(".ome") else path.stem)
    return PurePath(normalize("NFC", str(named.relative_to(root))))


def _name_slides(rows: Sequence[DraftRow], root: Path) -> None:
    """Give every slide a name that no other has: what the pattern says, else the name of the file, else its path."""
    bare = [_name_path(row.path, root).name for row in rows]
    times = Counter(bare)
    for row, name in zip(rows, bare, strict=True):
        if times[name] > 1:
            row.doubts.append(SAME_NAME)
    paths = [normalize("NFC", row.path.relative_to(root).as_posix()) for row in rows]
    said = [row.names.get("slide", "") for row in rows]
    names = next(names for names in (said, bare, paths) if len(set(names) - {""}) == len(rows) or names is paths)
    for row, name in zip(rows, names, strict=True):
        row.names["slide"] = name


def _mark_twins(rows: Iterable[DraftRow]) -> None:
    """Mark the slides of patients whose names are nearly the same: case, spaces, hyphens and underscores."""
    spellings: dict[str, dict[str, None]] = defaultdict(dict)
    named = [row for row in rows if row.names.get("patient")]
    for row in named:
        spellings[fold_patient(row.names["patient"])][row.names["patient"]] = None
    for row in named:
        known = spellings[fold_patient(row.names["patient"])]
        if len(known) > 1:
            row.doubts.append(f"patients {' and '.join(map(repr, known))} may be one: write them alike")

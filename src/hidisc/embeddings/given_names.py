"""Names that people gave to patches, how they gave them, and from which encoder's embeddings.

A set of names is the file `labels/NAME.parquet` beside the embeddings. A row names a patch by the checksum of its
slide's file, its number in the slide, and its place and scale. So names stay with their patches when slides are added
to the store or another encoder embeds them, and are refused where a slide was cut in another way. The set is a column
of the embeddings like those of the cohort, called `NAME`, or `given:NAME` where the cohort has such a column too.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hidisc.ground.columns import Columns, load_columns, save_columns
from hidisc.ground.errors import UserError
from hidisc.ground.files import hash_file
from hidisc.ground.text import name_some
from hidisc.patches.record import SlideId
from hidisc.patches.table import PatchTable
from hidisc.slides.names import address_given, find_given, is_taken

LABELS = "labels"
"""The folder of the sets, beside the folder of the patches that are named."""
HOW_GIVEN = {
    "map": "to an outline on the map of the embeddings",
    "similarity": "to a list of patches that the embeddings chose",
    "painted": "to a region of a slide that was painted by what the embeddings say",
    "slide": "to a region of a slide",
    "patch": "to one patch that was looked at",
    "imported": "by regions that were drawn elsewhere",
}
"""How names can be given, in words."""
FROM_VECTORS = ("map", "similarity", "painted")
"""Of these, those that follow the embeddings, so that they cannot judge them."""
_PLACE = ("checksum", "x", "y", "mpp")
_COLUMNS = ("slide", "patch", *_PLACE, "label")
_ORIGIN = ("given_by", "encoder")
"""Columns that files of hidisc 0.3 lack."""
_MOST_BYTES, _MOST_LETTERS = 60, 100
"""Of the name of a set, and of the name of a patch."""


@dataclass(frozen=True, eq=False)
class GivenNames:
    """The names of N patches, with how each was given."""

    labels: NDArray[np.object_]
    """The name (N,) of each patch; None for a patch without a name."""
    given_by: NDArray[np.object_]
    """How each name (N,) was given, a key of `HOW_GIVEN`; None: not known."""
    encoders: NDArray[np.object_]
    """SHA-256 (N,) of the encoder whose embeddings a name follows; None where it follows none."""
    others: Columns
    """The rows of the file about patches that the table does not have."""
    checksum: str | None = None
    """SHA-256 of the file."""

    @classmethod
    def none(cls, patches: int) -> "GivenNames":
        """No names of so many patches."""
        empty = np.full(patches, None, object)
        return cls(empty, empty.copy(), empty.copy(), {})

    def change(self, rows: NDArray[np.int64], values: Sequence[NDArray[np.object_]]) -> "GivenNames":
        """The same with other labels, ways and encoders (n,) in some rows (n,)."""
        labels, given_by, encoders = self.labels.copy(), self.given_by.copy(), self.encoders.copy()
        for column, value in zip((labels, given_by, encoders), values, strict=True):
            column[rows] = value
        return GivenNames(labels, given_by, encoders, self.others)

    def of(self, rows: NDArray[np.int64]) -> tuple[NDArray[np.object_], NDArray[np.object_], NDArray[np.object_]]:
        """Labels, ways and encoders (n,) of some rows (n,)."""
        return self.labels[rows], self.given_by[rows], self.encoders[rows]


def labels_file(folder: Path, name: str) -> Path:
    """The file of the set of names called `name` for the patches in a folder; a name that cannot be used is refused."""
    is_plain = all(letter.isalnum() or letter in "_-" for letter in name)
    if not name or not is_plain or len(name.encode()) > _MOST_BYTES:
        raise UserError(f"{name!r} cannot name a set of labels. Use letters, digits, - and _, {_MOST_BYTES} at most.")
    if is_taken(name):
        raise UserError(
            f"{name!r} cannot name a set of labels, because hidisc uses a column of this name itself. Choose another "
            f"name, or rename the file {LABELS}/{name}.parquet."
        )
    return folder.resolve().parent / LABELS / f"{name}.parquet"


def clean_label(label: str | None) -> str | None:
    """A name for patches with single spaces; refuses what cannot be read as a name."""
    label = " ".join(label.split()) if label is not None else None
    if label is not None and not (0 < len(label) <= _MOST_LETTERS and label.isprintable()):
        raise UserError(f"a label has 1 to {_MOST_LETTERS} letters. Type a name first.")
    return label


def save_labels(folder: Path, name: str, table: PatchTable, slides: Sequence[SlideId], names: GivenNames) -> None:
    """Write a set of names for the patches of a table, wholly or not at all; every set is written here.

    A set that is called like a column of the table is refused.
    """
    path = labels_file(folder, name)
    if name in table.columns:
        raise UserError(f"the patches have a column {name!r} already. Give the set of labels another name.")
    rows = np.flatnonzero(names.labels != None)  # noqa: E711 - elementwise
    known = {"label": names.labels, "given_by": names.given_by, "encoder": names.encoders}
    facts = {**_list_facts(table, slides), **known}
    parts = [
        {column: facts[column][rows] for column in (*_COLUMNS, *_ORIGIN)},
        *([names.others] if names.others else []),
    ]
    path.parent.mkdir(exist_ok=True)
    save_columns(path, {column: np.concatenate([part[column] for part in parts]) for column in parts[0]})


def load_labels(path: Path, table: PatchTable, slides: Sequence[SlideId]) -> GivenNames:
    """The names of the patches of a table."""
    given = load_columns(path)
    if set(given) - set(_ORIGIN) != set(_COLUMNS):
        raise UserError(f"{path} does not hold labels of hidisc: its columns are {', '.join(given)}.")
    for column in _ORIGIN:
        given.setdefault(column, np.full(len(given["slide"]), None, object))
    facts, rows_of = _list_facts(table, slides), table.rows_by("slide")
    names, is_other = GivenNames.none(len(table)), np.ones(len(given["slide"]), bool)
    for slide in dict.fromkeys(given["slide"].tolist()):
        if slide not in rows_of:
            continue
        wanted, rows = np.flatnonzero(given["slide"] == slide), rows_of[slide]
        rows = rows[np.argsort(facts["patch"][rows])]
        places = np.searchsorted(facts["patch"][rows], given["patch"][wanted]).clip(max=len(rows) - 1)
        is_here = facts["patch"][rows[places]] == given["patch"][wanted]
        rows, wanted = rows[places][is_here], wanted[is_here]
        if not all(_agree(facts[name][rows], given[name][wanted]) for name in _PLACE):
            raise UserError(
                f"{path}: slide {slide!r} is another file, or was cut in another way, since these labels were given, "
                "so they would stand at wrong places. Use the store that they were given to."
            )
        for column, known in (("label", names.labels), ("given_by", names.given_by), ("encoder", names.encoders)):
            known[rows] = given[column][wanted]
        is_other[wanted] = False
    others = {name: values[is_other] for name, values in given.items()}
    return GivenNames(names.labels, names.given_by, names.encoders, others, hash_file(path))


def find_given_names(folder: Path, label: str, table: PatchTable, slides: Sequence[SlideId]) -> GivenNames | None:
    """The set of names that `label` means for the patches in a folder; None where it means a column of the table.

    A label that means both a column and a set is refused.
    """
    home, name = folder.resolve().parent / LABELS, find_given(label)
    if name is None:
        path = home / f"{label}.parquet"
        if is_taken(label) or "/" in label or not path.is_file():
            return None
        if label in table.columns:
            raise UserError(
                f"{label!r} is a column of {folder}, and {path} has names that people gave. Rename the file to use the "
                f"column, or set label={address_given(label)} to use the names."
            )
        return load_labels(path, table, slides)
    path = home / f"{name}.parquet"
    if "/" in name or not path.is_file():
        sets = name_some(sorted(each.stem for each in home.glob("*.parquet")), 20)
        raise UserError(f"label={label}: there is no {path}. Sets of given names there: {sets or 'none'}.")
    return load_labels(path, table, slides)


def _list_facts(table: PatchTable, slides: Sequence[SlideId]) -> Columns:
    """(N,) each: the columns that identify a patch, and those that must not have changed since it was labelled."""
    codes, names = table.codes("slide")
    checksums = {slide.slide: slide.checksum for slide in slides}
    of_code = np.array([checksums.get(name) for name in names] or [None], object)
    facts = {name: table.column(name) for name in ("slide", "patch", "x", "y", "mpp")}
    return {**facts, "checksum": of_code[codes]}


def _agree(one: NDArray[Any], other: NDArray[Any]) -> bool:
    """Whether two columns are equal; missing values equal each other."""
    if one.dtype == object:
        return bool((one == other).all())
    return bool(np.array_equal(one, other, equal_nan=one.dtype.kind == "f"))

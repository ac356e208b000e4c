"""Labels of one's own: names that people gave to patches, `labels/NAME.parquet` beside the embeddings.

A row names a patch by the checksum of its slide's file, its number in the slide, and its place and scale. So the names
stay with the patches when slides are added to the store or another encoder embeds them, and are refused where a slide
was cut in another way. `NAME` is then a column of the embeddings, as good as one of the cohort's.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hidisc.embeddings.embeddings import Embeddings
from hidisc.ground.checksums import hash_file
from hidisc.ground.columns import Columns, load_columns, save_columns
from hidisc.ground.errors import UserError
from hidisc.patches.record import SlideId
from hidisc.patches.table import PatchTable

LABELS = "labels"
"""The folder of these labels, beside the folder that they are about."""
_PLACE = ("checksum", "x", "y", "mpp")
_COLUMNS = ("slide", "patch", *_PLACE, "label")


def labels_file(folder: Path, name: str) -> Path:
    """Where the labels called `name` lie that are about the patches in a folder; refuses what is no file name."""
    if not name or len(name) > 60 or not all(letter.isalnum() or letter in "_-" for letter in name):
        raise UserError(f"{name!r} cannot name a set of labels. Use letters, digits, - and _, 60 at most.")
    return folder.resolve().parent / LABELS / f"{name}.parquet"


def save_labels(
    path: Path, table: PatchTable, slides: Sequence[SlideId], labels: NDArray[np.object_], others: Columns
) -> None:
    """Write the labels (N,) of the patches of a table, and those of `others`, wholly or not at all."""
    rows = np.flatnonzero(labels != None)  # noqa: E711 - elementwise
    facts = {**_list_facts(table, slides), "label": labels}
    columns = {name: np.concatenate([facts[name][rows], *([others[name]] if others else [])]) for name in _COLUMNS}
    path.parent.mkdir(exist_ok=True)
    save_columns(path, columns)


def load_labels(path: Path, table: PatchTable, slides: Sequence[SlideId]) -> tuple[NDArray[np.object_], Columns]:
    """(N,) the label of each patch of a table, None where it has none; and the rows of patches that the table lacks."""
    given = load_columns(path)
    if set(given) != set(_COLUMNS):
        raise UserError(f"{path} does not hold labels of hidisc: its columns are {', '.join(given)}.")
    facts, rows_of = _list_facts(table, slides), table.rows_by("slide")
    labels, is_other = np.full(len(table), None, object), np.ones(len(given["slide"]), bool)
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
        labels[rows] = given["label"][wanted]
        is_other[wanted] = False
    return labels, {name: values[is_other] for name, values in given.items()}


def add_labels(embeddings: Embeddings, name: str) -> Embeddings:
    """The embeddings with the labels called `name` as a column; as they are, where they have it or no file does."""
    path = embeddings.path.resolve().parent / LABELS / f"{name}.parquet"
    if name in embeddings.table.columns or "/" in name or not path.is_file():
        return embeddings
    labels, _ = load_labels(path, embeddings.table, embeddings.info.slides)
    table = embeddings.table.add_names(name, labels.tolist())
    return replace(embeddings, table=table, labels_checksum=hash_file(path))


def _list_facts(table: PatchTable, slides: Sequence[SlideId]) -> Columns:
    """(N,) each: what names a patch, and what must not have changed since it was labelled."""
    codes, names = table.codes("slide")
    checksums = {slide.slide: slide.checksum for slide in slides}
    of_code = np.array([checksums.get(name) for name in names] or [None], object)
    facts = {name: table.column(name) for name in ("slide", "patch", "x", "y", "mpp")}
    return {**facts, "checksum": of_code[codes]}


def _agree(one: NDArray[Any], other: NDArray[Any]) -> bool:
    """Whether two columns are the same, what is missing included."""
    if one.dtype == object:
        return bool((one == other).all())
    return bool(np.array_equal(one, other, equal_nan=one.dtype.kind == "f"))

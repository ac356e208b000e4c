"""What the page asks for and what it gets: each question is a checked record, each answer a function of the session.

Rows are those of the store's table; places are on the map, between 0 and 1; corners are level-0 px of a slide.
"""

from collections.abc import Callable
from typing import Any, Literal, get_type_hints

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from pydantic import Field

from hidisc.explorer.labels import find_uncertain
from hidisc.explorer.projection import as_jpeg, draw_density
from hidisc.explorer.qupath import MOST_LETTERS, find_drawn, write_boxes
from hidisc.explorer.region import CODES, Region, check_slide, find_rows, find_shown
from hidisc.explorer.session import Session
from hidisc.explorer.slide import TILE_PX
from hidisc.ground.errors import UserError
from hidisc.ground.files import Record
from hidisc.ground.spreadsheet import format_csv
from hidisc.settings.level_names import LEVELS
from hidisc.slides.slide import as_rgb, shrink

MOST_POINTS = 20_000
"""Points that the page draws itself; more are drawn here, as one picture."""
_LISTED = 2_000
"""Patches of a selection that the page marks."""

Answer = dict[str, Any] | bytes | str


class Nothing(Record):
    """A question without details."""


class MapView(Record):
    """A part of the map."""

    by: str
    row: int | None = None
    """The patch that the others are compared with, where they are coloured by similarity."""
    only: str = Field("", pattern=CODES)
    x0: float = 0.0
    y0: float = 0.0
    x1: float = 1.0
    y1: float = 1.0
    width: int = Field(600, ge=16, le=3000)
    height: int = Field(600, ge=16, le=3000)


class OfPatch(Record):
    """A patch, and the side of its picture."""

    row: int
    side: int = Field(96, ge=16, le=512)


class OfSlide(Record):
    """A slide by its number."""

    slide: int


class OfTile(OfSlide):
    """A tile of a slide."""

    level: int = Field(ge=0, le=30)
    column: int = Field(ge=0)
    line: int = Field(ge=0)


class OfOverlay(OfSlide):
    """What the patches of a slide are by a column."""

    by: str
    row: int | None = None


class Chosen(Record):
    """A selection."""

    region: Region


class Alike(Chosen):
    """What is like a selection."""

    apart: Literal["", "slide", "patient"] = ""
    """Leave out what is of the same slide or patient."""
    most: int = Field(24, ge=1, le=500)


class OfSet(Record):
    """A set of labels."""

    set: str


class Naming(OfSet, Chosen):
    """A name for a selection; null takes its names away."""

    label: str | None


class Drawn(OfSet, OfSlide):
    """Regions of a slide that were drawn in QuPath."""

    file: str = Field(max_length=MOST_LETTERS)
    """Its content."""


def tell_cohort(session: Session, _: Nothing) -> dict[str, Any]:
    """All that the page must know at first."""
    info, embeddings = session.store.info, session.embeddings
    words = session.words
    return {
        "store": session.store.path.resolve().name,
        "words": {level: [words.word(level), words.plural(level)] for level in LEVELS},
        "encoder": embeddings.info.model.name if embeddings is not None else None,
        "vectors": len(session.embedded),
        "patches": len(session.store),
        "patients": len({slide.patient for slide in info.slides}),
        "tile": TILE_PX,
        "longest": MOST_LETTERS,
        "slides": session.list_slides(),
        "warnings": sorted({warning for scores in session.scores for warning in scores.info.warnings}),
        **tell_columns(session),
    }


def tell_columns(session: Session) -> dict[str, Any]:
    """What patches can be coloured by; changes with the labels."""
    columns = [
        {
            "key": key,
            "title": session.name_column(key, column),
            "names": column.names,
            "colours": column.colours,
            "counts": np.bincount(column.codes[column.codes >= 0], minlength=len(column.names)).tolist(),
        }
        for key, column in session.columns.items()
    ]
    return {"columns": columns}


def tell_points(session: Session, view: MapView) -> dict[str, Any]:
    """The patches in a part of the map; only how many, where they are too many."""
    vectors = _find_in_view(session, view)
    if len(vectors) > MOST_POINTS:
        return {"many": len(vectors)}
    places, rows = session.places[vectors], session.embedded[vectors]
    return {
        "rows": rows.tolist(),
        "x": places[:, 0].round(5).tolist(),
        "y": places[:, 1].round(5).tolist(),
        "codes": session.find_column(view.by, view.row).codes[rows].tolist(),
        "whole": len(vectors) == len(session.embedded),
    }


def draw_points(session: Session, view: MapView) -> bytes:
    """The same part as a picture."""
    vectors, column = _find_in_view(session, view), session.find_column(view.by, view.row)
    places = (session.places[vectors] - (view.x0, view.y0)) / (view.x1 - view.x0, view.y1 - view.y0)
    codes = column.codes[session.embedded[vectors]]
    return draw_density(places, codes, column.colours, view.width, view.height)


def find_spot(session: Session, spot: MapView) -> dict[str, Any]:
    """The patch nearest to the middle of a part of the map; -1 where that part has none."""
    vectors = _find_in_view(session, spot)
    if not len(vectors):
        return {"row": -1}
    middle = np.array([spot.x0 + spot.x1, spot.y0 + spot.y1]) / 2
    nearest = np.square(session.places[vectors] - middle).sum(axis=1).argmin()
    return {"row": int(session.embedded[vectors[nearest]])}


def _find_in_view(session: Session, view: MapView) -> NDArray[np.int64]:
    """Vectors that lie in a part of the map and are shown."""
    if not (view.x0 < view.x1 and view.y0 < view.y1):
        raise UserError("this part of the map has no width or no height.")
    x, y = session.places[:, 0], session.places[:, 1]
    inside = (x >= view.x0) & (x <= view.x1) & (y >= view.y0) & (y <= view.y1)
    return np.flatnonzero(inside & find_shown(session, view.by, view.only))


def tell_patch(session: Session, asked: OfPatch) -> dict[str, Any]:
    """Where a patch is, and what is known of it."""
    row = _check_row(session, asked.row)
    number, table = int(session.slide_of[row]), session.store.table
    x, y = int(table.column("x")[row]), int(table.column("y")[row])
    if x < 0:  # imported
        shown = session.show(number)
        x, y = shown.corners[np.searchsorted(shown.rows, row)].tolist()
    vector = int(session.vector_of[row])
    facts = [
        (session.name_column(key, column), text)
        for key, column in session.columns.items()
        if (text := column.tell(row)) is not None
    ]
    return {
        "row": row,
        "slide": number,
        "corner": [x, y],
        "place": session.places[vector].tolist() if vector >= 0 else None,
        "facts": [*facts, (f"place on the {session.words.slide}", f"x {x:,}, y {y:,} px")],
    }


def draw_patch(session: Session, asked: OfPatch) -> bytes:
    """The picture of a patch."""
    return as_jpeg(shrink(as_rgb(session.store.read(_check_row(session, asked.row))), asked.side))


def draw_thumbnail(session: Session, asked: OfSlide) -> bytes:
    """The whole slide, small; its file is not opened."""
    number = check_slide(session, asked.slide)
    thumbnail = session.store.thumbnail(session.slides[number])
    if thumbnail is None:
        shown = session.show(number)
        return as_jpeg(shown.tile(session.store, shown.levels - 1, 0, 0))
    picture = Image.fromarray(thumbnail[0])
    picture.thumbnail((TILE_PX, TILE_PX))
    return as_jpeg(np.asarray(picture))


def tell_slide(session: Session, asked: OfSlide) -> dict[str, Any]:
    """What the page must know of a slide to show it."""
    shown = session.show(check_slide(session, asked.slide))
    return {
        "slide": asked.slide,
        "name": shown.entry.slide,
        "patient": shown.entry.patient,
        "width": shown.width,
        "height": shown.height,
        "levels": shown.levels,
        "mpp": shown.mpp,
        "extent": shown.extent,
        "rows": shown.rows.tolist(),
        "corners": shown.corners.tolist(),
        "dropped": shown.dropped.tolist(),
        "source": shown.source,
    }


def draw_tile(session: Session, asked: OfTile) -> bytes:
    """A tile of a slide."""
    shown = session.show(check_slide(session, asked.slide))
    return as_jpeg(shown.tile(session.store, asked.level, asked.column, asked.line))


def tell_overlay(session: Session, asked: OfOverlay) -> dict[str, Any]:
    """What the patches of a slide are by a column, in the order of its rows."""
    rows = session.rows_of_slide[check_slide(session, asked.slide)]
    column = session.find_column(asked.by, asked.row)
    values = None if column.values is None else np.nan_to_num(column.values[rows]).round(4).tolist()
    return {"codes": column.codes[rows].tolist(), "names": column.names, "colours": column.colours, "values": values}


def tell_selection(session: Session, chosen: Chosen) -> dict[str, Any]:
    """How many patches a region has, and some of them, spread evenly, with their places."""
    rows = find_rows(session, chosen.region)
    some = rows[np.linspace(0, len(rows) - 1, min(_LISTED, len(rows))).astype(np.int64)]
    return {"count": len(rows), **_list_patches(session, some)}


def find_alike(session: Session, asked: Alike) -> dict[str, Any]:
    """The patches of the cohort most like a region, the most similar first."""
    vectors = session.vector_of[find_rows(session, asked.region)]
    vectors = vectors[vectors >= 0]
    if session.search is None or not len(vectors):
        raise UserError("these patches were not embedded, so nothing is known of what is like them.")
    is_left_out = np.zeros(len(session.embedded), bool)
    if asked.apart:
        codes = session.store.table.codes(asked.apart)[0][session.embedded]
        is_left_out = np.isin(codes, np.unique(codes[vectors]))
    found, similarities = session.search.nearest(vectors, asked.most, is_left_out)
    return {**_list_patches(session, session.embedded[found]), "values": similarities.round(4).tolist()}


def give_name(session: Session, asked: Naming) -> dict[str, Any]:
    """Save a label of a region."""
    rows = find_rows(session, asked.region)
    session.labels.give(asked.set, asked.label, rows)
    return {"count": len(rows), **tell_columns(session)}


def take_drawn(session: Session, asked: Drawn) -> dict[str, Any]:
    """Save the classes of regions as the labels of the patches in them."""
    rows, labels = find_drawn(session, check_slide(session, asked.slide), asked.file)
    session.labels.give_each(asked.set, labels, rows)
    return {"count": len(rows), "names": sorted(set(labels.tolist())), **tell_columns(session)}


def undo_name(session: Session, asked: OfSet) -> dict[str, Any]:
    """Take the last change of a set of labels back."""
    return {"count": session.labels.undo(asked.set), **tell_columns(session)}


def offer_uncertain(session: Session, asked: OfSet) -> dict[str, Any]:
    """The patches whose name a linear probe on the labels given so far knows least."""
    if session.embeddings is None:
        raise UserError("a probe needs embeddings. Start the explorer with embeddings of this store.")
    labels = session.labels.find(asked.set)[session.embedded]
    patients = session.store.table.codes("patient")[0][session.embedded].astype(np.int64)
    found, remark = find_uncertain(session.embeddings.vectors, labels, patients)
    return {**_list_patches(session, session.embedded[found]), "remark": remark}


def write_slides(session: Session, _: Nothing) -> str:
    """The table of slides as CSV."""
    slides = session.list_slides()
    columns = list(slides[0]) if slides else []
    return format_csv(columns, [[slide[name] for name in columns] for slide in slides])


def write_labels(session: Session, asked: OfSet) -> str:
    """A set of labels as CSV, one row per patch that has one."""
    labels, table = session.labels.find(asked.set), session.store.table
    columns = ("patient", "slide", "patch", "x", "y")
    rows = np.flatnonzero(labels != None)  # noqa: E711 - elementwise
    facts = [table.column(name)[rows].tolist() for name in columns]
    return format_csv((*columns, asked.set), list(zip(*facts, labels[rows].tolist(), strict=True)))


def write_patches(session: Session, chosen: Chosen) -> str:
    """A selection as CSV, with all that is known of its patches."""
    rows, table, columns = find_rows(session, chosen.region), session.store.table, session.columns.values()
    places = {name: table.column(name)[rows].tolist() for name in ("patch", "x", "y")}
    cells = [*places.values(), *(column.list_cells(rows) for column in columns)]
    return format_csv((*places, *(column.title for column in columns)), list(zip(*cells, strict=True)))


def write_slide_boxes(session: Session, asked: OfSlide) -> bytes:
    """The boxes of a slide as GeoJSON for QuPath."""
    return write_boxes(session, check_slide(session, asked.slide))


def _list_patches(session: Session, rows: NDArray[np.int64]) -> dict[str, Any]:
    """Rows, their places on the map (null where they have none) and a caption of each."""
    vectors = session.vector_of[rows]
    places = [session.places[vector].tolist() if vector >= 0 else None for vector in vectors.tolist()]
    names = [_find_names(session, name, rows) for name in ("patient", "slide", "label")]
    return {"rows": rows.tolist(), "places": places, "captions": list(zip(*names, strict=True))}


def _find_names(session: Session, column: str, rows: NDArray[np.int64]) -> list[str | None]:
    """What some rows have in a column of names; the column is not made for all rows, which takes 10 ms of a million."""
    codes, names = session.store.table.codes(column)
    return [names[code] if code >= 0 else None for code in codes[rows].tolist()]


def question_of(answer: Callable[[Session, Any], Answer]) -> type[Record]:
    """The record that an answer takes."""
    asked: type[Record] = list(get_type_hints(answer).values())[1]
    return asked


def _check_row(session: Session, row: int) -> int:
    if not 0 <= row < len(session.store):
        raise UserError("there is no such patch.")
    return row


READ: dict[str, Callable[[Session, Any], Answer]] = {
    "cohort": tell_cohort,
    "points": tell_points,
    "spot": find_spot,
    "patch": tell_patch,
    "slide": tell_slide,
    "overlay": tell_overlay,
    "density.png": draw_points,
    "patch.jpg": draw_patch,
    "thumbnail.jpg": draw_thumbnail,
    "tile.jpg": draw_tile,
    "slides.csv": write_slides,
    "labels.csv": write_labels,
    "boxes.geojson": write_slide_boxes,
}
"""What can be asked with GET: it changes nothing."""
CHANGE: dict[str, Callable[[Session, Any], Answer]] = {
    "select": tell_selection,
    "alike": find_alike,
    "name": give_name,
    "undo": undo_name,
    "regions": take_drawn,
    "patches.csv": write_patches,
    "uncertain": offer_uncertain,
}
"""What is asked with POST: regions are long, and names are written."""

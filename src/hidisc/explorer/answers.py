"""The answers to the requests of the page: an answer is a function of the session and of a checked request."""

from collections.abc import Callable
from typing import Any, get_type_hints

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from hidisc.embeddings.given_names import HOW_GIVEN, labels_file
from hidisc.explorer.labels import find_uncertain
from hidisc.explorer.projection import as_jpeg, draw_density
from hidisc.explorer.regions import (
    MOST_LETTERS,
    check_slide,
    find_drawn,
    find_rows,
    find_shown,
    find_way,
    write_boxes,
)
from hidisc.explorer.requests import (
    ChangeRequest,
    EmptyRequest,
    LabelSetRequest,
    MapRequest,
    NameRequest,
    OverlayRequest,
    PatchRequest,
    RegionsRequest,
    SelectionRequest,
    SimilarRequest,
    SlideRequest,
    TileRequest,
)
from hidisc.explorer.session import Session
from hidisc.explorer.slide import TILE_PX
from hidisc.ground.errors import UserError
from hidisc.ground.files import Record
from hidisc.ground.spreadsheet import format_csv
from hidisc.settings.level_names import LEVELS
from hidisc.slides.slide import as_rgb, shrink

MOST_POINTS = 20_000
"""Points that the page draws itself; more are drawn here, as one picture."""
_LEAST_SIDE = 1e-9
"""Of a part of the map."""
_LISTED = 2_000
"""Patches of a selection that the page marks."""

_CIRCULAR = (
    "These names follow the embeddings: they were given {}. Evaluating this encoder by label={} would be circular, and "
    "is refused."
)

Answer = dict[str, Any] | bytes | str


def tell_cohort(session: Session, _: EmptyRequest) -> dict[str, Any]:
    """All that the page must know when it opens."""
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
        "people": session.list_patients(),
        "warnings": sorted({warning for scores in session.scores for warning in scores.info.warnings}),
        **tell_columns(session),
    }


def tell_columns(session: Session) -> dict[str, Any]:
    """The columns that patches can be coloured by; they change with the labels."""
    titles = session.name_columns()
    columns = [
        {
            "key": key,
            "title": titles[key],
            "range": column.range,
            "names": column.names,
            "colours": column.colours,
            "counts": np.bincount(column.codes[column.codes >= 0], minlength=len(column.names)).tolist(),
        }
        for key, column in session.columns.items()
    ]
    return {"columns": columns}


def tell_points(session: Session, request: MapRequest) -> dict[str, Any]:
    """The patches in a part of the map; where there are too many to send, only how many."""
    vectors = _find_in_view(session, request)
    if len(vectors) > MOST_POINTS:
        return {"many": len(vectors)}
    places, rows = session.places[vectors], session.embedded[vectors]
    return {
        "rows": rows.tolist(),
        "x": places[:, 0].round(5).tolist(),
        "y": places[:, 1].round(5).tolist(),
        "codes": session.find_column(request.by, request.row).codes[rows].tolist(),
        "whole": len(vectors) == len(session.embedded),
    }


def draw_points(session: Session, request: MapRequest) -> bytes:
    """A part of the map as a picture."""
    vectors, column = _find_in_view(session, request), session.find_column(request.by, request.row)
    places = (session.places[vectors] - (request.x0, request.y0)) / (request.x1 - request.x0, request.y1 - request.y0)
    codes = column.codes[session.embedded[vectors]]
    return draw_density(places, codes, column.colours, request.width, request.height)


def find_spot(session: Session, request: MapRequest) -> dict[str, Any]:
    """The patch nearest to the middle of a part of the map; -1 where that part has none."""
    vectors = _find_in_view(session, request)
    if not len(vectors):
        return {"row": -1}
    middle = np.array([request.x0 + request.x1, request.y0 + request.y1]) / 2
    nearest = np.square(session.places[vectors] - middle).sum(axis=1).argmin()
    return {"row": int(session.embedded[vectors[nearest]])}


def _find_in_view(session: Session, request: MapRequest) -> NDArray[np.int64]:
    """The vectors that lie in a part of the map and that the map shows."""
    if not (request.x1 - request.x0 > _LEAST_SIDE and request.y1 - request.y0 > _LEAST_SIDE):
        raise UserError("this part of the map has no width or no height.")
    x, y = session.places[:, 0], session.places[:, 1]
    inside = (x >= request.x0) & (x <= request.x1) & (y >= request.y0) & (y <= request.y1)
    return np.flatnonzero(inside & find_shown(session, request.by, request.only))


def tell_patch(session: Session, request: PatchRequest) -> dict[str, Any]:
    """The place of a patch, and the value of every column for it."""
    row = _check_row(session, request.row)
    number, table = int(session.slide_of[row]), session.store.table
    x, y = int(table.column("x")[row]), int(table.column("y")[row])
    if x < 0:  # imported
        shown = session.show(number)
        x, y = shown.corners[np.searchsorted(shown.rows, row)].tolist()
    vector, titles = int(session.vector_of[row]), session.name_columns()
    facts = [(titles[key], text) for key, column in session.columns.items() if (text := column.tell(row)) is not None]
    return {
        "row": row,
        "slide": number,
        "corner": [x, y],
        "place": session.places[vector].tolist() if vector >= 0 else None,
        "facts": [*facts, (f"place on the {session.words.slide}", f"x {x:,}, y {y:,} px")],
    }


def draw_patch(session: Session, request: PatchRequest) -> bytes:
    """The picture of a patch."""
    return as_jpeg(shrink(as_rgb(session.store.read(_check_row(session, request.row))), request.side))


def draw_thumbnail(session: Session, request: SlideRequest) -> bytes:
    """A small picture of the whole slide; the slide file is not opened."""
    number = check_slide(session, request.slide)
    thumbnail = session.store.thumbnail(session.slides[number])
    if thumbnail is None:
        shown = session.show(number)
        return as_jpeg(shown.tile(session.store, shown.levels - 1, 0, 0))
    picture = Image.fromarray(thumbnail[0])
    picture.thumbnail((TILE_PX, TILE_PX))
    return as_jpeg(np.asarray(picture))


def tell_slide(session: Session, request: SlideRequest) -> dict[str, Any]:
    """Size, scale, patches and boxes of a slide, from which the page draws it."""
    shown = session.show(check_slide(session, request.slide))
    return {
        "slide": request.slide,
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


def draw_tile(session: Session, request: TileRequest) -> bytes:
    """A tile of a slide."""
    shown = session.show(check_slide(session, request.slide))
    return as_jpeg(shown.tile(session.store, request.level, request.column, request.line))


def tell_overlay(session: Session, request: OverlayRequest) -> dict[str, Any]:
    """The codes of the patches of a slide in a column, in the order of the slide's rows; why there are none."""
    rows = session.rows_of_slide[check_slide(session, request.slide)]
    column = session.find_column(request.by, request.row)
    values = None if column.values is None else np.nan_to_num(column.values[rows]).round(4).tolist()
    return {
        "codes": column.codes[rows].tolist(),
        "names": column.names,
        "colours": column.colours,
        "range": column.range,
        "values": values,
        "remark": "" if (column.codes[rows] >= 0).any() else session.explain_absence(request.by, request.slide),
    }


def tell_selection(session: Session, request: SelectionRequest) -> dict[str, Any]:
    """How many patches are selected, and some of these, spread evenly, with their places."""
    rows = find_rows(session, request.region)
    some = rows[np.linspace(0, len(rows) - 1, min(_LISTED, len(rows))).astype(np.int64)]
    return {"count": len(rows), **_list_patches(session, some)}


def find_alike(session: Session, request: SimilarRequest) -> dict[str, Any]:
    """The patches of the cohort that are most similar to a selection, the most similar first."""
    vectors = session.vector_of[find_rows(session, request.region)]
    vectors = vectors[vectors >= 0]
    if session.search is None or not len(vectors):
        raise UserError("these patches were not embedded, so nothing is known of what is like them.")
    is_left_out = np.zeros(len(session.embedded), bool)
    if request.apart:
        codes = session.store.table.codes(request.apart)[0][session.embedded]
        is_left_out = np.isin(codes, np.unique(codes[vectors]))
    found, similarities = session.search.nearest(vectors, request.most, is_left_out)
    return {**_list_patches(session, session.embedded[found]), "values": similarities.round(4).tolist()}


def give_name(session: Session, request: NameRequest) -> dict[str, Any]:
    """Save a label for all patches of a selection."""
    rows = find_rows(session, request.region)
    way, encoder = find_way(session, request.region)
    warnings = session.labels.give(
        request.set, request.label, rows, given_by=way, encoder=encoder, visitor=request.visitor
    )
    remarks = list(warnings)
    if encoder is not None and request.label is not None:
        remarks.append(_CIRCULAR.format(HOW_GIVEN[way], request.set))
    return {"count": len(rows), "remarks": remarks, **tell_columns(session)}


def take_drawn(session: Session, request: RegionsRequest) -> dict[str, Any]:
    """Save the class of each drawn region as the label of the patches in the region."""
    rows, labels = find_drawn(session, check_slide(session, request.slide), request.file)
    warnings = session.labels.give(request.set, labels, rows, given_by="imported", visitor=request.visitor)
    return {
        "count": len(rows),
        "names": sorted(set(labels.tolist())),
        "remarks": list(warnings),
        **tell_columns(session),
    }


def undo_name(session: Session, request: ChangeRequest) -> dict[str, Any]:
    """Undo the last change of a set of labels by a visitor, and tell how many patches somebody named anew since."""
    undone = session.labels.undo(request.set, request.visitor)
    return {"count": undone.count, "stayed": undone.stayed, **tell_columns(session)}


def offer_uncertain(session: Session, request: LabelSetRequest) -> dict[str, Any]:
    """The patches of whose name a linear probe, fitted to the labels given so far, is least sure."""
    if session.embeddings is None:
        raise UserError("a probe needs embeddings. Start the explorer with embeddings of this store.")
    labels = session.labels.find(request.set)[session.embedded]
    patients = session.store.table.codes("patient")[0][session.embedded].astype(np.int64)
    vectors, remark = find_uncertain(session.embeddings.vectors, labels, patients)
    return {**_list_patches(session, session.embedded[vectors]), "remark": remark}


def write_slides(session: Session, _: EmptyRequest) -> str:
    """The table of slides as CSV."""
    return _write_records(session.list_slides())


def write_patients(session: Session, _: EmptyRequest) -> str:
    """The table of patients as CSV."""
    return _write_records(session.list_patients())


def _write_records(records: list[dict[str, Any]]) -> str:
    columns = list(records[0]) if records else []
    return format_csv(columns, [[record[name] for name in columns] for record in records])


def write_labels(session: Session, request: LabelSetRequest) -> str:
    """A set of labels as CSV, one row per patch that has one."""
    labels_file(session.store.path, request.set)  # refuses what cannot be the name of a set
    labels, table = session.labels.find(request.set), session.store.table
    columns = ("patient", "slide", "patch", "x", "y")
    rows = np.flatnonzero(labels != None)  # noqa: E711 - elementwise
    facts = [table.column(name)[rows].tolist() for name in columns]
    return format_csv((*columns, request.set), list(zip(*facts, labels[rows].tolist(), strict=True)))


def write_patches(session: Session, request: SelectionRequest) -> str:
    """The patches of a selection as CSV, with the values of all columns."""
    rows, table, columns = find_rows(session, request.region), session.store.table, session.columns.values()
    titles = session.name_columns(in_files=True).values()
    places = {name: table.column(name)[rows].tolist() for name in ("patch", "x", "y")}
    cells = [*places.values(), *(column.list_cells(rows) for column in columns)]
    return format_csv((*places, *titles), list(zip(*cells, strict=True)))


def write_slide_boxes(session: Session, request: SlideRequest) -> bytes:
    """The boxes of a slide as GeoJSON for QuPath."""
    return write_boxes(session, check_slide(session, request.slide))


def _list_patches(session: Session, rows: NDArray[np.int64]) -> dict[str, Any]:
    """Rows, their places on the map (null for a patch without a place), and a caption for each row."""
    vectors = session.vector_of[rows]
    places = [session.places[vector].tolist() if vector >= 0 else None for vector in vectors.tolist()]
    captions = [
        # making a column for all of a million rows would take 10 ms
        [names[code] if code >= 0 else None for code in codes[rows].tolist()]
        for codes, names in map(session.store.table.codes, ("patient", "slide", "label"))
    ]
    return {"rows": rows.tolist(), "places": places, "captions": list(zip(*captions, strict=True))}


def find_request_type(answer: Callable[[Session, Any], Answer]) -> type[Record]:
    """The record that an answer takes as its second argument."""
    request: type[Record] = list(get_type_hints(answer).values())[1]
    return request


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
    "patients.csv": write_patients,
    "labels.csv": write_labels,
    "boxes.geojson": write_slide_boxes,
}
"""Requests with GET; they change nothing."""
CHANGE: dict[str, Callable[[Session, Any], Answer]] = {
    "select": tell_selection,
    "alike": find_alike,
    "name": give_name,
    "undo": undo_name,
    "regions": take_drawn,
    "patches.csv": write_patches,
    "uncertain": offer_uncertain,
}
"""Requests with POST, because selections are long and names are written."""

"""Which patches are meant: some rows, an outline on the map, a rectangle on a slide, or regions drawn in QuPath.

The boxes of a slide go to QuPath as GeoJSON, and regions that were drawn there come back.
"""

from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from hidisc.embeddings.given_names import FROM_VECTORS
from hidisc.explorer.columns import CLUSTER, Column
from hidisc.explorer.session import Rows, Session
from hidisc.explorer.slide import ShownSlide
from hidisc.ground.errors import UserError
from hidisc.ground.files import Record
from hidisc.patches.annotations import Region, Ring, format_geojson, make_box, parse_geojson
from hidisc.slides.names import is_computed

CODES = r"^(\d{1,9}(,\d{1,9})*)?$"
"""Numbers, and commas between them."""
Number = Annotated[float, Field(ge=-1e9, le=1e9, allow_inf_nan=False)]
"""A coordinate: on the map, or level-0 px of a slide."""


class Selection(Record):
    """Patches as the page selects them: by `rows`, by a `polygon` on the map, or by a `box` on a slide."""

    rows: tuple[int, ...] = Field((), max_length=20_000)
    polygon: tuple[tuple[Number, Number], ...] = Field((), max_length=5_000)
    """Corners on the map."""
    by: str = ""
    """The address of the column that the map shows, or that the slide is painted by."""
    only: str = Field("", pattern=CODES)
    """The map shows only these codes of the column `by`, and the polygon holds only what is shown."""
    slide: int | None = None
    box: tuple[Number, Number, Number, Number] | None = None
    """Left, top, right and bottom on the slide, in level-0 px; a patch is in it with its centre."""


def find_rows(session: Session, selection: Selection) -> Rows:
    """The rows (n,) of the store that are selected; a selection without patches is refused."""
    if selection.polygon:
        is_shown = find_shown(session, selection.by, selection.only)
        rows = session.embedded[is_shown & is_inside(session.places, np.array(selection.polygon))]
    elif selection.slide is not None and selection.box is not None:
        shown = session.show(check_slide(session, selection.slide))
        centres = shown.corners + shown.extent / 2
        rows = shown.rows[((centres >= selection.box[:2]) & (centres <= selection.box[2:])).all(axis=1)]
    else:
        if selection.rows and not 0 <= min(selection.rows) <= max(selection.rows) < len(session.store):
            raise UserError("there is no such patch.")
        rows = np.array(list(dict.fromkeys(selection.rows)), np.int64)
    if not len(rows):
        raise UserError("there is no patch in this region. Draw around some.")
    return rows


def find_way(session: Session, selection: Selection) -> tuple[str, str | None]:
    """How a selection was made, a key of `HOW_GIVEN`, and the checksum of the encoder whose embeddings it follows."""
    if selection.polygon:
        way = "map"
    elif selection.box is not None:
        way = "painted" if is_computed(selection.by) else "slide"
    else:  # the page sends several rows only of lists: what is alike, and what a probe is unsure of
        way = "patch" if len(selection.rows) == 1 or session.embeddings is None else "similarity"
    if session.embeddings is None or way not in FROM_VECTORS:
        return way, None
    return way, session.embeddings.info.model.checksum


def find_shown(session: Session, by: str, only: str) -> NDArray[np.bool_]:
    """Whether the map shows each vector (N,): those whose code of a column is among `only`, or all of them."""
    if not only:
        return np.ones(len(session.embedded), bool)
    return np.isin(session.find_column(by).codes[session.embedded], [int(code) for code in only.split(",")])


def check_slide(session: Session, number: int) -> int:
    """Return the number of a slide; refuse a number that no slide has."""
    if not 0 <= number < len(session.slides):
        raise UserError("there is no such slide.")
    return number


def is_inside(points: NDArray[np.floating], polygon: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Whether each of the points (N, 2) lies in a polygon (K, 2), by the even-odd rule.

    A line that starts at a point inside and goes to the right crosses an odd number of edges. Only points within the
    bounds of the polygon are compared.
    """
    inside = ((points >= polygon.min(axis=0)) & (points <= polygon.max(axis=0))).all(axis=1)
    near = np.flatnonzero(inside)
    x, y = points[near, 0].astype(np.float64), points[near, 1].astype(np.float64)
    is_odd = np.zeros(len(near), bool)
    for (x0, y0), (x1, y1) in zip(polygon, np.roll(polygon, -1, axis=0), strict=True):
        crosses = (y0 > y) != (y1 > y)
        if y0 != y1:
            is_odd ^= crosses & (x < x0 + (y - y0) / (y1 - y0) * (x1 - x0))
    inside[near] = is_odd
    return inside


MOST_LETTERS = 16 * 2**20
"""The longest GeoJSON file that is read, in characters: about half a million corners."""


def write_boxes(session: Session, number: int) -> bytes:
    """Return the patches of a slide as GeoJSON tiles with predicted class, scores, cluster and given names.

    The class is that of the first evaluation; without an evaluation it is the class in the table. Nothing in the file
    names the patient.
    """
    shown, columns = session.show(number), session.columns
    left, top = _find_origin(session, shown)
    titles = session.name_columns(in_files=True)
    noted = {titles[key]: columns[key] for key in (CLUSTER, *session.labels.columns) if key in columns}
    scores = {titles[key]: column.values for key, column in columns.items()}
    regions = []
    for row, (x, y) in zip(shown.rows.tolist(), shown.corners.tolist(), strict=True):
        name, color = _find_class(session.classes, row)
        notes = {title: text for title, column in noted.items() if (text := column.tell(row)) is not None}
        measurements = {title: float(values[row]) for title, values in scores.items() if values is not None}
        box = make_box(x - left, y - top, shown.extent, shown.extent)
        regions.append(Region(box, name, color, measurements, "tile", notes=notes))
    return format_geojson(regions)


def find_drawn(session: Session, number: int, file: str) -> tuple[Rows, NDArray[np.object_]]:
    """Return the patches of a slide whose centre lies in a region of a GeoJSON file, and the class of that region.

    Only regions that people drew count, so that the boxes which we wrote do not come back. Where regions overlap, the
    smallest one wins.
    """
    shown = session.show(number)
    centres = shown.corners + shown.extent / 2 - _find_origin(session, shown)
    regions = [each for each in parse_geojson(file, "this file") if each.kind == "annotation" and each.polygons]
    others = [each.slide for each in regions if each.slide not in (None, shown.entry.slide)]
    if others:
        raise UserError(f"this file has regions of slide {others[0]!r}. Open that slide first.")
    named = [each for each in regions if each.name]
    if not named:
        raise UserError(
            "this file has no annotation with a class. In QuPath, give the regions that you drew a class, and export "
            "them as GeoJSON."
        )
    names = np.full(len(shown.rows), None, object)
    for region in sorted(named, key=_measure_area, reverse=True):
        names[_is_within(centres, region)] = region.name
    is_named = names != None  # noqa: E711 - elementwise
    if not is_named.any():
        raise UserError(f"no patch of slide {shown.entry.slide!r} has its centre in a region of this file.")
    return shown.rows[is_named], names[is_named]


def _find_origin(session: Session, shown: ShownSlide) -> tuple[int, int]:
    """Return where the coordinates of QuPath begin on a slide; refuse a slide whose patches have no known place."""
    if (session.store.table.column("x")[shown.rows] < 0).any():
        raise UserError("these patches were imported as files: it is not known where on a slide they are.")
    return session.store.geometry(shown.entry).origin or (0, 0)


def _find_class(classes: Column | None, row: int) -> tuple[str | None, tuple[int, int, int] | None]:
    """The name and the colour of the class of a patch."""
    if classes is None or classes.codes[row] < 0:
        return None, None
    red, green, blue = bytes.fromhex(classes.colours[classes.codes[row]][1:])
    return classes.names[classes.codes[row]], (red, green, blue)


def _is_within(points: NDArray[np.floating], region: Region) -> NDArray[np.bool_]:
    """Whether each point (N, 2) lies inside an odd number of rings: in an outline, and not in a hole of the outline."""
    is_odd = np.zeros(len(points), bool)
    for ring in region.rings:
        is_odd ^= is_inside(points, ring)
    return is_odd


def _measure_area(region: Region) -> float:
    """The area of the outlines of a region without their holes, in square px."""
    return sum(_measure_ring(outline) - sum(map(_measure_ring, holes)) for outline, *holes in region.polygons)


def _measure_ring(ring: Ring) -> float:
    """The area of a ring (n, 2), by the sum of its cross products."""
    x, y = (ring - ring[0]).T
    return abs(float((x * np.roll(y, -1) - y * np.roll(x, -1)).sum())) / 2

"""To QuPath and back: the boxes of a slide as GeoJSON, and the patches that lie in regions which were drawn there."""

import numpy as np
from numpy.typing import NDArray

from hidisc.explorer.columns import Column
from hidisc.explorer.region import is_inside
from hidisc.explorer.session import Rows, Session
from hidisc.explorer.slide import ShownSlide
from hidisc.ground.errors import UserError
from hidisc.patches.annotations import Region, Ring, format_geojson, make_box, parse_geojson

MOST_LETTERS = 16 * 2**20
"""Longest file that is read: about half a million corners."""


def write_boxes(session: Session, number: int) -> bytes:
    """The patches of a slide as tiles: their predicted class, scores, cluster and given names; nothing of the patient.

    The class is that of the first evaluation; where nothing was evaluated, it is the class of the table.
    """
    shown, columns = session.show(number), session.columns
    left, top = _find_origin(session, shown)
    classes = next((column for key, column in columns.items() if key.startswith("predicted")), columns.get("label"))
    noted = [column for key, column in columns.items() if key == "cluster" or key.startswith("labels ")]
    scores = {column.title.replace("score of ", "score: "): column.values for column in columns.values()}
    regions = []
    for row, (x, y) in zip(shown.rows.tolist(), shown.corners.tolist(), strict=True):
        name, color = _find_class(classes, row)
        notes = {column.title: text for column in noted if (text := column.tell(row)) is not None}
        measurements = {title: float(values[row]) for title, values in scores.items() if values is not None}
        box = make_box(x - left, y - top, shown.extent, shown.extent)
        regions.append(Region(box, name, color, measurements, "tile", notes=notes))
    return format_geojson(regions)


def find_drawn(session: Session, number: int, file: str) -> tuple[Rows, NDArray[np.object_]]:
    """The patches of a slide whose centre lies in a region of a GeoJSON file, and the class of that region.

    Only what people drew counts, so that our own boxes do not come back. Of regions that overlap the smallest wins.
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
    """Where QuPath's coordinates of a slide begin; refuses a slide whose patches have no place."""
    if (session.store.table.column("x")[shown.rows] < 0).any():
        raise UserError("these patches were imported as files: it is not known where on a slide they are.")
    return session.store.record(shown.entry).origin or (0, 0)


def _find_class(classes: Column | None, row: int) -> tuple[str | None, tuple[int, int, int] | None]:
    """The name and the colour of the class of a patch."""
    if classes is None or classes.codes[row] < 0:
        return None, None
    red, green, blue = bytes.fromhex(classes.colours[classes.codes[row]][1:])
    return classes.names[classes.codes[row]], (red, green, blue)


def _is_within(points: NDArray[np.floating], region: Region) -> NDArray[np.bool_]:
    """(N,) whether points lie inside an odd number of rings: in an outline, and not in a hole of it."""
    is_odd = np.zeros(len(points), bool)
    for ring in region.rings:
        is_odd ^= is_inside(points, ring)
    return is_odd


def _measure_area(region: Region) -> float:
    """Of its outlines without their holes, in px."""
    return sum(_measure_ring(outline) - sum(map(_measure_ring, holes)) for outline, *holes in region.polygons)


def _measure_ring(ring: Ring) -> float:
    """The area of a ring (n, 2), by the sum of its cross products."""
    x, y = (ring - ring[0]).T
    return abs(float((x * np.roll(y, -1) - y * np.roll(x, -1)).sum())) / 2

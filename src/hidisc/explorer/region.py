"""Which patches a person means: some rows, what an outline on the map holds, or a rectangle on a slide."""

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from hidisc.explorer.session import Rows, Session
from hidisc.ground.errors import UserError
from hidisc.ground.files import Record

CODES = r"^(\d+(,\d+)*)?$"
"""Numbers, and commas between them."""


class Region(Record):
    """One of the three."""

    rows: tuple[int, ...] = Field((), max_length=20_000)
    polygon: tuple[tuple[float, float], ...] = Field((), max_length=5_000)
    """Corners on the map."""
    by: str = ""
    only: str = Field("", pattern=CODES)
    """The map shows only these codes of the column `by`, and the polygon holds only what is shown."""
    slide: int | None = None
    box: tuple[float, float, float, float] | None = None
    """Left, top, right and bottom on the slide, in level-0 px; a patch is in it with its centre."""


def find_rows(session: Session, region: Region) -> Rows:
    """(n,) rows of the store; refuses a region without patches."""
    if region.polygon:
        is_shown = find_shown(session, region.by, region.only)
        rows = session.embedded[is_shown & is_inside(session.places, np.array(region.polygon))]
    elif region.slide is not None and region.box is not None:
        shown = session.show(check_slide(session, region.slide))
        centres = shown.corners + shown.extent / 2
        rows = shown.rows[((centres >= region.box[:2]) & (centres <= region.box[2:])).all(axis=1)]
    else:
        rows = np.array(region.rows, np.int64)
        if len(rows) and not 0 <= rows.min() <= rows.max() < len(session.store):
            raise UserError("there is no such patch.")
    if not len(rows):
        raise UserError("there is no patch in this region. Draw around some.")
    return rows


def find_shown(session: Session, by: str, only: str) -> NDArray[np.bool_]:
    """(N,) which vectors the map shows: those whose code of a column is among `only`, or all."""
    if not only:
        return np.ones(len(session.embedded), bool)
    return np.isin(session.find_column(by).codes[session.embedded], [int(code) for code in only.split(",")])


def check_slide(session: Session, number: int) -> int:
    """The number, if there is such a slide."""
    if not 0 <= number < len(session.slides):
        raise UserError("there is no such slide.")
    return number


def is_inside(points: NDArray[np.floating], polygon: NDArray[np.float64]) -> NDArray[np.bool_]:
    """(N,) whether points (N, 2) lie in a polygon (K, 2), by the even-odd rule.

    A line from such a point to the right crosses an odd number of edges. Only points within its bounds are compared.
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

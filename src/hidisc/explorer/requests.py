"""The requests of the page: records that are checked before anything is done.

Rows are those of the store's table; places are on the map, between 0 and 1; corners are level-0 px of a slide.
"""

from typing import Literal

from pydantic import Field

from hidisc.explorer.regions import CODES, MOST_LETTERS, Number, Selection
from hidisc.ground.files import Record


class EmptyRequest(Record):
    """A request without details."""


class MapRequest(Record):
    """A part of the map."""

    by: str
    row: int | None = None
    """The patch that all patches are compared with, where the map is coloured by similarity."""
    only: str = Field("", pattern=CODES)
    x0: Number = 0.0
    y0: Number = 0.0
    x1: Number = 1.0
    y1: Number = 1.0
    width: int = Field(600, ge=16, le=3000)
    height: int = Field(600, ge=16, le=3000)


class PatchRequest(Record):
    """A patch by its row, and the side of its picture in px."""

    row: int
    side: int = Field(96, ge=16, le=512)


class SlideRequest(Record):
    """A slide by its number."""

    slide: int


class TileRequest(SlideRequest):
    """A tile of a slide."""

    level: int = Field(ge=0, le=30)
    column: int = Field(ge=0)
    line: int = Field(ge=0)


class OverlayRequest(SlideRequest):
    """What a column says of the patches of a slide."""

    by: str
    row: int | None = None


class SelectionRequest(Record):
    """A selection."""

    region: Selection


class SimilarRequest(SelectionRequest):
    """A selection, to which similar patches are sought."""

    apart: Literal["", "slide", "patient"] = ""
    """Leave out patches of the same slide, or of the same patient."""
    most: int = Field(24, ge=1, le=500)


class LabelSetRequest(Record):
    """A set of labels by its name."""

    set: str


class ChangeRequest(LabelSetRequest):
    """A change of a set of labels, or its undoing, by one visitor."""

    visitor: str = Field("", max_length=64)
    """A number that the page draws, so that each browser undoes its own changes."""


class NameRequest(ChangeRequest, SelectionRequest):
    """A name for the patches of a selection; null takes their names away."""

    label: str | None


class RegionsRequest(ChangeRequest, SlideRequest):
    """Regions of a slide that were drawn in QuPath."""

    file: str = Field(max_length=MOST_LETTERS)
    """The content of the GeoJSON file."""

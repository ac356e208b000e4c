"""The report's page: one HTML file that holds all it shows, and asks nothing of the network."""

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from hidisc.reporting.drawings import Drawing
from hidisc.reporting.html import BasePage, fill_template
from hidisc.reporting.points import Column
from hidisc.reporting.sheets import SheetRow
from hidisc.reporting.table import Table
from hidisc.reporting.tiles import Sprite
from hidisc.reporting.verdict import Verdict
from hidisc.settings.level_names import LevelNames

MAP_SIDE = 9999
"""Coordinates on the map are whole numbers up to this: half the characters, and finer than any screen."""


@dataclass(frozen=True)
class About:
    """What one encoder is and how it was judged."""

    name: str
    facts: tuple[tuple[str, str], ...]
    tables: tuple[Table, ...]
    settings: str = ""


@dataclass(frozen=True)
class ProbePart:
    """Tables of one way of asking, some of them folded away."""

    tables: tuple[Table, ...]
    folded: tuple[Table, ...] = ()


@dataclass(frozen=True)
class Panel:
    """The map of one encoder: n of the M patches."""

    name: str
    patch: NDArray[np.int64]
    """(n,) which of the M patches, each once."""
    xy: NDArray[np.floating[Any]]
    """(n, 2)."""
    predicted: NDArray[np.int64] | None
    """(n,) codes into the names of the `label` column."""


@dataclass(frozen=True)
class PatchMap:
    """Maps of the same patches by several encoders; the first column is `label`."""

    sentence: str
    panels: tuple[Panel, ...]
    columns: tuple[Column, ...]
    colours: tuple[str, ...]
    """Of the classes."""
    sprite: Sprite | None
    """Pictures of the M patches, in their order."""
    reasons: tuple[str, ...] = ()
    """Why pictures are missing."""
    static: tuple[Drawing, ...] = ()
    """The maps for paper."""

    @property
    def names(self) -> tuple[str, ...]:
        """Of the encoders."""
        return tuple(panel.name for panel in self.panels)

    @property
    def sprites(self) -> tuple[str, ...]:
        """Addresses of the pictures."""
        return self.sprite.uris if self.sprite else ()


@dataclass(frozen=True)
class Sheet:
    """Nearest neighbours of patches of one encoder."""

    name: str
    right: bool
    """Whether its patches were predicted correctly."""
    rows: tuple[SheetRow, ...]
    votes: str = ""
    """How many neighbours vote, and how many of them are shown, in a sentence."""


@dataclass(frozen=True, kw_only=True)
class Page(BasePage):
    """All that the page shows, in its order."""

    names: tuple[str, ...]
    verdicts: tuple[Verdict, ...]
    compared: tuple[str, ...]
    abouts: tuple[About, ...]
    probes: tuple[ProbePart, ...]
    confusions: tuple[tuple[Drawing, ...], ...]
    """Those of one group stand beside each other."""
    curves: tuple[Drawing, ...]
    map: PatchMap | None
    """None where no embeddings are there."""
    crops: tuple[Drawing, ...]
    sheets: tuple[Sheet, ...]
    no_sheets: tuple[str, ...]
    """Why sheets or their pictures are missing."""
    training: tuple[Drawing, ...]
    diagnostics: tuple[Table, ...]
    compared_note: str = ""
    """What to note about the comparisons."""

    @property
    def judged(self) -> bool:
        """Whether anything was evaluated."""
        return any(verdict.numbers for verdict in self.verdicts)

    @property
    def judge(self) -> str:
        """Who judged first."""
        return next((verdict.judge for verdict in self.verdicts if verdict.numbers), "")

    @property
    def contents(self) -> tuple[tuple[str, str], ...]:
        """Sections there are: id and title."""
        shown = {
            ("verdict", "Verdict"): True,
            ("evaluated", "What was evaluated" if self.judged else "What was embedded"): True,
            ("metrics", "Metrics"): self.probes,
            ("map", "Map of the patches"): True,
            ("neighbours", "Nearest neighbours"): self.sheets or self.no_sheets,
            ("training", "Training"): self.training,
            ("diagnostics", "Diagnostics"): self.diagnostics,
            ("about", "To cite, versions, files"): True,
        }
        return tuple(section for section, there in shown.items() if there)


def render(page: Page) -> str:
    """The page as HTML; everything that files supplied is escaped."""
    drawn_map = Markup(to_json(_map_data(page.map, page.words))) if page.map else ""
    return fill_template("page.html", scripts=("page.js", "contents.js"), page=page, map_json=drawn_map)


def to_json(data: Any) -> str:
    """JSON that may stand inside a script element: nothing in it can end the element, or be read as HTML."""
    text = json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _map_data(patches: PatchMap, words: LevelNames) -> dict[str, Any]:
    """What page.js reads."""
    sprite = patches.sprite
    return {
        "sprite": {"side": sprite.side_px, "across": sprite.across, "each": sprite.each} if sprite else None,
        "colours": patches.colours,
        "columns": [
            {
                "key": column.key,
                "title": words.speak(column.title),
                "names": column.names,
                "codes": column.codes.tolist(),
            }
            for column in patches.columns
        ],
        "panels": [
            {
                "name": panel.name,
                "patch": panel.patch.tolist(),
                **dict(zip("xy", _to_grid(panel.xy).T.tolist(), strict=True)),
                "predicted": None if panel.predicted is None else panel.predicted.tolist(),
            }
            for panel in patches.panels
        ],
    }


def _to_grid(xy: NDArray[np.floating[Any]]) -> NDArray[np.int64]:
    """Points (n, 2) as whole numbers from 0 to MAP_SIDE, in their own proportions and centred."""
    low, high = xy.min(axis=0), xy.max(axis=0)
    extent = max(float((high - low).max()), 1e-12)
    return np.round(((xy - (low + high) / 2) / extent + 0.5) * MAP_SIDE).astype(np.int64)

"""Figures on their way to a page: written as files, and shown in it."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.text import Text
from PIL import Image

from hidisc.ground.files import write_atomic
from hidisc.reporting.captions import encode, to_address
from hidisc.reporting.figures import render
from hidisc.settings.level_names import USUAL, LevelNames

_PX_AN_INCH = 108


@dataclass(frozen=True)
class Drawing:
    """A figure on the page."""

    caption: str
    uri: str
    width_px: int
    """At which its letters are as large as the page's; never shown larger."""


class FigureFolder:
    """Writes figures as they are drawn, and makes them ready for the page."""

    def __init__(self, folder: Path, names: Sequence[str], words: LevelNames = USUAL) -> None:
        """`names`: of the encoders, which are parts of the files' names; `words`: what figures call the levels."""
        self._folder, self._words = folder, words
        self._slugs = {name: make_slug(number, name) for number, name in enumerate(names, 1)}
        self.names: list[str] = []

    def slug(self, name: str) -> str:
        """What the files of an encoder are called."""
        return self._slugs[name]

    def save(self, name: str, figure: Figure) -> None:
        """Write NAME.pdf and NAME.png."""
        for text in figure.findobj(Text):
            text.set_text(self._words.speak(text.get_text()))
        self._folder.mkdir(parents=True, exist_ok=True)
        for suffix in ("pdf", "png"):
            write_atomic(self._folder / f"{name}.{suffix}", render(figure, suffix))
        self.names.append(name)

    def add(self, name: str, figure: Figure, caption: str, dots: bool = False) -> Drawing:
        """Write it and show it; `dots`: as pixels, for one path per dot takes ten times as much."""
        self.save(name, figure)
        width_px = round(_PX_AN_INCH * figure.get_figwidth())
        if dots:
            return Drawing(caption, to_address("image/png", _thin(self._folder / f"{name}.png")), width_px)
        return Drawing(caption, to_address("image/svg+xml", render(figure, "svg")), width_px)


def _thin(path: Path) -> bytes:
    """A PNG with as many colours as a figure needs, a third of the bytes."""
    with Image.open(path) as image:
        return encode(image.convert("RGB").quantize(128, dither=Image.Dither.NONE), "PNG", optimize=True)


def make_slug(number: int, name: str) -> str:
    """A name as part of a file's name, unique by its number."""
    plain = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:40].strip("-")
    return f"{number}-{plain}" if plain else str(number)

"""The style and the files of all figures, and names that are cut to fit."""

import io
import re
import warnings
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import TextToPath
from numpy.typing import NDArray
from PIL import Image

from hidisc.ground.files import write_atomic
from hidisc.ground.text import printable
from hidisc.reporting.prepared import encode, to_address

_PX_AN_INCH = 108


@dataclass(frozen=True)
class Drawing:
    """A figure on the page."""

    caption: str
    uri: str
    width_px: int
    """The width at which its letters are as large as those of the page; it is never shown larger."""


class FigureFolder:
    """Writes figures as they are drawn, and makes them ready for the page."""

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        """`names` of the encoders, which become parts of the names of files."""
        self._folder = folder
        self._slugs = {name: make_slug(number, name) for number, name in enumerate(names, 1)}
        self.names: list[str] = []

    def slug(self, name: str) -> str:
        """The name of an encoder as part of the names of files."""
        return self._slugs[name]

    def save(self, name: str, figure: Figure) -> None:
        """Write NAME.pdf and NAME.png."""
        self._folder.mkdir(parents=True, exist_ok=True)
        for suffix in ("pdf", "png"):
            write_atomic(self._folder / f"{name}.{suffix}", render(figure, suffix))
        self.names.append(name)

    def add(self, name: str, figure: Figure, caption: str, dots: bool = False) -> Drawing:
        """Write a figure and return it for the page; `dots`: as pixels, which take a tenth of the bytes."""
        self.save(name, figure)
        width_px = round(_PX_AN_INCH * figure.get_figwidth())
        if dots:
            with Image.open(self._folder / f"{name}.png") as image:  # fewer colours take a third of the bytes
                few_colours = image.convert("RGB").quantize(128, dither=Image.Dither.NONE)
            return Drawing(caption, to_address("image/png", encode(few_colours, "PNG", optimize=True)), width_px)
        return Drawing(caption, to_address("image/svg+xml", render(figure, "svg")), width_px)


def make_slug(number: int, name: str) -> str:
    """A name as part of a file's name, unique by its number."""
    plain = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:40]
    return f"{number}-{plain}".strip("-")


Floats = NDArray[np.floating[Any]]

INK, GREY, PALE = "#28282e", "#8c8c93", "#dcdce1"
OKABE_ITO = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#4D4D4D", "#F0E442")
"""Okabe and Ito's colours, which differ with any colour vision; their black is softened, and yellow comes last."""
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
DASHES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1.2, 1.2)), (0, (6, 1.5, 1.2, 1.5)))
"""Line styles in turn; beyond the eighth line, colours and styles together still differ."""
_PNG_DPI = 200
_NO_DATES = {
    "pdf": {"CreationDate": None, "Producer": None, "Creator": None},
    "png": {"Software": None},
    "svg": {"Date": None, "Creator": None},
}
FONT_PT, TITLE_PT, HEAD_PT, LEGEND_PT = 9, 10, 11, 8
_STYLE: dict[str, Any] = {
    "font.size": FONT_PT,
    "axes.titlesize": TITLE_PT,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelcolor": INK,
    "axes.edgecolor": GREY,
    "axes.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
    "legend.fontsize": LEGEND_PT,
    "figure.titlesize": HEAD_PT,
    "figure.titleweight": "bold",
    "figure.constrained_layout.use": True,
    "text.parse_math": False,
    "text.usetex": False,
    "svg.hashsalt": "hidisc",
    "svg.fonttype": "path",
    "pdf.fonttype": 42,
}


@contextmanager
def figure_style() -> Iterator[None]:
    """Draw in our style, whatever the user's matplotlibrc says; a letter that the font lacks is a box."""
    with style.context(["default", _STYLE]), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        yield


def palette(count: int) -> list[str]:
    """`count` colours: Okabe and Ito's up to eight, else Glasbey's, none grey or pale, which repeat after 211."""
    if count <= len(OKABE_ITO):
        return list(OKABE_ITO[:count])
    import colorcet

    vivid = [name for name in colorcet.glasbey if np.ptp(to_rgb(name)) > 0.2 and np.mean(to_rgb(name)) < 0.85]
    return [vivid[number % len(vivid)] for number in range(count)]


def shorten(text: str, most: int = 24) -> str:
    """A printable name on one line; a long name is cut in the middle, because names often differ at their end."""
    line = printable(text)
    if len(line) <= most:
        return line
    head = most // 2
    return f"{line[:head]}…{line[len(line) - (most - 1 - head) :]}"


def fit(text: str, inches: float, size_pt: float, weight: str = "normal") -> str:
    """A name, cut as by `shorten` to the longest text that fits a width."""
    line = printable(text)[:1000]
    if measure(line, size_pt, weight) <= inches:
        return line
    most = bisect_right(range(1, len(line)), inches, key=lambda count: measure(shorten(line, count), size_pt, weight))
    return shorten(line, max(1, most))


def break_lines(text: str, inches: float, size_pt: float, weight: str = "normal") -> list[str]:
    """Text in lines of a width, broken between words."""
    lines: list[str] = []
    for word in printable(text).split(" "):
        longer = f"{lines[-1]} {word}" if lines else word
        if lines and measure(longer, size_pt, weight) <= inches:
            lines[-1] = longer
        else:
            lines.append(fit(word, inches, size_pt, weight))
    return lines


def measure(text: str, size_pt: float, weight: str) -> float:
    """The width of a line of text in inches; only valid inside `figure_style`, which sets the font."""
    font = FontProperties(size=size_pt, weight=weight)
    return float(TextToPath().get_text_width_height_descent(text, font, False)[0]) / 72


def lay_panels(
    count: int, most_across: int, width_in: float, height_in: float, above_in: float = 0.0
) -> tuple[Figure, list[Axes]]:
    """A figure with `count` panels in rows, each of a width and height; panels beyond `count` are hidden."""
    across = min(most_across, max(1, count))
    down = -(-max(1, count) // across)
    figure = Figure(figsize=(width_in * across, height_in * down + above_in))
    panels = list(figure.subplots(down, across, squeeze=False).ravel())
    for axes in panels[count:]:
        axes.set_visible(False)
    return figure, panels


def settle(figure: Figure, title: str | None = None) -> Figure:
    """Fix the layout of a figure, under a title of at most two lines.

    Without this every drawing would compute the layout again, and squares and legends would move a little.
    """
    if title is not None:
        room = 0.96 * figure.get_figwidth()
        first, *rest = break_lines(title, room, HEAD_PT, "bold")
        figure.suptitle(f"{first}\n{fit(' '.join(rest), room, HEAD_PT, 'bold')}" if rest else first)
    for _ in range(2):
        figure.draw_without_rendering()
    figure.set_layout_engine("none")
    return figure


def entry(name: str) -> str:
    """A name in a legend, from which matplotlib leaves out those that begin with an underscore."""
    short = fit(name, 1.4, LEGEND_PT)
    return f" {short}" if short.startswith("_") else short


@figure_style()
def render(figure: Figure, suffix: str) -> bytes:
    """The bytes of a PDF, PNG or SVG file, without date or version."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format=suffix, dpi=_PNG_DPI, metadata=_NO_DATES[suffix])
    return buffer.getvalue()

"""The columns by which patches are coloured and filtered: a code per patch, and a name and a colour per code."""

import colorsys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hidisc.evaluation.predictions import Predictions
from hidisc.patches.table import PatchTable
from hidisc.slides.names import address_computed, is_address

CLASSES = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#4D4D4D", "#F0E442")
"""Okabe and Ito's colours, as in the figures of a report."""
VIRIDIS = ("#440154", "#482878", "#3e4989", "#31688e", "#26828e", "#1f9e89", "#35b779", "#6ece58", "#b5de2b", "#fde725")
"""Ten equal steps of a number, low to high."""
RIGHT, WRONG = "#7fb8ae", "#c8401a"
_FIRST = ("label", "patient", "slide", "site", "split")
CLUSTER, SIMILARITY = address_computed("cluster"), address_computed("similarity")


@dataclass(frozen=True, eq=False)
class Column:
    """One column: a code for each of N patches, and a name and a colour for each code."""

    title: str
    names: tuple[str, ...]
    codes: NDArray[np.int32]
    """Codes (N,) into `names`; -1 where the name is not known."""
    colours: tuple[str, ...]
    """The colour of each name, as `#rrggbb`."""
    values: NDArray[np.float32] | None = None
    """The numbers (N,) of a column whose names are ranges of numbers; None for a column of names."""
    range: tuple[float, float] | None = None
    """Where the colours of a column of numbers begin and end."""

    def tell(self, row: int) -> str | None:
        """The name or number of one patch; None where it is not known."""
        code = self.codes[row]
        if code < 0:
            return None
        return self.names[code] if self.values is None else f"{self.values[row]:.3f}"

    def list_cells(self, rows: NDArray[np.int64]) -> list[Any]:
        """The names or numbers of some patches as cells of a table; None where they are not known."""
        codes = self.codes[rows]
        known = np.array([*self.names, None], object)[codes]
        if self.values is not None:
            known[codes >= 0] = self.values[rows][codes >= 0].astype(float).round(4)
        cells: list[Any] = known.tolist()
        return cells


def name_columns(table: PatchTable) -> dict[str, Column]:
    """The columns of names of a table that have a value, by their names, the usual ones first.

    A column of a store of hidisc 0.3 that is called like an address is left out.
    """
    own = [name for name in table.names if name != "name" and not is_address(name)]
    order = [*_FIRST, *(name for name in own if name not in _FIRST)]
    columns = {}
    for key in order:
        codes, names = table.codes(key)
        if (codes >= 0).any():
            columns[key] = Column("class" if key == "label" else key, names, codes, choose_colours(len(names)))
    return columns


def score_columns(
    predictions: Predictions, rows: NDArray[np.int64], total: int, evaluation: str, known: Mapping[str, Column]
) -> dict[str, Column]:
    """Columns of what a probe predicted for some patches (`rows` of `total`): class, right or wrong, scores of classes.

    `evaluation` is the title of the evaluation; empty where there is only one. A class has the same colour as in the
    column of labels.
    """
    label = known.get("label")
    colours = dict(zip(label.names, label.colours, strict=True)) if label else {}
    spare = choose_colours(len(predictions.classes))
    named = tuple(colours.get(name, spare[code]) for code, name in enumerate(predictions.classes))
    wrong = predictions.predicted != predictions.truth
    by = f", {evaluation}" if evaluation else ""
    predicted, is_wrong = (_spread(codes, rows, total) for codes in (predictions.predicted, wrong))
    columns = {
        address_predicted(evaluation): Column(f"predicted{by}", predictions.classes, predicted, named),
        address_computed(f"right{by}"): Column(f"right or wrong{by}", ("right", "wrong"), is_wrong, (RIGHT, WRONG)),
    }
    for code, name in enumerate(predictions.classes):
        values = np.full(total, np.nan, np.float32)
        values[rows] = predictions.scores[:, code]
        columns[address_computed(f"score {code}{by}")] = number_column(f"score: {name}{by}", values, 0.0, 1.0)
    return columns


def address_predicted(evaluation: str) -> str:
    """The address of the class that an evaluation predicted; `evaluation` as in `score_columns`."""
    return address_computed(f"predicted, {evaluation}" if evaluation else "predicted")


def attention_column(
    title: str, weights: NDArray[np.float32], slides: NDArray[np.int32], rows: NDArray[np.int64], total: int
) -> Column:
    """Attention (n,) of some patches (`rows` of `total`) of some slides (n,), as a share of the slide's largest.

    Attention sums to 1 over a slide, so that it is lower where a slide has more patches.
    """
    largest = np.zeros(int(slides.max(initial=-1)) + 1, np.float32)
    np.fmax.at(largest, slides, weights)
    values = np.full(total, np.nan, np.float32)
    values[rows] = weights / largest[slides]
    return number_column(title, values, 0.0, 1.0)


def cluster_column(clusters: NDArray[np.int32], rows: NDArray[np.int64], total: int) -> Column:
    """The clusters of some patches (`rows` of `total`), counted from 1."""
    names = tuple(f"cluster {number + 1}" for number in range(int(clusters.max(initial=-1)) + 1))
    return Column("cluster", names, _spread(clusters, rows, total), choose_colours(len(names)))


def number_column(title: str, values: NDArray[np.float32], low: float, high: float) -> Column:
    """A column of ten equal ranges of numbers (N,) from `low` to `high`; NaN is not known."""
    steps = len(VIRIDIS)
    width = (high - low) / steps or 1.0
    with np.errstate(invalid="ignore"):
        codes = np.floor((values - low) / width).clip(0, steps - 1)
    edges = [low + width * step for step in range(steps + 1)]
    names = tuple(f"{edges[step]:.2f} to {edges[step + 1]:.2f}" for step in range(steps))
    codes = np.where(np.isnan(values), -1, codes).astype(np.int32)
    return Column(title, names, codes, VIRIDIS, values, (low, high))


def choose_colours(count: int) -> tuple[str, ...]:
    """Colours for `count` names: up to eight differ with any colour vision; of more, neighbours differ most."""
    if count <= len(CLASSES):
        return CLASSES[:count]
    turns = [((number * 0.381966 + 0.58) % 1, (0.45, 0.58, 0.34)[number % 3]) for number in range(count)]
    triples = [colorsys.hls_to_rgb(hue, lightness, 0.62) for hue, lightness in turns]
    return tuple("#" + "".join(f"{round(255 * part):02x}" for part in triple) for triple in triples)


def as_rgb_table(colours: Sequence[str]) -> NDArray[np.float64]:
    """The colours as a table (L + 1, 3) of 0 to 255; its last row, which is that of code -1, is grey."""
    triples = [[int(colour[start : start + 2], 16) for start in (1, 3, 5)] for colour in colours]
    return np.array([*triples, [180, 184, 182]], np.float64)


def _spread(values: NDArray[Any], rows: NDArray[np.int64], total: int) -> NDArray[np.int32]:
    """Codes (total,) that are `values` in some rows and -1 in all others."""
    codes = np.full(total, -1, np.int32)
    codes[rows] = values
    return codes

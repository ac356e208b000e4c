"""Cells of a table: a metric of a model's evaluations, and which of a column are the best."""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from hidisc.evaluation.scores import Value
from hidisc.reporting.evaluated import EvaluatedModel
from hidisc.reporting.table import DASH, LABELLED, Table

TITLES = {"mca": "MCA", "auroc": "AUROC", "auprc": "AUPRC", "top2": "Top-2", "top3": "Top-3"}


@dataclass(frozen=True)
class Cell:
    """A number as it is printed, and its error range."""

    text: str
    value: float | None = None
    low: float = 0.0
    high: float = 0.0
    """Ends of the error range: mean - sd and mean + sd, or those of the interval; the value where there is neither."""
    why: str = ""
    """Why the number is undefined, or what to note about it."""


@dataclass(frozen=True)
class Row:
    """One row of a table of numbers."""

    names: tuple[str, ...]
    """Its block (a level or a class), then its method."""
    cells: Sequence[Cell]
    """One per metric."""
    competes: bool = True
    """Whether it may be the best; rows that learned from labels may not, as in the paper."""
    group: Hashable = None
    """Rows are compared within their group; None: within their block."""


def lay_rows(title: str, columns: Sequence[str], rows: Sequence[Row], notes: Iterable[str]) -> Table:
    """The table of some rows, the best of every group and metric in bold."""
    groups: dict[Hashable, list[int]] = defaultdict(list)
    for number, row in enumerate(rows):
        groups[row.names[0] if row.group is None else row.group].append(number)
    lead = len(columns) - len(rows[0].cells)
    bold = {
        (numbers[at], lead + column)
        for numbers in groups.values()
        for at, column in find_best([rows[number] for number in numbers])
    }
    texts = tuple((*row.names, *(cell.text for cell in row.cells)) for row in rows)
    return Table(title, tuple(columns), texts, tuple(notes), lead, frozenset(bold))


def find_best(rows: Sequence[Row]) -> set[tuple[int, int]]:
    """(row, column) of the best cell of each column and of those whose error range overlaps that of the best.

    Where all overlap, nothing is the best. With standard deviations this is the paper's own bold type: 88.1 (0.5)
    beside 88.5 (0.2), but not 85.5 (0.3) beside 86.2 (0.2).
    """
    best = set()
    for column in range(len(rows[0].cells) if rows else 0):
        known = {number: row.cells[column] for number, row in enumerate(rows) if row.competes}
        known = {number: cell for number, cell in known.items() if cell.value is not None}
        if known:
            top = max(known.values(), key=lambda cell: cell.value or 0.0)
            near = {(number, column) for number, cell in known.items() if cell.high >= top.low - 1e-12}
            best |= near if len(near) < len(known) else set()
    return best


def make_cell(values: Sequence[Value]) -> Cell:
    """One metric of a model's evaluations: `87.4 (0.1)` of several, `87.4 [81.2, 92.0]` of one, all in percent."""
    undefined = [value for value in values if value.value is None]
    why = next((value.why for value in [*undefined, *values] if value.why), "")
    known = [value.value for value in values if value.value is not None]
    if undefined or not known:
        return Cell(DASH, why=why or "not judged")
    if len(known) > 1:  # the interval of one seed is not shown, nor what is to note about it
        mean, sd = float(np.mean(known)), float(np.std(known, ddof=1))
        return Cell(show_spread(known, percent), mean, mean - sd, mean + sd)
    low, high = values[0].low, values[0].high
    if low is None or high is None:
        return Cell(percent(known[0]), known[0], known[0], known[0], why)
    return Cell(f"{percent(known[0])} [{percent(low)}, {percent(high)}]", known[0], low, high, why)


def metric_cell(model: EvaluatedModel, probe: str, level: str, name: str) -> Cell:
    """One metric of a model at one level by one probe."""
    return make_cell([found.metrics[name] for found in model.find_levels(probe, level) if name in found.metrics])


def metric_values(model: EvaluatedModel, probe: str, level: str, name: str) -> list[float]:
    """A metric of each evaluation of a model, those in which it is undefined left out."""
    values = [scored.metrics[name].value for scored in model.find_levels(probe, level)]
    return [value for value in values if value is not None]


def class_cell(model: EvaluatedModel, probe: str, level: str, label: str, name: str) -> Cell:
    """The same of one class against the rest."""
    return make_cell([found.by_class[label][name] for found in model.find_levels(probe, level)])


def method_name(model: EvaluatedModel) -> str:
    """What a table calls a model; marked where it learned from labels."""
    return f"{model.name} {LABELLED}" if model.labels_used else model.name


def metric_title(metric: str) -> str:
    """A metric as a header shows it."""
    return TITLES.get(metric, metric.capitalize())


def show_spread(values: Sequence[float], show: Callable[[float], str]) -> str:
    """`mean (sd)` of several numbers, the number itself of one."""
    if len(values) == 1:
        return show(values[0])
    return f"{show(float(np.mean(values)))} ({show(float(np.std(values, ddof=1)))})"


def percent(share: float) -> str:
    """A share of 1 in percent."""
    return f"{100 * share:.1f}"


def plain(number: float) -> str:
    """A number with three digits."""
    return f"{number:.3g}"


def signed(share: float) -> str:
    """A difference in points, with its sign."""
    text = f"{100 * share:+.1f}"
    return text if float(text) else "0.0"

"""Cells of a table: a metric of a model's evaluations, and which of a column are the best."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from hidisc.evaluation.scores import LevelScores, ScoresInfo, Value
from hidisc.ground.errors import UserError
from hidisc.reporting.evaluated import EvaluatedModel
from hidisc.reporting.table import DASH, LABELLED

TITLES = {"mca": "MCA", "auroc": "AUROC", "auprc": "AUPRC", "top2": "Top-2", "top3": "Top-3"}


@dataclass(frozen=True)
class Cell:
    """A number as it is printed, and how far it may be off."""

    text: str
    value: float | None = None
    reach: float = 0.0
    """Its upper end: mean + sd, or that of the interval."""
    floor: float = 0.0
    """What another's upper end must reach to be as good: mean - sd, or the value itself where there is an interval.

    With standard deviations this is the paper's own bold type (88.1 (0.5) beside 88.5 (0.2), but not 85.5 (0.3)
    beside 86.2 (0.2)); bootstrap intervals are so much wider that their overlap would make nearly everything bold.
    """
    why: str = ""


def make_cell(values: Sequence[Value]) -> Cell:
    """One metric of a model's evaluations: `87.4 (0.1)` of several, `87.4 [81.2, 92.0]` of one, all in percent."""
    undefined = [value for value in values if value.value is None]
    why = next((value.why for value in [*undefined, *values] if value.why), "")
    known = [value.value for value in values if value.value is not None]
    if undefined or not known:
        return Cell(DASH, why=why or "not judged")
    if len(known) > 1:
        mean, sd = float(np.mean(known)), float(np.std(known, ddof=1))
        return Cell(
            show_spread(known, percent), mean, mean + sd, mean - sd
        )  # a seed's interval is not shown, nor its gaps
    only = values[0]
    if only.low is None or only.high is None:
        return Cell(percent(known[0]), known[0], known[0], known[0], why)
    return Cell(f"{percent(known[0])} [{percent(only.low)}, {percent(only.high)}]", known[0], only.high, known[0], why)


def metric_cell(model: EvaluatedModel, probe: str, level: str, name: str) -> Cell:
    """One metric of a model at one level by one probe."""
    return make_cell([found.metrics[name] for found in find_levels(model, probe, level) if name in found.metrics])


def metric_values(model: EvaluatedModel, probe: str, level: str, name: str) -> list[float]:
    """A metric of each evaluation of a model, those in which it is undefined left out."""
    found = [scored.metrics[name].value for scored in find_levels(model, probe, level)]
    return [value for value in found if value is not None]


def class_cell(model: EvaluatedModel, probe: str, level: str, label: str, name: str) -> Cell:
    """The same of one class against the rest."""
    return make_cell([found.by_class[label][name] for found in find_levels(model, probe, level)])


def find_levels(model: EvaluatedModel, probe: str, level: str) -> list[LevelScores]:
    """One level of one probe in each of a model's evaluations; none where any of them lacks it."""
    asked = [item for scores in model.scores for item in scores.info.probes if item.name == probe]
    found = [scored for item in asked if (scored := item.level(level)) is not None]
    return found if len(found) == len(model.scores) else []


def find_best(rows: Sequence[Sequence[Cell]], competing: Sequence[bool]) -> set[tuple[int, int]]:
    """(row, column) of the best cell of each column and of those within error of it.

    Rows that learned from labels do not compete, as in the paper; one competitor alone is not the best.
    """
    best = set()
    for column in range(len(rows[0]) if rows else 0):
        cells = {
            number: row[column]
            for number, (row, competes) in enumerate(zip(rows, competing, strict=True))
            if competes and row[column].value is not None
        }
        if len(cells) > 1:
            top = max(cells.values(), key=lambda cell: cell.value or 0.0)
            best |= {(number, column) for number, cell in cells.items() if cell.reach >= top.floor - 1e-12}
    return best


def first_info(judged: Sequence[EvaluatedModel]) -> ScoresInfo:
    """What all evaluations of a report share is known from the first."""
    info = judged[0].info if judged else None
    if info is None:
        raise UserError("nothing here has been evaluated by this probe at this level, so there is no table of it.")
    return info


def method_name(model: EvaluatedModel) -> str:
    """What a table calls a model; marked where it learned from labels."""
    return f"{model.name} {LABELLED}" if model.labels_used else model.name


def metric_title(metric: str) -> str:
    """A metric as a header shows it."""
    return TITLES.get(metric, metric.capitalize())


def pluralise(level: str, count: int = 2) -> str:
    """`slides` of `slide`."""
    if count == 1:
        return level
    return f"{level}es" if level.endswith(("s", "x", "ch", "sh")) else f"{level}s"


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

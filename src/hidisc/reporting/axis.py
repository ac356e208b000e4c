"""Numbers over a setting, over training steps, or over micrometres per pixel."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hidisc.evaluation.predictions import ENCODER
from hidisc.evaluation.scores import FLOORS, ScoresInfo
from hidisc.reporting.evaluated import EvaluatedModel
from hidisc.reporting.figures import (
    DASHES,
    GREY,
    MARKERS,
    TITLE_PT,
    entry,
    figure_style,
    fit,
    lay_panels,
    palette,
    settle,
    shorten,
)
from hidisc.reporting.table import DASH, Table, metric_values
from hidisc.settings.level_names import USUAL, LevelNames

KNOWN_COLUMNS = ("step", "learning_rate", "grad_norm", "effective_rank", "knn_accuracy", "images_per_s", "wait_share")
"""Columns of metrics.csv that are not losses; every other column is the loss or one of its terms."""


@dataclass(frozen=True)
class Line:
    """A line of values (n,) at places (n,)."""

    name: str
    places: Sequence[float]
    values: Sequence[float]
    errors: Any = None
    """Length of the error bars (n,), or their lengths down and up (2, n)."""
    is_floor: bool = False
    """Whether it is the line of a floor, which is grey and without marks, and drawn last."""


@figure_style()
def draw_lines(panels: Mapping[str, Sequence[Line]], axis: str, width_in: float, is_log: bool) -> Figure:
    """Panels side by side by their titles, each with lines and error bars, and one legend."""
    figure = Figure(figsize=(width_in, 3.2), layout="constrained")
    drawn = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for axes, (title, lines) in zip(drawn, panels.items(), strict=True):
        colours = palette(sum(not line.is_floor for line in lines))
        for number, line in enumerate(lines):
            if line.is_floor:
                axes.plot(line.places, line.values, color=GREY, label=line.name)
                continue
            axes.errorbar(
                line.places,
                line.values,
                yerr=line.errors,
                label=line.name,
                color=colours[number],
                marker=MARKERS[number % len(MARKERS)],
                linestyle=DASHES[number % len(DASHES)],
                markersize=4,
                capsize=2,
            )
        if is_log:
            places = sorted({place for line in lines for place in line.places})
            axes.set_xscale("log")
            axes.set_xticks(places, [f"{place:g}" for place in places])  # matplotlib's own are formulas
            axes.minorticks_off()
        axes.set_xlabel(axis)
        axes.set_title(f"{title} in %")
    figure.legend(*drawn[0].get_legend_handles_labels(), loc="outside right upper")
    return figure


def draw_axis(points: Sequence[tuple[float, EvaluatedModel]], axis: str, probe: str) -> Figure:
    """Some metrics of every level over the place of (place, model); a bar is the standard deviation of several seeds.

    The axis is logarithmic if its ends differ by a factor of 100 or more.
    """
    points = sorted(points, key=lambda point: point[0])
    places = [at for at, _ in points]
    info, words = points[0][1].scores[0].info, points[0][1].words
    levels = list(reversed(info.levels))
    panels: dict[str, list[Line]] = {}
    for metric in info.endpoint.list_metrics("axis"):
        lines = panels[metric.title] = []
        for level in levels:
            measured = [metric_values(model, probe, level, metric.key) for _, model in points]
            means = [100 * float(np.mean(values)) if len(values) else np.nan for values in measured]
            bars = [100 * np.std(values, ddof=1) if len(values) > 1 else 0.0 for values in measured]
            lines.append(Line(words.word(level), places, means, bars if any(bars) else None))
    return draw_lines(panels, axis, 9, min(places) > 0 and max(places) / min(places) >= 100)


@figure_style()
def draw_training(rows_by_name: Mapping[str, Sequence[Mapping[str, float]]], words: LevelNames = USUAL) -> Figure:
    """Rows of metrics.csv by name: the loss and its terms, a panel each; then effective rank (and kNN accuracy) of all.

    Losses of different objectives have different scales, so that they are not drawn over each other.
    """
    curves = {name: rows for name, rows in rows_by_name.items() if rows}
    shared = [
        (column, title)
        for column, title in (("effective_rank", "Effective rank"), ("knn_accuracy", "Accuracy of neighbours"))
        if any(column in row for rows in curves.values() for row in rows)
    ]
    figure, panels = lay_panels(len(curves) + len(shared), 3, 3.3, 2.9)
    for axes, (name, rows) in zip(panels, curves.items(), strict=False):
        terms = [column for column in rows[0] if column not in KNOWN_COLUMNS]
        _add_lines(axes, {words.word(term): _series(rows, term) for term in terms})
        axes.set_title(f"Loss of {fit(name, 1.9, TITLE_PT, 'bold')}")
    for axes, (column, title) in zip(panels[len(curves) :], shared, strict=False):
        series = {name: _series(rows, column) for name, rows in curves.items()}
        _add_lines(axes, {name: line for name, line in series.items() if line[0]})
        axes.set_title(title)
        axes.set_ylim(bottom=0)
    for axes in panels:
        axes.set_xlabel("Step")
    return settle(figure)


def _series(rows: Sequence[Mapping[str, float]], column: str) -> tuple[list[float], list[float]]:
    """The steps at which a column has a value, and these values."""
    known = [row for row in rows if math.isfinite(row.get(column, math.nan))]
    return [row["step"] for row in known], [row[column] for row in known]


def _add_lines(axes: Axes, lines: Mapping[str, tuple[Sequence[float], Sequence[float]]]) -> None:
    """Draw lines by their names, with a legend where it hides no line."""
    for number, (name, (steps, values)) in enumerate(lines.items()):
        axes.plot(
            steps,
            values,
            color=palette(len(lines))[number],
            linestyle=DASHES[number % len(DASHES)],
            linewidth=1.6,
            marker="o" if len(steps) == 1 else None,
            label=entry(name),
        )
    if lines:
        axes.legend(loc="best", handlelength=2.8)


def scales_table(models: Sequence[EvaluatedModel]) -> Table:
    """Every model at every scale and level, by the first evaluation and probe of each, beside its floors."""
    metrics = models[0].scores[0].info.endpoint.list_metrics("brief")
    rows = []
    for model in models:
        info = model.scores[0].info
        for scale in info.scales:
            for subject in _list_subjects(info):
                name = model.name if subject == ENCODER else f"{model.name}: {FLOORS[subject]}"
                for level in reversed(info.list_levels(subject=subject, scale=scale)):
                    values = (level.metrics[metric.key] for metric in metrics)
                    cells = (DASH if value.value is None else value.percent() for value in values)
                    rows.append((f"{scale:g} um/px", name, model.words.title(level.level), *cells))
    note = (
        "Patches of one scale, judged by reference patches of the same scale, in %; the other tables pool all scales."
    )
    titles = (metric.title for metric in metrics)
    return Table("Scale by scale", ("Scale", "Encoder", "Level", *titles), tuple(rows), (note,), lead=3)


def draw_scales(models: Sequence[EvaluatedModel]) -> Figure:
    """Accuracy over mpp, a panel per level and a line per model; bars are intervals, grey lines are floors."""
    first = models[0].scores[0].info
    panels: dict[str, list[Line]] = {}
    for level in [row.level for row in first.list_levels(scale=first.scales[0])][::-1]:
        lines = panels[f"{models[0].words.title(level)} accuracy"] = []
        for model in models:
            info = model.scores[0].info
            values, errors = _read_accuracy(info, level, ENCODER)
            lines.append(Line(shorten(model.name), info.scales, values, errors))
        for floor in first.floors:
            values, _ = _read_accuracy(first, level, floor.subject)
            lines.append(Line(floor.title, first.scales, values, is_floor=True))
    return draw_lines(panels, "um/px", 3.0 * len(panels) + 1.5, is_log=True)


def _list_subjects(info: ScoresInfo) -> list[str]:
    return [ENCODER, *(floor.subject for floor in info.floors)]


def _read_accuracy(info: ScoresInfo, level: str, subject: str) -> tuple[list[float], np.ndarray]:
    """Accuracy in % at every scale (NaN where it is not known), and the reach of its interval down and up (2, n)."""
    values, bars = [], []
    for scale in info.scales:
        row = info.find(level, subject=subject, scale=scale)
        accuracy = None if row is None else row.metrics["accuracy"]
        value = np.nan if accuracy is None or accuracy.value is None else 100 * accuracy.value
        low, high = (None, None) if accuracy is None else (accuracy.low, accuracy.high)
        values.append(value)
        bars.append((0.0, 0.0) if low is None or high is None else (value - 100 * low, 100 * high - value))
    return values, np.clip(np.array(bars).T, 0, None)

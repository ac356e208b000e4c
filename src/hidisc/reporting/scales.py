"""Every scale by itself: a table, and accuracy over micrometres per pixel."""

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from hidisc.evaluation.scores import LevelScores
from hidisc.reporting.evaluated import EvaluatedModel
from hidisc.reporting.figures import DASHES, GREY, MARKERS, figure_style, palette, shorten
from hidisc.reporting.table import DASH, Table

_METRICS = {"accuracy": "Accuracy", "mca": "MCA", "auroc": "AUROC"}


def scales_table(models: Sequence[EvaluatedModel]) -> Table:
    """Every model at every scale and level, by the first evaluation and probe of each, beside colour alone."""
    rows = []
    for model in models:
        info = model.scores[0].info
        for scale in info.scales:
            for who, levels in ((model.name, scale.levels), (f"{model.name}: colour alone", scale.floor)):
                for level in reversed(levels):
                    values = (level.metrics[name] for name in _METRICS)
                    cells = (DASH if value.value is None else value.percent() for value in values)
                    rows.append((f"{scale.mpp:g} um/px", who, level.level.capitalize(), *cells))
    note = (
        "Patches of one scale, judged by reference patches of the same scale, in %; the other tables pool all scales."
    )
    return Table("Scale by scale", ("Scale", "Encoder", "Level", *_METRICS.values()), tuple(rows), (note,), lead=3)


def draw_scales(models: Sequence[EvaluatedModel]) -> Figure:
    """Accuracy over mpp, a panel per level and a line per model; bars are intervals, the grey line is colour alone."""
    levels = [level.level for level in models[0].scores[0].info.scales[0].levels][::-1]
    colours = palette(len(models))
    with figure_style():
        figure = Figure(figsize=(3.0 * len(levels) + 1.5, 3.2), layout="constrained")
        panels = figure.subplots(1, len(levels), sharey=True, squeeze=False)[0]
        for panel, level in zip(panels, levels, strict=True):
            for number, model in enumerate(models):
                scales = model.scores[0].info.scales
                at = [scale.mpp for scale in scales]
                style = {"marker": MARKERS[number % len(MARKERS)], "markersize": 4}
                values, bars = _read([scale.levels for scale in scales], level)
                panel.errorbar(
                    at,
                    values,
                    yerr=bars,
                    label=shorten(model.name),
                    color=colours[number],
                    linestyle=DASHES[number % len(DASHES)],
                    capsize=2,
                    **style,
                )
            scales = models[0].scores[0].info.scales
            if any(scale.floor for scale in scales):
                floor, _ = _read([scale.floor for scale in scales], level)
                panel.plot([scale.mpp for scale in scales], floor, color=GREY, label="colour alone")
            places = sorted({scale.mpp for model in models for scale in model.scores[0].info.scales})
            panel.set_xscale("log")
            panel.set_xticks(places, [f"{place:g}" for place in places])  # matplotlib's own are formulas
            panel.minorticks_off()
            panel.set_xlabel("um/px")
            panel.set_title(f"{level.capitalize()} accuracy in %")
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right upper")
    return figure


def _read(scales: Sequence[Sequence[LevelScores]], level: str) -> tuple[list[float], np.ndarray]:
    """Accuracy in % at every scale, NaN where it is not known, and how far its interval reaches down and up (2, n)."""
    values, bars = [], []
    for levels in scales:
        found = next((one.metrics["accuracy"] for one in levels if one.level == level), None)
        value = np.nan if found is None or found.value is None else 100 * found.value
        low, high = (None, None) if found is None else (found.low, found.high)
        values.append(value)
        bars.append((0.0, 0.0) if low is None or high is None else (value - 100 * low, 100 * high - value))
    return values, np.clip(np.array(bars).T, 0, None)

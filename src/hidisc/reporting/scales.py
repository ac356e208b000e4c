"""Every scale by itself: a table, and accuracy over micrometres per pixel."""

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from hidisc.evaluation.scores import LevelScores
from hidisc.reporting.axis import Line, draw_lines
from hidisc.reporting.evaluated import EvaluatedModel
from hidisc.reporting.figures import shorten
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
    scales = [model.scores[0].info.scales for model in models]
    panels: dict[str, list[Line]] = {}
    for level in [level.level for level in scales[0][0].levels][::-1]:
        lines = panels[f"{level.capitalize()} accuracy"] = []
        for model, found in zip(models, scales, strict=True):
            values, errors = _read([scale.levels for scale in found], level)
            lines.append(Line(shorten(model.name), [scale.mpp for scale in found], values, errors))
        if any(scale.floor for scale in scales[0]):
            values, _ = _read([scale.floor for scale in scales[0]], level)
            lines.append(Line("colour alone", [scale.mpp for scale in scales[0]], values, is_floor=True))
    return draw_lines(panels, "um/px", 3.0 * len(panels) + 1.5, is_log=True)


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

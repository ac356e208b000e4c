"""A metric over a setting or over the steps of a training: the paper's ablation figures."""

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from hidisc.reporting.cells import metric_title, metric_values
from hidisc.reporting.evaluated import EvaluatedModel
from hidisc.reporting.figures import DASHES, MARKERS, OKABE_ITO, figure_style

_METRICS = ("accuracy", "mca")


def draw_axis(points: Sequence[tuple[float, EvaluatedModel]], axis: str, probe: str) -> Figure:
    """Accuracy and mean class accuracy of every level over `at` of (at, model); a bar is the sd of several seeds.

    The axis is logarithmic when its ends differ a hundredfold.
    """
    points = sorted(points, key=lambda point: point[0])
    places = [at for at, _ in points]
    levels = list(reversed(points[0][1].scores[0].info.levels)) if points else []
    with figure_style():
        figure = Figure(figsize=(9, 3.2), layout="constrained")
        panels = figure.subplots(1, len(_METRICS), sharey=True, squeeze=False)[0]
        for panel, metric in zip(panels, _METRICS, strict=True):
            for number, level in enumerate(levels):
                values = [metric_values(model, probe, level, metric) for _, model in points]
                means = [100 * np.mean(found) if len(found) else np.nan for found in values]
                bars = [100 * np.std(found, ddof=1) if len(found) > 1 else 0.0 for found in values]
                panel.errorbar(
                    places,
                    means,
                    yerr=bars if any(bars) else None,
                    label=level,
                    color=OKABE_ITO[number % len(OKABE_ITO)],
                    marker=MARKERS[number % len(MARKERS)],
                    linestyle=DASHES[number % len(DASHES)],
                    markersize=4,
                    capsize=2,
                )
            if places and min(places) > 0 and max(places) / min(places) >= 100:
                panel.set_xscale("log")
                panel.set_xticks(places, [f"{at:g}" for at in places])  # matplotlib's own are formulas
                panel.minorticks_off()
            panel.set_xlabel(axis)
            panel.set_title(f"{metric_title(metric)} in %")
        if levels:
            figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right upper")
    return figure

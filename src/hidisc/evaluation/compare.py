"""Is A better than B? The same patients are drawn for both, so what makes a patient hard for both cancels out."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from hidisc.errors import UserError
from hidisc.evaluation.bootstrap import draw_weights, find_interval, name_clusters, resample
from hidisc.evaluation.metrics import Floats, Measured, measure
from hidisc.evaluation.predictions import Predictions
from hidisc.evaluation.scores import METRICS
from hidisc.settings.judging import BootstrapConfig


@dataclass(frozen=True)
class Difference:
    """A's metric minus B's, over the patients that both judged."""

    value: float | None
    """None where the metric is undefined for either."""
    low: float | None
    high: float | None
    """Ends of its interval over patients; None where there is none."""
    share: float | None
    """Of the resamples in which A is better, ties half."""
    patients: int
    """Common to all evaluations (or sites, or whatever is coarsest)."""
    interval: float = 0.95
    """Share of the resamples between the ends."""
    cluster: str = "patient"
    """What was drawn."""
    why: str = ""
    """Why something is missing, or what to mind."""

    @property
    def enough(self) -> bool:
        """Whether there are patients enough to tell anything.

        Chance alone favours the same side in all P patients once in 2 ** (P - 1) times, whatever an interval says.
        """
        return 2.0 ** (1 - self.patients) <= 1 - self.interval

    @property
    def verdict(self) -> Literal["better", "worse", "unclear"]:
        """What can be said of A: better or worse only where there are patients enough and the interval leaves out 0."""
        if self.low is None or self.high is None or not self.enough or self.low <= 0 <= self.high:
            return "unclear"
        return "better" if self.low > 0 else "worse"

    def sentence(self, metric: str, a_name: str, b_name: str) -> str:
        """The verdict, no more than the numbers bear; `metric` as it is to be read, differences in points of 100."""
        if self.value is None:
            return f"{a_name} and {b_name} cannot be compared in {metric}: {self.why}"
        unclear = self.verdict == "unclear"
        start = f"{a_name} is {self.verdict} than {b_name} in {metric} by"
        start = f"no difference between {a_name} and {b_name} in {metric} can be told:" if unclear else start
        aside = [f"{self.patients:,} {self.cluster}{'' if self.patients == 1 else 's'}", self.why]
        sign = -1 if self.verdict == "worse" else 1  # turned, so that the reader need not
        if self.low is not None and self.high is not None:
            low, high = sorted((sign * self.low, sign * self.high))
            aside[0] += "" if self.enough else " are too few to tell"
            aside.insert(0, f"{100 * self.interval:g} % interval {_points(low)} to {_points(high)}")
        return f"{start} {_points(sign * self.value)} points ({'; '.join(filter(None, aside))})"


def compare(
    a: Sequence[Predictions], b: Sequence[Predictions], positive: int, config: BootstrapConfig, seed: int
) -> dict[str, Difference]:
    """How much better A is than B, by the names of METRICS.

    Each side is one level of one or more evaluations (seeds of a method), whose metrics are averaged within every
    resample. Only patients that all of them judged count.
    """
    names = _find_common(a, b)
    cluster, patients = next(iter(a[0].units)), len(names)
    points = [[measure(_keep(item, names), positive) for item in side] for side in (a, b)]
    drawn: list[dict[str, Floats]] = []
    if config.resamples and patients > 1:
        weights = draw_weights(patients, config.resamples, seed)
        drawn = [_average([resample(item, positive, weights, names) for item in side]) for side in (a, b)]
    found = {}
    for metric in METRICS:
        value, why = _subtract(metric, *points)
        low, high, share = None, None, None
        if value is not None and drawn:
            draws = np.round(drawn[0][metric] - drawn[1][metric], 12)  # the order of adding makes no winner
            low, high, why = find_interval(draws, config, cluster)
            share = _share_better(draws)
        elif value is not None:
            why = f"no interval: there is one {cluster} only" if config.resamples else "no interval: resamples=0"
        found[metric] = Difference(value, low, high, share, patients, config.interval, cluster, why)
    return found


def _find_common(a: Sequence[Predictions], b: Sequence[Predictions]) -> NDArray[np.object_]:
    """(P,) names of the patients in all; refuses what cannot be compared."""
    if not a or not b:
        raise UserError("nothing to compare: give one or more evaluations of each side.")
    first = a[0]
    names = set(first.clusters.tolist())
    for other in (*a, *b):
        if other.classes != first.classes:
            raise UserError(
                f"evaluations that tell apart {_list(first.classes)} and {_list(other.classes)} cannot be compared. "
                "Evaluate both with the same classes=[...], in one order."
            )
        if other.level != first.level:
            raise UserError(
                f"predictions of each {first.level} and of each {other.level} cannot be compared. "
                "Choose the same level of both."
            )
        if next(iter(other.units)) != next(iter(first.units)):
            raise UserError(
                f"evaluations by {next(iter(first.units))} and by {next(iter(other.units))} cannot be compared. "
                "Evaluate both with the same levels=[...]."
            )
        names &= set(other.clusters.tolist())
    if not names:
        raise UserError(
            f"no {next(iter(first.units))} was judged in all of the evaluations, so they cannot be compared. "
            "Evaluate both on the same queries=[...]."
        )
    ordered = name_clusters(first)
    return ordered[[name in names for name in ordered]]


def _keep(predictions: Predictions, names: NDArray[np.object_]) -> Predictions:
    """The units of some patients."""
    wanted = set(names.tolist())
    kept = np.array([name in wanted for name in predictions.clusters.tolist()], bool)
    units = {name: column[kept] for name, column in predictions.units.items()}
    return replace(predictions, units=units, truth=predictions.truth[kept], scores=predictions.scores[kept])


def _subtract(metric: str, a: Sequence[Measured], b: Sequence[Measured]) -> tuple[float | None, str]:
    """Mean of A's less mean of B's, or None and why."""
    values = [[one.metrics[metric] for one in side] for side in (a, b)]
    undefined = [value.why for side in values for value in side if value.value is None]
    if undefined:
        return None, undefined[0]
    means = [np.mean([value.value for value in side if value.value is not None]) for side in values]
    return round(float(means[0] - means[1]), 12), ""  # as the draws are


def _average(draws: Sequence[dict[str, Floats]]) -> dict[str, Floats]:
    """Mean over evaluations (B,), NaN where it is undefined for one of them."""
    return {metric: np.mean([one[metric] for one in draws], axis=0) for metric in METRICS}


def _share_better(draws: Floats) -> float | None:
    """Share of the defined differences (B,) above zero, zeros half."""
    defined = draws[~np.isnan(draws)]
    return float(((defined > 0) + 0.5 * (defined == 0)).mean()) if len(defined) else None


def _points(value: float) -> str:
    """A difference in points of 100; one too small for the first decimal is not shown as none."""
    points = 100 * value + 0.0  # no minus before a zero
    return f"{points:.1g}" if 0 < abs(points) < 0.05 else f"{points:.1f}"


def _list(classes: Sequence[str]) -> str:
    return f"[{', '.join(classes)}]"

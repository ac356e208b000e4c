"""Is A better than B? The same patients are drawn for both, so what makes a patient hard for both cancels out.

Another training of the same method, from another seed, would give other numbers as well. So the trainings of each side
are drawn too, each side's from its own: of one training a difference is about two encoders, of several about methods.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from hidisc.evaluation.bootstrap import draw_trainings, draw_weights, find_interval, name_clusters, resample
from hidisc.evaluation.metrics import Floats, Measured, measure
from hidisc.evaluation.predictions import Predictions
from hidisc.evaluation.scores import METRICS
from hidisc.ground.errors import UserError
from hidisc.settings.evaluate import BootstrapConfig


@dataclass(frozen=True)
class Difference:
    """A's metric minus B's, over the patients that both judged."""

    value: float | None
    """None where the metric is undefined for either."""
    low: float | None
    high: float | None
    """Ends of its interval over patients and trainings; None where there is none."""
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
    trainings: tuple[int, int] = (1, 1)
    """Of A and of B, each from a seed of its own."""

    @property
    def is_of_methods(self) -> bool:
        """Whether both have several trainings, so that the interval minds how far another seed would come out."""
        return min(self.trainings) > 1

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
        aside = [
            f"{self.patients:,} {self.cluster}{'' if self.patients == 1 else 's'}",
            self.counted_trainings,
            self.why,
        ]
        sign = -1 if self.verdict == "worse" else 1  # turned, so that the reader need not
        if self.low is not None and self.high is not None:
            low, high = sorted((sign * self.low, sign * self.high))
            aside[0] += "" if self.enough else " are too few to tell"
            aside.insert(0, f"{100 * self.interval:g} % interval {_points(low)} to {_points(high)}")
        return f"{start} {_points(sign * self.value)} points ({'; '.join(filter(None, aside))})"

    @property
    def counted_trainings(self) -> str:
        """How many trainings each has, in words."""
        a, b = self.trainings
        if a == b:
            return f"{a} trainings each" if a > 1 else "one training each"
        return f"{a} and {b} trainings"


Trainings = Sequence[Sequence[Predictions]]
"""One side of a comparison: the evaluations of each of its trainings (several samples of patches are no trainings)."""


def compare(a: Trainings, b: Trainings, positive: int, config: BootstrapConfig, seed: int) -> dict[str, Difference]:
    """How much better A is than B, by the names of METRICS, judged at one level.

    Metrics are averaged over the evaluations of a training, then over trainings. A resample draws patients, the same
    for all, and as many trainings of each side as it has. Only patients that all evaluations judged count.
    """
    names = _find_common(a, b)
    cluster, patients = next(iter(a[0][0].units)), len(names)
    counts = len(a), len(b)
    points = [[[measure(_keep(item, names), positive) for item in one] for one in side] for side in (a, b)]
    drawn: list[dict[str, Floats]] = []
    if config.resamples and patients > 1:
        weights = draw_weights(patients, config.resamples, seed)
        for place, side in enumerate((a, b)):
            trainings = draw_trainings(counts[place], config.resamples, seed, place)
            drawn.append(_resample_side(side, positive, weights, names, trainings))
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
        found[metric] = Difference(value, low, high, share, patients, config.interval, cluster, why, counts)
    return found


def _find_common(a: Trainings, b: Trainings) -> NDArray[np.object_]:
    """(P,) names of the patients in all; refuses what cannot be compared."""
    if not a or not b or not all((*a, *b)):
        raise UserError("nothing to compare: give one or more evaluations of each side.")
    first = a[0][0]
    names = set(first.clusters.tolist())
    for other in (item for one in (*a, *b) for item in one):
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


def _subtract(
    metric: str, a: Sequence[Sequence[Measured]], b: Sequence[Sequence[Measured]]
) -> tuple[float | None, str]:
    """Mean of A's trainings less mean of B's, or None and why."""
    values = [[[item.metrics[metric] for item in one] for one in side] for side in (a, b)]
    undefined = [value.why for side in values for one in side for value in one if value.value is None]
    if undefined:
        return None, undefined[0]
    means = [
        np.mean([np.mean([value.value for value in one if value.value is not None]) for one in side]) for side in values
    ]
    return round(float(means[0] - means[1]), 12), ""  # as the draws are


def _resample_side(
    side: Trainings,
    positive: int,
    weights: NDArray[np.int16],
    names: NDArray[np.object_],
    trainings: NDArray[np.int16],
) -> dict[str, Floats]:
    """Every metric (B,): in each resample the mean over the trainings drawn, each the mean of its evaluations.

    `weights` (B, P) counts the patients drawn, `trainings` (B, T) the trainings. NaN where it is undefined for one.
    """
    drawn = [[resample(item, positive, weights, names) for item in one] for one in side]
    found = {}
    for metric in METRICS:
        each = np.stack([np.mean([item[metric] for item in one], axis=0) for one in drawn], axis=1)  # (B, T)
        found[metric] = np.where(trainings > 0, trainings * each, 0).sum(axis=1) / len(side)
    return found


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

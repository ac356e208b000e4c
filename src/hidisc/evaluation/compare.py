"""Is A better than B? Both are measured on the same resamples of patients, so what makes a patient hard cancels out.

Another training of the same method, from another seed, would give other numbers as well. So the trainings of A and of B
are resampled too. With one training each, a difference is about two encoders; with several, it is about two methods.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from hidisc.evaluation.bootstrap import draw_trainings, draw_weights, find_interval, name_clusters, resample
from hidisc.evaluation.metrics import Measured, measure
from hidisc.evaluation.predictions import Predictions
from hidisc.evaluation.scores import METRICS, Value
from hidisc.evaluation.units import Floats
from hidisc.ground.errors import UserError
from hidisc.ground.text import count
from hidisc.settings.evaluate import BootstrapConfig

_MANY = 10_000
"""Patients from which their number is not estimated any more."""


@dataclass(frozen=True)
class Difference:
    """A's metric minus B's, over the patients of both."""

    value: float | None
    """None where the metric is undefined for either."""
    low: float | None
    high: float | None
    """Ends of its interval over patients and trainings; None where there is none."""
    share: float | None
    """Share of the resamples in which A is better; a tie counts half."""
    patients: int
    """Patients (or units of the coarsest level, such as sites) that all evaluations have."""
    interval: float = 0.95
    """Share of the resamples between the ends."""
    cluster: str = "patient"
    """The coarsest level, whose units are resampled."""
    why: str = ""
    """Why the value or its interval is missing, or what the interval leaves out."""
    trainings: tuple[int, int] = (1, 1)
    """How many trainings A and B have, each from its own seed."""

    @property
    def is_of_methods(self) -> bool:
        """Whether both have several trainings, so that the interval includes the variation between seeds."""
        return min(self.trainings) > 1

    @property
    def enough(self) -> bool:
        """Whether there are enough patients for any conclusion.

        By chance alone, all P patients favour the same one of A and B once in 2 ** (P - 1) times.
        """
        return 2.0 ** (1 - self.patients) <= 1 - self.interval

    def as_value(self) -> Value:
        """The difference as scores record it; without an interval where there are too few patients."""
        ends = (self.low, self.high) if self.enough else (None, None)
        return Value(value=self.value, low=ends[0], high=ends[1], why=self.why)

    @property
    def patients_needed(self) -> int | None:
        """About how many patients would show a difference of the size seen; None where it is not known."""
        return count_needed(self.as_value(), self.patients, self.interval)

    @property
    def verdict(self) -> Literal["better", "worse", "unclear"]:
        """A is better or worse than B only where there are enough patients and the interval does not include 0."""
        if self.low is None or self.high is None or not self.enough or self.low <= 0 <= self.high:
            return "unclear"
        return "better" if self.low > 0 else "worse"

    def sentence(self, metric: str, a_name: str, b_name: str) -> str:
        """The verdict in words, differences in points of 100; `metric` is its name as shown to readers."""
        if self.value is None:
            return f"{a_name} and {b_name} cannot be compared in {metric}: {self.why}"
        start = f"{a_name} is {self.verdict} than {b_name} in {metric} by"
        if self.verdict == "unclear":
            start = f"no clear difference between {a_name} and {b_name} in {metric}:"
        sign = -1 if self.verdict == "worse" else 1  # "worse by 12.3 points", not "by -12.3"
        interval, patients = "", count(self.patients, self.cluster)
        if self.low is not None and self.high is not None:
            low, high = sorted((sign * self.low, sign * self.high))
            interval = f"{100 * self.interval:g} % interval {_points(low)} to {_points(high)}"
            patients += "" if self.enough else " are too few to tell"
        details = "; ".join(filter(None, (interval, patients, self.counted_trainings, self.why)))
        return f"{start} {_points(sign * self.value)} points ({details})"

    @property
    def counted_trainings(self) -> str:
        """How many trainings each has, in words."""
        a, b = self.trainings
        if a == b:
            return f"{a} trainings each" if a > 1 else "one training each"
        return f"{a} and {b} trainings"


def count_needed(difference: Value, patients: int, interval: float) -> int | None:
    """About how many patients would show a difference of this size, four times out of five; None: not known.

    The standard error is read off the interval and shrinks with the root of the number of patients. A difference is
    seen in 80 % of repetitions when it is as large as half the interval and 0.84 standard errors together.
    """
    value, low, high = difference.value, difference.low, difference.high
    if not value or low is None or high is None or high == low:
        return None
    half = NormalDist().inv_cdf((1 + interval) / 2)
    error = (high - low) / (2 * half)
    return max(2, math.ceil(patients * ((half + NormalDist().inv_cdf(0.8)) * error / value) ** 2))


def say_needed(patients: int) -> str:
    """A number of patients from `count_needed` in words, with the two digits that such an estimate has."""
    if patients >= _MANY:
        return f"more than {_MANY:,}"
    unit = 10 ** max(0, len(str(patients)) - 2)
    return f"about {math.ceil(patients / unit) * unit:,}"


Trainings = Sequence[Sequence[Predictions]]
"""A or B of a comparison: the evaluations of each of its trainings (of several samples of patches, say)."""


def compare(a: Trainings, b: Trainings, positive: int, config: BootstrapConfig, seed: int) -> dict[str, Difference]:
    """How much better A is than B at one level, by the names of METRICS.

    Metrics are averaged over the evaluations of a training, then over trainings. A resample consists of patients, the
    same for all, and of as many trainings of A and of B as they have. Only patients that all evaluations have count.
    """
    names = _find_common(a, b)
    cluster, patients = a[0][0].cluster, len(names)
    measured = [
        [[measure(_keep(evaluation, names), positive) for evaluation in training] for training in trainings]
        for trainings in (a, b)
    ]
    of_a, of_b = (_resample(trainings, positive, names, config, seed, side) for side, trainings in enumerate((a, b)))
    differences = {}
    for metric in METRICS:
        value, why = _subtract(metric, *measured)
        low, high, share = None, None, None
        if value is not None and of_a:
            values = np.round(of_a[metric] - of_b[metric], 12)  # rounding errors are no difference
            low, high, why = find_interval(values, config, cluster)
            share = _share_better(values)
        elif value is not None:
            why = f"no interval: there is only one {cluster}" if config.resamples else "no interval: resamples=0"
        differences[metric] = Difference(
            value, low, high, share, patients, config.interval, cluster, why, (len(a), len(b))
        )
    return differences


def estimate(trainings: Trainings, positive: int, config: BootstrapConfig, seed: int) -> dict[str, Value]:
    """Every metric of one method at one level: its mean over trainings, with resamples of patients and of trainings."""
    names = _find_common(trainings, trainings)
    measured = [[measure(_keep(evaluation, names), positive) for evaluation in training] for training in trainings]
    resampled = _resample(trainings, positive, names, config, seed, side=0)
    found = {}
    for metric in METRICS:
        value, why = _average(metric, measured)
        low = high = None
        if value is not None and resampled:
            low, high, why = find_interval(resampled[metric], config, trainings[0][0].cluster)
        found[metric] = Value(value=value, low=low, high=high, why=why)
    return found


def _find_common(a: Trainings, b: Trainings) -> NDArray[np.object_]:
    """(P,) names of the patients that all evaluations have; evaluations that cannot be compared are refused."""
    if not a or not b or not all((*a, *b)):
        raise UserError("nothing to compare: give one or more evaluations of A and of B.")
    first = a[0][0]
    names = set(first.clusters.tolist())
    for other in (evaluation for training in (*a, *b) for evaluation in training):
        if other.classes != first.classes:
            raise UserError(
                f"evaluations of the classes [{', '.join(first.classes)}] and [{', '.join(other.classes)}] cannot be "
                "compared. Evaluate both with the same classes=[...], in one order."
            )
        if other.level != first.level:
            raise UserError(
                f"predictions of each {first.level} and of each {other.level} cannot be compared. "
                "Choose the same level for both."
            )
        if other.cluster != first.cluster:
            raise UserError(
                f"evaluations by {first.cluster} and by {other.cluster} cannot be compared. Evaluate both with the "
                "same levels=[...]."
            )
        names &= set(other.clusters.tolist())
    if not names:
        raise UserError(
            f"no {first.cluster} is in all of the evaluations, so they cannot be compared. "
            "Evaluate both on the same queries=[...]."
        )
    ordered = name_clusters(first)
    return ordered[[name in names for name in ordered]]


def _keep(predictions: Predictions, names: NDArray[np.object_]) -> Predictions:
    """The units of some patients."""
    wanted = set(names.tolist())
    kept = np.array([name in wanted for name in predictions.clusters.tolist()], bool)
    units = {name: column[kept] for name, column in predictions.units.items()}
    fold = None if predictions.fold is None else predictions.fold[kept]
    return replace(predictions, units=units, truth=predictions.truth[kept], scores=predictions.scores[kept], fold=fold)


def _subtract(
    metric: str, a: Sequence[Sequence[Measured]], b: Sequence[Sequence[Measured]]
) -> tuple[float | None, str]:
    """Mean of A's trainings minus mean of B's, or None and why."""
    (ours, why), (theirs, why_not) = (_average(metric, trainings) for trainings in (a, b))
    if ours is None or theirs is None:
        return None, why or why_not
    return round(ours - theirs, 12), ""  # rounded as the resamples are


def _average(metric: str, trainings: Sequence[Sequence[Measured]]) -> tuple[float | None, str]:
    """Mean over trainings, each the mean of its evaluations, or None and why."""
    values = [[evaluation.metrics[metric] for evaluation in training] for training in trainings]
    undefined = [value.why for training in values for value in training if value.value is None]
    if undefined:
        return None, undefined[0]
    defined = [[value.value for value in training if value.value is not None] for training in values]
    return float(np.mean([np.mean(training) for training in defined])), ""


def _resample(
    trainings: Trainings, positive: int, names: NDArray[np.object_], config: BootstrapConfig, seed: int, side: int
) -> dict[str, Floats]:
    """Every metric (B,): in each resample the mean over its trainings, each the mean of its evaluations.

    A (side 0) and B (side 1) have the same resamples of the patients `names` (P,). A metric is NaN where it is
    undefined for a training of the resample. Empty where there is nothing to resample.
    """
    if not config.resamples or len(names) < 2:
        return {}
    weights = draw_weights(len(names), config.resamples, seed)  # (B, P)
    training_weights = draw_trainings(len(trainings), config.resamples, seed, side)  # (B, T)
    resampled = [[resample(evaluation, positive, weights, names) for evaluation in one] for one in trainings]
    means = {}
    for metric in METRICS:
        each = np.stack([np.mean([values[metric] for values in one], axis=0) for one in resampled], axis=1)  # (B, T)
        means[metric] = np.where(training_weights > 0, training_weights * each, 0).sum(axis=1) / len(trainings)
    return means


def _share_better(differences: Floats) -> float | None:
    """Share of the defined differences (B,) above zero; a zero counts half."""
    defined = differences[~np.isnan(differences)]
    return float(((defined > 0) + 0.5 * (defined == 0)).mean()) if len(defined) else None


def _points(value: float) -> str:
    """A difference in points of 100; one too small for the first decimal is not shown as none."""
    points = 100 * value + 0.0  # no minus before a zero
    return f"{points:.1g}" if 0 < abs(points) < 0.05 else f"{points:.1f}"

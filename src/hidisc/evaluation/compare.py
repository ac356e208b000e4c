"""How certain a metric is, and whether A is better than B: a bootstrap that resamples whole patients.

Patches of a patient are alike, so resampling patches would give intervals far too narrow. The counts that a resample
needs are taken once per patient: the confusion matrix, and how many positives and negatives have each score. A resample
is then a row of weights (how often each patient is in it), and all resamples are one product of matrices.

A and B are measured on the same resamples, so that a patient who is hard for both does not blur their difference.
Another training of the same method, from another seed, would give other numbers, so trainings are resampled too: with
one training each, a difference is about two encoders; with several, it is about two methods.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from hidisc.evaluation.metrics import Floats, Value, count_needed
from hidisc.evaluation.predictions import ENCODER, Key, Predictions, encoder_on, refuse_other_question
from hidisc.evaluation.scores import Floor, Judged
from hidisc.ground.errors import UserError
from hidisc.ground.progress import Progress
from hidisc.ground.seeds import Purpose, make_rng
from hidisc.ground.text import count, plural
from hidisc.settings.evaluate import BootstrapConfig, EvaluateConfig

UNDEFINED_SHARE = 0.05
"""Share of the resamples; a metric that is undefined in more of them says so."""


def draw_weights(clusters: int, resamples: int, seed: int) -> NDArray[np.int16]:
    """(B, P) how often each of P patients is in each of B resamples of P patients, drawn with replacement."""
    return _draw(clusters, resamples, make_rng(seed, Purpose.BOOTSTRAP))


def draw_trainings(trainings: int, resamples: int, seed: int, side: int) -> NDArray[np.int16]:
    """(B, T) how often each of the T trainings of A (side 0) or B (side 1) of a comparison is in each of B resamples.

    A and B were trained independently, so they are resampled independently of each other and of the patients.
    """
    return _draw(trainings, resamples, make_rng(seed, Purpose.DRAWN_TRAININGS, side))


def _draw(count: int, resamples: int, rng: np.random.Generator) -> NDArray[np.int16]:
    weights = np.empty((resamples, count), np.int16)
    for row in weights:  # row by row: a multinomial would hold 8 bytes per number at once
        row[:] = np.bincount(rng.integers(count, size=count), minlength=count)
    return weights


def name_clusters(predictions: Predictions) -> NDArray[np.object_]:
    """(P,) names of the patients (or of the coarsest level), in an order that does not depend on that of the units."""
    return np.array(sorted(set(predictions.clusters.tolist()), key=str), object)


def find_interval(values: Floats, config: BootstrapConfig, cluster: str) -> tuple[float | None, float | None, str]:
    """Percentile interval of a metric's values (B,) in the resamples, and a remark on resamples where it is NaN."""
    defined = values[~np.isnan(values)]
    gaps = len(values) - len(defined)
    resamples = f"bootstrap resamples of {plural(cluster)}"
    if not len(defined):
        return None, None, f"no interval: undefined in all {gaps:,} {resamples}"
    low, high = np.quantile(defined, [(1 - config.interval) / 2, (1 + config.interval) / 2]).tolist()
    if gaps <= UNDEFINED_SHARE * len(values):
        return low, high, ""
    why = f"undefined in {gaps:,} of {len(values):,} {resamples} (a class is missing there); the interval is over the "
    return low, high, f"{why}others"


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
        patients = count(self.patients, self.cluster) + (
            "" if self.low is None or self.enough else " are too few to tell"
        )
        if self.value == self.low == self.high == 0:
            details = f"{patients}; {self.counted_trainings}"
            return f"no difference between {a_name} and {b_name} in {metric}, in any resample ({details})"
        if self.verdict == "unclear":
            start = f"no clear difference between {a_name} and {b_name} in {metric}:"
        sign = -1 if self.verdict == "worse" else 1  # "worse by 12.3 points", not "by -12.3"
        interval = ""
        if self.low is not None and self.high is not None:
            low, high = sorted((sign * self.low, sign * self.high))
            interval = f"{100 * self.interval:g} % interval {_points(low)} to {_points(high)}"
        details = "; ".join(filter(None, (interval, patients, self.counted_trainings, self.why)))
        return f"{start} {_points(sign * self.value)} points ({details})"

    @property
    def counted_trainings(self) -> str:
        """How many trainings each has, in words."""
        a, b = self.trainings
        if a == b:
            return f"{a} trainings each" if a > 1 else "one training each"
        return f"{a} and {b} trainings"


def score_all(predictions: Mapping[Key, Predictions], config: EvaluateConfig, progress: Progress) -> tuple[Judged, ...]:
    """A row of the table for each of some predictions."""
    rows = []
    with progress.part("bootstrap", len(predictions), "levels") as part:
        for unscored in predictions.values():
            rows.append(score(unscored, config.bootstrap, config.seed))
            part.advance()
    return tuple(rows)


def score(predictions: Predictions, config: BootstrapConfig, seed: int) -> Judged:
    """Every metric of some predictions, each with a percentile interval over patients."""
    endpoint, measured = predictions.endpoint, predictions.endpoint.measure(predictions)
    names, cluster = name_clusters(predictions), predictions.cluster
    resampled, each = dict[str, Floats](), dict[str, Floats]()
    if config.resamples and len(names) > 1:
        weights = draw_weights(len(names), config.resamples, seed)
        resampled, each = endpoint.resample(predictions, weights, names)

    def add_interval(value: Value, values: Floats | None) -> Value:
        if value.value is None or not config.resamples:
            return value
        if values is None:
            return value.model_copy(update={"why": f"no interval: there is only one {cluster}"})
        low, high, why = find_interval(values, config, cluster)
        return Value(value=value.value, low=low, high=high, why=why)

    by_class = {
        label: {name: add_interval(value, each[name][:, code] if each else None) for name, value in values.items()}
        for code, (label, values) in enumerate(measured.by_class.items())
    }
    return Judged(
        **predictions.key.as_dict(),
        truth=predictions.truth_checksum,
        units=len(predictions),
        left_out=predictions.left_out,
        metrics={name: add_interval(value, resampled.get(name)) for name, value in measured.metrics.items()},
        by_class=by_class,
        confusion=measured.confusion,
    )


def compare_floors(
    predictions: Mapping[Key, Predictions], patches: Mapping[str, int], probe: str, config: EvaluateConfig
) -> tuple[Floor, ...]:
    """How far the encoder is ahead of each floor by one probe, at every level; `patches` of every floor."""

    def list_levels(subject: str) -> list[Predictions]:
        return [
            made for key, made in predictions.items() if (key.subject, key.probe, key.scale) == (subject, probe, None)
        ]

    floors = []
    for subject, number in patches.items():
        ahead, floor_levels = {}, {level.level: level for level in list_levels(subject)}
        for encoder in list_levels(encoder_on(subject)) or list_levels(ENCODER):
            if encoder.level in floor_levels:
                differences = compare([[encoder]], [[floor_levels[encoder.level]]], config.bootstrap, config.seed)
                ahead[encoder.level] = {metric: found.as_value() for metric, found in differences.items()}
        floors.append(Floor(subject=subject, patches=number, ahead=ahead))
    return tuple(floors)


Trainings = Sequence[Sequence[Predictions]]
"""A or B of a comparison: the evaluations of each of its trainings (of several samples of patches, say)."""


def compare(a: Trainings, b: Trainings, config: BootstrapConfig, seed: int) -> dict[str, Difference]:
    """How much better A is than B at one level, by the keys of their endpoint's metrics.

    Metrics are averaged over the evaluations of a training, then over trainings. A resample consists of patients, the
    same for all, and of as many trainings of A and of B as they have. Only patients that all evaluations have count.
    Where lower is better, the difference is that of B minus A.
    """
    names, cluster = _find_common(a, b), a[0][0].cluster
    (of_a, resampled_a), (of_b, resampled_b) = (
        _average(trainings, names, config, seed, side) for side, trainings in enumerate((a, b))
    )
    differences = {}
    for key, metric in a[0][0].endpoint.metrics.items():
        (ours, why), (theirs, why_not) = of_a[key], of_b[key]
        value, low, high, share = None, None, None, None
        if ours is None or theirs is None:
            why = why or why_not
        else:
            value = metric.sign * round(ours - theirs, 12)  # rounding errors are no difference
            why = f"no interval: there is only one {cluster}" if config.resamples else "no interval: resamples=0"
            if resampled_a:
                values = metric.sign * np.round(resampled_a[key] - resampled_b[key], 12)
                low, high, why = find_interval(values, config, cluster)
                defined = values[~np.isnan(values)]
                share = float(((defined > 0) + 0.5 * (defined == 0)).mean()) if len(defined) else None
        differences[key] = Difference(
            value, low, high, share, len(names), config.interval, cluster, why, (len(a), len(b))
        )
    return differences


def estimate(trainings: Trainings, config: BootstrapConfig, seed: int) -> dict[str, Value]:
    """Every metric of one method at one level: its mean over trainings, with resamples of patients and of trainings."""
    means, resampled = _average(trainings, _find_common(trainings, trainings), config, seed, side=0)
    values = {}
    for key, (value, why) in means.items():
        low = high = None
        if value is not None and resampled:
            low, high, why = find_interval(resampled[key], config, trainings[0][0].cluster)
        values[key] = Value(value=value, low=low, high=high, why=why)
    return values


def _find_common(a: Trainings, b: Trainings) -> NDArray[np.object_]:
    """(P,) names of the patients that all evaluations have; evaluations that cannot be compared are refused."""
    if not a or not b or not all((*a, *b)):
        raise UserError("nothing to compare: give one or more evaluations of A and of B.")
    first = a[0][0]
    names = set(first.clusters.tolist())
    for other in (evaluation for training in (*a, *b) for evaluation in training):
        if other.key.level != first.key.level:
            raise UserError(
                f"predictions of each {first.key.level} and of each {other.key.level} cannot be compared. "
                "Choose the same level for both."
            )
        if other.cluster != first.cluster:
            raise UserError(
                f"evaluations by {first.cluster} and by {other.cluster} cannot be compared. Evaluate both with the "
                "same levels=[...]."
            )
        refuse_other_question(first, other)
        names &= set(other.clusters.tolist())
    if not names:
        raise UserError(
            f"no {first.cluster} is in all of the evaluations, so they cannot be compared. "
            "Evaluate both on the same queries=[...]."
        )
    return np.array([name for name in name_clusters(first) if name in names], object)


def _average(
    trainings: Trainings, names: NDArray[np.object_], config: BootstrapConfig, seed: int, side: int
) -> tuple[dict[str, tuple[float | None, str]], dict[str, Floats]]:
    """Every metric by the patients `names` (P,) alone, or None and why; and every metric (B,) in the resamples.

    Both are means over trainings, each the mean of its evaluations. A (side 0) and B (side 1) have the same resamples
    of patients; in a resample, a metric is NaN where it is undefined for a training of the resample. There are no
    resamples where there is nothing to resample.
    """
    wanted = set(names.tolist())
    measured = [
        [
            each.endpoint.measure(each.choose(np.array([name in wanted for name in each.clusters.tolist()], bool)))
            for each in training
        ]
        for training in trainings
    ]
    endpoint, means = trainings[0][0].endpoint, dict[str, tuple[float | None, str]]()
    for key in endpoint.metrics:
        values = [[evaluation.metrics[key] for evaluation in training] for training in measured]
        undefined = [value.why for training in values for value in training if value.value is None]
        defined = [[value.value for value in training if value.value is not None] for training in values]
        means[key] = (None, undefined[0]) if undefined else (float(np.mean([np.mean(each) for each in defined])), "")
    if not config.resamples or len(names) < 2:
        return means, {}
    weights = draw_weights(len(names), config.resamples, seed)  # (B, P)
    training_weights = draw_trainings(len(trainings), config.resamples, seed, side)  # (B, T)
    resampled = [[each.endpoint.resample(each, weights, names)[0] for each in training] for training in trainings]
    resampled_means = {}
    for key in endpoint.metrics:
        each = np.stack([np.mean([values[key] for values in one], axis=0) for one in resampled], axis=1)  # (B, T)
        resampled_means[key] = np.where(training_weights > 0, training_weights * each, 0).sum(axis=1) / len(trainings)
    return means, resampled_means


def _points(value: float) -> str:
    """A difference in points of 100; one too small for the first decimal is not shown as none."""
    points = 100 * value + 0.0  # no minus before a zero
    return f"{points:.1g}" if 0 < abs(points) < 0.05 else f"{points:.1f}"

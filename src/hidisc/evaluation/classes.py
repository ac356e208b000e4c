"""The endpoint of classes: which probes predict them, which metrics measure that, and what chance is.

Of two classes, AUROC, AUPRC, sensitivity and specificity are about the positive one; of more, they are the plain mean
over the classes, each against the rest. Among equal scores the first class is the predicted one, here and in top-2 and
top-3. A number that could only come out as 1 (AUPRC without negatives, top-2 of two classes) is undefined too.

Where folds were pooled, areas compare scores of the same fold only. Each fold has an encoder or reference patients of
its own, so that 0.6 in one fold may mean more than 0.7 in another. With P positives and N negatives in a fold:

    AUROC = sum over folds of P N AUROC(fold) / sum of P N      the share of all pairs within folds in the right order
    AUPRC = sum over folds of (P + N) AUPRC(fold) / sum of P + N      over the folds that have both

AUPRC rises with the share of positives. Weighted by P, folds with many positives, which differ from resample to
resample, would count more, and resamples would be above the value that they are resamples of.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from hidisc.evaluation.metrics import Floats, Ints, Measured, Metric, Place, Value, divide
from hidisc.ground.files import Record
from hidisc.ground.text import plural

if TYPE_CHECKING:  # predictions name their endpoint
    from hidisc.evaluation.predictions import Predictions

THRESHOLDS = 2048
"""Most different scores of a class. Up to as many everything is exact. Beyond, neighbouring scores count as ties: AUROC
moves by at most about 1 / (2 x 2,048) = 0.00025, on 20,000 patches by 0.00001; AUPRC by 0.0005."""
_BLOCK = 2**18
"""Numbers in a block of resamples; about five such blocks are in memory at once: 10 MB. The tables beside them have one
row per patient and at most 2 x 2,048 columns: 50 KB per patient while a class is counted."""
_TOPS = (2, 3)


class Classes(Record):
    """Which of some classes a unit has: what is asked of the column `label`."""

    kind: Literal["classes"] = "classes"
    label: str
    """Column of the table."""
    classes: tuple[str, ...]
    positive: int
    """Code of the class that sensitivity, AUROC and AUPRC of two classes are about."""

    probes: ClassVar[tuple[str, ...]] = ("knn", "linear", "mil")
    """The probes that can predict classes."""
    floors: ClassVar[tuple[str, ...]] = ("colour", "start", "whitened")
    """The subjects that an encoder must beat."""

    @property
    def positive_class(self) -> str:
        """The name of the positive class."""
        return self.classes[self.positive]

    def describe(self) -> str:
        """What is asked, in words."""
        return f"label={self.label} ({', '.join(self.classes)}; positive {self.positive_class})"

    @property
    def metrics(self) -> dict[str, Metric]:
        """Every metric of this endpoint by its key, in the order of tables."""
        return METRICS

    def list_metrics(self, place: Place | Literal["table"]) -> list[Metric]:
        """The metrics that are shown at a place; `table`: the full table of as many classes."""
        if place == "table":
            place = "two classes" if len(self.classes) == 2 else "many classes"
        return [metric for metric in self.metrics.values() if place in metric.places]

    def list_probes(self, wanted: Sequence[str]) -> tuple[str, ...]:
        """The probes of the settings that can predict what is asked, in the order of the settings."""
        return tuple(dict.fromkeys(probe for probe in wanted if probe in self.probes))

    def list_class_metrics(self) -> list[Metric]:
        """The metrics that a single class has."""
        return [metric for metric in self.metrics.values() if metric.each_class is not None]

    def measure(self, predictions: "Predictions") -> Measured:
        """Every metric of the predictions of one level."""
        from sklearn.metrics import confusion_matrix

        codes = range(len(self.classes))
        confusion = np.zeros((len(codes), len(codes)), np.int64)
        if len(predictions):  # scikit-learn refuses to count nothing
            confusion = confusion_matrix(predictions.truth, predictions.predicted, labels=codes)
        rank, areas = rank_truth(predictions), measure_areas(predictions)
        hits = np.array([(rank < top).sum() for top in _TOPS], np.float64)
        counts = Counts(confusion.astype(np.float64), hits, areas[0], areas[1], self.positive)
        units = confusion.sum(axis=1)

        def value(metric: Metric, number: Floats, code: int | None) -> Value:
            if np.isnan(number):
                return Value(value=None, why=metric.why_undefined(predictions, units, code))
            return Value(value=float(number))

        each = {metric: metric.each_class(counts) for metric in self.metrics.values() if metric.each_class is not None}
        about = {metric: self.positive for metric in each if len(codes) == 2}  # an overall number of one class
        return Measured(
            {key: value(metric, metric.overall(counts), about.get(metric)) for key, metric in self.metrics.items()},
            {
                name: {metric.key: value(metric, numbers[code], code) for metric, numbers in each.items()}
                for code, name in enumerate(self.classes)
            },
            tuple(tuple(row) for row in confusion.tolist()),
        )

    def resample(
        self, predictions: "Predictions", weights: NDArray[np.int16], names: NDArray[np.object_]
    ) -> tuple[dict[str, Floats], dict[str, Floats]]:
        """Metrics (B,) and those of each class (B, L) in every resample, NaN where they are undefined.

        `weights` (B, P) says how often each of the patients `names` (P,) is in a resample; units of other patients are
        left out.

        1. Count for every patient its confusion matrix and its top-2 and top-3 hits: (P, L * L + 2).
        2. Multiply the weights (B, P) by these counts: (B, L * L + 2), the counts of every resample.
        3. Do the same with the scores of each class for the areas under the curves (`_areas`).
        """
        number_of = {name: number for number, name in enumerate(names.tolist())}
        patient = np.array([number_of.get(name, -1) for name in predictions.clusters.tolist()], np.int64)
        is_drawn = patient >= 0
        patient, truth, scores = patient[is_drawn], predictions.truth[is_drawn], predictions.scores[is_drawn]
        folds = [members[is_drawn] for members in predictions.split_by_fold()]
        rank, classes, patients = rank_truth(predictions)[is_drawn], len(self.classes), len(names)

        cell = truth * classes + predictions.predicted[is_drawn]
        hits = [_count(patient[rank < top], 0, patients, 1) for top in _TOPS]
        table = np.concatenate([_count(patient, cell, patients, classes**2), *hits], axis=1).astype(np.float64)
        totals = np.concatenate([weights[rows] @ table for rows in _blocks(len(weights), table.shape[1] + patients)])

        parts, wholes = np.zeros((2, 2, len(weights), classes))
        for code in range(classes):
            for members in folds:
                of_fold = _areas(weights, patient[members], truth[members] == code, scores[members, code])
                parts[..., code] += of_fold[0]
                wholes[..., code] += of_fold[1]
        auroc, auprc = divide(parts, wholes)  # (B, L) each
        confusion = totals[:, : classes**2].reshape(-1, classes, classes)
        counts = Counts(confusion, totals[:, classes**2 :], auroc, auprc, self.positive)
        each = {key: metric.each_class(counts) for key, metric in self.metrics.items() if metric.each_class is not None}
        return {key: metric.overall(counts) for key, metric in self.metrics.items()}, each


@dataclass(frozen=True)
class Counts:
    """The counts that metrics of classes are computed from, of one set of predictions or of many resamples (...)."""

    confusion: Floats
    """(..., L, L) rows: truth; columns: predicted."""
    hits: Floats
    """(..., 2) units whose true class is among the 2, and among the 3, of highest score."""
    auroc: Floats
    """(..., L) of each class against the rest."""
    auprc: Floats
    """(..., L) likewise."""
    positive: int

    @property
    def right(self) -> Floats:
        """(..., L) units of each class that are predicted so."""
        return np.diagonal(self.confusion, axis1=-2, axis2=-1)

    @property
    def units(self) -> Floats:
        """(..., L) units of each class."""
        return self.confusion.sum(axis=-1)

    @property
    def total(self) -> Floats:
        """(...) all units."""
        return self.units.sum(axis=-1)

    @property
    def sensitivity(self) -> Floats:
        """(..., L) share of the units of a class that are predicted so."""
        return divide(self.right, self.units)

    @property
    def specificity(self) -> Floats:
        """(..., L) share of the units of all other classes that are not predicted to have the class."""
        others = self.total[..., None] - self.units
        return divide(others - (self.confusion.sum(axis=-2) - self.right), others)

    def average(self, each: Floats) -> Floats:
        """(...) of two classes the positive one's number, of more the mean of all; NaN where a class has no unit."""
        if each.shape[-1] == 2:
            return each[..., self.positive]
        # specificity has a value for a class without units, but its mean must not have one
        return np.where((self.units > 0).all(axis=-1), each.mean(axis=-1), np.nan)

    def share_of_hits(self, top: int) -> Floats:
        """(...) share of the units whose true class is among the `top` of highest score; NaN with no more classes."""
        share = divide(self.hits[..., _TOPS.index(top)], self.total)
        return share if self.confusion.shape[-1] > top else np.full_like(share, np.nan)


def _why_class_missing(predictions: "Predictions", units: Ints, code: int | None) -> str:
    """Why a metric of one class, or (None) of all, is undefined; `units` (L,) of each class."""
    level, classes, mixed = predictions.key.level, predictions.classes, predictions.left_out
    present = np.flatnonzero(units).tolist()
    if not present and mixed:
        return f"no test {level} has one label for all its patches ({mixed} have several): see the finer levels instead"
    if not present:
        return f"there is no test {level}: choose queries=[...] that have labels"
    if len(present) == 1 and code in (None, present[0]):
        return f"every test {level} has class {classes[present[0]]!r}: choose queries=[...] that have others too"
    missing = [code] if code is not None and units[code] == 0 else np.flatnonzero(units == 0).tolist()
    if not missing:
        return f"no fold has test {plural(level)} of a class and of another: use fewer folds, or folds.by=patient"
    remedy = "set classes=[...] to evaluate the others" if len(present) > 1 else "choose queries=[...] that have it"
    return f"no test {level} has class {' or '.join(repr(classes[absent]) for absent in missing)}: {remedy}"


def _top(top: int) -> Metric:
    def why(predictions: "Predictions", units: Ints, code: int | None) -> str:
        if not units.any():
            return _why_class_missing(predictions, units, code)
        count = len(predictions.classes)
        return f"with {count} classes the truth is always among the {top} of highest score: see accuracy instead"

    meaning = f"share of units whose true class is among the {top} of highest score"
    return Metric(f"top{top}", f"Top-{top}", meaning, lambda counts: counts.share_of_hits(top), why)


def _of_class(key: str, title: str, meaning: str, *places: Place) -> Metric:
    """A metric that each class has, an attribute of `Counts`; shown where there are two classes, and at `places`."""
    each_class: Callable[[Counts], Floats] = attrgetter(key)

    def overall(counts: Counts) -> Floats:
        return counts.average(each_class(counts))

    return Metric(key, title, meaning, overall, _why_class_missing, frozenset({"two classes", *places}), each_class)


METRICS = {
    metric.key: metric
    for metric in (
        Metric(
            "accuracy",
            "Accuracy",
            "share of units whose class is predicted correctly",
            lambda counts: divide(counts.right.sum(axis=-1), counts.total),
            _why_class_missing,
            frozenset({"two classes", "many classes", "headline", "brief", "axis"}),
            chance=lambda confusion: max(map(sum, confusion)) / max(sum(map(sum, confusion)), 1),
        ),
        Metric(
            "mca",
            "MCA",
            "mean class accuracy, in which every class counts alike",
            lambda counts: counts.sensitivity.mean(axis=-1),
            _why_class_missing,
            frozenset({"two classes", "many classes", "brief", "floors", "axis"}),
            chance=lambda confusion: 1 / len(confusion),
        ),
        _of_class("sensitivity", "Sensitivity", "share of the units of a class that are predicted to have it"),
        _of_class(
            "specificity", "Specificity", "share of the units of other classes that are not predicted to have it"
        ),
        replace(
            _of_class("auroc", "AUROC", "area under the ROC curve", "many classes", "headline", "brief", "floors"),
            chance=lambda confusion: 0.5,
        ),
        _of_class("auprc", "AUPRC", "area under the precision-recall curve", "many classes"),
        *map(_top, _TOPS),
    )
}
"""Every metric of classes by its key, in the order of tables."""


def rank_truth(predictions: "Predictions") -> Ints:
    """(G,) how many classes come before the true one, by score and then by order: 0 where the prediction is right."""
    classes = np.arange(len(predictions.classes))
    of_truth = np.take_along_axis(predictions.scores, predictions.truth[:, None], axis=1)  # (G, 1)
    earlier = classes < predictions.truth[:, None]
    before = (predictions.scores > of_truth) | ((predictions.scores == of_truth) & earlier)
    return before.sum(axis=1)


def measure_areas(predictions: "Predictions") -> Floats:
    """(2, L) AUROC and AUPRC of each class against the rest, NaN where no fold has both."""
    from sklearn.metrics import average_precision_score, roc_auc_score

    parts, wholes = np.zeros((2, 2, len(predictions.classes)))
    for members in predictions.split_by_fold():
        truth, scores = predictions.truth[members], predictions.scores[members]
        for code in range(len(predictions.classes)):
            is_class = truth == code
            positives, negatives = int(is_class.sum()), int((~is_class).sum())
            if positives and negatives:
                weights = np.array([positives * negatives, positives + negatives])
                areas = [area(is_class, scores[:, code]) for area in (roc_auc_score, average_precision_score)]
                parts[:, code] += weights * areas
                wholes[:, code] += weights
    return divide(parts, wholes)


def _areas(weights: NDArray[np.int16], patient: Ints, is_positive: NDArray[np.bool_], scores: Floats) -> Floats:
    """AUROC and AUPRC (average precision, as scikit-learn defines it) of one class in every resample: parts and wholes.

    Returns (2, 2, B): areas times the pairs (AUROC) or units (AUPRC) of a resample, then these pairs and units alone.
    Both are added up over folds.
    `patient`, `is_positive` and `scores` are (N,). Let there be T different scores, sorted from high to low. One count
    per patient and score, of positives and of negatives, gives p_t and n_t of a resample by a product with its weights.
    With P = sum of p_t, N = sum of n_t, and A_t = p_1 + ... + p_t, the positives with score t or higher:

        AUROC = sum over t of n_t (A_t - p_t / 2) / (P N)     pairs in the right order; a tie counts half
        AUPRC = sum over t of p_t A_t / (A_t + n_1 + ... + n_t) / P     precision at each positive

    Example: scores 0.9 (positive), 0.5 (negative), 0.5 (positive) of patients a, b, c. A resample of a, a, c is the
    weights (2, 0, 1): p = (2, 1), n = (0, 0), no negatives, so both are undefined. One of a, b, c has p = (1, 1) and
    n = (0, 1): AUROC = 1 x (2 - 0.5) / 2 = 0.75, AUPRC = (1 x 1 / 1 + 1 x 2 / 3) / 2 = 0.83.
    """
    group, groups = _group_scores(scores, is_positive)
    column = group + groups * ~is_positive  # positives in the first half of the columns, negatives in the second
    table = _count(patient, column, weights.shape[1], 2 * groups)
    # whole numbers below 2 ** 24 are exact in float32, whose product is twice as fast
    largest = int((weights @ table.sum(axis=1)).max(initial=0))
    table = table.astype(np.float32 if largest < 2**24 else np.float64)
    parts, wholes = np.empty((2, 2, len(weights)))
    for rows in _blocks(len(weights), 2 * groups + len(table)):
        counts = (weights[rows].astype(table.dtype) @ table).astype(np.float64)
        positives, negatives = counts[:, :groups], counts[:, groups:]
        positives_above = positives.cumsum(axis=1)
        all_above = negatives.cumsum(axis=1) + positives_above
        precision = positives_above / np.maximum(all_above, 1)
        all_positives, all_negatives = positives.sum(axis=1), negatives.sum(axis=1)
        ordered_pairs = np.einsum("bt,bt->b", negatives, positives_above - positives / 2)
        parts[0, rows], wholes[0, rows] = ordered_pairs, all_positives * all_negatives
        units = np.where((all_positives > 0) & (all_negatives > 0), all_positives + all_negatives, 0)
        mean_precision = np.einsum("bt,bt->b", positives, precision) / np.maximum(all_positives, 1)
        parts[1, rows], wholes[1, rows] = units * mean_precision, units
    return np.stack([parts, wholes])


def _group_scores(scores: Floats, is_positive: NDArray[np.bool_]) -> tuple[Ints, int]:
    """(N,) group of each score (N,), 0 the highest, and how many groups there are, at most THRESHOLDS.

    Up to THRESHOLDS different scores, each is a group of its own. Beyond, groups are quantiles, in which positives as a
    whole weigh as much as negatives, so that a rare class is resolved as finely as the rest. All units of one score are
    in the group of their middle: a score that many units share thus has a group of its own, and stays exact.
    """
    distinct, code = np.unique(-scores, return_inverse=True)
    if len(distinct) <= THRESHOLDS:
        return code, len(distinct)
    share = np.zeros(len(distinct))
    for members in (is_positive, ~is_positive):
        share += np.bincount(code[members], minlength=len(distinct)) / max(2 * members.sum(), 1)
    middle = np.cumsum(share) - share / 2
    return np.minimum(middle * THRESHOLDS, THRESHOLDS - 1).astype(np.int64)[code], THRESHOLDS


def _count(patient: Ints, column: Ints | int, patients: int, columns: int) -> Ints:
    """(P, columns) how many units of each patient are in each column."""
    return np.bincount(patient * columns + column, minlength=patients * columns).reshape(patients, columns)


def _blocks(resamples: int, numbers: int) -> Iterator[slice]:
    """Resamples of `numbers` each, as many at once as fit a block."""
    step = max(_BLOCK // max(numbers, 1), 1)
    return (slice(start, start + step) for start in range(0, resamples, step))

"""How good predictions are: every metric of one level; a metric without a meaning is undefined and says why.

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

from dataclasses import dataclass

import numpy as np

from hidisc.evaluation.predictions import Predictions
from hidisc.evaluation.scores import METRICS, Value
from hidisc.evaluation.task import Floats, Ints
from hidisc.ground.text import plural

BY_CLASS = ("sensitivity", "specificity", "auroc", "auprc")
"""Metrics of a single class against the rest."""
TOPS = (2, 3)


@dataclass(frozen=True)
class Measured:
    """Every metric of one level, without intervals."""

    metrics: dict[str, Value]
    """By the names of METRICS."""
    by_class: dict[str, dict[str, Value]]
    """Class: by the names of BY_CLASS."""
    confusion: tuple[tuple[int, ...], ...]
    """Rows: truth; columns: predicted."""


def measure(predictions: Predictions, positive: int) -> Measured:
    """Measure one level; `positive` is the code of the class that metrics of two classes are about."""
    from sklearn.metrics import confusion_matrix

    codes = range(len(predictions.classes))
    confusion = np.zeros((len(codes), len(codes)), np.int64)
    if len(predictions):  # scikit-learn refuses to count nothing
        confusion = confusion_matrix(predictions.truth, predictions.predicted, labels=codes)
    rank, areas = rank_truth(predictions), measure_areas(predictions)
    overall, by_class = summarise(
        confusion.astype(np.float64),
        np.array([(rank < top).sum() for top in TOPS], np.float64),
        areas[0],
        areas[1],
        positive,
    )
    units = confusion.sum(axis=1)
    one_class = dict.fromkeys(BY_CLASS, positive) if len(codes) == 2 else {}
    return Measured(
        {name: _value(overall[name], _why(name, predictions, units, one_class.get(name))) for name in METRICS},
        {
            label: {name: _value(by_class[name][code], _why(name, predictions, units, code)) for name in BY_CLASS}
            for code, label in enumerate(predictions.classes)
        },
        tuple(tuple(row) for row in confusion.tolist()),
    )


def rank_truth(predictions: Predictions) -> Ints:
    """(G,) how many classes come before the true one, by score and then by order: 0 where the prediction is right."""
    classes = np.arange(len(predictions.classes))
    of_truth = np.take_along_axis(predictions.scores, predictions.truth[:, None], axis=1)  # (G, 1)
    earlier = classes < predictions.truth[:, None]
    before = (predictions.scores > of_truth) | ((predictions.scores == of_truth) & earlier)
    return before.sum(axis=1)


def summarise(
    confusion: Floats, hits: Floats, auroc: Floats, auprc: Floats, positive: int
) -> tuple[dict[str, Floats], dict[str, Floats]]:
    """Metrics (...) and those by class (..., L), NaN where undefined, of one or many sets of predictions at once.

    `confusion` (..., L, L), `hits` (..., 2) units whose truth is among the first 2 and 3, areas (..., L) of each class
    against the rest.
    """
    classes = confusion.shape[-1]
    right = np.diagonal(confusion, axis1=-2, axis2=-1)  # (..., L)
    units, called = confusion.sum(axis=-1), confusion.sum(axis=-2)
    total = units.sum(axis=-1)
    rest = total[..., None] - units
    by_class = {
        "sensitivity": divide(right, units),
        "specificity": divide(rest - (called - right), rest),
        "auroc": auroc,
        "auprc": auprc,
    }
    whole = (units > 0).all(axis=-1)  # specificity has a value for a class without units, its mean must not
    metrics = {
        "accuracy": divide(right.sum(axis=-1), total),
        "mca": by_class["sensitivity"].mean(axis=-1),
    }
    for name in BY_CLASS:
        each = by_class[name]
        metrics[name] = each[..., positive] if classes == 2 else np.where(whole, each.mean(axis=-1), np.nan)
    for column, top in enumerate(TOPS):
        share = divide(hits[..., column], total)
        metrics[f"top{top}"] = share if classes > top else np.full_like(share, np.nan)
    return {name: metrics[name] for name in METRICS}, by_class


def divide(part: Floats, whole: Floats) -> Floats:
    """Shares, NaN where there is nothing to have a share of."""
    return np.divide(part, whole, out=np.full_like(whole, np.nan), where=whole > 0)


def measure_areas(predictions: Predictions) -> Floats:
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


def _value(number: Floats, why: str) -> Value:
    """A number (), or why there is none."""
    return Value(value=None, why=why) if np.isnan(number) else Value(value=float(number))


def _why(name: str, predictions: Predictions, units: Ints, code: int | None) -> str:
    """Why a metric is undefined, should it be: of one class, or (None) of all; `units` (L,) of each class."""
    level, classes, mixed = predictions.level, predictions.classes, predictions.left_out
    present = np.flatnonzero(units).tolist()
    if not present and mixed:
        return f"no test {level} has one label for all its patches ({mixed} have several): see the finer levels instead"
    if not present:
        return f"there is no test {level}: choose queries=[...] that have labels"
    if name.startswith("top"):
        top = name.removeprefix("top")
        return f"with {len(classes)} classes the truth is always among the {top} of highest score: see accuracy instead"
    if len(present) == 1 and code in (None, present[0]):
        return f"every test {level} has class {classes[present[0]]!r}: choose queries=[...] that have others too"
    missing = [code] if code is not None and units[code] == 0 else np.flatnonzero(units == 0).tolist()
    if not missing:
        return f"no fold has test {plural(level)} of a class and of another: use fewer folds, or folds.by=patient"
    remedy = "set classes=[...] to evaluate the others" if len(present) > 1 else "choose queries=[...] that have it"
    return f"no test {level} has class {' or '.join(repr(classes[absent]) for absent in missing)}: {remedy}"

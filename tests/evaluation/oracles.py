"""Slow and obvious: metrics by counting pairs and thresholds, resamples by really repeating the rows of the drawn."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from hidisc.evaluation.classes import METRICS
from hidisc.evaluation.predictions import Predictions
from tests.evaluation.made import BY_CLASS, measure


def auroc(is_class: Sequence[bool], scores: Sequence[float]) -> float:
    """Share of the pairs of a positive and a negative in which the positive has the higher score, ties half."""
    positives = [score for score, wanted in zip(scores, is_class, strict=True) if wanted]
    negatives = [score for score, wanted in zip(scores, is_class, strict=True) if not wanted]
    wins = sum((high > low) + (high == low) / 2 for high in positives for low in negatives)
    return wins / len(positives) / len(negatives)


def auprc(is_class: Sequence[bool], scores: Sequence[float]) -> float:
    """Precision at every threshold, each weighed by the recall it adds."""
    area, recall_before = 0.0, 0.0
    for threshold in sorted(set(scores), reverse=True):
        called = [wanted for score, wanted in zip(scores, is_class, strict=True) if score >= threshold]
        recall = sum(called) / sum(is_class)
        area += (recall - recall_before) * sum(called) / len(called)
        recall_before = recall
    return area


def repeat(predictions: Predictions, weights: Sequence[int], names: Sequence[str]) -> Predictions:
    """The predictions with all rows of a patient repeated as often as the patient was drawn."""
    rows = [
        row
        for name, times in zip(names, weights, strict=True)
        for _ in range(times)
        for row, cluster in enumerate(predictions.clusters)
        if cluster == name
    ]
    chosen = np.array(rows, np.int64)
    units = {name: column[chosen] for name, column in predictions.units.items()}
    return replace(predictions, units=units, truth=predictions.truth[chosen], scores=predictions.scores[chosen])


def resample(predictions: Predictions, positive: int, weights: np.ndarray, names: Sequence[str]) -> dict[str, list]:
    """Every metric of every resample, NaN where undefined; those of a class are under (class, metric)."""
    found: dict = {name: [] for name in METRICS}
    found |= {(label, name): [] for label in predictions.classes for name in BY_CLASS}
    for row in weights:
        measured = measure(repeat(predictions, row, names), positive)
        for name, value in measured.metrics.items():
            found[name].append(np.nan if value.value is None else value.value)
        for label, of in measured.by_class.items():
            for name, value in of.items():
                found[label, name].append(np.nan if value.value is None else value.value)
    return found


def compare(
    a: Sequence[Sequence[Predictions]],
    b: Sequence[Sequence[Predictions]],
    positive: int,
    weights: np.ndarray,
    trainings: tuple[np.ndarray, np.ndarray],
    names: Sequence[str],
) -> dict[str, list[float]]:
    """A's metrics less B's in every resample, one resample, training and evaluation after the other.

    `weights` (B, P) says how often each patient is drawn, `trainings` (B, T) how often each training of A and of B.
    """
    found: dict[str, list[float]] = {name: [] for name in METRICS}
    for number, patients in enumerate(weights):
        sides: list[list[dict[str, float]]] = []
        for side, drawn in zip((a, b), trainings, strict=True):
            sides.append([])
            for evaluations, times in zip(side, drawn[number], strict=True):
                measured = [measure(repeat(one, patients, names), positive).metrics for one in evaluations]
                sides[-1] += [{name: _mean([one[name].value for one in measured]) for name in METRICS}] * times
        for name in METRICS:
            means = [_mean([training[name] for training in side]) for side in sides]
            found[name].append(means[0] - means[1])
    return found


def _mean(values: Sequence[float | None]) -> float:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if len(known) == len(values) else np.nan

"""How far the metrics would move with other patients: a bootstrap that draws whole patients, all resamples at once.

Patches of a patient resemble each other, so drawing patches would give intervals far too narrow. What a resample needs
is added up once for every patient: how often each class was taken for which, and how many positives and negatives have
each score. A resample is then a row of weights, and all resamples are a product of matrices.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from hidisc.evaluation.metrics import TOPS, Floats, divide, measure, rank_truth, summarise
from hidisc.evaluation.predictions import Predictions
from hidisc.evaluation.scores import LevelScores, Value
from hidisc.ground.seeds import Purpose, make_rng
from hidisc.settings.evaluate import BootstrapConfig

THRESHOLDS = 2048
"""Most different scores of a class that are told apart. Up to as many everything is exact. Beyond, neighbouring scores
count as ties: AUROC moves by at most about 1 / (2 x 2,048) = 0.00025, on 20,000 patches by 0.00001; AUPRC by 0.0005."""
UNDEFINED_SHARE = 0.05
"""Of the resamples; a metric undefined in more of them says so."""
_BLOCK = 2**18
"""Numbers of a block of resamples, about five such blocks at once: 10 MB. The tables beside them have a row a patient
and at most 2 x 2,048 columns: 50 KB a patient while a class is counted."""


def draw_weights(clusters: int, resamples: int, seed: int) -> NDArray[np.int16]:
    """(B, P) how often each of P patients is in each of B resamples of P drawn with replacement."""
    return _draw(clusters, resamples, make_rng(seed, Purpose.BOOTSTRAP))


def _draw(clusters: int, resamples: int, rng: np.random.Generator) -> NDArray[np.int16]:
    weights = np.empty((resamples, clusters), np.int16)
    for row in weights:  # each bounded, where a multinomial would hold 8 bytes a number at once
        row[:] = np.bincount(rng.integers(clusters, size=clusters), minlength=clusters)
    return weights


def draw_trainings(trainings: int, resamples: int, seed: int, side: int) -> NDArray[np.int16]:
    """(B, T) how often each of the T trainings of a side of a comparison (0 or 1) is in each of B resamples.

    The two sides were trained independently, and are drawn so: of each other and of the patients.
    """
    return _draw(trainings, resamples, make_rng(seed, Purpose.DRAWN_TRAININGS, side))


def name_clusters(predictions: Predictions) -> NDArray[np.object_]:
    """(P,) names of the patients (or whatever is coarsest), in an order that does not depend on that of the units."""
    return np.array(sorted(set(predictions.clusters.tolist()), key=str), object)


def resample(
    predictions: Predictions, positive: int, weights: NDArray[np.int16], names: NDArray[np.object_]
) -> dict[str, Floats]:
    """Every metric (B,) in every resample, NaN where it is undefined in it.

    `weights` (B, P) counts how often each of the patients `names` (P,) is drawn; units of others are left out.
    """
    return _resample(predictions, positive, weights, names)[0]


def score_level(predictions: Predictions, positive: int, config: BootstrapConfig, seed: int) -> LevelScores:
    """The metrics of one level, with percentile intervals over patients for each."""
    measured = measure(predictions, positive)
    metrics, by_class = measured.metrics, measured.by_class
    names, cluster = name_clusters(predictions), next(iter(predictions.units))
    if config.resamples and len(names) > 1:
        weights = draw_weights(len(names), config.resamples, seed)
        draws, class_draws = _resample(predictions, positive, weights, names)
        metrics = {name: _add_interval(value, draws[name], config, cluster) for name, value in metrics.items()}
        by_class = {
            label: {
                name: _add_interval(value, class_draws[name][:, code], config, cluster) for name, value in of.items()
            }
            for code, (label, of) in enumerate(by_class.items())
        }
    elif config.resamples:
        why = f"no interval: there is one {cluster} only"
        metrics = {name: _remark(value, why) for name, value in metrics.items()}
        by_class = {label: {name: _remark(value, why) for name, value in of.items()} for label, of in by_class.items()}
    return LevelScores(
        level=predictions.level,
        units=len(predictions),
        left_out=predictions.left_out,
        metrics=metrics,
        by_class=by_class,
        confusion=measured.confusion,
    )


def find_interval(draws: Floats, config: BootstrapConfig, cluster: str) -> tuple[float | None, float | None, str]:
    """Ends of the middle share of the draws (B,) that are defined, and what to mind about those that are not."""
    defined = draws[~np.isnan(draws)]
    gaps = len(draws) - len(defined)
    if not len(defined):
        return None, None, f"no interval: it is undefined in each of {gaps:,} draws of {cluster}s"
    low, high = np.quantile(defined, [(1 - config.interval) / 2, (1 + config.interval) / 2]).tolist()
    if gaps <= UNDEFINED_SHARE * len(draws):
        return low, high, ""
    return (
        low,
        high,
        f"the interval leaves out {gaps:,} of {len(draws):,} draws of {cluster}s, in which it is undefined",
    )


def _add_interval(value: Value, draws: Floats, config: BootstrapConfig, cluster: str) -> Value:
    """A defined value with the ends of its interval."""
    if value.value is None:
        return value
    low, high, why = find_interval(draws, config, cluster)
    return Value(value=value.value, low=low, high=high, why=why)


def _remark(value: Value, why: str) -> Value:
    """A value with something to mind; an undefined one has said why already."""
    return value if value.value is None else value.model_copy(update={"why": why})


def _resample(
    predictions: Predictions, positive: int, weights: NDArray[np.int16], names: NDArray[np.object_]
) -> tuple[dict[str, Floats], dict[str, Floats]]:
    """Metrics (B,) and those by class (B, L)."""
    place = {name: number for number, name in enumerate(names.tolist())}
    cluster = np.array([place.get(name, -1) for name in predictions.clusters.tolist()], np.int64)
    kept = cluster >= 0
    cluster, truth, scores = cluster[kept], predictions.truth[kept], predictions.scores[kept]
    classes, clusters = len(predictions.classes), len(names)

    cell = truth * classes + predictions.predicted[kept]
    counted = [_count(cluster, cell, clusters, classes * classes)]  # (P, L * L)
    rank = rank_truth(predictions)[kept]
    counted += [_count(cluster[rank < top], 0, clusters, 1) for top in TOPS]  # (P, 1) each
    table = np.concatenate(counted, axis=1).astype(np.float64)
    drawn = np.concatenate([weights[rows] @ table for rows in _blocks(len(weights), table.shape[1] + clusters)])

    areas = np.empty((2, len(weights), classes))
    for code in range(classes):
        areas[:, :, code] = _areas(weights, cluster, truth == code, scores[:, code])
    confusion = drawn[:, : classes * classes].reshape(-1, classes, classes)
    return summarise(confusion, drawn[:, classes * classes :], areas[0], areas[1], positive)


def _areas(
    weights: NDArray[np.int16], cluster: NDArray[np.int64], is_class: NDArray[np.bool_], scores: Floats
) -> Floats:
    """(2, B) AUROC (trapezoids: a tie counts half) and AUPRC (average precision, as scikit-learn defines it)."""
    group, groups = _group_scores(scores, is_class)
    column = group + groups * ~is_class  # positives in the first half of the columns, negatives in the second
    table = _count(cluster, column, weights.shape[1], 2 * groups)
    # whole numbers below 2 ** 24 are exact in float32, whose product is twice as fast
    most = int((weights @ table.sum(axis=1)).max(initial=0))
    table = table.astype(np.float32 if most < 2**24 else np.float64)
    found = np.empty((2, len(weights)))
    for rows in _blocks(len(weights), 2 * groups + len(table)):
        drawn = (weights[rows].astype(table.dtype) @ table).astype(np.float64)
        positives, negatives = drawn[:, :groups], drawn[:, groups:]
        above = positives.cumsum(axis=1)  # positives at or above each score
        called = negatives.cumsum(axis=1) + above
        precision = above / np.maximum(called, 1)
        count, rest = positives.sum(axis=1), negatives.sum(axis=1)
        ordered = np.einsum("bt,bt->b", negatives, above - positives / 2)
        found[0, rows] = divide(ordered, count * rest)
        found[1, rows] = divide(np.einsum("bt,bt->b", positives, precision), count * (rest > 0))
    return found


def _group_scores(scores: Floats, is_class: NDArray[np.bool_]) -> tuple[NDArray[np.int64], int]:
    """(N,) group of each score, 0 the highest, and how many groups there are, at most THRESHOLDS.

    Groups are quantiles of positives and negatives taken as equally many, so that a rare class is as finely told apart
    as its rest. A score goes where the middle of its ties lies: a large tie has a group of its own, and stays exact.
    """
    distinct, code = np.unique(-scores, return_inverse=True)
    if len(distinct) <= THRESHOLDS:
        return code, len(distinct)
    share = np.zeros(len(distinct))
    for side in (is_class, ~is_class):
        share += np.bincount(code[side], minlength=len(distinct)) / max(2 * side.sum(), 1)
    middle = np.cumsum(share) - share / 2
    return np.minimum(middle * THRESHOLDS, THRESHOLDS - 1).astype(np.int64)[code], THRESHOLDS


def _count(
    cluster: NDArray[np.int64], column: NDArray[np.int64] | int, clusters: int, columns: int
) -> NDArray[np.int64]:
    """(P, columns) how many units of each patient are in each column."""
    return np.bincount(cluster * columns + column, minlength=clusters * columns).reshape(clusters, columns)


def _blocks(resamples: int, numbers: int) -> Iterator[slice]:
    """Resamples of `numbers` each, as many at once as fit a block."""
    step = max(_BLOCK // max(numbers, 1), 1)
    return (slice(start, start + step) for start in range(0, resamples, step))

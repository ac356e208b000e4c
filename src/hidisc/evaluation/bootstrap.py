"""How far the metrics would move with other patients: a bootstrap that resamples whole patients, all resamples at once.

Patches of a patient are alike, so resampling patches would give intervals far too narrow. What a resample needs
is counted once per patient: the confusion matrix, and how many positives and negatives have each score. A resample is
then a row of weights (how often each patient is in it), and all resamples are one product of matrices.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from hidisc.evaluation.metrics import TOPS, divide, measure, rank_truth, summarise
from hidisc.evaluation.predictions import Predictions
from hidisc.evaluation.scores import LevelScores, Value
from hidisc.evaluation.units import Floats, Ints
from hidisc.ground.seeds import Purpose, make_rng
from hidisc.ground.text import plural
from hidisc.settings.evaluate import BootstrapConfig

THRESHOLDS = 2048
"""Most different scores of a class. Up to as many everything is exact. Beyond, neighbouring scores count as ties: AUROC
moves by at most about 1 / (2 x 2,048) = 0.00025, on 20,000 patches by 0.00001; AUPRC by 0.0005."""
UNDEFINED_SHARE = 0.05
"""Share of the resamples; a metric that is undefined in more of them says so."""
_BLOCK = 2**18
"""Numbers in a block of resamples; about five such blocks are in memory at once: 10 MB. The tables beside them have one
row per patient and at most 2 x 2,048 columns: 50 KB per patient while a class is counted."""


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


def score_level(predictions: Predictions, positive: int, config: BootstrapConfig, seed: int) -> LevelScores:
    """The metrics of one level, each with a percentile interval over patients."""
    measured = measure(predictions, positive)
    names, cluster = name_clusters(predictions), predictions.cluster
    resampled: dict[str, Floats] = {}
    resampled_by_class: dict[str, Floats] = {}
    if config.resamples and len(names) > 1:
        weights = draw_weights(len(names), config.resamples, seed)
        resampled, resampled_by_class = _resample(predictions, positive, weights, names)

    def add_interval(value: Value, values: Floats | None) -> Value:
        if value.value is None or not config.resamples:
            return value
        if values is None:
            return value.model_copy(update={"why": f"no interval: there is only one {cluster}"})
        low, high, why = find_interval(values, config, cluster)
        return Value(value=value.value, low=low, high=high, why=why)

    by_class = {}
    for code, (label, values_of_class) in enumerate(measured.by_class.items()):
        resampled_of_class = {name: values[:, code] for name, values in resampled_by_class.items()}
        by_class[label] = {
            name: add_interval(value, resampled_of_class.get(name)) for name, value in values_of_class.items()
        }
    return LevelScores(
        level=predictions.level,
        units=len(predictions),
        left_out=predictions.left_out,
        metrics={name: add_interval(value, resampled.get(name)) for name, value in measured.metrics.items()},
        by_class=by_class,
        confusion=measured.confusion,
    )


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


def resample(
    predictions: Predictions, positive: int, weights: NDArray[np.int16], names: NDArray[np.object_]
) -> dict[str, Floats]:
    """Every metric (B,) in every resample, NaN where it is undefined.

    `weights` (B, P) says how often each of the patients `names` (P,) is in a resample; units of others are left out.
    """
    return _resample(predictions, positive, weights, names)[0]


def _resample(
    predictions: Predictions, positive: int, weights: NDArray[np.int16], names: NDArray[np.object_]
) -> tuple[dict[str, Floats], dict[str, Floats]]:
    """Metrics (B,) and those by class (B, L).

    1. Count for every patient its confusion matrix and its top-2 and top-3 hits: (P, L * L + 2).
    2. Multiply the weights (B, P) by these counts: (B, L * L + 2), the counts of every resample.
    3. Do the same with the scores of each class for the areas under the curves (`_areas`).
    """
    number_of = {name: number for number, name in enumerate(names.tolist())}
    patient = np.array([number_of.get(name, -1) for name in predictions.clusters.tolist()], np.int64)
    kept = patient >= 0
    patient, truth, scores = patient[kept], predictions.truth[kept], predictions.scores[kept]
    folds = [members[kept] for members in predictions.split_by_fold()]
    rank = rank_truth(predictions)[kept]
    classes, patients = len(predictions.classes), len(names)

    cell = truth * classes + predictions.predicted[kept]
    hits = [_count(patient[rank < top], 0, patients, 1) for top in TOPS]
    counts = np.concatenate([_count(patient, cell, patients, classes**2), *hits], axis=1).astype(np.float64)
    totals = np.concatenate([weights[rows] @ counts for rows in _blocks(len(weights), counts.shape[1] + patients)])

    parts, wholes = np.zeros((2, 2, len(weights), classes))
    for code in range(classes):
        for members in folds:
            of_fold = _areas(weights, patient[members], truth[members] == code, scores[members, code])
            parts[..., code] += of_fold[0]
            wholes[..., code] += of_fold[1]
    areas = divide(parts, wholes)  # (2, B, L)
    confusion = totals[:, : classes**2].reshape(-1, classes, classes)
    return summarise(confusion, totals[:, classes**2 :], areas[0], areas[1], positive)


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

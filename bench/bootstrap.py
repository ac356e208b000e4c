"""2,000 resamples of all metrics over 200 patients in under 5 s, and 100 times the rate of a loop over scikit-learn.

    python bench/bootstrap.py

Seven classes, three levels: 200 patients, 400 slides and 40,000 patches, scored as `hidisc evaluate` does (point values
and intervals, those of every class included), on one thread. The loop repeats the rows of the drawn patients and calls
scikit-learn for each metric, as one would by hand; it is timed over 4 resamples and taken to be as fast over 2,000.
"""

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import (
    accuracy_score,
    average_precision_score,
    balanced_accuracy_score,
    confusion_matrix,
    roc_auc_score,
    top_k_accuracy_score,
)

from harness import Claim, best_of, on_one_thread
from hidisc.evaluation.classes import Classes
from hidisc.evaluation.compare import draw_weights, name_clusters, score
from hidisc.evaluation.predictions import ENCODER, Key, Predictions
from hidisc.settings.evaluate import BootstrapConfig

PATIENTS, CLASSES, RESAMPLES, LOOPED = 200, 7, 2000, 4
UNITS = {"patient": 200, "slide": 400, "patch": 40_000}


def make_level(level: str) -> Predictions:
    """Scores that are right somewhat more often than not, and alike within a patient."""
    rng = np.random.default_rng(UNITS[level])
    patient = np.arange(UNITS[level]) * PATIENTS // UNITS[level]
    truth = patient % CLASSES
    logits = rng.normal(size=(len(truth), CLASSES)) + rng.normal(size=(PATIENTS, CLASSES))[patient]
    logits[np.arange(len(truth)), truth] += 1.5
    scores = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    names = np.array([f"P{number:03}" for number in patient], object)
    endpoint = Classes(label="label", classes=tuple("abcdefg"), positive=0)
    return Predictions(Key(ENCODER, "knn", level), endpoint, {"patient": names}, truth.astype(np.int64), scores)


def loop(made: Predictions, weights: NDArray[np.int16], names: NDArray[np.object_]) -> list[dict[str, float]]:
    """The same metrics of every resample, one after the other."""
    rows = [np.flatnonzero(made.clusters == name) for name in names]
    found = []
    for row in weights:
        drawn = np.concatenate([rows[number] for number in np.repeat(np.arange(len(names)), row)])
        truth, scores = made.truth[drawn], made.scores[drawn]
        predicted = scores.argmax(axis=1)
        confusion = confusion_matrix(truth, predicted, labels=range(CLASSES))
        right, called, units = confusion.diagonal(), confusion.sum(axis=0), confusion.sum(axis=1)
        rest = len(truth) - units
        found.append(
            {
                "accuracy": accuracy_score(truth, predicted),
                "mca": balanced_accuracy_score(truth, predicted),
                "auroc": roc_auc_score(truth, scores, multi_class="ovr"),
                "auprc": average_precision_score(np.eye(CLASSES)[truth], scores),
                "sensitivity": (right / units).mean(),
                "specificity": ((rest - called + right) / rest).mean(),
                "top2": top_k_accuracy_score(truth, scores, k=2),
                "top3": top_k_accuracy_score(truth, scores, k=3),
            }
        )
    return found


def measure() -> list[Claim]:
    """Time both sides in turns, in this process."""
    levels = [make_level(level) for level in UNITS]
    names = name_clusters(levels[0])
    few = draw_weights(PATIENTS, LOOPED, 0)
    _check_equal(levels, few, names)
    config = BootstrapConfig(resamples=RESAMPLES)
    seconds = best_of(
        3,
        ours=lambda: [score(made, config, 0) for made in levels],
        loop=lambda: [loop(made, few, names) for made in levels],
    )
    rates = RESAMPLES / seconds["ours"], LOOPED / seconds["loop"]
    name = "2,000 resamples of all metrics, 200 patients, 3 levels, 7 classes : "
    return [
        Claim(f"{name}5 s", seconds["ours"], 5, "s", 1, higher_is_better=False),
        Claim(f"{name}loop over scikit-learn, from {LOOPED} resamples", *rates, "resamples/s", 100),
    ]


def claims() -> list[Claim]:
    """Return the claims as measured now."""
    return on_one_thread(measure)


def _check_equal(levels: list[Predictions], weights: NDArray[np.int16], names: NDArray[np.object_]) -> None:
    """Both sides compute the same thing (but for patches' scores, which we group), or the comparison would be void."""
    for made in levels:
        ours, theirs = made.endpoint.resample(made, weights, names)[0], loop(made, weights, names)
        for metric, values in ours.items():
            gap = np.abs(values - [row[metric] for row in theirs]).max()
            if not gap < (1e-3 if made.key.level == "patch" and metric in ("auroc", "auprc") else 1e-12):
                raise RuntimeError(f"{metric} of {made.key.level}: the sides differ by {gap}: nothing to compare.")


if __name__ == "__main__":
    for claim in claims():
        print(claim)

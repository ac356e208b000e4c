"""The paper's evaluation: every test patch is classified by its k nearest neighbours among the reference patches."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hidisc.evaluation.neighbours import find_neighbours
from hidisc.evaluation.task import Task
from hidisc.ground.progress import Watch, ignore
from hidisc.settings.evaluate import KnnConfig


@dataclass(frozen=True)
class KnnResult:
    """Scores and nearest neighbours of N query patches."""

    scores: NDArray[np.float64]
    """(N, L), rows sum to 1."""
    rows: NDArray[np.int64]
    """(N, m) rows of the bank's embeddings that are nearest, as many as are kept."""
    similarities: NDArray[np.float32]
    """(N, m)."""
    remarks: tuple[str, ...]


def predict_by_neighbours(task: Task, config: KnnConfig, device: str = "cpu", watch: Watch = ignore) -> KnnResult:
    """Scores of every query patch by its k nearest patches of the bank, and the nearest of these.

    `watch` is called with the number of patches done. Memory: the budget, and L + 1.5 m numbers per query.
    """
    bank, queries = task.bank, task.queries
    k = min(config.k, len(bank))
    keep = min(config.keep, k)
    scores = np.empty((len(queries), len(task.classes)))
    rows = np.empty((len(queries), keep), np.int64)
    similarities = np.empty((len(queries), keep), np.float32)
    for block, nearness, neighbours in find_neighbours(queries, bank, k, config.memory_gb, device):
        scores[block] = vote(nearness, bank.labels[neighbours], len(task.classes), config.temperature)
        rows[block], similarities[block] = bank.rows[neighbours[:, :keep]], nearness[:, :keep]
        watch(len(nearness))
    remarks = [
        f"Each test patch is classified by the {k} nearest of {len(bank):,} reference patches by cosine similarity, "
        f"weighted by exp(similarity / {config.temperature:g})."
    ]
    if k < config.k:
        remarks.append(f"There are {len(bank)} reference patches, fewer than k = {config.k}, so all of them vote.")
    if config.second_softmax:
        remarks.append(
            "A second softmax was applied to the scores of each patch before they were averaged, as in the public code."
        )
    return KnnResult(scores, rows, similarities, tuple(remarks))


def vote(
    similarities: NDArray[np.floating[Any]], labels: NDArray[np.integer[Any]], classes: int, temperature: float
) -> NDArray[np.float64]:
    """(N, L) sums of exp(similarity / temperature) over the neighbours (N, k) of each class, divided by their total."""
    exponent = similarities.astype(np.float64) / temperature
    weights = np.exp(exponent - exponent.max(axis=1, keepdims=True))  # the shift cancels, and nothing overflows
    sums = np.stack([(weights * (labels == code)).sum(axis=1) for code in range(classes)], axis=1)
    return sums / weights.sum(axis=1, keepdims=True)

"""The paper's verdict: every query patch is told by its k nearest neighbours in the bank."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hidisc.evaluation.neighbours import Floats, find_neighbours
from hidisc.evaluation.task import LabelledPatches, Task
from hidisc.settings.evaluate import KnnConfig


@dataclass(frozen=True)
class KnnResult:
    """What the neighbours say of N query patches."""

    scores: NDArray[np.float64]
    """(N, L), rows sum to 1."""
    rows: NDArray[np.int64]
    """(N, m) rows of the bank's embeddings that are nearest, as many as are kept."""
    similarities: NDArray[np.float32]
    """(N, m)."""
    remarks: tuple[str, ...]


class _Rows:
    """The vectors of labelled patches, read when asked for."""

    def __init__(self, patches: LabelledPatches) -> None:
        self._patches = patches

    def __len__(self) -> int:
        return len(self._patches)

    def __getitem__(self, rows: slice, /) -> Floats:
        return self._patches.vectors(rows)


def predict_by_neighbours(
    task: Task, config: KnnConfig, device: str = "cpu", watch: Callable[[int], None] = lambda _: None
) -> KnnResult:
    """Scores of every query patch by its k nearest bank patches, and who the nearest are.

    Memory: the budget, and L + 1.5 m numbers a query.
    """
    bank, queries = task.bank, task.queries
    k = min(config.k, len(bank))
    keep = min(config.keep, k)
    scores = np.empty((len(queries), len(task.classes)))
    rows = np.empty((len(queries), keep), np.int64)
    similarities = np.empty((len(queries), keep), np.float32)
    for which, near, places in find_neighbours(_Rows(queries), _Rows(bank), k, config.memory_gb, device):
        scores[which] = vote(near, bank.labels[places], len(task.classes), config.temperature)
        rows[which], similarities[which] = bank.rows[places[:, :keep]], near[:, :keep]
        watch(len(near))
    remarks = [f"{k} nearest of {len(bank):,} patches by cosine, weighed by exp(similarity / {config.temperature:g})."]
    if k < config.k:
        remarks.append(f"The bank has {len(bank)} patches, fewer than k = {config.k}, so all of them were asked.")
    if config.second_softmax:
        remarks.append("Scores were soft-maxed once more before they were averaged, as the public code does.")
    return KnnResult(scores, rows, similarities, tuple(remarks))


def vote(
    similarities: NDArray[np.floating[Any]], labels: NDArray[np.integer[Any]], classes: int, temperature: float
) -> NDArray[np.float64]:
    """(N, L) sums of exp(similarity / temperature) over the neighbours (N, k) of each class, divided by their total."""
    exponent = similarities.astype(np.float64) / temperature
    weights = np.exp(exponent - exponent.max(axis=1, keepdims=True))  # the shift cancels, and nothing overflows
    sums = np.stack([(weights * (labels == code)).sum(axis=1) for code in range(classes)], axis=1)
    return sums / weights.sum(axis=1, keepdims=True)

"""The vote of the neighbours: the authors' values, the equation by hand, and what is said when k is too large."""

import json
from math import exp
from pathlib import Path

import numpy as np
import pytest

from hidisc.evaluation.neighbours import find_neighbours
from hidisc.evaluation.probes.knn import predict_by_neighbours, vote
from hidisc.evaluation.task import choose_task
from hidisc.settings.evaluate import EvaluateConfig, KnnConfig
from tests.evaluation.made import make_embeddings

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "knn.json").read_text())


@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-8), ("float32", 1e-5)])
@pytest.mark.parametrize("memory_gb", [2.0, 1e-5])
def test_the_authors_values(dtype: str, tolerance: float, memory_gb: float) -> None:
    bank, queries = (np.array(GOLDEN[name], dtype) for name in ("bank", "queries"))
    labels = np.array(GOLDEN["labels"])
    found = find_neighbours(queries, bank, GOLDEN["k"], memory_gb)
    scores = np.concatenate(
        [vote(near, labels[places], GOLDEN["classes"], GOLDEN["temperature"]) for _, near, places in found]
    )
    np.testing.assert_allclose(scores, GOLDEN["scores"], atol=tolerance)


def test_the_equation_by_hand() -> None:
    scores = vote(np.array([[0.9, 0.5, -0.2]]), np.array([[1, 0, 1]]), 3, 0.1)
    weights = [exp(9), exp(5), exp(-2)]
    np.testing.assert_allclose(scores, [[weights[1] / sum(weights), (weights[0] + weights[2]) / sum(weights), 0]])


def test_small_temperatures_do_not_overflow() -> None:
    scores = vote(np.array([[1.0, 0.99]], np.float32), np.array([[0, 1]]), 2, 1e-4)
    assert np.isfinite(scores).all()
    assert scores[0, 0] > 0.999


def test_a_task_is_predicted(tmp_path: Path) -> None:
    made = make_embeddings(tmp_path / "made", signal=3)
    task = choose_task(made, made, EvaluateConfig())
    result = predict_by_neighbours(task, KnnConfig(k=20, keep=5))
    assert result.scores.shape == (len(task.queries), 3)
    np.testing.assert_allclose(result.scores.sum(axis=1), 1)
    assert (result.scores.argmax(axis=1) == task.queries.labels).mean() > 0.9
    # the neighbours are rows of the embeddings, of the bank, and as near as their similarities
    assert set(made.table.column("split")[result.rows].ravel()) == {"train"}
    unit = made.vectors / np.linalg.norm(made.vectors, axis=1, keepdims=True)
    expected = np.einsum("nd,nmd->nm", unit[task.queries.rows], unit[result.rows])
    np.testing.assert_allclose(result.similarities, expected, atol=1e-6)
    assert result.remarks == (
        f"Each test patch is classified by the 20 nearest of {len(task.bank):,} reference patches by cosine "
        "similarity, weighted by exp(similarity / 0.07).",
    )


def test_k_larger_than_the_bank_is_handled_and_said(tmp_path: Path) -> None:
    made = make_embeddings(tmp_path / "made", patients=2, patches=3)
    task = choose_task(made, made, EvaluateConfig())
    result = predict_by_neighbours(task, KnnConfig(k=200))
    all_of_them = predict_by_neighbours(task, KnnConfig(k=len(task.bank)))
    np.testing.assert_array_equal(result.scores, all_of_them.scores)
    assert result.remarks[1] == "There are 18 reference patches, fewer than k = 200, so all of them vote."


def test_the_second_softmax_is_said(tmp_path: Path) -> None:
    made = make_embeddings(tmp_path / "made", patients=2, patches=3)
    result = predict_by_neighbours(choose_task(made, made, EvaluateConfig()), KnnConfig(k=3, second_softmax=True))
    assert result.remarks[-1] == (
        "A second softmax was applied to the scores of each patch before they were averaged, as in the public code."
    )

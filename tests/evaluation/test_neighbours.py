"""Exact neighbours: against scikit-learn's brute force, whatever the budget; larger banks from disk."""

import tracemalloc
from pathlib import Path

import faiss
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.neighbors import NearestNeighbors

from hidisc.evaluation import neighbours
from hidisc.evaluation.neighbours import RoundedBank, find_neighbours, to_unit


def draw(seed: int, rows: int, dim: int, dtype: str) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(rows, dim)).astype(dtype)


def search(queries: np.ndarray, bank: np.ndarray, k: int, memory_gb: float = 2.0) -> tuple[np.ndarray, np.ndarray]:
    found = list(find_neighbours(queries, bank, k, memory_gb))
    places = np.concatenate([np.arange(len(queries))[which] for which, _, _ in found])
    assert places.tolist() == list(range(len(queries)))  # every query once, in order
    return np.concatenate([near for _, near, _ in found]), np.concatenate([rows for _, _, rows in found])


@given(
    seed=st.integers(0, 10**6),
    rows=st.integers(1, 60),
    count=st.integers(1, 20),
    k=st.integers(1, 80),
    memory_kb=st.sampled_from([1, 3, 10, 10**6]),
    dtype=st.sampled_from(["float32", "float64"]),
)
def test_the_same_as_brute_force(seed: int, rows: int, count: int, k: int, memory_kb: int, dtype: str) -> None:
    bank, queries = draw(seed, rows, 8, dtype), draw(seed + 1, count, 8, dtype)
    near, places = search(queries, bank, k, memory_kb * 1e-6)
    k = min(k, rows)
    assert near.shape == places.shape == (count, k)
    distance, expected = (
        NearestNeighbors(n_neighbors=k, algorithm="brute", metric="cosine").fit(bank).kneighbors(queries)
    )
    tolerance = 1e-6 if dtype == "float32" else 1e-12
    np.testing.assert_allclose(near, 1 - distance, atol=tolerance)
    cosine = np.take_along_axis((to_unit(queries) @ to_unit(bank).T).numpy(), places, axis=1)
    np.testing.assert_allclose(near, cosine, atol=tolerance)  # places say whose similarity it is
    assert (np.diff(near, axis=1) <= 0).all()
    assert all(len(set(row)) == k for row in places.tolist())
    assert (np.sort(places) == np.sort(expected)).mean() > 0.99  # but for ties in the last digit


def test_larger_banks_the_same_as_faiss() -> None:
    bank, queries = draw(0, 20_000, 32, "float32"), draw(1, 1500, 32, "float32")
    near, places = search(queries, bank, 200)
    theirs, others = faiss.knn(to_unit(queries).numpy(), to_unit(bank).numpy(), 200, metric=faiss.METRIC_INNER_PRODUCT)
    np.testing.assert_allclose(near, theirs, atol=1e-6)
    assert (places == others).mean() > 0.99


def embed(seed: int, rows: int, spread: float, dim: int = 24) -> np.ndarray:
    """Rows that differ from one direction by `spread`, much more in some dimensions than in others."""
    rng = np.random.default_rng(seed)
    return (1 + spread * rng.normal(size=(rows, dim)) * np.arange(1, dim + 1) ** -0.5).astype(np.float32)


@pytest.mark.parametrize("spread", [10.0, 0.3, 0.01, 1e-4, 0.0], ids="spread {}".format)
def test_rounding_misses_no_neighbour(spread: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a processor can do, the path by rounded numbers is taken; and where it proves nothing, the other."""
    monkeypatch.setattr(neighbours, "has_fast_bfloat16", lambda: True)
    monkeypatch.setattr(neighbours, "_FEWEST_ROUNDED", 1000)
    bank, queries = embed(0, 6000, spread), embed(1, 300, spread)
    for memory_gb in (1.0, 6e-4):  # in one piece, and in several
        near, places = search(queries, bank, 40, memory_gb)
        every = to_unit(queries).double() @ to_unit(bank).double().T
        np.testing.assert_allclose(near, every.topk(40, dim=1).values, atol=1e-6)
        np.testing.assert_allclose(near, every.numpy()[np.arange(300)[:, None], places], atol=1e-6)
        assert all(len(set(row)) == 40 for row in places.tolist())


@pytest.mark.parametrize("is_rounded", [False, True])
def test_threads_change_nothing(is_rounded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbours, "has_fast_bfloat16", lambda: is_rounded)
    monkeypatch.setattr(neighbours, "_FEWEST_ROUNDED", 1000)
    monkeypatch.setattr(neighbours, "_ROWS", 64)
    bank, queries = draw(0, 5000, 64, "float32"), draw(1, 300, 64, "float32")
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            found.append(search(queries, bank, 30))
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    np.testing.assert_allclose(found[0][0], found[1][0], atol=1e-6)
    assert (found[0][1] == found[1][1]).mean() > 0.999


def test_rounding_proves_what_is_spread_and_nothing_that_is_not() -> None:
    bank, queries = to_unit(draw(0, 5000, 256, "float32")), to_unit(draw(1, 50, 256, "float32"))
    assert RoundedBank(bank).search(queries, 40)[1].all()
    one = torch.ones_like(bank) / 16
    assert not RoundedBank(one).search(queries, 40)[1].any()
    bank[3, 3] = float("nan")
    assert not RoundedBank(bank).search(queries, 40)[1].any()


@pytest.mark.parametrize("order", ["rising", "falling", "equal"])
def test_banks_in_an_awkward_order(order: str) -> None:
    """Every row beats those before it, none does, or all are alike."""
    angle = {"rising": np.linspace(3, 0, 20_000), "falling": np.linspace(0, 3, 20_000), "equal": np.zeros(20_000)}[
        order
    ]
    bank = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    near, places = search(np.array([[1.0, 0.0]]), bank, 50)
    np.testing.assert_allclose(near[0], np.sort(np.cos(angle))[::-1][:50])
    assert len(set(places[0].tolist())) == 50
    np.testing.assert_allclose(np.cos(angle)[places[0]], near[0])


def test_rows_of_zeros_are_near_to_nobody() -> None:
    bank = np.array([[0, 0], [1, 0], [-1, 0]], np.float32)
    near, places = search(np.array([[2, 0]], np.float32), bank, 3)
    assert places.tolist() == [[1, 0, 2]]
    assert near.tolist() == [[1, 0, -1]]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_bank_larger_than_the_budget_is_read_from_disk_in_pieces(tmp_path: Path, dtype: str) -> None:
    bank, queries = draw(0, 40_000, 64, dtype), draw(1, 300, 64, dtype)
    expected = search(queries, bank, 20)
    np.save(tmp_path / "bank.npy", bank)
    size = bank.nbytes
    del bank
    on_disk = np.load(tmp_path / "bank.npy", mmap_mode="r")
    budget = size / 4
    tracemalloc.start()
    near, places = search(queries, on_disk, 20, budget / 1e9)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    np.testing.assert_allclose(near, expected[0], atol=1e-6)
    assert (places == expected[1]).mean() > 0.999
    assert peak < budget * 1.1 + 300 * 20 * 16 * 2  # and what this test keeps of what was found

"""Similar patches: exact, against the search of evaluations, with and without patches of the same unit."""

import numpy as np
import pytest

from hidisc.evaluation.neighbours import find_neighbours
from hidisc.explorer import similar as similar
from hidisc.explorer.similar import SimilaritySearch

NONE = np.zeros(500, bool)


def vectors(dtype: str = "float32") -> np.ndarray:
    return np.random.default_rng(0).normal(size=(500, 24)).astype(dtype)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("block_bytes", [2**27, 4 * 24 * 7])
def test_neighbours_are_those_of_the_search(dtype: str, block_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(similar, "_BLOCK_BYTES", block_bytes)
    bank = vectors(dtype)
    _, expected, rows = next(find_neighbours(bank[7:8].astype(np.float32), bank.astype(np.float32), 11))
    found, similarities = SimilaritySearch(bank).nearest(np.array([7]), 10, NONE)
    assert rows[0, 0] == 7
    assert found.tolist() == rows[0, 1:].tolist()
    np.testing.assert_allclose(similarities, expected[0, 1:], atol=1e-6)


def test_what_is_left_out_is_not_found_and_all_others_are() -> None:
    search = SimilaritySearch(vectors())
    is_left_out = np.arange(500) % 3 == 0
    found, _ = search.nearest(np.array([1, 2]), 1000, is_left_out)
    assert sorted(found) == [row for row in range(500) if row % 3 and row not in (1, 2)]
    assert search.nearest(np.array([1]), 5, np.ones(500, bool))[0].tolist() == []


def test_several_patches_ask_by_their_mean_direction() -> None:
    bank = vectors()
    unit = bank / np.linalg.norm(bank, axis=1, keepdims=True)
    mean = unit[[3, 4, 5]].mean(axis=0)
    expected = unit @ (mean / np.linalg.norm(mean))
    scaled = bank * np.linspace(0.1, 90, 500, dtype=np.float32)[:, None]  # lengths do not matter
    np.testing.assert_allclose(SimilaritySearch(scaled).compare(np.array([3, 4, 5])), expected, atol=1e-5)


def test_vectors_without_length_or_number_are_like_nothing() -> None:
    bank = vectors()
    bank[10], bank[11] = 0, np.nan
    similarities = SimilaritySearch(bank).compare(np.array([0]))
    assert np.isfinite(similarities).all()
    assert (similarities[10], similarities[11]) == (0, -1)

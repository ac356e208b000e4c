"""The map keeps neighbours together, is the same for a seed, and takes whatever an encoder gives."""

import os
import subprocess
import sys
import warnings

import numpy as np
import pytest
from numpy.typing import NDArray

from hidisc.reporting.patch_map import map_points


def clusters(
    points: int, count: int = 4, dim: int = 16, seed: int = 0
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Vectors around `count` directions, of all lengths, and which direction each has."""
    rng = np.random.default_rng(seed)
    code = np.arange(points) % count
    vectors = rng.normal(size=(count, dim))[code] * 3 + rng.normal(size=(points, dim))
    return (vectors * rng.uniform(0.1, 50, (points, 1))).astype(np.float32), code


def test_neighbours_by_cosine_are_neighbours_on_the_map() -> None:
    vectors, code = clusters(240)
    places = map_points(vectors, 15.0, 0)
    assert places.shape == (240, 2)
    assert places.dtype == np.float32
    away = np.linalg.norm(places[:, None] - places, axis=2)
    np.fill_diagonal(away, np.inf)
    assert (code[away.argsort(axis=1)[:, :5]] == code[:, None]).mean() > 0.99  # lengths play no part


def test_the_same_seed_gives_the_same_map() -> None:
    vectors, _ = clusters(60)
    first = map_points(vectors, 10.0, 3)
    np.testing.assert_array_equal(first, map_points(vectors, 10.0, 3))
    np.testing.assert_array_equal(first, map_points(vectors.astype(np.float64), 10.0, 3))
    flat = np.ones((40, 8), np.float32)  # nothing but the seed decides
    assert not np.array_equal(map_points(flat, 5.0, 1), map_points(flat, 5.0, 2))


@pytest.mark.whole
def test_the_map_does_not_depend_on_the_number_of_threads() -> None:
    code = (
        "import hashlib; from hidisc.reporting.patch_map import map_points;"
        "from tests.reporting.test_tsne import clusters;"
        "print(hashlib.sha256(map_points(clusters(300, dim=128)[0], 20.0, 0).tobytes()).hexdigest())"
    )
    threads = [{**os.environ, "OMP_NUM_THREADS": number, "OPENBLAS_NUM_THREADS": number} for number in ("1", "2")]
    runs = [subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env) for env in threads]
    assert runs[0].stdout == runs[1].stdout
    assert len(runs[0].stdout) == 65


@pytest.mark.parametrize("points", [0, 1, 2, 4, 5, 6, 10])
def test_few_points_have_places_of_their_own(
    points: int, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    places = map_points(clusters(points)[0], 30.0, 0)
    assert places.shape == (points, 2)
    assert np.isfinite(places).all()
    assert len(np.unique(places, axis=0)) == points
    assert capfd.readouterr() == ("", "")
    assert caplog.records == []
    if points < 5:
        np.testing.assert_allclose(np.linalg.norm(places, axis=1), 1, rtol=1e-6)  # a circle


DEGENERATE = {
    "constant": np.ones((60, 8)),
    "zeros": np.zeros((60, 8)),
    "nearly constant": 1 + 1e-7 * np.random.default_rng(0).normal(size=(60, 8)),
    "duplicates": np.repeat(np.random.default_rng(0).normal(size=(3, 8)), 20, axis=0),
    "one number": np.random.default_rng(0).normal(size=(60, 1)),
    "huge": 1e30 * np.random.default_rng(0).normal(size=(60, 8)),
    "tiny": 1e-30 * np.random.default_rng(0).normal(size=(60, 8)),
    "half": np.random.default_rng(0).normal(size=(60, 8)).astype(np.float16),
}


@pytest.mark.parametrize("kind", DEGENERATE)
def test_collapsed_and_odd_vectors_have_a_map(kind: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        places = map_points(DEGENERATE[kind], 30.0, 0)
    assert places.shape == (60, 2)
    assert np.isfinite(places).all()
    assert 1 < np.ptp(places, axis=0).max() < 500


def test_broken_vectors_stand_together_and_leave_the_others_alone() -> None:
    vectors, code = clusters(60, count=2)
    vectors[::10, 3], vectors[5] = np.nan, np.inf
    places = map_points(vectors, 10.0, 0)
    assert np.isfinite(places).all()
    whole = np.isfinite(vectors).all(axis=1)
    away = np.linalg.norm(places[:, None] - places, axis=2)[whole][:, whole]
    np.fill_diagonal(away, np.inf)
    assert (code[whole][away.argmin(axis=1)] == code[whole]).mean() > 0.95


def test_the_vectors_given_are_not_changed() -> None:
    vectors, _ = clusters(20)
    vectors[0] = np.nan
    before = vectors.copy()
    map_points(vectors, 5.0, 0)
    np.testing.assert_array_equal(vectors, before)

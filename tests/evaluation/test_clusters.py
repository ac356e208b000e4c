"""Clusters: groups that are there are found, by direction, whatever the number of patches."""

import numpy as np
import pytest

from hidisc.explorer import projection
from hidisc.explorer.projection import find_clusters


def draw_groups(rows: int, groups: int) -> tuple[np.ndarray, np.ndarray]:
    """Vectors of any length around as many directions, the first group the largest; and their groups."""
    rng = np.random.default_rng(0)
    group = np.minimum(rng.geometric(0.35, rows) - 1, groups - 1)
    vectors = 6 * rng.normal(size=(groups, 24))[group] + rng.normal(size=(rows, 24))
    return (vectors * rng.uniform(0.1, 30, (rows, 1))).astype(np.float32), group


@pytest.mark.parametrize("most", [20_000, 400])
def test_groups_of_directions_are_found_also_from_a_sample(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(projection, "CLUSTER_SAMPLE", most)
    monkeypatch.setattr(projection, "_BLOCK", 300)
    vectors, group = draw_groups(2000, 8)
    found = find_clusters(vectors, seed=0)
    pairs = set(zip(group.tolist(), found.tolist(), strict=True))
    assert len(pairs) == 8  # one cluster per group
    assert (np.diff(np.bincount(found)) <= 0).all()  # the largest first
    assert (found == find_clusters(vectors, seed=0)).all()


def test_a_vector_belongs_to_the_nearest_centre() -> None:
    vectors = np.random.default_rng(1).normal(size=(600, 5)).astype(np.float32)
    found = find_clusters(vectors, seed=0)
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    centres = np.stack([unit[found == code].mean(axis=0) for code in range(8)])  # k-means has converged
    nearest = np.square(unit[:, None] - centres).sum(axis=2).argmin(axis=1)
    assert (nearest == found).mean() > 0.99


def test_few_or_broken_vectors_have_fewer_clusters() -> None:
    assert find_clusters(np.ones((5, 3), np.float32), seed=0).tolist() == [0] * 5
    vectors = np.array([[1, 0], [2, 0], [0, 1], [np.nan, 0], [0, 0]], np.float32)
    found = find_clusters(vectors, seed=0)
    assert found[0] == found[1] != found[2]
    assert found[3] == found[4]  # what is not finite counts as nothing
    assert find_clusters(np.zeros((0, 3), np.float32), seed=0).shape == (0,)

"""The report's map: t-SNE of 10,000 patches of 512 numbers in under 60 s on two cores.

    python bench/tsne.py

Vectors as an encoder makes them: 7 classes, 100 patients around them, patches around those. One run after a small one
that loads the libraries, for a map takes long enough to be timed once.
"""

import time

import numpy as np
from numpy.typing import NDArray

from harness import Claim
from hidisc.reporting.patch_map import map_points

POINTS, DIM, CLASSES, PATIENTS = 10_000, 512, 7, 100
PERPLEXITY, BUDGET_S = 30.0, 60.0


def make_vectors(points: int) -> NDArray[np.float32]:
    """(points, DIM): class, patient and patch each add a shift."""
    rng = np.random.default_rng(0)
    patient = rng.integers(0, PATIENTS, points)
    of_class = rng.normal(size=(CLASSES, DIM))[np.arange(PATIENTS) % CLASSES]
    shift = of_class + 0.7 * rng.normal(size=(PATIENTS, DIM))
    return (shift[patient] + rng.normal(size=(points, DIM))).astype(np.float32)


def claims() -> list[Claim]:
    """Seconds from vectors in memory to places."""
    map_points(make_vectors(200), PERPLEXITY, seed=0)
    vectors = make_vectors(POINTS)
    start = time.perf_counter()
    placed = map_points(vectors, PERPLEXITY, seed=0)
    seconds = time.perf_counter() - start
    assert placed.shape == (POINTS, 2)
    assert np.isfinite(placed).all()
    return [Claim(f"t-SNE of {POINTS:,} x {DIM} : {BUDGET_S:g} s", seconds, BUDGET_S, "s", 1, False)]


if __name__ == "__main__":
    print(*claims(), sep="\n")

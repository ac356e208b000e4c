"""Exact nearest neighbours: against faiss, scikit-learn, the size of the bank and the memory budget.

    python bench/knn.py

A bank of 200,000 x 512 and 3,000 queries (fewer for scikit-learn, which is slow; rates are compared), k = 200, on
one and on two threads. Every side is given raw rows and brings them to unit length itself. Memory is that of a fresh
process above what it has after loading its libraries.
"""

import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import faiss
import numpy as np
import torch
from sklearn.neighbors import NearestNeighbors

from harness import Claim, median_rates, on_threads, peak_bytes
from hidisc.evaluation.neighbours import find_neighbours, has_fast_bfloat16

BANK, DIM, QUERIES, K = 200_000, 512, 3_000, 200
SIZES = (10_000, 100_000, 1_000_000)
ROUNDS = 5


def draw(rows: int, seed: int, dim: int = DIM) -> np.ndarray:
    """Random rows (N, D)."""
    return np.random.default_rng(seed).standard_normal((rows, dim), dtype=np.float32)


def search(queries: np.ndarray, bank: np.ndarray, memory_gb: float = 2.0) -> float:
    """Queries a second of ours."""
    began = time.perf_counter()
    for _ in find_neighbours(queries, bank, K, memory_gb):
        pass
    return len(queries) / (time.perf_counter() - began)


def brute_force(queries: np.ndarray, bank: np.ndarray) -> float:
    """Queries a second of scikit-learn."""
    finder = NearestNeighbors(n_neighbors=K, algorithm="brute", metric="cosine").fit(bank)
    began = time.perf_counter()
    finder.kneighbors(queries)
    return len(queries) / (time.perf_counter() - began)


def normalise(rows: np.ndarray) -> np.ndarray:
    """Unit rows by faiss's own function, on a copy, as ours leaves what it is given alone."""
    unit = rows.copy()
    faiss.normalize_L2(unit)
    return unit


def ask_function(queries: np.ndarray, bank: np.ndarray) -> float:
    """Queries a second of `faiss.knn`."""
    began = time.perf_counter()
    faiss.knn(normalise(queries), normalise(bank), K, metric=faiss.METRIC_INNER_PRODUCT)
    return len(queries) / (time.perf_counter() - began)


def ask_index(queries: np.ndarray, bank: np.ndarray) -> float:
    """Queries a second of `faiss.IndexFlatIP`."""
    began = time.perf_counter()
    index = faiss.IndexFlatIP(DIM)
    index.add(normalise(bank))
    index.search(normalise(queries), K)
    return len(queries) / (time.perf_counter() - began)


def compare_with_faiss() -> list[Claim]:
    """Ours and the faster of faiss's two ways, in turns, with as many threads as this process has."""
    threads = torch.get_num_threads()
    faiss.omp_set_num_threads(threads)
    print(f"faiss {faiss.__version__}, {faiss.get_compile_options()}, bfloat16 {has_fast_bfloat16()}", file=sys.stderr)
    bank, queries = draw(BANK, 0), draw(QUERIES, 1)
    sides = {"ours": search, "function": ask_function, "index": ask_index}
    for side in sides.values():
        side(queries[:500], bank)  # the first search prepares memory, threads and code
    rates = median_rates(ROUNDS, **{name: partial(side, queries, bank) for name, side in sides.items()})
    best = max(rates["function"], rates["index"])
    name = f"kNN, 200,000 x 512, k = 200 : faiss, {threads} thread{'s' if threads > 1 else ''}"
    return [Claim(name, rates["ours"], best, "queries/s", 1)]


def measure_memory(bank: str, memory_gb: float) -> float:
    """GB that a search over a bank on disk takes beyond a small one."""
    queries = draw(2000, 1)
    search(queries[:100], draw(2000, 2))
    before = peak_bytes()
    search(queries, Disk(bank), memory_gb)
    return (peak_bytes() - before) / 1e9


class Disk:
    """Rows of a file, read when asked for: pages of a memory map would count as memory of this process."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __len__(self) -> int:
        return Path(self._path).stat().st_size // (4 * DIM)

    def __getitem__(self, which: slice) -> np.ndarray:
        first, last, _ = which.indices(len(self))
        rows = np.fromfile(self._path, np.float32, (last - first) * DIM, offset=4 * DIM * first)
        return rows.reshape(-1, DIM)


def claims() -> list[Claim]:
    """Measure."""
    found = [*on_threads(1, compare_with_faiss), *on_threads(2, compare_with_faiss)]
    bank, queries = draw(BANK, 0), draw(QUERIES, 1)
    rates = median_rates(3, ours=lambda: search(queries, bank), theirs=lambda: brute_force(queries[:1000], bank))
    found.append(Claim("kNN, 200,000 x 512, k = 200 : scikit-learn brute force", *rates.values(), "queries/s", 2))
    narrow = draw(2000, 1, 64)
    by_size = {size: max(search(narrow, draw(size, 2, 64)) for _ in range(2)) for size in SIZES}
    per_row = [1e9 / (rate * size) for size, rate in by_size.items()]
    found.append(
        Claim(
            "ns per query and row, 10^6 rows : 10^5 rows",
            per_row[2],
            per_row[1],
            "ns",
            1.3,
            higher_is_better=False,
        )
    )
    found.append(
        Claim(
            "ns per query and row, 10^5 rows : 10^4 rows",
            per_row[1],
            per_row[0],
            "ns",
            1.3,
            higher_is_better=False,
        )
    )
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "bank"
        with path.open("wb") as file:
            for start in range(0, 1_000_000, 50_000):
                draw(50_000, start).tofile(file)
        for budget in (2.0, 0.5):
            with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
                taken = pool.submit(measure_memory, str(path), budget).result()
            found.append(
                Claim(
                    f"memory of kNN over 2 GB on disk, budget {budget:g} GB : the budget",
                    taken,
                    budget,
                    "GB",
                    1,
                    higher_is_better=False,
                )
            )
    return found


if __name__ == "__main__":
    for claim in claims():
        print(claim)

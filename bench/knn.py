"""Exact nearest neighbours: against the bare product, scikit-learn, the size of the bank and the memory budget.

    python bench/knn.py

All threads on every side. A bank of 200,000 x 512 and 10,000 queries (fewer for scikit-learn, which is slow; rates are
compared), k = 200. Memory is that of a fresh process above what it has after loading its libraries.
"""

import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import faiss
import numpy as np
from sklearn.neighbors import NearestNeighbors

from harness import Claim, median_rates, peak_bytes
from hidisc.evaluation.neighbours import find_neighbours, to_unit

BANK, DIM, QUERIES, K = 200_000, 512, 10_000, 200
SIZES = (10_000, 100_000, 1_000_000)
BLOCK = 1024


def draw(rows: int, seed: int, dim: int = DIM) -> np.ndarray:
    """Random rows (N, D)."""
    return np.random.default_rng(seed).standard_normal((rows, dim), dtype=np.float32)


def search(queries: np.ndarray, bank: np.ndarray, memory_gb: float = 2.0) -> float:
    """Queries a second of ours."""
    began = time.perf_counter()
    for _ in find_neighbours(queries, bank, K, memory_gb):
        pass
    return len(queries) / (time.perf_counter() - began)


def multiply(queries: np.ndarray, bank: np.ndarray) -> float:
    """Queries a second of the bare matrix product in blocks, unit rows given, nothing looked for."""
    rows, columns = to_unit(queries), to_unit(bank).T
    began = time.perf_counter()
    for start in range(0, len(rows), BLOCK):
        _ = rows[start : start + BLOCK] @ columns
    return len(queries) / (time.perf_counter() - began)


def brute_force(queries: np.ndarray, bank: np.ndarray) -> float:
    """Queries a second of scikit-learn."""
    finder = NearestNeighbors(n_neighbors=K, algorithm="brute", metric="cosine").fit(bank)
    began = time.perf_counter()
    finder.kneighbors(queries)
    return len(queries) / (time.perf_counter() - began)


def ask_faiss(queries: np.ndarray, bank: np.ndarray) -> float:
    """Queries a second of faiss, unit rows given."""
    rows, columns = to_unit(queries).numpy(), to_unit(bank).numpy()
    began = time.perf_counter()
    faiss.knn(rows, columns, K, metric=faiss.METRIC_INNER_PRODUCT)
    return len(queries) / (time.perf_counter() - began)


def measure_memory(bank: str, memory_gb: float) -> float:
    """GB that a search over a bank on disk takes beyond a small one; the disk's own pages are not counted."""
    on_disk = np.load(bank, mmap_mode="r")
    queries = draw(2000, 1)
    search(queries[:100], draw(2000, 2))
    before = peak_anonymous()
    search(queries, Disk(on_disk), memory_gb)
    return (peak_anonymous() - before) / 1e9


class Disk:
    """Rows of a memory map, copied when asked for and given back to the kernel."""

    def __init__(self, rows: np.ndarray) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, which: slice) -> np.ndarray:
        return np.array(self._rows[which])


def peak_anonymous() -> int:
    """The process's peak so far, without pages of files, which the kernel can drop at any time."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":" in line)
    return peak_bytes() - int(status["RssFile"].split()[0]) * 1024


def claims() -> list[Claim]:
    """Measure."""
    bank, queries = draw(BANK, 0), draw(QUERIES, 1)
    rates = median_rates(7, bare=lambda: multiply(queries, bank), ours=lambda: search(queries, bank))
    ours, bare = rates["ours"], rates["bare"]
    theirs = brute_force(queries[:2000], bank)
    found = [
        Claim("kNN, 200,000 x 512, k = 200 : bare torch product", ours, bare, "queries/s", 1),
        Claim("kNN, 200,000 x 512, k = 200 : scikit-learn brute force", ours, theirs, "queries/s", 2),
        Claim("kNN, 200,000 x 512, k = 200 : faiss", ours, ask_faiss(queries[:2000], bank), "queries/s", 1),
    ]
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
        path = Path(name) / "bank.npy"
        large = np.lib.format.open_memmap(path, "w+", np.float32, (1_000_000, DIM))
        for start in range(0, len(large), 50_000):
            large[start : start + 50_000] = draw(50_000, start)
        large.flush()
        del large
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

"""What every measured claim shares: a number of ours beside a reference's, and timing that is fair to both."""

import os
import re
import resource
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path


@dataclass(frozen=True)
class Claim:
    """One measured claim; it holds when `ratio` reaches `bar` (stays under it when lower is better)."""

    claim: str
    ours: float
    reference: float
    """The named reference's number, measured in the same run; the budget itself where the bar is absolute."""
    unit: str
    bar: float
    higher_is_better: bool = True

    @property
    def ratio(self) -> float:
        """Ours divided by the reference."""
        return self.ours / self.reference

    @property
    def held(self) -> bool:
        """Whether the claim is true of this run."""
        return self.ratio >= self.bar if self.higher_is_better else self.ratio <= self.bar

    def __str__(self) -> str:
        """Return the claim as one line."""
        verdict, sign = "held" if self.held else "FAILED", ">=" if self.higher_is_better else "<="
        return (
            f"{verdict}: {self.claim}: {self.ours:.4g} against {self.reference:.4g} {self.unit}, "
            f"ratio {self.ratio:.2f} (bar {sign} {self.bar:g})"
        )


def best_of(runs: int, **callables: Callable[[], object]) -> dict[str, float]:
    """Return the best seconds of each callable over `runs` interleaved rounds, after one untimed round."""
    best = dict.fromkeys(callables, float("inf"))
    for call in callables.values():
        call()
    for _ in range(runs):
        for name, call in callables.items():
            start = time.perf_counter()
            call()
            best[name] = min(best[name], time.perf_counter() - start)
    return best


def median_rates(rounds: int, **measured: Callable[[], float]) -> dict[str, float]:
    """Return the median rate of each, measured in turn: where a machine's speed wanders, no side is the lucky one."""
    rates: dict[str, list[float]] = {name: [] for name in measured}
    for _ in range(rounds):
        for name, measure in measured.items():
            rates[name].append(measure())
    return {name: statistics.median(found) for name, found in rates.items()}


def peak_bytes() -> int:
    """Return this process's largest resident memory so far, libraries included."""
    status = Path("/proc/self/status")
    if status.exists():  # getrusage's figure would begin with the parent's at the fork
        return int(re.search(r"VmHWM:\s+(\d+) kB", status.read_text())[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def on_one_thread(measure: Callable[[], list[Claim]]) -> list[Claim]:
    """Return what a module-level function measures in a fresh process whose libraries all use one thread."""
    return on_threads(1, measure)


def on_threads(threads: int, measure: Callable[[], list[Claim]]) -> list[Claim]:
    """Return what a module-level function measures in a fresh process whose libraries all use so many threads.

    BLAS and OpenMP read these variables when they are loaded, so this process cannot be changed any more.
    """
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    before = {name: os.environ.get(name) for name in names}
    os.environ.update(dict.fromkeys(names, str(threads)))
    try:
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            return pool.submit(measure).result()
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value

"""Training, embedding and preparing with memory that stays with the process, and with memory that goes back.

    python bench/memory.py

Bare steps and bare forward passes of the network of the recipe `small-cohort`, and `prepare` of drawn slides, one
thread, each side in a process of its own, in turn: as glibc does by default, and as in the workers of Dask, which set
its threshold to 64 KB.
"""

import os
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import TypeVar

import torch

from harness import Claim, median_rates, peak_bytes
from hidisc.ground.machine import keep_freed_memory
from hidisc.models.encoder import build_encoder
from hidisc.settings.prepare import GridConfig, PrepareConfig
from hidisc.settings.train import TrainConfig
from hidisc.slides.synthetic import draw_cohort
from hidisc.verbs.prepare import prepare

Measured = TypeVar("Measured")
IMAGES, SIZE_PX, STEPS, ROUNDS = 64, 64, 12, 3


def measure(keep: bool, learn: bool) -> tuple[float, float]:
    """(images/s, peak GB) of steps, or of forward passes alone."""
    torch.set_num_threads(1)
    if keep:
        keep_freed_memory()
    encoder = build_encoder("tf_efficientnet_lite0", {}, TrainConfig().model.head, channels=3, size_px=SIZE_PX)
    encoder = encoder.train(learn).to(memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(encoder.parameters(), 1e-3)
    x = torch.rand(IMAGES, 3, SIZE_PX, SIZE_PX).to(memory_format=torch.channels_last)

    def step() -> None:
        with torch.set_grad_enabled(learn):
            z = encoder.project(x)
        if learn:
            z.square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    for _ in range(3):
        step()
    began = time.perf_counter()
    for _ in range(STEPS):
        step()
    return IMAGES * STEPS / (time.perf_counter() - began), peak_bytes() / 2**30


def cpu_seconds(keep: bool) -> float:
    """Processor time of preparing twelve drawn slides."""
    torch.set_num_threads(1)
    if keep:
        keep_freed_memory()
    with tempfile.TemporaryDirectory() as name:
        cohort = draw_cohort(Path(name) / "drawn", patients=6, slides=2, fields=16, field_px=600, seed=0)
        began = time.process_time()
        prepare(cohort, Path(name) / "store", PrepareConfig(grid=GridConfig(mpp=0.5)), workers=0)
        return time.process_time() - began


def in_fresh_process(measured: Callable[..., Measured], *given: bool, dask: bool = False) -> Measured:
    """What a function measures in a new process, because an allocator that was set once stays so."""
    if dask:
        os.environ["MALLOC_TRIM_THRESHOLD_"] = "65536"
    try:
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            return pool.submit(measured, *given).result()
    finally:
        os.environ.pop("MALLOC_TRIM_THRESHOLD_", None)


def compare_passes(name: str, learn: bool, bars: tuple[float, float]) -> list[Claim]:
    """Passes with and without gradients, and the peak memory of those with."""
    peaks: dict[tuple[bool, bool], float] = {}

    def rate(keep: bool, dask: bool) -> float:
        images_per_s, peaks[keep, dask] = in_fresh_process(measure, keep, learn, dask=dask)
        return images_per_s

    rates = median_rates(
        ROUNDS, ours=partial(rate, True, True), glibc=partial(rate, False, False), dask=partial(rate, False, True)
    )
    title = f"bare {name}, freed memory kept : given back"
    found = [
        Claim(title, rates["ours"], rates["glibc"], "images/s", bars[0]),
        Claim(f"{title} as in Dask's workers", rates["ours"], rates["dask"], "images/s", bars[1]),
    ]
    if learn:
        peak = peaks[True, True], peaks[False, False]
        found.append(Claim(f"their peak memory, {name}", *peak, "GB", 1.1, higher_is_better=False))
    return found


def claims() -> list[Claim]:
    """Measure, all sides in turn."""
    found = compare_passes("steps", True, (1.05, 1.5)) + compare_passes("forward passes", False, (1.1, 1.5))
    seconds = median_rates(
        ROUNDS,
        ours=partial(in_fresh_process, cpu_seconds, True, dask=True),
        dask=partial(in_fresh_process, cpu_seconds, False, dask=True),
    )
    title = "prepare of 12 drawn slides, freed memory kept : given back as in Dask's workers"
    return [*found, Claim(title, seconds["ours"], seconds["dask"], "CPU s", 0.8, higher_is_better=False)]


if __name__ == "__main__":
    for claim in claims():
        print(claim)

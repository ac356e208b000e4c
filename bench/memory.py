"""Training and embedding with memory that stays with the process, against memory that goes back to the kernel.

    python bench/memory.py

Bare steps and bare forward passes of the network of the recipe `small-cohort`, one thread, each side in a process of
its own, in turn: as glibc does by default, and as in the workers of Dask, which set its threshold to 64 KB.
"""

import os
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context

import torch

from harness import Claim, median_rates, peak_bytes
from hidisc.ground.machine import keep_freed_memory
from hidisc.models.encoder import build_encoder
from hidisc.settings.train import TrainConfig

IMAGES, SIZE_PX, STEPS, ROUNDS = 64, 64, 12, 5


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


def in_fresh_process(keep: bool, learn: bool, dask: bool = False) -> tuple[float, float]:
    """`measure` in a new process, because an allocator that was set once stays so."""
    if dask:
        os.environ["MALLOC_TRIM_THRESHOLD_"] = "65536"
    try:
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            return pool.submit(measure, keep, learn).result()
    finally:
        os.environ.pop("MALLOC_TRIM_THRESHOLD_", None)


def claims() -> list[Claim]:
    """Measure, all sides in turn."""
    peaks: dict[bool, float] = {}

    def rate(keep: bool, learn: bool, dask: bool = False) -> float:
        images_per_s, peak_gb = in_fresh_process(keep, learn, dask)
        if learn and not dask:
            peaks[keep] = max(peaks.get(keep, 0.0), peak_gb)
        return images_per_s

    def measure_all(learn: bool) -> dict[str, float]:
        sides = {"ours": (True, learn, True), "glibc": (False, learn), "dask": (False, learn, True)}
        return median_rates(ROUNDS, **{name: partial(rate, *side) for name, side in sides.items()})

    rate(True, True)  # its peak, without Dask's threshold
    found = []
    for name, learn, bars in (("steps", True, (1.05, 1.5)), ("forward passes", False, (1.1, 1.5))):
        rates = measure_all(learn)
        for side, reference, bar in zip(
            ("glibc", "dask"), ("given back", "given back in Dask's workers"), bars, strict=True
        ):
            claim = f"bare {name}, freed memory kept : {reference}"
            found.append(Claim(claim, rates["ours"], rates[side], "images/s", bar))
    found.append(Claim("its peak memory, steps", peaks[True], peaks[False], "GB", 1.1, higher_is_better=False))
    return found


if __name__ == "__main__":
    for claim in claims():
        print(claim)

"""Training and embedding with memory that stays with the process, against glibc's defaults.

    python bench/memory.py

Bare steps and bare forward passes of the network of the recipe `small-cohort`, one thread, each side in a process of
its own, in turn. What is left out on both sides is the same.
"""

import time
from collections.abc import Callable
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


def in_fresh_process(keep: bool, learn: bool) -> tuple[float, float]:
    """`measure` in a new process: an allocator that was set once stays so."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(measure, keep, learn).result()


def claims() -> list[Claim]:
    """Measure, both sides in turn."""
    peaks: dict[bool, float] = {}

    def rate(keep: bool, learn: bool) -> float:
        images_per_s, peak_gb = in_fresh_process(keep, learn)
        if learn:
            peaks[keep] = max(peaks.get(keep, 0.0), peak_gb)
        return images_per_s

    def both(learn: bool) -> dict[str, Callable[[], float]]:
        return {"ours": partial(rate, True, learn), "glibc": partial(rate, False, learn)}

    steps, passes = median_rates(ROUNDS, **both(True)), median_rates(ROUNDS, **both(False))
    return [
        Claim("bare steps, freed memory kept : given back", steps["ours"], steps["glibc"], "images/s", 1.05),
        Claim("bare forward passes, freed memory kept : given back", passes["ours"], passes["glibc"], "images/s", 1.1),
        Claim("its peak memory, steps", peaks[True], peaks[False], "GB", 1.1, higher_is_better=False),
    ]


if __name__ == "__main__":
    for claim in claims():
        print(claim)

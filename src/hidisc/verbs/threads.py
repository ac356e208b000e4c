"""How many threads a training on a CPU uses: while others use the machine, one thread can be faster than all.

Sums over one thread and over several differ in the last bits, so a run goes on with the threads it was begun with.
"""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from hidisc.ground.progress import Say
from hidisc.models.backbone import create_backbone, find_architecture
from hidisc.patches.store import PatchStore
from hidisc.settings.train import TrainConfig
from hidisc.training.checkpoint import list_checkpoints, read_checkpoint

_GAIN = 1.15
"""All threads must be this many times as fast as one, or they are left to others."""
_PASS_S, _BUDGET_S = 0.1, 0.7
"""How long a pass with one thread takes, and how long passes are timed: about a second in all."""
_FEW_STEPS = 100
"""A run of fewer steps is not worth the second."""


@contextmanager
def use_threads(threads: int | None, store: PatchStore, out: Path, config: TrainConfig, say: Say) -> Iterator[None]:
    """Use so many threads in the block; None: as many as the run was begun with, else the faster of one and all.

    The number that the user sets in OMP_NUM_THREADS is not changed.
    """
    before = torch.get_num_threads()
    if threads is None and "OMP_NUM_THREADS" not in os.environ and before > 1:
        checkpoints = list_checkpoints(out)
        if checkpoints:
            threads = min(read_checkpoint(checkpoints[-1])[0].threads or before, before)
        elif config.optim.steps >= _FEW_STEPS:
            one_s, all_s = time_threads(store, config, before)
            threads = before if one_s > _GAIN * all_s else 1
        if threads == 1:
            say(f"1 of {before} threads is faster for this network on this machine now")
    torch.set_num_threads(threads or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def time_threads(store: PatchStore, config: TrainConfig, threads: int) -> tuple[float, float]:
    """Seconds that forward and backward passes of the backbone take with one thread and with `threads`."""
    channels, size_px = store.input_channels, store.info.size_px
    layout = torch.channels_last if config.compute.channels_last else torch.contiguous_format
    made_as = find_architecture(config.model.backbone, config.model.options)
    with torch.random.fork_rng(devices=[]):
        backbone, _ = create_backbone(made_as.name, channels, size_px, made_as.options, None, made_as.notes)
    backbone.to(memory_format=layout)

    def time_pass(images: int, threads: int) -> float:
        x = torch.zeros(images, channels, size_px, size_px).to(memory_format=layout)
        torch.set_num_threads(threads)
        began = time.perf_counter()
        backbone(x).sum().backward()
        return time.perf_counter() - began

    time_pass(2, 1)  # the first pass prepares memory and code
    images = max(2, min(config.batch.images, int(2 * _PASS_S / time_pass(2, 1))))
    for number in (1, threads):
        time_pass(images, number)
    pairs: list[tuple[float, float]] = []
    until = time.perf_counter() + _BUDGET_S
    while not pairs or time.perf_counter() < until:
        pairs.append((time_pass(images, 1), time_pass(images, threads)))
    return sum(one for one, _ in pairs), sum(many for _, many in pairs)

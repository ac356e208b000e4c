"""Steps with local views against bare ones of the same crops, and DINO's against BYOL's.

    python bench/multicrop.py

Whole steps as `hidisc train` takes them (views, loss, gradients, optimiser), with batches that are in memory already,
against forward, backward and optimiser on views that are made already. ResNet-18, patches of 96 px, 32 global views and
96 local ones of 48 px. Processor time of one thread, both sides in turn.
"""

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from harness import Claim, on_one_thread
from hidisc.objectives.objective import load_settings
from hidisc.patches.store import PatchStore
from hidisc.sampling.batches import Batches
from hidisc.settings.config import load_config
from hidisc.settings.train import TrainConfig
from hidisc.training.build import build_learner, build_optimizer, choose_training_set
from hidisc.training.processes import start
from hidisc.training.step import ViewMaker, take_step
from training import SIZE_PX, make_store

ROUNDS = 9
SETTINGS = ["batch.images=32", "model.backbone=resnet18"]
LOCAL = ["views.global={scale: [0.4, 1]}", "views.local={number: 6, size_px: 48}"]
PLAIN = ["views.global.scale=null", "views.local.number=0"]


class Steps:
    """A training whose batch is in memory: whole steps, and bare ones on its views."""

    def __init__(self, fabric: Any, store: PatchStore, recipe: str, *changes: str) -> None:
        self._fabric, self._config = fabric, load_config(TrainConfig, recipe, [*SETTINGS, *changes])
        objective = load_settings(self._config.objective)
        chosen = choose_training_set(store, self._config, objective)
        learner: Any = build_learner(chosen, self._config, objective, 1)
        self._learner, self._optimizer = fabric.setup(learner, build_optimizer(learner, self._config))
        self._learner.train()
        self._make = ViewMaker(self._config, store)
        self._batch = Batches(store, chosen.tree, chosen.sampler(self._config, 1), self._config.data, 0).load(0)
        made = self._make(self._batch.pixels, torch.Generator().manual_seed(0))
        self._views = tuple(views.clone() for views in made)

    def whole(self) -> None:
        """A step as `fit` takes it."""
        what = self._fabric, self._learner, self._optimizer, [self._batch], self._config, self._make
        take_step(*what, progress=0.5, wants_norm=False)

    def bare(self) -> None:
        """Forward, backward and optimiser on the same crops with the simplest loss there is."""
        encoder = self._learner.module.encoder
        rows = [encoder.backbone(views.flatten(0, 1)) for views in self._views]
        encoder.head(torch.cat(rows)).square().mean().backward()
        self._optimizer.step()
        self._optimizer.zero_grad()


def seconds(rounds: int, **calls: Callable[[], None]) -> dict[str, float]:
    """Return the best processor seconds of each call over interleaved rounds, after one that warms up."""
    best = dict.fromkeys(calls, float("inf"))
    for number in range(rounds + 1):
        for name, call in calls.items():
            began = time.process_time()
            call()
            if number:
                best[name] = min(best[name], time.process_time() - began)
    return best


def _measure() -> list[Claim]:
    with tempfile.TemporaryDirectory() as name, start("32", "cpu", 1, 1) as fabric:
        store = make_store(Path(name))
        crops = Steps(fabric, store, "hidisc-patient", *LOCAL)
        dino, byol = (Steps(fabric, store, method, *PLAIN) for method in ("dino-hierarchical", "byol-hierarchical"))
        found = seconds(ROUNDS, whole=crops.whole, bare=crops.bare, dino=dino.whole, byol=byol.whole)
    images = 1e3 / 32
    return [
        Claim(
            f"a step with 2 global and 6 local views : bare forward, backward and optimiser, ResNet-18, {SIZE_PX} px",
            found["whole"] * images,
            found["bare"] * images,
            "ms per global view",
            1.15,
            higher_is_better=False,
        ),
        Claim(
            "a step of DINO : of BYOL, hierarchical, the same views",
            found["dino"] * images,
            found["byol"] * images,
            "ms per view",
            1.1,
            higher_is_better=False,
        ),
    ]


def claims() -> list[Claim]:
    """Measure in a process with one thread."""
    return on_one_thread(_measure)


if __name__ == "__main__":
    for claim in claims():
        print(claim)

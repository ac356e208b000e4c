"""Suites of benchmarks and recipes as YAML: damaged bytes, and odd values at any place."""

from copy import deepcopy
from pathlib import Path
from typing import Any

import yaml

from fuzz.harness import INPUT, Judge, Kind, Outcome, judge
from fuzz.mutations import Rng, mutate
from fuzz.world import SUITE
from hidisc.settings.benchmark import SuiteConfig
from hidisc.settings.config import load_config
from hidisc.settings.prepare import PrepareConfig
from hidisc.settings.train import TrainConfig

HEAD = "# Purpose: tried\n# Command: none\n# Machine: any\n# Paper: none\n"
TEXTS = {
    "suite": SUITE,
    "train": "objective:\n  name: hidisc\nbatch:\n  images: 16\noptim:\n  steps: 4\n  lr: 0.001\nseed: 2\n",
    "prepare": "grid:\n  mpp: [0.5, 1.0]\n  size_px: 96\nsplit:\n  fractions: {train: 0.7, test: 0.3}\nseed: 3\n",
}
MODELS = {"suite": SuiteConfig, "train": TrainConfig, "prepare": PrepareConfig}
VALUES = (
    None, True, 0, -1, 10**40, 1e999, float("nan"), "", " ", "x" * 10_000, "é\u202e", [], {}, [[]], {"": None}, [None],
    {"a": {"a": {"a": {}}}}, ["simclr"] * 1000, "../../etc/passwd", "simclr+", "+weak", "1e-3", "0.5, 1.0", "{", "*",
)  # fmt: skip


class Suites(Kind):
    """YAML files that `benchmark` and `--recipe` read."""

    name, limit_s, memory_bytes = "suites", 20, 2**31

    def __init__(self) -> None:
        """Every sort of file as text and as values."""
        self.groups = tuple(f"{name} as {what}" for name in TEXTS for what in ("bytes", "values"))

    def prepare(self, home: Path) -> None:
        """Nothing: the files are short."""

    def open(self, home: Path, folder: Path) -> Judge:
        """Every input is a file of its own."""

        def say(rng: Rng, index: int) -> Outcome:
            name, _, what = self.group_of(index).partition(" as ")
            path = folder / INPUT / "tried.yaml"
            if what == "bytes":
                path.write_bytes(mutate((HEAD + TEXTS[name]).encode(), rng)[0])
            else:
                settings = yaml.safe_load(TEXTS[name])
                for _ in range(int(rng.integers(1, 3))):
                    settings = change(settings, rng)
                path.write_text(HEAD + yaml.safe_dump(settings, allow_unicode=True), encoding="utf-8")
            return judge(lambda: load_config(MODELS[name], str(path)))

        return say


def change(settings: Any, rng: Rng) -> Any:
    """The settings with one value, key or item exchanged, doubled or left out."""
    settings = deepcopy(settings)
    place = settings
    while True:
        if not isinstance(place, dict | list) or not place:
            return VALUES[int(rng.integers(len(VALUES)))]
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        key = keys[int(rng.integers(len(keys)))]
        if isinstance(place[key], dict | list) and place[key] and rng.random() < 0.7:
            place = place[key]
            continue
        way = int(rng.integers(4))
        if way == 0:
            del place[key]
        elif way == 1 and isinstance(place, dict):
            place[("", "x", "rows ", 3, "optim.steps")[int(rng.integers(5))]] = place.pop(key)
        elif way == 2 and isinstance(place, list):
            place.append(place[key])
        else:
            place[key] = deepcopy(VALUES[int(rng.integers(len(VALUES)))])
        return settings

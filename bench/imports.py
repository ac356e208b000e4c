"""A command starts at once: importing a verb costs little beside the library that does its work, and no more than that.

    python bench/imports.py

Processor seconds of fresh processes that import one module and end, on one thread, the modules in turn, after one
untimed round that brings the files into memory. Fabric also imports torchmetrics where it is installed, as lightly has
it here and a plain installation has not.
"""

import os
import resource
import subprocess
import sys
from functools import partial

from harness import Claim, median_rates

ROUNDS, BUDGET_S = 3, 2.0
LIGHT = {"prepare": 0.6, "report": 0.8, "heatmap": 0.8, "benchmark": 0.8}
"""Verbs that do without torch, and the most they may take beside it."""
TORCH = {"evaluate": 1.6, "views": 1.6}
"""Verbs that need torch and nothing that is as heavy."""
TIMM = {"train": 1.6, "embed": 1.6, "export": 1.3}
"""Verbs that build a backbone, which is timm's, and run it on devices."""
VERBS = {**LIGHT, **TORCH, **TIMM}


def measure(module: str) -> float:
    """Processor seconds of a process that imports a module."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-c", f"import {module}"], check=True, env=environment)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def claims() -> list[Claim]:
    """Every verb beside torch or timm alone, and the report beside two seconds."""
    modules = {name: name for name in ("torch", "timm")} | {name: f"hidisc.verbs.{name}" for name in VERBS}
    calls = {name: partial(measure, module) for name, module in modules.items()}
    median_rates(1, **calls)
    seconds = median_rates(ROUNDS, **calls)
    found = [Claim(f"importing report : {BUDGET_S:g} s", seconds["report"], BUDGET_S, "s", 1, False)]
    for verb, bar in VERBS.items():
        alone = "timm" if verb in TIMM else "torch"
        found.append(Claim(f"importing {verb} : {alone} alone", seconds[verb], seconds[alone], "s", bar, False))
    return found


if __name__ == "__main__":
    print(*claims(), sep="\n")

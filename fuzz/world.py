"""A folder with one tiny artefact of every kind, the commands that make them, and what two of them have in common."""

import contextlib
import json
import os
import shutil
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

import hidisc.benchmarking.benchmark
import hidisc.verbs.doctor
import hidisc.verbs.export
import hidisc.verbs.export_vectors
import hidisc.verbs.prepare
import hidisc.verbs.report  # noqa: F401 - what commands import when they need it, once for all of them
from hidisc.cli import main
from hidisc.ground import stop
from hidisc.ground.files import LOCK
from hidisc.slides.synthetic import draw_cohort
from hidisc.training.checkpoint import read_checkpoint

TINY = (
    "model.backbone=test_resnet", "model.head.dim=8", "model.head.hidden_dim=16", "batch.images=16", "optim.steps=4",
    "log.every=1", "checkpoint.every=1", "data.threads=1",
)  # fmt: skip
QUICK = ("knn.k=5", "bootstrap.resamples=20", "mil.epochs=1", "linear.iterations=5")
SUITE = f"""
title: Tiny
rows:
  - {{name: SimCLR, recipe: simclr+weak}}
  - {{name: HiDisc, recipe: hidisc-patient+weak}}
seeds: 1
evaluation_points: [0.5, 1.0]
evaluate: {{knn: {{k: 5}}, probes: [knn], bootstrap: {{resamples: 20}}}}
small: {{changes: [{", ".join(f'"{change}"' for change in TINY)}]}}
"""
PATIENTS, SIZE_PX, PATCHES = 6, 32, 4
COMMAND_LIMIT_S = 240
TIMES = ("images_per_s", "wait_share")
"""Columns of metrics.csv that no two runs share."""


@dataclass(frozen=True)
class Command:
    """A command, `{at}` for the world's folder, and what it makes, by names within the world."""

    text: str
    settings: tuple[str, ...] = ()
    made: tuple[str, ...] = ()
    home: str = ""
    """The folder of the artefact."""

    def words(self, at: Path) -> list[str]:
        """The command line without its first word."""
        changes = [word for change in self.settings for word in ("--set", change)]
        return [word.format(at=at) for word in self.text.split()] + changes


def _command(name: str, text: str, *settings: str) -> Command:
    """A command that makes one folder, called as it is."""
    return Command(f"{text} --out {{at}}/{name}", settings, (name,), name)


SMALL_GRID = ("grid.size_px=16", "tissue.skip_glass=false", "filter.min_pixel_std=0")
COMMANDS = {
    "store": _command("store", "import folder {at}/pictures --patients {at}/patients.csv --workers 0"),
    "slides": _command("slides", "prepare {at}/drawn/cohort.csv --workers 0", *SMALL_GRID),
    "run": _command("run", "train {at}/store --device cpu", *TINY),
    "embeddings": _command("embeddings", "embed {at}/store {at}/run --device cpu", "batch=1", "threads=1"),
    "scores": _command("scores", "evaluate {at}/embeddings --device cpu", *QUICK),
    "report": Command(
        "report {at}/scores --out {at}/report.html", made=("report.html", "report_files"), home="report_files"
    ),
    "benchmark": _command("benchmark", "benchmark {at}/suite.yaml {at}/store --workers 1 --device cpu"),
    "timm": _command("timm", "export {at}/run --to timm"),
    "bags": _command("bags", "export {at}/embeddings --to bags"),
}
"""In the order in which they need each other."""


def make_world(folder: Path, seed: int, names: tuple[str, ...] = tuple(COMMANDS)) -> None:
    """Make inputs and artefacts; those of two seeds are of the same kinds and share no content."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng([7, seed])
    rows = ["patient,label,split"]
    for number in range(PATIENTS):
        patient, split = f"P{number}", "train" if number < 4 else "test"
        rows.append(f"{patient},{'ab'[number % 2]},{split}")
        for slide in "xy":
            place = folder / "pictures" / patient / f"{patient}{slide}"
            place.mkdir(parents=True)
            for patch in range(PATCHES):
                blocks = rng.integers(0, 200, (8, 8, 3), dtype=np.uint8).repeat(SIZE_PX // 8, 0).repeat(SIZE_PX // 8, 1)
                Image.fromarray(blocks + np.uint8(25 * (number % 2))).save(place / f"{patch}.png")
    (folder / "patients.csv").write_text("\n".join(rows) + "\n")
    (folder / "suite.yaml").write_text(SUITE)
    draw_cohort(folder / "drawn", patients=2, slides=2, fields=2, seed=seed)
    for name in names:
        ended = run_command(COMMANDS[name].words(folder), folder / "said.txt")
        if ended.code != 0:
            raise SystemExit(f"hidisc {name} ended with {ended.code}: {ended.said}")


@dataclass(frozen=True)
class Ended:
    """A command that has ended: its exit code, or minus the signal that ended it."""

    code: int
    said: str


def is_there_already(ended: Ended) -> bool:
    """Whether `export` found nothing to do, which it does not call well done."""
    return ended.code == 2 and "is there already and is not overwritten" in ended.said


def run_command(words: list[str], said: Path, *, at: str = "", trace: Path | None = None) -> Ended:
    """Run `hidisc` in a process of its own; `at`: an order for `ground/steps.py`; `trace`: a file for steps reached."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            _become(words, said, at, trace)
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1 if end.code else 0
        finally:
            with contextlib.suppress(OSError, ValueError):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)
    _, status = os.waitpid(child, 0)
    return Ended(os.waitstatus_to_exitcode(status), said.read_text(errors="replace"))


def _become(words: list[str], said: Path, at: str, trace: Path | None) -> None:
    os.setsid()
    signal.alarm(COMMAND_LIMIT_S)
    output = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for number in (1, 2):
        os.dup2(output, number)
    torch.set_num_threads(1)
    if at:
        stop.watch_steps(stop.signal_at(at))
    elif trace is not None:
        with trace.open("w", buffering=1) as file:
            stop.watch_steps(lambda step, name: print(step, name, file=file))
            _call(words)
        return
    _call(words)


def _call(words: list[str]) -> None:
    sys.argv = ["hidisc", *words]
    main()


# What is the same


def contents(world: Path, name: str) -> dict[str, Any]:
    """Every file of an artefact, by its path; without what is a matter of time."""
    found: dict[str, Any] = {}
    for top in COMMANDS[name].made:
        paths = [world / top] if (world / top).is_file() else sorted((world / top).rglob("*"))
        for path in paths:
            if path.is_file() and path.name != LOCK:
                found[path.relative_to(world).as_posix()] = _timeless(path)
    return found


def _timeless(path: Path) -> Any:
    """What a file says, but for the time that something took."""
    if path.name == "metrics.csv":
        rows = [line.split(",") for line in path.read_text().splitlines()]
        keep = [place for place, name in enumerate(rows[0]) if name.strip('"') not in TIMES] if rows else []
        return [[row[place] for place in keep] for row in rows]
    if path.name == "run.json":
        return {**json.loads(path.read_bytes()), "seconds": None}
    if path.parent.name == "checkpoints":
        info, tensors = read_checkpoint(path)
        return info.model_dump(exclude={"seconds"}), {key: value.numpy().tobytes() for key, value in tensors.items()}
    if path.name == "artefact.json" and b'"kind": "train"' in path.read_bytes():
        record = json.loads(path.read_bytes())
        timed = [
            entry for entry in record["files"] if "/" in entry["path"] or entry["path"] in ("run.json", "metrics.csv")
        ]
        return [entry for entry in record["files"] if entry not in timed], [entry["path"] for entry in timed]
    return path.read_bytes()


def differ(left: dict[str, Any], right: dict[str, Any]) -> list[str]:
    """The files that two artefacts do not share."""
    return sorted(name for name in {**left, **right} if left.get(name) != right.get(name))


def remove(world: Path, name: str) -> None:
    """Remove an artefact."""
    for top in COMMANDS[name].made:
        shutil.rmtree(world / top) if (world / top).is_dir() else (world / top).unlink(missing_ok=True)


def restore(world: Path, whole: Path, name: str) -> None:
    """Put an artefact back as it was made."""
    remove(world, name)
    for top in COMMANDS[name].made:
        target = world / top
        shutil.copytree(whole / top, target) if (whole / top).is_dir() else shutil.copy2(whole / top, target)

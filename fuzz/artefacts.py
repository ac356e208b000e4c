"""Artefacts with one file that is not as it was written: whoever uses it says so, or gives what the whole one gives."""

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from fuzz import world
from fuzz.harness import INPUT, Judge, Kind, Outcome, Wrong, judge
from fuzz.mutations import Rng, append, flip_bit, mutate, truncate
from hidisc.artefacts.artefact import MANIFEST, read_manifest
from hidisc.embeddings.embeddings import Embeddings
from hidisc.embeddings.model import open_model
from hidisc.evaluation.scores import Scores
from hidisc.ground.errors import UserError
from hidisc.ground.files import FileEntry
from hidisc.models.encoder import Encoder
from hidisc.patches.store import PatchStore
from hidisc.settings.embed import EmbedConfig
from hidisc.training.run import Run
from hidisc.verbs.doctor import find_damage

USED_SHARE, REPAIRED_SHARE = 0.05, 0.05
"""Of the inputs: those also given to the commands that come next, and to the one that made them."""
NEXT = {
    "store": ("run", "embeddings"),
    "run": ("embeddings", "timm"),
    "embeddings": ("scores", "bags"),
    "scores": ("report",),
}
"""The commands that read an artefact."""


class Artefacts(Kind):
    """Damaged artefacts of every kind."""

    name, limit_s, is_ever_accepted = "artefacts", 300, False

    def __init__(self, names: tuple[str, ...] = tuple(world.COMMANDS)) -> None:
        """`names`: of the commands whose artefacts are damaged."""
        self.names = self.groups = names

    def prepare(self, home: Path) -> None:
        """Two worlds of other content."""
        for seed, name in enumerate(("whole", "other")):
            world.make_world(home / name, seed, self.names)
        for name in self.names:
            _expect_listed(home / "whole", name)

    def open(self, home: Path, folder: Path) -> Judge:
        """Damages a copy of its own, and repairs it."""
        import torch

        torch.set_num_threads(1)
        here = folder / "world"
        shutil.copytree(home / "whole", here)
        known = {name: read(here) for name, read in READERS.items() if name in self.names}

        def say(rng: Rng, index: int) -> Outcome:
            name = self.group_of(index)
            path, entry = _choose(here, name, rng)
            before = path.read_bytes()
            done = _damage(path, home / "other" / path.relative_to(here), rng)
            (folder / INPUT / "damaged.txt").write_text(f"{path.relative_to(here)}: {done}\n")
            if path.exists():
                shutil.copy(path, folder / INPUT)
            harmless = not path.exists() and not entry.needed
            outcome = judge(lambda: _look(here, name, known.get(name), harmless))
            if outcome.verdict != "fell through" and rng.random() < USED_SHARE:
                outcome = _worse(outcome, judge(lambda: self._use(here, home / "whole", name, folder)))
            if outcome.verdict != "fell through" and rng.random() < REPAIRED_SHARE:
                outcome = _worse(outcome, judge(lambda: _repair(here, home / "whole", name, path, folder)))
                world.restore(here, home / "whole", name)
            else:
                path.write_bytes(before)
            if outcome.verdict == "fell through":
                outcome = Outcome("fell through", f"{path.relative_to(here)} ({done}): {outcome.said}")
            return outcome

        return say

    def _use(self, here: Path, whole: Path, name: str, folder: Path) -> None:
        """The commands that come next refuse a damaged artefact, or make of it what they made of the whole one."""
        for following in NEXT.get(name, ()):
            if following not in self.names:
                continue
            world.remove(here, following)
            try:
                _use_in(following, here, whole, folder)
            finally:
                world.restore(here, whole, following)


def _use_in(following: str, here: Path, whole: Path, folder: Path) -> None:
    ended = world.run_command(world.COMMANDS[following].words(here), folder / "command.txt")
    if ended.code not in (0, 2):
        raise Wrong(f"the next command ({following}) ended with {ended.code}: {ended.said}")
    if ended.code == 0 and not _is_said(ended.said):
        different = world.differ(world.contents(here, following), world.contents(whole, following))
        if different:
            raise Wrong(f"the next command ({following}) made other {different[:3]} of it")


def _worse(one: Outcome, other: Outcome) -> Outcome:
    return other if other.verdict == "fell through" else one


# Damaging


def _choose(here: Path, name: str, rng: Rng) -> tuple[Path, FileEntry]:
    """A file of an artefact, or of one inside it."""
    listed = list_files(here / world.COMMANDS[name].home)
    path = sorted(listed)[int(rng.integers(len(listed)))]
    return path, listed[path]


def list_files(folder: Path) -> dict[Path, FileEntry]:
    """Every file that an artefact and those inside it declare, and what declares them."""
    found = {}
    for manifest_path in sorted(folder.rglob(MANIFEST)):
        home = manifest_path.parent
        manifest = read_manifest(home)
        assert manifest is not None
        found[manifest_path] = FileEntry(path=MANIFEST, bytes=0, sha256="", crc32=0)
        for entry in manifest.files:
            path = (home / entry.path).resolve()
            if path.is_file():
                found[path] = entry
    return found


def _damage(path: Path, other: Path, rng: Rng) -> str:
    """Change a file, really, and say how."""
    before = path.read_bytes()
    what = int(rng.integers(6))
    if what == 0:
        path.unlink()
        return "deleted"
    if what == 1 and other.is_file() and other.read_bytes() != before:
        path.write_bytes(other.read_bytes())
        return "swapped with another artefact's"
    if what in (2, 3):
        change = (truncate, append, flip_bit)[int(rng.integers(3))]
        after, done = change(before, rng), change.__name__
    else:
        after, done = mutate(before, rng)
    if after == before:
        after, done = flip_bit(before, rng), "flip_bit"
    path.write_bytes(after)
    return done


# Judging


def _expect_listed(home: Path, name: str) -> None:
    """Every file of an artefact is declared by one."""
    listed = list_files(home / world.COMMANDS[name].home)
    for top in world.COMMANDS[name].made:
        files = [home / top] if (home / top).is_file() else [path for path in (home / top).rglob("*") if path.is_file()]
        stray = [path for path in files if path.name != ".lock" and path.resolve() not in listed]
        if stray:
            raise Wrong(f"{stray[0]} is declared by no artefact")


def _look(here: Path, name: str, known: str | None, harmless: bool) -> None:
    """`verify` finds the damage, and a reader refuses it or does not meet it.

    `known`: what the whole artefact is read as, where hidisc reads it.
    """
    problems = find_damage(here / world.COMMANDS[name].home)
    if not problems and not harmless:
        raise Wrong("verify found nothing")
    if name in READERS and READERS[name](here) != known:
        raise Wrong("it is read as something else")
    if name not in READERS and problems:
        raise UserError(problems[0])


def _read_store(path: Path) -> str:
    store = PatchStore.load(path)
    parts: list[Any] = [store.info.model_dump_json(), store.table.arrow.to_pydict(), store.dropped().arrow.to_pydict()]
    parts += [store.read(index).tobytes() for index in range(len(store))]
    for slide in store.info.slides:
        parts.append(store.record(slide).model_dump_json())
        picture = store.thumbnail(slide)
        parts.append(None if picture is None else (picture[0].tobytes(), picture[1]))
    return _digest(parts)


def _read_run(path: Path) -> str:
    run = Run.load(path)
    return _digest([run.info.model_dump_json(), run.card.model_dump_json(), _weights(run.encoder()), run.metrics()])


def _read_embeddings(path: Path) -> str:
    made = Embeddings.load(path)
    return _digest([made.info.model_dump_json(), made.table.arrow.to_pydict(), np.asarray(made.vectors).tobytes()])


def _read_scores(path: Path) -> str:
    scores = Scores.load(path)
    parts: list[Any] = [scores.info.model_dump_json(), scores.verdict()]
    for row in scores.info.judged:
        predictions = scores.predictions(row.probe, row.level, subject=row.subject, scale=row.scale)
        parts += [predictions.classes, predictions.truth.tobytes(), predictions.scores.tobytes()]
    neighbours = scores.neighbours()
    return _digest([*parts, [] if neighbours is None else [part.tobytes() for part in neighbours]])


def _read_benchmark(path: Path) -> str:
    """What `benchmark` itself reads of its cells."""
    parts = []
    for cell in sorted((path / "cells").iterdir()):
        if (cell / "run").exists():  # a floor has none
            parts.append(_read_run(cell / "run"))
        parts += [_read_embeddings(folder) for folder in sorted(cell.glob("embeddings-*"))]
        parts += [_read_scores(folder) for folder in sorted(cell.glob("scores-*"))]
        parts += [_weights(Encoder.load(folder)) for folder in sorted(cell.glob("encoder-*"))]
    return _digest(parts)


def _read_timm(here: Path) -> str:
    opened = open_model(str(here / "timm"), PatchStore.load(here / "store"), EmbedConfig())
    return _digest([opened.card.model_dump(exclude={"source"}), _weights(opened.net), opened.checksum])


def _weights(net: Any) -> list[tuple[str, bytes]]:
    return [(name, value.numpy().tobytes()) for name, value in net.state_dict().items()]


def _digest(parts: Any) -> str:
    text = json.dumps(
        parts, default=lambda value: hashlib.sha256(value).hexdigest() if isinstance(value, bytes) else str(value)
    )
    return hashlib.sha256(text.encode()).hexdigest()


READERS: dict[str, Callable[[Path], str]] = {
    "store": lambda here: _read_store(here / "store"),
    "slides": lambda here: _read_store(here / "slides"),
    "run": lambda here: _read_run(here / "run"),
    "embeddings": lambda here: _read_embeddings(here / "embeddings"),
    "scores": lambda here: _read_scores(here / "scores"),
    "benchmark": lambda here: _read_benchmark(here / "benchmark"),
    "timm": _read_timm,
}
"""What the rest of hidisc reads of an artefact, as a checksum; pages and bags are for others."""


def _is_said(said: str) -> bool:
    """Whether a command said that patches could not be read."""
    return "cannot be decoded" in said or "could not be read" in said


def _repair(here: Path, whole: Path, name: str, path: Path, folder: Path) -> None:
    """The command that made an artefact makes it again as it was."""
    if path.suffix == ".arrow":  # as `doctor` says: patches are large, so only their size is looked at
        shutil.rmtree(path.parent)
    elif path.name == "report.html":
        path.unlink(missing_ok=True)  # as the command says: someone may have edited it
    ended = world.run_command(world.COMMANDS[name].words(here), folder / "command.txt")
    if ended.code != 0 and not world.is_there_already(ended):
        raise Wrong(f"the command that made it ended with {ended.code}: {ended.said}")
    different = world.differ(world.contents(here, name), world.contents(whole, name))
    if path.name == "metrics.csv":  # what training measured is not measured again: the command says so
        different = [file for file in different if Path(file).name != path.name]
    if path.parent.name == "checkpoints" and not path.exists():  # an old one may be deleted, and so is a damaged one
        unlisted = [path, path.parent.parent / MANIFEST]
        different = [file for file in different if here / file not in unlisted]
    if different:
        raise Wrong(f"repaired, it has other {different[:3]}: {ended.said}")
    problems = find_damage(here / world.COMMANDS[name].home)
    if problems:
        raise Wrong(f"repaired, it is damaged: {problems[0]}")

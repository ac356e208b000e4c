"""Judges inputs one by one in child processes, so that a crash, a hang or eaten memory is one input's and no more."""

import contextlib
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
import traceback
import zlib
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Literal

import numpy as np

from hidisc.ground.errors import UserError

INPUT = "input"
"""Folder, below a judge's own, with the input at hand: what is kept of one that fell through."""
_LONGEST = 100_000
"""Characters that a sentence may have: fifty problems of a few lines, or one of three names as long as they may be."""

_MANY = 20
"""Cases of a kind, of which at least one should be accepted."""

Verdict = Literal["accepted", "refused", "fell through"]


@dataclass(frozen=True)
class Outcome:
    """What became of one input."""

    verdict: Verdict
    said: str = ""
    tried: int = 1
    """How many inputs (of kills: kills) it was."""


class Wrong(Exception):  # noqa: N818 - not an error of the code that raises it
    """Something that must not be, in words."""


Judge = Callable[[np.random.Generator, int], Outcome]
"""Tries the input of some random numbers and of an index, from which `Kind.group_of` finds the input's group."""


class Kind(ABC):
    """One kind of input: what they are made from, and a judge of each."""

    name: str
    limit_s: float = 60
    """Seconds that an input may take."""
    memory_bytes: int | None = None
    """Address space that a judge may take beyond what it begins with."""
    groups: tuple[str, ...] = ("",)
    """Sorts of input within this kind, which take turns."""
    is_ever_accepted: bool = True
    """Whether some of many inputs are accepted; if none is, they are refused for another reason than their damage."""

    @abstractmethod
    def prepare(self, home: Path) -> None:
        """Make what all inputs are made from, once."""

    @abstractmethod
    def open(self, home: Path, folder: Path) -> Judge:
        """A judge with a folder of its own, in a process of its own."""

    def count_cases(self, number: int, seed: int) -> int:
        """How many cases make a number of inputs."""
        return number

    def group_of(self, index: int) -> str:
        """The group of an input."""
        return self.groups[index % len(self.groups)]


@dataclass
class Tally:
    """What became of all inputs of a kind."""

    kind: str
    tried: int = 0
    refused: int = 0
    accepted: int = 0
    seconds: float = 0
    fell: list[str] = field(default_factory=list)
    """A line for each input that fell through."""
    cases: int = 0
    groups: Counter[str] = field(default_factory=Counter)
    """How many inputs of each group were tried."""

    def add(self, outcome: Outcome, index: int, group: str = "") -> None:
        """Count an outcome."""
        self.tried += outcome.tried
        self.cases += 1
        self.groups[group] += outcome.tried
        if outcome.verdict == "fell through":
            self.fell.append(f"{self.kind} {index}: {outcome.said}")
        elif outcome.verdict == "refused":
            self.refused += outcome.tried
        else:
            self.accepted += outcome.tried


def find_untried(kind: Kind, tally: Tally) -> str | None:
    """What a run should have tried and did not; it may leave out groups only when it has fewer cases than groups."""
    if tally.tried == 0:
        return f"{kind.name}: 0 tried"
    untried = [group for group in kind.groups if not tally.groups[group]]
    if untried and tally.cases >= len(kind.groups):
        return f"{kind.name}: 0 tried of {', '.join(untried)}"
    if kind.is_ever_accepted and tally.cases >= _MANY and not tally.accepted:
        return f"{kind.name}: 0 accepted of {tally.tried:,}, so that nothing behind the first refusal was tried"
    return None


def rng_of(seed: int, kind: str, index: int) -> np.random.Generator:
    """The random numbers of one input: a function of seed, kind and index."""
    return np.random.default_rng([seed, zlib.crc32(kind.encode()), index])


def judge(act: Callable[[], Any], tried: int = 1) -> Outcome:
    """Accepted when `act` ends, refused when it raises a sentence; all else fell through."""
    try:
        act()
    except UserError as error:
        problem = find_fault(str(error))
        return Outcome("fell through", problem, tried) if problem else Outcome("refused", str(error), tried)
    except Wrong as wrong:
        return Outcome("fell through", str(wrong), tried)
    except BaseException as error:  # noqa: BLE001 - this is what is looked for
        place = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(place.filename).name}:{place.lineno}"
        return Outcome("fell through", _shorten(f"{type(error).__name__} at {where}: {error}"), tried)
    return Outcome("accepted", tried=tried)


def find_fault(sentence: str) -> str | None:
    """What is wrong with the sentence of a refusal."""
    if not sentence.strip():
        return "refused without a word"
    if len(sentence) > _LONGEST:
        return f"refused with {len(sentence):,} characters: {_shorten(sentence)}"
    odd = sorted({letter for letter in sentence if not letter.isprintable() and letter != "\n"})
    if odd:
        return f"refused with unprintable characters {odd[:5]!r}: {_shorten(ascii(sentence))}"
    return None


def _shorten(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= 300 else f"{text[:300]}..."


def try_all(kind: Kind, number: int, seed: int, *, workers: int, keep: Path, only: int | None = None) -> Tally:
    """Judge a number of inputs of a kind; those that fell through are kept below `keep`."""
    tally, begun = Tally(kind.name), time.monotonic()
    if number == 0:
        return tally
    with tempfile.TemporaryDirectory(prefix=f"fuzz-{kind.name}-") as temporary:
        home = Path(temporary) / "home"
        home.mkdir()
        _prepare(kind, home)
        indices = iter(range(kind.count_cases(number, seed)) if only is None else [only])
        for index, outcome, folder in _judge_all(kind, indices, seed, home, workers):
            tally.add(outcome, index, kind.group_of(index))
            if outcome.verdict == "fell through":
                print(tally.fell[-1], flush=True)
                _keep(folder, keep / f"{kind.name}-{seed}-{index}", outcome)
    tally.seconds = time.monotonic() - begun
    return tally


def _keep(folder: Path, kept: Path, outcome: Outcome) -> None:
    shutil.rmtree(kept, ignore_errors=True)
    kept.mkdir(parents=True)
    if (folder / INPUT).is_dir():
        shutil.copytree(folder / INPUT, kept / INPUT, symlinks=True)
    shutil.copy(folder / "said.txt", kept)
    (kept / "what.txt").write_text(f"{outcome.said}\n", encoding="utf-8", errors="replace")


def _prepare(kind: Kind, home: Path) -> None:
    """In a child, so that the judges' processes begin as small and thread-free as this one."""
    child = _FORK.Process(target=kind.prepare, args=(home,))
    child.start()
    child.join()
    if child.exitcode != 0:
        raise SystemExit(f"what {kind.name} are made from could not be made")


_FORK = multiprocessing.get_context("fork")


@dataclass
class _Worker:
    process: Any
    pipe: Connection
    folder: Path
    index: int = -1
    until: float = 0


def _judge_all(
    kind: Kind, indices: Iterator[int], seed: int, home: Path, workers: int
) -> Iterator[tuple[int, Outcome, Path]]:
    """(index, outcome, the judge's folder) of every input, as they are judged."""
    team = [_start(kind, seed, home, number) for number in range(workers)]
    busy = [worker for worker in team if _give(worker, indices, kind)]
    while busy:
        watched = [item for worker in busy for item in (worker.pipe, worker.process.sentinel)]
        wait(watched, max(0.0, min(worker.until for worker in busy) - time.monotonic()))
        for worker in list(busy):
            outcome = _hear(worker, kind)
            if outcome is None:
                continue
            yield worker.index, outcome, worker.folder
            if not worker.process.is_alive():
                worker.process.join()
                fresh = _start(kind, seed, home, team.index(worker))
                team[team.index(worker)] = busy[busy.index(worker)] = fresh
                worker = fresh
            if not _give(worker, indices, kind):
                busy.remove(worker)
    for worker in team:
        with contextlib.suppress(OSError):
            worker.pipe.send(None)
        worker.process.join()


def _give(worker: _Worker, indices: Iterator[int], kind: Kind) -> bool:
    """Give a judge the next input; False when there is none."""
    index = next(indices, None)
    if index is None:
        return False
    worker.index, worker.until = index, time.monotonic() + kind.limit_s
    worker.pipe.send(index)
    return True


def _hear(worker: _Worker, kind: Kind) -> Outcome | None:
    """What a judge says of its input, or what became of the judge; None while it is at it."""
    with contextlib.suppress(EOFError, OSError):
        if worker.pipe.poll():
            return worker.pipe.recv()
    if not worker.process.is_alive():
        worker.process.join()
        return Outcome("fell through", f"the process died with exit code {worker.process.exitcode}")
    if time.monotonic() >= worker.until:
        worker.process.kill()
        worker.process.join()
        return Outcome("fell through", f"not done after {kind.limit_s:g} s")
    return None


def _start(kind: Kind, seed: int, home: Path, number: int) -> _Worker:
    folder = home.parent / f"judge-{number}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    ours, theirs = _FORK.Pipe()
    process = _FORK.Process(target=_serve, args=(kind, seed, home, folder, theirs), daemon=False)
    process.start()
    theirs.close()
    try:
        ours.recv()
    except EOFError:
        process.join()
        raise SystemExit(f"no judge of {kind.name} could be opened: {(folder / 'said.txt').read_text()}") from None
    return _Worker(process, ours, folder)


def _serve(kind: Kind, seed: int, home: Path, folder: Path, pipe: Connection) -> None:
    """Judge what is asked for until nothing more is."""
    sys.stdout.flush()
    said = os.open(folder / "said.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for number in (1, 2):  # native libraries complain about damage there
        os.dup2(said, number)
    say = kind.open(home, folder)
    if kind.memory_bytes is not None:
        _limit_memory(kind.memory_bytes)
    pipe.send("ready")
    while (index := pipe.recv()) is not None:
        shutil.rmtree(folder / INPUT, ignore_errors=True)
        (folder / INPUT).mkdir()
        pipe.send(say(rng_of(seed, kind.name, index), index))
    pipe.close()
    os._exit(0)  # a thread that a library keeps in circles would be waited for


def _limit_memory(more: int) -> None:
    try:
        import resource
    except ImportError:  # Windows
        return
    pages = Path("/proc/self/statm")
    if pages.is_file():
        now = int(pages.read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        resource.setrlimit(resource.RLIMIT_AS, (now + more, resource.getrlimit(resource.RLIMIT_AS)[1]))

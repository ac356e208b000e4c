"""How a command is stopped: Ctrl-C and SIGTERM, and the named steps at which a test can stop it.

A signal is a request that a loop grants between two steps, or a clean end at once. What a killed command leaves behind
depends on the moment it is killed at. The code calls `reached` at the few moments that matter, and a test has the
process send itself a signal there. Only tests set the variable below; workers inherit it; without it, `reached` does
nothing.
"""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn, Self

VARIABLE = "HIDISC_TEST_SIGNAL"
"""For tests only: "SIGKILL process 2 file.written store.json" sends SIGKILL to the process that reaches the step
`file.written` of a file called `store.json` for the second time; `group` instead of `process`, to its whole group."""
STEPS = {
    "file.written": "a file is whole and synced under its temporary name",
    "file.renamed": "the file has its final name",
    "folder.written": "a folder is whole and synced under its temporary name",
    "folder.renamed": "the folder has its final name",
    "workers.starting": "Dask's workers are about to be started",
    "slide.done": "a slide is finished and its worker has reported it",
    "step.done": "the first process has finished a training step",
    "checkpoint.saved": "a checkpoint is written and old ones are removed",
    "block.written": "a block of embeddings is on the disk and not ticked off",
    "block.done": "a block of embeddings is ticked off",
    "cell.trained": "the training of a benchmark's cell is finished and not evaluated",
    "cell.done": "a benchmark's cell is finished",
}

StepWatch = Callable[[str, str], None]
_watch: StepWatch | None = None


def reached(step: str, path: Path | None = None) -> None:
    """Say that a step of `STEPS` is reached, of the file or folder at `path` where it is about one."""
    if _watch is not None:
        _watch(step, path.name if path is not None else "")


def watch_steps(watch: StepWatch | None) -> None:
    """Have a function called with the name of every step reached and of its file; None: no longer."""
    global _watch
    _watch = watch


def signal_at(order: str) -> StepWatch:
    """A function for `watch_steps` that sends the signal which an order, written as `VARIABLE` says, asks for."""
    name, to, number, step, file = order.split()
    if step not in STEPS or to not in ("process", "group"):
        raise ValueError(f"{VARIABLE}={order!r} names no step of {', '.join(STEPS)}, or neither process nor group.")
    left = int(number)

    def watch(reached_step: str, reached_file: str) -> None:
        nonlocal left
        if reached_step == step and fnmatchcase(reached_file, file):
            left -= 1
            if left == 0:
                send = os.killpg if to == "group" else os.kill
                send(os.getpgrp() if to == "group" else os.getpid(), signal.Signals[name])

    return watch


if VARIABLE in os.environ:
    watch_steps(signal_at(os.environ[VARIABLE]))


SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopRequest:
    """`received` is the signal that asked to stop, None until then; a second one stops at once."""

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():  # elsewhere signals cannot be caught
            self._before = {number: signal.signal(number, self._receive) for number in SIGNALS}
        return self

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None:
            raise KeyboardInterrupt
        self.received = signal.Signals(number)

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def grant(self) -> NoReturn:
        """End the command as the signal asks: the command line exits with 130 after Ctrl-C and 143 after SIGTERM."""
        if self.received == signal.SIGTERM:
            raise SystemExit(143)
        raise KeyboardInterrupt


@contextmanager
def stopped_at_once(say: Callable[[str], None]) -> Iterator[None]:
    """End a block whose finished pieces are safe on the first Ctrl-C or SIGTERM, and say how to go on."""
    with _EndAtOnce():
        try:
            yield
        except (KeyboardInterrupt, SystemExit):
            say("stopped. What is finished is safe: run the same command to go on.")
            raise


class _EndAtOnce(StopRequest):
    """A request that is granted where the process is."""

    def _receive(self, number: int, frame: FrameType | None) -> None:
        super()._receive(number, frame)
        self.grant()

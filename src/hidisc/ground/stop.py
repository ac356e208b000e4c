"""Ctrl-C and a scheduler's SIGTERM: a request that a loop grants between two steps, or a clean end at once."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn, Self

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

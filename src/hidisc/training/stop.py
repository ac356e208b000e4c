"""Ctrl-C and a scheduler's SIGTERM become a wish that the loop grants between two steps."""

import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Self

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
BATCHES_BETWEEN = 10
"""Batches after which ranks ask each other for wishes: asking makes every device wait for every other."""


def asks_for_wishes(step: int, accumulate: int, world: int) -> bool:
    """Whether ranks ask each other after a step of so many batches; a process alone knows its own wish at once."""
    return world == 1 or step % max(1, BATCHES_BETWEEN // accumulate) == 0


class StopWish:
    """`wish` holds the signal that asked to stop, None until then; a second Ctrl-C stops at once."""

    def __init__(self) -> None:
        self.wish: signal.Signals | None = None
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():  # elsewhere signals cannot be caught
            self._before = {number: signal.signal(number, self._heard) for number in _SIGNALS}
        return self

    def _heard(self, number: int, frame: FrameType | None) -> None:
        if self.wish is not None:
            raise KeyboardInterrupt
        self.wish = signal.Signals(number)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

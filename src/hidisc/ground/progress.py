"""How long work tells of itself: with sentences for the user, with how much more is done, and with its result."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

Say = Callable[[str], None]
Watch = Callable[[int], None]


def ignore(_: object) -> None:
    """Take what is said or done where nobody asked for it."""


class Progress:
    """What long work tells: sentences for the user, and how much more is done. This one is silent."""

    def say(self, sentence: str) -> None:
        """Tell the user a sentence."""

    def advance(self, count: int = 1) -> None:
        """Count that so many more are done."""

    def show(self, values: Mapping[str, float]) -> None:
        """Show the newest numbers of the work by their names, such as losses, with the next count."""

    @contextmanager
    def part(self, title: str, total: int, unit: str) -> Iterator["Progress"]:
        """The progress of a part of the work, `total` of some unit, with a bar of its own where bars are shown."""
        yield self


SILENT = Progress()


@dataclass(frozen=True)
class Result:
    """What a command tells when it has ended; artefacts make theirs with `result()`, and the command line prints it."""

    sentence: str | None
    """For people; None: nothing is printed, as another process is still at work."""
    record: Any = None
    """The same for programs (`--json`); None: the sentence is all there is."""
    notes: tuple[str, ...] = ()
    """Sentences for stderr, such as what failed and why."""
    failed: bool = False
    """Whether the exit code is 1."""

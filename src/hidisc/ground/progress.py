"""Progress of long work: sentences for the user, how much more is done, and the result of a command."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

Say = Callable[[str], None]
Watch = Callable[[int], None]


def ignore(_: object) -> None:
    """Do nothing: the default where nobody wants to hear of progress."""


class Progress:
    """Takes the sentences and counts that long work reports; this base class shows nothing."""

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

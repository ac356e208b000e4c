"""Progress of long work: sentences for the user, and how much more is done."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

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

    @contextmanager
    def part(self, title: str, total: int, unit: str) -> Iterator["Progress"]:
        """The progress of a part of the work, `total` of some unit, with a bar of its own where bars are shown."""
        yield self


SILENT = Progress()

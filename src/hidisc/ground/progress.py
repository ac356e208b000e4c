"""How long work tells of itself: with sentences for the user, and with how much more is done."""

from collections.abc import Callable

Say = Callable[[str], None]
Watch = Callable[[int], None]


def ignore(_: object) -> None:
    """Take what is said or done where nobody asked for it."""

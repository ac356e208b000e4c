"""What long work calls on its way: `say` with a sentence for the user, `watch` with how much more is done."""

from collections.abc import Callable

Say = Callable[[str], None]
Watch = Callable[[int], None]


def ignore(_: object) -> None:
    """Take what is said or done where nobody asked for it."""

"""Words in sentences: plurals, counts, the first few of many names, text that can be printed."""

from collections.abc import Iterable


def plural(noun: str, count: int = 2) -> str:
    """`slides` of `slide`; the noun itself of one."""
    if count == 1:
        return noun
    return f"{noun}es" if noun.endswith(("s", "x", "ch", "sh")) else f"{noun}s"


def count(number: int, noun: str) -> str:
    """`1 slide`, `1,703 slides`."""
    return f"{number:,} {plural(noun, number)}"


def name_some(names: Iterable[str], most: int = 3) -> str:
    """The first few names, quoted, and how many more there are: `'a', 'b', 'c' and 4 more`."""
    listed = list(names)
    more = f" and {len(listed) - most:,} more" if len(listed) > most else ""
    return ", ".join(map(repr, listed[:most])) + more


def printable(text: str) -> str:
    """Text on one line, with a question mark for what cannot be printed."""
    return "".join(letter if letter.isprintable() else "?" for letter in " ".join(text.split()))

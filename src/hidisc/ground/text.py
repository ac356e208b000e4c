"""Words in sentences: plurals, counts, the first few of many names, text that can be printed."""

import re
from collections.abc import Iterable, Sequence


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


def find_nearest(name: str, names: Iterable[str], most: int = 2) -> list[str]:
    """The names that are meant by one that is not among them: first those that contain it, then the nearest ones.

    Near is what few letters make equal (inserted, removed or exchanged), at most half of those of the name.
    """
    wanted = name.casefold()
    known = sorted(names)
    containing = [each for each in known if wanted and wanted in each.casefold()]
    near = {each: _count_edits(wanted, each.casefold()) for each in known if each not in containing}
    others = [each for each in sorted(near, key=lambda each: near[each]) if near[each] <= len(name) / 2]
    return [*sorted(containing, key=len), *others][:most]


def _count_edits(one: str, other: str) -> int:
    """How many letters must be inserted, removed or exchanged (Levenshtein)."""
    above = list(range(len(other) + 1))
    for row, letter in enumerate(one, start=1):
        line = [row]
        for column, against in enumerate(other, start=1):
            line.append(min(above[column] + 1, line[-1] + 1, above[column - 1] + (letter != against)))
        above = line
    return above[-1]


def printable(text: str) -> str:
    """Text on one line, with a question mark for what cannot be printed."""
    return "".join(letter if letter.isprintable() else "?" for letter in " ".join(text.split()))


_NUMBER = re.compile(r"(?<![\w'\"-])\d[\d,]*(?:\.\d+)?(?![\w'\"])")
"""A number that stands alone and is not part of a name."""


def drop_numbers(sentence: str) -> str:
    """The sentence with `#` in place of every number: equal for sentences that differ in numbers only."""
    return _NUMBER.sub("#", sentence)


def merge_numbers(sentences: Sequence[str]) -> str:
    """Sentences that differ in numbers only as one, in which a number that differs is a range: `174 to 686`."""
    ranges = []
    for column in zip(*map(_NUMBER.findall, sentences), strict=True):
        by_size = sorted(column, key=lambda number: float(number.replace(",", "")))
        ranges.append(by_size[0] if len(set(column)) == 1 else f"{by_size[0]} to {by_size[-1]}")
    merged = iter(ranges)
    return _NUMBER.sub(lambda _: next(merged), sentences[0])


def merge_alike(sentences: Iterable[str]) -> list[str]:
    """Sentences in their order, those that differ in numbers only as one."""
    alike: dict[str, list[str]] = {}
    for sentence in sentences:
        alike.setdefault(drop_numbers(sentence), []).append(sentence)
    return [merge_numbers(members) for members in alike.values()]

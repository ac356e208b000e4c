"""Names that are one to people and two to a computer: `P1` and `p1`, a no-break space, a letter of another width."""

import unicodedata
from collections.abc import Iterable
from typing import NamedTuple

_SHOWN = 20


class Name(NamedTuple):
    """A name and where it stands."""

    kind: str
    """What it names: patient, slide, label, site or split."""
    name: str
    where: str
    """For the user, such as `row 2`."""
    scope: str = ""
    """Names of different scopes are never twins: slides numbered within a patient."""


def find_twins(names: Iterable[Name]) -> list[str]:
    """A warning for every pair of names that differ in nothing that people see or mean; twenty in full at most."""
    first: dict[tuple[str, str, str], Name] = {}
    twins: list[tuple[Name, Name]] = []
    known: set[tuple[str, str, str]] = set()
    for name in names:
        if not name.name or (exact := (name.kind, name.name, name.scope)) in known:
            continue
        known.add(exact)
        before = first.setdefault((name.kind, fold(name.name), name.scope), name)
        if before is not name:
            twins.append((before, name))
    warnings = [_warn(*pair) for pair in twins[:_SHOWN]]
    if len(twins) > _SHOWN:
        warnings.append(f"... and {len(twins) - _SHOWN} more pairs of names that differ only so.")
    return warnings


def fold(name: str) -> str:
    """The name without what tells twins apart: case, width, composition, invisible characters, kinds of spaces."""
    seen = "".join(character for character in name if unicodedata.category(character) != "Cf")
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", seen).casefold())
    return " ".join(folded.split())


def _warn(first: Name, second: Name) -> str:
    # names that differ in more than case can look the same on a screen, so they are spelled out
    show = repr if first.name.lower() == second.name.lower() else ascii
    return (
        f"{first.kind}s {show(first.name)} ({first.where}) and {show(second.name)} ({second.where}) are treated as "
        "two, but differ only in case, spaces or the form of their letters. If they are "
        f"one {first.kind}, write them alike."
    )

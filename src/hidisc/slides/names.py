"""Names of patients, slides, labels: those that people take for one, and those that nothing can hold."""

import re
import unicodedata
from collections.abc import Iterable
from typing import NamedTuple

from hidisc.ground.spreadsheet import LONGEST

_BETWEEN = "[ _\u2010-\u2015-]+"
"""What stands between the parts of an id."""
_SHOWN_TWINS = 20


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
        same = fold_patient(name.name) if name.kind == "patient" else fold(name.name)
        before = first.setdefault((name.kind, same, name.scope), name)
        if before is not name:
            twins.append((before, name))
    warnings = [_warn(*pair) for pair in twins[:_SHOWN_TWINS]]
    if len(twins) > _SHOWN_TWINS:
        warnings.append(f"... and {len(twins) - _SHOWN_TWINS} more pairs of names that differ only so.")
    return warnings


def fold(name: str) -> str:
    """The name without the differences of twins: case, width, composition, invisible characters, kinds of spaces."""
    seen = "".join(character for character in name if unicodedata.category(character) != "Cf")
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", seen).casefold())
    return " ".join(folded.split())


def fold_patient(name: str) -> str:
    """The same of a patient, whose id is also typed with and without spaces and hyphens: `MRN 0012`, `mrn-0012`.

    Between two digits something stays, for 1-11 and 11-1 are two.
    """
    return re.sub(rf"(?<=\d){_BETWEEN}(?=\d)", " ", re.sub(rf"(?<!\d){_BETWEEN}|{_BETWEEN}(?!\d)", "", fold(name)))


def find_fault(name: str | None) -> str | None:
    """What is wrong with a name that no table can hold or no page can show, and what to do; None: nothing."""
    if not (name or "").strip():
        return "is empty. Fill it in."
    assert name is not None
    if len(name) > LONGEST:
        return f"has {len(name):,} characters, more than {LONGEST:,}. Shorten it."
    if len(name.splitlines()) > 1 or "\0" in name:
        return f"{name!r} contains a line break. A name stands on one line: remove it."
    return None if is_text(name) else f"{name!r} has letters that are not UTF-8. Rename it."


def is_text(name: str) -> bool:
    """Whether the name of a file is Unicode; other bytes (an old server's Latin-1) cannot be written to a table."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _warn(first: Name, second: Name) -> str:
    # names that differ in more than case can look the same on a screen, so they are spelled out
    show = repr if first.name.lower() == second.name.lower() else ascii
    return (
        f"{first.kind}s {show(first.name)} ({first.where}) and {show(second.name)} ({second.where}) are treated as "
        "two, but differ only in case, spaces, hyphens or the form of their letters. If they are "
        f"one {first.kind}, write them alike."
    )

"""Names: whose a column is, which names people take for one, and which names no table can hold.

A column of a table is addressed by its name. What is computed when patches are looked at (a cluster, a predicted class,
a score, a similarity) is addressed as `computed:NAME`, and a set of names that people gave as `given:NAME`. No column
of the user's own can have such an address, because a table with one is refused or read without it.
"""

import re
import unicodedata
from collections.abc import Iterable
from typing import NamedTuple

from hidisc.ground.spreadsheet import LONGEST

REQUIRED = ("patient", "slide", "path")
OPTIONAL = ("label", "mpp", "site", "split")
FOR_PEOPLE = ("file_mpp", "file_size_px", "file_reader", "doubt")
"""Columns that `hidisc cohort` adds to a draft for people to look at; no table of patches has them."""
WRITTEN = ("patch", "x", "y", "tissue_fraction", "pixel_std", "is_blank", "shard", "row", "name", "is_kept",
           "pen_fraction", "predicted_label", "predicted_score", "annotation", "place")  # fmt: skip
"""Columns that hidisc itself writes into a table of patches, beside those of a cohort."""
_COMPUTED, _GIVEN = "computed:", "given:"
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


def address_computed(name: str) -> str:
    """The address of a computed column."""
    return _COMPUTED + name


def address_given(name: str) -> str:
    """The address of the set of given names that is called so."""
    return _GIVEN + name


def find_given(address: str) -> str | None:
    """The name of the set of given names that an address is about; None where it is about another column."""
    return address.removeprefix(_GIVEN) if address.startswith(_GIVEN) else None


def is_address(name: str) -> bool:
    """Whether a name is an address of a computed column or of given names."""
    return name.startswith((_COMPUTED, _GIVEN))


def is_computed(address: str) -> bool:
    """Whether an address is that of a computed column."""
    return address.startswith(_COMPUTED)


def is_ours(name: str) -> bool:
    """Whether a column that is called so is written or addressed by hidisc, and cannot be the user's own."""
    return name in WRITTEN or is_address(name)


def is_taken(name: str) -> bool:
    """Whether a set of given names may not be called so, because a column with a meaning of its own is."""
    return is_ours(name) or name in (*REQUIRED, *OPTIONAL, *FOR_PEOPLE)

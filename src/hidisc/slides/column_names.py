"""Whose a column of patches is: the user's, one that hidisc writes, a computed one, or names that people gave.

A column of a table is addressed by its name. What is computed when patches are looked at (a cluster, a predicted class,
a score, a similarity) is addressed as `computed:NAME`, and a set of names that people gave as `given:NAME`. No column
of the user's own can have such an address, because a table with one is refused or read without it.
"""

REQUIRED = ("patient", "slide", "path")
OPTIONAL = ("label", "mpp", "site", "split")
FOR_PEOPLE = ("file_mpp", "file_size_px", "file_reader", "doubt")
"""Columns that `hidisc cohort` adds to a draft for people to look at; no table of patches has them."""
WRITTEN = ("patch", "x", "y", "tissue_fraction", "pixel_std", "is_blank", "shard", "row", "name", "is_kept",
           "pen_fraction", "predicted_label", "predicted_score", "annotation", "place")  # fmt: skip
"""Columns that hidisc itself writes into a table of patches, beside those of a cohort."""
_COMPUTED, _GIVEN = "computed:", "given:"


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

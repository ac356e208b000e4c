"""Every number of the paper's tables of results, by table, data set, row, level and metric, as printed (percent)."""

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources

FILE = "published.csv"


@dataclass(frozen=True)
class Published:
    """One number of the paper."""

    table: str
    """The label of the table in the paper's source, such as main_srh_extended."""
    dataset: str
    row: str
    level: str
    metric: str
    mean: str
    sd: str
    """Empty where the paper gives none."""

    @property
    def used_labels(self) -> bool:
        """Whether the row learned from labels, and so stands outside the competition for bold type."""
        return self.row in ("Supervised", "SupCon")

    @property
    def text(self) -> str:
        """As the paper prints it."""
        return f"{self.mean} ({self.sd})" if self.sd else self.mean

    def is_of(self, names: Sequence[str]) -> bool:
        """Whether this is a number of a row so called; 1E-3 and 0.001 are one name."""
        return any(_plain(name) == _plain(self.row) for name in names)


@cache
def read_published() -> tuple[Published, ...]:
    """All of them, in the order of the paper."""
    text = (resources.files("hidisc.benchmark") / FILE).read_text(encoding="utf-8")
    return tuple(Published(**row) for row in csv.DictReader(text.splitlines()))


def _plain(name: str) -> str | float:
    """A name that differs only where rows do."""
    try:
        return float(name)
    except ValueError:
        return name.casefold()

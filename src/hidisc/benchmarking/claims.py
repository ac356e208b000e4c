"""The paper's numbers and claims, and which claims hold: each a difference of two methods over patients and seeds."""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Literal

from hidisc.evaluation.classes import METRICS
from hidisc.evaluation.compare import Difference
from hidisc.ground.errors import UserError
from hidisc.reporting.evaluated import EvaluatedModel, compare_models
from hidisc.settings.benchmark import ClaimConfig
from hidisc.settings.evaluate import EvaluateConfig

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
    text = (resources.files("hidisc.benchmarking") / FILE).read_text(encoding="utf-8")
    return tuple(Published(**row) for row in csv.DictReader(text.splitlines()))


def _plain(name: str) -> str | float:
    """A name that differs only where rows do."""
    try:
        return float(name)
    except ValueError:
        return name.casefold()


ClaimOutcome = Literal["held", "not held", "cannot tell", "one training, not a method", "not measured"]


@dataclass(frozen=True)
class Checked:
    """A claim and what was found."""

    claim: ClaimConfig
    outcome: ClaimOutcome
    found: str
    """The sentence of the comparison, or why there is none."""
    difference: Difference | None = None


def check_claim(claim: ClaimConfig, models: Mapping[str, EvaluatedModel], evaluate: EvaluateConfig) -> Checked:
    """Compare the two rows a claim speaks of, by a bootstrap over patients, paired, and over the seeds of each row.

    A claim that one is better is held when the whole interval lies above 0, not held when it lies below 0, and cannot
    be told when it contains 0. A claim that one is no better is held unless the whole interval lies above 0. With too
    few patients neither is measured. Where a row has one seed only, the difference is one between two trainings:
    another seed may turn it, so nothing is said of the methods. Starting weights and colour have no seed.
    """
    absent = [name for name in (claim.better, claim.than) if name not in models]
    if absent:
        return Checked(claim, "not measured", f"{absent[0]} has no finished training")
    sides = models[claim.better], models[claim.than]
    try:
        differences = compare_models(*sides, evaluate.probes[0], claim.level, evaluate.bootstrap, evaluate.seed)
    except UserError as error:
        return Checked(claim, "not measured", str(error))
    if claim.metric not in METRICS:
        return Checked(claim, "not measured", f"there is no metric {claim.metric!r}: give one of {', '.join(METRICS)}")
    found = differences[claim.metric]
    sentence = found.sentence(f"{claim.level} {METRICS[claim.metric].in_text}", claim.better, claim.than)
    if found.low is None or not found.enough:
        return Checked(claim, "not measured", sentence, found)
    trainings = [count for side, count in zip(sides, found.trainings, strict=True) if side.was_trained]
    if min(trainings, default=2) < 2:
        return Checked(claim, "one training, not a method", sentence, found)
    by_verdict: dict[str, ClaimOutcome] = (
        {"better": "held", "unclear": "cannot tell", "worse": "not held"}
        if claim.expect == "better"
        else {"better": "not held", "unclear": "held", "worse": "held"}
    )
    return Checked(claim, by_verdict[found.verdict], sentence, found)

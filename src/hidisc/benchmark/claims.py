"""What became of the paper's claims: each a difference between two methods, over the same patients and their seeds."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from hidisc.evaluation.compare import Difference
from hidisc.ground.errors import UserError
from hidisc.reporting.cells import TITLES
from hidisc.reporting.evaluated import EvaluatedModel, compare_models
from hidisc.settings.benchmark import ClaimConfig
from hidisc.settings.evaluate import EvaluateConfig

Outcome = Literal["held", "not held", "cannot tell", "one training, not a method", "not measured"]


@dataclass(frozen=True)
class Checked:
    """A claim and what was found."""

    claim: ClaimConfig
    outcome: Outcome
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
    found = differences[claim.metric]
    sentence = found.sentence(f"{claim.level} {TITLES.get(claim.metric, claim.metric)}", claim.better, claim.than)
    if found.low is None or not found.enough:
        return Checked(claim, "not measured", sentence, found)
    trainings = [count for side, count in zip(sides, found.trainings, strict=True) if side.was_trained]
    if min(trainings, default=2) < 2:
        return Checked(claim, "one training, not a method", sentence, found)
    by_verdict: dict[str, Outcome] = (
        {"better": "held", "unclear": "cannot tell", "worse": "not held"}
        if claim.expect == "better"
        else {"better": "not held", "unclear": "held", "worse": "held"}
    )
    return Checked(claim, by_verdict[found.verdict], sentence, found)

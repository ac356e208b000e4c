"""What became of the paper's claims: each a difference between two rows, measured over the same patients."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from hidisc.errors import UserError
from hidisc.evaluation.compare import Difference, compare
from hidisc.reporting.subject import Subject
from hidisc.settings.benchmarking import ClaimConfig
from hidisc.settings.judging import EvaluateConfig

Outcome = Literal["held", "not held", "not measured"]


@dataclass(frozen=True)
class Checked:
    """A claim and what was found."""

    claim: ClaimConfig
    outcome: Outcome
    found: str
    """The sentence of the comparison, or why there is none."""
    difference: Difference | None = None


def check_claim(claim: ClaimConfig, subjects: Mapping[str, Subject], evaluate: EvaluateConfig) -> Checked:
    """Compare the two rows a claim speaks of, by a paired bootstrap over patients, seeds averaged.

    A claim that one is better has held when the whole interval lies above 0; that one is no better, when it does not.
    """
    absent = [name for name in (claim.better, claim.than) if name not in subjects]
    if absent:
        return Checked(claim, "not measured", f"{absent[0]} has no finished training")
    opinion = evaluate.opinions[0]
    try:
        sides = [
            [scores.predictions(opinion, claim.level) for scores in subjects[name].scores]
            for name in (claim.better, claim.than)
        ]
        info = subjects[claim.better].scores[0].info
        positive = info.classes.index(info.positive)
        found = compare(sides[0], sides[1], positive, evaluate.bootstrap, evaluate.seed)[claim.metric]
    except UserError as error:
        return Checked(claim, "not measured", str(error))
    sentence = found.sentence(f"{claim.level} {claim.metric}", claim.better, claim.than)
    if found.low is None:
        return Checked(claim, "not measured", sentence, found)
    is_better = found.verdict == "better"
    return Checked(claim, "held" if is_better == (claim.expect == "better") else "not held", sentence, found)

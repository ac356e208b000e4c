"""Am I done? What was learned beyond the floor, whether training was too short, how many patients would tell more."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from hidisc.evaluation.compare import count_needed, say_needed
from hidisc.evaluation.scores import LevelScores, ScoresInfo, Value
from hidisc.ground.text import plural
from hidisc.reporting.evaluated import EvaluatedModel

_TAIL = 0.1
"""Share of the rows of metrics.csv whose mean loss is compared with that of as many rows before them."""
_FALL = 0.01
"""Share of the loss; a fall beyond it means that training went on learning to the end."""
_FEW = 30
"""Test patients below which folds are worth their time."""


def find_outlook(model: EvaluatedModel) -> tuple[str, ...]:
    """Sentences that answer whether there is more to do, and last the next command to try."""
    info = model.info
    if info is None or not info.probes or not info.probes[0].levels:
        return ()
    level = info.probes[0].levels[-1]
    against_colour = info.floor.verdict(level.level) if info.floor else ""
    is_falling = loss_is_falling(model.run_metrics)
    sentences = [f"It is {against_colour}."] if against_colour else []
    if info.floor and against_colour.startswith("no better"):
        sentences += _count_missing(info.floor.differences[level.level], level, model.bootstrap.interval)
    if is_falling:
        sentences.append("Its loss was still falling when training ended, so it may not have learned all it can.")
    return (*sentences, _next(info, level, against_colour, is_falling))


def loss_is_falling(rows: Sequence[dict[str, float]] | None) -> bool:
    """Whether the mean loss of the last tenth of the rows is 1 % below that of the tenth before it."""
    losses = [row["loss"] for row in rows or () if np.isfinite(row.get("loss", np.nan))]
    tail = max(1, round(_TAIL * len(losses)))
    if len(losses) < 2 * tail + 1:
        return False
    last, before = np.mean(losses[-tail:]), np.mean(losses[-2 * tail : -tail])
    return bool(before - last > _FALL * abs(before))


def _count_missing(differences: Mapping[str, Value], level: LevelScores, interval: float) -> Iterable[str]:
    """How many patients would tell a difference of the size of that to colour alone."""
    known = differences["auroc"] if differences["auroc"].value is not None else differences["accuracy"]
    needed = count_needed(known, level.units, interval)
    if needed is not None and needed > level.units:
        patients = f"{say_needed(needed)} test {plural(level.level)}"
        yield f"A difference of this size would take {patients} to tell from none."


def _next(info: ScoresInfo, level: LevelScores, against_colour: str, is_falling: bool) -> str:
    """What to do next, a command where there is one."""
    is_better = not against_colour or against_colour.startswith("better")
    if any(item.name == "collapse" and item.meaning.startswith("COLLAPSED") for item in info.diagnostics):
        return "Next: train again: its embeddings are nearly all the same, so the numbers mean little."
    if is_falling:
        return "Next: train longer, with --set optim.steps=... of twice as many steps and a new --out."
    if not is_better and not info.model.history.is_complete:  # it has started from weights
        return "Next: see with `hidisc audit EMBEDDINGS --out AUDIT` what it looks at, and add patients if you can."
    if not is_better:
        return (
            "Next: start from weights that know pictures, with `hidisc train STORE --recipe "
            "hidisc-patient+small-cohort --out RUN`, and see with `hidisc audit EMBEDDINGS --out AUDIT` what it "
            "looks at."
        )
    if level.units < _FEW and not info.folds:
        return (
            f"Next: judge it by all {plural(level.level)}, not by {level.units}: `hidisc benchmark small-cohort STORE "
            "--out BENCHMARK` trains several methods in folds, for about half an hour on two cores."
        )
    return "Next: look at `hidisc heatmap`, and at the confusion matrices below."

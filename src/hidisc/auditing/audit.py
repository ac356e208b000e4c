"""The audit of some encoders for shortcuts, a folder; and the rule that turns its numbers into words."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from hidisc.artefacts.artefact import Artefact, open_artefact
from hidisc.evaluation.metrics import Value
from hidisc.ground.files import AnyPath, Record
from hidisc.ground.progress import Result
from hidisc.ground.text import count
from hidisc.settings.level_names import LevelNames

AUDIT = "audit.json"

Outcome = Literal["flagged", "at risk", "visible", "clear", "cannot be told apart", "not measured"]


class ColumnAudit(Record):
    """What one technical variable does to one encoder; a `Value` without a number says why the number is missing."""

    column: str
    values: tuple[str, ...]
    patients: int
    """Patients with a label and a value."""
    table: tuple[tuple[int, ...], ...]
    """Patients of every class and value."""
    notes: tuple[str, ...]
    association: Value
    """Cramer's V of label and variable over patients, corrected for bias."""
    association_p: float | None
    robustness: Value
    """Of the neighbours that share either the label or the value, the share of those that share the label."""
    robustness_chance: float | None
    probe: Value
    """Accuracy of a linear probe for the variable at equal label."""
    probe_chance: float | None
    seen: Value
    """Accuracy of the label with reference patients of all values."""
    unseen: Value
    """The same with reference patients of other values only."""
    unseen_drop: Value
    balanced: Value
    """Accuracy of the label with balanced reference patients."""
    correlated: Value
    """The same with reference patients in whom label and variable go together."""
    correlated_drop: Value
    outcome: Outcome = "not measured"
    sentence: str = ""
    """The outcome in words, by the rule of `decide`."""


class EncoderAudit(Record):
    """The audit of one encoder."""

    name: str
    embeddings: str
    """Where they were, relative to the audit."""
    patients: int
    patches: int
    label: str
    classes: tuple[str, ...]
    notes: tuple[str, ...]
    columns: tuple[ColumnAudit, ...]


class AuditInfo(Record):
    """`audit.json`."""

    encoders: tuple[EncoderAudit, ...]
    config: dict[str, Any]
    versions: dict[str, str | None]
    level_names: LevelNames = LevelNames()
    """The names of the levels in all that people read."""


@dataclass(frozen=True)
class Audit:
    """A finished audit: `Audit.load(path)`."""

    artefact: Artefact
    info: AuditInfo

    @classmethod
    def load(cls, path: AnyPath) -> "Audit":
        """Open a finished audit; an unfinished or damaged one is refused with what to do."""
        artefact = open_artefact(Path(path), "audit")
        return cls(artefact, AuditInfo.model_validate_json((Path(path) / AUDIT).read_bytes()))

    @property
    def path(self) -> Path:
        """Its folder."""
        return self.artefact.path

    def result(self) -> Result:
        """The verdict, and all numbers."""
        return Result(f"{self.path}: {self.verdict()}", {"audit": str(self.path), **self.info.model_dump(mode="json")})

    def verdict(self) -> str:
        """One line: what was flagged, of which encoder."""
        columns = [(encoder.name, column) for encoder in self.info.encoders for column in encoder.columns]
        said = [f"{name}: {column.column} {column.outcome}" for name, column in columns if column.outcome != "clear"]
        clear = len(columns) - len(said)
        return "; ".join([*said, *([f"{count(clear, 'column')} clear"] if clear or not said else [])])


INSEPARABLE = 0.95
"""Cramer's V from which label and variable cannot be told apart."""
SIGNIFICANT = 0.01
"""Largest p at which label and variable go together."""


def decide(column: ColumnAudit) -> ColumnAudit:
    """The column with its outcome and its sentence."""
    outcome, sentence = _judge(column)
    return column.model_copy(update={"outcome": outcome, "sentence": sentence})


def _judge(column: ColumnAudit) -> tuple[Outcome, str]:
    """The outcome by the rule that docs/auditing.md states, and the outcome in words."""
    name, association, probe = column.column, column.association.value or 0, column.probe
    if is_inseparable(association, column.table):
        return "cannot be told apart", (
            f"Label and {name} cannot be told apart on this cohort (Cramer's V {association:.2f}), "
            "so no number can say which of the two the embeddings reflect. Add patients in whom they differ."
        )
    if probe.low is None:
        return "not measured", f"Nothing can be said of the {name}: {probe.why or 'too few patients'}."
    chance = 100 * (column.probe_chance or 0)
    numbers = f"({100 * (probe.value or 0):.0f} % right at equal label, {chance:.0f} % by chance)"
    if not _is_above(probe, column.probe_chance):
        return "clear", f"The {name} cannot clearly be predicted from the embeddings {numbers}."
    predicted = f"The {name} can be predicted from the embeddings {numbers}"
    reasons = []
    if column.association_p is not None and column.association_p <= SIGNIFICANT:
        reasons.append(
            f"label and {name} go together in this cohort (Cramer's V {association:.2f}), so the accuracy of the label "
            "may rest on it"
        )
    lower = "the accuracy of the label is {:.0f} points lower"
    if _is_above(column.unseen_drop, 0):
        drop = lower.format(100 * (column.unseen_drop.value or 0))
        reasons.append(f"{drop} where no reference patient has the same {name}")
    if reasons:
        return "flagged", f"{predicted}, and {' and '.join(reasons)}."
    risks = []
    if _is_above(column.correlated_drop, 0):
        drop = lower.format(100 * (column.correlated_drop.value or 0))
        risks.append(f"{drop} with reference patients in whom they do")
    nearness, by_chance = column.robustness.high, column.robustness_chance
    if nearness is not None and by_chance is not None and nearness < by_chance:
        risks.append(f"patches are near each other by their {name} rather than by their label")
    if risks:
        return "at risk", f"{predicted}. Label and {name} do not go together here, but {' and '.join(risks)}."
    return "visible", f"{predicted}, but no effect on the label was measured."


def is_inseparable(v: float | None, table: Sequence[Sequence[int]]) -> bool:
    """Whether label and variable go together nearly always, or each value has patients of one label only.

    `v` is Cramer's V, `table` the patients of every label and value.
    """
    labels = [sum(map(bool, patients)) for patients in zip(*table, strict=True)]
    return (v or 0) >= INSEPARABLE or (len(table) > 1 and max(labels, default=0) == 1)


def _is_above(value: Value, bar: float | None) -> bool:
    """Whether all of an interval is above a number."""
    return bar is not None and value.low is not None and value.low > bar

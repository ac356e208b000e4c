"""Audit: what every nuisance column does to some encoders, a folder."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from hidisc.artefacts.artefact import Artefact, open_artefact
from hidisc.evaluation.scores import Value
from hidisc.ground.paths import AnyPath
from hidisc.ground.records import Record
from hidisc.ground.text import count
from hidisc.settings.level_names import LevelNames

AUDIT = "audit.json"

Outcome = Literal["flagged", "at risk", "clear", "cannot be told apart", "not measured"]


class ColumnAudit(Record):
    """What one nuisance column does to one encoder; a `Value` without a number says why there is none."""

    column: str
    values: tuple[str, ...]
    patients: int
    """That have a label and a value."""
    table: tuple[tuple[int, ...], ...]
    """Patients of every class and value."""
    notes: tuple[str, ...]
    association: Value
    """Cramer's V of label and nuisance over patients, corrected for bias."""
    association_p: float | None
    robustness: Value
    """SO / (SO + OS)."""
    robustness_chance: float | None
    probe: Value
    """Accuracy of the nuisance's linear probe at equal label."""
    probe_chance: float | None
    seen: Value
    """Accuracy of the label with reference patients of all values."""
    unseen: Value
    """The same with reference patients of other values only."""
    unseen_drop: Value
    balanced: Value
    """Accuracy of the label with balanced reference patients."""
    correlated: Value
    """The same with reference patients in whom label and nuisance go together."""
    correlated_drop: Value
    outcome: Outcome = "not measured"
    sentence: str = ""
    """The outcome in words; `evaluation/flags.py` has the rule."""


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
    """What people read calls the levels so."""


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

    def verdict(self) -> str:
        """One line: what was flagged, of which encoder."""
        columns = [(encoder.name, column) for encoder in self.info.encoders for column in encoder.columns]
        said = [f"{name}: {column.column} {column.outcome}" for name, column in columns if column.outcome != "clear"]
        clear = len(columns) - len(said)
        return "; ".join([*said, *([f"{count(clear, 'column')} clear"] if clear or not said else [])])

"""The page of an audit: what was found of every nuisance column, then the numbers, encoders side by side."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hidisc.evaluation.audit import AuditInfo, ColumnAudit, EncoderAudit
from hidisc.evaluation.scores import Value
from hidisc.ground.files import write_atomic
from hidisc.ground.text import count
from hidisc.reporting.drawings import FigureFolder
from hidisc.reporting.html import BasePage, fill_template, list_files
from hidisc.reporting.table import DASH, Table, write_tables
from hidisc.settings.audit import AuditConfig
from hidisc.settings.config import to_yaml

PAGE = "audit.html"
_MEASURES = (
    ("Robustness index", "robustness", "robustness_chance"),
    ("Nuisance predicted at equal label", "probe", "probe_chance"),
    ("Label, seen nuisance", "seen", None),
    ("Label, unseen nuisance", "unseen", None),
    ("Drop from seen to unseen", "unseen_drop", None),
    ("Label, balanced reference", "balanced", None),
    ("Label, correlated reference", "correlated", None),
    ("Drop from balanced to correlated", "correlated_drop", None),
)
"""Title in the table, field of ColumnAudit, and the field of its chance."""
_EXPLAINED = (
    "Numbers are of 100, with their intervals over patients in square brackets and chance behind a slash.",
    "Robustness index: of the nearest patches of other patients that share either the label or the nuisance with a "
    "patch, how many share the label. 100: the label alone decides who is near; 0: the nuisance alone.",
    "Nuisance predicted: how often a linear probe is right about the nuisance of patients it has not learned from, at "
    "equal label.",
    "Label, seen and unseen: accuracy of the label by nearest neighbours, if some or none of the reference patients "
    "share the nuisance with the test patient.",
    "Label, balanced and correlated: the same with reference patients in whom label and nuisance are independent, or "
    "go together.",
)


@dataclass(frozen=True)
class Bar:
    """One number on a line from 0 to 100; None where there is none."""

    title: str
    text: str
    range: str
    value: float | None
    low: float | None
    high: float | None
    guess: float | None


@dataclass(frozen=True)
class Finding:
    """What was found of one column and encoder."""

    encoder: str
    outcome: str
    sentence: str
    bars: tuple[Bar, ...]


@dataclass(frozen=True)
class ColumnPart:
    """One nuisance column on the page."""

    id: str
    name: str
    notes: tuple[str, ...]
    findings: tuple[Finding, ...]
    tables: tuple[Table, ...]


@dataclass(frozen=True, kw_only=True)
class AuditPage(BasePage):
    """All that the page shows, in its order."""

    summary: str
    notes: tuple[str, ...]
    columns: tuple[ColumnPart, ...]

    @property
    def contents(self) -> tuple[tuple[str, str], ...]:
        """Sections there are: id and title."""
        return (
            ("verdict", "What was found"),
            *((part.id, part.name) for part in self.columns),
            ("about", "To cite, versions, files"),
        )


def write_audit(info: AuditInfo, config: AuditConfig, out: Path) -> list[str]:
    """Write the page and its tables; returns the names of the tables' files."""
    names = list(dict.fromkeys(column.column for encoder in info.encoders for column in encoder.columns))
    slugs = FigureFolder(out / "figures", names)
    tables: dict[str, Table] = {}
    seen: set[str] = set()  # notes that are on the page already
    parts = []
    for name in names:
        slug = slugs.slug(name)
        pairs = [(encoder, column) for encoder in info.encoders for column in encoder.columns if column.column == name]
        own = {f"audit-{slug}": _measures_table(name, pairs)}
        own |= _cohort_tables(slug, name, pairs)
        tables |= own
        findings = tuple(_find(encoder, column) for encoder, column in pairs)
        notes = tuple(dict.fromkeys(note for _, column in pairs for note in column.notes))
        shown = [
            replace(table, notes=tuple(note for note in table.notes if note not in seen)) for table in own.values()
        ]
        seen.update(_EXPLAINED)
        parts.append(ColumnPart(f"column-{slug}", name, notes, findings, tuple(shown)))
    write_tables(tables, out / "tables", info.level_names)
    page = AuditPage(
        title="What does the encoder owe to site and stain?",
        summary=", ".join(
            f"{encoder.name}: {count(encoder.patches, 'patch')} of {count(encoder.patients, 'patient')}"
            for encoder in info.encoders
        ),
        warnings=(),
        notes=tuple(f"{encoder.name}: {note}" for encoder in info.encoders for note in encoder.notes),
        columns=tuple(parts),
        versions=tuple(info.versions.items()),
        settings=to_yaml(config),
        files=list_files((), tables),
        words=info.level_names,
    )
    html = fill_template("audit.html", scripts=("contents.js",), page=page)
    write_atomic(out / PAGE, html.encode("utf-8", "replace"))
    return [f"tables/{name}.{ending}" for name in tables for ending in ("csv", "md", "tex")]


def _find(encoder: EncoderAudit, column: ColumnAudit) -> Finding:
    bars = (
        _bar("Robustness", column.robustness, column.robustness_chance),
        _bar("Told", column.probe, column.probe_chance),
        _bar("Label, seen", column.seen, None),
        _bar("Label, unseen", column.unseen, None),
    )
    return Finding(encoder.name, column.outcome, column.sentence, tuple(bar for bar in bars if bar.value is not None))


def _bar(title: str, value: Value, chance: float | None) -> Bar:
    ends = [None if number is None else 100 * number for number in (value.value, value.low, value.high, chance)]
    text, _, span = value.percent().partition(" ")
    return Bar(title, text, span, *ends)


def _measures_table(name: str, pairs: Sequence[tuple[EncoderAudit, ColumnAudit]]) -> Table:
    """Every number of one column, the encoders side by side."""
    columns = [column for _, column in pairs]
    rows = (
        ("Outcome", *(column.outcome for column in columns)),
        ("Cramer's V of label and nuisance", *(_decimal(column.association.value, 2) for column in columns)),
        ("p", *(_decimal(column.association_p, 3) for column in columns)),
        *((title, *(_show(column, field, chance) for column in columns)) for title, field, chance in _MEASURES),
    )
    missing = dict.fromkeys(
        f"{encoder.name}: {DASH} where {value.why}."
        for encoder, column in pairs
        for _, field, _ in _MEASURES
        if (value := getattr(column, field)).value is None
    )
    return Table(f"Numbers: {name}", ("", *(encoder.name for encoder, _ in pairs)), rows, (*missing, *_EXPLAINED))


def _decimal(number: float | None, digits: int) -> str:
    return DASH if number is None else f"{number:.{digits}f}"


def _show(column: ColumnAudit, field: str, chance: str | None) -> str:
    value: Value = getattr(column, field)
    if value.value is None:
        return DASH
    by_chance = getattr(column, chance) if chance else None
    return value.percent() if by_chance is None else f"{value.percent()} / {100 * by_chance:.1f}"


def _cohort_tables(slug: str, name: str, pairs: Sequence[tuple[EncoderAudit, ColumnAudit]]) -> dict[str, Table]:
    """Patients of every class and value; cohorts that several encoders share once."""
    tables: dict[str, Table] = {}
    for encoder, column in pairs:
        rows = tuple(
            (label, *map(str, patients)) for label, patients in zip(encoder.classes, column.table, strict=True)
        )
        table = Table(f"Patients: {encoder.label} and {name}", (encoder.label, *column.values), rows)
        if column.values and table not in tables.values():
            tables[f"patients-{slug}{f'-{len(tables) + 1}' if tables else ''}"] = table
    return tables

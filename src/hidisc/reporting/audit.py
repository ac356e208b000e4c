"""The page of an audit: the findings on every technical variable, then its numbers, encoders side by side."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hidisc.auditing.audit import AuditInfo, ColumnAudit, EncoderAudit
from hidisc.evaluation.metrics import Value
from hidisc.ground.files import write_atomic
from hidisc.reporting.figures import make_slug
from hidisc.reporting.html import fill_template, list_files
from hidisc.reporting.table import DASH, Table, write_tables
from hidisc.reporting.verdict import Number
from hidisc.settings.audit import AuditConfig
from hidisc.settings.config import to_yaml
from hidisc.settings.level_names import LevelNames

PAGE = "audit.html"
_MEASURES = (
    ("Robustness index", "robustness", "robustness_chance"),
    ("Variable predicted at equal label", "probe", "probe_chance"),
    ("Label, value seen", "seen", None),
    ("Label, value not seen", "unseen", None),
    ("Drop where it was not seen", "unseen_drop", None),
    ("Label, balanced reference", "balanced", None),
    ("Label, correlated reference", "correlated", None),
    ("Drop from balanced to correlated", "correlated_drop", None),
)
"""Title in the table, field of ColumnAudit, and the field with its value by chance."""
_EXPLAINED = (
    "Numbers are of 100, with their intervals over patients in square brackets and chance behind a slash.",
    "Robustness index: of the nearest patches of other patients that share either the label or the variable (site, "
    "scanner, colour) with a patch, how many share the label. 100: the label alone decides who is near; 0: the "
    "variable alone.",
    "Variable predicted: how often a linear probe is right about the variable of patients it has not learned from, at "
    "equal label.",
    "Label, value seen or not: accuracy of the label by nearest neighbours, if some or none of the reference patients "
    "share the value of the variable with the test patient.",
    "Cramer's V: how far label and variable go together over patients, from 0 (not at all) to 1 (always); p: how often "
    "labels assigned at random go together with it as far.",
    "Label, balanced and correlated: the same with reference patients in whom label and variable are independent, or "
    "go together.",
)


def write_audit(info: AuditInfo, config: AuditConfig, out: Path) -> list[str]:
    """Write the page and its tables, and return the names of the files of the tables."""
    names = list(dict.fromkeys(column.column for encoder in info.encoders for column in encoder.columns))
    words = info.level_names
    tables: dict[str, Table] = {}
    parts: list[dict[str, Any]] = []
    for number, name in enumerate(names, 1):
        slug = make_slug(number, name)
        pairs = [(encoder, column) for encoder in info.encoders for column in encoder.columns if column.column == name]
        own = {f"audit-{slug}": _measures_table(name, pairs), **_cohort_tables(slug, name, pairs, words)}
        tables |= own
        parts.append(
            {
                "id": f"column-{slug}",
                "name": name,
                "notes": list(dict.fromkeys(note for _, column in pairs for note in column.notes)),
                "findings": [(encoder.name, column, _draw_bars(column)) for encoder, column in pairs],
                "tables": [table.without(_EXPLAINED) if parts else table for table in own.values()],
            }
        )
    write_tables(tables, out / "tables")
    html = fill_template(
        "audit.html",
        words,
        title="How far does the encoder depend on site and stain?",
        summary=", ".join(
            f"{encoder.name}: {words.count(encoder.patches, 'patch')} of {words.count(encoder.patients, 'patient')}"
            for encoder in info.encoders
        ),
        notes=[f"{encoder.name}: {note}" for encoder in info.encoders for note in encoder.notes],
        columns=parts,
        versions=info.versions,
        settings=to_yaml(config),
        files=list_files((), tables),
    )
    write_atomic(out / PAGE, html.encode("utf-8", "replace"))
    return [f"tables/{name}.{ending}" for name in tables for ending in ("csv", "md", "tex")]


def _draw_bars(column: ColumnAudit) -> list[Number]:
    """The numbers of one column and encoder that are drawn as bars; unknown numbers are left out."""
    bars = []
    for title, known, chance in (
        ("Robustness", column.robustness, column.robustness_chance),
        ("Predicted", column.probe, column.probe_chance),
        ("Label, seen", column.seen, None),
        ("Label, not seen", column.unseen, None),
    ):
        if known.value is not None:
            text, _, span = known.percent().partition(" ")
            ends = [None if end is None else 100 * end for end in (known.value, known.low, known.high, chance)]
            bars.append(Number(title, text, "", span, *ends))
    return bars


def _measures_table(name: str, pairs: Sequence[tuple[EncoderAudit, ColumnAudit]]) -> Table:
    """Every number of one column, the encoders side by side."""
    columns = [column for _, column in pairs]
    rows = (
        ("Outcome", *(column.outcome for column in columns)),
        ("Label and variable go together (Cramer's V)", *(_decimal(column.association.value, 2) for column in columns)),
        ("p", *(_decimal(column.association_p, 3) for column in columns)),
        *((title, *(_show(column, field, chance) for column in columns)) for title, field, chance in _MEASURES),
    )
    rows = tuple(row for row in rows if set(row[1:]) != {DASH})
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


def _cohort_tables(
    slug: str, name: str, pairs: Sequence[tuple[EncoderAudit, ColumnAudit]], words: LevelNames
) -> dict[str, Table]:
    """Tables of the patients of every class and value; a cohort that several encoders share has one table."""
    tables: dict[str, Table] = {}
    for encoder, column in pairs:
        rows = tuple(
            (label, *map(str, patients)) for label, patients in zip(encoder.classes, column.table, strict=True)
        )
        title = f"{words.plural('patient').capitalize()}: {encoder.label} and {name}"
        total = sum(map(sum, column.table))
        several = (
            f"{words.count(column.patients, 'patient')}; one with {words.plural('patch')} of several values or labels "
            f"stands in each of them, so the numbers add up to {total:,}."
        )
        table = Table(title, (encoder.label, *column.values), rows, (several,) if total > column.patients else ())
        if column.values and table not in tables.values():
            tables[f"patients-{slug}{f'-{len(tables) + 1}' if tables else ''}"] = table
    return tables

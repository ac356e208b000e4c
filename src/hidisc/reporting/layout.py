"""A table as a page lays it out: kinds of cells, spans, and columns stacked where a screen is too narrow."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from hidisc.reporting.table import Table

_LONG = 26
"""Characters from which a column of a table is text that breaks its lines."""
_WIDE = 8
"""Columns beyond which groups of them are stacked."""


@dataclass(frozen=True)
class _Cell:
    text: str
    tag: str
    kind: str
    span: int = 1
    bold: bool = False


@dataclass(frozen=True)
class _Laid:
    """A table as the template reads it."""

    title: str
    groups: tuple[tuple[str, int], ...]
    header: tuple[tuple[str, str], ...]
    rows: tuple[tuple[_Cell, ...], ...]
    notes: tuple[str, ...]


def lay_table(table: Table, warnings: Sequence[str]) -> _Laid:
    """Cells with their kinds; the first of a block spans it, and warnings, which stand above, are no notes."""
    table = _stack(table)
    widest = [max((len(row[place]) for row in table.rows), default=0) for place in range(len(table.columns))]
    kinds = ["text" if place < table.lead or width > _LONG else "" for place, width in enumerate(widest)]
    kinds = [f"{kind} long" if width > 2 * _LONG else kind for kind, width in zip(kinds, widest, strict=True)]
    kinds[0] = "text first"
    spans = {}
    start = 0
    for size in table.blocks or (1,) * len(table.rows):
        spans[start] = size
        start += size
    rows = [
        tuple(
            _Cell(
                text,
                "th" if place < table.lead else "td",
                kinds[place],
                spans[number] if place == 0 else 1,
                (number, place) in table.bold,
            )
            for place, text in enumerate(row)
            if place or number in spans
        )
        for number, row in enumerate(table.rows)
    ]
    notes = tuple(note for note in table.notes if not any(note.endswith(sentence) for sentence in warnings))
    header = tuple(zip(table.columns, kinds, strict=True))
    return _Laid(table.title, table.groups, header, tuple(rows), notes)


def _stack(table: Table) -> Table:
    """Groups of columns below each other where they would be too wide for a screen; paper is wider, and keeps them."""
    lead, width = table.lead, table.groups[-1][1] if table.groups else 0
    names = table.columns[lead : lead + width]
    if len(table.columns) <= _WIDE or table.columns[lead:] != names * (len(table.groups) - 1) or table.blocks:
        return table
    titles = [text.removesuffix(" level metrics") for text, _ in table.groups[1:]]
    count = len(table.rows)
    return replace(
        table,
        columns=("Level", *table.columns[:lead], *names),
        rows=tuple(
            (title, *row[:lead], *row[lead + number * width : lead + (number + 1) * width])
            for number, title in enumerate(titles)
            for row in table.rows
        ),
        groups=(),
        lead=lead + 1,
        blocks=(count,) * len(titles),
        bold=frozenset(
            (number * count + row, lead + 1 + (column - lead) % width)
            for row, column in table.bold
            if column >= lead
            for number in [(column - lead) // width]
        ),
    )

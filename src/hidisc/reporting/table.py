"""A table as CSV, Markdown, LaTeX and HTML; numbers with errors and bold type."""

import html
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

import numpy as np

from hidisc.evaluation.metrics import Metric, Value
from hidisc.ground.files import write_atomic
from hidisc.ground.spreadsheet import format_csv
from hidisc.ground.text import printable
from hidisc.reporting.evaluated import EvaluatedModel

DASH = "–"
"""Stands in place of an undefined number; a note says why it is undefined."""
LABELLED = "†"
"""Mark behind the name of an encoder that learned from labels."""
_LONG = 26
"""A column with a longer text, in characters, holds words and no numbers."""


@dataclass(frozen=True)
class Table:
    """Rows of text under a header, with the notes that belong to them.

    Every table has a row per level (or class) and method. Neighbouring rows with the same first cell are a block.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()
    """A sentence each, the most important first."""
    lead: int = 1
    """How many columns at the left name a row; if several, the first names a block and is shown once per block."""
    bold: frozenset[tuple[int, int]] = frozenset()
    """The best cells as (row, column)."""

    @property
    def blocks(self) -> dict[int, int]:
        """The number of rows of each block by its first row; every row is a block if one column names a row."""
        sizes = [1] * len(self.rows)
        if self.lead > 1:
            sizes = [len(list(rows)) for _, rows in groupby(self.rows, key=lambda row: row[0])]
        return {sum(sizes[:number]): size for number, size in enumerate(sizes)}

    @property
    def kinds(self) -> list[str]:
        """Classes of every column on a page: `text` for words, `long` for sentences, `first` for the first."""
        kinds = []
        for column in range(len(self.columns)):
            longest = max((len(row[column]) for row in self.rows), default=0)
            kind = ["text"] if column < self.lead or longest > _LONG else []
            kind += ["long"] if longest > 2 * _LONG else []
            kinds.append(" ".join(kind if column else [*kind, "first"]))
        return kinds

    def without(self, notes: Collection[str]) -> "Table":
        """The table without those notes that the page has already."""
        return replace(self, notes=tuple(note for note in self.notes if note not in notes))

    def to_csv(self) -> str:
        """Header and rows; the notes are a last column, so that no row is read without them."""
        notes = [" ".join(self.notes)] if self.notes else []
        header = [*self.columns, "Notes"] if notes else self.columns
        return format_csv(header, ([*row, *notes] for row in self.rows))

    def to_markdown(self) -> str:
        """A pipe table under its title; a block is named in its first row."""
        lines = [f"**{_markdown(self.title)}**", "", _pipes(map(_markdown, self.columns))]
        lines.append(_pipes("---" if kind else "---:" for kind in self.kinds))
        blocks = self.blocks
        for number, row in enumerate(self.rows):
            cells = [_markdown(cell) for cell in row]
            cells[0] = cells[0] if number in blocks else ""
            lines.append(_pipes(f"**{cell}**" if (number, at) in self.bold else cell for at, cell in enumerate(cells)))
        lines += ["", *(f"- {_markdown(note)}" for note in self.notes)]
        return "\n".join(lines).rstrip() + "\n"

    def to_latex(self, label: str) -> str:
        """A `table*` as the paper's: rules between blocks, the notes in the caption."""
        is_blocked, blocks = self.lead > 1, self.blocks
        letters = ["p{0.4\\textwidth}" if kind else "c" for kind in self.kinds]
        letters[: self.lead] = ["c|"] * self.lead
        lines = ["% needs \\usepackage{multirow}"] if is_blocked else []
        lines += ["\\begin{table*}[ht!]", "    \\centering", "    \\setlength{\\tabcolsep}{4pt}"]
        lines.append(f"    \\begin{{tabular}}{{{''.join(letters)}}}\\hline")
        lines.append(f"    {' & '.join(_latex(name) for name in self.columns)}\\\\\\hline")
        for number, row in enumerate(self.rows):
            cells = [_embolden(_latex(cell), (number, at) in self.bold) for at, cell in enumerate(row)]
            if is_blocked:
                cells[0] = f"\\multirow{{{blocks[number]}}}{{*}}{{{cells[0]}}}" if number in blocks else ""
            elif cells[0][:1] in ("[", "*"):  # behind the row break it would be an argument of it
                cells[0] = "{}" + cells[0]
            is_last, ends_block = number + 1 == len(self.rows), is_blocked and number + 1 in blocks
            rule = "\\hline" if is_last else "\\hline\\hline" if ends_block else ""
            lines.append(f"    {' & '.join(cells)}\\\\{rule}")
        lines.append("    \\end{tabular}")
        caption = " ".join([_embolden(f"{_latex(self.title)}."), *map(_latex, self.notes)])
        lines.append(f"    \\caption{{{caption}}}")
        lines += [f"    \\label{{tab:{label}}}", "\\end{table*}"]
        return "\n".join(lines) + "\n"


def write_tables(tables: Mapping[str, Table], folder: Path) -> None:
    """Write NAME.csv, NAME.md and NAME.tex of every table."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, table in tables.items():
        texts = {"csv": table.to_csv(), "md": table.to_markdown(), "tex": table.to_latex(name)}
        for suffix, text in texts.items():
            write_atomic(folder / f"{name}.{suffix}", text.encode())


def _pipes(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _markdown(text: str) -> str:
    """Text that Markdown shows as it is: no markup, no HTML, no formula, no link."""
    text = html.escape(printable(text), quote=False)
    text = re.sub(r"([\\`*_~$|#])", r"\\\1", text)
    return text.replace("](", "]\\(").replace("][", "]\\[")


_TEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': "''",
    DASH: "--",
    LABELLED: r"\dag{}",
    **{character: f"\\{character}" for character in "{}$&#_%"},
}


def _embolden(latex: str, is_bold: bool = True) -> str:
    return f"\\textbf{{{latex}}}" if latex and is_bold else latex


def _latex(text: str) -> str:
    """Text that LaTeX prints as it is."""
    return "".join(_TEX.get(character, character) for character in printable(text))


@dataclass(frozen=True)
class NumberCell:
    """A number as it is printed, and its error range."""

    text: str
    value: float | None = None
    """The number, with its sign changed where lower is better, so that the largest is the best."""
    low: float = 0.0
    high: float = 0.0
    """Ends of its error range: mean - sd and mean + sd, or those of the interval, or the value itself."""
    why: str = ""
    """Why the number is undefined, or what to note about it."""


@dataclass(frozen=True)
class NumberRow:
    """One row of a table of numbers."""

    names: tuple[str, ...]
    """The name of its block (a level or a class), then that of its method."""
    cells: Sequence[NumberCell]
    """One per metric."""
    competes: bool = True
    """Whether its cells may be the best; those of encoders that learned from labels may not, as in the paper."""
    group: Hashable = None
    """Rows are compared within their group; None: within their block."""


def lay_rows(title: str, columns: Sequence[str], rows: Sequence[NumberRow], notes: Iterable[str]) -> Table:
    """The table of some rows, the best of every group and metric in bold."""
    groups: dict[Hashable, list[int]] = defaultdict(list)
    for number, row in enumerate(rows):
        groups[row.names[0] if row.group is None else row.group].append(number)
    lead = len(columns) - len(rows[0].cells)
    bold = {
        (numbers[at], lead + column)
        for numbers in groups.values()
        for at, column in find_best([rows[number] for number in numbers])
    }
    texts = tuple((*row.names, *(cell.text for cell in row.cells)) for row in rows)
    return Table(title, tuple(columns), texts, tuple(notes), lead, frozenset(bold))


def find_best(rows: Sequence[NumberRow]) -> set[tuple[int, int]]:
    """(row, column) of the best cell of each column and of those whose error range overlaps that of the best.

    Where all overlap, nothing is the best. With standard deviations this is the paper's own bold type: 88.1 (0.5)
    beside 88.5 (0.2), but not 85.5 (0.3) beside 86.2 (0.2).
    """
    best = set()
    for column in range(len(rows[0].cells) if rows else 0):
        known = {number: row.cells[column] for number, row in enumerate(rows) if row.competes}
        known = {number: cell for number, cell in known.items() if cell.value is not None}
        if known:
            top = max(known.values(), key=lambda cell: cell.value or 0.0)
            near = {(number, column) for number, cell in known.items() if cell.high >= top.low - 1e-12}
            best |= near if len(near) < len(known) else set()
    return best


def make_cell(values: Sequence[Value], sign: int = 1) -> NumberCell:
    """One metric in percent: `87.4 (0.1)` of several evaluations, `87.4 [81.2, 92.0]` of a single one."""
    undefined = [value for value in values if value.value is None]
    why = next((value.why for value in [*undefined, *values] if value.why), "")
    known = [value.value for value in values if value.value is not None]
    if undefined or not known:
        return NumberCell(DASH, why=why or "not judged")
    if len(known) > 1:  # the intervals and notes of single seeds are not shown
        mean, sd = float(np.mean(known)), float(np.std(known, ddof=1))
        return NumberCell(show_spread(known, percent), sign * mean, sign * mean - sd, sign * mean + sd)
    low, high = values[0].low, values[0].high
    ends = (known[0], known[0]) if low is None or high is None else (low, high)
    least, most = sorted(sign * end for end in ends)
    return NumberCell(values[0].percent(), sign * known[0], least, most, why)


def metric_cell(model: EvaluatedModel, probe: str, level: str, metric: Metric) -> NumberCell:
    """One metric of a model at one level by one probe."""
    return make_cell([row.metrics[metric.key] for row in model.find_levels(probe, level)], metric.sign)


def metric_values(model: EvaluatedModel, probe: str, level: str, name: str) -> list[float]:
    """A metric of each evaluation of a model; evaluations in which the metric is undefined are left out."""
    values = [scored.metrics[name].value for scored in model.find_levels(probe, level)]
    return [value for value in values if value is not None]


def method_name(model: EvaluatedModel) -> str:
    """The name of a model in a table; a mark behind the name says that the model learned from labels."""
    return f"{model.name} {LABELLED}" if model.labels_used else model.name


def show_spread(values: Sequence[float], show: Callable[[float], str]) -> str:
    """`mean (sd)` of several numbers, the number itself of one."""
    if len(values) == 1:
        return show(values[0])
    return f"{show(float(np.mean(values)))} ({show(float(np.std(values, ddof=1)))})"


def percent(share: float) -> str:
    """A share of 1 in percent."""
    return f"{100 * share:.1f}"


def plain(number: float) -> str:
    """A number with three digits."""
    return f"{number:.3g}"


def signed(share: float) -> str:
    """A difference in points, with its sign."""
    text = f"{100 * share:+.1f}"
    return text if float(text) else "0.0"

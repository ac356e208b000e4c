"""Table: rows of text under a header, as CSV, Markdown and LaTeX, safe for whatever names hold."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hidisc.ground.files import write_atomic
from hidisc.ground.spreadsheet import format_csv

DASH = "–"
"""In place of a number that is undefined; a note says why."""
LABELLED = "†"
"""Behind the name of an encoder that learned from labels."""
_LONG = 40
"""Characters beyond which a cell is a sentence, and no number."""


@dataclass(frozen=True)
class Table:
    """Rows of text under a header, with what must be read beside them."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()
    """A sentence each, the gravest first."""
    groups: tuple[tuple[str, int], ...] = ()
    """A header above the header: text and how many columns it spans, all columns in turn; none: no such header."""
    lead: int = 1
    """Columns at the left that name a row."""
    blocks: tuple[int, ...] = ()
    """Numbers of rows, in turn, that share their first cell, which people need to see once only."""
    bold: frozenset[tuple[int, int]] = frozenset()
    """(row, column) of the best cells."""

    def to_csv(self) -> str:
        """Header and rows; the notes are a last column, so that no row is read without them."""
        above = [text for text, span in self.groups for _ in range(span)] or [""] * len(self.columns)
        header = [f"{group}: {name}" if group else name for group, name in zip(above, self.columns, strict=True)]
        said = [" ".join(self.notes)] if self.notes else []
        return format_csv([*header, *(["Notes"] if said else [])], ([*row, *said] for row in self.rows))

    def to_markdown(self) -> str:
        """A pipe table under its title; groups are named in the header, a block in its first row."""
        lines = [f"**{_markdown(self.title)}**", ""]
        if self.groups:
            starts = {0, *np.cumsum([span for _, span in self.groups]).tolist()}
            names = iter(self.groups)
            above = [next(names)[0] if place in starts else "" for place in range(len(self.columns))]
            header = [f"**{_markdown(group)}**<br>" if group else "" for group in above]
        else:
            header = [""] * len(self.columns)
        lines.append(_pipes(group + _markdown(name) for group, name in zip(header, self.columns, strict=True)))
        lines.append(_pipes("---" if is_text else "---:" for is_text in self._texts()))
        firsts = self._firsts()
        for number, row in enumerate(self.rows):
            cells = [_markdown(cell) for cell in row]
            cells[0] = cells[0] if number in firsts else ""
            lines.append(
                _pipes(f"**{cell}**" if (number, place) in self.bold else cell for place, cell in enumerate(cells))
            )
        lines += ["", *(f"- {_markdown(note)}" for note in self.notes)]
        return "\n".join(lines).rstrip() + "\n"

    def to_latex(self, label: str = "") -> str:
        """A `table*` as the paper's: rules between levels and blocks, the notes in the caption."""
        lines = ["% needs \\usepackage{multirow}"] if self.blocks else []
        lines += ["\\begin{table*}[ht!]", "    \\centering", "    \\setlength{\\tabcolsep}{4pt}"]
        lines.append(f"    \\begin{{tabular}}{{{self._spec()}}}\\hline")
        if self.groups:
            last = len(self.groups) - 1
            rules = ["|" if not place else "||" if place < last else "" for place in range(last + 1)]
            spans = [
                f"\\multicolumn{{{span}}}{{c{rule}}}{{{_embolden(_latex(text))}}}"
                for rule, (text, span) in zip(rules, self.groups, strict=True)
            ]
            lines.append(f"    {' & '.join(spans)}\\\\")
        lines.append(f"    {' & '.join(_latex(name) for name in self.columns)}\\\\\\hline")
        firsts = self._firsts()
        for number, row in enumerate(self.rows):
            cells = [_latex(cell) for cell in row]
            cells = [_embolden(cell) if (number, place) in self.bold else cell for place, cell in enumerate(cells)]
            if self.blocks:
                span = firsts.get(number)
                cells[0] = f"\\multirow{{{span}}}{{*}}{{{cells[0]}}}" if span else ""
            elif cells[0][:1] in ("[", "*"):  # behind the row break it would be an argument of it
                cells[0] = "{}" + cells[0]
            is_last, ends_block = number + 1 == len(self.rows), self.blocks and number + 1 in firsts
            rule = "\\hline" if is_last else "\\hline\\hline" if ends_block else ""
            lines.append(f"    {' & '.join(cells)}\\\\{rule}")
        lines.append("    \\end{tabular}")
        caption = " ".join([_embolden(f"{_latex(self.title)}."), *map(_latex, self.notes)])
        lines.append(f"    \\caption{{{caption}}}")
        if label:
            lines.append(f"    \\label{{tab:{label}}}")
        return "\n".join([*lines, "\\end{table*}"]) + "\n"

    def _firsts(self) -> dict[int, int]:
        """First row of each block: how many rows it has; every row where there are no blocks."""
        sizes = self.blocks or (1,) * len(self.rows)
        starts = np.cumsum([0, *sizes[:-1]]).tolist() if sizes else []
        return dict(zip(starts, sizes, strict=True))

    def _texts(self) -> list[bool]:
        """Of every column: whether it holds words rather than numbers."""
        longest = [max((len(row[place]) for row in self.rows), default=0) for place in range(len(self.columns))]
        return [place < self.lead or length > _LONG for place, length in enumerate(longest)]

    def _spec(self) -> str:
        """LaTeX's column letters, a rule behind those that name a row and two between groups."""
        names = range(self.lead)
        letters = ["p{0.4\\textwidth}" if text and at not in names else "c" for at, text in enumerate(self._texts())]
        for place in names:
            letters[place] += "|"
        end = 0
        for place, (_, span) in enumerate(self.groups[:-1]):
            end += span
            if place:
                letters[end - 1] += "||"
        return "".join(letters)


def write_tables(tables: Mapping[str, Table], folder: Path) -> None:
    """Write NAME.csv, NAME.md and NAME.tex of every table."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, table in tables.items():
        texts = {"csv": table.to_csv(), "md": table.to_markdown(), "tex": table.to_latex(name)}
        for suffix, text in texts.items():
            write_atomic(folder / f"{name}.{suffix}", text.encode())


def _pipes(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _line(text: str) -> str:
    """Text on one line; what cannot be printed becomes a question mark."""
    return "".join(character if character.isprintable() else "?" for character in re.sub(r"\s+", " ", text))


def _markdown(text: str) -> str:
    """Text that Markdown shows as it is: no markup, no HTML, no formula, no link."""
    text = _line(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
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


def _embolden(latex: str) -> str:
    return f"\\textbf{{{latex}}}" if latex else ""


def _latex(text: str) -> str:
    """Text that LaTeX prints as it is."""
    return "".join(_TEX.get(character, character) for character in _line(text))

"""`metrics.csv`: a row every few steps, cut back to the checkpoint when a run resumes."""

import csv
import io
from collections.abc import Mapping
from pathlib import Path

from hidisc.ground.files import write_atomic
from hidisc.ground.spreadsheet import guard_cell, unguard_cell

METRICS = "metrics.csv"


class Metrics:
    """Rows of numbers by column name; a number is written so that it reads back bit for bit."""

    def __init__(self, path: Path, resumed_at: int) -> None:
        """Keep what was written up to step `resumed_at`; later rows, and one cut short, are written anew."""
        self._path = path
        kept = [row for row in read_metrics(path) if row["step"] <= resumed_at]
        self._columns = list(kept[0]) if kept else []
        write_atomic(path, "".join([self._header(), *map(self._line, kept)]).encode())

    def add(self, row: Mapping[str, float]) -> None:
        """Append a row; the first one names the columns."""
        new = not self._columns
        self._columns = self._columns or list(row)
        with self._path.open("a", encoding="utf-8") as file:
            file.write((self._header() if new else "") + self._line(row))

    def _header(self) -> str:
        text = io.StringIO()
        if self._columns:  # the names of levels are the user's
            csv.writer(text, lineterminator="\n").writerow(map(guard_cell, self._columns))
        return text.getvalue()

    def _line(self, row: Mapping[str, float]) -> str:
        return ",".join(repr(row[name]) for name in self._columns) + "\n"


def read_metrics(path: Path) -> list[dict[str, float]]:
    """The whole rows of a metrics file, none when it is not there."""
    if not path.is_file():
        return []
    header, *lines = path.read_text(encoding="utf-8").splitlines(keepends=True) or [""]
    columns = [unguard_cell(name) for name in next(csv.reader([header.strip()]), [])]
    cells = [line.strip().split(",") for line in lines if line.endswith("\n") and line.count(",") + 1 == len(columns)]
    return [
        {name: int(cell) if name == "step" else float(cell) for name, cell in zip(columns, row, strict=True)}
        for row in cells
    ]

"""The page of a benchmark: what became of the paper's claims, its tables with our numbers in them, every training."""

from dataclasses import dataclass

from hidisc.reporting.drawings import Drawing
from hidisc.reporting.html import BasePage, fill_template
from hidisc.reporting.table import Table


@dataclass(frozen=True, kw_only=True)
class BenchmarkPage(BasePage):
    """All that the page shows, in its order."""

    summary: str
    notes: tuple[str, ...]
    claims: tuple[Table, ...]
    results: tuple[Table, ...]
    axis: tuple[Drawing, ...]
    beside: tuple[Table, ...]
    """Tables of the paper with its numbers and ours."""
    confusions: tuple[Drawing, ...]
    cells: Table

    @property
    def contents(self) -> tuple[tuple[str, str], ...]:
        """Sections there are: id and title."""
        shown = {
            ("verdict", "What was found"): True,
            ("paper", "Beside the paper"): self.beside,
            ("confusions", "Confusion matrices"): self.confusions,
            ("cells", "Trainings"): True,
            ("about", "To cite, versions, files"): True,
        }
        return tuple(section for section, there in shown.items() if there)


def render_benchmark(page: BenchmarkPage) -> str:
    """The page as HTML; everything that files supplied is escaped."""
    return fill_template("benchmark.html", scripts=("contents.js",), page=page)

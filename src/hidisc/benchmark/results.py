"""From finished cells to the paper's tables with our numbers in them, figures, claims and a page."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from hidisc.artefacts.files import write_atomic
from hidisc.benchmark.cells import Cell
from hidisc.benchmark.claims import check_claim
from hidisc.benchmark.tables import beside_table, cells_table, claims_table
from hidisc.config import to_yaml
from hidisc.evaluation.scores import Scores
from hidisc.machine import versions
from hidisc.reporting.axis import draw_axis
from hidisc.reporting.benchmark import BenchmarkPage, render_benchmark
from hidisc.reporting.cells import find_levels
from hidisc.reporting.drawings import Drawing, FigureFolder
from hidisc.reporting.figures import draw_confusion
from hidisc.reporting.html import list_files
from hidisc.reporting.subject import Subject
from hidisc.reporting.table import Table, write_tables
from hidisc.reporting.tables import metrics_table
from hidisc.reporting.verdict import gather_warnings
from hidisc.settings.benchmarking import SuiteConfig

PAGE = "benchmark.html"
_PACKAGES = ("hidisc", "numpy", "scikit-learn", "matplotlib", "torch")


def write_results(suite: SuiteConfig, cells: Sequence[Cell], out: Path, scale: str) -> Path:
    """Write `tables/`, `figures/` and, last, the page; what is there of an earlier call is replaced."""
    placed = gather_subjects(suite, cells)
    subjects = [subject for _, subject in placed]
    tables = make_tables(suite, cells, subjects)
    write_tables(tables, out / "tables")
    drawn = FigureFolder(out / "figures", [subject.name for subject in subjects])
    axis = _draw_axis(suite, placed, drawn)
    confusions = _draw_confusions(suite, subjects, drawn)
    page = BenchmarkPage(
        title=suite.title,
        summary=_summarise(suite, cells, scale),
        warnings=gather_warnings(subjects),
        notes=suite.notes if subjects else ("No training is finished, so there are no numbers.",),
        claims=_of(tables, "claims"),
        results=_of(tables, "results"),
        axis=axis,
        beside=_of(tables, *map(_beside, suite.paper)),
        confusions=confusions,
        cells=tables["trainings"],
        versions=tuple(versions(*_PACKAGES).items()),
        settings=to_yaml(suite),
        files=list_files(drawn.names, tables),
    )
    write_atomic(out / PAGE, render_benchmark(page).encode("utf-8", "replace"))
    return out / PAGE


def list_results(out: Path) -> list[str]:
    """Every file that `write_results` wrote, relative to the benchmark."""
    found = [out / PAGE, *out.glob("tables/*"), *out.glob("figures/*")]
    return sorted(path.relative_to(out).as_posix() for path in found if path.is_file())


def gather_subjects(suite: SuiteConfig, cells: Sequence[Cell]) -> list[tuple[float | None, Subject]]:
    """A subject a row with all its finished evaluations, and its place on the axis; with several looks, one a look."""
    found: list[tuple[float | None, Subject]] = []
    for row in suite.rows:
        mine = [cell for cell in cells if cell.row.name == row.name and cell.is_done]
        steps = sorted({look.step for cell in mine for look in cell.looks})
        for step in steps:
            looks = [(cell, look) for cell in mine for look in cell.looks if look.step == step]
            scores = tuple(Scores.load(cell.scores(look)) for cell, look in looks)
            name, at = (row.name, row.at) if len(steps) == 1 else (f"{row.name}, {step:,} steps", float(step))
            found.append((at, Subject(name, scores, (None,) * len(scores), None)))
    return found


def make_tables(suite: SuiteConfig, cells: Sequence[Cell], subjects: Sequence[Subject]) -> dict[str, Table]:
    """Every table, by the name of its files; those of numbers only where there are any."""
    made = {}
    if subjects:
        named = {subject.name: subject for subject in subjects}
        opinion = suite.evaluate.opinions[0]
        made["results"] = metrics_table(subjects, opinion)
        made |= {_beside(name): beside_table(suite, named, name) for name in suite.paper}
        if suite.claims:
            checked = [check_claim(claim, named, suite.evaluate) for claim in suite.claims]
            made["claims"] = claims_table(checked, subjects)
    return made | {"trainings": cells_table(cells)}


def _beside(table: str) -> str:
    """What the files of a table of the paper are called."""
    return f"paper-{table.replace('_', '-')}"


def _of(tables: Mapping[str, Table], *names: str) -> tuple[Table, ...]:
    return tuple(tables[name] for name in names if name in tables)


def _summarise(suite: SuiteConfig, cells: Sequence[Cell], scale: str) -> str:
    """What was done, in a line."""
    done, failed = (sum(map(bool, found)) for found in ([c.is_done for c in cells], [c.failure for c in cells]))
    seeds = f"{suite.seeds} seed{'s' if suite.seeds > 1 else ''}"
    text = f"{len(suite.rows)} rows of {seeds}, scale {scale}: {done} of {len(cells)} trainings finished"
    return f"{text}, {failed} failed." if failed else f"{text}."


def _draw_axis(
    suite: SuiteConfig, placed: Sequence[tuple[float | None, Subject]], drawn: FigureFolder
) -> tuple[Drawing, ...]:
    points = [(at, subject) for at, subject in placed if at is not None]
    if suite.axis is None or not points:
        return ()
    figure = draw_axis(points, suite.axis, suite.evaluate.opinions[0])
    return (drawn.add("axis", figure, f"Metrics over {suite.axis}; a bar is the standard deviation over seeds"),)


def _draw_confusions(suite: SuiteConfig, subjects: Sequence[Subject], drawn: FigureFolder) -> tuple[Drawing, ...]:
    """A matrix a row at the finest and at the coarsest level that was judged, all its evaluations added up."""
    opinion, drawings = suite.evaluate.opinions[0], []
    for subject in subjects:
        info = subject.scores[0].info
        for level in dict.fromkeys((info.levels[-1], info.levels[0])):
            found = find_levels(subject, opinion, level)
            if found:
                total = np.sum([scored.confusion for scored in found], axis=0)
                figure = draw_confusion(total, info.classes, subject.name)
                name = f"confusion-{drawn.slug(subject.name)}-{level}"
                drawings.append(drawn.add(name, figure, f"{subject.name}, {level} level"))
    return tuple(drawings)

"""Tables of a benchmark: the paper's with our numbers in them, what became of its claims, every training."""

from collections.abc import Mapping, Sequence

from hidisc.benchmark.cells import Cell
from hidisc.benchmark.claims import Checked
from hidisc.benchmark.published import Published, read_published
from hidisc.evaluation.scores import Scores
from hidisc.reporting import cells as report
from hidisc.reporting.cells import metric_cell, metric_title
from hidisc.reporting.evaluated import EvaluatedModel
from hidisc.reporting.notes import warning_notes
from hidisc.reporting.table import DASH, LABELLED, Table
from hidisc.settings.benchmark import SuiteConfig

_ONE_TRAINING = (
    "One training, not a method: a method has one finished training only, so the interval cannot show how much another "
    "seed would change the result. Finish the others, or run the suite with --set seeds=3 and a new --out."
)


def beside_table(suite: SuiteConfig, models: Mapping[str, EvaluatedModel], name: str) -> Table:
    """One table of the paper: at each level, each of its rows as found here, then as published on each data set.

    The best of each level and source is bold.
    """
    published = [item for item in read_published() if item.table == name]
    datasets, levels, metrics = (
        list(dict.fromkeys(getattr(item, field) for item in published)) for field in ("dataset", "level", "metric")
    )
    rows = []
    for level in levels:
        for row in suite.rows:
            model = models.get(row.name)
            printed = [item for item in published if item.is_of(row.paper_names)]
            if model is None and not printed:
                continue
            used_labels = bool(model.labels_used) if model else any(item.used_labels for item in printed)
            method = f"{row.name} {LABELLED}" if used_labels else row.name
            sources = {"here": _find_ours(suite, model, level, metrics)}
            sources |= {f"paper, {dataset}": _find_printed(printed, dataset, level, metrics) for dataset in datasets}
            for source, cells in sources.items():
                names = (level.capitalize(), method, source)
                rows.append(report.Row(names, cells, not used_labels, group=(level, source)))
    return report.lay_rows(
        f"{suite.title}: here and in the paper (table {name})",
        ("Level", "Method", "Source", *map(metric_title, metrics)),
        rows,
        (
            *warning_notes(list(models.values())),
            "The paper used other data and much longer trainings: compare the order of the rows, not the size of the "
            "numbers.",
            "Mean (standard deviation) over evaluations, in percent. Bold: the best of a level and source, and every "
            "value whose mean ± standard deviation overlaps that of the best; where all overlap, nothing is bold. "
            f"{LABELLED} learned from labels, so it is never bold. {DASH}: not measured, or not in the paper.",
        ),
    )


def _find_ours(
    suite: SuiteConfig, model: EvaluatedModel | None, level: str, metrics: Sequence[str]
) -> list[report.Cell]:
    """The numbers found here."""
    probe = suite.evaluate.probes[0]
    return [metric_cell(model, probe, level, metric) if model else report.Cell(DASH) for metric in metrics]


def _find_printed(printed: Sequence[Published], dataset: str, level: str, metrics: Sequence[str]) -> list[report.Cell]:
    """The paper's numbers of one row on one data set; where it gives no standard deviation, it counts as 0."""
    known = {item.metric: item for item in printed if (item.dataset, item.level) == (dataset, level)}
    cells = []
    for metric in metrics:
        item = known.get(metric)
        mean, sd = (float(item.mean), float(item.sd or 0)) if item else (0.0, 0.0)
        cells.append(report.Cell(item.text, mean, mean - sd, mean + sd) if item else report.Cell(DASH))
    return cells


def claims_table(checked: Sequence[Checked], models: Sequence[EvaluatedModel]) -> Table:
    """A line per claim about some of the models."""
    return Table(
        title="Claims, and what was found here",
        columns=("Claim", "Here", "Found"),
        rows=tuple((item.claim.text, item.outcome, item.found) for item in checked),
        lead=2,
        notes=(
            *warning_notes(models),
            "Held: the interval of the difference (bootstrap resamples of the same patients for both methods and of "
            "the trainings of each) lies above 0, as claimed. Not held: it lies below 0. Cannot tell: it contains 0. A "
            "claim that a method is no better is held unless the interval lies above 0.",
            *([_ONE_TRAINING] if any(item.outcome == "one training, not a method" for item in checked) else []),
        ),
    )


def folds_table(suite: SuiteConfig, cells: Sequence[Cell]) -> Table:
    """The numbers of every finished fold by itself; tables and claims pool them."""
    metrics, probe = ("accuracy", "mca", "auroc"), suite.evaluate.probes[0]
    rows = []
    for cell in (cell for cell in cells if cell.fold is not None and cell.is_done):
        scores = Scores.load(cell.scores(cell.points[-1]))
        for level in next(item for item in scores.info.probes if item.name == probe).levels:
            values = (level.metrics[metric].percent() for metric in metrics)
            rows.append((cell.row.name, str(cell.seed), str(cell.fold), level.level, str(level.units), *values))
    return Table(
        title="Each fold by itself",
        columns=("Method", "Seed", "Fold", "Level", "Units", *map(metric_title, metrics)),
        rows=tuple(rows),
        lead=4,
        notes=("In percent. A fold has few patients: the pooled numbers above are the ones to read.",),
    )


def cells_table(cells: Sequence[Cell]) -> Table:
    """Every training of the suite and its state."""
    return Table(
        title="Every training",
        columns=("Method", "Seed", "Fold", "Steps", "State"),
        rows=tuple(
            (cell.row.name, str(cell.seed), str(cell.fold or DASH), f"{cell.steps:,}", _fate(cell)) for cell in cells
        ),
    )


def _fate(cell: Cell) -> str:
    if cell.is_done:
        return "finished"
    return f"failed: {cell.failure}" if cell.failure else "not finished"

"""Tables of a benchmark: the paper's with our numbers in them, what became of its claims, every training."""

from collections.abc import Mapping, Sequence

from hidisc.benchmark.cells import Cell
from hidisc.benchmark.claims import Checked
from hidisc.benchmark.published import Published, read_published
from hidisc.reporting import cells as report
from hidisc.reporting.cells import find_best, metric_cell, metric_title
from hidisc.reporting.evaluated import EvaluatedModel
from hidisc.reporting.notes import warning_notes
from hidisc.reporting.table import DASH, LABELLED, Table
from hidisc.settings.benchmark import RowConfig, SuiteConfig

_WIDE = 9
"""Numbers in a row beyond which levels stand below each other, as in the paper's extended TCGA tables."""


def beside_table(suite: SuiteConfig, models: Mapping[str, EvaluatedModel], name: str) -> Table:
    """One table of the paper: each of its rows as found here, then as published; the best of each in bold."""
    printed = [item for item in read_published() if item.table == name]
    datasets = list(dict.fromkeys(item.dataset for item in printed))
    levels = list(dict.fromkeys(item.level for item in printed))
    metrics = list(dict.fromkeys(item.metric for item in printed))
    columns = [(level, metric) for level in levels for metric in metrics]
    known = [row for row in suite.rows if row.name in models or _of_row(printed, row)]
    sources = {"here": [_ours(suite, models.get(row.name), columns) for row in known]}
    sources |= {f"paper, {data}": [_theirs(_of_row(printed, row), data, columns) for row in known] for data in datasets}
    competing = [_competes(models.get(row.name), _of_row(printed, row)) for row in known]
    best = {source: find_best(cells, competing) for source, cells in sources.items()}

    titles = [metric_title(metric) for metric in metrics]
    is_stacked = len(columns) > _WIDE
    lead = 3 if is_stacked else 2
    rows: list[tuple[str, ...]] = []
    bold = set()
    for block in [[level] for level in levels] if is_stacked else [levels]:
        places = [place for place, (level, _) in enumerate(columns) if level in block]
        for number, row in enumerate(known):
            method = row.name if competing[number] else f"{row.name} {LABELLED}"
            for source, cells in sources.items():
                above = (block[0].capitalize(),) if is_stacked else ()
                bold |= {(len(rows), lead + at) for at, place in enumerate(places) if (number, place) in best[source]}
                rows.append((*above, method, source, *(cells[number][place].text for place in places)))
    return Table(
        title=f"{suite.title}: here and in the paper (table {name})",
        columns=("Level", "Method", "", *titles) if is_stacked else ("Method", "", *titles * len(levels)),
        rows=tuple(rows),
        notes=(
            *warning_notes(list(models.values())),
            "The paper's numbers are of its own data and of its own size of training: compare their order, not their "
            "height.",
            "Mean (sd) over evaluations, in percent. Bold: the best of a source, and all within a standard deviation "
            f"of it. {LABELLED} learned from labels, so out of competition. {DASH}: not measured, or not in the paper.",
        ),
        groups=() if is_stacked else (("", 2), *((f"{at.capitalize()} level metrics", len(metrics)) for at in levels)),
        lead=lead,
        blocks=(len(known) * len(sources),) * len(levels) if is_stacked else (len(sources),) * len(known),
        bold=frozenset(bold),
    )


def claims_table(checked: Sequence[Checked], models: Sequence[EvaluatedModel]) -> Table:
    """A line a claim about some of the models."""
    return Table(
        title="What is claimed, and what was found here",
        columns=("Claim", "Here", "Found"),
        rows=tuple((item.claim.text, item.outcome, item.found) for item in checked),
        lead=2,
        notes=(
            *warning_notes(models),
            "Held: the interval of the difference, over draws of the same patients for both and of the trainings of "
            "each, lies on the side claimed. Not held: it does not, which with few patients or trainings may only mean "
            "that nothing can be told.",
            *_one_training_note(checked),
        ),
    )


def _one_training_note(checked: Sequence[Checked]) -> tuple[str, ...]:
    """What to do about claims that one seed cannot decide."""
    if not any(item.outcome == "one training, not a method" for item in checked):
        return ()
    return (
        "One training, not a method: a row has one finished training only, and its interval cannot show how far "
        "another seed would come out. Finish the others, or run the suite with --set seeds=3 and a new --out.",
    )


def cells_table(cells: Sequence[Cell]) -> Table:
    """Every training of the suite and what became of it."""
    return Table(
        title="Every training",
        columns=("Row", "Seed", "Steps", "What became of it"),
        rows=tuple((cell.row.name, str(cell.seed), f"{cell.train.optim.steps:,}", _fate(cell)) for cell in cells),
    )


def _of_row(printed: Sequence[Published], row: RowConfig) -> list[Published]:
    """The paper's numbers of a row."""
    return [item for item in printed if item.is_of(row.paper_names)]


def _ours(suite: SuiteConfig, model: EvaluatedModel | None, columns: Sequence[tuple[str, str]]) -> list[report.Cell]:
    probe = suite.evaluate.probes[0]
    return [metric_cell(model, probe, *at) if model else report.Cell(DASH) for at in columns]


def _theirs(printed: Sequence[Published], dataset: str, columns: Sequence[tuple[str, str]]) -> list[report.Cell]:
    found = {(item.level, item.metric): item for item in printed if item.dataset == dataset}
    return [_published_cell(found[at]) if at in found else report.Cell(DASH) for at in columns]


def _published_cell(item: Published) -> report.Cell:
    mean, sd = float(item.mean), float(item.sd or 0)
    return report.Cell(item.text, mean, mean + sd, mean - sd)


def _competes(model: EvaluatedModel | None, printed: Sequence[Published]) -> bool:
    """Whether a row learned without labels."""
    return not model.labels_used if model else not any(item.used_labels for item in printed)


def _fate(cell: Cell) -> str:
    if cell.is_done:
        return "finished"
    return f"failed: {cell.failure}" if cell.failure else "not finished"

"""Tables of a benchmark: the paper's with our numbers in them, methods against floors, claims, every training."""

import math
from collections.abc import Mapping, Sequence, Set

from hidisc.benchmarking.cells import SuiteCell
from hidisc.benchmarking.claims import Checked, Published, read_published
from hidisc.evaluation.classes import METRICS
from hidisc.evaluation.compare import Difference, estimate
from hidisc.evaluation.metrics import Metric, Value, say_needed
from hidisc.evaluation.scores import Scores
from hidisc.ground.errors import UserError
from hidisc.ground.text import plural
from hidisc.reporting.evaluated import EvaluatedModel, compare_models
from hidisc.reporting.table import DASH, LABELLED, NumberCell, NumberRow, Table, lay_rows, metric_cell
from hidisc.reporting.tables import warning_notes
from hidisc.settings.benchmark import SuiteConfig
from hidisc.settings.level_names import USUAL


def floors_table(suite: SuiteConfig, untrained: Set[str], models: Sequence[EvaluatedModel]) -> Table | None:
    """Coarsest and finest level: each method's metrics, and by how much it is better than the best of the floors.

    `untrained`: the names of the floors.
    """
    floors = [model for model in models if model.name in untrained]
    trained = [model for model in models if model.name not in untrained]
    if not floors or not trained:
        return None
    info = models[0].scores[0].info
    rows, words = [], info.level_names
    for level in dict.fromkeys((info.levels[0], info.levels[-1])):
        measured = {model.name: _measure(suite, model, level) for model in models}
        for metric in info.endpoint.list_metrics("floors"):
            best = max(floors, key=lambda floor: _rank(measured[floor.name], metric))
            for model in (*trained, *floors):
                against = _compare(suite, model, best, level, metric.key) if model in trained else ("", "")
                value = measured[model.name].get(metric.key)
                mean = value.percent() if value else DASH
                rows.append((words.title(level), metric.title, model.name, mean, *against))
    return Table(
        title="Each method against the floors",
        columns=("Level", "Metric", "Method", "Mean", "Minus the best floor", "Verdict"),
        rows=tuple(rows),
        lead=3,
        notes=(
            *warning_notes(models),
            "In percent and points, with intervals from resamples of the patients and of the trainings of each method. "
            "A floor is an encoder without the training: colour alone is the mean and the standard deviation of each "
            "channel of a patch, an untrained encoder has its starting weights, and vectors as they are or whitened "
            "are those that a training began with. The best floor is the one with the highest mean.",
        ),
    )


def _measure(suite: SuiteConfig, model: EvaluatedModel, level: str) -> dict[str, Value]:
    """Every metric of a model at a level; none where it was not judged there."""
    probe, evaluate = suite.evaluate.probes[0], suite.evaluate
    if not model.find_levels(probe, level):
        return {}
    return estimate(model.predictions(probe, level), evaluate.bootstrap, evaluate.seed)


def _rank(measured: Mapping[str, Value], metric: Metric) -> float:
    """The number by which floors are ranked, the best highest; one that is undefined is last."""
    value = measured[metric.key].value if metric.key in measured else None
    return -math.inf if value is None else metric.sign * value


def _compare(
    suite: SuiteConfig, model: EvaluatedModel, floor: EvaluatedModel, level: str, metric: str
) -> tuple[str, str]:
    """The difference to a floor with its interval, and the verdict in words."""
    evaluate = suite.evaluate
    try:
        found = compare_models(model, floor, evaluate.probes[0], level, evaluate.bootstrap, evaluate.seed)[metric]
    except UserError as error:
        return DASH, str(error)
    if found.value is None or found.low is None or found.high is None:
        return DASH, found.why
    shown = f"{100 * found.value:+.1f} [{100 * found.low:.1f}, {100 * found.high:.1f}]"
    return shown, say_verdict(found, floor.name)


def say_verdict(found: Difference, floor: str) -> str:
    """Whether a method is better than a floor, and how many patients could tell where these cannot."""
    if found.verdict != "unclear":
        return f"{found.verdict} than {floor}"
    needed = found.patients_needed if (found.value or 0) > 0 else None
    more = f"; {say_needed(needed)} {plural(found.cluster)} would tell a difference of this size" if needed else ""
    return f"no better than {floor}{more}"


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
    rows, words = [], next((model.words for model in models.values()), USUAL)
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
                names = (words.title(level), method, source)
                rows.append(NumberRow(names, cells, not used_labels, group=(level, source)))
    return lay_rows(
        f"{suite.title}: here and in the paper (table {name})",
        ("Level", "Method", "Source", *(METRICS[metric].title for metric in metrics)),
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
) -> list[NumberCell]:
    """The numbers found here."""
    probe = suite.evaluate.probes[0]
    return [metric_cell(model, probe, level, METRICS[metric]) if model else NumberCell(DASH) for metric in metrics]


def _find_printed(printed: Sequence[Published], dataset: str, level: str, metrics: Sequence[str]) -> list[NumberCell]:
    """The paper's numbers of one row on one data set; where it gives no standard deviation, it counts as 0."""
    known = {item.metric: item for item in printed if (item.dataset, item.level) == (dataset, level)}
    cells = []
    for metric in metrics:
        item = known.get(metric)
        mean, sd = (float(item.mean), float(item.sd or 0)) if item else (0.0, 0.0)
        cells.append(NumberCell(item.text, mean, mean - sd, mean + sd) if item else NumberCell(DASH))
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


def folds_table(suite: SuiteConfig, cells: Sequence[SuiteCell]) -> Table:
    """The numbers of every finished fold by itself; tables and claims pool them."""
    metrics = [metric for metric in METRICS.values() if "brief" in metric.places]
    rows = []
    for cell in (cell for cell in cells if cell.fold is not None and cell.is_done):
        scores = Scores.load(cell.scores(cell.points[-1]))
        words = scores.info.level_names
        for level in scores.info.list_levels():
            values = (level.metrics[metric.key].percent() for metric in metrics)
            names = (cell.row.name, str(cell.seed), str(cell.fold), words.word(level.level))
            rows.append((*names, str(level.units), *values))
    return Table(
        title="Each fold by itself",
        columns=("Method", "Seed", "Fold", "Level", "Units", *(metric.title for metric in metrics)),
        rows=tuple(rows),
        lead=4,
        notes=("In percent. A fold has few patients: the pooled numbers above are the ones to read.",),
    )


def cells_table(cells: Sequence[SuiteCell]) -> Table:
    """Every training of the suite and its state."""
    return Table(
        title="Every training",
        columns=("Method", "Seed", "Fold", "Steps", "State"),
        rows=tuple(
            (cell.row.name, str(cell.seed), str(cell.fold or DASH), f"{cell.steps:,}", _fate(cell)) for cell in cells
        ),
    )


def _fate(cell: SuiteCell) -> str:
    if cell.is_done:
        return "finished"
    return f"failed: {cell.failure}" if cell.failure else "not finished"

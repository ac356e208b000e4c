"""Every method against the floors: what colour alone tells, and what the encoder tells before it has learned."""

from collections.abc import Mapping, Sequence

from hidisc.benchmark.cells import list_rows
from hidisc.evaluation.compare import Difference, estimate, say_needed
from hidisc.evaluation.scores import Value
from hidisc.ground.errors import UserError
from hidisc.ground.text import plural
from hidisc.reporting.cells import metric_title
from hidisc.reporting.evaluated import EvaluatedModel, compare_models
from hidisc.reporting.notes import warning_notes
from hidisc.reporting.table import DASH, Table
from hidisc.settings.benchmark import SuiteConfig

_METRICS = ("auroc", "mca")


def floors_table(suite: SuiteConfig, models: Sequence[EvaluatedModel]) -> Table | None:
    """Coarsest and finest level: each method's metrics, and by how much it is better than the best of the floors."""
    untrained = {row.name for row in list_rows(suite) if row.encoder != "trained"}
    floors = [model for model in models if model.name in untrained]
    trained = [model for model in models if model.name not in untrained]
    if not floors or not trained:
        return None
    info = models[0].scores[0].info
    rows = []
    for level in dict.fromkeys((info.levels[0], info.levels[-1])):
        measured = {model.name: _measure(suite, model, level) for model in models}
        for metric in _METRICS:
            best = max(floors, key=lambda floor: _known(measured[floor.name], metric))
            for model in (*trained, *floors):
                against = _compare(suite, model, best, level, metric) if model in trained else ("", "")
                value = measured[model.name].get(metric)
                rows.append(
                    (level.capitalize(), metric_title(metric), model.name, value.percent() if value else DASH, *against)
                )
    return Table(
        title="Each method against the floors",
        columns=("Level", "Metric", "Method", "Mean", "Minus the best floor", "Verdict"),
        rows=tuple(rows),
        lead=3,
        notes=(
            *warning_notes(models),
            "In percent and points, with intervals from resamples of the patients and of the trainings of each method. "
            "A floor has learned nothing here: colour alone is the mean and the standard deviation of each channel of "
            "a patch, an untrained encoder has its starting weights. The best floor is the one with the highest mean.",
        ),
    )


def _measure(suite: SuiteConfig, model: EvaluatedModel, level: str) -> dict[str, Value]:
    """Every metric of a model at a level; none where it was not judged there."""
    probe, evaluate = suite.evaluate.probes[0], suite.evaluate
    if not model.find_levels(probe, level):
        return {}
    info = model.scores[0].info
    positive = info.classes.index(info.positive)
    return estimate(model.predictions(probe, level), positive, evaluate.bootstrap, evaluate.seed)


def _known(measured: Mapping[str, Value], metric: str) -> float:
    value = measured[metric].value if metric in measured else None
    return -1.0 if value is None else value


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

"""Notes of a table: all that must be read beside its numbers."""

from collections.abc import Iterable, Mapping, Sequence

from hidisc.reporting.cells import Cell, find_levels, first_info, metric_title, pluralise
from hidisc.reporting.evaluated import EvaluatedModel, is_one_test
from hidisc.reporting.table import DASH, LABELLED
from hidisc.settings.evaluate import BootstrapConfig

_ABBREVIATIONS = {
    "mca": "MCA, mean class accuracy",
    "auroc": "AUROC, area under the receiver operating characteristic curve",
    "auprc": "AUPRC, area under the precision-recall curve",
}


_NAMED = 8
"""Numbers of one reason that are named each."""


def warning_notes(models: Sequence[EvaluatedModel]) -> list[str]:
    """Leakage and classes that cannot be recognised, which stand beside every number."""
    pairs = ((sentence, model.name) for model in models for sentence in model.warnings)
    return [f"Warning: {sentence}" for sentence in _together(pairs, models)]


def metric_notes(
    models: Sequence[EvaluatedModel],
    judged: Sequence[EvaluatedModel],
    probe: str,
    levels: Sequence[str],
    names: Sequence[str],
    cells: Mapping[str, Sequence[Sequence[Cell]]],
    is_bold: bool,
) -> tuple[str, ...]:
    """All that must be said beside a table of metrics."""
    info = first_info(judged)
    averaged = (
        f"Sensitivity, specificity, AUROC and AUPRC are about {info.positive!r}."
        if len(info.classes) == 2
        else "AUROC and AUPRC are means over the classes, each against the rest."
    )
    remarks = (
        (remark, model.name)
        for model in judged
        for scores in model.scores
        for item in scores.info.probes
        if item.name == probe
        for remark in item.remarks
    )
    left_out = (
        (
            f"{found.left_out:,} {pluralise(level, found.left_out)} with patches of several labels left out.",
            model.name,
        )
        for level in levels
        for model in judged
        for found in find_levels(model, probe, level)[:1]
        if found.left_out
    )
    unjudged = [model.name for model in models if not model.scores]
    named = (
        (f"{level.capitalize()} {metric_title(name)} of {model.name}", cell)
        for level in levels
        for model, row in zip(judged, cells[level], strict=True)
        for name, cell in zip(names, row, strict=True)
    )
    return (
        *warning_notes(judged),
        *number_notes(judged),
        f"{averaged} {'; '.join(_ABBREVIATIONS[name] for name in names if name in _ABBREVIATIONS)}.",
        *bold_notes(judged, is_bold),
        *reason_notes((place, cell.value is None, cell.why) for place, cell in named),
        *label_notes(judged),
        *_together(left_out, judged),
        *_together(remarks, judged),
        *other_tests_notes(judged),
        *([f"Not evaluated, so not in the table: {', '.join(unjudged)}."] if unjudged else []),
    )


def label_notes(judged: Sequence[EvaluatedModel]) -> list[str]:
    """Patches and classes that nothing was asked about."""
    return _together(((sentence, model.name) for model in judged for sentence in model.label_notes), judged)


def number_notes(judged: Sequence[EvaluatedModel]) -> list[str]:
    """What stands in brackets, and over which seeds."""
    lines = ((_describe(model), model.name) for model in judged)
    return [f"In percent. {line}" if not place else line for place, line in enumerate(_together(lines, judged))]


def bold_notes(judged: Sequence[EvaluatedModel], is_bold: bool) -> list[str]:
    """What bold type and the dagger mean."""
    notes = []
    if is_bold:
        notes.append(
            "Bold: the best, and all whose upper end (mean + standard deviation, or that of the interval) reaches the "
            "best's mean less its standard deviation, or its value where it has an interval."
        )
    labelled = [f"{model.name} ({', '.join(model.labels_used)})" for model in judged if model.labels_used]
    if labelled:
        notes.append(f"{LABELLED} learned from labels, so out of competition: {', '.join(labelled)}.")
    return notes


def reason_notes(cells: Iterable[tuple[str, bool, str]]) -> list[str]:
    """Reasons of cells (what, whether it is undefined, why), each reason once."""
    about: dict[tuple[bool, str], list[str]] = {}
    for what, is_undefined, why in cells:
        if is_undefined or why:
            about.setdefault((is_undefined, why.rstrip(".")), []).append(what)
    return [
        f"{f'{DASH} undefined' if is_undefined else 'Mind'}: {_few(names)}: {why}."
        for (is_undefined, why), names in about.items()
    ]


def _few(names: Sequence[str]) -> str:
    """The names, or of many the first few."""
    return ", ".join(names) if len(names) <= _NAMED else f"{', '.join(names[:3])} and {len(names) - 3} more"


def other_tests_notes(judged: Sequence[EvaluatedModel]) -> list[str]:
    """Warn of rows that were not asked about the same patients."""
    if is_one_test(judged):
        return []
    return ["The rows were not all judged by the same patients, so that they cannot be compared with each other."]


def _describe(model: EvaluatedModel) -> str:
    infos = [scores.info for scores in model.scores]
    if len(infos) == 1:
        asked = BootstrapConfig.model_validate(infos[0].config.get("bootstrap", {}))
        if not asked.resamples:
            return "One evaluation, without an interval."
        drawn_units = pluralise(infos[0].levels[0])
        return f"One evaluation, [{100 * asked.interval:g} % interval] over {asked.resamples:,} draws of {drawn_units}."
    trained = sorted({str(info.model.seed) for info in infos})
    drawn = sorted({str(info.sampling["seed"]) for info in infos}) if infos[0].sampling["per_slide"] is not None else []
    seeds = f"training {pluralise('seed', len(trained))} {', '.join(trained)}"
    if drawn:
        seeds += f"; sampling {pluralise('seed', len(drawn))} {', '.join(drawn)}"
    return f"Mean (standard deviation of the sample, n - 1) over {len(infos)} evaluations: {seeds}."


def _together(pairs: Iterable[tuple[str, str]], models: Sequence[EvaluatedModel]) -> list[str]:
    """Sentences, each once, with the names of those it is about unless it is about all."""
    about: dict[str, list[str]] = {}
    for sentence, name in pairs:
        names = about.setdefault(sentence, [])
        if name not in names:
            names.append(name)
    return [
        sentence if len(names) == len(models) else f"{', '.join(names)}: {sentence}"
        for sentence, names in about.items()
    ]

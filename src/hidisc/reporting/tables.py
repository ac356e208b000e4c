"""The tables of a report: scores, differences, warnings and notes."""

from collections.abc import Iterable, Sequence
from itertools import product

import numpy as np

from hidisc.evaluation.classes import Classes
from hidisc.evaluation.floors import FLOORS
from hidisc.evaluation.metrics import Metric
from hidisc.evaluation.predictions import ENCODER
from hidisc.ground.errors import UserError
from hidisc.ground.text import count, drop_numbers, merge_alike, merge_numbers, plural
from hidisc.reporting.evaluated import Comparison, EvaluatedModel, is_one_test
from hidisc.reporting.table import (
    DASH,
    LABELLED,
    NumberRow,
    Table,
    lay_rows,
    make_cell,
    method_name,
    metric_cell,
    percent,
    plain,
    show_spread,
    signed,
)
from hidisc.settings.level_names import LEVELS, LevelNames

_NAMED = 8
"""Most numbers with the same reason that are listed by name."""
_FEW = 6
"""Units below which an interval over them says little: chance alone favours one method in all 5 once in 16 times."""


def gather_warnings(models: Sequence[EvaluatedModel]) -> list[str]:
    """Warnings on leakage and missing classes; names of models stand before a warning that is not about all of them."""
    return together(((sentence, model.name) for model in models for sentence in model.warnings), models)


def warning_notes(models: Sequence[EvaluatedModel]) -> list[str]:
    """Warnings as notes of a table, because they must stand beside every number."""
    return [f"Warning: {sentence}" for sentence in gather_warnings(models)]


def few_notes(units: Iterable[tuple[str, int]], level: str) -> list[str]:
    """A note on the numbers (title, units of a level) of so few units that their interval says little."""
    few = [f"{what} is of {count(number, level)}" for what, number in units if 0 < number < _FEW]
    if not few:
        return []
    return [
        f"Few units: {', '.join(few)}. An interval over fewer than {_FEW} says little, even a narrow one such as "
        "[0.0, 0.0]."
    ]


def list_reasons(numbers: Iterable[tuple[str, bool, str]]) -> list[str]:
    """Notes from (title, whether undefined, reason) of numbers; reasons that differ in a count become one."""
    about: dict[tuple[bool, str], list[tuple[str, str]]] = {}
    for what, is_undefined, why in numbers:
        reason = why.rstrip(".")
        if is_undefined or reason:
            key = reason if is_undefined else drop_numbers(reason)
            about.setdefault((is_undefined, key), []).append((what, reason))
    notes = []
    for (is_undefined, _), members in about.items():
        names, reason = [what for what, _ in members], merge_numbers([reason for _, reason in members])
        if is_undefined:
            few = names if len(names) <= _NAMED else [*names[:2], f"{names[2]} and {len(names) - 3} more"]
            notes.append(f"{DASH} undefined: {', '.join(few)}: {reason}.")
        else:
            few = names if len(names) <= _NAMED else ["several numbers"]
            notes.append(f"Note: {reason[0].upper()}{reason[1:]} ({', '.join(few)}).")
    return notes


def together(pairs: Iterable[tuple[str, str]], models: Sequence[EvaluatedModel]) -> list[str]:
    """Each sentence of pairs (sentence, model) once, behind the names of its models unless it is about all models."""
    about: dict[str, dict[str, None]] = {}
    for sentence, name in pairs:
        about.setdefault(sentence, {})[name] = None
    return [
        sentence if len(names) == len(models) else f"{', '.join(names)}: {sentence}"
        for sentence, names in about.items()
    ]


def _note_scores(
    judged: Sequence[EvaluatedModel],
    rows: Sequence[NumberRow],
    titles: Sequence[str],
    few: Iterable[str],
    explained: Iterable[str] = (),
    more: Iterable[str] = (),
) -> tuple[str, ...]:
    """All notes on a table of scores, the most important first; `few`, `explained` and `more` are of this table alone.

    `titles` are those of the columns of numbers.
    """
    brackets = together(((_explain_brackets(model), model.name) for model in judged), judged)
    notes = [*warning_notes(judged), f"In percent. {brackets[0]}", *brackets[1:], *explained]
    if sum(not model.labels_used for model in judged) > 1:
        notes.append(
            "Bold: the best value, and every value whose error range (the interval, or mean ± standard deviation) "
            "overlaps that of the best; where all of them overlap, nothing is bold."
        )
    labelled = [f"{model.name} ({', '.join(model.labels_used)})" for model in judged if model.labels_used]
    if labelled:
        notes.append(f"{LABELLED} learned from labels, so it is never bold: {', '.join(labelled)}.")
    notes += few
    notes += list_reasons(
        (f"{row.names[0]} {title} of {row.names[1]}", cell.value is None, cell.why)
        for row in rows
        for title, cell in zip(titles, row.cells, strict=True)
    )
    notes += more
    if not is_one_test(judged):
        notes.append(
            "The rows were not all judged by the same patients, so that they cannot be compared with each other."
        )
    return tuple(notes)


def _explain_brackets(model: EvaluatedModel) -> str:
    """What stands in brackets beside the numbers of a model, and over which seeds."""
    infos = [scores.info for scores in model.scores]
    if len(infos) == 1:
        config = model.bootstrap
        if not config.resamples:
            return "One evaluation, without an interval."
        return (
            f"One evaluation; in brackets the {100 * config.interval:g} % interval over {config.resamples:,} bootstrap "
            f"resamples of {plural(infos[0].levels[0])}."
        )
    trained = sorted({str(info.model.seed) for info in infos if info.model.seed is not None})
    seeds = f"training {plural('seed', len(trained))} {', '.join(trained)}" if trained else "no training"
    if infos[0].sampling["per_slide"] is not None:
        drawn = sorted({str(info.sampling["seed"]) for info in infos})
        seeds += f"; sampling {plural('seed', len(drawn))} {', '.join(drawn)}"
    return f"Mean (standard deviation of the sample, n - 1) over {len(infos)} evaluations: {seeds}."


def name_probe(probe: str, words: LevelNames) -> str:
    """The title of a probe in a heading."""
    titles = {"knn": "Nearest neighbours", "linear": "Linear probe", "mil": f"Attention over {words.plural('patch')}"}
    return titles[probe]


def counts_table(model: EvaluatedModel) -> Table:
    """Patients, slides and patches of each class of the reference and of the test patients.

    Of embeddings that were not evaluated: of every label and split.
    """
    info, words = model.info, model.words
    levels: tuple[str, ...] = info.levels if info else LEVELS
    if info is None:
        units = _count_embedded(model)
        notes = ["Embedded, not evaluated: run `hidisc evaluate`."]
    else:
        titles = {
            part: f"{which} {words.plural('patient')} ({', '.join(info.config[part])})"
            for part, which in (("bank", "Reference"), ("queries", "Test"))
        }
        units = {(label, title): {} for label in info.endpoint.classes for title in titles.values()}
        units |= {(item.label, titles[item.part]): item.units for item in info.counts}
        notes = [*warning_notes([model]), *model.label_notes]
        if any(scores.info.counts != info.counts for scores in model.scores):
            notes.append(f"Of {len(model.scores)} evaluations, which differ in their counts, the first is shown.")
    return Table(
        title=f"Data of {model.name}",
        columns=("Class", "Split", *(words.plural(level).capitalize() for level in levels)),
        rows=tuple((*names, *(f"{counts.get(level, 0):,}" for level in levels)) for names, counts in units.items()),
        notes=tuple(notes),
        lead=2,
    )


def _count_embedded(model: EvaluatedModel) -> dict[tuple[str, str], dict[str, int]]:
    """Units of every label and split of embeddings, by level."""
    assert model.first_embeddings is not None
    table = model.first_embeddings.table
    labels, splits = (
        np.array([str(name or f"no {kind}") for name in table.column(kind)], object) for kind in ("label", "split")
    )
    units = {}
    for label, split in product(sorted(set(labels)), sorted(set(splits))):
        rows = (labels == label) & (splits == split)
        units[label, split] = {level: len(set(table.column(level)[rows])) for level in ("patient", "slide")}
        units[label, split]["patch"] = int(rows.sum())
    return units


def metrics_table(judged: Sequence[EvaluatedModel], probe: str) -> Table:
    """Every model at every level by one probe, finest level first."""
    info, words = judged[0].scores[0].info, judged[0].words
    levels = [level for level in reversed(info.levels) if any(model.find_levels(probe, level) for model in judged)]
    if not levels:
        raise UserError(f"nothing here was evaluated by the probe {probe!r}, so there is no table of it.")
    metrics = info.endpoint.list_metrics("table")
    titles = [metric.title for metric in metrics]
    rows = [
        NumberRow(
            (words.title(level), method_name(model)),
            [metric_cell(model, probe, level, metric) for metric in metrics],
            not model.labels_used,
        )
        for level in levels
        for model in judged
    ]
    scored = [
        (level, model, found[0]) for level in levels for model in judged if (found := model.find_levels(probe, level))
    ]
    units = {level: found.units for level, _, found in reversed(scored)}
    left_out = (
        (f"{count(found.left_out, level)} with patches of several labels left out.", model.name)
        for level, model, found in scored
        if found.left_out
    )
    remarks = {
        model.name: merge_alike(remark for scores in model.scores for remark in scores.info.remarks.get(probe, ()))
        for model in judged
    }
    notes = _note_scores(
        judged,
        rows,
        titles,
        few=[note for level in levels for note in few_notes([(f"the {level} level", units[level])], level)],
        explained=explain_metrics(metrics, info.endpoint),
        more=[
            *together(((note, model.name) for model in judged for note in model.label_notes), judged),
            *together(left_out, judged),
            *together(((remark, name) for name, found in remarks.items() for remark in found), judged),
        ],
    )
    title = f"{name_probe(probe, words)}: how well the classes are predicted"
    return lay_rows(title, ("Level", "Method", *titles), rows, notes)


def explain_metrics(metrics: Sequence[Metric], endpoint: Classes) -> list[str]:
    """What the metrics of a table mean, and which class those of one class are about."""
    averaged = " and ".join(", ".join(metric.title for metric in metrics if metric.each_class).rsplit(", ", 1))
    about = (
        f"about {endpoint.positive_class!r}"
        if len(endpoint.classes) == 2
        else "means over the classes, each against the rest"
    )
    meanings = "; ".join(f"{metric.title}: {metric.meaning}" for metric in metrics)
    return [*([f"{averaged} are {about}."] if averaged else []), f"{meanings}."]


def by_class_table(judged: Sequence[EvaluatedModel], probe: str, level: str) -> Table:
    """Every class against the rest, at one level by one probe."""
    endpoint, words = judged[0].scores[0].info.endpoint, judged[0].words
    classes, metrics = endpoint.classes, endpoint.list_class_metrics()
    titles = [metric.title for metric in metrics]
    scored = next((found[0] for model in judged if (found := model.find_levels(probe, level))), None)
    units = {label: sum(scored.confusion[code]) if scored else 0 for code, label in enumerate(classes)}
    rows = [
        NumberRow(
            (f"{label} ({words.count(units[label], level)})" if scored else label, method_name(model)),
            [
                make_cell([row.by_class[label][metric.key] for row in model.find_levels(probe, level)], metric.sign)
                for metric in metrics
            ],
            not model.labels_used,
        )
        for label in classes
        for model in judged
    ]
    few = few_notes(((repr(label), number) for label, number in units.items()), level)
    title = f"{name_probe(probe, words)}, {words.word(level)} level: each class against the rest"
    return lay_rows(title, ("Class", "Method", *titles), rows, _note_scores(judged, rows, titles, few))


def scales_table(models: Sequence[EvaluatedModel]) -> Table:
    """Every model at every scale and level, by the first evaluation and probe of each, beside its floors."""
    metrics = models[0].scores[0].info.endpoint.list_metrics("brief")
    rows = []
    for model in models:
        info = model.scores[0].info
        for scale in info.scales:
            for subject in (ENCODER, *(floor.subject for floor in info.floors)):
                name = model.name if subject == ENCODER else f"{model.name}: {FLOORS[subject].title}"
                for level in reversed(info.list_levels(subject=subject, scale=scale)):
                    values = (level.metrics[metric.key] for metric in metrics)
                    cells = (DASH if value.value is None else value.percent() for value in values)
                    rows.append((f"{scale:g} um/px", name, model.words.title(level.level), *cells))
    note = (
        "Patches of one scale, judged by reference patches of the same scale, in %; the other tables pool all scales."
    )
    titles = (metric.title for metric in metrics)
    return Table("Scale by scale", ("Scale", "Encoder", "Level", *titles), tuple(rows), (note,), lead=3)


def diagnostics_table(judged: Sequence[EvaluatedModel]) -> Table:
    """Properties of the embeddings of every model, with a sentence on the meaning of each."""
    names = dict.fromkeys(item.name for model in judged for scores in model.scores for item in scores.info.diagnostics)
    rows: list[tuple[str, ...]] = []
    for name in names:
        for model in judged:
            items = [item for scores in model.scores for item in scores.info.diagnostics if item.name == name]
            if items:
                values = [item.value for item in items if item.value is not None]
                shown = DASH if len(values) < len(items) else show_spread(values, plain)
                chance = DASH if items[0].chance is None else plain(items[0].chance)
                quantity, _, group = name.partition(": ")
                title = f"{quantity}: {model.words.word(group)}" if group else name
                rows.append((title, method_name(model), shown, chance, items[0].meaning))
    notes = warning_notes(judged)
    if any(len(model.scores) > 1 for model in judged):
        notes.append(
            "Of several evaluations: mean (standard deviation of the sample, n - 1), and what the first one means."
        )
    return Table(
        title="Properties of the embeddings",
        columns=("Property", "Method", "Value", "By chance", "What it means"),
        rows=tuple(rows),
        notes=tuple(notes),
        lead=2,
    )


def comparison_table(comparisons: Sequence[Comparison]) -> Table:
    """The difference of every model from the first, by bootstrap resamples of the same patients for both."""
    first, config = comparisons[0].first, comparisons[0].config
    info, words = first.scores[0].info, first.words
    metrics = info.endpoint.list_metrics("table")
    rows: list[tuple[str, ...]] = []
    notes, bold, heading = [], set(), name_probe(comparisons[0].probe, words)
    for item in comparisons:
        model, differences = item.model, item.differences
        if not differences:
            notes.append(f"{model.name} is not compared: {item.refusal}")
            continue
        for metric in metrics:
            gap = differences[metric.key]
            if gap.verdict != "unclear":
                bold.add((len(rows), 2))
            ends = DASH if gap.low is None or gap.high is None else f"[{signed(gap.low)}, {signed(gap.high)}]"
            value = DASH if gap.value is None else signed(gap.value)
            share = DASH if gap.share is None else percent(gap.share)
            rows.append((method_name(model), metric.title, value, ends, share))
        difference = differences[metrics[0].key]
        notes.append(
            f"{model.name}: judged by the same {count(difference.patients, difference.cluster)} as {first.name}; "
            f"{difference.counted_trainings}."
        )
        gaps = [(metric.title, differences[metric.key]) for metric in metrics]
        notes += list_reasons((f"{title} of {model.name}", gap.value is None, gap.why) for title, gap in gaps)
    return Table(
        title=f"{heading}, {words.word(comparisons[0].level)} level: better than {first.name}?",
        columns=("Method", "Metric", "Difference", f"{100 * config.interval:g} % interval", "Share"),
        rows=tuple(rows),
        notes=(
            *warning_notes([first, *(item.model for item in comparisons)]),
            f"Difference: percentage points above {first.name}; of several evaluations, that of the means. "
            f"Interval: over {config.resamples:,} bootstrap resamples of {plural(info.levels[0])}, the same for both "
            "methods, and of the trainings of each where it has several. "
            "Share: percent of the resamples in which the method is better. Bold: the interval does not contain 0.",
            *notes,
        ),
        lead=2,
        bold=frozenset(bold),
    )

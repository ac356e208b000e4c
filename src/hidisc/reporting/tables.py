"""Tables of a report, in the layouts of the paper's."""

from collections.abc import Sequence

import numpy as np

from hidisc.evaluation.compare import Difference
from hidisc.ground.errors import UserError
from hidisc.reporting.cells import (
    Cell,
    class_cell,
    find_best,
    find_levels,
    first_info,
    method_name,
    metric_cell,
    metric_title,
    percent,
    plain,
    pluralise,
    show_spread,
    signed,
)
from hidisc.reporting.evaluated import EvaluatedModel, compare_models
from hidisc.reporting.notes import (
    bold_notes,
    label_notes,
    metric_notes,
    number_notes,
    other_tests_notes,
    reason_notes,
    warning_notes,
)
from hidisc.reporting.table import DASH, Table
from hidisc.settings.evaluate import BootstrapConfig

MANY = ("accuracy", "mca", "auprc", "auroc")
"""Metrics of more than two classes, as in the paper's extended SRH table, and AUROC."""
TWO = ("accuracy", "mca", "sensitivity", "specificity", "auroc", "auprc")
"""Metrics of two classes, as in the paper's extended TCGA table."""
BY_CLASS = ("sensitivity", "specificity", "auroc", "auprc")
PROBES = {"knn": "Nearest neighbours", "linear": "Linear probe", "mil": "Attention over patches"}


def counts_table(model: EvaluatedModel) -> Table:
    """Patients, slides and patches of each class in the bank and in the queries, as the paper's tables of data."""
    info = model.info
    if info is None:
        return _count_embedded(model)
    parts = {part: f"{part.capitalize()} ({', '.join(info.config[part])})" for part in ("bank", "queries")}
    counted: dict[tuple[str, str], dict[str, int]] = {(count.label, count.part): count.units for count in info.counts}
    rows = [
        (label, *(f"{counted.get((label, part), {}).get(level, 0):,}" for part in parts for level in info.levels))
        for label in info.classes
    ]
    notes = [*warning_notes([model]), *label_notes([model])]
    if any(scores.info.counts != info.counts for scores in model.scores):
        notes.append(f"Of {len(model.scores)} evaluations, which differ in their counts, the first is shown.")
    return Table(
        title=f"Data of {model.name}",
        columns=("Class", *(pluralise(level).capitalize() for _ in parts for level in info.levels)),
        rows=tuple(rows),
        notes=tuple(notes),
        groups=(("", 1), *((title, len(info.levels)) for title in parts.values())),
    )


def metrics_table(models: Sequence[EvaluatedModel], probe: str) -> Table:
    """Every model at every level by one probe: the paper's extended SRH layout, or TCGA's for two classes."""
    judged = [model for model in models if model.scores]
    info = first_info(judged)
    levels = [level for level in reversed(info.levels) if any(find_levels(model, probe, level) for model in judged)]
    if not levels:
        raise UserError(f"nothing here was asked by {probe!r}, so there is no table of it.")
    names = TWO if len(info.classes) == 2 else MANY
    cells = {
        level: [[metric_cell(model, probe, level, name) for name in names] for model in judged] for level in levels
    }
    methods = [method_name(model) for model in judged]
    competing = [not model.labels_used for model in judged]
    bold = {level: find_best(cells[level], competing) for level in levels}
    titles = [metric_title(name) for name in names]
    notes = metric_notes(models, judged, probe, levels, names, cells, any(bold.values()))
    title = f"{PROBES.get(probe, probe)}: how well the classes are told apart"
    if len(info.classes) == 2:
        return Table(
            title=title,
            columns=("Level", "Method", *titles),
            rows=tuple(
                (level.capitalize(), method, *(cell.text for cell in row))
                for level in levels
                for method, row in zip(methods, cells[level], strict=True)
            ),
            notes=notes,
            lead=2,
            blocks=(len(judged),) * len(levels),
            bold=frozenset(
                (block * len(judged) + row, 2 + place)
                for block, level in enumerate(levels)
                for row, place in bold[level]
            ),
        )
    return Table(
        title=title,
        columns=("Method", *titles * len(levels)),
        rows=tuple(
            (method, *(cell.text for level in levels for cell in cells[level][row]))
            for row, method in enumerate(methods)
        ),
        notes=notes,
        groups=(("", 1), *((f"{level.capitalize()} level metrics", len(names)) for level in levels)),
        bold=frozenset(
            (row, 1 + block * len(names) + place) for block, level in enumerate(levels) for row, place in bold[level]
        ),
    )


def by_class_table(models: Sequence[EvaluatedModel], probe: str, level: str) -> Table:
    """Every class against the rest, at one level by one probe; a block a class."""
    judged = [model for model in models if model.scores]
    info = first_info(judged)
    competing = [not model.labels_used for model in judged]
    rows: list[tuple[str, ...]] = []
    bold: set[tuple[int, int]] = set()
    every: list[list[Cell]] = []
    for code, label in enumerate(info.classes):
        block = [[class_cell(model, probe, level, label, name) for name in BY_CLASS] for model in judged]
        bold |= {(len(rows) + row, 2 + place) for row, place in find_best(block, competing)}
        units = [sum(found[0].confusion[code]) for model in judged if (found := find_levels(model, probe, level))]
        shown = f"{label} ({units[0]:,})" if units else label
        rows += [
            (shown, method_name(model), *(cell.text for cell in row)) for model, row in zip(judged, block, strict=True)
        ]
        every += block
    names = [
        f"{metric_title(name)} of {label!r} by {model.name}"
        for label in info.classes
        for model in judged
        for name in BY_CLASS
    ]
    cells = [cell for row in every for cell in row]
    notes = [
        *warning_notes(judged),
        *number_notes(judged),
        f"In brackets behind a class: how many {pluralise(level)} of it were judged.",
        *bold_notes(judged, bool(bold)),
        *reason_notes((what, cell.value is None, cell.why) for what, cell in zip(names, cells, strict=True)),
        *other_tests_notes(judged),
    ]
    return Table(
        title=f"{PROBES.get(probe, probe)}, {level} level: each class against the rest",
        columns=("Class", "Method", *map(metric_title, BY_CLASS)),
        rows=tuple(rows),
        notes=tuple(notes),
        lead=2,
        blocks=(len(judged),) * len(info.classes),
        bold=frozenset(bold),
    )


def diagnostics_table(models: Sequence[EvaluatedModel]) -> Table:
    """Properties of the embeddings, with what they mean; a block a property."""
    judged = [model for model in models if model.scores]
    names = dict.fromkeys(item.name for model in judged for scores in model.scores for item in scores.info.diagnostics)
    rows: list[tuple[str, ...]] = []
    blocks = []
    for name in names:
        before = len(rows)
        for model in judged:
            found = [item for scores in model.scores for item in scores.info.diagnostics if item.name == name]
            if found:
                values = [item.value for item in found if item.value is not None]
                shown = DASH if len(values) < len(found) or not values else show_spread(values, plain)
                chance = DASH if found[0].chance is None else plain(found[0].chance)
                rows.append((name, method_name(model), shown, chance, found[0].meaning))
        blocks.append(len(rows) - before)
    notes = [*warning_notes(judged)]
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
        blocks=tuple(blocks),
    )


def comparison_table(
    models: Sequence[EvaluatedModel], probe: str, level: str, config: BootstrapConfig | None = None, seed: int = 0
) -> Table:
    """Every model against the first, by draws of the same patients for both; a block a model."""
    config = config or BootstrapConfig()
    judged = [model for model in models if find_levels(model, probe, level)]
    info = first_info(judged)
    names = TWO if len(info.classes) == 2 else MANY
    first, *others = judged
    rows: list[tuple[str, ...]] = []
    blocks, notes, bold = [], [], set()
    for model in others:
        try:
            found = compare_models(model, first, probe, level, config, seed)
        except UserError as error:
            notes.append(f"{model.name} is not compared: {error}")
            continue
        bold |= {(len(rows) + place, 2) for place, name in enumerate(names) if _is_apart(found[name])}
        rows += [(method_name(model), metric_title(name), *_gap(found[name])) for name in names]
        blocks.append(len(names))
        one = found[names[0]]
        notes.append(
            f"{model.name}: judged by the same {one.patients:,} {pluralise(one.cluster, one.patients)} as "
            f"{first.name}; {one.counted_trainings}."
        )
        notes += reason_notes(
            (f"{metric_title(name)} of {model.name}", gap.value is None, gap.why)
            for name, gap in found.items()
            if name in names
        )
    return Table(
        title=f"{PROBES.get(probe, probe)}, {level} level: better than {first.name}?",
        columns=("Method", "Metric", "Difference", f"{100 * config.interval:g} % interval", "Share"),
        rows=tuple(rows),
        notes=(
            *warning_notes(judged),
            f"Difference: percentage points above {first.name}; of several evaluations, that of the means. "
            f"Interval: over {config.resamples:,} draws of {pluralise(info.levels[0])}, the same for both, and of each "
            "one's trainings where it has several. "
            "Share: percent of the draws in which the method is the better one. Bold: the interval leaves out 0.",
            *notes,
        ),
        lead=2,
        blocks=tuple(blocks),
        bold=frozenset(bold),
    )


def _count_embedded(model: EvaluatedModel) -> Table:
    """Counts of embeddings that were not evaluated: every split of the store, every label."""
    table = next(found for found in model.embeddings if found is not None).table
    levels = ("patient", "slide")
    splits, labels = table.column("split"), table.column("label")
    units = [table.column(level) for level in levels]
    shown = sorted({str(split or "no split") for split in splits})
    split_of, label_of = (
        np.array([str(name or f"no {kind}") for name in names], object)
        for names, kind in ((splits, "split"), (labels, "label"))
    )
    rows = []
    for label in sorted(set(label_of)):
        cells = [label]
        for split in shown:
            there = (split_of == split) & (label_of == label)
            cells += [f"{len(set(names[there])):,}" for names in units] + [f"{int(there.sum()):,}"]
        rows.append(tuple(cells))
    return Table(
        title=f"Data of {model.name}",
        columns=("Class", *("Patients", "Slides", "Patches") * len(shown)),
        rows=tuple(rows),
        notes=("Embedded, not evaluated: run `hidisc evaluate`.",),
        groups=(("", 1), *((split.capitalize(), 3) for split in shown)),
    )


def _gap(gap: Difference) -> tuple[str, str, str]:
    """Difference, interval and share of one metric."""
    ends = DASH if gap.low is None or gap.high is None else f"[{signed(gap.low)}, {signed(gap.high)}]"
    return (
        DASH if gap.value is None else signed(gap.value),
        ends,
        DASH if gap.share is None else percent(gap.share),
    )


def _is_apart(gap: Difference) -> bool:
    """Whether one of the two is surely the better."""
    return gap.verdict != "unclear"

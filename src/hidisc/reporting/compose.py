"""The page of a report, from top to bottom; its figures and tables are written on the way."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from hidisc.ground.machine import versions
from hidisc.reporting import tables
from hidisc.reporting.curves import add_confusion, draw_curves, draw_scales, draw_training
from hidisc.reporting.evaluated import Comparison, EvaluatedModel, compare_with_first
from hidisc.reporting.figures import Drawing, FigureFolder
from hidisc.reporting.html import fill_template, list_files
from hidisc.reporting.patch_map import make_map
from hidisc.reporting.patients import patients_table
from hidisc.reporting.points import PatchReader
from hidisc.reporting.sheets import make_sheets, show_duplicates
from hidisc.reporting.table import Table, write_tables
from hidisc.reporting.tables import gather_warnings
from hidisc.reporting.verdict import describe, find_verdict
from hidisc.settings.config import to_yaml
from hidisc.settings.report import ReportConfig

Say = Callable[[str], None]
_PACKAGES = ("hidisc", "numpy", "scikit-learn", "openTSNE", "matplotlib", "torch")

_ONE_TRAINING = (
    "There is one training per encoder, so these sentences are about the encoders, not about their methods: another "
    "seed may give another result. To compare methods, give the scores of several seeds of each."
)


def compose(models: Sequence[EvaluatedModel], files: Path, config: ReportConfig, say: Say) -> str:
    """The page as HTML, from top to bottom; figures and tables are written into `files` on the way."""
    judged = [model for model in models if model.scores]
    drawn = FigureFolder(files / "figures", [model.name for model in models])
    info = judged[0].scores[0].info if judged else None
    levels = [level for level in info.levels if info.find(level) is not None] if info else []
    scaled = [model for model in judged if model.scores[0].info.scales]
    compared: list[Comparison] = []
    if info:
        seed = int(info.config.get("seed", 0))
        compared = compare_with_first(judged, info.probes[0], levels[0], judged[0].bootstrap, seed)
    are_of_methods = all(item.differences["accuracy"].is_of_methods for item in compared if item.differences)
    data = {f"data-{drawn.slug(model.name)}": tables.counts_table(model) for model in models}
    probes = _make_metrics(judged, levels, scaled, compared)
    patients = {f"patients-{drawn.slug(model.name)}": patients_table(model, levels[0]) for model in judged}
    diagnostics = {"diagnostics": tables.diagnostics_table(judged)} if judged else {}
    made = {**data, **{name: table for part in probes for name, table in part.items()}, **patients, **diagnostics}
    write_tables(made, files / "tables")
    shown, shared = _show_probes(probes)
    say("drawing confusion matrices and curves ...")
    confusions = _draw_confusions(judged, levels, drawn)
    curves = _draw_curves(judged, levels, scaled, drawn)
    reader = PatchReader()
    patch_map = make_map(models, reader, drawn, config, say)
    sheets, no_sheets = make_sheets(judged, reader, drawn, config)
    training, logged = None, {model.name: model.run_metrics for model in models if model.run_metrics}
    if logged:
        training = drawn.add("training", draw_training(logged, models[0].words), "What was logged during training")
    return fill_template(
        "page.html",
        models[0].words,
        "page.js",
        title=_choose_title(models, config),
        names=[model.name for model in models],
        warnings=gather_warnings(models),
        duplicates=show_duplicates(judged, reader),
        verdicts=[find_verdict(model) for model in models],
        compared=[sentence for item in compared for sentence in _say_better(item)],
        compared_note="" if are_of_methods else _ONE_TRAINING,
        abouts=_describe_all(models, list(data.values())),
        probes=shown,
        shared_notes=shared,
        patients=list(patients.items()),
        files_folder=files.name,
        confusions=confusions,
        curves=curves,
        map=patch_map,
        sheets=sheets,
        no_sheets=no_sheets,
        training=training,
        diagnostics=made.get("diagnostics"),
        versions=versions(*_PACKAGES),
        settings=to_yaml(config),
        files=list_files(drawn.names, made, f"{files.name}/"),
    )


def _choose_title(models: Sequence[EvaluatedModel], config: ReportConfig) -> str:
    """The title of the user; the default title of embeddings that were not evaluated says so."""
    if config.title != ReportConfig().title or any(model.scores for model in models):
        return config.title
    return f"Embeddings of {', '.join(model.name for model in models)}"


def _make_metrics(
    judged: Sequence[EvaluatedModel],
    levels: Sequence[str],
    scaled: Sequence[EvaluatedModel],
    compared: Sequence[Comparison],
) -> list[dict[str, Table]]:
    """Tables by the names of their files, a mapping per probe; the first probe has tables of single classes as well."""
    probes = dict.fromkeys(probe for model in judged for scores in model.scores for probe in scores.info.probes)
    parts = [{f"metrics-{probe}": tables.metrics_table(judged, probe)} for probe in probes]
    at = {level: f"{next(iter(probes))}-{judged[0].words.file_part(level)}" for level in levels}
    if compared:
        parts[0][f"comparison-{at[levels[0]]}"] = tables.comparison_table(compared)
    if scaled:
        parts[0]["scales"] = tables.scales_table(scaled)
    for level in levels:
        parts[0][f"classes-{at[level]}"] = tables.by_class_table(judged, next(iter(probes)), level)
    return parts


def _show_probes(probes: Sequence[Mapping[str, Table]]) -> tuple[list[dict[str, list[Table]]], list[str]]:
    """Tables in the order of the page, those of classes at finer levels folded; and the notes that several share."""
    times = Counter(note for probe in probes for table in probe.values() for note in table.notes)
    shared = [note for note in times if times[note] > 1 and not note.startswith("Warning: ")]
    parts = []
    for probe in probes:
        shown = [table.without(shared) for table in probe.values()]
        folded = [name.startswith("classes-") for name in probe]
        first = folded.index(True) + 1 if any(folded) else len(shown)
        parts.append({"tables": shown[:first], "folded": shown[first:]})
    return parts, shared


def _describe_all(models: Sequence[EvaluatedModel], data: Sequence[Table]) -> list[dict[str, Any]]:
    """Facts, data and settings of each model; data that several models share are shown once."""
    abouts = []
    seen: dict[object, str] = {}
    for model, table in zip(models, data, strict=True):
        facts = list(describe(model))
        same = seen.setdefault((table.columns, table.rows), model.name)
        if same != model.name:
            facts.append(("Data", f"the same as of {same}"))
        shown = table if same == model.name else None
        settings = yaml.safe_dump(model.info.config, sort_keys=False, allow_unicode=True) if model.info else ""
        abouts.append({"name": model.name, "facts": facts, "table": shown, "settings": settings})
    return abouts


def _say_better(compared: Comparison) -> list[str]:
    """Sentences on whether a model is better than the first, one per headline metric."""
    names = compared.model.name, compared.first.name
    if not compared.differences:
        return [f"{names[0]} and {names[1]} were not compared: {compared.refusal}"]
    sentences = [
        compared.differences[metric.key].sentence(f"{compared.level} {metric.in_text}", *names)
        for metric in compared.first.scores[0].info.endpoint.list_metrics("headline")
    ]
    return [f"{'N' if text.startswith('no ') else text[0]}{text[1:]}." for text in sentences]


def _draw_confusions(
    judged: Sequence[EvaluatedModel], levels: Sequence[str], drawn: FigureFolder
) -> list[list[Drawing]]:
    """Confusion matrices of the first probe: a group per level, the models side by side; one group of one model."""
    groups: list[list[Drawing]] = [[] for _ in levels]
    for level, group in zip(levels, groups, strict=True):
        for model in judged:
            scored = model.scores[0].info.find(level)
            if scored is not None and scored.units:
                ordinal = f", first of {len(model.scores)} evaluations" if len(model.scores) > 1 else ""
                group.append(add_confusion(drawn, model, level, scored.confusion, ordinal))
    return groups if len(judged) > 1 else [[drawing for group in groups for drawing in group]]


def _draw_curves(
    judged: Sequence[EvaluatedModel], levels: Sequence[str], scaled: Sequence[EvaluatedModel], drawn: FigureFolder
) -> list[Drawing]:
    """Accuracy over scales where there are several; ROC and precision-recall of the first probe, a figure per level."""
    drawings = []
    if scaled:
        drawings.append(drawn.add("scales", draw_scales(scaled), "Accuracy at every scale, by the first probe"))
    for level in levels:
        info, words = judged[0].scores[0].info, judged[0].words
        probe = info.probes[0]
        lines = {
            model.name: model.scores[0].predictions(probe, level) for model in judged if model.find_levels(probe, level)
        }
        if any(map(len, lines.values())):
            figure = draw_curves(lines, info.endpoint.positive, f"{words.title(level)} level")
            caption = f"ROC and precision-recall, {words.word(level)} level"
            drawings.append(drawn.add(f"curves-{words.file_part(level)}", figure, caption))
    return drawings

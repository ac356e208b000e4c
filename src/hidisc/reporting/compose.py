"""All that the page of a report shows, gathered in its order; figures and tables are written on the way."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import yaml

from hidisc.evaluation.scores import ScoresInfo
from hidisc.ground.files import name_related
from hidisc.ground.machine import versions
from hidisc.ground.seeds import Purpose, make_rng
from hidisc.ground.text import count
from hidisc.reporting import figures, tables
from hidisc.reporting.drawings import Drawing, FigureFolder
from hidisc.reporting.evaluated import Comparison, EvaluatedModel, compare_with_first, find_embeddings
from hidisc.reporting.html import list_files
from hidisc.reporting.page import About, Page, Panel, PatchMap, ProbePart, Sheet
from hidisc.reporting.points import choose_points, find_map_input, judge_patches, name_points, read_points
from hidisc.reporting.scales import draw_scales, scales_table
from hidisc.reporting.sheets import choose_queries, draw_sheet, make_sheet
from hidisc.reporting.table import Table, write_tables
from hidisc.reporting.tiles import PatchReader
from hidisc.reporting.verdict import count_voters, describe, find_verdict, gather_warnings
from hidisc.settings.config import to_yaml
from hidisc.settings.evaluate import BootstrapConfig
from hidisc.settings.report import ReportConfig

Say = Callable[[str], None]
_PACKAGES = ("hidisc", "numpy", "scikit-learn", "openTSNE", "matplotlib", "torch")

_ONE_TRAINING = (
    "There is one training per encoder, so these sentences are about the encoders, not about their methods: another "
    "seed may give another result. To compare methods, give the scores of several seeds of each."
)


def compose(models: Sequence[EvaluatedModel], files: Path, config: ReportConfig, say: Say) -> Page:
    """Everything on the page, in its order; figures and tables are written on the way."""
    judged = [model for model in models if model.scores]
    words = models[0].words
    drawn = FigureFolder(files / "figures", [model.name for model in models], words)
    data = {f"data-{drawn.slug(model.name)}": tables.counts_table(model) for model in models if _is_countable(model)}
    probes, compared = _make_metrics(judged)
    diagnostics = {"diagnostics": tables.diagnostics_table(judged)} if judged else {}
    made = {**data, **{name: table for part in probes for name, table in part.items()}, **diagnostics}
    write_tables(made, files / "tables", words)
    say("drawing confusion matrices and curves ...")
    confusions = _draw_confusions(judged, drawn)
    curves = (*_draw_scales(_find_scaled(judged), drawn), *_draw_curves(judged, drawn))
    reader = PatchReader()
    patches, crops = _make_map(models, reader, drawn, config, say)
    sheets, no_sheets = _make_sheets(judged, reader, drawn, config)
    return Page(
        title=_choose_title(models, config),
        names=tuple(model.name for model in models),
        warnings=gather_warnings(models),
        verdicts=tuple(find_verdict(model) for model in models),
        compared=tuple(sentence for item in compared for sentence in _say_better(item)),
        compared_note=_note_compared(compared),
        abouts=_describe_all(models, [data.get(f"data-{drawn.slug(model.name)}") for model in models]),
        probes=_show_probes(probes),
        confusions=confusions,
        curves=curves,
        map=patches,
        crops=crops,
        sheets=sheets,
        no_sheets=no_sheets,
        training=_draw_training(models, drawn),
        diagnostics=tuple(diagnostics.values()),
        versions=tuple(versions(*_PACKAGES).items()),
        settings=to_yaml(config),
        files=list_files(drawn.names, made, f"{files.name}/"),
        words=words,
    )


def _choose_title(models: Sequence[EvaluatedModel], config: ReportConfig) -> str:
    """The user's title; of embeddings alone, about which nothing is judged, the default one says so."""
    if config.title != ReportConfig().title or any(model.scores for model in models):
        return config.title
    return f"Embeddings of {', '.join(model.name for model in models)}"


# ---- tables


def _is_countable(model: EvaluatedModel) -> bool:
    return bool(model.scores) or any(found is not None for found in model.embeddings)


def _levels(model: EvaluatedModel) -> list[str]:
    """Levels that the first probe judged, coarse to fine."""
    info = model.scores[0].info
    return [level for level in info.levels if info.probes[0].level(level) is not None]


def _find_scaled(judged: Sequence[EvaluatedModel]) -> list[EvaluatedModel]:
    """The models that were judged at several scales."""
    return [model for model in judged if model.scores[0].info.scales]


def _make_metrics(judged: Sequence[EvaluatedModel]) -> tuple[list[dict[str, Table]], list[Comparison]]:
    """Tables by the names of their files, a mapping per probe; the first probe is followed into the classes.

    And how much better each model is than the first, by the first probe at the coarsest level.
    """
    if not judged:
        return [], []
    words = judged[0].words
    names = dict.fromkeys(probe.name for model in judged for scores in model.scores for probe in scores.info.probes)
    parts = [{f"metrics-{name}": tables.metrics_table(judged, name)} for name in names]
    probe, levels, config = next(iter(names)), _levels(judged[0]), judged[0].scores[0].info.config
    bootstrap = BootstrapConfig.model_validate(config.get("bootstrap", {}))
    compared = compare_with_first(judged, probe, levels[0], bootstrap, int(config.get("seed", 0)))
    if compared:
        parts[0][f"comparison-{probe}-{words.name(levels[0])}"] = tables.comparison_table(
            compared, probe, levels[0], bootstrap
        )
    if scaled := _find_scaled(judged):
        parts[0]["scales"] = scales_table(scaled)
    for level in levels:
        parts[0][f"classes-{probe}-{words.name(level)}"] = tables.by_class_table(judged, probe, level)
    return parts, compared


def _show_probes(probes: Sequence[Mapping[str, Table]]) -> tuple[ProbePart, ...]:
    """Tables in the order of the page, those of the classes at finer levels folded; a note stands once on the page."""
    seen: set[str] = set()
    parts = []
    for probe in probes:
        shown = []
        for table in probe.values():
            notes = tuple(note for note in table.notes if note not in seen)
            seen.update(notes)
            shown.append(replace(table, notes=notes))
        folded = [name.startswith("classes-") for name in probe]
        first = folded.index(True) + 1 if any(folded) else len(shown)
        parts.append(ProbePart(tuple(shown[:first]), tuple(shown[first:])))
    return tuple(parts)


def _describe_all(models: Sequence[EvaluatedModel], data: Sequence[Table | None]) -> tuple[About, ...]:
    """What each model is; data that several share are counted once."""
    abouts: list[About] = []
    seen: dict[object, str] = {}
    for model, table in zip(models, data, strict=True):
        facts = list(describe(model))
        same = model.name if table is None else seen.setdefault((table.columns, table.rows), model.name)
        if same != model.name:
            facts.append(("Data", f"the same as of {same}"))
        shown = (table,) if table is not None and same == model.name else ()
        settings = yaml.safe_dump(model.info.config, sort_keys=False, allow_unicode=True) if model.info else ""
        abouts.append(About(model.name, tuple(facts), shown, settings))
    return tuple(abouts)


def _say_better(compared: Comparison) -> list[str]:
    """Whether a model is better than the first, in accuracy and AUROC."""
    names = compared.model.name, compared.first.name
    if not compared.differences:
        return [f"{names[0]} and {names[1]} were not compared: {compared.refusal}"]
    level = _levels(compared.first)[0]
    sentences = [
        compared.differences[metric].sentence(f"{level} {title}", *names)
        for metric, title in (("accuracy", "accuracy"), ("auroc", "AUROC"))
    ]
    return [f"{'N' if text.startswith('no ') else text[0]}{text[1:]}." for text in sentences]


def _note_compared(compared: Sequence[Comparison]) -> str:
    """What to note where a difference is one between two trainings."""
    differences = [item.differences["accuracy"] for item in compared if item.differences]
    return "" if all(difference.is_of_methods for difference in differences) else _ONE_TRAINING


# ---- figures


def _draw_confusions(judged: Sequence[EvaluatedModel], drawn: FigureFolder) -> tuple[tuple[Drawing, ...], ...]:
    """Confusion matrices of the first probe: a group per level, the models beside each other."""
    groups = []
    for level in _levels(judged[0]) if judged else ():
        group = []
        for model in judged:
            info = model.scores[0].info
            scored = info.probes[0].level(level)
            if scored is not None and scored.units:
                title = f"{model.name}, {level} level"
                several = f", first of {len(model.scores)} evaluations" if len(model.scores) > 1 else ""
                figure = figures.draw_confusion(scored.confusion, info.classes, title)
                name = f"confusion-{drawn.slug(model.name)}-{model.words.name(level)}"
                group.append(drawn.add(name, figure, f"{title}{several}"))
        groups.append(tuple(group))
    return tuple(groups) if len(judged) > 1 else (tuple(drawing for group in groups for drawing in group),)


def _draw_scales(scaled: Sequence[EvaluatedModel], drawn: FigureFolder) -> tuple[Drawing, ...]:
    """Accuracy over mpp, where a store of several scales was judged."""
    return (drawn.add("scales", draw_scales(scaled), "Accuracy at every scale, by the first probe"),) if scaled else ()


def _draw_curves(judged: Sequence[EvaluatedModel], drawn: FigureFolder) -> tuple[Drawing, ...]:
    """ROC and precision-recall curves of all models, a figure per level, by the first probe."""
    found = []
    for level in _levels(judged[0]) if judged else ():
        info = judged[0].scores[0].info
        probe = info.probes[0].name
        lines = {
            model.name: model.scores[0].predictions(probe, level) for model in judged if model.find_levels(probe, level)
        }
        if any(map(len, lines.values())):
            figure = figures.draw_curves(lines, info.classes.index(info.positive), f"{level.capitalize()} level")
            found.append(
                drawn.add(f"curves-{judged[0].words.name(level)}", figure, f"ROC and precision-recall, {level} level")
            )
    return tuple(found)


def _draw_training(models: Sequence[EvaluatedModel], drawn: FigureFolder) -> tuple[Drawing, ...]:
    rows = {model.name: model.run_metrics for model in models if model.run_metrics}
    return (drawn.add("training", figures.draw_training(rows), "What was logged during training"),) if rows else ()


def _make_map(
    models: Sequence[EvaluatedModel], reader: PatchReader, drawn: FigureFolder, config: ReportConfig, say: Say
) -> tuple[PatchMap | None, tuple[Drawing, ...]]:
    """Maps of all models whose embeddings are there, and the crops of each."""
    inputs = [found for model in models if (found := find_map_input(model)) is not None]
    gone = [model.name for model in models if model.name not in {found.name for found in inputs}]
    if not inputs:
        return None, ()
    from hidisc.reporting.tsne import map_points

    points = choose_points(inputs, config.points, make_rng(config.seed, Purpose.MAP_POINTS))
    columns = {column.key: column for column in name_points(inputs, points)}
    label, patients = columns["label"], columns["patient"]
    panels, static, crops = [], [], []
    for encoder, places, patch in zip(inputs, points.places, points.patch, strict=True):
        say(f"drawing the map of {encoder.name} ...")
        vectors = np.asarray(encoder.embeddings.vectors[encoder.rows[places]], np.float32)
        xy = map_points(vectors, config.perplexity, config.seed)
        panels.append(Panel(encoder.name, patch, xy, None if encoder.predicted is None else encoder.predicted[places]))
        figure = figures.draw_map(xy, label.codes[patch], label.names, encoder.name)
        static.append(drawn.add(f"map-{drawn.slug(encoder.name)}", figure, f"{encoder.name}, by class", dots=True))
        if label.names:
            whose = np.array(patients.names, object)[patients.codes[patch]]
            figure = figures.draw_crops(xy, label.codes[patch], whose, label.names)
            caption = f"{encoder.name}: each class by patient"
            crops.append(drawn.add(f"crops-{drawn.slug(encoder.name)}", figure, caption, dots=True))
    say("reading pictures ...")
    sprite = read_points(reader, inputs, points, config.picture_px)
    total = max(len(encoder.rows) for encoder in inputs)
    sentence = (
        f"{len(panels[0].patch):,} of {total:,} patches, drawn at random, by t-SNE of the embeddings "
        f"(perplexity {config.perplexity:g}, seed {config.seed})."
    )
    if len(inputs) > 1 and points.shared:
        sentence += " All encoders show the same patches."
    reasons = [f"No pictures: {reason}" for reason in reader.missing]
    if reader.unreadable:
        reasons.append(f"{count(reader.unreadable, 'patch')} could not be read; the map shows grey instead.")
    if gone:
        reasons.append(f"No map of {', '.join(gone)}: its embeddings are gone, or have changed since it was evaluated.")
    patch_map = PatchMap(
        sentence=sentence,
        panels=tuple(panels),
        columns=tuple(columns.values()),
        colours=tuple(figures.palette(len(label.names))),
        sprite=sprite,
        reasons=tuple(reasons),
        static=tuple(static),
    )
    return patch_map, tuple(crops)


def _make_sheets(
    judged: Sequence[EvaluatedModel], reader: PatchReader, drawn: FigureFolder, config: ReportConfig
) -> tuple[tuple[Sheet, ...], tuple[str, ...]]:
    """Nearest neighbours of patches predicted correctly and wrongly by each model; and why there are none of some."""
    sheets: list[Sheet] = []
    reasons: list[str] = []
    for model in judged if config.sheet_rows else ():
        place = next((place for place, found in enumerate(model.embeddings) if found is not None), None)
        queries = None if place is None else model.embeddings[place]
        if place is None or queries is None:
            reasons.append(f"None of {model.name}: its embeddings are gone, or have changed since it was evaluated.")
            continue
        scores = model.scores[place]
        bank = find_embeddings(scores, scores.info.bank)
        predictions, neighbours = judge_patches(scores), scores.neighbours()
        if bank is None or (neighbours is not None and neighbours[0].max(initial=0) >= len(bank)):
            home = name_related(scores.info.bank, scores.path)
            reasons.append(
                f"None of {model.name}: the embeddings of its reference patients ({home!r}) are gone or changed."
            )
        elif predictions is None or neighbours is None:
            reasons.append(f"None of {model.name}: no neighbours were kept (knn.keep=0), or no patches were judged.")
        else:
            rng = make_rng(config.seed, Purpose.SHEET_PATCHES)
            for right in (True, False):
                chosen = choose_queries(predictions, config.sheet_rows, right, rng)
                label = str(scores.info.config["label"])
                rows = make_sheet(reader, queries, bank, predictions, neighbours, chosen, label)
                sheets.append(Sheet(model.name, right, rows, _say_votes(scores.info, neighbours[0].shape[1])))
                if rows:
                    name = f"neighbours-{drawn.slug(model.name)}-{'right' if right else 'wrong'}"
                    drawn.save(name, draw_sheet(rows))
    return tuple(sheets), (*reasons, *(f"No pictures: {reason}" for reason in reader.missing if sheets))


def _say_votes(info: ScoresInfo, shown: int) -> str:
    """How many neighbours vote on the class of a patch, and how many of them are on the sheet."""
    if "knn" not in {probe.name for probe in info.probes}:
        return f"The {shown:,} most similar patches of the reference patients are shown."
    voters = count_voters(info)
    return (
        f"The {voters:,} nearest patches of the reference patients vote on the class of a patch, the more similar ones "
        f"with more weight; the {min(shown, voters):,} nearest are shown."
    )

"""All that the page of a report shows, gathered in its order; figures and tables are written on the way."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from hidisc.ground.errors import UserError
from hidisc.ground.files import name_related
from hidisc.ground.machine import versions
from hidisc.ground.seeds import Purpose, make_rng
from hidisc.reporting import figures, tables
from hidisc.reporting.cells import find_levels
from hidisc.reporting.drawings import Drawing, FigureFolder
from hidisc.reporting.evaluated import EvaluatedModel, compare_models, find_embeddings
from hidisc.reporting.html import list_files
from hidisc.reporting.page import (
    About,
    Page,
    Panel,
    PatchMap,
    ProbePart,
    Sheet,
)
from hidisc.reporting.pictures import (
    PatchReader,
    choose_points,
    choose_queries,
    draw_sheet,
    find_map_input,
    judge_patches,
    make_sheet,
    name_points,
    read_points,
)
from hidisc.reporting.table import Table, write_tables
from hidisc.reporting.tsne import map_points
from hidisc.reporting.verdict import describe, find_verdict, gather_warnings, show_settings
from hidisc.settings.config import to_yaml
from hidisc.settings.evaluate import BootstrapConfig
from hidisc.settings.report import ReportConfig

Say = Callable[[str], None]
_PACKAGES = ("hidisc", "numpy", "scikit-learn", "openTSNE", "matplotlib", "torch")

_ONE_TRAINING = (
    "One training speaks for that encoder, not for its method: another seed may come out otherwise. To compare "
    "methods, give the scores of several seeds of each."
)


def compose(models: Sequence[EvaluatedModel], files: Path, config: ReportConfig, say: Say) -> Page:
    """Everything on the page, in its order; figures and tables are written on the way."""
    judged = [model for model in models if model.scores]
    drawn = FigureFolder(files / "figures", [model.name for model in models])
    made = _make_tables(models, judged, drawn)
    write_tables(made, files / "tables")
    say("drawing confusion matrices and curves ...")
    confusions = _draw_confusions(judged, drawn)
    curves = _draw_curves(judged, drawn)
    reader = PatchReader()
    patches, crops = _make_map(models, reader, drawn, config, say)
    sheets, no_sheets = _make_sheets(judged, reader, drawn, config)
    compared, compared_note = _compare(judged)
    return Page(
        title=config.title,
        names=tuple(model.name for model in models),
        warnings=gather_warnings(models),
        verdicts=tuple(find_verdict(model) for model in models),
        compared=compared,
        compared_note=compared_note,
        abouts=_describe_all(models, made, drawn),
        probes=_sort_probes(judged, made),
        confusions=confusions,
        curves=curves,
        map=patches,
        crops=crops,
        sheets=sheets,
        no_sheets=no_sheets,
        training=_draw_training(models, drawn),
        diagnostics=tuple(table for name, table in made.items() if name == "diagnostics"),
        versions=tuple(versions(*_PACKAGES).items()),
        settings=to_yaml(config),
        files=list_files(drawn.names, made, f"{files.name}/"),
    )


# ---- tables


def _make_tables(
    models: Sequence[EvaluatedModel], judged: Sequence[EvaluatedModel], drawn: FigureFolder
) -> dict[str, Table]:
    """Every table, by the name of its files."""
    made = {f"data-{drawn.slug(model.name)}": tables.counts_table(model) for model in models if _is_countable(model)}
    for probe in _probes(judged):
        made[f"metrics-{probe}"] = tables.metrics_table(judged, probe)
    if judged:
        probe, levels = _probes(judged)[0], _levels(judged[0])
        if len(judged) > 1:
            first = _config(judged[0])
            made[f"comparison-{probe}-{levels[0]}"] = tables.comparison_table(judged, probe, levels[0], *first)
        for level in levels:
            made[f"classes-{probe}-{level}"] = tables.by_class_table(judged, probe, level)
        made["diagnostics"] = tables.diagnostics_table(judged)
    return made


def _is_countable(model: EvaluatedModel) -> bool:
    return bool(model.scores) or any(found is not None for found in model.embeddings)


def _probes(judged: Sequence[EvaluatedModel]) -> list[str]:
    """Every probe asked, the first model's first."""
    return list(dict.fromkeys(item.name for one in judged for scores in one.scores for item in scores.info.probes))


def _levels(model: EvaluatedModel) -> list[str]:
    """Levels that the first probe judged, coarse to fine."""
    info = model.scores[0].info
    return [level for level in info.levels if info.probes[0].level(level) is not None]


def _config(model: EvaluatedModel) -> tuple[BootstrapConfig, int]:
    """How the first evaluation drew patients."""
    config = model.scores[0].info.config
    return BootstrapConfig.model_validate(config.get("bootstrap", {})), int(config.get("seed", 0))


def _sort_probes(judged: Sequence[EvaluatedModel], made: Mapping[str, Table]) -> tuple[ProbePart, ...]:
    """Tables of metrics in the order of the page; only the first probe is followed into the classes."""
    if not judged:
        return ()
    first, *others = _probes(judged)
    by_class = [made[f"classes-{first}-{level}"] for level in _levels(judged[0])]
    compared = [table for name, table in made.items() if name.startswith("comparison-")]
    parts = [ProbePart((made[f"metrics-{first}"], *compared, *by_class[:1]), tuple(by_class[1:]))]
    return (*parts, *(ProbePart((made[f"metrics-{name}"],)) for name in others))


def _describe_all(
    models: Sequence[EvaluatedModel], made: Mapping[str, Table], drawn: FigureFolder
) -> tuple[About, ...]:
    """What each model is; data that several share are counted once."""
    abouts: list[About] = []
    seen: dict[object, str] = {}
    for model in models:
        facts, shown = list(describe(model)), []
        table = made.get(f"data-{drawn.slug(model.name)}")
        if table is not None:
            same = seen.setdefault((table.columns, table.groups, table.rows), model.name)
            if same == model.name:
                shown.append(table)
            else:
                facts.append(("Data", f"the same as of {same}"))
        settings = show_settings(model.info.config) if model.info else ""
        abouts.append(About(model.name, tuple(facts), tuple(shown), settings))
    return tuple(abouts)


def _compare(judged: Sequence[EvaluatedModel]) -> tuple[tuple[str, ...], str]:
    """Whether each model is better than the first, in accuracy and AUROC of the coarsest level; and what to mind."""
    sentences, note = [], ""
    for model in judged[1:]:
        first = judged[0]
        probe, level = _probes(judged)[0], _levels(first)[0]
        if not find_levels(model, probe, level):
            continue  # the tables show a dash
        try:
            found = compare_models(model, first, probe, level, *_config(first))
        except UserError as error:
            sentences.append(f"{model.name} and {first.name} were not compared: {error}")
            continue
        note = note if found["accuracy"].is_of_methods else _ONE_TRAINING
        for metric, title in (("accuracy", "accuracy"), ("auroc", "AUROC")):
            sentence = found[metric].sentence(f"{level} {title}", model.name, first.name)
            sentences.append(f"{'N' if sentence.startswith('no ') else sentence[0]}{sentence[1:]}.")
    return tuple(sentences), note


# ---- figures


def _draw_confusions(judged: Sequence[EvaluatedModel], drawn: FigureFolder) -> tuple[tuple[Drawing, ...], ...]:
    """What is taken for what, by the first probe: a group a level, the models beside each other."""
    groups = []
    for level in _levels(judged[0]) if judged else ():
        group = []
        for model in judged:
            info = model.scores[0].info
            scored = info.probes[0].level(level)
            if scored is not None and scored.units:
                several = f", first of {len(model.scores)} evaluations" if len(model.scores) > 1 else ""
                figure = figures.draw_confusion(scored.confusion, info.classes, f"{level.capitalize()} level")
                name = f"confusion-{drawn.slug(model.name)}-{level}"
                group.append(drawn.add(name, figure, f"{model.name}, {level} level{several}"))
        groups.append(tuple(group))
    return tuple(groups) if len(judged) > 1 else (tuple(drawing for group in groups for drawing in group),)


def _draw_curves(judged: Sequence[EvaluatedModel], drawn: FigureFolder) -> tuple[Drawing, ...]:
    """ROC and PR of all models, a figure a level, by the first probe."""
    found = []
    for level in _levels(judged[0]) if judged else ():
        info = judged[0].scores[0].info
        probe = info.probes[0].name
        lines = {
            model.name: model.scores[0].predictions(probe, level)
            for model in judged
            if find_levels(model, probe, level)
        }
        if any(map(len, lines.values())):
            figure = figures.draw_curves(lines, info.classes.index(info.positive), f"{level.capitalize()} level")
            found.append(drawn.add(f"curves-{level}", figure, f"ROC and precision-recall, {level} level"))
    return tuple(found)


def _draw_training(models: Sequence[EvaluatedModel], drawn: FigureFolder) -> tuple[Drawing, ...]:
    rows = {model.name: model.run_metrics for model in models if model.run_metrics}
    if not rows:
        return ()
    return (drawn.add("training", figures.draw_training(rows), "What was logged while the encoders learned"),)


def _make_map(
    models: Sequence[EvaluatedModel], reader: PatchReader, drawn: FigureFolder, config: ReportConfig, say: Say
) -> tuple[PatchMap | None, tuple[Drawing, ...]]:
    """Maps of all models whose embeddings are there, and the crops of each."""
    inputs = [one for model in models if (one := find_map_input(model)) is not None]
    gone = [model.name for model in models if model.name not in {one.name for one in inputs}]
    if not inputs:
        return None, ()
    points = choose_points(inputs, config.points, make_rng(config.seed, Purpose.MAP_POINTS))
    columns = {column.key: column for column in name_points(inputs, points)}
    label, patients = columns["label"], columns["patient"]
    panels, static, crops = [], [], []
    for one, places, patch in zip(inputs, points.places, points.patch, strict=True):
        say(f"drawing the map of {one.name} ...")
        vectors = np.asarray(one.embeddings.vectors[one.rows[places]], np.float32)
        xy = map_points(vectors, config.perplexity, config.seed)
        panels.append(Panel(one.name, patch, xy, None if one.predicted is None else one.predicted[places]))
        figure = figures.draw_map(xy, label.codes[patch], label.names, one.name)
        static.append(drawn.add(f"map-{drawn.slug(one.name)}", figure, f"{one.name}, by class", dots=True))
        if label.names:
            whose = np.array(patients.names, object)[patients.codes[patch]]
            figure = figures.draw_crops(xy, label.codes[patch], whose, label.names)
            caption = f"{one.name}: each class by patient"
            crops.append(drawn.add(f"crops-{drawn.slug(one.name)}", figure, caption, dots=True))
    say("reading pictures ...")
    sprite = read_points(reader, inputs, points, config.picture_px)
    total = max(len(one.rows) for one in inputs)
    sentence = (
        f"{len(panels[0].patch):,} of {total:,} patches, drawn at random, by t-SNE of the embeddings "
        f"(perplexity {config.perplexity:g}, seed {config.seed})."
    )
    if len(inputs) > 1 and points.shared:
        sentence += " All encoders show the same patches."
    reasons = [f"No pictures: {reason}" for reason in reader.missing]
    if reader.unreadable:
        reasons.append(f"{reader.unreadable:,} patches could not be read and are grey.")
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
    """Nearest neighbours of right and wrong patches of each model; and why there are none of some."""
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
            reasons.append(f"None of {model.name}: its bank {home!r} is gone, or has changed since.")
        elif predictions is None or neighbours is None:
            reasons.append(f"None of {model.name}: no neighbours were kept (knn.keep=0), or no patches were judged.")
        else:
            rng = make_rng(config.seed, Purpose.SHEET_PATCHES)
            for right in (True, False):
                chosen = choose_queries(predictions, config.sheet_rows, right, rng)
                label = str(scores.info.config["label"])
                rows = make_sheet(reader, queries, bank, predictions, neighbours, chosen, label)
                sheets.append(Sheet(model.name, right, rows))
                if rows:
                    name = f"neighbours-{drawn.slug(model.name)}-{'right' if right else 'wrong'}"
                    drawn.save(name, draw_sheet(rows))
    return tuple(sheets), (*reasons, *(f"No pictures: {reason}" for reason in reader.missing if sheets))

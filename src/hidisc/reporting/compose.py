"""All that the page of a report shows, gathered in its order; figures and tables are written on the way."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from hidisc.artefacts.files import name_related
from hidisc.config import to_yaml
from hidisc.errors import UserError
from hidisc.machine import versions
from hidisc.reporting import figures, tables
from hidisc.reporting.cells import find_levels
from hidisc.reporting.drawings import Drawing, FigureFolder
from hidisc.reporting.html import list_files
from hidisc.reporting.page import (
    About,
    OpinionPart,
    Page,
    Panel,
    PatchMap,
    Sheet,
)
from hidisc.reporting.pictures import (
    Album,
    chart,
    choose_points,
    choose_queries,
    draw_sheet,
    judge_patches,
    make_sheet,
    name_points,
    read_points,
)
from hidisc.reporting.subject import Subject, compare_subjects, find_embeddings
from hidisc.reporting.table import Table, write_tables
from hidisc.reporting.tsne import map_points
from hidisc.reporting.verdict import describe, find_verdict, gather_warnings, show_settings
from hidisc.seeds import Purpose, make_rng
from hidisc.settings.judging import BootstrapConfig, ReportConfig

Say = Callable[[str], None]
_PACKAGES = ("hidisc", "numpy", "scikit-learn", "openTSNE", "matplotlib", "torch")

_ONE_TRAINING = (
    "One training speaks for that encoder, not for its method: another seed may come out otherwise. To compare "
    "methods, give the scores of several seeds of each."
)


def compose(subjects: Sequence[Subject], files: Path, config: ReportConfig, say: Say) -> Page:
    """Everything on the page, in its order; figures and tables are written on the way."""
    judged = [subject for subject in subjects if subject.scores]
    drawn = FigureFolder(files / "figures", [subject.name for subject in subjects])
    made = _make_tables(subjects, judged, drawn)
    write_tables(made, files / "tables")
    say("drawing confusion matrices and curves ...")
    confusions = _draw_confusions(judged, drawn)
    curves = _draw_curves(judged, drawn)
    album = Album()
    patches, crops = _make_map(subjects, album, drawn, config, say)
    sheets, no_sheets = _make_sheets(judged, album, drawn, config)
    compared, compared_note = _compare(judged)
    return Page(
        title=config.title,
        names=tuple(subject.name for subject in subjects),
        warnings=gather_warnings(subjects),
        verdicts=tuple(find_verdict(subject) for subject in subjects),
        compared=compared,
        compared_note=compared_note,
        abouts=_describe_all(subjects, made, drawn),
        opinions=_sort_opinions(judged, made),
        confusions=confusions,
        curves=curves,
        map=patches,
        crops=crops,
        sheets=sheets,
        no_sheets=no_sheets,
        training=_draw_training(subjects, drawn),
        diagnostics=tuple(table for name, table in made.items() if name == "diagnostics"),
        versions=tuple(versions(*_PACKAGES).items()),
        settings=to_yaml(config),
        files=list_files(drawn.names, made, f"{files.name}/"),
    )


# ---- tables


def _make_tables(subjects: Sequence[Subject], judged: Sequence[Subject], drawn: FigureFolder) -> dict[str, Table]:
    """Every table, by the name of its files."""
    made = {
        f"data-{drawn.slug(subject.name)}": tables.counts_table(subject)
        for subject in subjects
        if _is_countable(subject)
    }
    for opinion in _opinions(judged):
        made[f"metrics-{opinion}"] = tables.metrics_table(judged, opinion)
    if judged:
        opinion, levels = _opinions(judged)[0], _levels(judged[0])
        if len(judged) > 1:
            first = _config(judged[0])
            made[f"comparison-{opinion}-{levels[0]}"] = tables.comparison_table(judged, opinion, levels[0], *first)
        for level in levels:
            made[f"classes-{opinion}-{level}"] = tables.by_class_table(judged, opinion, level)
        made["diagnostics"] = tables.diagnostics_table(judged)
    return made


def _is_countable(subject: Subject) -> bool:
    return bool(subject.scores) or any(found is not None for found in subject.embeddings)


def _opinions(judged: Sequence[Subject]) -> list[str]:
    """Every opinion asked, the first subject's first."""
    return list(dict.fromkeys(item.name for one in judged for scores in one.scores for item in scores.info.opinions))


def _levels(subject: Subject) -> list[str]:
    """Levels that the first opinion judged, coarse to fine."""
    info = subject.scores[0].info
    return [level for level in info.levels if info.opinions[0].level(level) is not None]


def _config(subject: Subject) -> tuple[BootstrapConfig, int]:
    """How the first evaluation drew patients."""
    config = subject.scores[0].info.config
    return BootstrapConfig.model_validate(config.get("bootstrap", {})), int(config.get("seed", 0))


def _sort_opinions(judged: Sequence[Subject], made: Mapping[str, Table]) -> tuple[OpinionPart, ...]:
    """Tables of metrics in the order of the page; only the first opinion is followed into the classes."""
    if not judged:
        return ()
    first, *others = _opinions(judged)
    by_class = [made[f"classes-{first}-{level}"] for level in _levels(judged[0])]
    compared = [table for name, table in made.items() if name.startswith("comparison-")]
    parts = [OpinionPart((made[f"metrics-{first}"], *compared, *by_class[:1]), tuple(by_class[1:]))]
    return (*parts, *(OpinionPart((made[f"metrics-{name}"],)) for name in others))


def _describe_all(subjects: Sequence[Subject], made: Mapping[str, Table], drawn: FigureFolder) -> tuple[About, ...]:
    """What each subject is; data that several share are counted once."""
    abouts: list[About] = []
    seen: dict[object, str] = {}
    for subject in subjects:
        facts, shown = list(describe(subject)), []
        table = made.get(f"data-{drawn.slug(subject.name)}")
        if table is not None:
            same = seen.setdefault((table.columns, table.groups, table.rows), subject.name)
            if same == subject.name:
                shown.append(table)
            else:
                facts.append(("Data", f"the same as of {same}"))
        settings = show_settings(subject.info.config) if subject.info else ""
        abouts.append(About(subject.name, tuple(facts), tuple(shown), settings))
    return tuple(abouts)


def _compare(judged: Sequence[Subject]) -> tuple[tuple[str, ...], str]:
    """Whether each subject is better than the first, in accuracy and AUROC of the coarsest level; and what to mind."""
    sentences, note = [], ""
    for subject in judged[1:]:
        first = judged[0]
        opinion, level = _opinions(judged)[0], _levels(first)[0]
        if not find_levels(subject, opinion, level):
            continue  # the tables show a dash
        try:
            found = compare_subjects(subject, first, opinion, level, *_config(first))
        except UserError as error:
            sentences.append(f"{subject.name} and {first.name} were not compared: {error}")
            continue
        note = note if found["accuracy"].is_of_methods else _ONE_TRAINING
        for metric, title in (("accuracy", "accuracy"), ("auroc", "AUROC")):
            sentence = found[metric].sentence(f"{level} {title}", subject.name, first.name)
            sentences.append(f"{'N' if sentence.startswith('no ') else sentence[0]}{sentence[1:]}.")
    return tuple(sentences), note


# ---- figures


def _draw_confusions(judged: Sequence[Subject], drawn: FigureFolder) -> tuple[tuple[Drawing, ...], ...]:
    """What is taken for what, by the first opinion: a group a level, the subjects beside each other."""
    groups = []
    for level in _levels(judged[0]) if judged else ():
        group = []
        for subject in judged:
            info = subject.scores[0].info
            scored = info.opinions[0].level(level)
            if scored is not None and scored.units:
                several = f", first of {len(subject.scores)} evaluations" if len(subject.scores) > 1 else ""
                figure = figures.draw_confusion(scored.confusion, info.classes, f"{level.capitalize()} level")
                name = f"confusion-{drawn.slug(subject.name)}-{level}"
                group.append(drawn.add(name, figure, f"{subject.name}, {level} level{several}"))
        groups.append(tuple(group))
    return tuple(groups) if len(judged) > 1 else (tuple(drawing for group in groups for drawing in group),)


def _draw_curves(judged: Sequence[Subject], drawn: FigureFolder) -> tuple[Drawing, ...]:
    """ROC and PR of all subjects, a figure a level, by the first opinion."""
    found = []
    for level in _levels(judged[0]) if judged else ():
        info = judged[0].scores[0].info
        opinion = info.opinions[0].name
        lines = {
            subject.name: subject.scores[0].predictions(opinion, level)
            for subject in judged
            if find_levels(subject, opinion, level)
        }
        if any(map(len, lines.values())):
            figure = figures.draw_curves(lines, info.classes.index(info.positive), f"{level.capitalize()} level")
            found.append(drawn.add(f"curves-{level}", figure, f"ROC and precision-recall, {level} level"))
    return tuple(found)


def _draw_training(subjects: Sequence[Subject], drawn: FigureFolder) -> tuple[Drawing, ...]:
    rows = {subject.name: subject.run_metrics for subject in subjects if subject.run_metrics}
    if not rows:
        return ()
    return (drawn.add("training", figures.draw_training(rows), "What was logged while the encoders learned"),)


def _make_map(
    subjects: Sequence[Subject], album: Album, drawn: FigureFolder, config: ReportConfig, say: Say
) -> tuple[PatchMap | None, tuple[Drawing, ...]]:
    """Maps of all subjects whose embeddings are there, and the crops of each."""
    charted = [one for subject in subjects if (one := chart(subject)) is not None]
    gone = [subject.name for subject in subjects if subject.name not in {one.name for one in charted}]
    if not charted:
        return None, ()
    points = choose_points(charted, config.points, make_rng(config.seed, Purpose.MAP_POINTS))
    columns = {column.key: column for column in name_points(charted, points)}
    label, patients = columns["label"], columns["patient"]
    panels, static, crops = [], [], []
    for one, places, patch in zip(charted, points.places, points.patch, strict=True):
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
    sprite = read_points(album, charted, points, config.picture_px)
    total = max(len(one.rows) for one in charted)
    sentence = (
        f"{len(panels[0].patch):,} of {total:,} patches, drawn at random, by t-SNE of the embeddings "
        f"(perplexity {config.perplexity:g}, seed {config.seed})."
    )
    if len(charted) > 1 and points.shared:
        sentence += " All encoders show the same patches."
    reasons = [f"No pictures: {reason}" for reason in album.missing]
    if album.unreadable:
        reasons.append(f"{album.unreadable:,} patches could not be read and are grey.")
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
    judged: Sequence[Subject], album: Album, drawn: FigureFolder, config: ReportConfig
) -> tuple[tuple[Sheet, ...], tuple[str, ...]]:
    """Nearest neighbours of right and wrong patches of each subject; and why there are none of some."""
    sheets: list[Sheet] = []
    reasons: list[str] = []
    for subject in judged if config.sheet_rows else ():
        place = next((place for place, found in enumerate(subject.embeddings) if found is not None), None)
        queries = None if place is None else subject.embeddings[place]
        if place is None or queries is None:
            reasons.append(f"None of {subject.name}: its embeddings are gone, or have changed since it was evaluated.")
            continue
        scores = subject.scores[place]
        bank = find_embeddings(scores, scores.info.bank)
        predictions, neighbours = judge_patches(scores), scores.neighbours()
        if bank is None or (neighbours is not None and neighbours[0].max(initial=0) >= len(bank)):
            home = name_related(scores.info.bank, scores.path)
            reasons.append(f"None of {subject.name}: its bank {home!r} is gone, or has changed since.")
        elif predictions is None or neighbours is None:
            reasons.append(f"None of {subject.name}: no neighbours were kept (knn.keep=0), or no patches were judged.")
        else:
            rng = make_rng(config.seed, Purpose.SHEET_PATCHES)
            for right in (True, False):
                chosen = choose_queries(predictions, config.sheet_rows, right, rng)
                label = str(scores.info.config["label"])
                rows = make_sheet(album, queries, bank, predictions, neighbours, chosen, label)
                sheets.append(Sheet(subject.name, right, rows))
                if rows:
                    name = f"neighbours-{drawn.slug(subject.name)}-{'right' if right else 'wrong'}"
                    drawn.save(name, draw_sheet(rows))
    return tuple(sheets), (*reasons, *(f"No pictures: {reason}" for reason in album.missing if sheets))

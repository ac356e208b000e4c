"""From finished cells to pooled folds, the paper's tables with our numbers in them, figures, claims and a page."""

import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from hidisc.artefacts.artefact import make, read_manifest
from hidisc.benchmarking.cells import EvaluationPoint, SuiteCell, list_finished, pooled_scores
from hidisc.benchmarking.claims import check_claim
from hidisc.benchmarking.tables import beside_table, cells_table, claims_table, floors_table, folds_table
from hidisc.embeddings.embeddings import ModelCard
from hidisc.evaluation.cross_validation import pool_evaluations
from hidisc.evaluation.scores import Scores
from hidisc.ground.files import digest, make_folder, write_atomic
from hidisc.ground.machine import versions
from hidisc.ground.text import count
from hidisc.models.card import NOTHING
from hidisc.reporting.curves import add_confusion, draw_axis
from hidisc.reporting.evaluated import EvaluatedModel
from hidisc.reporting.figures import Drawing, FigureFolder
from hidisc.reporting.html import fill_template, list_files
from hidisc.reporting.table import Table, write_tables
from hidisc.reporting.tables import gather_warnings, metrics_table
from hidisc.settings.benchmark import SuiteConfig
from hidisc.settings.config import to_yaml
from hidisc.settings.evaluate import FoldsConfig
from hidisc.settings.level_names import USUAL

_PAGE = "benchmark.html"
_PAPER = "paper-"
"""With which the names of the paper's tables begin."""
_PACKAGES = ("hidisc", "numpy", "scikit-learn", "matplotlib", "torch")


def write_results(suite: SuiteConfig, cells: Sequence[SuiteCell], out: Path, scale: str) -> Path:
    """Write `tables/`, `figures/` and, last, the page; what is there of an earlier call is replaced."""
    placed = gather_models(suite, cells, out.absolute())
    models = [model for _, model in placed]
    tables = make_tables(suite, cells, models)
    write_tables(tables, out / "tables")
    drawn = FigureFolder(out / "figures", [model.name for model in models])
    html = fill_template(
        "benchmark.html",
        models[0].words if models else USUAL,
        title=suite.title,
        summary=_summarise(suite, cells, scale),
        warnings=gather_warnings(models),
        notes=suite.notes if models else ("No training is finished, so there are no numbers.",),
        claims=tables.get("claims"),
        results=[tables[name] for name in ("floors", "results", "folds") if name in tables],
        axis=_draw_axis(suite, placed, drawn),
        beside=[table for name, table in tables.items() if name.startswith(_PAPER)],
        confusions=_draw_confusions(suite, models, drawn),
        cells=tables["trainings"],
        versions=versions(*_PACKAGES),
        settings=to_yaml(suite),
        files=list_files(drawn.names, tables),
    )
    write_atomic(out / _PAGE, html.encode("utf-8", "replace"))
    return out / _PAGE


def list_results(out: Path) -> list[str]:
    """Every file that `write_results` wrote, relative to the benchmark."""
    found = [out / _PAGE, *out.glob("tables/*"), *out.glob("figures/*")]
    return sorted(path.relative_to(out).as_posix() for path in found if path.is_file())


def gather_models(
    suite: SuiteConfig, cells: Sequence[SuiteCell], out: Path
) -> list[tuple[float | None, EvaluatedModel]]:
    """A model per method with all its finished evaluations, and its place on the axis; or one per evaluation point."""
    found: list[tuple[float | None, EvaluatedModel]] = []
    for row in {cell.row.name: cell.row for cell in cells}.values():
        judged = _list_scores([cell for cell in cells if cell.row.name == row.name], out)
        steps = sorted({point.step for point, _ in judged})
        for step in steps:
            scores = tuple(Scores.load(path) for point, path in judged if point.step == step)
            name, at = (row.name, row.at) if len(steps) == 1 else (f"{row.name}, {step:,} steps", float(step))
            found.append((at, EvaluatedModel(name, scores, (None,) * len(scores), None)))
    return found


def _list_scores(cells: Sequence[SuiteCell], out: Path) -> list[tuple[EvaluationPoint, Path]]:
    """Where the finished evaluations of a row are: of its trainings, or pooled of its folds."""
    whole = [
        (point, cell.scores(point)) for cell in cells if cell.fold is None and cell.is_done for point in cell.points
    ]
    pooled = [(point, pooled_scores(folds, point, out)) for folds in list_finished(cells) for point in folds[0].points]
    return whole + pooled


def make_tables(suite: SuiteConfig, cells: Sequence[SuiteCell], models: Sequence[EvaluatedModel]) -> dict[str, Table]:
    """Every table, by the name of its files; those of numbers only where there are any."""
    made = {}
    if models:
        named = {model.name: model for model in models}
        probe = suite.evaluate.probes[0]
        made["results"] = metrics_table(models, probe)
        floors = floors_table(suite, {cell.row.name for cell in cells if cell.row.encoder != "trained"}, models)
        made |= {"floors": floors} if floors else {}
        made |= {f"{_PAPER}{name.replace('_', '-')}": beside_table(suite, named, name) for name in suite.paper}
        if suite.claims:
            checked = [check_claim(claim, named, suite.evaluate) for claim in suite.claims]
            made["claims"] = claims_table(checked, models)
        made |= {"folds": folds_table(suite, cells)} if suite.folds.are_used else {}
    return made | {"trainings": cells_table(cells)}


def _summarise(suite: SuiteConfig, cells: Sequence[SuiteCell], scale: str) -> str:
    """What was done, in a line."""
    done, failed = sum(cell.is_done for cell in cells), sum(bool(cell.failure) for cell in cells)
    folds = len({cell.fold for cell in cells if cell.fold})
    judged = f", {count(folds, 'fold')}, in which every patient is judged once per seed" if folds else ""
    text = f"{count(len(suite.rows), 'method')}, {count(suite.seeds, 'seed')} of each, {scale}{judged}: "
    text += f"{done} of {len(cells)} trainings finished"
    return f"{text}, {failed} failed." if failed else f"{text}."


def _draw_axis(
    suite: SuiteConfig, placed: Sequence[tuple[float | None, EvaluatedModel]], drawn: FigureFolder
) -> Drawing | None:
    points = [(at, model) for at, model in placed if at is not None]
    if suite.axis is None or not points:
        return None
    figure = draw_axis(points, suite.axis, suite.evaluate.probes[0])
    return drawn.add("axis", figure, f"Metrics over {suite.axis}; a bar is the standard deviation over seeds")


def _draw_confusions(suite: SuiteConfig, models: Sequence[EvaluatedModel], drawn: FigureFolder) -> list[Drawing]:
    """A matrix per method at the finest and at the coarsest level, all its evaluations added up."""
    probe, drawings = suite.evaluate.probes[0], []
    for model in models:
        info = model.scores[0].info
        for level in dict.fromkeys((info.levels[-1], info.levels[0])):
            found = model.find_levels(probe, level)
            if found:
                total = np.sum([scored.confusion for scored in found], axis=0)
                drawings.append(add_confusion(drawn, model, level, total))
    return drawings


def pool_cells(cells: Sequence[SuiteCell], out: Path, rule: FoldsConfig) -> None:
    """Pool the folds of every row and seed that are all finished."""
    for folds in list_finished(cells):
        for point in folds[0].points:
            _pool_folds(folds, point, out, rule)


def _pool_folds(folds: Sequence[SuiteCell], point: EvaluationPoint, out: Path, rule: FoldsConfig) -> None:
    parts = [Scores.load(cell.scores(point)) for cell in folds]
    path = pooled_scores(folds, point, out)
    changes = {"test_patients": None, "folds": rule.model_copy(update={"seed": folds[0].seed})}
    config = folds[0].evaluate.model_copy(update=changes)
    inputs = {f"fold {number}": part.artefact.checksum for number, part in enumerate(parts, 1)}
    make_folder(path.parent)
    with suppress(ValueError):
        made = read_manifest(path)
        if made is not None and made.inputs != inputs:  # a fold was judged anew since
            shutil.rmtree(path)
    with make(path, "evaluate", config, inputs) as work:
        if not work.is_finished():
            evaluations, paths = [part.read() for part in parts], [part.path for part in parts]
            work.finish(pool_evaluations(evaluations, paths, config, _describe_folds(folds, parts), path).write(path))


def _describe_folds(folds: Sequence[SuiteCell], parts: Sequence[Scores]) -> ModelCard:
    """One card for the encoders of all folds: what they share, and all that they have learned from."""
    cards = [part.info.model for part in parts]
    history = NOTHING
    for card in cards:
        history = history.then(card.history.slides, card.history.labels_used)
    history = history.model_copy(update={"is_complete": all(card.history.is_complete for card in cards)})
    train = folds[0].train.model_dump(mode="json", exclude={"seed": True, "data": {"leave_out"}})
    never = set[str].intersection(*(set(cell.train.data.leave_out) for cell in folds))
    if never:  # what the row itself leaves out, in every fold
        train["data"]["leave_out"] = sorted(never)
    behind = {"map": folds[0].row.map} if folds[0].row.map else {}
    return cards[0].model_copy(
        update={
            "source": f"{len(folds)} folds",
            "checksum": digest([card.checksum for card in cards]),
            "group": digest({"train": train, "folds": len(folds), **behind})[:16],
            "history": history,
        }
    )

"""The folds of a row and seed pooled into one evaluation, in which every patient is judged once."""

import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from hidisc.artefacts.artefact import make, read_manifest
from hidisc.benchmarking.cells import Cell, EvaluationPoint, list_finished, pooled_scores
from hidisc.embeddings.embeddings import ModelCard
from hidisc.evaluation.cross_validation import pool_evaluations
from hidisc.evaluation.scores import Scores
from hidisc.ground.files import digest, make_folder
from hidisc.models.card import NOTHING
from hidisc.settings.evaluate import FoldsConfig


def pool_cells(cells: Sequence[Cell], out: Path, rule: FoldsConfig) -> None:
    """Pool the folds of every row and seed that are all finished."""
    for folds in list_finished(cells):
        for point in folds[0].points:
            _pool(folds, point, out, rule)


def _pool(folds: Sequence[Cell], point: EvaluationPoint, out: Path, rule: FoldsConfig) -> None:
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
            work.finish(pool_evaluations(evaluations, paths, config, _describe(folds, parts), path).write(path))


def _describe(folds: Sequence[Cell], parts: Sequence[Scores]) -> ModelCard:
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
    return cards[0].model_copy(
        update={
            "source": f"{len(folds)} folds",
            "checksum": digest([card.checksum for card in cards]),
            "group": digest({"train": train, "folds": len(folds)})[:16],
            "history": history,
        }
    )

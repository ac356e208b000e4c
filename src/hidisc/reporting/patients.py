"""The patients of a report: truth, prediction and probability of each, the most wrong first."""

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from hidisc.evaluation.scores import Scores
from hidisc.ground.text import name_some
from hidisc.reporting.evaluated import EvaluatedModel
from hidisc.reporting.table import DASH, Table
from hidisc.reporting.tables import name_probe, warning_notes

_NAMED = 4
"""Most slides of a patient that are named."""


def patients_table(model: EvaluatedModel, level: str) -> Table:
    """Every unit of the coarsest level that was judged, by the first probe of the first evaluation, most wrong first.

    How wrong: by how much the largest score of another class is above that of the true class.
    """
    scores, words = model.scores[0], model.words
    probe, label = scores.info.probes[0], scores.info.endpoint.label
    predictions = scores.predictions(probe, level)
    slides = _find_slides(scores, probe, level)
    rows, truth, predicted = np.arange(len(predictions)), predictions.truth, predictions.predicted
    classes, is_wrong = np.array(predictions.classes, object), predicted != truth
    of_predicted, of_truth = predictions.scores[rows, predicted], predictions.scores[rows, truth]
    others = predictions.scores.copy()
    others[rows, truth] = -1.0
    order = np.argsort(of_truth - others.max(axis=1), kind="stable")
    names = [list(map(str, column)) for column in predictions.units.values()]
    units = zip(*names, strict=True)
    shown_slides = [name_some(slides.get(unit, ()), _NAMED).replace("'", "") or DASH for unit in units]
    columns: list[tuple[str, Sequence[str]]] = [
        *((words.title(unit), named) for unit, named in zip(predictions.units, names, strict=True)),
        ("Result", ["wrong" if wrong else "right" for wrong in is_wrong]),
        (f"Truth ({label})", classes[truth].tolist()),
        ("Predicted", classes[predicted].tolist()),
        ("Probability", [f"{100 * probability:.0f}" for probability in of_predicted]),
        ("Of the truth", [f"{100 * probability:.0f}" for probability in of_truth]),
        *([("Fold", list(map(str, predictions.fold)))] if predictions.fold is not None else []),
        (words.plural("slide").capitalize(), shown_slides),
    ]
    notes = [
        f"{is_wrong.sum()} of {len(predictions)} are wrong. Sorted by how wrong: by how far another class is above the "
        "truth.",
        "Probability: the score of the predicted class and of the true class, of 100. Scores order patients; they are "
        "not calibrated.",
        *warning_notes([model]),
    ]
    if predictions.left_out:
        notes.append(f"{words.count(predictions.left_out, level)} with patches of several labels left out.")
    if len(model.scores) > 1:
        notes.append(f"Of {len(model.scores)} evaluations, the first is shown.")
    return Table(
        title=f"{model.name}: {words.plural(level)}, by {name_probe(probe, words).lower()}",
        columns=tuple(title for title, _ in columns),
        rows=tuple(tuple(cells[row] for _, cells in columns) for row in order.tolist()),
        notes=tuple(notes),
        bold=frozenset((number, len(names)) for number in np.flatnonzero(is_wrong[order]).tolist()),
    )


def _find_slides(scores: Scores, probe: str, level: str) -> dict[tuple[str, ...], dict[str, None]]:
    """By unit of a level, the slides of which patches or slides were judged."""
    slides: dict[tuple[str, ...], dict[str, None]] = defaultdict(dict)
    levels = scores.info.levels
    finest = next(finer for finer in reversed(levels) if scores.info.find(finer, probe) is not None)
    units = scores.predictions(probe, finest).units
    if "slide" in units:
        columns = [units[name].tolist() for name in (*levels[: levels.index(level) + 1], "slide")]
        for *unit, slide in zip(*columns, strict=True):
            slides[tuple(map(str, unit))][str(slide)] = None
    return slides

"""The patients of a report: truth, prediction and probability of each, the most wrong first."""

from collections import defaultdict

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
    rows = np.arange(len(predictions))
    of_truth = predictions.scores[rows, predictions.truth]
    others = predictions.scores.copy()
    others[rows, predictions.truth] = -1.0
    order = np.argsort(of_truth - others.max(axis=1), kind="stable")
    cells: list[tuple[str, ...]] = []
    for row in order.tolist():
        names = tuple(str(column[row]) for column in predictions.units.values())
        truth, predicted = (predictions.classes[codes[row]] for codes in (predictions.truth, predictions.predicted))
        probabilities = (predictions.scores[row, predictions.predicted[row]], of_truth[row])
        cells.append(
            (
                *names,
                "right" if truth == predicted else "wrong",
                truth,
                predicted,
                *(f"{100 * probability:.0f}" for probability in probabilities),
                *([str(predictions.fold[row])] if predictions.fold is not None else []),
                name_some(slides[names], _NAMED).replace("'", "") if names in slides else DASH,
            )
        )
    units = len(predictions.units)
    wrong = int((predictions.predicted != predictions.truth).sum())
    notes = [
        f"{wrong} of {len(predictions)} are wrong. Sorted by how wrong: by how far another class is above the truth.",
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
        columns=(
            *(words.title(name) for name in predictions.units),
            "Result",
            f"Truth ({label})",
            "Predicted",
            "Probability",
            "Of the truth",
            *(["Fold"] if predictions.fold is not None else []),
            words.plural("slide").capitalize(),
        ),
        rows=tuple(cells),
        notes=tuple(notes),
        bold=frozenset((number, units) for number, row in enumerate(cells) if row[units] == "wrong"),
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

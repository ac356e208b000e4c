"""What the labels of a question lack: classes without reference or test patients, patches without a class."""

from collections.abc import Iterator, Sequence

import numpy as np

from hidisc.evaluation.pooling import group
from hidisc.evaluation.scores import Finding
from hidisc.evaluation.sides import Question, Side

_NAMED = 3
"""Classes in a sentence; of the others the count is given."""


def check_labels(question: Question) -> tuple[Finding, ...]:
    """What to mind of the labels: a warning where a class cannot be recognised, a note where less is missing."""
    return (
        *(Finding(kind="warning", sentence=sentence) for sentence in _without_reference(question)),
        *(Finding(kind="note", sentence=sentence) for sentence in _without_test(question)),
        *(Finding(kind="note", sentence=sentence) for sentence in _without_label(question)),
    )


def _without_reference(question: Question) -> Iterator[str]:
    """Classes of the queries that no neighbour can vote for and no probe can learn."""
    absent = _find_absent(question, question.bank)
    if absent:
        unit = _unit(question)
        count = _count_units(question, absent)
        theirs = "its" if len(absent) == 1 else "their"
        lost = f"none of {theirs} {count:,} test {unit}s can be recognised"
        lost = f"{theirs} only test {unit} cannot be recognised" if count == 1 else lost
        yield f"No reference {unit} has {_name(question, absent)}, so {lost}."


def _without_test(question: Question) -> Iterator[str]:
    absent = _find_absent(question, question.queries)
    if absent:
        they = "it is" if len(absent) == 1 else "they are"
        yield (
            f"No test {_unit(question)} has {_name(question, absent)}, so how well {they} recognised was not measured."
        )


def _without_label(question: Question) -> Iterator[str]:
    for side, whose in ((question.bank, "reference"), (question.queries, "test")):
        if side.unlabelled:
            were, they = ("was", "it has") if side.unlabelled == 1 else ("were", "they have")
            yield (
                f"{side.unlabelled:,} of {side.unlabelled + len(side):,} patches of the {whose} {_unit(question)}s "
                f"{were} left out: {they} no label, or none of the classes."
            )


def _find_absent(question: Question, side: Side) -> list[int]:
    """Codes of the classes that no patch of a side has."""
    return np.setdiff1d(np.arange(len(question.classes)), side.labels).tolist()


def _count_units(question: Question, classes: Sequence[int]) -> int:
    """Test patients with a patch of one of the classes."""
    levels = question.levels[: question.levels.index(_unit(question)) + 1]
    members, _ = group(question.queries, levels)
    return len(np.unique(members[np.isin(question.queries.labels, classes)]))


def _unit(question: Question) -> str:
    """Whom the sentences are about: patients, or where there are none whatever is coarsest."""
    return "patient" if "patient" in question.levels else question.levels[0]


def _name(question: Question, classes: Sequence[int]) -> str:
    names = [repr(question.classes[code]) for code in classes]
    if len(names) == 1:
        return f"label {names[0]}"
    more = len(names) - _NAMED
    return f"one of the labels {', '.join(names[:_NAMED])}" + (f" and {more:,} more" if more > 0 else "")

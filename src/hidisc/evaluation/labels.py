"""What the labels of a task lack: classes without reference or test patients, patches without a class."""

from collections.abc import Iterator, Sequence

import numpy as np

from hidisc.evaluation.pooling import group
from hidisc.evaluation.scores import Finding
from hidisc.evaluation.task import LabelledPatches, Task

_NAMED = 3
"""Classes in a sentence; of the others the count is given."""


def check_labels(task: Task) -> tuple[Finding, ...]:
    """What to mind of the labels: a warning where a class cannot be recognised, a note where less is missing."""
    return (
        *(Finding(kind="warning", sentence=sentence) for sentence in _without_reference(task)),
        *(Finding(kind="note", sentence=sentence) for sentence in _without_test(task)),
        *(Finding(kind="note", sentence=sentence) for sentence in _without_label(task)),
    )


def _without_reference(task: Task) -> Iterator[str]:
    """Classes of the queries that no neighbour can vote for and no probe can learn."""
    absent = _find_absent(task, task.bank)
    if absent:
        unit = _unit(task)
        count = _count_units(task, absent)
        theirs = "its" if len(absent) == 1 else "their"
        lost = f"none of {theirs} {count:,} test {unit}s can be recognised"
        lost = f"{theirs} only test {unit} cannot be recognised" if count == 1 else lost
        yield f"No reference {unit} has {_name(task, absent)}, so {lost}."


def _without_test(task: Task) -> Iterator[str]:
    absent = _find_absent(task, task.queries)
    if absent:
        they = "it is" if len(absent) == 1 else "they are"
        yield (f"No test {_unit(task)} has {_name(task, absent)}, so how well {they} recognised was not measured.")


def _without_label(task: Task) -> Iterator[str]:
    for patches, whose in ((task.bank, "reference"), (task.queries, "test")):
        if patches.unlabelled:
            were, they = ("was", "it has") if patches.unlabelled == 1 else ("were", "they have")
            yield (
                f"{patches.unlabelled:,} of {patches.unlabelled + len(patches):,} patches of the {whose} "
                f"{_unit(task)}s {were} left out: {they} no label, or none of the classes."
            )


def _find_absent(task: Task, patches: LabelledPatches) -> list[int]:
    """Codes of the classes that no patch of the bank, or of the queries, has."""
    return np.setdiff1d(np.arange(len(task.classes)), patches.labels).tolist()


def _count_units(task: Task, classes: Sequence[int]) -> int:
    """Test patients with a patch of one of the classes."""
    levels = task.levels[: task.levels.index(_unit(task)) + 1]
    members, _ = group(task.queries, levels)
    return len(np.unique(members[np.isin(task.queries.labels, classes)]))


def _unit(task: Task) -> str:
    """Whom the sentences are about: patients, or where there are none whatever is coarsest."""
    return "patient" if "patient" in task.levels else task.levels[0]


def _name(task: Task, classes: Sequence[int]) -> str:
    names = [repr(task.classes[code]) for code in classes]
    if len(names) == 1:
        return f"label {names[0]}"
    more = len(names) - _NAMED
    return f"one of the labels {', '.join(names[:_NAMED])}" + (f" and {more:,} more" if more > 0 else "")

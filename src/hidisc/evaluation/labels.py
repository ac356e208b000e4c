"""Labels of a task: how many units of each class there are, and which classes or labels are missing."""

from collections.abc import Sequence

import numpy as np

from hidisc.evaluation.scores import Count, Finding
from hidisc.evaluation.task import LabelledPatches, Task
from hidisc.ground.text import count, name_some, plural


def count_units(task: Task) -> tuple[Count, ...]:
    """Units of every level with a patch of the class, as in the paper's tables of data.

    A unit with patches of two classes counts for both.
    """
    counts = []
    for part, patches in (("bank", task.bank), ("queries", task.queries)):
        units = {level: patches.units(task.levels[: depth + 1]) for depth, level in enumerate(task.levels[:-1])}
        for code, label in enumerate(task.classes):
            rows = patches.labels == code
            numbers = {level: len(np.unique(groups.of_row[rows])) for level, groups in units.items()}
            counts.append(Count(label=label, part=part, units={**numbers, "patch": int(rows.sum())}))
    return tuple(sorted(counts, key=lambda counted: task.classes.index(counted.label)))


def check_labels(task: Task) -> tuple[Finding, ...]:
    """A warning where a class cannot be recognised, and notes on classes without test patients and missing labels."""
    level = "patient" if "patient" in task.levels else task.levels[0]
    findings = []
    absent = _find_absent(task, task.bank)
    if absent:  # no neighbour can vote for these classes, and no probe can learn them
        units = task.queries.units(task.levels[: task.levels.index(level) + 1])
        number = len(np.unique(units.of_row[np.isin(task.queries.labels, absent)]))
        whose = "its" if len(absent) == 1 else "their"
        lost = f"none of {whose} {count(number, f'test {level}')} can be recognised"
        lost = f"{whose} only test {level} cannot be recognised" if number == 1 else lost
        sentence = f"No reference {level} has {_name_labels(task, absent)}, so {lost}."
        findings.append(Finding(kind="warning", sentence=sentence))
    absent = _find_absent(task, task.queries)
    if absent:
        they = "it is" if len(absent) == 1 else "they are"
        sentence = f"No test {level} has {_name_labels(task, absent)}, so how well {they} recognised is unknown."
        findings.append(Finding(kind="note", sentence=sentence))
    for patches, role in ((task.bank, "reference"), (task.queries, "test")):
        if patches.unlabelled:
            were, they = ("was", "it has") if patches.unlabelled == 1 else ("were", "they have")
            sentence = f"{patches.unlabelled:,} of {patches.unlabelled + len(patches):,} patches of the {role} "
            sentence += f"{plural(level)} {were} left out: {they} no label, or none of the classes."
            findings.append(Finding(kind="note", sentence=sentence))
    return tuple(findings)


def _find_absent(task: Task, patches: LabelledPatches) -> list[int]:
    """Codes of the classes that no patch of the bank, or of the queries, has."""
    return np.setdiff1d(np.arange(len(task.classes)), patches.labels).tolist()


def _name_labels(task: Task, classes: Sequence[int]) -> str:
    names = name_some(task.classes[code] for code in classes)
    return f"label {names}" if len(classes) == 1 else f"any of the labels {names}"

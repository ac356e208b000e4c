"""How many patients, slides and patches of each class are in the bank and in the queries, as in the paper's tables."""

import numpy as np

from hidisc.evaluation.pooling import group
from hidisc.evaluation.scores import Count
from hidisc.evaluation.task import Task


def count_units(task: Task) -> tuple[Count, ...]:
    """Units of every level with a patch of the class; one with patches of two classes counts for both."""
    found = []
    for code, label in enumerate(task.classes):
        for name, patches in (("bank", task.bank), ("queries", task.queries)):
            rows = patches.labels == code
            units = {}
            for place, level in enumerate(task.levels[:-1]):
                members, _ = group(patches, task.levels[: place + 1])
                units[level] = len(np.unique(members[rows]))
            found.append(Count(label=label, part=name, units={**units, "patch": int(rows.sum())}))
    return tuple(found)

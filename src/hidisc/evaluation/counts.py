"""How many patients, slides and patches of each class are on each side, as in the paper's dataset tables."""

import numpy as np

from hidisc.evaluation.pooling import group
from hidisc.evaluation.scores import Count
from hidisc.evaluation.sides import Question


def count_units(question: Question) -> tuple[Count, ...]:
    """Units of every level with a patch of the class; one with patches of two classes counts for both."""
    found = []
    for code, label in enumerate(question.classes):
        for name, side in (("bank", question.bank), ("queries", question.queries)):
            rows = side.labels == code
            units = {}
            for place, level in enumerate(question.levels[:-1]):
                members, _ = group(side, question.levels[: place + 1])
                units[level] = len(np.unique(members[rows]))
            found.append(Count(label=label, side=name, units={**units, "patch": int(rows.sum())}))
    return tuple(found)

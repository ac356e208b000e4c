"""The task of an evaluation: a bank of patches with known labels, and queries whose labels are predicted from it.

Rows are grouped by unit (a patient, a slide), with sums and means of groups.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hidisc.embeddings.embeddings import Embeddings
from hidisc.evaluation.classes import Classes
from hidisc.evaluation.metrics import Floats, Ints
from hidisc.ground.errors import UserError
from hidisc.ground.text import name_some
from hidisc.patches.table import SAME_SCALE
from hidisc.sampling.hierarchy import Hierarchy
from hidisc.settings.evaluate import EvaluateConfig

_MOST_NUMBERS = 10
"""Different numbers that may be classes, such as grades; more are a measurement."""
Codes = NDArray[np.integer[Any]]
"""(N,) a number for each row's name at one level; negative where the name is missing."""


@dataclass(frozen=True)
class Units:
    """N rows in G units, numbered from 0 in the order of their codes."""

    of_row: Ints
    """(N,) the unit of each row."""
    first: Ints
    """(G,) the first row of each unit."""

    def __len__(self) -> int:
        return len(self.first)

    @property
    def counts(self) -> Ints:
        """(G,) rows of each unit."""
        return np.bincount(self.of_row, minlength=len(self))

    def rows(self) -> list[Ints]:
        """The rows of each unit, ascending."""
        return np.split(np.argsort(self.of_row, kind="stable"), np.cumsum(self.counts)[:-1])

    def sums(self, values: Floats) -> Floats:
        """(G, C) sums of values (N, C) over the rows of each unit."""
        return np.stack([np.bincount(self.of_row, column, minlength=len(self)) for column in values.T], axis=1)

    def have_one_label(self, labels: Ints) -> NDArray[np.bool_]:
        """(G,) whether all rows of a unit have the same label, of labels (N,)."""
        differs = labels != labels[self.first][self.of_row]
        return np.bincount(self.of_row[differs], minlength=len(self)) == 0


def group(codes: Sequence[Codes]) -> Units:
    """Group rows (N,) by their codes at several levels, coarse to fine.

    A unit is known by the names of all its ancestors: slide 1 of patient A is not slide 1 of patient B.
    """
    of_row, first = np.zeros(len(codes[0]), np.int64), np.zeros(1, np.int64)
    for level in codes:
        # one number for each pair (unit so far, code): sorting pairs of millions of rows would take minutes
        pairs = of_row * (int(level.max(initial=-1)) + 2) + level + 1
        _, first, of_row = np.unique(pairs, return_index=True, return_inverse=True)
    return Units(of_row, first)


@dataclass(frozen=True)
class LabelledPatches:
    """N patches of some embeddings, with their labels."""

    embeddings: Embeddings
    rows: NDArray[np.int64]
    """(N,) rows of the embeddings and of their table, ascending."""
    labels: NDArray[np.int64]
    """(N,) codes into the task's classes."""
    unlabelled: int
    """Patches left out because they have no label, or none of the classes."""
    exchanged: NDArray[np.float32] | None = None
    """(N, D) vectors in place of the stored ones: aligned, or those of a floor."""

    def __len__(self) -> int:
        return len(self.rows)

    def vectors(self, chosen: slice | NDArray[np.integer[Any]] = slice(None)) -> NDArray[np.float32]:
        """(n, D) embeddings of some of its N patches, by their index, read from disk."""
        if self.exchanged is not None:
            return self.exchanged[chosen]
        return np.asarray(self.embeddings.vectors[self.rows[chosen]], np.float32)

    __getitem__ = vectors  # `patches[:1000]` are vectors, as `find_neighbours` reads them

    def choose(self, chosen: NDArray[np.bool_]) -> "LabelledPatches":
        """The patches that are chosen (N,)."""
        exchanged = None if self.exchanged is None else self.exchanged[chosen]
        return replace(self, rows=self.rows[chosen], labels=self.labels[chosen], exchanged=exchanged)

    def names(self, column: str) -> NDArray[Any]:
        """(N,) values of a column of the table, such as `patient`; a missing name is None."""
        return self.embeddings.table.column(column)[self.rows]

    def codes(self, column: str) -> NDArray[np.int32]:
        """(N,) codes of a column of names, -1 where missing."""
        return self.embeddings.table.codes(column)[0][self.rows]

    def units(self, levels: Sequence[str]) -> Units:
        """Its patches grouped by the finest of some levels, which are given coarse to fine."""
        return group([self.codes(level) for level in levels])


@dataclass(frozen=True)
class Task:
    """What is predicted, for which patches (queries), from which labelled patches (bank)."""

    endpoint: Classes
    levels: tuple[str, ...]
    """Coarse to fine, the patch last."""
    bank: LabelledPatches
    queries: LabelledPatches

    def __len__(self) -> int:
        """Patches of bank and queries."""
        return len(self.bank) + len(self.queries)

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes."""
        return self.endpoint.classes

    def find_scales(self) -> list[float]:
        """The scales, finest first, that both bank and queries have; empty where there are not several."""
        bank, queries = (np.unique(patches.names("mpp")) for patches in (self.bank, self.queries))
        shared = [float(mpp) for mpp in queries.round(4) if np.isclose(bank, mpp, rtol=SAME_SCALE).any()]
        return shared if len(shared) > 1 else []

    def at_scale(self, mpp: float | None) -> "Task":
        """The task with the patches of one scale alone, in the bank and in the queries; None: of all scales."""
        if mpp is None:
            return self
        bank, queries = (
            patches.choose(np.isclose(patches.names("mpp"), mpp, rtol=SAME_SCALE))
            for patches in (self.bank, self.queries)
        )
        return replace(self, bank=bank, queries=queries)


def choose_task(queries: Embeddings, bank: Embeddings, config: EvaluateConfig) -> Task:
    """Choose the patches of the bank and of the queries; a task that cannot be evaluated is refused."""
    if queries.info.model.checksum != bank.info.model.checksum:
        raise UserError(
            f"{queries.path} and {bank.path} were made by different encoders ({queries.info.model.name!r} and "
            f"{bank.info.model.name!r}), so they cannot be compared. Embed both with the same encoder."
        )
    levels = choose_levels(queries, config)
    choose_levels(bank, config)
    parts = _choose_rows(queries, bank, config)
    columns = [given.table.codes(config.label) for _, given, _ in parts]
    present = {
        names[code]
        for (_, _, rows), (codes, names) in zip(parts, columns, strict=True)
        for code in np.unique(codes[rows])
        if code >= 0
    }
    classes = _choose_classes(sorted(present), queries, config)
    class_of = {name: number for number, name in enumerate(classes)}
    bank_and_queries = []
    for (who, given, rows), (codes, names) in zip(parts, columns, strict=True):
        labels = np.array([*(class_of.get(name, -1) for name in names), -1], np.int64)[codes[rows]]
        known = labels >= 0
        if not known.any():
            raise UserError(
                f"no patch of {who} in {given.path} has a {config.label} among {', '.join(classes)}. "
                "Fill in the labels, or choose other patients."
            )
        patches = LabelledPatches(given, rows[known], labels[known], int((~known).sum()))
        for level in levels[:-1]:
            nameless = int((patches.codes(level) < 0).sum())
            if nameless:
                raise UserError(
                    f"levels: {nameless:,} of {len(patches):,} patches of {given.path} have no {level!r}. Fill that "
                    "column of the cohort, prepare and embed again, or leave the level out."
                )
        bank_and_queries.append(patches)
    positive = classes[-1] if config.positive is None else config.positive
    if positive not in classes:
        raise UserError(f"positive = {positive!r} is not one of the classes: {', '.join(classes)}.")
    endpoint = Classes(label=config.label, classes=classes, positive=classes.index(positive))
    return Task(endpoint, levels, *bank_and_queries)


def choose_levels(given: Embeddings, config: EvaluateConfig) -> tuple[str, ...]:
    """The levels, coarse to fine; levels or a label that the table has no column for are refused."""
    levels = Hierarchy(config.levels).levels
    if len(levels) < 2:
        raise UserError(
            "levels has no level above the patch, and the bootstrap resamples such units: set levels=[patient, slide, "
            "patch]."
        )
    unknown = [name for name in (*levels[:-1], config.label) if name not in given.table.names]
    if unknown:
        raise UserError(
            f"{given.path} has no column of names {unknown[0]!r}; it has {', '.join(given.table.names)}. "
            "Set levels=[...] and label=... to some of these."
        )
    return levels


def _choose_rows(
    queries: Embeddings, bank: Embeddings, config: EvaluateConfig
) -> tuple[tuple[str, Embeddings, NDArray[np.int64]], ...]:
    """Rows of the bank, then of the queries, each with its embeddings and in words."""
    if config.test_patients is None:
        parts = (("bank", bank, config.bank), ("queries", queries, config.queries))
        return tuple(
            (f"{name}={list(splits)}", given, np.flatnonzero(given.table.in_splits(splits, name, given.path)))
            for name, given, splits in parts
        )
    if bank is not queries:
        raise UserError("test_patients and --bank exclude each other: give the bank's splits with bank=[...].")
    is_test = queries.table.of_patients(config.test_patients, "test_patients", queries.path)
    return (
        ("the reference patients", bank, np.flatnonzero(~is_test)),
        ("test_patients", queries, np.flatnonzero(is_test)),
    )


def _choose_classes(present: list[str], queries: Embeddings, config: EvaluateConfig) -> tuple[str, ...]:
    """The classes of the settings, or all labels that are `present`; fewer than two are refused, and many numbers."""
    classes = config.classes or tuple(present)
    missing = [name for name in classes if name not in present]
    if missing:
        raise UserError(f"classes: no patch has {config.label} {missing[0]!r}. There are {', '.join(present)}.")
    if config.classes is None and len(present) > _MOST_NUMBERS and all(map(_is_number, present)):
        raise UserError(
            f"{config.label} of {queries.path} has {len(present)} different numbers ({name_some(present)}), and each "
            f"would be a class of its own. Add a column of classes to the cohort, such as low and high {config.label}, "
            "and set label=COLUMN; or name the classes with classes=[...]."
        )
    if len(classes) > 1:
        return classes
    if config.classes:
        raise UserError(
            f"classes has {classes[0]!r} only, and an evaluation needs two classes or more. There are "
            f"{', '.join(present)}."
        )
    problem = f"no patch of {queries.path} has a {config.label}"
    if classes:
        problem = f"all patches of {queries.path} have the {config.label} {classes[0]!r}"
    raise UserError(
        f"{problem}, and an evaluation needs two labels or more. "
        "Give the cohort a `label` column and prepare it again, or set label=COLUMN."
    )


def _is_number(name: str) -> bool:
    """Whether a label is a number, such as `12.5`."""
    try:
        float(name)
    except ValueError:
        return False
    return True

"""Predictions: a probe's scores of every patch, slide or patient, with the true labels; averaged to any level."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hidisc.evaluation.classes import Classes
from hidisc.evaluation.task import Task, Units, group
from hidisc.ground.columns import Columns, load_columns, load_notes, save_columns
from hidisc.ground.errors import UserError
from hidisc.ground.files import AnyPath, make_folder
from hidisc.ground.spreadsheet import format_csv
from hidisc.ground.text import plural

TRUTH, PREDICTED, SCORE, FOLD = "label", "predicted", "score: ", "judged in fold"
ENCODER = "encoder"
_NOTE = "hidisc"


def encoder_on(floor: str) -> str:
    """The subject that is the encoder judged by the patches of a floor, where that has fewer."""
    return f"{ENCODER}-on-{floor}"


@dataclass(frozen=True)
class Key:
    """What some predictions are of: the key of the table of everything that is judged."""

    subject: str
    """`encoder`; a floor whose vectors stand in place of the encoder's, such as `colour`; or `encoder-on-colour`."""
    probe: str
    level: str
    scale: float | None = None
    """Micrometres per pixel of the patches that are judged; None: the patches of all scales together."""
    fold: int | None = None
    """The fold whose patients are judged, from 1; None: no cross-validation, or all folds pooled."""

    def as_dict(self) -> dict[str, Any]:
        """Its fields by their names."""
        return asdict(self)

    def file(self, first_probe: str) -> str:
        """Name within a folder of scores; the encoder's by the first probe, at all scales, are at the top."""
        parts = [] if self.subject == ENCODER else [self.subject]
        if self.scale is not None:
            parts.append(f"scales/{self.scale:g}")
        elif parts or self.probe != first_probe:
            parts.append(self.probe)
        return "/".join([*parts, f"predictions_{self.level}.parquet"])


@dataclass(frozen=True)
class Predictions:
    """G units of one level; L classes."""

    key: Key
    endpoint: Classes
    units: Columns
    """(G,) each: the names of a unit and of those above it, coarsest first; for patches also patch, x, y and row."""
    truth: NDArray[np.int64]
    """(G,) codes into the endpoint's classes."""
    scores: NDArray[np.float64]
    """(G, L), rows sum to 1."""
    left_out: int = 0
    """Units left out because their patches have several labels, so that they have no true label."""
    fold: NDArray[np.int64] | None = None
    """(G,) the fold that judged each, where folds were pooled; a score means something else in each."""

    def __len__(self) -> int:
        return len(self.truth)

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the L classes."""
        return self.endpoint.classes

    @property
    def level(self) -> str:
        """The level of the units."""
        return self.key.level

    @property
    def predicted(self) -> NDArray[np.int64]:
        """(G,) the class of the largest score."""
        return self.scores.argmax(axis=1)

    @property
    def cluster(self) -> str:
        """The coarsest level, normally the patient: its units are what the bootstrap resamples."""
        return next(iter(self.units))

    @property
    def clusters(self) -> NDArray[np.object_]:
        """(G,) name of the coarsest unit (the patient) each belongs to."""
        return self.units[self.cluster]

    @cached_property
    def truth_checksum(self) -> str:
        """SHA-256 of a line of JSON per unit, sorted: its names from the coarsest level down, and its label."""
        levels = list(self.units)
        columns = [self.units[name].tolist() for name in levels[: levels.index(self.level) + 1]]
        labels = [self.classes[code] for code in self.truth.tolist()]
        lines = sorted(map(json.dumps, zip(*columns, labels, strict=True)))
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()

    @cached_property
    def labels(self) -> dict[tuple[object, ...], int | None]:
        """The code of each unit's class by its names; of patches that of their slide, None where they have several."""
        names = list(takewhile(lambda name: name != "patch", self.units))
        labels: dict[tuple[object, ...], int | None] = {}
        for *unit, code in zip(*(self.units[name].tolist() for name in names), self.truth.tolist(), strict=True):
            labels[tuple(unit)] = code if labels.setdefault(tuple(unit), code) == code else None
        return labels

    def split_by_fold(self) -> list[NDArray[np.bool_]]:
        """(G,) each: the units of every fold, whose scores can be compared; all units where there are no folds."""
        if self.fold is None:
            return [np.ones(len(self), bool)]
        return [self.fold == number for number in np.unique(self.fold)]

    def choose(self, chosen: NDArray[np.bool_] | NDArray[np.int64]) -> "Predictions":
        """The units that are chosen: whether each is (G,), or their numbers (n,)."""
        units = {name: column[chosen] for name, column in self.units.items()}
        fold = None if self.fold is None else self.fold[chosen]
        return replace(self, units=units, truth=self.truth[chosen], scores=self.scores[chosen], fold=fold)

    def save(self, path: Path) -> None:
        """Write as Parquet: units, `label`, `predicted`, the fold if any, and one column `score: CLASS` per class.

        The key and the question (the endpoint, and the checksum of the truth) are a note in the file.
        """
        question = {"endpoint": self.endpoint.model_dump(), "truth": self.truth_checksum}
        about = {"key": self.key.as_dict(), **question, "left_out": self.left_out}
        make_folder(path.parent)
        save_columns(path, self._list_columns(), {_NOTE: json.dumps(about)})

    def to_csv(self) -> str:
        """The same columns as a CSV for spreadsheet programs."""
        columns = self._list_columns()
        return format_csv(list(columns), zip(*(column.tolist() for column in columns.values()), strict=True))

    def _list_columns(self) -> Columns:
        names = np.array(self.classes, object)
        columns = {**self.units, TRUTH: names[self.truth], PREDICTED: names[self.predicted]}
        columns |= {} if self.fold is None else {FOLD: self.fold}
        return columns | {SCORE + name: self.scores[:, code] for code, name in enumerate(self.classes)}

    @classmethod
    def load(cls, path: AnyPath) -> "Predictions":
        """Read back what `save` wrote."""
        path = Path(path)
        columns, notes = load_columns(path), load_notes(path)
        if _NOTE not in notes:
            raise UserError(f"{path} was written by hidisc 0.3 or older. Evaluate again with a new --out.")
        about = json.loads(notes[_NOTE])
        if "truth" not in about:
            raise UserError(f"{path} does not say which labels it is about. Evaluate again with a new --out.")
        endpoint = Classes.model_validate(about["endpoint"])
        code = {name: number for number, name in enumerate(endpoint.classes)}
        truth = np.array([code[name] for name in columns.pop(TRUTH)], np.int64)
        columns.pop(PREDICTED)
        fold = columns.pop(FOLD, None)
        scores = np.stack([columns.pop(SCORE + name) for name in endpoint.classes], axis=1)
        return cls(Key(**about["key"]), endpoint, columns, truth, scores, about["left_out"], fold)


def patch_predictions(task: Task, scores: NDArray[np.float64], key: Key) -> Predictions:
    """Scores (N, L) of the test patches with their names and positions."""
    patches = task.queries
    scale = ("mpp",) if "place" in patches.embeddings.table.names else ()
    columns: Columns = {name: patches.names(name) for name in (*task.levels[:-1], "patch", "x", "y", *scale)}
    return Predictions(key, task.endpoint, {**columns, "row": patches.rows}, patches.labels, scores)


def pool_levels(task: Task, scores: NDArray[np.float64], key: Key, second_softmax: bool = False) -> list[Predictions]:
    """Predictions of every level, finest first, from the scores (N, L) of the test patches; `key` is of the patches."""
    coarser = [replace(key, level=level) for level in task.levels[-2::-1]]  # such as slide, patient
    return [
        patch_predictions(task, scores, key),
        *(pool_patches(task, scores, key_of_level, second_softmax) for key_of_level in coarser),
    ]


def pool_patches(task: Task, scores: NDArray[np.float64], key: Key, second_softmax: bool = False) -> Predictions:
    """Mean scores of the units of `key.level`, above the patch; units of several labels are left out and counted.

    `second_softmax` is applied to a patch's scores before they are averaged, as in the public code.
    """
    patches = task.queries
    if second_softmax:
        exponentials = np.exp(scores)
        scores = exponentials / exponentials.sum(axis=1, keepdims=True)
    levels = task.levels[: task.levels.index(key.level) + 1]
    columns: Columns = {name: patches.names(name) for name in levels}
    finer = Predictions(key, task.endpoint, columns, patches.labels, scores)
    return _average(finer, patches.units(levels))


def pool_units(predictions: Predictions, level: str) -> Predictions:
    """Mean scores of coarser units from predictions of finer ones, such as patients from slides, equally weighted."""
    names = list(predictions.units)
    columns = {name: predictions.units[name] for name in names[: names.index(level) + 1]}
    units = group([np.unique(column, return_inverse=True)[1] for column in columns.values()])
    return _average(replace(predictions, key=replace(predictions.key, level=level), units=columns), units)


def _average(finer: Predictions, units: Units) -> Predictions:
    """Mean scores of the units that have one label; the columns, labels and scores of `finer` are of their parts."""
    has_one = units.have_one_label(finer.truth)
    first = units.first[has_one]
    means = units.sums(finer.scores)[has_one] / units.counts[has_one, None]
    return replace(finer.choose(first), scores=means, left_out=int((~has_one).sum()))


def refuse_other_question(first: Predictions, other: Predictions) -> None:
    """Refuse to put predictions of another endpoint, or of labels that have changed, beside the first."""
    if first.endpoint != other.endpoint:
        raise UserError(
            f"{first.endpoint.describe()} and {other.endpoint.describe()} are two questions, so their evaluations "
            "cannot be compared or pooled. Evaluate both with the same label, classes and positive."
        )
    refuse_changed_labels(first, other)


def refuse_changed_labels(first: Predictions, other: Predictions) -> None:
    """Refuse predictions in which a unit has another label than in the first."""
    pairs = ((unit, first.labels[unit], code) for unit, code in other.labels.items() if unit in first.labels)
    changed = [(unit, old, new) for unit, old, new in pairs if None not in (old, new) and old != new]
    if changed:
        levels = list(first.units)
        place = levels.index("patient") if "patient" in levels else 0
        patients = {unit[: place + 1] for unit, _, _ in changed}
        whose = f"1 {levels[place]}" if len(patients) == 1 else f"{len(patients):,} {plural(levels[place])}"
        unit, old, new = min(changed, key=lambda pair: tuple(map(str, pair[0])))
        raise UserError(
            f"the {first.endpoint.label} of {whose} differs between two evaluations, such as that of "
            f"{unit[place]!r} ({first.classes[old or 0]} in one, {first.classes[new or 0]} in the other). Evaluate "
            "both with the same labels."
        )


def pool_folds(folds: Sequence[Predictions]) -> Predictions:
    """The units of all folds, one fold after the other; a patient that two folds have judged is refused."""
    for fold in folds[1:]:
        refuse_other_question(folds[0], fold)
    patients = [set(fold.clusters.tolist()) for fold in folds]
    if sum(map(len, patients)) != len(set().union(*patients)):
        raise UserError("two folds have judged the same patient, so they cannot be pooled. Make the folds anew.")
    return replace(
        folds[0],
        key=replace(folds[0].key, fold=None),
        units={name: np.concatenate([fold.units[name] for fold in folds]) for name in folds[0].units},
        truth=np.concatenate([fold.truth for fold in folds]),
        scores=np.concatenate([fold.scores for fold in folds]),
        left_out=sum(fold.left_out for fold in folds),
        fold=np.repeat(np.arange(1, len(folds) + 1), [len(fold) for fold in folds]),
    )

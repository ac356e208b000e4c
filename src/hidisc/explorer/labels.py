"""Labels that people give to patches, saved at once and undone step by step; and the patches to label next."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hidisc.artefacts.lock import hold
from hidisc.embeddings.given_names import LABELS, GivenNames, clean_label, labels_file, load_labels, save_labels
from hidisc.explorer.columns import Column, choose_colours
from hidisc.ground.errors import UserError
from hidisc.ground.progress import Say
from hidisc.ground.seeds import Purpose, make_rng
from hidisc.ground.text import count
from hidisc.patches.record import SlideId
from hidisc.patches.table import PatchTable
from hidisc.settings.evaluate import LinearConfig
from hidisc.slides.names import Name, address_given, find_twins

_OFFERED, _COMPARED = 24, 20_000
"""Patches that are offered; most labelled patches that the probe learns from, and most others that it predicts."""


def find_uncertain(
    vectors: NDArray[Any], labels: NDArray[np.object_], patients: NDArray[np.int64]
) -> tuple[NDArray[np.int64], str]:
    """Vectors without a label of which a linear probe is least sure, the least sure first; and a sentence on the probe.

    `vectors` (N, D); `labels` (N,), None for a patch without a label; `patients` (N,) codes.
    """
    is_labelled = labels != None  # noqa: E711 - elementwise
    classes, codes = np.unique(labels[is_labelled].astype(str), return_inverse=True)
    known, unknown = np.flatnonzero(is_labelled), np.flatnonzero(~is_labelled)
    if len(classes) < 2:
        raise UserError("a probe needs patches of two names at least. Give a second name to some.")
    if not len(unknown):
        raise UserError("every patch has a name already.")
    from hidisc.evaluation.probes.linear import choose_penalty, fit_models  # torch takes seconds to load

    rng = make_rng(0, Purpose.EXPLORED_PROBE)
    learned = np.sort(rng.permutation(len(known))[:_COMPARED])
    unknown = np.sort(rng.permutation(unknown)[:_COMPARED])
    x, y, groups = np.asarray(vectors[known[learned]], np.float32), codes[learned], patients[known[learned]]
    config = LinearConfig()
    choice = choose_penalty(x, y, groups, config, rng)
    model, _ = next(fit_models(x, y, [choice.penalty], config.iterations))
    sure = model.predict(np.asarray(vectors[unknown], np.float32)).max(axis=1)
    remark = (
        f"Linear probe on {count(len(learned), 'patch')} of {count(len(np.unique(groups)), 'patient')}; least sure of "
        f"{count(len(unknown), 'patch')} without a name."
    )
    return unknown[np.argsort(sure, kind="stable")[:_OFFERED]], remark


_WAIT_S = 5.0
_MOST_UNDONE = 100


@dataclass(frozen=True, eq=False)
class _Change:
    """A change of some rows (n,) of a set by one visitor."""

    number: int
    rows: NDArray[np.int64]
    before: tuple[NDArray[np.object_], ...]
    """Labels, ways and encoders (n,) that the rows had."""
    after: tuple[NDArray[np.object_], ...]
    """Those that they were given."""
    last: NDArray[np.int64]
    """The number (n,) of the last change of each row before."""


@dataclass(frozen=True)
class Undone:
    """What an undo did."""

    count: int
    """Patches that have again what they had."""
    stayed: int
    """Patches of the change that somebody named anew since, and that stay as they are."""


class LabelSets:
    """The sets of names of the N patches of a table; each set is a file beside the folder `home`, and a column."""

    def __init__(self, home: Path, table: PatchTable, slides: Sequence[SlideId], say: Say) -> None:
        self._home, self._table, self._slides = home, table, slides
        self._sets: dict[str, GivenNames] = {}
        self._undo: dict[tuple[str, str], list[_Change]] = {}
        """The changes of a set by a visitor, the last one last."""
        self._last: dict[str, NDArray[np.int64]] = {}
        """By set, the number (N,) of the change that each patch has its name from; 0: of none here."""
        self._changes = 0
        self._busy = Lock()
        self.columns: dict[str, Column] = {}
        """The sets as columns, by their addresses."""
        for path in sorted((home.resolve().parent / LABELS).glob("*.parquet")):
            try:
                self._read(path.stem)
            except UserError as error:
                say(f"note: {error}")

    def find(self, name: str) -> NDArray[np.object_]:
        """The labels (N,) of a set; None for a patch without a label."""
        return self._find(name).labels

    def _find(self, name: str) -> GivenNames:
        return self._sets.get(name) or GivenNames.none(len(self._table))

    def give(
        self,
        name: str,
        labels: str | NDArray[np.object_] | None,
        rows: NDArray[np.int64],
        *,
        given_by: str | None,
        encoder: str | None = None,
        visitor: str = "",
    ) -> tuple[str, ...]:
        """Give some rows (n,) a label, or a label each, or take their labels away (None), as one change of a visitor.

        `given_by` and `encoder`: as in `GivenNames`. On return the change is on the disk. Returns warnings of labels
        that look alike.
        """
        each = np.full(len(rows), labels, object) if isinstance(labels, str | None) else labels
        cleaned = {label: clean_label(label) for label in set(each.tolist())}
        given = np.array([cleaned[label] for label in each], object)
        is_named = given != None  # noqa: E711 - elementwise
        way, origin = (
            np.array([value if named else None for named in is_named], object) for value in (given_by, encoder)
        )
        with self._busy, self._held(name):
            names = self._read(name)
            last = self._last.setdefault(name, np.zeros(len(self._table), np.int64))
            self._changes += 1
            change = _Change(self._changes, rows, names.of(rows), (given, way, origin), last[rows])
            self._write(name, names.change(rows, change.after))
            last[rows] = change.number
            self._undo.setdefault((name, visitor), []).append(change)
            del self._undo[name, visitor][:-_MOST_UNDONE]
        return tuple(
            find_twins(Name("label", label, f"set {name}") for label in self.columns[address_given(name)].names)
        )

    def undo(self, name: str, visitor: str = "") -> Undone:
        """Undo the last change of a set by a visitor, where each patch still has the name that the change gave."""
        if not self._undo.get((name, visitor)):
            raise UserError(f"nothing of {name!r} is left to undo.")
        with self._busy, self._held(name):
            change = self._undo[name, visitor][-1]
            names, last = self._read(name), self._last[name]
            is_ours = last[change.rows] == change.number
            for now, after in zip(names.of(change.rows), change.after, strict=True):
                is_ours &= now == after  # another explorer may have written
            rows = change.rows[is_ours]
            if len(rows):
                self._write(name, names.change(rows, [value[is_ours] for value in change.before]))
                last[rows] = change.last[is_ours]
            self._undo[name, visitor].pop()
        return Undone(len(rows), len(change.rows) - len(rows))

    def _held(self, name: str) -> AbstractContextManager[None]:
        """Hold the folder of the labels, so that two explorers do not overwrite each other's changes."""
        return hold(labels_file(self._home, name).parent, _WAIT_S)

    def _read(self, name: str) -> GivenNames:
        path = labels_file(self._home, name)
        names = load_labels(path, self._table, self._slides) if path.is_file() else self._find(name)
        self._set(name, names)
        return names

    def _write(self, name: str, names: GivenNames) -> None:
        save_labels(self._home, name, self._table, self._slides, names)
        self._set(name, names)

    def _set(self, name: str, names: GivenNames) -> None:
        self._sets[name] = names
        present = sorted(set(names.labels.tolist()) - {None})
        number_of = {label: number for number, label in enumerate(present)}
        codes = np.array([number_of.get(label, -1) for label in names.labels], np.int32)
        column = Column(f"labels: {name}", tuple(present), codes, choose_colours(len(present)))
        self.columns = {**self.columns, address_given(name): column}

"""Labels that people give to patches: written at once, undone one by one; active learning."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hidisc.artefacts.lock import hold
from hidisc.embeddings.embeddings import LABELS, labels_file, load_labels, save_labels
from hidisc.explorer.columns import Column, choose_colours
from hidisc.ground.columns import Columns
from hidisc.ground.errors import UserError
from hidisc.ground.progress import Say
from hidisc.ground.seeds import Purpose, make_rng
from hidisc.ground.text import count
from hidisc.patches.record import SlideId
from hidisc.patches.table import PatchTable
from hidisc.settings.evaluate import LinearConfig

_OFFERED, _COMPARED = 24, 20_000
"""Patches offered; most patches that are learned from, and most without a label that are compared."""


def find_uncertain(
    vectors: NDArray[Any], labels: NDArray[np.object_], patients: NDArray[np.int64]
) -> tuple[NDArray[np.int64], str]:
    """Vectors without a label whose most probable one is least sure, the least sure first; and a sentence on the probe.

    `vectors` (N, D); `labels` (N,), None where there is none; `patients` (N,) codes.
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
    kept = np.sort(rng.permutation(len(known))[:_COMPARED])
    unknown = np.sort(rng.permutation(unknown)[:_COMPARED])
    x, y, whose = np.asarray(vectors[known[kept]], np.float32), codes[kept], patients[known[kept]]
    config = LinearConfig()
    choice = choose_penalty(x, y, whose, config, rng)
    model, _ = next(fit_models(x, y, [choice.penalty], config.iterations))
    sure = model.predict(np.asarray(vectors[unknown], np.float32)).max(axis=1)
    remark = (
        f"Linear probe on {count(len(kept), 'patch')} of {count(len(np.unique(whose)), 'patient')}; least sure of "
        f"{count(len(unknown), 'patch')} without a name."
    )
    return unknown[np.argsort(sure, kind="stable")[:_OFFERED]], remark


_WAIT_S = 5.0
_MOST_UNDONE, _MOST_LETTERS = 100, 100


class LabelSets:
    """The sets of labels beside a folder: each is a file, and a column of the patches (N,) of a table."""

    def __init__(self, home: Path, table: PatchTable, slides: Sequence[SlideId], say: Say) -> None:
        self._home, self._table, self._slides = home, table, slides
        self._sets: dict[str, tuple[NDArray[np.object_], Columns]] = {}
        self._undo: dict[str, list[tuple[NDArray[np.int64], NDArray[np.object_]]]] = {}
        self._busy = Lock()
        self.columns: dict[str, Column] = {}
        """The sets as columns, by `labels NAME`."""
        for path in sorted((home.resolve().parent / LABELS).glob("*.parquet")):
            try:
                self._read(path.stem)
            except UserError as error:
                say(f"note: {error}")

    def find(self, name: str) -> NDArray[np.object_]:
        """(N,) the labels of a set, None where there is none."""
        return self._sets[name][0] if name in self._sets else np.full(len(self._table), None, object)

    def give(self, name: str, label: str | None, rows: NDArray[np.int64]) -> None:
        """Give some rows a label, or take theirs away; on return it is on the disk."""
        self.give_each(name, np.full(len(rows), label, object), rows)

    def give_each(self, name: str, labels: NDArray[np.object_], rows: NDArray[np.int64]) -> None:
        """Give each of some rows a label of its own, as one change."""
        cleaned = {label: _clean(label) for label in set(labels.tolist())}
        if name in self._table.columns:
            raise UserError(f"the patches have a column {name!r} already. Give the set of labels another name.")
        with self._busy, self._held(name):
            before = self._read(name)[rows]
            self._write(name, rows, np.array([cleaned[label] for label in labels], object))
            self._undo.setdefault(name, []).append((rows, before))
            del self._undo[name][:-_MOST_UNDONE]

    def undo(self, name: str) -> int:
        """Take the last change of a set back; how many patches it was."""
        if not self._undo.get(name):
            raise UserError(f"nothing of {name!r} is left to undo.")
        with self._busy, self._held(name):
            rows, before = self._undo[name][-1]
            self._read(name)
            self._write(name, rows, before)
            self._undo[name].pop()
        return len(rows)

    def _held(self, name: str) -> AbstractContextManager[None]:
        """The folder of the labels, held, so that two explorers do not overwrite each other's."""
        return hold(labels_file(self._home, name).parent, _WAIT_S)

    def _read(self, name: str) -> NDArray[np.object_]:
        """The labels of a set as they are on the disk now."""
        path = labels_file(self._home, name)
        found = (self.find(name), {}) if not path.is_file() else load_labels(path, self._table, self._slides)
        self._set(name, *found)
        return found[0]

    def _write(self, name: str, rows: NDArray[np.int64], labels: NDArray[np.object_]) -> None:
        changed, others = self._sets[name][0].copy(), self._sets[name][1]
        changed[rows] = labels
        save_labels(labels_file(self._home, name), self._table, self._slides, changed, others)
        self._set(name, changed, others)

    def _set(self, name: str, labels: NDArray[np.object_], others: Columns) -> None:
        self._sets[name] = labels, others
        names = sorted(set(labels.tolist()) - {None})
        number_of = {label: number for number, label in enumerate(names)}
        codes = np.array([number_of.get(label, -1) for label in labels], np.int32)
        column = Column(f"labels: {name}", tuple(names), codes, choose_colours(len(names)))
        self.columns = {**self.columns, f"labels {name}": column}


def _clean(label: str | None) -> str | None:
    """A label with single spaces; refuses what cannot be read as a name."""
    label = " ".join(label.split()) if label is not None else None
    if label is not None and not (0 < len(label) <= _MOST_LETTERS and label.isprintable()):
        raise UserError(f"a label has 1 to {_MOST_LETTERS} letters. Type a name first.")
    return label

"""The session of an explorer: a store, and embeddings and scores made from it, by the rows of the store's table."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hidisc.artefacts.artefact import read_kind
from hidisc.embeddings.embeddings import Embeddings, find_rows_in_store
from hidisc.embeddings.feature_patches import FeaturePatches
from hidisc.evaluation.predictions import Predictions
from hidisc.evaluation.scores import Scores
from hidisc.explorer.columns import (
    CLUSTER,
    SIMILARITY,
    Column,
    address_predicted,
    attention_column,
    cluster_column,
    name_columns,
    number_column,
    score_columns,
)
from hidisc.explorer.labels import LabelSets
from hidisc.explorer.projection import load_map
from hidisc.explorer.similar import SimilaritySearch
from hidisc.explorer.slide import ShownSlide, show_slide
from hidisc.ground.errors import UserError
from hidisc.ground.progress import Say
from hidisc.patches.store import PatchStore
from hidisc.reporting.points import judge_patches
from hidisc.settings.level_names import LEVELS, LevelNames
from hidisc.slides.cohort import find_files
from hidisc.slides.names import address_computed, is_computed

Rows = NDArray[np.int64]
_SEVERAL = "several"
_NOT_JUDGED = {"predicted": "", "score": None, "result": ""}
_OPEN_SLIDES = 8
"""Slides kept open, each with up to 128 MB of decoded tiles."""


class Session:
    """An opened cohort; every patch is named by its row in the table of the store."""

    def __init__(
        self,
        store: PatchStore,
        embeddings: Embeddings | None,
        scores: Sequence[Scores],
        files: dict[str, Path],
        say: Say,
    ) -> None:
        self.store, self.embeddings, self.scores, self._files = store, embeddings, tuple(scores), files
        self.slides = store.info.slides
        rows_by = store.table.rows_by("slide")
        self.rows_of_slide = [rows_by.get(slide.slide, np.zeros(0, np.int64)) for slide in self.slides]
        self.embedded: Rows = np.zeros(0, np.int64)
        """The row of the store (N,) that each vector belongs to."""
        self.places = np.zeros((0, 2), np.float32)
        """The place (N, 2) of each vector on the map."""
        self._clusters = np.zeros(0, np.int32)
        self.search: SimilaritySearch | None = None
        if embeddings is not None:
            self.embedded = find_rows_in_store(embeddings, np.arange(len(embeddings)), store)
            placed = load_map(embeddings, say)
            self.places, self._clusters = placed.places, placed.clusters
            self.search = SimilaritySearch(embeddings.vectors)
        self.labels = LabelSets((embeddings or store).path, store.table, self.slides, say)
        self._show, self._opening = lru_cache(_OPEN_SLIDES)(self._open), Lock()
        self._compare = lru_cache(2)(self._compare_anew)

    @cached_property
    def vector_of(self) -> Rows:
        """The vector (M,) of each row of the store; -1 for a patch that was not embedded."""
        vectors = np.full(len(self.store), -1, np.int64)
        vectors[self.embedded] = np.arange(len(self.embedded))
        return vectors

    @cached_property
    def _fixed_columns(self) -> dict[str, Column]:
        columns = name_columns(self.store.table)
        for title, predictions in self._judged:
            rows = self.embedded[predictions.units["row"]]
            columns |= score_columns(predictions, rows, len(self.store), title, columns)
        for title, scores in self._titled:
            attention = scores.attention()
            if attention is not None and scores.info.levels[-2] == "slide":
                rows = self.embedded[attention[0]]
                name = f"attention, {title}" if title else "attention"
                column = attention_column(name, attention[1], self.slide_of[rows], rows, len(self.store))
                columns[address_computed(name)] = column
        if len(self.embedded):
            columns[CLUSTER] = cluster_column(self._clusters, self.embedded, len(self.store))
        return columns

    @property
    def columns(self) -> dict[str, Column]:
        """The columns that patches can be coloured by, by their addresses, which requests name."""
        return {**self._fixed_columns, **{key: column for key, column in self.labels.columns.items() if column.names}}

    @property
    def words(self) -> LevelNames:
        """The words of the page for patient, slide and patch."""
        return self.store.info.level_names

    def name_columns(self, *, in_files: bool = False) -> dict[str, str]:
        """The title of each column, which no other column has; columns of the user's own keep their names.

        `in_files`: titles are the same in every store, whatever it calls patients, slides and patches.
        """
        columns = self.columns
        titles = {
            key: self.words.word(key) if key in LEVELS and not in_files else column.title
            for key, column in columns.items()
        }
        times = Counter(titles.values())
        return {
            key: title if times[title] == 1 or title == key else f"{title} ({key})" for key, title in titles.items()
        }

    @property
    def classes(self) -> Column | None:
        """The classes of patches: those that the first evaluation predicted, else those of the table."""
        for title, _ in self._judged[:1]:
            return self._fixed_columns[address_predicted(title)]
        return self._fixed_columns.get("label")

    def find_column(self, key: str, row: int | None = None) -> Column:
        """A column by its address; `computed:similarity` holds the similarity of all patches with that of a row."""
        if key == SIMILARITY and row is not None:
            return self._compare(row)
        known = self._fixed_columns | self.labels.columns  # a set without labels too: a page may still show it
        if key not in known:
            raise UserError(f"the patches have no column {key!r}.")
        return known[key]

    def explain_absence(self, key: str, number: int) -> str:
        """Why no patch of a slide has a value in a column."""
        rows, slide = self.rows_of_slide[number], self.slides[number]
        if not len(rows):
            return "Nothing is painted: this slide has no patches, because all its boxes were dropped."
        if key in self.labels.columns:
            return "Nothing is painted: no patch of this slide has a name of this set."
        if not is_computed(key):
            return "Nothing is painted: this column is empty for this slide."
        if key in (CLUSTER, SIMILARITY) or not (self.vector_of[rows] >= 0).any():
            return "Nothing is painted: the patches of this slide were not embedded."
        judged = self.slide_of[self.find_column(key).codes >= 0]
        if slide.patient in {self.slides[other].patient for other in np.unique(judged)}:
            return "Nothing is painted: the evaluation left this slide out."
        codes, names = self.store.table.codes("split")
        split = _agree(codes[rows], names)
        whose = f", and this slide is of a patient of the split {split!r}" if split else ""
        return f"Nothing is painted: the evaluation judged its test patients alone{whose}."

    def _compare_anew(self, row: int) -> Column:
        vector = int(self.vector_of[row]) if 0 <= row < len(self.store) else -1
        if self.search is None or vector < 0:
            raise UserError("this patch was not embedded, so nothing is known of what is like it.")
        similarities = self.search.compare(np.array([vector]))
        values = np.full(len(self.store), np.nan, np.float32)
        values[self.embedded] = similarities
        return number_column("similarity to the chosen patch", values, float(similarities.min()), 1.0)

    def list_patients(self) -> list[dict[str, Any]]:
        """One record per patient: label, split and site, slides, patches, result of the first evaluation."""
        slides_of: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for slide in self.list_slides():
            slides_of[slide["patient"]].append(slide)
        number_of = {patient: number for number, patient in enumerate(slides_of)}
        pooled = self._pool(np.array([number_of[slide.patient] for slide in self.slides])[self.slide_of])
        patients = []
        for number, (patient, slides) in enumerate(slides_of.items()):
            record: dict[str, Any] = {"patient": patient}
            for name in ("label", "split", "site"):
                values = {slide[name] for slide in slides if slide[name]}
                record[name] = values.pop() if len(values) == 1 else _SEVERAL if values else ""
            record |= {"slides": len(slides), "patches": sum(slide["patches"] for slide in slides)}
            patients.append(record | pooled.get(number, _NOT_JUDGED))
        return patients

    def list_slides(self) -> list[dict[str, Any]]:
        """One record per slide: its patient, label, split and site, patches, result of the first evaluation."""
        table, dropped = self.store.table, self.store.dropped()
        facts, facts_of_dropped = (
            {name: source.codes(name) for name in ("label", "split", "site")} for source in (table, dropped)
        )
        dropped_rows, pooled = dropped.rows_by("slide"), self._pool(self.slide_of)
        slides = []
        for number, (slide, rows) in enumerate(zip(self.slides, self.rows_of_slide, strict=True)):
            record: dict[str, Any] = {"patient": slide.patient, "slide": slide.slide}
            own, known = (rows, facts) if len(rows) else (dropped_rows.get(slide.slide, rows), facts_of_dropped)
            record |= {name: _agree(codes[own], names) for name, (codes, names) in known.items()}
            record |= {"patches": slide.kept, "dropped": slide.dropped}
            slides.append(record | pooled.get(number, _NOT_JUDGED))
        return slides

    def _pool(self, unit_of: NDArray[np.integer[Any]]) -> dict[int, dict[str, Any]]:
        """By unit, the class of the largest mean score of its patches, that score, and whether the class is right.

        `unit_of` (M,): the number of the slide or the patient of each row. A unit that was not judged is missing.
        """
        pooled = {}
        for _, predictions in self._judged[:1]:
            units = unit_of[self.embedded[predictions.units["row"]]]
            order = np.argsort(units, kind="stable")
            numbers, starts = np.unique(units[order], return_index=True)
            for number, own in zip(numbers.tolist(), np.split(order, starts[1:]), strict=True):
                scores = predictions.scores[own].mean(axis=0)
                predicted = predictions.classes[scores.argmax()]
                truth = _agree(predictions.truth[own], predictions.classes)
                result = "" if truth == _SEVERAL else "right" if predicted == truth else "wrong"
                pooled[number] = {"predicted": predicted, "score": round(float(scores.max()), 3), "result": result}
        return pooled

    @property
    def _titled(self) -> list[tuple[str, Scores]]:
        """Each evaluation with its title on the page, which is empty where there is only one evaluation."""
        is_alone = len(self.scores) == 1
        return [
            ("" if is_alone else f"evaluation {number}", scores) for number, scores in enumerate(self.scores, start=1)
        ]

    @cached_property
    def _judged(self) -> list[tuple[str, Predictions]]:
        """The title of each evaluation, and its predictions of patches."""
        judged = []
        for title, scores in self._titled:
            predictions = judge_patches(scores)
            if predictions is not None and "row" in predictions.units:
                judged.append((title, predictions))
        return judged

    @cached_property
    def _dropped(self) -> dict[str, NDArray[np.int64]]:
        """By slide, the corners (m, 2) of the boxes that were dropped."""
        table = self.store.dropped()
        corners = np.stack([table.column("x"), table.column("y")], axis=1).astype(np.int64)
        return {slide: corners[rows] for slide, rows in table.rows_by("slide").items()}

    def show(self, number: int) -> ShownSlide:
        """Open the slide of a number; the slides shown last stay open."""
        with self._opening:  # the browser requests many tiles at the same time
            return self._show(number)

    def _open(self, number: int) -> ShownSlide:
        entry = self.slides[number]
        dropped = self._dropped.get(entry.slide, np.zeros((0, 2), np.int64))
        return show_slide(self.store, entry, self.rows_of_slide[number], dropped, self._files.get(entry.slide))

    @cached_property
    def slide_of(self) -> NDArray[np.int32]:
        """The number (M,) of the slide of each row."""
        numbers = np.full(len(self.store), -1, np.int32)
        for number, rows in enumerate(self.rows_of_slide):
            numbers[rows] = number
        return numbers


def open_session(store_path: Path, others: Sequence[Path], cohort: Path | None, say: Say) -> Session:
    """Open a store with embeddings and scores in any order; refuse those that were not made from this store.

    Features that were imported stand in the place of the store, for they have none.
    """
    files = find_files(cohort) if cohort is not None else {}
    store, imported = _open_patches(store_path, files)
    if len(store.scales) > 1 and "place" in store.table.names:
        raise UserError(
            f"{store_path} has patches of several scales, and the explorer shows one. Prepare one scale with "
            f"--set grid.mpp={store.scales[0]:g} to explore it."
        )
    embeddings, scores = None, []
    for path in others:
        kind = read_kind(path)
        if kind == "evaluate":
            scores.append(Scores.load(path))
        elif embeddings is not None:
            raise UserError(f"{path}: one set of embeddings can be explored at a time, and {embeddings.path} is given.")
        else:
            embeddings = Embeddings.load(path)
    embeddings = embeddings or imported
    if scores and embeddings is None:
        embeddings = scores[0].open_embeddings()
    if embeddings is not None and embeddings.info.store_checksum != store.checksum:
        raise UserError(
            f"{embeddings.path} was made of other patches than {store_path} holds now. Give the store that was "
            "embedded, or embed this one."
        )
    for judged in scores:
        assert embeddings is not None
        judged.refuse_changed("the embeddings", embeddings)
    return Session(store, embeddings, scores, files, say)


def _open_patches(path: Path, files: dict[str, Path]) -> tuple[PatchStore, Embeddings | None]:
    """The store, or the patches of features that were imported, and then these features as embeddings."""
    if read_kind(path) != "embed":
        return PatchStore.load(path), None
    embeddings = Embeddings.load(path)
    if embeddings.info.store is not None:
        raise UserError(
            f"{path} holds embeddings that were made from a store, which is given first: hidisc explore "
            f"{embeddings.path / embeddings.info.store} {path}."
        )
    return FeaturePatches(embeddings, files), embeddings


def _agree(codes: NDArray[Any], names: Sequence[str]) -> str:
    """The name that all codes stand for; empty without a code, and `several` where the codes differ."""
    present = np.unique(codes)
    if len(present) != 1:
        return _SEVERAL if len(present) else ""
    return names[present[0]] if present[0] >= 0 else ""

"""One person under two names: all patients of folds are compared before anything is trained or judged.

Whether two names of one person are in one fold, where they do no harm, or in two, where one is learned from and the
other is judged, depends on the seed of the folds. So they are looked for among all patients at once: slide files by
their checksums, pictures by `duplicates`, which decides by pixels about each patch and the nearest one of another
patient. At most 20,000 patches are looked at, of every slide those at the same positions, so that of a slide that is
there twice the same patches are compared.
"""

from collections import defaultdict
from collections.abc import Sequence, Set

import numpy as np
from numpy.typing import NDArray

from hidisc.embeddings.embeddings import Embeddings
from hidisc.evaluation.classes import Classes
from hidisc.evaluation.duplicates import count_pictures, find_duplicates
from hidisc.evaluation.leakage import name_pairs
from hidisc.evaluation.metrics import Ints
from hidisc.evaluation.scores import Finding
from hidisc.evaluation.task import LabelledPatches, Task
from hidisc.ground.progress import SILENT, Progress
from hidisc.ground.text import count
from hidisc.patches.record import SlideId
from hidisc.patches.store import PatchError, PatchStore
from hidisc.patches.table import PatchTable
from hidisc.settings.evaluate import EvaluateConfig
from hidisc.slides.slide import as_rgb, shrink

_MOST = 20_000
"""Most patches that are looked at: a minute of reading at most."""
_SIDE_PX = 16
_BLOCK = 512
"""Patches compared with all others at once: 40 MB."""


def find_same_person(
    embeddings: Embeddings, patients: Set[str], folds: int, config: EvaluateConfig, progress: Progress = SILENT
) -> tuple[Finding, ...]:
    """Findings where two of some patients have a slide file or pictures in common; leaks first.

    Without vectors, as of a store, pictures are described first, to find the most similar one of another patient.
    """
    table, store, vectors = embeddings.table, embeddings.open_store(), None
    rows = _sample(table, np.flatnonzero(table.of_patients(sorted(patients), "folds", embeddings.path)))
    slides = [slide for slide in embeddings.info.slides if slide.patient in patients]
    if store is not None and not embeddings.info.dim:
        with progress.part("pictures of all patients", len(rows), "pictures") as part:
            rows, vectors = _describe(store, rows, part)
    patches = LabelledPatches(embeddings, rows, np.zeros(len(rows), np.int64), 0, vectors)
    every = Task(Classes(label=config.label, classes=(), positive=0), config.levels, patches, patches)
    index, similarities = find_nearest_of_others(patches.vectors(), patches.codes("patient"))
    # a fold holds half of a pair and 1 / folds of all patches: its share of duplicates is at most so many times larger
    leakage = config.leakage.model_copy(update={"max_duplicates": config.leakage.max_duplicates * 2 / folds})
    nearest = np.where(index >= 0, rows[index], -1)[:, None]
    with progress.part("near-duplicates", count_pictures(every), "pictures") as part:
        pictures = find_duplicates(
            every, nearest, similarities[:, None], leakage, store, store, config.seed, part.advance
        )
    return (*_find_shared_files(slides), *(() if pictures is None else (pictures,)))


def find_nearest_of_others(
    vectors: NDArray[np.float32], patients: NDArray[np.int32]
) -> tuple[Ints, NDArray[np.float32]]:
    """The index (N,) of the most similar row of vectors (N, D) of another patient, -1 where there is none, and how
    similar it is (N,): the cosine."""
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True).clip(min=1e-12)
    nearest, similarities = np.full(len(unit), -1, np.int64), np.zeros(len(unit), np.float32)
    for start in range(0, len(unit), _BLOCK):
        block = slice(start, start + _BLOCK)
        similar = np.where(patients[block, None] == patients, -np.inf, unit[block] @ unit.T)
        nearest[block], similarities[block] = similar.argmax(axis=1), similar.max(axis=1)
    return np.where(np.isfinite(similarities), nearest, -1), similarities


def _find_shared_files(slides: Sequence[SlideId]) -> tuple[Finding, ...]:
    """A leak where slides of two patients are one file."""
    by_file: dict[str, list[SlideId]] = defaultdict(list)
    for slide in sorted(slides, key=lambda slide: (slide.patient, slide.slide)):
        by_file[slide.checksum].append(slide)
    by_file.pop("", None)
    pairs = [(same[0], slide) for same in by_file.values() for slide in same if slide.patient != same[0].patient]
    if not pairs:
        return ()
    are = "is" if len(pairs) == 1 else "are"
    sentence = (
        f"{count(len(pairs), 'slide file')} {are} listed under two patients ({name_pairs(pairs)}), so that folds may "
        "learn from a patient and judge the same one. Remove one of each from the cohort, or list both under one "
        "patient."
    )
    return (Finding(kind="leak", sentence=sentence),)


def _sample(table: PatchTable, rows: Ints) -> Ints:
    """At most about 20,000 of some rows (n,), ascending: of every slide as many, by their position on the slide."""
    if len(rows) <= _MOST:
        return rows
    slides = table.codes("slide")[0][rows]
    x, y, number = (table.column(name)[rows].astype(np.uint64) for name in ("x", "y", "patch"))
    # imported patches have no position, but a number; the product scatters neighbouring positions
    position = np.where(table.column("x")[rows] < 0, number, x * np.uint64(1_000_003) + y)
    scattered = position * np.uint64(0x9E3779B97F4A7C15)
    order = np.lexsort((scattered, slides))
    _, first, counts = np.unique(slides[order], return_index=True, return_counts=True)
    rank = np.arange(len(order)) - np.repeat(first, counts)
    return np.sort(rows[order[rank < max(1, _MOST // len(first))]])


def _describe(store: PatchStore, rows: Ints, progress: Progress) -> tuple[Ints, NDArray[np.float32]]:
    """The rows (n,) that can be read, and a vector (n, 256) of each picture that is the same however it is turned."""
    is_read, vectors = np.zeros(len(rows), bool), np.zeros((len(rows), _SIDE_PX**2), np.float32)
    for number, row in enumerate(rows.tolist()):
        progress.advance()
        try:
            grey = shrink(as_rgb(store.read(row)), _SIDE_PX).mean(axis=2, dtype=np.float32)
        except PatchError:
            continue
        turned = [np.rot90(picture, turns) for picture in (grey, grey[::-1]) for turns in range(4)]
        vectors[number], is_read[number] = np.mean(turned, axis=0).ravel(), True
    return rows[is_read], vectors[is_read] - vectors[is_read].mean(axis=1, keepdims=True)

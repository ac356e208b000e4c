"""Near-duplicates: test patches that are pictures of a reference patch of another patient.

A slide that was scanned twice, or saved again, has another checksum, so only its pictures show that it is the same.
Embeddings propose pairs, and pixels decide, because a collapsed encoder finds all patches alike.
"""

from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from hidisc.embeddings.embeddings import Embeddings, find_rows_in_store
from hidisc.evaluation.metrics import Ints
from hidisc.evaluation.scores import Finding
from hidisc.evaluation.task import LabelledPatches, Task
from hidisc.ground.errors import UserError
from hidisc.ground.progress import Watch, ignore
from hidisc.ground.seeds import Purpose, make_rng
from hidisc.patches.store import PatchError, PatchStore
from hidisc.settings.evaluate import LeakageConfig
from hidisc.slides.slide import as_rgb, shrink

_MOST = 2000
"""Pairs compared: half of them the most similar, half spread over all others."""
_SIDE_PX = 32
_LEAST_STD = 4.0
"""Of 255: glass, or a picture with less texture, is similar to any other."""
_DIGITS = 4
"""Decimals of a similarity; those that differ by less are ties."""
_DETAIL = 5
"""How much more a shift or a loss of quality takes from the correlation of detail than from that of the whole: 4 to 7
for 300 px tissue. Detail separates pictures with one outline: cut-out cells of two patients correlate to 0.995."""
_NAMED = 3
_NO_PICTURES = (
    "These embeddings were imported without pictures of their patches, so near-duplicates of test patches among the "
    "reference patches were not looked for, colour alone is not judged beside them, and pages show no patches."
)


@dataclass(frozen=True)
class _Pairs:
    """n pairs to compare, of M candidates; the first `sure` are the most similar, the others stand for the rest."""

    queries: Ints
    """(n,) rows of the queries' embeddings."""
    bank: Ints
    """(n,) rows of the bank's embeddings."""
    sure: int
    candidates: int


def find_duplicates(
    task: Task,
    rows: Ints,
    similarities: NDArray[np.float32],
    config: LeakageConfig,
    store_of_queries: PatchStore | None,
    store_of_bank: PatchStore | None,
    seed: int = 0,
    watch: Watch = ignore,
) -> Finding | None:
    """A finding where test patches are pictures of reference patches of other patients; None: there is no such patch.

    `rows` (N, m): rows of the bank's embeddings nearest to each query (negative: none), `similarities` (N, m). If a
    store is None or has changed, its pictures cannot be compared, and a note says so. `seed`: of the order of ties.
    `watch` is called for every picture read, at most `count_pictures`.
    """
    without = next((part.embeddings for part in (task.queries, task.bank) if part.embeddings.info.store is None), None)
    if without is not None:
        return Finding(kind="note", sentence=_NO_PICTURES)
    if not rows.shape[1]:
        return _not_checked("no nearest neighbours were kept; set knn.keep=8")
    pairs = _choose_pairs(task, rows, similarities, make_rng(seed, Purpose.DUPLICATE_PAIRS))
    if not len(pairs.queries):
        return None
    try:
        ours = _read_thumbnails(task.queries.embeddings, pairs.queries, store_of_queries, watch)
        theirs = _read_thumbnails(task.bank.embeddings, pairs.bank, store_of_bank, watch)
    except UserError as error:
        return _not_checked(str(error))
    is_read = ~np.isnan(ours[:, 0, 0] + theirs[:, 0, 0])
    if not is_read.any():
        return _not_checked("none of the patches could be read")
    is_same = compare_pictures(ours, theirs) >= config.similarity  # false where a picture is missing: NaN
    if not is_same.any():
        return None
    return _describe(task, pairs, is_same, is_read, config.max_duplicates)


def count_pictures(task: Task) -> int:
    """How many pictures are read at most."""
    return 2 * min(_MOST, len(task.queries))


def thumbnail(pixels: NDArray[np.uint8] | NDArray[np.uint16]) -> NDArray[np.float32]:
    """A patch (H, W, C) as grey (32, 32), 0 to 255."""
    return shrink(as_rgb(pixels), _SIDE_PX).mean(axis=2, dtype=np.float32)


def compare_pictures(ours: NDArray[np.float32], theirs: NDArray[np.float32]) -> NDArray[np.float32]:
    """(n,) similarity, at most 1, of thumbnails (n, 32, 32) in the best of 8 orientations; -1: one is without texture.

    It is the correlation at 16 x 16 px, or that of the detail if this is more than `_DETAIL` times as far below 1.
    """
    whole = [pictures.reshape(len(pictures), 16, 2, 16, 2).mean(axis=(2, 4)) for pictures in (ours, theirs)]
    detail = [pictures - _blur(pictures) for pictures in (ours, theirs)]
    is_flat = np.minimum(*(pictures.std(axis=(1, 2)) for pictures in whole)) < _LEAST_STD
    alike, alike_in_detail = _correlate(*whole), _correlate(*detail)
    best = np.minimum(alike, 1 - (1 - alike_in_detail) / _DETAIL).max(axis=0)
    return np.where(is_flat, np.float32(-1), best)


def _correlate(ours: NDArray[np.float32], theirs: NDArray[np.float32]) -> NDArray[np.float32]:
    """(8, n) correlation of pictures (n, h, h) in each of 8 orientations."""
    a, b = _normalise(ours), _normalise(theirs)
    turned = [np.rot90(pictures, turns, axes=(1, 2)) for pictures in (a, a[:, :, ::-1]) for turns in range(4)]
    return np.stack([np.einsum("nij,nij->n", pictures, b) for pictures in turned])


def _blur(pictures: NDArray[np.float32]) -> NDArray[np.float32]:
    """Mean of every pixel and the eight around it, of pictures (n, h, h)."""
    padded = np.pad(pictures, ((0, 0), (1, 1), (1, 1)), mode="edge")
    return sliding_window_view(padded, (3, 3), axis=(1, 2)).mean(axis=(3, 4))


def _normalise(pictures: NDArray[np.float32]) -> NDArray[np.float32]:
    """Mean removed, length 1."""
    centred = pictures - pictures.mean(axis=(1, 2), keepdims=True)
    return centred / np.maximum(np.sqrt(np.square(centred).sum(axis=(1, 2), keepdims=True)), 1e-6)


def _choose_pairs(task: Task, rows: Ints, similarities: NDArray[np.float32], rng: np.random.Generator) -> _Pairs:
    """Each query with the nearest patch of another patient; where there are too many, as `_Pairs` says.

    Half of the pairs compared are spread over all but the most similar, so that what is found among them counts for the
    rest: a slide of 20,000 patches that is there twice counts as such, not as the few patches that were compared.
    """
    is_other = (rows >= 0) & (_patients_of_bank(task)[rows] != task.queries.codes("patient")[:, None])
    nearness = np.where(is_other, similarities, -np.inf)
    nearest = nearness.argmax(axis=1)
    has_any = np.flatnonzero(is_other.any(axis=1))
    nearest, nearness = nearest[has_any], nearness[has_any, nearest[has_any]]
    # ties (all pairs, after a collapse) in random order: the first of them in the table would be of one slide
    order = np.lexsort((rng.permutation(len(has_any)), -np.round(nearness.astype(np.float64), _DIGITS)))
    sure = len(order) if len(order) <= _MOST else _MOST // 2
    others = min(_MOST, len(order)) - sure
    spread = order[sure + ((np.arange(others) + 0.5) * (len(order) - sure) / max(others, 1)).astype(np.int64)]
    chosen = np.concatenate([order[:sure], spread])
    queries = has_any[chosen]
    return _Pairs(task.queries.rows[queries], rows[queries, nearest[chosen]], sure, len(order))


def _patients_of_bank(task: Task) -> NDArray[np.int32]:
    """(rows of the bank's embeddings,) patients in the queries' codes, -2 for those the queries do not have."""
    codes, names = task.bank.embeddings.table.codes("patient")
    known = {name: code for code, name in enumerate(task.queries.embeddings.table.codes("patient")[1])}
    return np.array([*(known.get(name, -2) for name in names), -2], np.int32)[codes]


def _read_thumbnails(embeddings: Embeddings, rows: Ints, store: PatchStore | None, watch: Watch) -> NDArray[np.float32]:
    """(n, 32, 32) of rows (n,) of embeddings, read one at a time; NaN where a patch cannot be decoded."""
    if store is None:
        raise UserError(embeddings.why_no_pictures)
    in_store, which = np.unique(find_rows_in_store(embeddings, rows, store), return_inverse=True)
    thumbnails = np.full((len(in_store), _SIDE_PX, _SIDE_PX), np.nan, np.float32)
    for number, row in enumerate(in_store):
        watch(1)
        try:
            thumbnails[number] = thumbnail(store.read(int(row)))
        except PatchError:
            continue
    return thumbnails[which]


def _describe(
    task: Task, pairs: _Pairs, is_same: NDArray[np.bool_], is_read: NDArray[np.bool_], most: float
) -> Finding:
    """How many duplicates were found, their estimated share of all queries, and what to do."""
    # pairs that were compared stand for the others of their part
    parts = ((slice(pairs.sure), pairs.sure), (slice(pairs.sure, None), pairs.candidates - pairs.sure))
    total = sum(int(is_same[part].sum()) * size / max(int(is_read[part].sum()), 1) for part, size in parts)
    share = total / len(task.queries)
    scale, compared = f"{100 * share:.2g} % of all {len(task.queries):,}", int(is_read.sum())
    if compared < pairs.candidates:
        scale = f"about {scale}, estimated from {compared:,} of {pairs.candidates:,} pairs"
    same = np.flatnonzero(is_same)
    examples = [
        f"{_name(task.queries, pairs.queries[pair])} is {_name(task.bank, pairs.bank[pair])}" for pair in same[:_NAMED]
    ]
    more = f" and {len(same) - _NAMED:,} more" if len(same) > _NAMED else ""
    start = f"{len(same):,} test patches are near-duplicates of reference patches of other patients"
    start = "1 test patch is a near-duplicate of a reference patch of another patient" if len(same) == 1 else start
    return Finding(
        kind="leak" if share > most else "warning",
        sentence=f"{start} ({scale}): {'; '.join(examples)}{more}. Check whether a slide was scanned or saved twice, "
        "and list both under one patient.",
    )


def _name(patches: LabelledPatches, row: np.int64) -> str:
    table = patches.embeddings.table
    patient, slide = (names[codes[row]] for codes, names in map(table.codes, ("patient", "slide")))
    return f"patch {table.column('patch')[row]} of slide {slide!r} of patient {patient!r}"


def _not_checked(why: str) -> Finding:
    return Finding(
        kind="note",
        sentence="Test patches were not checked for near-duplicates among the reference patches of other patients: "
        f"{why.rstrip('.')}.",
    )

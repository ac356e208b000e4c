"""Near-duplicates: test patches that are pictures of a reference patch of another patient.

A slide that was scanned twice, or saved again, has another checksum, so only its pictures show that it is the same.
Embeddings propose pairs, and the detail of the pictures decides (`detail.py`), because a collapsed encoder finds all
patches alike.
"""

from collections import Counter
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hidisc.embeddings.embeddings import Embeddings, find_rows_in_store
from hidisc.evaluation.metrics import Ints
from hidisc.evaluation.probes.folds import count_before
from hidisc.evaluation.scores import DuplicatePair, Finding, PatchName
from hidisc.evaluation.task import LabelledPatches, Task
from hidisc.ground.errors import UserError
from hidisc.ground.progress import Watch, ignore
from hidisc.ground.seeds import Purpose, make_rng
from hidisc.ground.text import count
from hidisc.patches.store import PatchError, PatchStore
from hidisc.settings.evaluate import LeakageConfig

_MOST = 2000
"""Pairs compared: half of them the most similar, half spread over all others."""
_DIGITS = 4
"""Decimals of a similarity; those that differ by less are ties."""
_NAMED, _SHOWN = 3, 8
"""Pairs of patients that a sentence names, and pairs of patches that a page shows."""
_UNCLEAR = 0.1
"""Share of the pairs without clear detail from which a note says so where nothing was found."""
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


@dataclass(frozen=True)
class _Compared:
    """What the pictures of n pairs say."""

    agreements: NDArray[np.float64]
    """(n,) correlation of the detail, at least; 1 for equal pixels, NaN where there is too little detail."""
    is_read: NDArray[np.bool_]
    """(n,) whether both patches could be decoded."""
    is_clear: NDArray[np.bool_]
    """(n,) whether both have enough detail for a changed copy to be recognised."""


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
    store is None or has changed, its pictures cannot be compared, and a note says so; so it does where many pictures
    have too little detail. `seed`: of the order of ties. `watch` is called for every picture read, at most
    `count_pictures`.
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
        of_queries, ours = _find_in_store(task.queries.embeddings, pairs.queries, store_of_queries)
        of_bank, theirs = _find_in_store(task.bank.embeddings, pairs.bank, store_of_bank)
    except UserError as error:
        return _not_checked(str(error))
    in_stores = np.stack([ours, theirs], axis=1)
    compared = _compare_pictures(of_queries, of_bank, in_stores, watch)
    if not compared.is_read.any():
        return _not_checked("none of the patches could be read")
    is_same = compared.agreements >= config.detail
    if is_same.any():
        return _describe(task, pairs, in_stores, compared, is_same, config.max_duplicates)
    unclear, read = int((compared.is_read & ~compared.is_clear).sum()), int(compared.is_read.sum())
    if unclear < _UNCLEAR * read:
        return None
    return Finding(
        kind="note",
        sentence=f"No near-duplicates were found among the reference patches of other patients, but {unclear:,} of "
        f"{read:,} pairs show so little detail that a copy which was saved or scanned again may not be recognised.",
    )


def count_pictures(task: Task) -> int:
    """How many pictures are read at most."""
    return 2 * min(_MOST, len(task.queries))


def _find_in_store(embeddings: Embeddings, rows: Ints, store: PatchStore | None) -> tuple[PatchStore, Ints]:
    """The store, and (n,) its rows that rows (n,) of the embeddings were made from."""
    if store is None:
        raise UserError(embeddings.why_no_pictures)
    return store, find_rows_in_store(embeddings, rows, store)


def _compare_pictures(of_queries: PatchStore, of_bank: PatchStore, in_stores: Ints, watch: Watch) -> _Compared:
    """Read and compare pairs of patches (n, 2); patches of the bank that several queries are near to are read once."""
    from hidisc.evaluation.detail import Detail, find_detail, measure_agreement  # scipy takes time to load

    def look(store: PatchStore, row: int) -> tuple[Detail, int] | None:
        """The detail of a patch and a hash of its pixels, 0 if all are equal; None: it cannot be decoded."""
        watch(1)
        try:
            pixels = store.read(row)
        except PatchError:
            return None
        return find_detail(pixels), hash(pixels.tobytes()) if np.ptp(pixels, axis=(0, 1)).any() else 0

    known = {row: look(of_bank, row) for row in np.unique(in_stores[:, 1]).tolist()}
    agreements = np.full(len(in_stores), np.nan)
    is_read, is_clear = np.zeros((2, len(in_stores)), np.bool_)
    for pair, (query, reference) in enumerate(in_stores.tolist()):
        ours, theirs = look(of_queries, query), known[reference]
        if ours is not None and theirs is not None:
            is_read[pair], is_clear[pair] = True, ours[0].is_clear and theirs[0].is_clear
            are_equal = ours[1] == theirs[1] != 0
            agreements[pair] = 1 if are_equal else measure_agreement(ours[0], theirs[0])
    return _Compared(agreements, is_read, is_clear)


def _choose_pairs(task: Task, rows: Ints, similarities: NDArray[np.float32], rng: np.random.Generator) -> _Pairs:
    """Each query with the nearest patch of another patient; where there are too many, as `_Pairs` says.

    Half of the pairs compared are spread over all but the most similar, so that what is found among them counts for the
    rest: a slide of 20,000 patches that is there twice counts as such, not as the few patches that were compared.
    """
    codes, names = task.bank.embeddings.table.codes("patient")
    known = {name: code for code, name in enumerate(task.queries.embeddings.table.codes("patient")[1])}
    # patients of the bank in the queries' codes, -2 for those the queries do not have
    of_bank = np.array([*(known.get(name, -2) for name in names), -2], np.int32)[codes]
    is_other = (rows >= 0) & (of_bank[rows] != task.queries.codes("patient")[:, None])
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


def _describe(
    task: Task, pairs: _Pairs, in_stores: Ints, compared: _Compared, is_same: NDArray[np.bool_], most: float
) -> Finding:
    """How many duplicates were found, their estimated share of all queries, how sure that is, and what to do."""
    # pairs that were compared stand for the others of their part
    parts = ((slice(pairs.sure), pairs.sure), (slice(pairs.sure, None), pairs.candidates - pairs.sure))
    is_read, same = compared.is_read, np.flatnonzero(is_same)
    total = sum(int(is_same[part].sum()) * size / max(int(is_read[part].sum()), 1) for part, size in parts)
    share = total / len(task.queries)
    percent = f"{100 * share:.2g}" if share < 0.1 else f"{100 * share:.0f}"
    scale = f"{percent} % of all {len(task.queries):,}"
    if is_read.sum() < pairs.candidates:
        scale = f"about {scale}, estimated from {int(is_read.sum()):,} of {pairs.candidates:,} pairs"
    start = f"{len(same):,} test patches are near-duplicates of reference patches of other patients"
    start = "1 test patch is a near-duplicate of a reference patch of another patient" if len(same) == 1 else start
    duplicates = [
        DuplicatePair(
            query=_name(task.queries, pairs.queries[pair], in_stores[pair, 0]),
            bank=_name(task.bank, pairs.bank[pair], in_stores[pair, 1]),
            agreement=float(compared.agreements[pair]),
        )
        for pair in same[np.lexsort((pairs.queries[same], -compared.agreements[same]))]
    ]
    patients = [(pair.query.patient, pair.bank.patient) for pair in duplicates]
    of_patients = Counter(patients)
    number = {names: number for number, names in enumerate(of_patients)}
    turns = count_before(np.array([number[names] for names in patients]))
    shown = [duplicates[place] for place in np.argsort(turns, kind="stable")]  # one pair of every two patients first
    named = [
        f"patients {pair.query.patient!r} and {pair.bank.patient!r} share "
        f"{count(of_patients[pair.query.patient, pair.bank.patient], 'picture')} (patch {pair.query.patch} of slide "
        f"{pair.query.slide!r} is patch {pair.bank.patch} of slide {pair.bank.slide!r})"
        for pair in shown[: min(_NAMED, len(of_patients))]
    ]
    others = len(of_patients) - _NAMED
    more = f"; the same is true of {count(others, 'other pair')} of patients" if others > 0 else ""
    certainty, least = "Their pixels are equal.", min(pair.agreement for pair in duplicates)
    if least < 1:
        certainty = (
            f"The detail of these pictures, without outline and brightness, correlates to at least {least:.2f} with "
            "99.9 % certainty; of 65,000 such pairs of different patients in six public cohorts none reached 0.8."
        )
    unclear = int((is_read & ~is_same & ~compared.is_clear).sum())
    if unclear:
        certainty += f" {count(unclear, 'further pair')} had too little detail to tell."
    return Finding(
        kind="leak" if share > most else "warning",
        sentence=f"{start} ({scale}): {'; '.join(named)}{more}. {certainty} Check whether a slide was scanned or "
        "saved twice, and list both under one patient.",
        pairs=tuple(shown[:_SHOWN]),
    )


def _name(patches: LabelledPatches, row: np.int64, in_store: np.int64) -> PatchName:
    table = patches.embeddings.table
    patient, slide = (names[codes[row]] for codes, names in map(table.codes, ("patient", "slide")))
    return PatchName(patient=patient, slide=slide, patch=str(table.column("patch")[row]), row=int(in_store))


def _not_checked(why: str) -> Finding:
    return Finding(
        kind="note",
        sentence="Test patches were not checked for near-duplicates among the reference patches of other patients: "
        f"{why.rstrip('.')}.",
    )

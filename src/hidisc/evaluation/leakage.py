"""Leakage: patients or slide files both in the bank and in the queries, or among what the encoder has learned from."""

from collections import defaultdict
from collections.abc import Iterable, Sequence

import numpy as np

from hidisc.embeddings.embeddings import ModelCard
from hidisc.evaluation.scores import Finding
from hidisc.evaluation.task import LabelledPatches, Task
from hidisc.ground.errors import UserError
from hidisc.models.history import hash_name
from hidisc.patches.record import SlideId

_NAMED = 3
"""Names in a sentence; of the others the count is given."""
_WATCHED = ("monitor",)
"""Uses of labels that change nothing in what is learned (`training/monitor.py`)."""


def find_overlap(task: Task) -> tuple[Finding, ...]:
    """What the queries share with the bank and with what the encoder learned from, leaks first.

    A patient is known by name, a slide by the checksum of its file, whatever either is called elsewhere.
    """
    bank, queries = slides_of(task.bank), slides_of(task.queries)
    one_store = task.bank.embeddings.info.store_checksum == task.queries.embeddings.info.store_checksum
    model = task.queries.embeddings.info.model
    leaks = [*_between_bank_and_queries(bank, queries, one_store), *_with_training(model, queries)]
    return (
        *(Finding(kind="leak", sentence=sentence) for sentence in leaks),
        *(Finding(kind="note", sentence=sentence) for sentence in _notes(model)),
    )


def refuse_leaks(findings: Sequence[Finding], allow: bool) -> None:
    """Stop at a leak that is not allowed."""
    leaks = [finding.sentence for finding in findings if finding.kind == "leak"]
    if leaks and not allow:
        raise UserError(
            f"{' '.join(leaks)} Give --allow-leakage to evaluate all the same; every table and page will then say so."
        )


def slides_of(patches: LabelledPatches) -> tuple[SlideId, ...]:
    """The slides of some patches, sorted by name; one without a known checksum has an empty one."""
    table, info = patches.embeddings.table, patches.embeddings.info
    patients, slides = table.codes("patient")[1], table.codes("slide")[1]
    # a pair of codes as one number: sorting millions of pairs takes minutes
    pairs = np.unique(patches.codes("patient").astype(np.int64) * len(slides) + patches.codes("slide"))
    present = sorted((patients[pair // len(slides)], slides[pair % len(slides)]) for pair in pairs)
    checksums = {(slide.patient, slide.slide): slide.checksum for slide in info.slides}
    return tuple(
        SlideId(patient=patient, slide=slide, checksum=checksums.get((patient, slide), ""))
        for patient, slide in present
    )


def _between_bank_and_queries(bank: Sequence[SlideId], queries: Sequence[SlideId], one_store: bool) -> list[str]:
    patients, files = _shared(bank, queries)
    sentences = []
    if patients:
        sentences.append(
            f"{_count(patients, 'patient')} both in the bank and in the queries ({_some(map(repr, patients))}), so "
            "that their own patches answer for them."
            + ("" if one_store else _coincidence(bank, queries, patients))
            + " Split the cohort by patient, or choose other splits with bank=[...] and queries=[...]."
        )
    if files:
        sentences.append(
            f"{_count(files, 'slide file')} both in the bank and in the queries, under another patient's name "
            f"({_some(_same(*pair) for pair in files)}). "
            "Take one of each out of the cohort, or list both under one patient."
        )
    return sentences


def _with_training(model: ModelCard, queries: Sequence[SlideId]) -> list[str]:
    learned = model.history.slides
    patients, files = _shared(learned, queries)
    sentences = []
    if patients:
        sentences.append(
            f"{_count(patients, 'patient')} in the queries and among those {model.name!r} learned from "
            f"({_some(map(repr, patients))}), so that it has seen what it is asked about."
            + _coincidence(learned, queries, patients)
            + " Evaluate on patients it has not seen, or train it without these."
        )
    if files:
        sentences.append(
            f"{_count(files, 'slide file')} in the queries and, under another patient's name, among those "
            f"{model.name!r} learned from ({_some(_same(*pair) for pair in files)}). "
            "Take these out of the queries, or train it without them."
        )
    return sentences


def _notes(model: ModelCard) -> list[str]:
    sentences = []
    if not model.history.is_complete:
        sentences.append(
            f"What {model.name!r} has seen is not known, so overlap with its training cannot be ruled out."
        )
    labels_used = model.history.labels_used
    used = [use for use in labels_used if use not in _WATCHED]
    if used:
        sentences.append(f"Labels were used in the training of {model.name!r}, for: {', '.join(used)}.")
    elif labels_used:
        sentences.append(f"Labels were only watched in the training of {model.name!r}, for: {', '.join(labels_used)}.")
    return sentences


def _shared(seen: Sequence[SlideId], asked: Sequence[SlideId]) -> tuple[list[str], list[tuple[SlideId, SlideId]]]:
    """Patients of both, and slide files of both (as each calls them) that are under different patients' names.

    Encoders that were exported know patients by a hash of their names.
    """
    known = {hash_name(slide.patient) for slide in seen}
    patients = sorted({slide.patient for slide in asked if hash_name(slide.patient) in known})
    by_file: dict[str, list[SlideId]] = defaultdict(list)
    for slide in seen:
        by_file[slide.checksum].append(slide)
    by_file.pop("", None)
    files = [
        (by_file[slide.checksum][0], slide)
        for slide in asked
        if slide.checksum in by_file
        and hash_name(slide.patient) not in {hash_name(same.patient) for same in by_file[slide.checksum]}
    ]
    return patients, files


def _coincidence(seen: Sequence[SlideId], asked: Sequence[SlideId], patients: Sequence[str]) -> str:
    """What to mind when nothing but a name speaks for its being the same patient."""
    named = set(map(hash_name, patients))
    files = [{slide.checksum for slide in side if hash_name(slide.patient) in named} - {""} for side in (seen, asked)]
    if files[0] & files[1]:
        return ""
    return " No slide file of theirs is the same: if only the names coincide, rename the patients of one store."


def _count(found: Sequence[object], thing: str) -> str:
    return f"1 {thing} is" if len(found) == 1 else f"{len(found):,} {thing}s are"


def _some(names: Iterable[str]) -> str:
    """The first few of the names, and how many more there are."""
    listed = list(names)
    more = len(listed) - _NAMED
    return ", ".join(listed[:_NAMED]) + (f" and {more:,} more" if more > 0 else "")


def _same(seen: SlideId, asked: SlideId) -> str:
    other = f"{seen.slide!r} of patient {seen.patient!r}" if seen.slide else "a slide of another patient"
    return f"{asked.slide!r} of patient {asked.patient!r} is {other}"

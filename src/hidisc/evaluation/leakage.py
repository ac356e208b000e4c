"""Leakage: test patients, or their slide files, among the reference patients or in the training of the encoder.

Circular truth: names of patches that people gave by what the encoder itself says of them.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from hidisc.embeddings.embeddings import Embeddings, ModelCard
from hidisc.embeddings.given_names import FROM_VECTORS, HOW_GIVEN
from hidisc.evaluation.scores import Finding
from hidisc.evaluation.task import LabelledPatches, Task
from hidisc.ground.errors import UserError
from hidisc.ground.text import count, name_some
from hidisc.models.card import hash_name
from hidisc.patches.record import SlideId
from hidisc.settings.evaluate import LeakageConfig

_NAMED = 3
"""Pairs of slides named in a sentence; of the others the number is given."""
_MONITORED = ("monitor",)
"""Uses of labels that do not change the weights (`training/monitor.py`)."""


def find_overlap(task: Task) -> tuple[Finding, ...]:
    """What the queries share with the bank and with what the encoder was trained on, leaks first.

    Two patients are the same if their names are, two slides if the checksums of their files are, whatever their names.
    """
    bank, queries = slides_of(task.bank), slides_of(task.queries)
    one_store = task.bank.embeddings.info.store_checksum == task.queries.embeddings.info.store_checksum
    model = task.queries.embeddings.info.model
    leaks = [*_overlap_with_bank(bank, queries, one_store), *_overlap_with_training(model, queries)]
    return (
        *(Finding(kind="leak", sentence=sentence) for sentence in leaks),
        *find_circular(task.queries.embeddings, task.queries.rows),
        *(Finding(kind="note", sentence=sentence) for sentence in _describe_history(model)),
    )


def find_circular(embeddings: Embeddings, rows: NDArray[np.int64]) -> tuple[Finding, ...]:
    """Whether the given names of some rows (n,), which are the truth, follow these embeddings; and what is not known.

    Names that were given on the map of an encoder are about its own vectors: judged by them, any encoder looks perfect.
    """
    given, model = embeddings.given, embeddings.info.model
    if given is None:
        return ()
    _, ways, encoders = given.of(rows)
    follows = np.isin(ways, FROM_VECTORS)
    is_own = follows & np.isin(encoders, (model.checksum, *model.history.started_from))
    findings = []
    if is_own.any():
        how = " or ".join(HOW_GIVEN[way] for way in FROM_VECTORS if (ways[is_own] == way).any())
        sentence = (
            f"{is_own.sum():,} of the {len(rows):,} names of patches were given {how}, and these embeddings are of "
            f"{model.name!r}{'' if (encoders == model.checksum).any() else ', which started from that encoder'}: the "
            "names follow what is judged. Name patches by what you see on slides, or judge another encoder."
        )
        findings.append(Finding(kind="circular", sentence=sentence))
    elsewhere = int((follows & ~is_own).sum())
    if elsewhere:
        sentence = f"{elsewhere:,} of the {len(rows):,} names of patches follow the embeddings of another encoder."
        findings.append(Finding(kind="note", sentence=sentence))
    unknown = int((ways == None).sum())  # noqa: E711 - elementwise
    if unknown:
        sentence = (
            f"It is not known how {unknown:,} of the {len(rows):,} names of patches were given (hidisc 0.3 did not "
            "record it); on the map of this encoder, they would follow what is judged."
        )
        findings.append(Finding(kind="note", sentence=sentence))
    return tuple(findings)


def refuse_leaks(findings: Sequence[Finding], config: LeakageConfig, flag: str = "--allow-leakage") -> None:
    """Raise an error that names the leaks, and one that names circular truth, unless they are allowed.

    `flag`: what the user gives to a command to allow leaks.
    """
    for kind, is_allowed, option in (
        ("leak", config.allow, flag),
        ("circular", config.allow_circular, "--allow-circular"),
    ):
        sentences = [finding.sentence for finding in findings if finding.kind == kind]
        if sentences and not is_allowed:
            raise UserError(
                f"{' '.join(sentences)} Give {option} to evaluate anyway; every table and page will then say so."
            )


def slides_of(patches: LabelledPatches) -> tuple[SlideId, ...]:
    """The slides of some patches, sorted by name; a slide without a known checksum has an empty one."""
    table, rows = patches.embeddings.table, patches.rows[patches.units(("patient", "slide")).first]
    patients, slides = (
        [names[code] for code in codes[rows]] for codes, names in map(table.codes, ("patient", "slide"))
    )
    checksums = {(slide.patient, slide.slide): slide.checksum for slide in patches.embeddings.info.slides}
    return tuple(
        SlideId(patient=patient, slide=slide, checksum=checksums.get((patient, slide), ""))
        for patient, slide in sorted(zip(patients, slides, strict=True))
    )


def _overlap_with_bank(bank: Sequence[SlideId], queries: Sequence[SlideId], one_store: bool) -> Iterator[str]:
    patients, files = find_shared(bank, queries)
    if patients:
        yield (
            f"{_count_are(patients, 'patient')} both among the reference patients and among the test patients "
            f"({name_some(patients)}), so that test patches are classified by patches of the same patient."
            + ("" if one_store else _doubt_names(bank, queries, patients))
            + " Split the cohort by patient, or choose other splits with bank=[...] and queries=[...]."
        )
    if files:
        yield (
            f"{_count_are(files, 'slide file')} listed both under a test patient and under a reference patient of "
            f"another name ({name_pairs(files)}). Remove one of each from the cohort, or list both under one patient."
        )


def _overlap_with_training(model: ModelCard, queries: Sequence[SlideId]) -> Iterator[str]:
    trained_on = model.history.slides
    patients, files = find_shared(trained_on, queries)
    if patients:
        yield (
            f"{_count_are(patients, 'test patient')} among the patients that {model.name!r} was trained on "
            f"({name_some(patients)}), so that it is evaluated on patients it has seen."
            + _doubt_names(trained_on, queries, patients)
            + " Evaluate it on other patients, or train it without these."
        )
    if files:
        yield (
            f"{_count_are(files, 'slide file')} listed under a test patient, and {model.name!r} was trained on the "
            f"same under another patient's name ({name_pairs(files)}). Remove these from the test patients, or train "
            "it without them."
        )


def _describe_history(model: ModelCard) -> Iterator[str]:
    if not model.history.is_complete:
        yield f"It is not known what {model.name!r} was trained on, so it may have seen the test patients."
    labels_used = model.history.labels_used
    learned = [use for use in labels_used if use not in _MONITORED]
    if learned:
        yield f"Labels were used in the training of {model.name!r}, for: {', '.join(learned)}."
    elif labels_used:
        yield f"Labels were used to monitor the training of {model.name!r}, but it did not learn from them."


def find_shared(seen: Sequence[SlideId], tested: Sequence[SlideId]) -> tuple[list[str], list[tuple[SlideId, SlideId]]]:
    """Patients of both, and slide files of both (as each names them) that are under different patients' names.

    Encoders that were exported know patients by a hash of their names.
    """
    known = {hash_name(slide.patient) for slide in seen}
    patients = sorted({slide.patient for slide in tested if hash_name(slide.patient) in known})
    by_file: dict[str, list[SlideId]] = defaultdict(list)
    for slide in seen:
        by_file[slide.checksum].append(slide)
    by_file.pop("", None)
    files = [
        (by_file[slide.checksum][0], slide)
        for slide in tested
        if slide.checksum in by_file
        and hash_name(slide.patient) not in {hash_name(same.patient) for same in by_file[slide.checksum]}
    ]
    return patients, files


def _doubt_names(seen: Sequence[SlideId], tested: Sequence[SlideId], patients: Sequence[str]) -> str:
    """What to do if patients have nothing but the name in common."""
    names = set(map(hash_name, patients))
    seen_files, tested_files = (
        {slide.checksum for slide in slides if hash_name(slide.patient) in names} - {""} for slides in (seen, tested)
    )
    if seen_files & tested_files:
        return ""
    return (
        " They have no slide file in common: if they are different patients with the same name, rename the patients of "
        "one store."
    )


def _count_are(things: Sequence[object], noun: str) -> str:
    return f"{count(len(things), noun)} {'is' if len(things) == 1 else 'are'}"


def name_pairs(files: Sequence[tuple[SlideId, SlideId]]) -> str:
    """`'1' of patient 'A' is '7' of patient 'B'` for the first few pairs of a slide seen and the same one tested."""
    pairs = []
    for seen, tested in files[:_NAMED]:
        same = f"{seen.slide!r} of patient {seen.patient!r}" if seen.slide else "a slide of another patient"
        pairs.append(f"{tested.slide!r} of patient {tested.patient!r} is {same}")
    more = f" and {len(files) - _NAMED:,} more" if len(files) > _NAMED else ""
    return ", ".join(pairs) + more

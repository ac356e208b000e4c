"""Leakage: test patients, or their slide files, among the reference patients or in the training of the encoder."""

from collections import defaultdict
from collections.abc import Iterator, Sequence

from hidisc.embeddings.embeddings import ModelCard
from hidisc.evaluation.scores import Finding
from hidisc.evaluation.task import LabelledPatches, Task
from hidisc.ground.errors import UserError
from hidisc.ground.text import count, name_some
from hidisc.models.card import hash_name
from hidisc.patches.record import SlideId

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
        *(Finding(kind="note", sentence=sentence) for sentence in _describe_history(model)),
    )


def refuse_leaks(findings: Sequence[Finding], allow: bool) -> None:
    """Raise an error that names the leaks, unless they are allowed."""
    leaks = [finding.sentence for finding in findings if finding.kind == "leak"]
    if leaks and not allow:
        raise UserError(
            f"{' '.join(leaks)} Give --allow-leakage to evaluate anyway; every table and page will then say so."
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
            f"another name ({_name_pairs(files)}). Remove one of each from the cohort, or list both under one patient."
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
            f"same under another patient's name ({_name_pairs(files)}). Remove these from the test patients, or train "
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


def _name_pairs(files: Sequence[tuple[SlideId, SlideId]]) -> str:
    """`'1' of patient 'A' is '7' of patient 'B'` for the first few pairs of a slide seen and the same one tested."""
    pairs = []
    for seen, tested in files[:_NAMED]:
        same = f"{seen.slide!r} of patient {seen.patient!r}" if seen.slide else "a slide of another patient"
        pairs.append(f"{tested.slide!r} of patient {tested.patient!r} is {same}")
    more = f" and {len(files) - _NAMED:,} more" if len(files) > _NAMED else ""
    return ", ".join(pairs) + more

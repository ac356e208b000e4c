"""Leakage: test patients, or their slide files, among the reference patients or in the training of the encoder.

Circular truth: names of patches that people gave by what the encoder itself says of them.

One person under two names: whether both are in one fold, where they do no harm, or in two, where one is learned from
and the other is judged, depends on the seed of the folds. So they are looked for among all patients at once, before
anything is trained or judged: slide files by their checksums, pictures by `duplicates`, which decides by pixels about
each patch and the nearest one of another patient. At most 20,000 patches are looked at, of every slide those at the
same positions, so that of a slide that is there twice the same patches are compared.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence, Set

import numpy as np
from numpy.typing import NDArray

from hidisc.embeddings.embeddings import Embeddings, ModelCard
from hidisc.embeddings.given_names import FROM_VECTORS, HOW_GIVEN
from hidisc.evaluation.classes import Classes
from hidisc.evaluation.duplicates import count_pictures, find_duplicates
from hidisc.evaluation.metrics import Ints
from hidisc.evaluation.scores import Finding
from hidisc.evaluation.task import LabelledPatches, Task
from hidisc.ground.errors import UserError
from hidisc.ground.progress import SILENT, Progress
from hidisc.ground.text import count, name_some
from hidisc.models.card import hash_name
from hidisc.patches.record import SlideId
from hidisc.patches.store import PatchError, PatchStore
from hidisc.patches.table import PatchTable
from hidisc.settings.evaluate import EvaluateConfig, LeakageConfig
from hidisc.slides.slide import as_rgb, shrink

_NAMED = 3
"""Pairs of slides named in a sentence; of the others the number is given."""
_MONITORED = ("monitor",)
"""Uses of labels that do not change the weights (`training/monitor.py`)."""
_MOST = 20_000
"""Most patches in which one person is looked for under two names: a minute of reading at most."""
_SIDE_PX = 16
_BLOCK = 512
"""Patches compared with all others at once: 40 MB."""


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
    patients, slides = (table.column(name)[rows].tolist() for name in ("patient", "slide"))
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
    by_file = _group_by_file(seen)
    files = [
        (by_file[slide.checksum][0], slide)
        for slide in tested
        if slide.checksum in by_file
        and hash_name(slide.patient) not in {hash_name(same.patient) for same in by_file[slide.checksum]}
    ]
    return patients, files


def _group_by_file(slides: Iterable[SlideId]) -> dict[str, list[SlideId]]:
    """Slides by the checksums of their files, without those whose checksum is not known."""
    by_file: dict[str, list[SlideId]] = defaultdict(list)
    for slide in slides:
        if slide.checksum:
            by_file[slide.checksum].append(slide)
    return by_file


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
    by_file = _group_by_file(sorted(slides, key=lambda slide: (slide.patient, slide.slide)))
    pairs = [(same[0], slide) for same in by_file.values() for slide in same if slide.patient != same[0].patient]
    if not pairs:
        return ()
    sentence = (
        f"{_count_are(pairs, 'slide file')} listed under two patients ({name_pairs(pairs)}), so that folds may "
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

"""`hidisc predict`: Embeddings of patients without a label, and the Scores of labelled ones -> a table of predictions.

Nobody is judged here: how far such predictions can be trusted is what the scores have measured on other patients.
"""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hidisc.embeddings.embeddings import Embeddings, add_labels
from hidisc.evaluation.judge import PROBES, predict, prepare_task
from hidisc.evaluation.leakage import find_shared, slides_of
from hidisc.evaluation.neighbours import choose_device, use_threads
from hidisc.evaluation.predictions import ENCODER, Key, Predictions
from hidisc.evaluation.probes.knn import KnnResult, predict_by_neighbours
from hidisc.evaluation.scores import Scores
from hidisc.evaluation.task import LabelledPatches, Task
from hidisc.ground.errors import UserError
from hidisc.ground.files import AnyPath, Record, make_folder, relate, write_atomic
from hidisc.ground.progress import SILENT, Progress, Result
from hidisc.ground.spreadsheet import format_csv
from hidisc.ground.text import count, name_some
from hidisc.models.card import hash_name
from hidisc.settings.evaluate import EvaluateConfig

_NAMED = 3
"""Reference patients that are named beside a patient: those with most of the nearest patches."""


class PredictedInfo(Record):
    """`TABLE.json`, beside the table: what the predictions were made from."""

    embeddings: str
    """Where the embeddings of the predicted patients were, relative to the table."""
    scores: str
    """Where the scores were, relative to the table."""
    checksums: dict[str, str]
    """Of the embeddings, the scores, and the embeddings of the reference patients."""
    encoder: str
    label: str
    """The column that is predicted."""
    classes: tuple[str, ...]
    probes: tuple[str, ...]
    """The first one is that of the columns without a name of a probe."""
    patients: tuple[str, ...]
    """Who was predicted."""
    reference: dict[str, tuple[str, ...]]
    """By label, the reference patients; one with patches of several labels stands under each."""
    accuracy: dict[str, str]
    """Of each probe, in percent with its interval, as the scores have measured it on other patients."""
    warnings: tuple[str, ...]
    """Those of the scores."""


@dataclass(frozen=True)
class PredictedTable:
    """A table of predictions that was written."""

    path: Path
    info: PredictedInfo
    predicted: dict[str, int]
    """By class, how many patients."""

    def result(self) -> Result:
        """How many patients were predicted as what, by whom."""
        info = self.info
        found = ", ".join(f"{name} {number:,}" for name, number in self.predicted.items())
        reference = {patient for patients in info.reference.values() for patient in patients}
        sentence = f"{count(len(info.patients), 'patient')} without a {info.label} predicted from "
        sentence += f"{count(len(reference), 'reference patient')}: {found}"
        known = info.accuracy[info.probes[0]]
        sentence += f" ({info.probes[0]}; accuracy {known} % on the patients of {Path(info.scores).name})"
        return Result(f"{self.path}: {sentence}", {"table": str(self.path), **info.model_dump(mode="json")})


@use_threads()
def predict_unlabelled(
    embeddings: AnyPath, by: AnyPath, out: AnyPath, *, device: str = "auto", progress: Progress = SILENT
) -> PredictedTable:
    """Predict the label of patients who have none, from the reference patients of scores, and write a table.

    The vectors, the labels and the encoder of the reference patients are those that were judged; anything else is
    refused, and so are patients who are reference patients.
    """
    out, scores = Path(out), Scores.load(by)
    if out.suffix.lower() != ".csv":
        raise UserError(f"--out {out} is not a table. Give a name that ends in .csv.")
    beside = out.with_suffix(".json")
    for file in (out, beside):
        if file.exists():
            raise UserError(f"{file} is there already and is not overwritten. Give another --out.")
    config = EvaluateConfig.model_validate(scores.info.config)
    queries, reference = Embeddings.load(embeddings), _open_reference(scores)
    if queries.info.model.checksum != reference.info.model.checksum:
        raise UserError(
            f"{queries.path} was made by another encoder ({queries.info.model.name!r}) than the reference patients of "
            f"{scores.path} ({reference.info.model.name!r}). Embed these patients with that encoder."
        )
    task = _choose_task(queries, reference, scores, config, progress)
    _refuse_reference_patients(task, scores)
    _say_seen(task, progress)
    prepared, device = prepare_task(task, config, progress), choose_device(device)
    nearest = predict_by_neighbours(prepared, config.knn, device)
    levels: dict[str, Predictions] = {}
    for probe in scores.info.probes:
        progress.say(f"predicting with {PROBES[probe].title} ...")
        made = predict(prepared, Key(ENCODER, probe, "patch"), config, device, progress, nearest)
        levels.update((probe, level) for level in made.levels if level.level == task.levels[0])
    if not levels:
        raise UserError(f"no probe of {scores.path} predicts a {task.levels[0]}. Evaluate with probes=[knn] as well.")
    info = _describe(task, scores, queries, reference, tuple(levels), out)
    first = levels[info.probes[0]]
    make_folder(out.parent)
    write_atomic(beside, (info.model_dump_json(indent=1) + "\n").encode())
    write_atomic(out, _to_csv(prepared, levels, nearest).encode())
    numbers = Counter(first.classes[code] for code in first.predicted.tolist())
    return PredictedTable(out, info, {name: numbers[name] for name in first.classes})


def _open_reference(scores: Scores) -> Embeddings:
    """The embeddings of the reference patients with the labels that they had when they were judged by."""
    inputs = scores.artefact.manifest.inputs
    if "the bank" not in inputs:
        raise UserError(
            f"{scores.path} pools evaluations of several encoders, each with reference patients of its own. Evaluate "
            "embeddings of one encoder, and give these scores."
        )
    return scores.open_bank()


def _choose_task(
    queries: Embeddings, reference: Embeddings, scores: Scores, config: EvaluateConfig, progress: Progress
) -> Task:
    """The labelled patches of the reference patients, and all patches of the patients without a label."""
    info, table = scores.info, reference.table
    unknown = [level for level in info.levels[:-1] if level not in queries.table.names]
    if unknown:
        raise UserError(
            f"{queries.path} has no column {unknown[0]!r}, a level of {scores.path}. Give embeddings that have it."
        )
    is_reference = np.ones(len(table), bool)
    if config.test_patients is not None:
        is_reference = ~table.of_patients(config.test_patients, "test_patients", reference.path)
    elif not info.folds:  # of folds, everybody who has a label
        is_reference = table.in_splits(config.bank, "bank", reference.path)
    code = {name: number for number, name in enumerate(info.endpoint.classes)}
    labels = np.array([code.get(name, -1) for name in table.column(config.label)], np.int64)
    rows = np.flatnonzero(is_reference & (labels >= 0))
    bank = LabelledPatches(reference, rows, labels[rows], 0)
    coarsest, names = queries.table.codes(info.levels[0])
    labelled = queries
    if config.label not in queries.table.names:
        labelled = add_labels(queries, config.label)
    has_label = np.zeros(len(names) + 1, bool)
    if config.label in labelled.table.names:
        has_label[np.unique(coarsest[labelled.table.codes(config.label)[0] >= 0])] = True
    chosen = np.flatnonzero(~has_label[coarsest] & (coarsest >= 0))
    known = int(has_label[:-1].sum())
    if not len(chosen):
        raise UserError(
            f"all patients of {queries.path} have a {config.label}, and `hidisc predict` is for those who have none. "
            f"`hidisc evaluate` judges how well a {config.label} is predicted."
        )
    if known:
        progress.say(f"note: {count(known, 'patient')} of {queries.path} who have a {config.label} are left out")
    unlabelled = LabelledPatches(queries, chosen, np.full(len(chosen), -1, np.int64), 0)
    return Task(info.endpoint, info.levels, bank, unlabelled)


def _refuse_reference_patients(task: Task, scores: Scores) -> None:
    """Refuse patients, or slide files, that are among those from whom is predicted."""
    patients, files = find_shared(slides_of(task.bank), slides_of(task.queries))
    if patients:
        raise UserError(
            f"{name_some(patients)} of {task.queries.embeddings.path}: patients without a {task.endpoint.label} here "
            f"are among the reference patients of {scores.path}, whose {task.endpoint.label} is known. Leave them out, "
            "or name different patients differently."
        )
    if files:
        known, same = files[0]
        raise UserError(
            f"slide {same.slide!r} of patient {same.patient!r} is the same file as slide {known.slide!r} of reference "
            f"patient {known.patient!r}. Remove it, or list both under one patient."
        )


def _say_seen(task: Task, progress: Progress) -> None:
    """Say which of the patients the encoder has learned from, without their labels."""
    model = task.queries.embeddings.info.model
    seen = {hash_name(patient) for patient in model.history.patients}
    patients = dict.fromkeys(slide.patient for slide in slides_of(task.queries))
    learned = [patient for patient in patients if hash_name(patient) in seen]
    if learned:
        progress.say(
            f"note: {model.name!r} has learned from {count(len(learned), 'patient')} of these ({name_some(learned)}); "
            "the scores are about patients whom it had not seen"
        )


def _describe(
    task: Task, scores: Scores, queries: Embeddings, reference: Embeddings, probes: tuple[str, ...], out: Path
) -> PredictedInfo:
    info, level = scores.info, task.levels[0]
    whose, labels = task.bank.names(level), task.bank.labels
    judged = {probe: info.find(level, probe) for probe in probes}
    return PredictedInfo(
        embeddings=relate(queries.path, out.parent),
        scores=relate(scores.path, out.parent),
        checksums={
            "the embeddings": queries.artefact.checksum,
            "the scores": scores.artefact.checksum,
            "the reference": reference.artefact.checksum,
        },
        encoder=queries.info.model.name,
        label=info.endpoint.label,
        classes=info.endpoint.classes,
        probes=probes,
        patients=tuple(dict.fromkeys(task.queries.names(level).tolist())),
        reference={
            name: tuple(dict.fromkeys(whose[labels == code].tolist()))
            for code, name in enumerate(info.endpoint.classes)
        },
        accuracy={
            probe: row.metrics["accuracy"].percent() if row is not None else "undefined"
            for probe, row in judged.items()
        },
        warnings=info.warnings,
    )


def _to_csv(task: Task, levels: dict[str, Predictions], nearest: KnnResult) -> str:
    """One row per patient: what each probe predicts, and whose patches are nearest."""
    level, queries = task.levels[0], task.queries
    first, *others = levels
    columns: list[str] = [level, *(f"{name}s" if name != "patch" else "patches" for name in task.levels[1:])]
    columns += ["predicted", *(f"score: {name}" for name in task.classes)]
    columns += [f"{probe}: {name}" for probe in others for name in ("predicted", *task.classes)]
    columns += ["nearest reference patients"]
    place = {name: number for number, name in enumerate(levels[first].units[level].tolist())}
    whose, units = queries.names(level), queries.units((level,))
    finer = [queries.units(task.levels[: depth + 2]) for depth in range(len(task.levels) - 2)]  # such as slides
    rows = []
    for members in units.rows():
        name = whose[members[0]]
        row: list[Any] = [name, *(len(np.unique(unit.of_row[members])) for unit in finer), len(members)]
        for probe in levels.values():
            scores = probe.scores[place[name]]
            row += [probe.classes[int(scores.argmax())], *(round(float(score), 4) for score in scores)]
        rows.append([*row, _name_nearest(task, nearest.rows[members])])
    return format_csv(columns, rows)


def _name_nearest(task: Task, rows: NDArray[np.int64]) -> str:
    """The reference patients with most of the nearest patches, and their shares: `P1 (60 %), P2 (25 %)`."""
    codes, names = task.bank.embeddings.table.codes(task.levels[0])
    numbers = Counter(codes[rows[rows >= 0]].tolist())
    total = sum(numbers.values())
    return ", ".join(f"{names[code]} ({100 * number / total:.0f} %)" for code, number in numbers.most_common(_NAMED))

"""`hidisc evaluate`: Embeddings -> Scores, the evaluation of an encoder by patients it was not trained on."""

from collections.abc import Sequence
from pathlib import Path

from hidisc.artefacts.artefact import make
from hidisc.embeddings.embeddings import Embeddings, add_labels
from hidisc.evaluation.cross_validation import pool_evaluations
from hidisc.evaluation.floors import FloorVectors, measure_colour
from hidisc.evaluation.judge import judge
from hidisc.evaluation.neighbours import choose_device
from hidisc.evaluation.scores import Evaluation, Scores
from hidisc.evaluation.task import Task, choose_task
from hidisc.ground.errors import UserError
from hidisc.ground.files import AnyPath, full_disk_said, name_related
from hidisc.ground.progress import SILENT, Progress
from hidisc.ground.text import count, name_some
from hidisc.models.card import hash_name
from hidisc.patches.splits import Folds, make_folds
from hidisc.settings.evaluate import EvaluateConfig, FoldsConfig


def evaluate(
    embeddings: AnyPath,
    out: AnyPath,
    config: EvaluateConfig | None = None,
    *,
    bank: AnyPath | None = None,
    device: str = "auto",
    progress: Progress = SILENT,
) -> Scores:
    """Evaluate embeddings on test patients; `bank`: embeddings of reference patients of another store.

    With folds, every patient is a test patient once: each fold is evaluated in a folder of its own, and all are pooled.
    """
    config, out, device = config or EvaluateConfig(), Path(out), choose_device(device)
    queries = add_labels(Embeddings.load(embeddings), config.label)
    reference = queries if bank is None else add_labels(Embeddings.load(bank), config.label)
    folds = _choose_folds(queries, config, has_bank=bank is not None)
    parts = [_for_fold(config, patients) for patients in folds] or [config]
    tasks = [choose_task(queries, reference, part) for part in parts]
    inputs = _list_inputs(queries, reference)
    with full_disk_said("The embeddings are as they were"), make(out, "evaluate", config, inputs) as work:
        if work.is_finished(progress.say):
            return Scores.load(out)
        floors = _measure_floors(queries, config, progress) if reference is queries else []
        if folds:
            paths = [out / "folds" / str(number) for number in range(1, len(folds) + 1)]
            evaluations = []
            for number, (path, task, part) in enumerate(zip(paths, tasks, parts, strict=True), start=1):
                progress.say(f"fold {number} of {len(folds)}: {count(len(folds[number - 1]), 'test patient')}")
                evaluations.append(_evaluate_fold(task, floors, part, path, number, device, progress))
            model = queries.info.model.relate_source(queries.path, out)
            evaluation = pool_evaluations(evaluations, paths, config, model, out, progress)
        else:
            evaluation = judge(tasks[0], floors, config, out, device=device, progress=progress)
        audit = _audit(queries, config, device, progress) if reference is queries else ()
        work.finish(evaluation.with_audit(audit).write(out))
    return Scores.load(out)


def _choose_folds(queries: Embeddings, config: EvaluateConfig, has_bank: bool) -> Folds:
    """The test patients of every fold; none without cross-validation."""
    if not config.folds.are_used:
        return ()
    if has_bank or config.test_patients is not None:
        raise UserError("--folds choose reference and test patients themselves. Leave out --bank and test_patients.")
    folds = make_folds(queries.table, config.folds, config.label, queries.path)
    card = queries.info.model
    seen = {hash_name(patient) for patient in card.history.patients}
    known = [patient for fold in folds for patient in fold if hash_name(patient) in seen]
    if known and not config.leakage.allow:
        raise UserError(
            f"{card.name!r} has learned from {count(len(known), 'patient')} of these ({name_some(known)}), so folds of "
            "its embeddings cannot judge it: each fold needs an encoder of its own, trained without the fold's "
            "patients. `hidisc benchmark SUITE STORE --folds K` trains and judges these."
        )
    return folds


def _for_fold(config: EvaluateConfig, patients: tuple[str, ...]) -> EvaluateConfig:
    """The settings of one fold; floors are measured once for all of them, and the audit looks at all patients."""
    return config.model_copy(update={"test_patients": patients, "folds": FoldsConfig(), "audit": False})


def _evaluate_fold(
    task: Task,
    floors: Sequence[FloorVectors],
    config: EvaluateConfig,
    out: Path,
    fold: int,
    device: str,
    progress: Progress,
) -> Evaluation:
    """Evaluate one fold into a folder of its own, which a later call finds finished."""
    inputs = _list_inputs(task.queries.embeddings, task.bank.embeddings)
    with make(out, "evaluate", config, inputs) as work:
        if work.is_finished(progress.say):
            return Scores.load(out).read()
        evaluation = judge(task, floors, config, out, fold=fold, device=device, progress=progress)
        work.finish(evaluation.write(out))
    return evaluation


def _list_inputs(queries: Embeddings, bank: Embeddings) -> dict[str, str]:
    """Checksums of what an evaluation is made from: embeddings, and the files of labels that were added to them."""
    inputs = {}
    for name, embeddings in (("the embeddings", queries), ("the bank", bank)):
        inputs[name] = embeddings.artefact.checksum
        if embeddings.labels_checksum is not None:
            inputs[f"the labels of {name}"] = embeddings.labels_checksum
    return inputs


def _measure_floors(queries: Embeddings, config: EvaluateConfig, progress: Progress) -> list[FloorVectors]:
    """The floors that stand beside the encoder, as vectors of its patches."""
    if not config.floor:
        return []
    progress.say("measuring the colour of the patches, the floor that an encoder must beat ...")
    colour = measure_colour(queries, config)
    if colour is None:
        store = name_related(queries.info.store, queries.path)
        progress.say(f"note: colour alone is not judged beside it: the store {store!r} is not there, or has changed")
    return [] if colour is None else [colour]


def _audit(embeddings: Embeddings, config: EvaluateConfig, device: str, progress: Progress) -> tuple[str, ...]:
    """What the shortcut audit says of site, scanner, batch and date, where the table has any of these columns.

    It looks at stored embeddings of one store: nothing is said of aligned ones or of places.
    """
    if not config.audit or config.align is not None or config.places is not None:
        return ()
    from hidisc.auditing.measure import run_audit
    from hidisc.auditing.nuisance import list_known
    from hidisc.settings.audit import AuditConfig

    columns = tuple(list_known(embeddings, config.label))
    if not columns:
        return ()
    asked = AuditConfig(label=config.label, columns=columns, memory_gb=config.knn.memory_gb, seed=config.seed)
    audited = run_audit(embeddings, asked, device, progress.say).columns
    for column in audited:
        progress.say(f"audit of {column.column}: {column.sentence}")
    return tuple(column.sentence for column in audited)

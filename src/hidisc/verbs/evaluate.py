"""`hidisc evaluate`: Embeddings -> Scores, the evaluation of an encoder by patients it was not trained on."""

from collections.abc import Sequence
from pathlib import Path

from hidisc.artefacts.artefact import make
from hidisc.artefacts.inputs import ANY_INPUTS, EMBEDDINGS, STORE, ExpectedInputs
from hidisc.embeddings.embeddings import Embeddings, add_labels
from hidisc.evaluation.cross_validation import choose_folds, pool_evaluations
from hidisc.evaluation.floors import FloorVectors, measure_floors
from hidisc.evaluation.judge import judge
from hidisc.evaluation.leakage import find_overlap, find_same_person, refuse_leaks
from hidisc.evaluation.neighbours import choose_device
from hidisc.evaluation.scores import Evaluation, Finding, Scores
from hidisc.evaluation.task import Task, choose_task
from hidisc.ground.files import AnyPath, full_disk_said
from hidisc.ground.progress import SILENT, Progress
from hidisc.ground.text import count
from hidisc.patches.store import PatchStore
from hidisc.settings.evaluate import EvaluateConfig


def evaluate(
    embeddings: AnyPath,
    out: AnyPath,
    config: EvaluateConfig | None = None,
    *,
    bank: AnyPath | None = None,
    device: str = "auto",
    progress: Progress = SILENT,
    expected: ExpectedInputs = ANY_INPUTS,
) -> Scores:
    """Evaluate embeddings on test patients; `bank`: embeddings of reference patients of another store.

    Inputs other than `expected` are refused. Where the store is there at the beginning, it must be to the end.
    With folds, every patient is a test patient once: each fold is evaluated in a folder of its own, and all are pooled.
    """
    config, out, device = config or EvaluateConfig(), Path(out), choose_device(device)
    queries = add_labels(Embeddings.load(embeddings, expected), config.label)
    reference = queries if bank is None else add_labels(Embeddings.load(bank), config.label)
    folds = choose_folds(queries, config, has_bank=bank is not None)
    tasks = [choose_task(queries, reference, part) for part in folds or [config]]
    for task in tasks:
        refuse_leaks(find_overlap(task), config.leakage)
    inputs = _list_inputs(queries, reference)
    pictured = expected
    if STORE not in expected.checksums and queries.open_store() is not None:
        pictured = ExpectedInputs(out, {STORE: queries.info.store_checksum})
    _refuse_other_store(queries, pictured)
    with full_disk_said("The embeddings are as they were"), make(out, "evaluate", config, inputs) as work:
        if work.is_finished(progress.say):
            return Scores.load(out)
        compared = None
        if folds:
            progress.say("comparing the patients of all folds, one of whom may be there under two names ...")
            patients = {patient for part in folds for patient in part.test_patients or ()}
            compared = find_same_person(queries, patients, len(folds), config, progress)
            refuse_leaks(compared, config.leakage)
        floors = measure_floors(queries, tasks[0].endpoint, config, progress) if reference is queries else []
        if folds:
            paths, evaluations = [out / "folds" / str(number) for number in range(1, len(folds) + 1)], []
            for number, (path, task, part) in enumerate(zip(paths, tasks, folds, strict=True), start=1):
                progress.say(f"fold {number} of {len(folds)}: {count(len(part.test_patients or ()), 'test patient')}")
                evaluations.append(_judge_fold(task, floors, part, path, number, compared, device, progress, pictured))
            model = queries.info.model.relate_source(queries.path, out)
            evaluation = pool_evaluations(evaluations, paths, config, model, out, progress)
        else:
            evaluation = judge(tasks[0], floors, config, out, device=device, progress=progress)
        if config.audit and reference is queries:
            from hidisc.auditing.measure import audit_known_columns  # scikit-learn takes seconds to load

            evaluation = evaluation.with_audit(audit_known_columns(queries, config, device, progress.say))
        _refuse_other_store(queries, pictured)
        work.finish(evaluation.write(out))
    return Scores.load(out)


def _judge_fold(
    task: Task,
    floors: Sequence[FloorVectors],
    config: EvaluateConfig,
    out: Path,
    fold: int,
    compared: Sequence[Finding] | None,
    device: str,
    progress: Progress,
    pictured: ExpectedInputs,
) -> Evaluation:
    """Judge one fold into a folder of its own, which a later call finds finished."""
    inputs = _list_inputs(task.queries.embeddings, task.bank.embeddings)
    inputs |= {STORE: pictured.checksums[STORE]} if STORE in pictured.checksums else {}  # pictures in all folds or none
    with make(out, "evaluate", config, inputs) as work:
        if work.is_finished(progress.say):
            return Scores.load(out).read()
        evaluation = judge(task, floors, config, out, fold=fold, compared=compared, device=device, progress=progress)
        work.finish(evaluation.write(out))
    return evaluation


def _refuse_other_store(queries: Embeddings, pictured: ExpectedInputs) -> None:
    """Refuse another store than is expected: its pictures are floors, and are compared with those of other patients."""
    if STORE in pictured.checksums and queries.info.store is not None:
        PatchStore.load((queries.path / queries.info.store).resolve(), pictured)


def _list_inputs(queries: Embeddings, bank: Embeddings) -> dict[str, str]:
    """Checksums of what an evaluation is made from: embeddings, and the files of labels that were added to them."""
    inputs = {}
    for name, embeddings in ((EMBEDDINGS, queries), ("the bank", bank)):
        inputs[name] = embeddings.artefact.checksum
        if embeddings.labels_checksum is not None:
            inputs[f"the labels of {name}"] = embeddings.labels_checksum
    return inputs

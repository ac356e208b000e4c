"""`hidisc evaluate`: Embeddings -> Scores, the evaluation of an encoder by patients it was not trained on."""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hidisc.artefacts.artefact import make
from hidisc.embeddings.embeddings import Embeddings, add_labels
from hidisc.evaluation.align import align_task
from hidisc.evaluation.cross_validation import write_pooled
from hidisc.evaluation.diagnostics import diagnose
from hidisc.evaluation.duplicates import count_pictures, find_duplicates
from hidisc.evaluation.floor import colour_of, compare_with_floor
from hidisc.evaluation.labels import check_labels, count_units
from hidisc.evaluation.leakage import find_overlap, refuse_leaks
from hidisc.evaluation.levels import write_levels
from hidisc.evaluation.neighbours import choose_device, use_threads
from hidisc.evaluation.places import join_places
from hidisc.evaluation.predictions import Predictions, patch_predictions, pool_patches, pool_units
from hidisc.evaluation.probes.knn import KnnResult, predict_by_neighbours
from hidisc.evaluation.scales import at_scale, find_scales, score_scales
from hidisc.evaluation.scores import (
    ATTENTION,
    NEIGHBOURS,
    SCORES,
    Finding,
    FloorScores,
    ProbeScores,
    Scores,
    ScoresInfo,
    predictions_file,
    save_neighbours,
)
from hidisc.evaluation.task import Task, choose_task
from hidisc.ground.columns import save_columns
from hidisc.ground.errors import UserError
from hidisc.ground.files import AnyPath, full_disk_said, make_folder, name_related, relate, write_atomic
from hidisc.ground.machine import versions
from hidisc.ground.progress import Say, ignore
from hidisc.ground.text import count, name_some
from hidisc.models.card import hash_name
from hidisc.patches.splits import Folds, make_folds
from hidisc.settings.audit import AuditConfig
from hidisc.settings.evaluate import EvaluateConfig, FoldsConfig
from hidisc.verbs.progress import show_count, show_patches

_PACKAGES = ("hidisc", "numpy", "scikit-learn", "torch")
_PROBE_NAMES = {"knn": "the k-nearest-neighbour probe", "linear": "the linear probe", "mil": "the attention probe"}


@dataclass(frozen=True)
class _Request:
    """What the caller of `evaluate` asked for."""

    config: EvaluateConfig
    device: str
    say: Say
    shown: bool


def evaluate(
    embeddings: AnyPath,
    out: AnyPath,
    config: EvaluateConfig | None = None,
    *,
    bank: AnyPath | None = None,
    device: str = "auto",
    say: Say = ignore,
    shown: bool = True,
) -> Scores:
    """Evaluate embeddings on test patients; `bank`: embeddings of reference patients, if they are from another store.

    `say` is called with messages for the user; `shown`: whether to show a progress bar.
    """
    config, out = config or EvaluateConfig(), Path(out)
    queries = add_labels(Embeddings.load(embeddings), config.label)
    with queries.info.level_names.spoken(say) as say:
        request = _Request(config, choose_device(device), say, shown)
        if config.folds.are_used:
            return _evaluate_folds(queries, bank, out, request)
        reference = add_labels(Embeddings.load(bank), config.label) if bank is not None else queries
        return _evaluate_split(queries, reference, out, request)


def _evaluate_split(
    queries: Embeddings, bank: Embeddings, out: Path, request: _Request, colour: Embeddings | None = None
) -> Scores:
    """Evaluate test patients by reference patients; `colour`: of the same patches, where it is known already."""
    config, say = request.config, request.say
    task = choose_task(queries, bank, config)
    if config.align is not None:
        task, unseen = align_task(task, config.align)
        if unseen:
            say(f"note: no reference patient has {config.align} {name_some(unseen)}: these patches are not aligned")
    if config.places is not None:
        task, joined = join_places(task, config.places)
        say(f"places={config.places}: {joined}")
    findings = find_overlap(task)
    refuse_leaks(findings, config.leakage.allow)
    inputs = _list_inputs(queries, bank)
    with full_disk_said("The embeddings are as they were"), make(out, "evaluate", config, inputs) as work:
        if not work.is_finished(say):
            if config.floor and colour is None and bank is queries:
                colour = _measure_colour(queries, config, say)
            floor = choose_task(colour, colour, config) if colour is not None else None
            if floor is not None and config.places is not None:
                floor, _ = join_places(floor, config.places)
            with use_threads():
                work.finish(_evaluate_task(task, floor, findings, out, request))
    return Scores.load(out)


def _list_inputs(queries: Embeddings, bank: Embeddings) -> dict[str, str]:
    """Checksums of what an evaluation is made from: embeddings, and the files of labels that were added to them."""
    inputs = {}
    for name, given in (("the embeddings", queries), ("the bank", bank)):
        inputs[name] = given.artefact.checksum
        if given.labels_checksum is not None:
            inputs[f"the labels of {name}"] = given.labels_checksum
    return inputs


def _evaluate_folds(queries: Embeddings, bank: AnyPath | None, out: Path, request: _Request) -> Scores:
    """Evaluate an encoder that has learned from none of the patients: each fold by the others, then all pooled."""
    config, say = request.config, request.say
    if bank is not None or config.test_patients is not None:
        raise UserError("--folds choose reference and test patients themselves. Leave out --bank and test_patients.")
    folds = make_folds(queries.table, config.folds, config.label, queries.path)
    _refuse_learned(queries, folds, config)
    inputs = _list_inputs(queries, queries)
    with full_disk_said("The embeddings are as they were"), make(out, "evaluate", config, inputs) as work:
        if not work.is_finished(say):
            colour = _measure_colour(queries, config, say) if config.floor else None
            parts = []
            for number, patients in enumerate(folds, start=1):
                say(f"fold {number} of {len(folds)}: {count(len(patients), 'test patient')}")
                changes = {
                    "test_patients": patients,
                    "folds": FoldsConfig(),
                    "floor": colour is not None,
                    "audit": config.audit and number == 1,  # it looks at all patients, whatever the fold
                }
                one = replace(request, config=config.model_copy(update=changes))
                parts.append(_evaluate_split(queries, queries, out / "folds" / str(number), one, colour))
            work.finish(write_pooled(parts, out, config, queries.info.model.relate_source(queries.path, out)))
    return Scores.load(out)


def _refuse_learned(queries: Embeddings, folds: Folds, config: EvaluateConfig) -> None:
    """Refuse an encoder that has learned from patients of the folds: each of them would be judged as one it knows."""
    card = queries.info.model
    seen = {hash_name(patient) for patient in card.history.patients}
    known = [patient for fold in folds for patient in fold if hash_name(patient) in seen]
    if known and not config.leakage.allow:
        raise UserError(
            f"{card.name!r} has learned from {count(len(known), 'patient')} of these ({name_some(known)}), so folds of "
            "its embeddings cannot judge it: each fold needs an encoder of its own, trained without the fold's "
            "patients. `hidisc benchmark SUITE STORE --folds K` trains and judges these."
        )


def _audit(task: Task, request: _Request) -> tuple[str, ...]:
    """What the shortcut audit says of site, scanner, batch and date, where the table has any of them.

    It looks at stored embeddings of one store: nothing is said of aligned ones, of places, or of another bank.
    """
    config, embeddings = request.config, task.queries.embeddings
    is_stored = config.align is None and config.places is None and task.bank.embeddings is embeddings
    if not config.audit or not is_stored:
        return ()
    from hidisc.auditing.measure import run_audit
    from hidisc.auditing.nuisance import list_known

    columns = tuple(list_known(embeddings, config.label))
    if not columns:
        return ()
    asked = AuditConfig(label=config.label, columns=columns, memory_gb=config.knn.memory_gb, seed=config.seed)
    found = run_audit(embeddings, asked, request.device, request.say).columns
    for column in found:
        request.say(f"audit of {column.column}: {column.sentence}")
    return tuple(column.sentence for column in found)


def _measure_colour(queries: Embeddings, config: EvaluateConfig, say: Say) -> Embeddings | None:
    say("measuring the colour of the patches, the floor that an encoder must beat ...")
    colour = colour_of(queries, config.seed)
    if colour is None:
        store = name_related(queries.info.store, queries.path)
        say(f"note: colour alone is not judged beside it: the store {store!r} is not there, or has changed")
    return colour


def _evaluate_task(
    task: Task, floor: Task | None, findings: tuple[Finding, ...], out: Path, request: _Request
) -> list[str]:
    """Search neighbours, check for leakage, run every probe and write the folder; returns the names of its files."""
    config, say = request.config, request.say
    queries, bank = task.queries, task.bank
    words = queries.embeddings.info.level_names
    with show_patches("nearest neighbours", len(queries), request.shown, words) as watch:
        watch(0)
        knn = predict_by_neighbours(task, config.knn, request.device, watch)
    ours, theirs = queries.embeddings.open_store(), bank.embeddings.open_store()
    with show_count("near-duplicates", count_pictures(task), "pictures", request.shown) as watch:
        duplicates = find_duplicates(task, knn.rows, knn.similarities, config.leakage, ours, theirs, config.seed, watch)
    findings = (*findings, *([duplicates] if duplicates else []))
    refuse_leaks(findings, config.leakage.allow)
    labels = check_labels(task)
    for finding in (*findings, *labels):
        say(f"{finding.kind}: {finding.sentence}")

    probes, files = _probe(task, knn, out, request)
    judged, more = _judge_floor(floor, task, probes[0], out, request) if floor is not None else (None, [])
    files += more

    def predict_scale(mpp: float, of_floor: bool) -> list[Predictions]:
        judged_task = floor if of_floor else task
        here = None if judged_task is None else at_scale(judged_task, mpp)
        return _predict_first(here, request) if here and len(here.bank) and len(here.queries) else []

    scales, more = score_scales(find_scales(task), predict_scale, out, task.positive, config)
    files += more
    if knn.rows.shape[1]:
        save_neighbours(out / NEIGHBOURS, knn.rows, knn.similarities)
        files.append(NEIGHBOURS)
    info = queries.embeddings.info
    scores = ScoresInfo(
        model=info.model.relate_source(queries.embeddings.path, out),
        embeddings=relate(queries.embeddings.path, out),
        bank=relate(bank.embeddings.path, out),
        store_checksum=info.store_checksum,
        sampling={"per_slide": info.per_slide, "seed": info.seed},
        config=config.model_dump(mode="json"),
        classes=task.classes,
        positive=task.classes[task.positive],
        levels=task.levels,
        counts=count_units(task),
        unlabelled={"bank": bank.unlabelled, "queries": queries.unlabelled},
        labels=labels,
        probes=probes,
        diagnostics=diagnose(task, config.seed),
        leakage=findings,
        floor=judged,
        scales=scales,
        audit=_audit(task, request),
        versions=versions(*_PACKAGES),
        level_names=info.level_names,
    )
    write_atomic(out / SCORES, (scores.model_dump_json(indent=1) + "\n").encode())
    return [SCORES, *files]


def _judge_floor(
    floor: Task, task: Task, first: ProbeScores, out: Path, request: _Request
) -> tuple[FloorScores, list[str]]:
    """Run every probe on colour alone and compare the first probe with that of the task; also returns the files."""
    request.say("the same for colour alone ...")
    knn = predict_by_neighbours(floor, request.config.knn, request.device)
    probes, files = _probe(floor, knn, out, replace(request, say=ignore), of_floor=True)
    differences = compare_with_floor(out, request.config, first, task.positive)
    patches = len(floor.bank) + len(floor.queries)
    return FloorScores(patches=patches, probes=probes, differences=differences), files


def _probe(
    task: Task, knn: KnnResult, out: Path, request: _Request, *, of_floor: bool = False
) -> tuple[tuple[ProbeScores, ...], list[str]]:
    """Run every probe and write its predictions; returns the scores and the names of the files."""
    config = request.config
    probes: list[ProbeScores] = []
    files: list[str] = []
    for name in config.probes:
        request.say(f"evaluating with {_PROBE_NAMES[name]} ...")
        attention = np.full(len(task.queries), np.nan, np.float32)
        predictions, remarks = _predict(name, task, knn, request, attention)
        names = {level.level: predictions_file(name, level.level, config.probes[0], of_floor) for level in predictions}
        with show_count(f"{name}: bootstrap", len(predictions), "levels", request.shown) as watch:
            levels = write_levels(predictions, names, out, task.positive, config, watch)
        files += names.values()
        probes.append(ProbeScores(name=name, remarks=remarks, levels=levels))
        if np.isfinite(attention).any() and not of_floor:
            files.append(ATTENTION)
            make_folder((out / ATTENTION).parent)
            save_columns(out / ATTENTION, {"row": task.queries.rows, "attention": attention})
    return tuple(probes), files


def _predict(
    name: str, task: Task, knn: KnnResult, request: _Request, attention: NDArray[np.float32]
) -> tuple[list[Predictions], tuple[str, ...]]:
    """Predictions of one probe at every level it has, finest first, and remarks; `attention` (N,) is filled."""
    config, coarser = request.config, task.levels[-2::-1]  # such as slide, patient
    if name == "mil":
        from hidisc.evaluation.probes.attention import mil_predictions

        with show_count("attention", config.mil.epochs, "epochs", request.shown) as watch:
            bags, remarks = mil_predictions(task, config.mil, config.seed, watch, attention)
        return [bags, *(pool_units(bags, level) for level in coarser[1:])] if bags is not None else [], remarks
    scores, remarks, second_softmax = knn.scores, knn.remarks, config.knn.second_softmax
    if name == "linear":
        from hidisc.evaluation.probes.linear import count_fits, linear_scores

        with show_count("linear", count_fits(config.linear), "fits", request.shown) as watch:
            scores, remarks = linear_scores(task, config.linear, config.seed, watch)
        second_softmax = False  # a setting of the kNN probe alone
    pooled = [pool_patches(task, scores, level, second_softmax) for level in coarser]
    return [patch_predictions(task, scores), *pooled], remarks


def _predict_first(task: Task, request: _Request) -> list[Predictions]:
    """Predictions of the first probe at every level."""
    config, unused = request.config, np.empty(len(task.queries), np.float32)
    knn = predict_by_neighbours(task, config.knn, request.device)
    return _predict(config.probes[0], task, knn, replace(request, shown=False), unused)[0]

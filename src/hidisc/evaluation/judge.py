"""One judgement: the encoder and its floors, by every probe, at every scale and level, as one table.

Everything that is judged has a key: subject, probe, scale, level, fold. The task is chosen first (which patches, whose
labels, aligned or joined how); a floor is the same task with other vectors. Folds are pooled over their key.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hidisc.evaluation.align import align_task
from hidisc.evaluation.compare import score_all
from hidisc.evaluation.diagnostics import diagnose
from hidisc.evaluation.duplicates import count_pictures, find_duplicates
from hidisc.evaluation.floors import FloorVectors, compare_floors
from hidisc.evaluation.labels import check_labels, count_units
from hidisc.evaluation.leakage import find_overlap, refuse_leaks
from hidisc.evaluation.neighbours import use_threads
from hidisc.evaluation.places import join_places
from hidisc.evaluation.predictions import ENCODER, Key, Predictions, patch_predictions, pool_patches, pool_units
from hidisc.evaluation.probes.knn import KnnResult, predict_by_neighbours
from hidisc.evaluation.scores import FLOORS, Evaluation, Finding, ScoresInfo
from hidisc.evaluation.task import Task
from hidisc.ground.files import relate
from hidisc.ground.machine import versions
from hidisc.ground.progress import SILENT, Progress
from hidisc.ground.text import name_some
from hidisc.settings.evaluate import EvaluateConfig

_PACKAGES = ("hidisc", "numpy", "scikit-learn", "torch")
_PROBES = {"knn": "the k-nearest-neighbour probe", "linear": "the linear probe", "mil": "the attention probe"}


@dataclass(frozen=True)
class Predicted:
    """What one probe says of one subject at one scale."""

    levels: list[Predictions]
    """Finest first; empty where the probe has nothing to learn from or to judge."""
    remarks: tuple[str, ...]
    attention: NDArray[np.float32] | None = None
    """(N,) the attention probe's weights of the query patches."""


def prepare_task(task: Task, config: EvaluateConfig, progress: Progress = SILENT) -> Task:
    """The task with aligned vectors, and with places in place of patches, where the settings say so."""
    if config.align is not None:
        task, unseen = align_task(task, config.align)
        if unseen:
            progress.say(
                f"note: no reference patient has {config.align} {name_some(unseen)}: these patches are not aligned"
            )
    if config.places is not None:
        task, sentence = join_places(task, config.places)
        progress.say(f"places={config.places}: {sentence}")
    return task


@use_threads()
def judge(
    chosen: Task,
    floors: Sequence[FloorVectors],
    config: EvaluateConfig,
    out: Path,
    *,
    fold: int | None = None,
    device: str = "cpu",
    progress: Progress = SILENT,
) -> Evaluation:
    """Judge the encoder of a task that was chosen, and floors on the same rows; `out`: what paths are relative to."""
    task = prepare_task(chosen, config, progress)
    findings = find_overlap(task)
    refuse_leaks(findings, config.leakage.allow)
    with progress.part("nearest neighbours", len(task.queries), "patches") as part:
        knn = predict_by_neighbours(task, config.knn, device, part.advance)
    findings += _find_duplicates(task, knn, config, progress)
    refuse_leaks(findings, config.leakage.allow)
    labels = check_labels(task)
    for finding in (*findings, *labels):
        progress.say(f"{finding.kind}: {finding.sentence}")

    predictions: dict[Key, Predictions] = {}
    remarks: dict[str, tuple[str, ...]] = {}
    attention, sizes, scales = None, {}, task.find_scales()
    tasks = [(ENCODER, task), *((floor.subject, prepare_task(floor.exchange(chosen), config)) for floor in floors)]
    for subject, subject_task in tasks:
        sizes[subject] = len(subject_task.bank) + len(subject_task.queries)
        if subject != ENCODER:
            progress.say(f"the same for {FLOORS[subject]} ...")
        for scale in (None, *scales):
            for probe in config.probes if scale is None else config.probes[:1]:
                is_main = subject == ENCODER and scale is None
                if is_main:
                    progress.say(f"evaluating with {_PROBES[probe]} ...")
                key = Key(subject, probe, "patch", scale, fold)
                predicted = predict(
                    subject_task, key, config, device, progress if is_main else SILENT, knn if is_main else None
                )
                predictions |= {levels.key: levels for levels in predicted.levels}
                if is_main:
                    remarks[probe] = predicted.remarks
                    attention = predicted.attention if predicted.attention is not None else attention
    queries, bank = task.queries, task.bank
    info = queries.embeddings.info
    scores = ScoresInfo(
        model=info.model.relate_source(queries.embeddings.path, out),
        embeddings=relate(queries.embeddings.path, out),
        bank=relate(bank.embeddings.path, out),
        store_checksum=info.store_checksum,
        sampling={"per_slide": info.per_slide, "seed": info.seed},
        config=config.model_dump(mode="json"),
        endpoint=task.endpoint,
        levels=task.levels,
        counts=count_units(task),
        unlabelled={"bank": bank.unlabelled, "queries": queries.unlabelled},
        labels=labels,
        judged=score_all(predictions.values(), config, progress),
        remarks=remarks,
        floors=compare_floors(predictions.values(), sizes, config),
        diagnostics=diagnose(task, config.seed),
        leakage=findings,
        versions=versions(*_PACKAGES),
        level_names=info.level_names,
    )
    weights = None if attention is None else (queries.rows, attention)
    return Evaluation(scores, predictions, (knn.rows, knn.similarities), weights)


def predict(
    task: Task,
    key: Key,
    config: EvaluateConfig,
    device: str = "cpu",
    progress: Progress = SILENT,
    knn: KnnResult | None = None,
) -> Predicted:
    """The predictions of a key's probe at every level, from the patches of its scale; `knn`: where it is known."""
    task = task.at_scale(key.scale)
    if not len(task.bank) or not len(task.queries):
        return Predicted([], ())
    coarser = [replace(key, level=level) for level in task.levels[-2::-1]]  # such as slide, patient
    if key.probe == "mil":
        from hidisc.evaluation.probes.attention import mil_predictions

        with progress.part("attention", config.mil.epochs, "epochs") as part:
            bags, remarks, attention = mil_predictions(task, key, config.mil, config.seed, part.advance)
        levels = [] if bags is None else [bags, *(pool_units(bags, finer.level) for finer in coarser[1:])]
        return Predicted(levels, remarks, attention)
    if key.probe == "linear":
        from hidisc.evaluation.probes.linear import count_fits, linear_scores

        with progress.part("linear", count_fits(config.linear), "fits") as part:
            scores, remarks = linear_scores(task, config.linear, config.seed, part.advance)
        second_softmax = False  # a setting of the kNN probe alone
    else:
        knn = knn or predict_by_neighbours(task, config.knn, device)
        scores, remarks, second_softmax = knn.scores, knn.remarks, config.knn.second_softmax
    pooled = [pool_patches(task, scores, key_of_level, second_softmax) for key_of_level in coarser]
    return Predicted([patch_predictions(task, scores, key), *pooled], remarks)


def _find_duplicates(task: Task, knn: KnnResult, config: EvaluateConfig, progress: Progress) -> tuple[Finding, ...]:
    ours, theirs = (patches.embeddings.open_store() for patches in (task.queries, task.bank))
    with progress.part("near-duplicates", count_pictures(task), "pictures") as part:
        duplicates = find_duplicates(
            task, knn.rows, knn.similarities, config.leakage, ours, theirs, config.seed, part.advance
        )
    return () if duplicates is None else (duplicates,)

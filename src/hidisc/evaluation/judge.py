"""One judgement: the encoder and its floors, by every probe, at every scale and level, as one table.

Everything that is judged has a key: subject, probe, scale, level, fold. The task is chosen first (which patches, whose
labels, aligned or not); a floor is the same task with other vectors. Folds are pooled over their key.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hidisc.evaluation.align import align_task
from hidisc.evaluation.compare import compare_floors, score_all
from hidisc.evaluation.diagnostics import diagnose
from hidisc.evaluation.duplicates import count_pictures, find_duplicates
from hidisc.evaluation.floors import FLOORS, FloorVectors
from hidisc.evaluation.labels import check_labels, count_units
from hidisc.evaluation.leakage import find_overlap, refuse_leaks
from hidisc.evaluation.neighbours import use_threads
from hidisc.evaluation.predictions import ENCODER, Key, Predictions, encoder_on, pool_levels, pool_units
from hidisc.evaluation.probes.knn import KnnResult, predict_by_neighbours
from hidisc.evaluation.scores import Evaluation, Finding, ScoresInfo
from hidisc.evaluation.task import Task
from hidisc.ground.files import relate
from hidisc.ground.machine import versions
from hidisc.ground.progress import SILENT, Progress
from hidisc.ground.text import name_some
from hidisc.models.card import NOTHING
from hidisc.settings.evaluate import EvaluateConfig

_PACKAGES = ("hidisc", "numpy", "scikit-learn", "torch")


@use_threads()
def judge(
    chosen: Task,
    floors: Sequence[FloorVectors],
    config: EvaluateConfig,
    out: Path,
    *,
    fold: int | None = None,
    compared: Sequence[Finding] | None = None,
    device: str = "cpu",
    progress: Progress = SILENT,
) -> Evaluation:
    """Judge the encoder of a task that was chosen, and floors on the same rows; `out`: what paths are relative to.

    `compared`: what a comparison of the patients of all folds has found; None: those of this task are compared.
    """
    task = prepare_task(chosen, config, progress)
    tasks, patches = {ENCODER: task}, dict[str, int]()
    for floor in floors:
        its_task = tasks[floor.subject] = prepare_task(floor.exchange(chosen), config)
        patches[floor.subject] = len(its_task)
        if len(its_task) < len(task):  # a sample was measured, so the encoder is judged once more, by that sample
            tasks[encoder_on(floor.subject)] = prepare_task(floor.choose(chosen), config)
    probes = task.endpoint.list_probes(config.probes)

    with progress.part("nearest neighbours", len(task.queries), "patches") as part:
        knn = predict_by_neighbours(task, config.knn, device, part.advance)

    leaks = (*find_overlap(task), *(_find_duplicates(task, knn, config, progress) if compared is None else compared))
    refuse_leaks(leaks, config.leakage)
    labels = check_labels(task)
    for finding in (*leaks, *labels):
        progress.say(f"{finding.kind}: {finding.sentence}")

    predictions: dict[Key, Predictions] = {}
    by_encoder: dict[str, Predicted] = {}
    for key in _list_keys(tasks, probes, task.find_scales(), fold):
        if key.subject == ENCODER and key.scale is None:
            progress.say(f"evaluating with {PROBES[key.probe].title} ...")
            predicted = by_encoder[key.probe] = predict(task, key, config, device, progress, knn)
        else:
            if key.subject in FLOORS and (key.probe, key.scale) == (probes[0], None):
                progress.say(f"the same for {FLOORS[key.subject].title} ...")
            predicted = predict(tasks[key.subject], key, config, device)
        predictions |= {level.key: level for level in predicted.levels}

    judged = score_all(predictions, config, progress)
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
        judged=judged,
        remarks={probe: predicted.remarks for probe, predicted in by_encoder.items()},
        floors=compare_floors(predictions, patches, probes[0], config),
        diagnostics=diagnose(task, config.seed, info.model.history != NOTHING),
        leakage=leaks,
        versions=versions(*_PACKAGES),
        level_names=info.level_names,
    )
    attention = next((made.attention for made in by_encoder.values() if made.attention is not None), None)
    weights = None if attention is None else (queries.rows, attention)
    return Evaluation(scores, predictions, (knn.rows, knn.similarities), weights)


def prepare_task(task: Task, config: EvaluateConfig, progress: Progress = SILENT) -> Task:
    """The task with aligned vectors, where the settings say so."""
    if config.align is not None:
        task, unseen = align_task(task, config.align)
        if unseen:
            progress.say(
                f"note: no reference patient has {config.align} {name_some(unseen)}: these patches are not aligned"
            )
    return task


def _list_keys(
    tasks: Mapping[str, Task], probes: Sequence[str], scales: Sequence[float], fold: int | None
) -> Iterator[Key]:
    """What is judged: every subject by every probe at all scales together, and at each scale by the first probe.

    The encoder by the patches of a floor is there for a comparison by the first probe, and judged by nothing else.
    """
    for subject in tasks:
        if subject != ENCODER and subject not in FLOORS:
            yield Key(subject, probes[0], "patch", None, fold)
            continue
        yield from (Key(subject, probe, "patch", None, fold) for probe in probes)
        yield from (Key(subject, probes[0], "patch", scale, fold) for scale in scales)


def _find_duplicates(task: Task, knn: KnnResult, config: EvaluateConfig, progress: Progress) -> tuple[Finding, ...]:
    """A finding where test patches are pictures of reference patches of other patients."""
    of_queries, of_bank = (patches.embeddings.open_store() for patches in (task.queries, task.bank))
    with progress.part("near-duplicates", count_pictures(task), "pictures") as part:
        duplicates = find_duplicates(
            task, knn.rows, knn.similarities, config.leakage, of_queries, of_bank, config.seed, part.advance
        )
    return () if duplicates is None else (duplicates,)


@dataclass(frozen=True)
class Predicted:
    """The predictions of one subject by one probe at one scale."""

    levels: list[Predictions]
    """Finest first; empty where the probe has no patches to learn from or to judge."""
    remarks: tuple[str, ...]
    attention: NDArray[np.float32] | None = None
    """(N,) the attention probe's weights of the query patches."""


def predict(
    task: Task,
    key: Key,
    config: EvaluateConfig,
    device: str = "cpu",
    progress: Progress = SILENT,
    knn: KnnResult | None = None,
) -> Predicted:
    """The predictions of a key's probe at every level, from the patches of its scale.

    `knn` is the result of the neighbour search in this task, where the search was done before.
    """
    task = task.at_scale(key.scale)
    if not len(task.bank) or not len(task.queries):
        return Predicted([], ())
    return PROBES[key.probe].predict(
        task, key, config, progress, lambda: knn or predict_by_neighbours(task, config.knn, device)
    )


Search = Callable[[], KnnResult]


def _predict_by_knn(task: Task, key: Key, config: EvaluateConfig, progress: Progress, search: Search) -> Predicted:
    knn = search()
    return Predicted(pool_levels(task, knn.scores, key, config.knn.second_softmax), knn.remarks)


def _predict_linearly(task: Task, key: Key, config: EvaluateConfig, progress: Progress, search: Search) -> Predicted:
    from hidisc.evaluation.probes.linear import count_fits, linear_scores

    with progress.part("linear", count_fits(config.linear), "fits") as part:
        scores, remarks = linear_scores(task, config.linear, config.seed, part.advance)
    return Predicted(pool_levels(task, scores, key), remarks)


def _predict_by_attention(
    task: Task, key: Key, config: EvaluateConfig, progress: Progress, search: Search
) -> Predicted:
    from hidisc.evaluation.probes.attention import mil_predictions

    with progress.part("attention", config.mil.epochs, "epochs") as part:
        bags, remarks, attention = mil_predictions(task, key, config.mil, config.seed, part.advance)
    levels = [] if bags is None else [bags, *(pool_units(bags, level) for level in task.levels[-3::-1])]
    return Predicted(levels, remarks, attention)


@dataclass(frozen=True)
class Probe:
    """A way to predict what an endpoint asks; the endpoint says which probes apply."""

    title: str
    """Its name in sentences."""
    predict: Callable[[Task, Key, EvaluateConfig, Progress, Search], Predicted]


PROBES = {
    "knn": Probe("the k-nearest-neighbour probe", _predict_by_knn),
    "linear": Probe("the linear probe", _predict_linearly),
    "mil": Probe("the attention probe", _predict_by_attention),
}
"""Every probe by its name in the settings."""

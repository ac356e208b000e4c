"""`hidisc evaluate`: Embeddings -> Scores, the evaluation of an encoder by patients it was not trained on."""

from collections.abc import Callable
from pathlib import Path

import torch

from hidisc.artefacts.artefact import make
from hidisc.embeddings.embeddings import Embeddings, ModelCard
from hidisc.evaluation.bootstrap import score_level
from hidisc.evaluation.diagnostics import diagnose
from hidisc.evaluation.duplicates import count_pictures, find_duplicates
from hidisc.evaluation.knn import KnnResult, predict_by_neighbours
from hidisc.evaluation.labels import check_labels, count_units
from hidisc.evaluation.leakage import find_overlap, refuse_leaks
from hidisc.evaluation.linear import count_fits, linear_scores
from hidisc.evaluation.mil import mil_predictions
from hidisc.evaluation.pooling import patch_predictions, pool_patches, pool_units
from hidisc.evaluation.predictions import Predictions
from hidisc.evaluation.scores import (
    NEIGHBOURS,
    SCORES,
    Finding,
    ProbeScores,
    Scores,
    ScoresInfo,
    predictions_file,
    save_neighbours,
)
from hidisc.evaluation.task import Task, choose_task
from hidisc.evaluation.threads import use_threads
from hidisc.ground.files import full_disk_said, relate, write_atomic
from hidisc.ground.machine import versions
from hidisc.ground.paths import AnyPath
from hidisc.settings.evaluate import EvaluateConfig
from hidisc.verbs.progress import show_count, show_patches

_PACKAGES = ("hidisc", "numpy", "scikit-learn", "torch")
_PROBE_NAMES = {"knn": "the k-nearest-neighbour probe", "linear": "the linear probe", "mil": "the attention probe"}

Say = Callable[[str], None]


def evaluate(
    embeddings: AnyPath,
    out: AnyPath,
    config: EvaluateConfig | None = None,
    *,
    bank: AnyPath | None = None,
    device: str = "auto",
    say: Say = lambda _: None,
    shown: bool = True,
) -> Scores:
    """Evaluate embeddings on test patients; `bank`: embeddings of reference patients, if they are from another store.

    `say` is called with messages for the user; `shown`: whether to show a progress bar.
    """
    config, out = config or EvaluateConfig(), Path(out)
    queries = Embeddings.load(embeddings)
    reference = Embeddings.load(bank) if bank is not None else queries
    task = choose_task(queries, reference, config)
    findings = find_overlap(task)
    refuse_leaks(findings, config.leakage.allow)
    inputs = {"the embeddings": queries.artefact.checksum, "the bank": reference.artefact.checksum}
    with full_disk_said("The embeddings are as they were"), make(out, "evaluate", config, inputs) as work:
        if not work.is_finished(say):
            with use_threads():
                files = _evaluate_task(task, findings, out, config, _choose_device(device), say, shown)
            work.finish(files)
    return Scores.load(out)


def _evaluate_task(
    task: Task,
    findings: tuple[Finding, ...],
    out: Path,
    config: EvaluateConfig,
    device: str,
    say: Say,
    shown: bool,
) -> list[str]:
    """Search neighbours, check for leakage, run every probe and write the folder; returns the names of its files."""
    queries, bank = task.queries, task.bank
    with show_patches("nearest neighbours", len(queries), shown) as watch:
        watch(0)
        knn = predict_by_neighbours(task, config.knn, device, watch)
    ours, theirs = queries.embeddings.open_store(), bank.embeddings.open_store()
    with show_count("near-duplicates", count_pictures(task), "pictures", shown) as watch:
        duplicates = find_duplicates(task, knn.rows, knn.similarities, config.leakage, ours, theirs, config.seed, watch)
    findings = (*findings, *([duplicates] if duplicates else []))
    refuse_leaks(findings, config.leakage.allow)
    labels = check_labels(task)
    for finding in (*findings, *labels):
        say(f"{finding.kind}: {finding.sentence}")

    probes, files = [], [SCORES]
    for name in config.probes:
        say(f"evaluating with {_PROBE_NAMES[name]} ...")
        predictions, remarks = _predict(name, task, knn, config, shown)
        for level in predictions:
            files.append(predictions_file(name, level.level, config.probes[0]))
            (out / files[-1]).parent.mkdir(exist_ok=True)
            level.save(out / files[-1])
        scored = []
        with show_count(f"{name}: bootstrap", len(predictions), "levels", shown) as watch:
            for level in predictions:
                scored.append(score_level(level, task.positive, config.bootstrap, config.seed))
                watch(1)
        probes.append(ProbeScores(name=name, remarks=remarks, levels=tuple(scored)))
    if knn.rows.shape[1]:
        save_neighbours(out / NEIGHBOURS, knn.rows, knn.similarities)
        files.append(NEIGHBOURS)
    with show_count("diagnostics", 1, "parts", shown) as watch:
        diagnostics = diagnose(task, config.seed)
        watch(1)
    info = queries.embeddings.info
    scores = ScoresInfo(
        model=_relate_source(queries.embeddings, out),
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
        probes=tuple(probes),
        diagnostics=diagnostics,
        leakage=findings,
        versions=versions(*_PACKAGES),
    )
    write_atomic(out / SCORES, (scores.model_dump_json(indent=1) + "\n").encode())
    return files


def _predict(
    name: str, task: Task, knn: KnnResult, config: EvaluateConfig, shown: bool
) -> tuple[list[Predictions], tuple[str, ...]]:
    """Predictions of one probe at every level it has, finest first, and remarks."""
    coarser = task.levels[-2::-1]  # such as slide, patient
    if name == "mil":
        with show_count("attention", config.mil.epochs, "epochs", shown) as watch:
            bags, remarks = mil_predictions(task, config.mil, config.seed, watch)
        return [bags, *(pool_units(bags, level) for level in coarser[1:])] if bags is not None else [], remarks
    scores, remarks, second_softmax = knn.scores, knn.remarks, config.knn.second_softmax
    if name == "linear":
        with show_count("linear", count_fits(config.linear), "fits", shown) as watch:
            scores, remarks = linear_scores(task, config.linear, config.seed, watch)
        second_softmax = False  # a setting of the kNN probe alone
    pooled = [pool_patches(task, scores, level, second_softmax) for level in coarser]
    return [patch_predictions(task, scores), *pooled], remarks


def _relate_source(embeddings: Embeddings, out: Path) -> ModelCard:
    """The encoder's model card, with the path of its folder or file relative to the scores."""
    card = embeddings.info.model
    source = embeddings.path / card.source
    return card.model_copy(update={"source": relate(source, out)}) if source.exists() else card


def _choose_device(device: str) -> str:
    """The device of the neighbour search; MPS has no float64 and is no faster here."""
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    return "cpu" if device == "mps" else device

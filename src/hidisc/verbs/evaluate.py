"""`hidisc evaluate`: Embeddings -> Scores, the verdict on an encoder."""

from collections.abc import Callable
from pathlib import Path

import torch

from hidisc.embeddings.embeddings import Embeddings
from hidisc.errors import UserError
from hidisc.evaluation.bootstrap import score_level
from hidisc.evaluation.counts import count_units
from hidisc.evaluation.diagnostics import diagnose
from hidisc.evaluation.duplicates import find_duplicates
from hidisc.evaluation.knn import Told, ask_neighbours
from hidisc.evaluation.leakage import find_overlap, refuse_leaks
from hidisc.evaluation.linear import linear_scores
from hidisc.evaluation.mil import mil_predictions
from hidisc.evaluation.pooling import patch_predictions, pool_patches, pool_units
from hidisc.evaluation.predictions import Predictions
from hidisc.evaluation.scores import (
    NEIGHBOURS,
    SCORES,
    Finding,
    Opinion,
    Scores,
    ScoresInfo,
    predictions_file,
    save_neighbours,
)
from hidisc.evaluation.sides import Question, ask
from hidisc.patches.store import PatchStore
from hidisc.paths import AnyPath
from hidisc.runs import begin, full_disk_said, hold, versions, write_atomic
from hidisc.settings.judging import EvaluateConfig
from hidisc.verbs.progress import show_patches

_PACKAGES = ("hidisc", "numpy", "scikit-learn", "torch")
_CHANGEABLE = ("knn.memory_gb", "leakage.allow")
"""Settings that do not touch the numbers."""

Say = Callable[[str], None]


class _Record(EvaluateConfig):
    """What must be the same for an unfinished evaluation to go on."""

    queried: str
    banked: str


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
    """Judge embeddings by held-out patients; `bank`: embeddings of another store, for queries from elsewhere.

    `shown`: a progress bar.
    """
    config, out = config or EvaluateConfig(), Path(out)
    queries = Embeddings.load(embeddings)
    known = Embeddings.load(bank) if bank is not None else queries
    question = ask(queries, known, config)
    findings = find_overlap(question)
    refuse_leaks(findings, config.leakage.allow)
    with hold(out), full_disk_said("The embeddings are as they were"):
        record = _Record(
            **config.model_dump(), queried=queries.info.vectors.checksum, banked=known.info.vectors.checksum
        )
        begin(out, "evaluate", record, _CHANGEABLE)
        if not (out / SCORES).is_file():
            _judge(question, findings, out, config, _choose_device(device), say, shown)
    return Scores.load(out)


def _judge(
    question: Question,
    findings: tuple[Finding, ...],
    out: Path,
    config: EvaluateConfig,
    device: str,
    say: Say,
    shown: bool,
) -> None:
    """Ask every opinion, measure it, and write the folder; `scores.json` last."""
    queries, bank = question.queries, question.bank
    with show_patches("nearest neighbours", len(queries), shown) as watch:
        watch(0)
        told = ask_neighbours(question, config.knn, device, watch)
    ours, theirs = (_open_store(side.embeddings) for side in (queries, bank))
    duplicates = find_duplicates(question, told.rows, told.similarities, config.leakage, ours, theirs, config.seed)
    findings = (*findings, *([duplicates] if duplicates else []))
    refuse_leaks(findings, config.leakage.allow)
    for finding in findings:
        say(f"{finding.kind}: {finding.sentence}")

    opinions = []
    for name in config.opinions:
        say(f"asking {_LONG[name]} ...")
        levels, remarks = _ask(name, question, told, config)
        for predictions in levels:
            file = out / predictions_file(name, predictions.level, config.opinions[0])
            file.parent.mkdir(exist_ok=True)
            predictions.save(file)
        scored = [score_level(item, question.positive, config.bootstrap, config.seed) for item in levels]
        opinions.append(Opinion(name=name, remarks=remarks, levels=tuple(scored)))
    if told.rows.shape[1]:
        save_neighbours(out / NEIGHBOURS, told.rows, told.similarities)
    info = queries.embeddings.info
    scores = ScoresInfo(
        model=info.model,
        embeddings=str(queries.embeddings.path.absolute()),
        bank=str(bank.embeddings.path.absolute()),
        store=info.store,
        sampling={"per_slide": info.per_slide, "seed": info.seed},
        config=config.model_dump(mode="json"),
        classes=question.classes,
        positive=question.classes[question.positive],
        levels=question.levels,
        counts=count_units(question),
        opinions=tuple(opinions),
        diagnostics=diagnose(question, config.seed),
        leakage=findings,
        versions=versions(*_PACKAGES),
    )
    write_atomic(out / SCORES, (scores.model_dump_json(indent=1) + "\n").encode())


_LONG = {"knn": "the nearest neighbours", "linear": "a linear probe", "mil": "attention over the patches of a slide"}


def _ask(
    name: str, question: Question, told: Told, config: EvaluateConfig
) -> tuple[list[Predictions], tuple[str, ...]]:
    """Predictions of one opinion at every level it has, finest first, and remarks."""
    coarser = question.levels[-2::-1]
    if name == "mil":
        bags, remarks = mil_predictions(question, config.mil, config.seed)
        levels = [bags, *(pool_units(bags, level) for level in coarser[1:])] if bags is not None else []
        return levels, remarks
    scores, remarks = told.scores, told.remarks
    if name == "linear":
        scores, remarks = linear_scores(question, config.linear, config.seed)
    again = config.knn.second_softmax
    pooled = [pool_patches(question, scores, level, again) for level in coarser]
    return [patch_predictions(question, scores), *pooled], remarks


def _open_store(embeddings: Embeddings) -> PatchStore | None:
    """The store the embeddings were made from, None when it is not there any more or has changed."""
    try:
        store = PatchStore.load(Path(embeddings.info.store))
    except UserError:
        return None
    return store if store.info.patches.checksum == embeddings.info.store_checksum else None


def _choose_device(device: str) -> str:
    """Where the search runs; MPS has no float64 and gains nothing here."""
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    return "cpu" if device == "mps" else device

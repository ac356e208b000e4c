"""Scores made of random numbers, as a finished folder: what `hidisc evaluate` would leave, without its work.

The metrics are scikit-learn's of the very predictions that are written, so a test can compute them again; the
intervals, diagnostics and findings are made up.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import average_precision_score, confusion_matrix, roc_auc_score

from hidisc.embeddings.embeddings import Embeddings
from hidisc.evaluation.classes import Classes
from hidisc.evaluation.metrics import Value
from hidisc.evaluation.predictions import ENCODER, Key, Predictions
from hidisc.evaluation.scores import Count, Diagnostic, Evaluation, Finding, Judged, Scores, ScoresInfo
from hidisc.ground.files import relate
from hidisc.settings.evaluate import EvaluateConfig
from tests.finished import finish

LEVELS = ("patient", "slide", "patch")
HALF = 0.04
"""Half the width of every made-up interval."""
LEAK = "patients a-0 and a-1 are in the bank and in the queries."
LACK = Finding(
    kind="warning", sentence="No reference patient has label 'c', so none of its 3 test patients can be recognised."
)
LEFT = Finding(kind="note", sentence="20 of 200 patches of the test patients were left out: they have no label.")


def make_scores(
    folder: Path,
    embeddings: Embeddings,
    *,
    name: str = "made",
    group: str = "made",
    seed: int = 0,
    accuracy: float = 0.8,
    probes: Sequence[str] = ("knn", "linear", "mil"),
    leak: bool = False,
    lacks: tuple[Finding, ...] = (),
    sampling_seed: int = 0,
    per_slide: int | None = None,
    labels_used: tuple[str, ...] = (),
    config: EvaluateConfig | None = None,
    recorded: str | None = None,
) -> Scores:
    """Scores of the test split of `embeddings`: about `accuracy` of the patches right, slides and patients by averages.

    `recorded`: the path that is written down for the embeddings, where it is another than theirs.
    """
    rng = np.random.default_rng([seed, sampling_seed])
    config = (config or EvaluateConfig()).model_copy(update={"probes": tuple(probes)})
    table = embeddings.table
    split, labels = table.column("split"), table.column(config.label)
    rows = np.flatnonzero((split == "test") & (labels != None))  # noqa: E711 - elementwise
    bank = np.flatnonzero((split == "train") & (labels != None))  # noqa: E711
    classes = config.classes or tuple(sorted({str(label) for label in labels[np.r_[rows, bank]]}))
    rows = rows[np.isin(labels[rows], np.array(classes, object))]
    truth = np.array([classes.index(label) for label in labels[rows]], np.int64)
    positive = len(classes) - 1 if config.positive is None else classes.index(config.positive)
    endpoint = Classes(label=config.label, classes=classes, positive=positive)
    units = {column: table.column(column)[rows] for column in ("patient", "slide", "patch", "x", "y")}

    folder.mkdir(parents=True)
    made: dict[Key, Predictions] = {}
    for probe in probes:
        scores = _draw_scores(truth, len(classes), accuracy, rng)
        for level in reversed(LEVELS):
            key = Key(ENCODER, probe, level)
            if level == "patch":
                found = Predictions(key, endpoint, {**units, "row": rows}, truth, scores)
            else:
                above = {name: units[name] for name in LEVELS[: LEVELS.index(level) + 1]}
                found = _pool(key, endpoint, above, truth, scores)
            if probe != "mil" or level != "patch":  # it judges whole slides
                made[key] = found
    card = embeddings.info.model
    info = ScoresInfo(
        model=card.model_copy(
            update={
                "name": name,
                "group": group,
                "seed": seed,
                "source": relate(embeddings.path / card.source, folder),
                "history": card.history.model_copy(update={"labels_used": labels_used}),
            }
        ),
        embeddings=recorded or relate(embeddings.path, folder),
        bank=recorded or relate(embeddings.path, folder),
        store_checksum=embeddings.info.store_checksum,
        sampling={"per_slide": per_slide, "seed": sampling_seed},
        config=config.model_copy(update={"seed": seed}).model_dump(mode="json"),
        endpoint=endpoint,
        unlabelled={"bank": 0, "queries": 0},
        levels=LEVELS,
        counts=tuple(
            Count(label=label, part=part, units=_count(embeddings, where[labels[where] == label]))
            for part, where in (("bank", bank), ("queries", rows))
            for label in classes
        ),
        judged=tuple(map(_judge, made.values())),
        remarks={probe: (f"{probe} was made up.",) for probe in probes},
        diagnostics=(
            Diagnostic(name="effective rank", value=7.25 + seed, chance=16.0, meaning="7 of 16 directions are used."),
            Diagnostic(name="site from neighbours", value=None, chance=0.5, meaning="There is one site only."),
        ),
        leakage=(
            Finding(kind="note", sentence="Slides' checksums were compared."),
            *([Finding(kind="leak", sentence=LEAK)] if leak else []),
        ),
        labels=lacks,
        versions={"hidisc": "0"},
    )
    Evaluation(info, made, _find_neighbours(embeddings, rows, bank)).write(folder)
    checksum = embeddings.artefact.checksum
    finish(folder, "evaluate", {"the embeddings": checksum, "the bank": checksum})
    return Scores.load(folder)


def _draw_scores(
    truth: NDArray[np.int64], count: int, accuracy: float, rng: np.random.Generator
) -> NDArray[np.float64]:
    """(N, L) rows that sum to 1, whose largest is the truth's with a chance of `accuracy`."""
    guess = np.where(rng.random(len(truth)) < accuracy, truth, (truth + rng.integers(1, count, len(truth))) % count)
    scores = rng.random((len(truth), count)) * 0.8
    scores[np.arange(len(truth)), guess] = 0.8 + 0.4 * rng.random(len(truth))
    return scores / scores.sum(axis=1, keepdims=True)


def _pool(
    key: Key,
    endpoint: Classes,
    above: dict[str, NDArray[Any]],
    truth: NDArray[np.int64],
    scores: NDArray[np.float64],
) -> Predictions:
    """Averages a unit, in order of first appearance; units of several labels are left out."""
    units: dict[tuple[str, ...], list[int]] = {}
    for place, names in enumerate(zip(*above.values(), strict=True)):
        units.setdefault(names, []).append(place)
    pure = {names: places for names, places in units.items() if len(set(truth[places])) == 1}
    return Predictions(
        key,
        endpoint,
        {name: np.array([names[place] for names in pure], object) for place, name in enumerate(above)},
        np.array([truth[places[0]] for places in pure.values()], np.int64),
        np.stack([scores[places].mean(axis=0) for places in pure.values()]),
        left_out=len(units) - len(pure),
    )


def _judge(found: Predictions) -> Judged:
    """All metrics of one level; those that a class's absence forbids are undefined."""
    count = len(found.classes)
    confusion = confusion_matrix(found.truth, found.predicted, labels=range(count))
    one = {name: _against_rest(found, confusion, code) for code, name in enumerate(found.classes)}
    ranks = (-found.scores).argsort(axis=1)
    hits = ranks == found.truth[:, None]
    if count == 2:
        binary = one[found.endpoint.positive_class]
        metrics = {name: binary[name] for name in ("auroc", "auprc", "sensitivity", "specificity")}
    else:
        metrics = {name: _mean([one[label][name] for label in one]) for name in next(iter(one.values()))}
    metrics |= {
        "accuracy": _value(float((found.truth == found.predicted).mean())),
        "mca": _mean([one[label]["sensitivity"] for label in one]),
        "top2": _value(float(hits[:, :2].any(axis=1).mean())),
        "top3": _value(float(hits[:, :3].any(axis=1).mean())),
    }
    return Judged(
        **found.key.as_dict(),
        truth=found.truth_checksum,
        units=len(found),
        left_out=found.left_out,
        metrics=metrics,
        by_class=one,
        confusion=tuple(tuple(int(cell) for cell in row) for row in confusion),
    )


def _against_rest(found: Predictions, confusion: NDArray[Any], code: int) -> dict[str, Value]:
    """One class against the others."""
    is_it, score = found.truth == code, found.scores[:, code]
    rest = len(found) - confusion[code].sum()
    one_kind = Value(value=None, why=f"no {found.level} is {found.classes[code]!r}.")
    none_other = Value(value=None, why=f"every {found.level} is {found.classes[code]!r}.")
    right = confusion[code, code]
    wrong = confusion[:, code].sum() - right
    if not is_it.any():
        return {"sensitivity": one_kind, "specificity": _value(1 - wrong / rest), "auroc": one_kind, "auprc": one_kind}
    if is_it.all():
        found_all = _value(right / is_it.sum())
        return {"sensitivity": found_all, "specificity": none_other, "auroc": none_other, "auprc": none_other}
    return {
        "sensitivity": _value(right / is_it.sum()),
        "specificity": _value(1 - wrong / rest),
        "auroc": _value(roc_auc_score(is_it, score)),
        "auprc": _value(average_precision_score(is_it, score)),
    }


def _value(value: float) -> Value:
    return Value(value=float(value), low=max(0.0, float(value) - HALF), high=min(1.0, float(value) + HALF))


def _mean(values: Sequence[Value]) -> Value:
    undefined = [value for value in values if value.value is None]
    return undefined[0] if undefined else _value(float(np.mean([value.value for value in values])))


def _count(embeddings: Embeddings, rows: NDArray[np.int64]) -> dict[str, int]:
    units = {level: len(set(embeddings.table.column(level)[rows])) for level in LEVELS[:-1]}
    return {**units, "patch": len(rows)}


def _find_neighbours(
    embeddings: Embeddings, rows: NDArray[np.int64], bank: NDArray[np.int64]
) -> tuple[NDArray[Any], NDArray[Any]]:
    """The eight nearest patches of the bank by cosine, and their similarities."""
    vectors = np.asarray(embeddings.vectors, np.float32)
    vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    similar = vectors[rows] @ vectors[bank].T
    nearest = (-similar).argsort(axis=1, kind="stable")[:, :8]
    return bank[nearest], np.take_along_axis(similar, nearest, axis=1)


def with_metric(row: Judged, metric: str, value: Value) -> Judged:
    """A row of the table with another value of one metric."""
    return row.model_copy(update={"metrics": {**row.metrics, metric: value}})

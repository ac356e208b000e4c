"""A metric is declared once: one more entry of METRICS stands in scores, tables, files, claims and first sentences."""

import csv
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import cohen_kappa_score

from hidisc.benchmarking.claims import check_claim
from hidisc.evaluation.classes import METRICS, Counts
from hidisc.evaluation.metrics import Floats, Metric, divide
from hidisc.evaluation.scores import Scores
from hidisc.reporting.evaluated import EvaluatedModel, compare_with_first, gather
from hidisc.reporting.table import write_tables
from hidisc.reporting.tables import by_class_table, comparison_table, metrics_table
from hidisc.reporting.verdict import find_verdict
from hidisc.settings.benchmark import ClaimConfig
from hidisc.settings.evaluate import EvaluateConfig
from hidisc.verbs.evaluate import evaluate
from tests.evaluation.made import make_embeddings

CONFIG = EvaluateConfig.model_validate({"probes": ["knn"], "knn": {"k": 9}, "bootstrap": {"resamples": 50}})


def agree(counts: Counts) -> Floats:
    """Cohen's kappa: the agreement of truth and prediction beyond that of independent ones."""
    expected = (counts.units * counts.confusion.sum(axis=-2)).sum(axis=-1) / np.square(counts.total)
    return divide(divide(counts.right.sum(axis=-1), counts.total) - expected, 1 - expected)


def predict_precisely(counts: Counts) -> Floats:
    """Of the units predicted to have a class, the share that has it."""
    return divide(counts.right, counts.confusion.sum(axis=-2))


NEW = (
    Metric(
        "kappa",
        "Kappa",
        "agreement beyond that of chance",
        agree,
        lambda *_: "there is no unit",
        frozenset({"two classes", "many classes", "headline", "brief", "floors", "axis"}),
        chance=lambda confusion: 0.0,
    ),
    Metric(
        "precision",
        "Precision",
        "share of the predictions of a class that are right",
        lambda counts: counts.average(predict_precisely(counts)),
        lambda *_: "the class is never predicted",
        frozenset({"many classes"}),
        each_class=predict_precisely,
    ),
)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[EvaluatedModel]]:
    """Two encoders of the same patients, evaluated with two metrics more than there are."""
    folder = tmp_path_factory.mktemp("models")
    with pytest.MonkeyPatch.context() as patch:
        for metric in NEW:
            patch.setitem(METRICS, metric.key, metric)
        paths = []
        for name, signal in (("good", 2.0), ("poor", 0.3)):
            made = make_embeddings(folder / name, name=name, signal=signal, seed=1)
            paths.append(evaluate(made.path, folder / f"{name}-scores", CONFIG).path)
        yield gather(paths)


def test_it_stands_in_the_scores_with_an_interval(models: list[EvaluatedModel]) -> None:
    for model in models:
        scores: Scores = model.scores[0]
        for row in scores.info.list_levels():
            made = scores.predictions("knn", row.level)
            expected = cohen_kappa_score(made.truth, made.predicted)
            kappa = row.metrics["kappa"]
            assert kappa.value == pytest.approx(expected)
            assert kappa.low is not None
            assert kappa.low <= expected <= (kappa.high or 0)
            assert all("precision" in numbers for numbers in row.by_class.values())


def test_it_stands_in_tables_and_their_files(models: list[EvaluatedModel], tmp_path: Path) -> None:
    compared = compare_with_first(models, "knn", "patch", CONFIG.bootstrap, 0)
    tables = {
        "metrics": metrics_table(models, "knn"),
        "classes": by_class_table(models, "knn", "patch"),
        "compared": comparison_table(compared),
    }
    write_tables(tables, tmp_path)
    files = {name: (tmp_path / f"{name}.csv").read_text() for name in tables}
    columns = next(csv.reader(files["metrics"].splitlines()))
    assert {"Kappa", "Precision"} <= {column.split(" ")[0] for column in columns}
    assert "Precision" in files["classes"]
    assert "Kappa" in files["compared"]
    notes = " ".join(tables["metrics"].notes)
    assert all(metric.meaning in notes for metric in NEW)


def test_a_claim_may_be_about_it(models: list[EvaluatedModel]) -> None:
    claim = ClaimConfig(text="It is better.", better="good", than="poor", metric="kappa")
    checked = check_claim(claim, {model.name: model for model in models}, CONFIG)
    assert "in patch kappa" in checked.found
    unknown = check_claim(claim.model_copy(update={"metric": "f1"}), {model.name: model for model in models}, CONFIG)
    assert unknown.found.endswith(", kappa, precision")


def test_it_stands_in_the_first_sentences_of_a_page(models: list[EvaluatedModel]) -> None:
    verdict = find_verdict(models[0])
    assert "Kappa" in [number.title for number in verdict.numbers]

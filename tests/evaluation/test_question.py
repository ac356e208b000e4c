"""Predictions and scores say what they answer; two questions are never compared or pooled."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from shutil import copytree

import numpy as np
import pytest

from hidisc.embeddings.embeddings import PATCHES, Embeddings
from hidisc.evaluation.compare import compare, estimate
from hidisc.evaluation.cross_validation import pool_evaluations
from hidisc.evaluation.predictions import Predictions, pool_folds
from hidisc.evaluation.scores import SCORES, Scores
from hidisc.ground.columns import load_columns, load_notes, save_columns
from hidisc.ground.errors import UserError
from hidisc.patches.table import PatchTable
from hidisc.reporting.evaluated import gather
from hidisc.settings.config import load_config
from hidisc.settings.evaluate import BootstrapConfig, EvaluateConfig
from hidisc.verbs.evaluate import evaluate
from tests.evaluation.made import make_embeddings, make_predictions
from tests.finished import refinish

CONFIG = BootstrapConfig(resamples=20)


def settings(*changes: str) -> EvaluateConfig:
    quick = ["probes=[knn]", "knn.k=5", "bootstrap.resamples=20", "audit=false", "floor=false"]
    return load_config(EvaluateConfig, None, [*quick, *changes])


def with_column(made: Embeddings, name: str, label_of: Callable[[str, str], str]) -> Embeddings:
    """The same folder with one more column: `label_of(patient, label)`."""
    patients, labels = made.table.column("patient"), made.table.column("label")
    values = [label_of(*names) for names in zip(patients, labels, strict=True)]
    PatchTable(made.table.arrow).add_names(name, values).save(made.path / PATCHES)
    refinish(made.path)
    return Embeddings.load(made.path)


@pytest.fixture(scope="module")
def embeddings(tmp_path_factory: pytest.TempPathFactory) -> Embeddings:
    made = make_embeddings(tmp_path_factory.mktemp("made") / "e", classes=("a", "b"), learned=False)
    made = with_column(made, "second", lambda patient, label: "ab"[int(patient[-1]) % 2])
    return with_column(made, "corrected", lambda patient, label: "b" if patient in ("a-0", "a-1") else label)


@pytest.fixture(scope="module")
def scores(embeddings: Embeddings, tmp_path_factory: pytest.TempPathFactory) -> Scores:
    return evaluate(embeddings.path, tmp_path_factory.mktemp("scores") / "s", settings())


def checksum_by_hand(table: PatchTable, level: str, label: str, split: str | None = "test") -> str:
    """SHA-256 of a line of JSON per unit, its names from the patient down and its label; the lines sorted."""
    names = ("patient", "slide", "patch")[: ("patient", "slide", "patch").index(level) + 1]
    rows = [row for row in range(len(table)) if split in (None, table.column("split")[row])]
    table_columns = [table.column(name).tolist() for name in (*names, label)]
    lines = {json.dumps([column[row] for column in table_columns]) for row in rows}
    return hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()


@pytest.mark.parametrize("label", ["label", "second"])
@pytest.mark.parametrize("folds", [0, 3])
def test_scores_have_the_checksum_of_the_truth(embeddings: Embeddings, tmp_path: Path, label: str, folds: int) -> None:
    made = evaluate(embeddings.path, tmp_path / "s", settings(f"label={label}", f"folds.number={folds}"))
    for level in ("patient", "slide", "patch"):
        expected = checksum_by_hand(embeddings.table, level, label, None if folds else "test")
        row = made.info.find(level)
        assert row is not None
        assert row.truth == expected
        file = made.path / f"predictions_{level}.parquet"
        about = json.loads(load_notes(file)["hidisc"])
        assert (about["endpoint"]["label"], about["truth"]) == (label, expected)
        assert Predictions.load(file).truth_checksum == expected


def test_the_checksum_is_of_units_and_labels_and_not_of_their_order_or_scores() -> None:
    rng = np.random.default_rng(0)
    one = make_predictions([0, 1, 1], rng.dirichlet([1, 1], 3), ["p", "q", "r"])
    order = np.array([2, 0, 1])
    turned = replace(one, units={"patient": one.clusters[order]}, truth=one.truth[order], scores=one.scores)
    assert one.truth_checksum == turned.truth_checksum
    others = [replace(one, truth=np.array([1, 0, 1])), replace(one, units={"patient": one.clusters[order]})]
    assert len({made.truth_checksum for made in (one, *others)}) == 3


def refusal(action: Callable[[], object]) -> str:
    with pytest.raises(UserError) as caught:
        action()
    return str(caught.value)


def test_two_label_columns_are_not_compared_or_pooled(embeddings: Embeddings, scores: Scores, tmp_path: Path) -> None:
    other = evaluate(embeddings.path, tmp_path / "o", settings("label=second"))
    assert other.info.endpoint.classes == scores.info.endpoint.classes
    sentence = (
        "label=label (a, b; positive b) and label=second (a, b; positive b) are two questions, so their evaluations "
        "cannot be compared or pooled. Evaluate both with the same label, classes and positive."
    )
    for level in ("patient", "slide", "patch"):
        one, two = scores.predictions("knn", level), other.predictions("knn", level)
        assert refusal(lambda one=one, two=two: compare([[one]], [[two]], CONFIG, 0)) == sentence
        assert refusal(lambda one=one, two=two: estimate([[one], [two]], CONFIG, 0)) == sentence
        assert refusal(lambda one=one, two=two: pool_folds([one, two])) == sentence
    evaluations = [scores.read(), other.read()]
    paths = [scores.path, other.path]
    assert sentence == refusal(
        lambda: pool_evaluations(evaluations, paths, settings(), scores.info.model, tmp_path / "pool")
    )
    said = refusal(lambda: gather(paths))
    assert said.startswith(f"{other.path} has label second, but {scores.path} has label label, so they cannot stand")


def test_labels_that_have_changed_are_not_compared(embeddings: Embeddings, scores: Scores, tmp_path: Path) -> None:
    """The column is called the same, but two patients have another label in it."""
    home = tmp_path / "changed"
    copytree(embeddings.path, home)
    table = embeddings.table
    arrow = table.arrow.drop_columns("label").rename_columns(
        [{"corrected": "label"}.get(name, name) for name in table.columns if name != "label"]
    )
    PatchTable(arrow).save(home / PATCHES)
    refinish(home)
    other = evaluate(home, tmp_path / "o", settings())
    sentence = (
        "the label of 2 patients differs between two evaluations, such as that of 'a-0' (a in one, b in the other). "
        "Evaluate both with the same labels."
    )
    for level in ("patient", "slide", "patch"):
        one, two = scores.predictions("knn", level), other.predictions("knn", level)
        assert refusal(lambda one=one, two=two: compare([[one]], [[two]], CONFIG, 0)) == sentence
    assert refusal(lambda: gather([scores.path, other.path])) == (
        f"{scores.path} and {other.path} cannot stand in one table: {sentence}"
    )


def test_the_same_question_of_other_patients_is_compared(scores: Scores) -> None:
    """The checksums differ, as the test patients do; of those that both have the labels are equal."""
    every = scores.predictions("knn", "patient")
    fewer = every.choose(every.clusters != "a-0")
    assert every.truth_checksum != fewer.truth_checksum
    assert compare([[every]], [[fewer]], CONFIG, 0)["accuracy"].patients == 5


def test_scores_that_do_not_say_their_question_are_refused(scores: Scores, tmp_path: Path) -> None:
    copytree(scores.path, tmp_path / "old")
    info = json.loads((tmp_path / "old" / SCORES).read_text())
    for row in info["judged"]:
        del row["truth"]
    (tmp_path / "old" / SCORES).write_text(json.dumps(info))
    file = tmp_path / "old" / "predictions_patient.parquet"
    about = json.loads(load_notes(file)["hidisc"])
    del about["truth"]
    save_columns(file, load_columns(file), {"hidisc": json.dumps(about)})
    refinish(tmp_path / "old")
    assert refusal(lambda: Scores.load(tmp_path / "old")) == (
        f"{tmp_path / 'old'} holds scores that do not say which labels they are about, which this version does not "
        "read. Remove this folder and run the command that made it again; embeddings and trainings stay as they are."
    )
    assert refusal(lambda: Predictions.load(file)) == (
        f"{file} does not say which labels it is about. Evaluate again with a new --out."
    )

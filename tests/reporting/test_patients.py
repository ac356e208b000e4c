"""Every patient stands on the page and in a CSV: truth, prediction, probability, fold and slides, most wrong first."""

import csv
from pathlib import Path

import numpy as np
import pytest

from hidisc.evaluation.predictions import PREDICTED, TRUTH
from hidisc.evaluation.scores import Scores
from hidisc.reporting.evaluated import EvaluatedModel
from hidisc.reporting.patients import patients_table
from tests.evaluation.made import make_embeddings
from tests.reporting.judged import make_scores


@pytest.fixture(scope="module")
def scores(tmp_path_factory: pytest.TempPathFactory) -> Scores:
    folder = tmp_path_factory.mktemp("judged")
    return make_scores(folder / "s", make_embeddings(folder / "e"), accuracy=0.45)


def test_every_patient_stands_there_the_most_wrong_first(scores: Scores) -> None:
    table = patients_table(EvaluatedModel("made", (scores,), (None,), None), "patient")
    judged = scores.predictions("knn", "patient")
    rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    assert sorted(row["Patient"] for row in rows) == sorted(judged.units["patient"])
    margins = []
    for row in rows:
        at = judged.units["patient"].tolist().index(row["Patient"])
        code = judged.classes.index(row["Truth (label)"])
        assert code == judged.truth[at]
        assert row["Predicted"] == judged.classes[int(judged.scores[at].argmax())]
        assert row["Result"] == ("right" if row["Predicted"] == row["Truth (label)"] else "wrong")
        assert row["Probability"] == f"{100 * judged.scores[at].max():.0f}"
        assert row["Of the truth"] == f"{100 * judged.scores[at, code]:.0f}"
        assert row["Slides"] == f"{row['Patient']}/0, {row['Patient']}/1"
        margins.append(judged.scores[at, code] - np.delete(judged.scores[at], code).max())
    assert margins == sorted(margins)
    wrong = [number for number, row in enumerate(rows) if row["Result"] == "wrong"]
    assert 0 < len(wrong) < len(rows)
    assert wrong == list(range(len(wrong))), "all that are wrong stand before all that are right"
    assert table.notes[0].startswith(f"{len(wrong)} of {len(rows)} are wrong.")
    assert "Fold" not in table.columns


def test_predictions_of_patients_and_slides_are_csv_too(scores: Scores) -> None:
    for level in ("patient", "slide"):
        judged = scores.predictions("knn", level)
        with (scores.path / f"predictions_{level}.csv").open() as file:
            rows = list(csv.DictReader(file))
        assert [row["patient"] for row in rows] == judged.units["patient"].tolist()
        assert [row[TRUTH] for row in rows] == [judged.classes[code] for code in judged.truth]
        assert [row[PREDICTED] for row in rows] == [judged.classes[code] for code in judged.predicted]
        assert [float(row["score: b"]) for row in rows] == judged.scores[:, 1].tolist()
    assert not Path(scores.path / "predictions_patch.csv").exists(), "of millions of patches nobody opens one"

"""What patches are coloured by: names of the table, numbers in ten ranges, predictions of some of them."""

from pathlib import Path

import numpy as np
import pytest

from hidisc.evaluation.classes import Classes
from hidisc.evaluation.predictions import ENCODER, Key, Predictions
from hidisc.explorer.columns import (
    Column,
    as_rgb_table,
    attention_column,
    choose_colours,
    cluster_column,
    name_columns,
    number_column,
    score_columns,
)
from hidisc.explorer.session import Session, open_session
from hidisc.settings.evaluate import MilConfig
from hidisc.verbs.evaluate import evaluate
from tests.explorer.conftest import JUDGING, Made


def test_numbers_fall_into_ten_ranges() -> None:
    values = np.array([0.0, 0.099, 0.1, 0.55, 0.999, 1.0, np.nan], np.float32)
    column = number_column("score", values, 0.0, 1.0)
    assert column.codes.tolist() == [0, 0, 1, 5, 9, 9, -1]
    assert (column.names[0], column.names[9]) == ("0.00 to 0.10", "0.90 to 1.00")
    assert [column.tell(row) for row in (3, 6)] == ["0.550", None]
    same = number_column("similarity", np.ones(3, np.float32), 1.0, 1.0)
    assert same.codes.tolist() == [0, 0, 0]


def test_cells_are_what_patches_are() -> None:
    named = Column("class", ("a", "b"), np.array([1, -1, 0], np.int32), ("#111111", "#222222"))
    scored = number_column("score", np.array([0.25, np.nan, 1.0], np.float32), 0.0, 1.0)
    rows = np.array([2, 1, 0])
    assert (named.list_cells(rows), scored.list_cells(rows)) == (["a", None, "b"], [1.0, None, 0.25])


def test_attention_is_a_share_of_the_largest_in_its_slide() -> None:
    weights, slides = np.array([0.2, 0.8, 0.05, 0.1, np.nan], np.float32), np.array([0, 0, 2, 2, 2], np.int32)
    column = attention_column("attention", weights, slides, np.array([5, 0, 1, 2, 3]), 6)
    assert [column.tell(row) for row in range(6)] == ["1.000", "0.500", "1.000", None, None, "0.250"]


def test_attention_is_a_column_where_an_evaluation_kept_it(made: Made, tmp_path: Path) -> None:
    config = JUDGING.model_copy(update={"probes": ("knn", "mil"), "mil": MilConfig(epochs=1)})
    scores = evaluate(made.embeddings, tmp_path / "scores", config, device="cpu")
    session = open_session(made.store, [made.embeddings, scores.path], None, lambda _: None)
    column, found = session.columns["computed:attention"], scores.attention()
    assert found is not None
    assert column.values is not None
    rows, weights = found
    assert rows.tolist() == scores.predictions("knn", "patch").units["row"].tolist()
    for number in np.unique(session.slide_of[session.embedded[rows]]):
        own = session.slide_of[session.embedded[rows]] == number
        assert weights[own].sum() == pytest.approx(1, rel=1e-5)
        np.testing.assert_allclose(column.values[session.embedded[rows[own]]], weights[own] / weights[own].max())
    assert "computed:attention" not in made.open().columns


def test_clusters_are_of_the_patches_that_were_embedded() -> None:
    column = cluster_column(np.array([1, 0, 1], np.int32), np.array([4, 0, 2]), 5)
    assert [column.tell(row) for row in range(5)] == ["cluster 1", None, "cluster 2", None, "cluster 2"]


@pytest.mark.parametrize("count", [0, 1, 8, 9, 300])
def test_every_name_has_a_colour_and_neighbours_differ(count: int) -> None:
    colours = choose_colours(count)
    assert len(colours) == count
    rgb = as_rgb_table(colours)
    assert rgb.shape == (count + 1, 3)
    if count > 1:
        assert np.abs(np.diff(rgb[:-1], axis=0)).sum(axis=1).min() > 60


def test_columns_are_those_of_the_table(session: Session) -> None:
    columns = name_columns(session.store.table)
    assert list(columns) == ["label", "patient", "slide", "site", "split"]
    for key, column in columns.items():
        names = [column.names[code] for code in column.codes]
        assert names == session.store.table.column(key).tolist()


def test_predictions_are_of_the_patches_that_were_judged() -> None:
    scores = np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]])
    endpoint = Classes(label="label", classes=("a", "b"), positive=1)
    predictions = Predictions(Key(ENCODER, "knn", "patch"), endpoint, {}, np.array([0, 1, 1]), scores)
    known = {"label": Column("class", ("b", "a"), np.zeros(5, np.int32), ("#111111", "#222222"))}
    columns = score_columns(predictions, np.array([4, 0, 2]), 5, "", known)
    assert list(columns) == [f"computed:{name}" for name in ("predicted", "right", "score 0", "score 1")]
    assert columns["computed:predicted"].codes.tolist() == [1, -1, 0, -1, 0]
    assert columns["computed:predicted"].colours == ("#222222", "#111111")  # as the classes have them
    assert columns["computed:right"].codes.tolist() == [0, -1, 1, -1, 0]
    assert [columns["computed:score 1"].tell(row) for row in range(5)] == ["0.800", None, "0.400", None, "0.100"]


def test_several_evaluations_have_columns_of_their_own(made: Made) -> None:
    session = open_session(made.store, [made.embeddings, made.scores, made.scores], None, lambda _: None)
    assert {f"computed:predicted, evaluation {number}" for number in (1, 2)} <= set(session.columns)

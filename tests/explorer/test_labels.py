"""Names given to patches: on the disk at once, undone, shared, kept through changes of the store, used by evaluate."""

from pathlib import Path

import numpy as np
import pytest

from hidisc.embeddings.embeddings import Embeddings, add_labels
from hidisc.embeddings.given_names import labels_file, load_labels, save_labels
from hidisc.explorer.labels import LabelSets
from hidisc.ground.columns import load_columns, save_columns
from hidisc.ground.errors import UserError
from hidisc.ground.stop import watch_steps
from hidisc.reporting.evaluated import open_if_unchanged
from hidisc.verbs.evaluate import evaluate
from tests.evaluation.made import make_embeddings
from tests.explorer.conftest import JUDGING

ROWS = np.array([3, 8, 20])


@pytest.fixture
def made(tmp_path: Path) -> Embeddings:
    return make_embeddings(tmp_path / "embeddings", patients=4)


def open_sets(made: Embeddings, said: list[str] | None = None) -> LabelSets:
    return LabelSets(made.path, made.table, made.info.slides, (said if said is not None else []).append)


def test_a_name_is_on_the_disk_at_once_and_comes_back(made: Embeddings) -> None:
    open_sets(made).give("mine", "  round \n cells ", ROWS, given_by="patch")
    again = open_sets(made)
    assert np.flatnonzero(again.find("mine") == "round cells").tolist() == ROWS.tolist()
    column = again.columns["given:mine"]
    assert (column.names, np.flatnonzero(column.codes == 0).tolist()) == (("round cells",), ROWS.tolist())
    assert (made.path.parent / "labels" / "mine.parquet").is_file()


def test_undo_takes_changes_back_one_by_one(made: Embeddings) -> None:
    sets = open_sets(made)
    sets.give("mine", "a", ROWS, given_by="patch")
    sets.give("mine", "b", ROWS[:2], given_by="patch")
    sets.give("mine", None, ROWS, given_by="patch")
    states = []
    for _ in range(3):
        assert sets.undo("mine").count in (2, 3)
        states.append(open_sets(made).find("mine")[ROWS].tolist())
    assert states == [["b", "b", "a"], ["a", "a", "a"], [None, None, None]]
    with pytest.raises(UserError, match="nothing of 'mine' is left to undo"):
        sets.undo("mine")


def test_names_of_several_kinds_are_one_change(made: Embeddings) -> None:
    sets = open_sets(made)
    sets.give("mine", "a", ROWS[:1], given_by="patch")
    sets.give("mine", np.array(["b", " c ", None], object), ROWS, given_by="patch")
    assert open_sets(made).find("mine")[ROWS].tolist() == ["b", "c", None]
    assert sets.undo("mine").count == 3
    assert open_sets(made).find("mine")[ROWS].tolist() == ["a", None, None]
    with pytest.raises(UserError, match="a label has 1 to 100 letters"):
        sets.give("mine", np.array(["b", "x" * 101, "c"], object), ROWS, given_by="patch")
    assert open_sets(made).find("mine")[ROWS].tolist() == ["a", None, None]


def test_two_explorers_keep_each_others_names(made: Embeddings) -> None:
    one, other = open_sets(made), open_sets(made)
    one.give("mine", "a", ROWS, given_by="patch")
    other.give("mine", "b", np.array([1]), given_by="patch")
    one.give("mine", "c", np.array([2]), given_by="patch")
    found = open_sets(made).find("mine")
    assert {row: found[row] for row in np.flatnonzero(found != None)} == {  # noqa: E711 - elementwise
        1: "b",
        2: "c",
        3: "a",
        8: "a",
        20: "a",
    }


def test_a_write_that_fails_leaves_the_names_as_they_were(made: Embeddings) -> None:
    sets = open_sets(made)
    sets.give("mine", "a", ROWS, given_by="patch")

    def fail(step: str, _: str) -> None:
        if step == "file.written":
            raise OSError(28, "No space left on device")

    watch_steps(fail)
    try:
        with pytest.raises(OSError, match="No space left"):
            sets.give("mine", "b", ROWS, given_by="patch")
    finally:
        watch_steps(None)
    assert set(sets.find("mine")[ROWS]) == set(open_sets(made).find("mine")[ROWS]) == {"a"}


@pytest.mark.parametrize("name", ["", "../secret", "a/b", "a.b", "x" * 61, ".hidden"])
def test_a_set_is_named_like_a_file_of_its_folder(made: Embeddings, name: str) -> None:
    with pytest.raises(UserError, match="cannot name a set of labels"):
        open_sets(made).give(name, "a", ROWS, given_by="patch")
    assert not (made.path.parent / "labels").exists()


def test_names_that_are_no_names_are_refused(made: Embeddings) -> None:
    for label in ("", "  ", "x" * 101, "\ud800", "a\x00b"):
        with pytest.raises(UserError, match="a label has 1 to 100 letters"):
            open_sets(made).give("mine", label, ROWS, given_by="patch")


def test_names_of_patches_that_are_gone_are_kept_in_the_file(made: Embeddings) -> None:
    open_sets(made).give("mine", "a", ROWS, given_by="patch")
    path = labels_file(made.path, "mine")
    fewer = made.table.select(np.arange(15))
    names = load_labels(path, fewer, made.info.slides)
    assert np.flatnonzero(names.labels == "a").tolist() == [3, 8]
    names.labels[4] = "b"
    save_labels(made.path, "mine", fewer, made.info.slides, names)
    assert open_sets(made).find("mine")[[3, 4, 8, 20]].tolist() == ["a", "b", "a", "a"]


@pytest.mark.parametrize(("column", "value"), [("x", 7), ("mpp", 0.25), ("checksum", "another")])
def test_names_of_a_slide_that_was_cut_in_another_way_are_refused(
    made: Embeddings, column: str, value: float | str
) -> None:
    open_sets(made).give("mine", "a", ROWS, given_by="patch")
    path = labels_file(made.path, "mine")
    columns = load_columns(path)
    columns[column] = columns[column].copy()
    columns[column][0] = value
    save_columns(path, columns)
    said: list[str] = []
    assert "given:mine" not in open_sets(made, said).columns
    assert len(said) == 1
    assert "is another file, or was cut in another way, since these labels were given" in said[0]
    with pytest.raises(UserError, match="Use the store that they were given to"):
        open_sets(made).give("mine", "b", ROWS, given_by="patch")


def test_a_file_that_holds_something_else_is_refused(made: Embeddings) -> None:
    path = labels_file(made.path, "mine")
    path.parent.mkdir()
    save_columns(path, {"a": np.arange(3)})
    with pytest.raises(UserError, match="does not hold labels of hidisc: its columns are a"):
        add_labels(made, "mine")


def test_evaluate_predicts_names_and_is_out_of_date_when_they_change(made: Embeddings, tmp_path: Path) -> None:
    first = np.array([label == "a" for label in made.table.column("label")])
    sets = open_sets(made)
    sets.give("mine", "first", np.flatnonzero(first), given_by="patch")
    sets.give("mine", "other", np.flatnonzero(~first)[::2], given_by="patch")
    config = JUDGING.model_copy(update={"label": "mine"})
    scores = evaluate(made.path, tmp_path / "scores", config, device="cpu")
    assert scores.info.endpoint.classes == ("first", "other")
    assert scores.info.list_levels()[0].metrics["accuracy"].value > 0.7
    found = open_if_unchanged(scores.open_embeddings)
    assert found is not None
    assert "mine" in found.table.names
    sets.give("mine", "other", np.array([0]), given_by="patch")
    assert open_if_unchanged(scores.open_embeddings) is None
    with pytest.raises(UserError, match="the content of the labels of the embeddings has changed"):
        evaluate(made.path, tmp_path / "scores", config, device="cpu")
    with pytest.raises(UserError, match="has no column of names 'theirs'"):
        evaluate(made.path, tmp_path / "others", config.model_copy(update={"label": "theirs"}))


def test_undo_takes_back_what_this_browser_gave_and_nobody_named_since(made: Embeddings) -> None:
    sets = open_sets(made)
    sets.give("mine", "a", ROWS, given_by="patch", visitor="one")
    sets.give("mine", "b", ROWS[:1], given_by="patch", visitor="other")
    undone = sets.undo("mine", "one")
    assert (undone.count, undone.stayed) == (2, 1)
    assert open_sets(made).find("mine")[ROWS].tolist() == ["b", None, None]
    with pytest.raises(UserError, match="nothing of 'mine' is left to undo"):
        sets.undo("mine", "one")
    assert sets.undo("mine", "other").count == 1
    assert open_sets(made).find("mine")[ROWS].tolist() == ["a", None, None]


def test_undo_leaves_an_equal_name_that_another_browser_gave(made: Embeddings) -> None:
    sets = open_sets(made)
    sets.give("mine", "a", ROWS, given_by="patch", visitor="one")
    sets.give("mine", "a", ROWS[1:], given_by="patch", visitor="other")
    assert sets.undo("mine", "one").stayed == 2
    assert open_sets(made).find("mine")[ROWS].tolist() == [None, "a", "a"]


def test_undo_leaves_what_another_explorer_gave(made: Embeddings) -> None:
    one, other = open_sets(made), open_sets(made)
    one.give("mine", "a", ROWS, given_by="patch")
    other.give("mine", "b", ROWS[:2], given_by="patch")
    undone = one.undo("mine")
    assert (undone.count, undone.stayed) == (1, 2)
    assert open_sets(made).find("mine")[ROWS].tolist() == ["b", "b", None]


def test_names_that_look_alike_are_said(made: Embeddings) -> None:
    sets = open_sets(made)
    assert sets.give("mine", "Tumor", ROWS[:1], given_by="patch") == ()
    (warning,) = sets.give("mine", "tumor", ROWS[1:], given_by="patch")
    assert warning.startswith("labels 'Tumor' (set mine) and 'tumor' (set mine) are treated as two, but differ only in")

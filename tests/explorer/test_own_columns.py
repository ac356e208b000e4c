"""Columns of the user's own, called like computed ones or like given names: each stays what it is, in every reader."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from hidisc.embeddings.bags import check_h5ad
from hidisc.embeddings.embeddings import Embeddings
from hidisc.explorer import answers
from hidisc.explorer.labels import LabelSets
from hidisc.explorer.regions import Selection, write_boxes
from hidisc.explorer.requests import SelectionRequest
from hidisc.explorer.session import Session, open_session
from hidisc.ground.errors import UserError
from hidisc.patches.folders import find_table
from hidisc.patches.people import People
from hidisc.patches.store import PatchStore
from hidisc.patches.table import PatchTable
from hidisc.slides.cohort import Cohort
from hidisc.slides.synthetic import draw_cohort
from hidisc.verbs.evaluate import evaluate
from tests.evaluation.made import make_embeddings
from tests.explorer.conftest import JUDGING, make_all
from tests.finished import refinish

OWN = ("predicted", "predicted grade", "right", "right or wrong", "score 0", "attention", "cluster", "similarity",
       "class", "labels mine", "labels: mine")  # fmt: skip


def add_columns(cohort: Path, names: tuple[str, ...]) -> Path:
    """The cohort with further columns, whose values are `own NAME`."""
    rows = list(csv.DictReader(cohort.read_text().splitlines()))
    path = cohort.with_name("own.csv")
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, [*rows[0], *names])
        writer.writeheader()
        writer.writerows({**row, **{name: f"own {name}" for name in names}} for row in rows)
    return path


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("own")
    cohort = draw_cohort(folder / "drawn", patients=8, slides=1, fields=8, field_px=48, seed=0)
    make_all(add_columns(cohort, OWN), folder)
    return folder


@pytest.fixture
def owned(home: Path) -> Session:
    return open_session(home / "store", [home / "embeddings", home / "scores"], None, lambda _: None)


def test_every_column_of_the_user_is_shown_as_it_is(owned: Session) -> None:
    for name in OWN:
        assert set(owned.columns[name].names) == {f"own {name}"}
    titles = [column["title"] for column in answers.tell_columns(owned)["columns"]]
    assert len(set(titles)) == len(titles)
    assert set(OWN) <= set(titles)


def test_the_class_of_a_box_is_predicted_by_us_or_of_the_table(owned: Session, home: Path) -> None:
    judged = owned._judged[0][1]
    number = int(owned.slide_of[owned.embedded[judged.units["row"][0]]])
    features = json.loads(write_boxes(owned, number))["features"]
    assert {feature["properties"]["classification"]["name"] for feature in features} <= set(judged.classes)
    assert all("score" in title for feature in features for title in feature["properties"]["measurements"])
    alone = open_session(home / "store", [], None, lambda _: None)
    features = json.loads(write_boxes(alone, 0))["features"]
    labels = alone.store.table.column("label")[alone.rows_of_slide[0]].tolist()
    assert [feature["properties"]["classification"]["name"] for feature in features] == labels
    assert not any(feature["properties"].get("metadata") for feature in features)


def test_clusters_and_given_names_are_told_apart_from_own_columns(owned: Session) -> None:
    owned.labels.give("mine", "gland", owned.rows_of_slide[0][:1], given_by="patch")
    notes = json.loads(write_boxes(owned, 0))["features"][0]["properties"]["metadata"]
    assert sorted(value.split()[0] for value in notes.values()) == ["cluster", "gland"]
    rows = answers.write_patches(owned, SelectionRequest(region=Selection(rows=(0, 1)))).splitlines()
    heads = next(csv.reader(rows))
    assert len(set(heads)) == len(heads)
    assert owned.find_column("given:mine").names == ("gland",)


@pytest.mark.parametrize("name", ["computed:cluster", "given:mine"])
def test_no_door_takes_a_column_that_is_called_like_an_address(tmp_path: Path, name: str) -> None:
    cohort = add_columns(draw_cohort(tmp_path, patients=4, slides=1, fields=2, field_px=32, seed=0), (name,))
    read = Cohort.load(cohort)
    assert not any(name in row.more for row in read.slides)
    assert any(f"column {name!r} is one that hidisc writes itself" in warning for warning in read.warnings)
    with pytest.raises(UserError, match="is one that hidisc writes itself"):
        find_table(cohort)
    (tmp_path / "patients.csv").write_text(f"patient,{name}\nA,1\n")
    with pytest.raises(UserError, match="is one that hidisc writes itself"):
        People(tmp_path / "patients.csv", None)


def test_a_label_that_is_a_column_and_a_set_is_refused_until_one_is_meant(tmp_path: Path) -> None:
    made = make_embeddings(tmp_path / "embeddings", patients=4)
    sets = tmp_path / "labels"
    names = open_sets(made)
    names.give("grade", "low", np.arange(0, len(made), 2), given_by="patch")
    names.give("grade", "high", np.arange(1, len(made), 2), given_by="patch")
    PatchTable(made.table.add_names("grade", made.table.column("site").tolist()).arrow).save(
        made.path / "patches.parquet"
    )
    refinish(made.path)
    config = JUDGING.model_copy(update={"label": "grade"})
    with pytest.raises(UserError, match=r"'grade' is a column of .*, and .* has names that people gave.*given:grade"):
        evaluate(made.path, tmp_path / "scores", config, device="cpu")
    given = config.model_copy(update={"label": "given:grade"})
    assert evaluate(made.path, tmp_path / "given", given, device="cpu").info.endpoint.classes == ("high", "low")
    (sets / "grade.parquet").unlink()
    assert evaluate(made.path, tmp_path / "own", config, device="cpu").info.endpoint.classes == ("site 0", "site 1")
    with pytest.raises(
        UserError, match=r"label=given:grade: there is no .*grade.parquet. Sets of given names there: none"
    ):
        evaluate(made.path, tmp_path / "none", given, device="cpu")


@pytest.mark.parametrize(
    "name", ["annotation", "place", "name", "label", "patient", "predicted_label", "path", "doubt"]
)
def test_a_set_is_not_called_like_a_column_with_a_meaning(tmp_path: Path, name: str) -> None:
    made = make_embeddings(tmp_path / "embeddings", patients=4)
    with pytest.raises(UserError, match=f"'{name}' cannot name a set of labels, because hidisc uses a column of this"):
        open_sets(made).give(name, "a", np.array([0]), given_by="patch")
    assert not (tmp_path / "labels").exists()


def test_a_set_is_not_called_like_a_column_of_the_user(home: Path, owned: Session) -> None:
    with pytest.raises(UserError, match="the patches have a column 'cluster' already"):
        owned.labels.give("cluster", "a", np.array([0]), given_by="patch")
    assert not (home / "labels" / "cluster.parquet").exists()


def test_columns_that_would_be_one_in_anndata_are_refused(tmp_path: Path) -> None:
    made = make_embeddings(tmp_path / "embeddings", patients=4)
    table = made.table
    for name in ("stain/batch", "stain_batch"):
        table = table.add_names(name, [name] * len(table))
    table.save(made.path / "patches.parquet")
    refinish(made.path)
    with pytest.raises(UserError, match=r"'stain/batch' and 'stain_batch' would be one column of AnnData. Rename one"):
        check_h5ad(Embeddings.load(made.path))


def open_sets(made: Embeddings) -> LabelSets:
    """The sets of names beside some embeddings."""
    return LabelSets(made.path, made.table, made.info.slides, lambda _: None)


def test_the_store_keeps_own_columns(home: Path) -> None:
    assert set(OWN) <= set(PatchStore.load(home / "store").table.names)

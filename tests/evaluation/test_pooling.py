"""Averages over slides, patients and other levels: slow loops, any order, several labels in one unit."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hidisc.evaluation.predictions import ENCODER, Key, patch_predictions, pool_patches, pool_units
from hidisc.evaluation.task import Task, choose_task
from hidisc.settings.evaluate import EvaluateConfig
from tests.evaluation.made import make_embeddings

DEEP = ("site", "patient", "slide", "patch")


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Task:
    made = make_embeddings(tmp_path_factory.mktemp("made") / "e", patients=4, patches=5)
    return choose_task(made, made, EvaluateConfig(levels=DEEP))


def key(level: str) -> Key:
    return Key(ENCODER, "knn", level)


def draw_scores(task: Task, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).dirichlet(np.ones(len(task.classes)), len(task.queries))


@pytest.mark.parametrize("level", ["slide", "patient"])
@pytest.mark.parametrize("softmax", [False, True])
def test_the_mean_of_every_unit(task: Task, level: str, softmax: bool) -> None:
    scores, side = draw_scores(task), task.queries
    pooled = pool_patches(task, scores, key(level), softmax)
    names = side.names(level)
    assert sorted(pooled.units[level]) == sorted(set(names))
    for place, name in enumerate(pooled.units[level]):
        mine = scores[names == name]
        if softmax:
            mine = np.array([np.exp(row) / np.exp(row).sum() for row in mine])
        np.testing.assert_allclose(pooled.scores[place], mine.mean(axis=0))
        assert set(side.labels[names == name]) == {pooled.truth[place]}
    assert list(pooled.units) == list(DEEP[: DEEP.index(level) + 1])


def test_units_of_several_labels_are_left_out_and_counted(task: Task) -> None:
    pooled = pool_patches(task, draw_scores(task), key("site"))  # all classes come from both sites
    assert (len(pooled), pooled.left_out) == (0, 2)
    mixed = replace(task, queries=replace(task.queries, labels=task.queries.labels.copy()))
    mixed.queries.labels[0] = 2 - mixed.queries.labels[0]
    pooled = pool_patches(mixed, draw_scores(task), key("slide"))
    assert pooled.left_out == 1
    assert task.queries.names("slide")[0] not in pooled.units["slide"]


def test_equal_names_under_different_parents_are_different_units(tmp_path: Path) -> None:
    made = make_embeddings(tmp_path / "e", patients=2, slides=1, patches=4)
    task = choose_task(made, made, EvaluateConfig(levels=("patient", "site", "patch")))  # sites as if below patients
    pooled = pool_patches(task, draw_scores(task), key("site"))
    assert len(pooled) == len(set(task.queries.names("patient")))


@given(seed=st.integers(0, 10**6))
def test_the_order_of_patches_does_not_matter(task: Task, seed: int) -> None:
    scores, side = draw_scores(task), task.queries
    order = np.random.default_rng(seed).permutation(len(side))
    shuffled = replace(task, queries=replace(side, rows=side.rows[order], labels=side.labels[order]))
    for level in ("slide", "patient"):
        ours, theirs = (pool_patches(*pair, key(level)) for pair in ((task, scores), (shuffled, scores[order])))
        assert ours.units[level].tolist() == theirs.units[level].tolist()
        np.testing.assert_allclose(ours.scores, theirs.scores, atol=1e-12)
        np.testing.assert_array_equal(ours.truth, theirs.truth)


def test_patches_keep_their_names_and_places(task: Task) -> None:
    scores = draw_scores(task)
    predictions = patch_predictions(task, scores, key("patch"))
    assert list(predictions.units) == ["site", "patient", "slide", "patch", "x", "y", "row"]
    table = task.queries.embeddings.table
    for name in ("patient", "slide", "patch", "x"):
        assert predictions.units[name].tolist() == table.column(name)[predictions.units["row"]].tolist()


def test_slides_to_patients_each_slide_alike(task: Task) -> None:
    slides = pool_patches(task, draw_scores(task), key("slide"))
    patients = pool_units(slides, "patient")
    for place, name in enumerate(patients.units["patient"]):
        np.testing.assert_allclose(patients.scores[place], slides.scores[slides.units["patient"] == name].mean(axis=0))
    assert list(patients.units) == ["site", "patient"]
    assert pool_units(slides, "site").left_out == 2


def test_predictions_come_back_from_disk(task: Task, tmp_path: Path) -> None:
    made = replace(patch_predictions(task, draw_scores(task), key("patch")), left_out=3)
    made.save(tmp_path / "p.parquet")
    read = type(made).load(tmp_path / "p.parquet")
    assert read.classes == made.classes
    assert (read.key, read.endpoint) == (made.key, made.endpoint)
    assert read.left_out == 3
    assert {name: values.tolist() for name, values in read.units.items()} == {
        name: values.tolist() for name, values in made.units.items()
    }
    np.testing.assert_array_equal(read.truth, made.truth)
    np.testing.assert_array_equal(read.scores, made.scores)
    assert read.clusters.tolist() == made.units["site"].tolist()

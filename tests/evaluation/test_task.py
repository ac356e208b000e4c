"""Reference and test patches are chosen; a task that cannot be evaluated is refused with what to do."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from hidisc.embeddings.embeddings import PATCHES, Embeddings
from hidisc.evaluation.task import choose_task
from hidisc.ground.errors import UserError
from hidisc.patches.table import PatchTable
from hidisc.settings.evaluate import EvaluateConfig
from tests.evaluation.made import make_embeddings, relabel


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Embeddings:
    return make_embeddings(tmp_path_factory.mktemp("made") / "e")


def refusal(queried: Embeddings, known: Embeddings | None = None, /, **settings: object) -> str:
    with pytest.raises(UserError) as caught:
        choose_task(queried, known or queried, EvaluateConfig.model_validate(settings))
    return str(caught.value)


def test_splits_classes_and_the_positive_one(made: Embeddings) -> None:
    task = choose_task(made, made, EvaluateConfig())
    assert task.classes == ("a", "b", "c")
    assert task.endpoint.positive == 2
    assert set(task.bank.names("split")) == {"train"}
    assert set(task.queries.names("split")) == {"test"}
    names = task.queries.names("label")
    assert [task.classes[code] for code in task.queries.labels] == names.tolist()
    assert choose_task(made, made, EvaluateConfig(positive="a")).endpoint.positive == 0


def test_some_classes_only_in_the_order_given(made: Embeddings) -> None:
    task = choose_task(made, made, EvaluateConfig(classes=("c", "a")))
    assert task.classes == ("c", "a")
    assert set(task.bank.names("label")) == {"a", "c"}
    assert task.bank.unlabelled == len(choose_task(made, made, EvaluateConfig()).bank) // 3


def test_patches_without_a_label_are_left_out_and_counted(tmp_path: Path) -> None:
    made = make_embeddings(tmp_path / "e")
    arrow = made.table.arrow
    labels = [None if name == "c" else name for name in made.table.column("label")]
    column = arrow.schema.get_field_index("label")
    table = PatchTable(arrow.set_column(column, "label", pa.array(labels).dictionary_encode()))
    some = Embeddings(made.artefact, made.info, table, made.vectors)
    task = choose_task(some, some, EvaluateConfig())
    assert task.classes == ("a", "b")
    assert task.queries.unlabelled == 60
    assert (made.path / PATCHES).is_file()


def test_a_scale_is_judged_by_its_own_patches(made: Embeddings) -> None:
    mpp = np.where(np.arange(len(made)) % 2, 0.5, 2.0).astype(np.float32)
    table = PatchTable(made.table.arrow.set_column(made.table.columns.index("mpp"), "mpp", pa.array(mpp)))
    scaled = replace(made, table=table)
    task = choose_task(scaled, scaled, EvaluateConfig())
    assert task.find_scales() == [0.5, 2.0]
    coarse = task.at_scale(2.0)
    assert set(coarse.bank.names("mpp")) == set(coarse.queries.names("mpp")) == {2.0}
    assert 2 * len(coarse.queries) == len(task.queries)
    assert coarse.find_scales() == []


def test_what_cannot_be_evaluated(made: Embeddings, tmp_path: Path) -> None:
    assert refusal(made, queries=["val"]) == (
        f"queries: 'val' is not a split of {made.path}, which has test, train. Choose among these."
    )
    assert refusal(made, bank=["x"]).startswith(f"bank: 'x' is not a split of {made.path}")
    assert refusal(made, label="grade") == (
        f"{made.path} has no column of names 'grade'; it has patient, slide, label, site, split. Set levels=[...] and "
        "label=... to some of these."
    )
    assert refusal(made, levels=["ward", "patch"]).startswith(
        f"{made.path} has no column of names 'ward'; it has patient,"
    )
    assert refusal(made, classes=["a", "z"]) == "classes: no patch has label 'z'. There are a, b, c."
    assert refusal(made, classes=["a"]) == (
        "classes has 'a' only, and an evaluation needs two classes or more. There are a, b, c."
    )
    assert refusal(made, positive="z") == "positive = 'z' is not one of the classes: a, b, c."
    assert refusal(made, levels=["patch", "slide"]).startswith("levels ['patch', 'slide'] are no hierarchy.")
    assert refusal(made, levels=["patch"]) == (
        "levels has no level above the patch, and the bootstrap resamples such units: set levels=[patient, "
        "slide, patch]."
    )
    other = make_embeddings(tmp_path / "other", name="other")
    assert refusal(made, other) == (
        f"{made.path} and {other.path} were made by different encoders ('made' and 'other'), so they cannot be "
        "compared. Embed both with the same encoder."
    )


@pytest.mark.parametrize(
    ("label", "problem"),
    [("a", "all patches of {} have the label 'a'"), (None, "no patch of {} has a label")],
    ids=["one label", "no label"],
)
def test_one_label_or_none_is_no_task(tmp_path: Path, label: str | None, problem: str) -> None:
    made = relabel(make_embeddings(tmp_path / "e"), lambda *_: label)
    assert refusal(made) == (
        f"{problem.format(made.path)}, and an evaluation needs two labels or more. Give the cohort a `label` "
        "column and prepare it again, or set label=COLUMN."
    )


def test_a_split_without_any_of_the_classes(tmp_path: Path) -> None:
    made = make_embeddings(tmp_path / "e", patients=1, test=1)  # everybody is queried
    theirs = make_embeddings(tmp_path / "bank", classes=("x", "y"), test=0)
    assert refusal(made, theirs, classes=["x", "y"]) == (
        f"no patch of queries=['test'] in {made.path} has a label among x, y. Fill in the labels, or choose other "
        "patients."
    )


def test_patches_that_belong_to_no_unit(tmp_path: Path) -> None:
    made = make_embeddings(tmp_path / "e")
    arrow = made.table.arrow
    sites = [None if name == "a-4" else "here" for name in made.table.column("patient")]
    column = arrow.schema.get_field_index("site")
    table = PatchTable(arrow.set_column(column, "site", pa.array(sites).dictionary_encode()))
    some = Embeddings(made.artefact, made.info, table, made.vectors)
    assert refusal(some, levels=["site", "patient", "patch"]) == (
        f"levels: 20 of 180 patches of {made.path} have no 'site'. Fill that column of the cohort, prepare and embed "
        "again, or leave the level out."
    )
    assert len(choose_task(some, some, EvaluateConfig()).bank) == 180

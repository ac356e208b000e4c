"""The scales of a place as one embedding, against loops over places."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from hidisc.embeddings.embeddings import Embeddings
from hidisc.evaluation.places import join_places
from hidisc.evaluation.task import Task, choose_task
from hidisc.ground.errors import UserError
from hidisc.patches.table import PatchTable
from hidisc.settings.evaluate import EvaluateConfig
from tests.evaluation.made import make_embeddings

SCALES = (0.5, 2.0)


def make_task(folder: Path, *, lacking: int = 0) -> Task:
    """Five places per slide at two scales each, the coarse one first; some lack the coarse one."""
    made = make_embeddings(folder / "made", patches=10)
    rows = np.arange(len(made))
    mpp = np.where(rows % 2, SCALES[0], SCALES[1]).astype(np.float32)
    place = [str(row % 10 // 2) for row in rows]
    arrow = made.table.arrow.set_column(made.table.columns.index("mpp"), "mpp", pa.array(mpp))
    table = PatchTable(arrow).add_names("place", place)
    kept = np.flatnonzero((rows % 10 != 0) | (rows >= 10 * lacking))
    return task_of(replace(made, table=table.select(kept), vectors=np.asarray(made.vectors)[kept]))


def task_of(made: Embeddings) -> Task:
    return choose_task(made, made, EvaluateConfig())


@pytest.mark.parametrize("how", ["mean", "concatenate"])
@pytest.mark.parametrize("lacking", [0, 3])
def test_a_place_is_made_of_its_scales(tmp_path: Path, how: str, lacking: int) -> None:
    task = make_task(tmp_path, lacking=lacking)
    joined, sentence = join_places(task, how)
    for before, after in ((task.bank, joined.bank), (task.queries, joined.queries)):
        expected = {}
        for index, (slide, place, mpp) in enumerate(
            zip(*(before.names(name) for name in ("slide", "place", "mpp")), strict=True)
        ):
            vector = before.vectors(np.array([index]))[0]
            expected.setdefault((slide, place), {})[float(mpp)] = (vector / np.linalg.norm(vector), before.rows[index])
        if how == "concatenate":
            expected = {key: scales for key, scales in expected.items() if len(scales) == 2}
        found = zip(after.names("slide"), after.names("place"), after.rows, after.vectors(), strict=True)
        found = {(slide, place): (row, vector) for slide, place, row, vector in found}
        assert found.keys() == expected.keys()
        assert (np.diff(after.rows) > 0).all()
        for key, (row, vector) in found.items():
            scales = [expected[key][mpp] for mpp in SCALES if mpp in expected[key]]
            parts = [part for part, _ in scales]
            wanted = np.mean(parts, axis=0) if how == "mean" else np.concatenate(parts)
            np.testing.assert_allclose(vector, wanted, atol=1e-6)
            assert row == scales[0][1], "it stands under its finest patch"
    assert sentence.startswith(f"{len(task.bank) + len(task.queries)} patches joined to ")


def test_a_scale_is_judged_by_its_own_patches(tmp_path: Path) -> None:
    task = make_task(tmp_path)
    assert task.find_scales() == [0.5, 2.0]
    one = task.at_scale(2.0)
    assert set(one.bank.names("mpp")) == set(one.queries.names("mpp")) == {2.0}
    assert 2 * len(one.queries) == len(task.queries)
    assert one.find_scales() == []


def test_refusals(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"has no column `place`. Prepare with several scales"):
        join_places(task_of(make_embeddings(tmp_path / "one")), "mean")
    task = make_task(tmp_path / "two")
    with pytest.raises(UserError, match=r"no place has patches of all 2 scales. Use places=mean"):
        join_places(replace(task, bank=task.at_scale(2.0).bank), "concatenate")
    doubled = replace(task.bank, embeddings=replace(task.bank.embeddings, table=_one_place(task.bank.embeddings.table)))
    with pytest.raises(UserError, match="has a place with two patches of one scale"):
        join_places(replace(task, bank=doubled), "mean")


def _one_place(table: PatchTable) -> PatchTable:
    arrow = table.arrow.drop_columns("place")
    return PatchTable(arrow).add_names("place", ["0"] * len(table))

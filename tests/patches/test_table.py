"""One row per patch: kept in Parquet, the same bytes for the same rows, missing values as missing."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hidisc.patches import table as tables
from hidisc.patches.table import PatchTable, names_column


def sample() -> PatchTable:
    """Seven patches with something missing in every kind of column."""
    return PatchTable(
        pa.table(
            {
                "patient": names_column(["p2", "p1", "p2"], [3, 2, 2]),
                "label": names_column(["b", None, "a"], [3, 2, 2]),
                "x": pa.array([5, None, 0, 7, 8, 9, 2**31 - 1], pa.int32()),
                "tissue_fraction": pa.array([0.5, None, 1, 0, 0.25, 0.125, 1], pa.float32()),
                "is_blank": pa.array([True, False] * 3 + [True]),
                "name": pa.array(["a", "b", None, "d", "é", "", "g"]),
            }
        )
    )


def test_load_gives_what_was_saved(tmp_path: Path) -> None:
    sample().save(tmp_path / "t.parquet")
    back = PatchTable.load(tmp_path / "t.parquet")
    assert back.arrow.to_pydict() == sample().arrow.to_pydict()
    assert back.arrow.schema.equals(sample().arrow.schema)


def test_names_stay_encoded_over_several_row_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "_ROW_GROUP", 2)
    sample().save(tmp_path / "t.parquet")
    back = PatchTable.load(tmp_path / "t.parquet")
    assert back.column("patient").tolist() == ["p2"] * 3 + ["p1"] * 2 + ["p2"] * 2
    codes, names = back.codes("patient")
    assert (codes.tolist(), names) == ([0, 0, 0, 1, 1, 0, 0], ("p2", "p1"))


def test_same_rows_same_bytes(tmp_path: Path) -> None:
    sample().save(tmp_path / "a.parquet")
    sample().save(tmp_path / "b.parquet")
    PatchTable.load(tmp_path / "a.parquet").save(tmp_path / "c.parquet")
    first, second, third = ((tmp_path / f"{name}.parquet").read_bytes() for name in "abc")
    assert first == second == third


def test_codes_are_minus_one_where_missing() -> None:
    codes, names = sample().codes("label")
    assert (codes.tolist(), names) == ([0, 0, 0, -1, -1, 1, 1], ("b", "a"))


def test_rows_by_name() -> None:
    rows = sample().rows_by("patient")
    assert {name: part.tolist() for name, part in rows.items()} == {"p2": [0, 1, 2, 5, 6], "p1": [3, 4]}
    assert list(rows) == ["p2", "p1"]
    assert {name: part.tolist() for name, part in sample().rows_by("label").items()} == {"b": [0, 1, 2], "a": [5, 6]}
    assert list(sample().select(np.array([4, 0])).rows_by("patient")) == ["p1", "p2"]
    assert sample().select(np.array([], np.int64)).rows_by("patient") == {}


@given(st.lists(st.none() | st.sampled_from("abcd")))
def test_rows_by_name_against_a_loop(names: list[str | None]) -> None:
    slow: dict[str, list[int]] = {}
    for row, name in enumerate(names):
        if name is not None:
            slow.setdefault(name, []).append(row)
    table = PatchTable(pa.table({"slide": names_column(names, [1] * len(names))}))
    rows = table.rows_by("slide")
    assert list(rows) == list(slow)
    assert {name: part.tolist() for name, part in rows.items()} == slow


def test_columns_say_what_is_missing() -> None:
    table = sample()
    assert table.column("label").tolist() == ["b"] * 3 + [None] * 2 + ["a"] * 2
    assert table.column("name").tolist() == ["a", "b", None, "d", "é", "", "g"]
    assert table.column("x").tolist() == [5, -1, 0, 7, 8, 9, 2**31 - 1]
    np.testing.assert_array_equal(table.column("tissue_fraction"), [0.5, np.nan, 1, 0, 0.25, 0.125, 1])
    assert table.column("x").dtype == np.int32
    assert table.column("tissue_fraction").dtype == np.float32
    assert table.column("is_blank").dtype == bool


def test_a_column_with_no_value_at_all() -> None:
    table = PatchTable(pa.table({"mpp": pa.nulls(2, pa.float32()), "site": names_column([None], [2])}))
    assert np.isnan(table.column("mpp")).all()
    assert table.column("site").tolist() == [None, None]
    assert table.codes("site")[1] == ()


def test_select_by_mask_and_by_index() -> None:
    table = sample()
    mask = np.array([False, True, False, True, False, False, True])
    assert table.select(mask).column("x").tolist() == [-1, 7, 2**31 - 1]
    assert table.select(np.array([6, 1, 6])).column("patient").tolist() == ["p2", "p2", "p2"]
    assert table.select(np.array([5, 4])).column("label").tolist() == ["a", None]
    assert len(table.select(np.array([], np.int64))) == 0


def test_an_empty_table_can_be_saved_and_asked(tmp_path: Path) -> None:
    sample().select(np.zeros(7, bool)).save(tmp_path / "t.parquet")
    empty = PatchTable.load(tmp_path / "t.parquet")
    assert len(empty) == 0
    assert empty.columns == sample().columns
    assert all(len(empty.column(name)) == 0 for name in empty.columns)
    assert len(empty.codes("label")[0]) == 0


@given(st.lists(st.tuples(st.none() | st.text("ab é", max_size=3), st.integers(0, 4)), min_size=1))
def test_names_column_against_a_loop(runs: list[tuple[str | None, int]]) -> None:
    slow = [name for name, count in runs for _ in range(count)]
    column = names_column([name for name, _ in runs], [count for _, count in runs])
    assert column.to_pylist() == slow
    first_seen = list(dict.fromkeys(name for name, _ in runs if name is not None))
    assert column.dictionary.to_pylist() == first_seen


def test_a_column_that_is_not_there_is_named_with_those_that_are(tmp_path: Path) -> None:
    PatchTable(pa.table({"x": [1]})).save(tmp_path / "t.parquet")
    for table in (PatchTable(pa.table({"x": [1]})), PatchTable.load(tmp_path / "t.parquet")):
        with pytest.raises(KeyError, match="column 'y' is none of x"):
            table.column("y")

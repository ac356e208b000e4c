"""The tree of a patch table against dictionaries of dictionaries, at any depth and in any order of the rows."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hidisc.ground.errors import UserError
from hidisc.patches.folders import find_table
from hidisc.patches.store import PatchStore
from hidisc.patches.table import PatchTable, names_column
from hidisc.sampling.hierarchy import Hierarchy, Tree
from hidisc.settings.prepare import ImportConfig
from hidisc.verbs.prepare import import_patches
from tests.patches.pictures import pictures_of, write_pictures

FIVE = ("site", "patient", "slide", "region", "patch")
Case = tuple[tuple[str, ...], list[tuple[str, ...]], list[bool]]
"""(levels, names of every row above the patch, mask)."""


def table_of(levels: Sequence[str], rows: Sequence[Sequence[str | None]]) -> PatchTable:
    """A table of one name a level above the patch in every row."""
    columns = {
        level: names_column([row[place] for row in rows], [1] * len(rows)) for place, level in enumerate(levels[:-1])
    }
    return PatchTable(pa.table({**columns, "patch": pa.array(range(len(rows)), pa.int32())}))


def grow(table: PatchTable, *levels: str) -> Tree:
    """The tree of all rows."""
    return Hierarchy(levels).grow(table, np.ones(len(table), bool))


def grow_slowly(rows: Sequence[Sequence[str]], mask: Sequence[bool]) -> list[Any]:
    """Nested lists of row numbers, one nesting a level, from a dictionary of dictionaries."""
    root: dict[str, Any] = {}
    for number, (names, wanted) in enumerate(zip(rows, mask, strict=True)):
        node = root
        for name in names if wanted else ():
            node = node.setdefault(name, {})
        if wanted:
            node[str(number)] = number
    return tidy(_lists(root))


def _lists(node: Any) -> Any:
    return [_lists(below) for below in node.values()] if isinstance(node, dict) else node


def unfold(tree: Tree) -> list[Any]:
    """The same nested lists from a tree."""

    def below(depth: int, node: int) -> Any:
        if depth == len(tree.starts):
            return int(tree.leaves[node])
        first, last = tree.starts[depth][node : node + 2]
        return [below(depth + 1, child) for child in range(first, last)]

    return tidy([below(0, root) for root in range(tree.roots)])


def tidy(nested: Any) -> Any:
    """Lists in order of their first row: a tree may number siblings as it likes."""
    if not isinstance(nested, list):
        return nested
    return sorted(map(tidy, nested), key=lambda item: (np.min(_flat(item)), isinstance(item, list)))


def _flat(nested: Any) -> list[int]:
    return [row for item in nested for row in _flat(item)] if isinstance(nested, list) else [nested]


@st.composite
def tables(draw: st.DrawFn) -> Case:
    """Few names, so that they come again elsewhere and apart."""
    levels = FIVE[draw(st.integers(0, 4)) :]
    names = st.tuples(*[st.sampled_from("abc")] * (len(levels) - 1))
    runs = draw(st.lists(st.tuples(names, st.integers(1, 4)), min_size=1, max_size=12))
    rows = [name for name, length in runs for _ in range(length)]
    return levels, rows, draw(st.lists(st.booleans(), min_size=len(rows), max_size=len(rows)))


@given(tables())
def test_against_dictionaries(case: Case) -> None:
    levels, rows, mask = case
    tree = Hierarchy(levels).grow(table_of(levels, rows), np.array(mask))
    assert unfold(tree) == grow_slowly(rows, mask)
    assert sorted(tree.leaves) == np.flatnonzero(mask).tolist()


@given(tables())
def test_children_follow_each_other(case: Case) -> None:
    """Every node has children, and they begin where those of the node before end."""
    levels, rows, mask = case
    tree = Hierarchy(levels).grow(table_of(levels, rows), np.array(mask))
    assert tree.levels == levels
    sizes = [*(len(starts) - 1 for starts in tree.starts), len(tree.leaves)]
    assert sizes[0] == tree.roots
    for starts, below in zip(tree.starts, sizes[1:], strict=True):
        assert (starts[0], starts[-1]) == (0, below)
        assert (np.diff(starts) > 0).all()


@given(tables())
def test_the_rows_of_a_node_stay_in_the_order_of_the_table(case: Case) -> None:
    levels, rows, mask = case
    tree = Hierarchy(levels).grow(table_of(levels, rows), np.array(mask))
    for place in range(len(tree.leaves)):
        first, last = tree.siblings(place)
        assert (np.diff(tree.leaves[first:last]) > 0).all()


@given(tables())
def test_siblings_are_the_patches_of_the_same_parent(case: Case) -> None:
    levels, rows, mask = case
    tree = Hierarchy(levels).grow(table_of(levels, rows), np.array(mask))
    for place, row in enumerate(tree.leaves):
        first, last = tree.siblings(place)
        assert first <= place < last
        family = [number for number, names in enumerate(rows) if mask[number] and names == rows[row]]
        assert sorted(tree.leaves[first:last]) == family


@given(tables())
def test_root_leaves_are_the_first_patch_of_every_root(case: Case) -> None:
    levels, rows, mask = case
    tree = Hierarchy(levels).grow(table_of(levels, rows), np.array(mask))
    firsts = tree.root_leaves()
    assert len(firsts) == tree.roots
    if len(levels) == 1:
        assert firsts.tolist() == list(range(sum(mask)))
    else:
        coarsest = [rows[row][0] for row in tree.leaves]
        assert [coarsest[place] for place in firsts] == list(dict.fromkeys(coarsest))
        assert [coarsest.index(coarsest[place]) for place in firsts] == firsts.tolist()


def test_the_six_rows_of_the_docstring() -> None:
    rows = [("A", "A1"), ("A", "A1"), ("B", "B1"), ("B", "B2"), ("B", "B2"), ("A", "A1")]
    tree = grow(table_of(("patient", "slide", "patch"), rows), "patient", "slide", "patch")
    assert tree.leaves.tolist() == [0, 1, 5, 2, 3, 4]
    assert [starts.tolist() for starts in tree.starts] == [[0, 1, 3], [0, 3, 4, 6]]


def test_one_name_under_two_patients_is_two_slides() -> None:
    table = table_of(("patient", "slide", "patch"), [("p", "1"), ("q", "1"), ("q", "2"), ("p", "1")])
    tree = grow(table, "patient", "slide", "patch")
    assert unfold(tree) == [[[0, 3]], [[1], [2]]]
    assert (tree.roots, len(tree.starts[1]) - 1) == (2, 3)


def test_a_shallower_hierarchy_merges_what_it_does_not_name() -> None:
    rows = [("p", "1"), ("q", "1"), ("q", "2"), ("p", "3")]
    table = table_of(("patient", "slide", "patch"), rows)
    assert unfold(grow(table, "patient", "patch")) == [[0, 3], [1, 2]]
    assert unfold(grow(table, "slide", "patch")) == [[0, 1], [2], [3]]
    assert unfold(grow(table, "patch")) == [0, 1, 2, 3]


@pytest.mark.parametrize("levels", [("patch",), ("patient", "slide", "patch")])
def test_a_mask_that_marks_nothing(levels: tuple[str, ...]) -> None:
    table = table_of(("patient", "slide", "patch"), [("p", "1")])
    tree = Hierarchy(levels).grow(table, np.zeros(1, bool))
    assert (tree.roots, len(tree.leaves), len(tree.root_leaves())) == (0, 0, 0)


def test_five_levels_of_an_imported_table(tmp_path: Path) -> None:
    """`region` is a column of the user's own; the table is read back from the store's file."""
    pictures = pictures_of("P1/A", "P1/B", "P2/A", "P3/A", patches=4)
    write_pictures(tmp_path, pictures)
    lines = ["patient,slide,path,site,region"]
    rows = []
    for place, path in enumerate(pictures):
        patient, slide, _ = path.split("/")
        names = ("Ulm" if patient == "P2" else "Graz", patient, f"{patient}/{slide}", f"r{place % 3}")
        rows.append(names)
        lines.append(f"{patient},{slide},{path},{names[0]},{names[3]}")
    (tmp_path / "patches.csv").write_text("\n".join(lines) + "\n")
    import_patches(find_table(tmp_path / "patches.csv"), tmp_path / "store", ImportConfig(), workers=0)
    table = PatchStore.load(tmp_path / "store").table
    stored = list(zip(*(table.column(level) for level in FIVE[:-1]), strict=True))
    assert sorted(stored) == sorted(rows)
    assert unfold(grow(table, *FIVE)) == grow_slowly(stored, [True] * len(rows))


def test_memory_is_four_bytes_a_patch() -> None:
    counts = np.full(500, 200)
    names = [f"s{number}" for number in range(500)]
    columns = {
        "patient": names_column([f"p{n // 2}" for n in range(500)], counts),
        "slide": names_column(names, counts),
    }
    tree = grow(PatchTable(pa.table(columns)), "patient", "slide", "patch")
    assert tree.leaves.nbytes == 4 * counts.sum()
    assert sum(starts.nbytes for starts in tree.starts) == 8 * (251 + 501)


# ---- what is refused


def refusal(levels: Sequence[str], table: PatchTable, mask: Sequence[bool]) -> str:
    with pytest.raises(UserError) as caught:
        Hierarchy(tuple(levels)).grow(table, np.array(mask))
    return str(caught.value)


@pytest.mark.parametrize(
    "levels",
    [[], ["patient"], ["patient", "slide"], ["patch", "slide"], ["slide", "slide", "patch"], ["patch", "patch"]],
)
def test_levels_that_are_no_hierarchy(levels: list[str]) -> None:
    assert refusal(levels, table_of(("slide", "patch"), [("s",)]), [True]) == (
        f"levels {levels} are no hierarchy. Name each level once, from coarse to fine, `patch` last: "
        "--set 'batch.levels=[patient, slide, patch]'."
    )


@pytest.mark.parametrize("unknown", ["scan", "x", "name"])
def test_a_level_that_is_no_column_of_names(unknown: str) -> None:
    names = {column: names_column([column], [2]) for column in ("patient", "slide")}
    table = PatchTable(pa.table({**names, "x": [1, 2], "name": ["a", "b"]}))
    assert refusal(["patient", unknown, "patch"], table, [True, True]) == (
        f"batch.levels: {unknown!r} is no column of names in this store. Levels above `patch` can be patient, slide; "
        "further columns of a cohort or of `hidisc import table` are kept."
    )


def test_patches_without_a_name() -> None:
    rows = [("p", "Ulm"), ("p", None), ("q", None), ("r", None)]
    table = table_of(("patient", "site", "patch"), rows)
    assert refusal(["site", "patient", "patch"], table, [True, True, True, False]) == (
        "batch.levels: 2 of 3 patches have no 'site'. Fill that column of the cohort and run `hidisc prepare` again, "
        "or leave the level out."
    )
    tree = Hierarchy(("site", "patient", "patch")).grow(table, np.array([True, False, False, False]))
    assert unfold(tree) == [[[0]]]  # patches that are not learned from may lack it

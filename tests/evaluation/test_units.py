"""Rows are grouped by the names of all their ancestors; sums and labels of units are what plain loops give."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hidisc.evaluation.task import group

rows_of_codes = st.lists(st.tuples(st.integers(-1, 3), st.integers(-1, 2)), min_size=1, max_size=30)


@given(rows_of_codes, st.integers(0, 99))
def test_units_are_those_of_a_dictionary(pairs: list[tuple[int, int]], seed: int) -> None:
    patients, slides = (np.array(codes, np.int32) for codes in zip(*pairs, strict=True))
    units = group([patients, slides])
    members = {pair: [row for row, other in enumerate(pairs) if other == pair] for pair in sorted(set(pairs))}
    assert [rows.tolist() for rows in units.rows()] == list(members.values())
    assert units.first.tolist() == [rows[0] for rows in members.values()]
    assert units.counts.tolist() == [len(rows) for rows in members.values()]
    assert [list(members.values())[unit].count(row) for row, unit in enumerate(units.of_row)] == [1] * len(pairs)
    rng = np.random.default_rng(seed)
    values, labels = rng.normal(size=(len(pairs), 3)), rng.integers(2, size=len(pairs))
    np.testing.assert_allclose(units.sums(values), [values[rows].sum(axis=0) for rows in members.values()])
    assert units.have_one_label(labels).tolist() == [len(set(labels[rows])) == 1 for rows in members.values()]


def test_one_slide_name_under_two_patients_is_two_units() -> None:
    units = group([np.array([0, 0, 1, 1]), np.array([5, 7, 5, 5])])
    assert (len(units), units.of_row.tolist()) == (3, [0, 1, 2, 2])


def test_no_rows_are_no_units() -> None:
    nothing = np.zeros(0, np.int64)
    units = group([nothing, nothing])
    assert len(units) == len(units.of_row) == len(units.counts) == len(units.have_one_label(nothing)) == 0
    assert units.sums(np.zeros((0, 4))).shape == (0, 4)

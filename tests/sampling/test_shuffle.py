"""Every number once, in an order that favours none; different numbers while there are enough.

Uniformity is measured on pinned seeds, so a fair draw passes always and not with some probability.
"""

from itertools import combinations, permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import ArrayLike, NDArray

from hidisc.sampling import sampler
from hidisc.sampling.sampler import draw_distinct, shuffled

LARGE = [4097, 5000, 2**14, 2**14 + 1, 10**6, 11_300_000, 2**31, 2**40, 2**60]
"""Beyond the orders that are written out; squares fill a grid, one more leaves most of a row of it outside."""


def surprise(counts: ArrayLike) -> float:
    """Chi-square of equally likely counts as a standard normal value (Wilson and Hilferty 1931); 4: one in 30,000."""
    found = np.asarray(counts, float).ravel()
    assert found.mean() >= 5, "too few draws for chi-square"
    freedom = len(found) - 1
    chi_square = ((found - found.mean()) ** 2).sum() / found.mean()
    spread = 2 / (9 * freedom)
    return float(((chi_square / freedom) ** (1 / 3) - (1 - spread)) / np.sqrt(spread))


def bins(values: NDArray[np.int64], size: int, count: int) -> NDArray[np.int64]:
    """Which of `count` equal parts of 0 ... size - 1 each value lies in; `size` must be a multiple of `count`."""
    assert size % count == 0
    return values // (size // count)


def order(size: int, seed: int) -> NDArray[np.int64]:
    return shuffled(np.arange(size), size, np.random.default_rng(seed))


# ---- shuffled


def test_every_size_gives_every_number_once() -> None:
    for size in range(1, 5001):
        assert (np.bincount(order(size, size), minlength=size) == 1).all(), size


@pytest.mark.parametrize("size", [2**14 - 1, 2**14, 2**14 + 1, 10**5, 10**6])
def test_whole_large_orders(size: int) -> None:
    np.testing.assert_array_equal(np.sort(order(size, 3)), np.arange(size))


@pytest.mark.parametrize("size", LARGE)
def test_no_number_comes_twice(size: int) -> None:
    rng = np.random.default_rng(4)
    ends = np.r_[0, size - 1]
    positions = np.unique(np.r_[ends, rng.integers(0, size, 100_000)])
    values = shuffled(positions, size, rng)
    assert values.dtype == np.int64
    assert len(np.unique(values)) == len(positions)
    assert 0 <= values.min() <= values.max() < size


@pytest.mark.parametrize("size", [1, 7, 4096, *LARGE])
def test_an_order_is_decided_by_the_generator_alone(size: int) -> None:
    positions = np.arange(min(size, 300))
    other_way = np.random.default_rng(1).permutation(len(positions))
    whole = shuffled(positions, size, np.random.default_rng(9))
    np.testing.assert_array_equal(shuffled(positions, size, np.random.default_rng(9)), whole)
    np.testing.assert_array_equal(shuffled(positions[other_way], size, np.random.default_rng(9)), whole[other_way])
    one_by_one = [shuffled(positions[[place]], size, np.random.default_rng(9)) for place in positions[:5]]
    np.testing.assert_array_equal(np.concatenate(one_by_one), whole[:5])
    if size > 1:
        orders = {tuple(shuffled(positions, size, np.random.default_rng(seed))) for seed in range(40)}
        assert len(orders) >= 35


def test_the_positions_asked_for_are_left_as_they_are() -> None:
    for size in (100, 10_000):
        positions = np.arange(50)
        shuffled(positions, size, np.random.default_rng(0))
        np.testing.assert_array_equal(positions, np.arange(50))


def test_all_orders_of_a_few_are_equally_likely() -> None:
    known = {order: place for place, order in enumerate(permutations(range(5)))}
    assert surprise(np.bincount([known[tuple(order(5, seed))] for seed in range(6000)], minlength=120)) < 4


POSITIONS = [0, 1, 70, 71, 72, 141, 142, 282, 3000, 3999]
"""Among them neighbours in a row and in a column of the grids of 5,000 (71 wide) and 20,000 (141 wide)."""


@pytest.fixture(scope="module", params=[4000, 5000, 20_000])
def many(request: pytest.FixtureRequest) -> tuple[int, NDArray[np.int64]]:
    """(size, (2500, 10) what stands at POSITIONS in orders of 2,500 seeds)."""
    size, positions = request.param, np.array(POSITIONS)
    return size, np.stack([shuffled(positions, size, np.random.default_rng(seed)) for seed in range(2500)])


def test_every_number_is_equally_likely_at_a_position(many: tuple[int, NDArray[np.int64]]) -> None:
    size, found = many
    for column in found.T:
        assert surprise(np.bincount(bins(column, size, 100), minlength=100)) < 4
        assert surprise(np.bincount(column % 100, minlength=100)) < 4


def test_two_positions_know_nothing_of_each_other(many: tuple[int, NDArray[np.int64]]) -> None:
    size, found = many
    for first, second in combinations(found.T, 2):
        joint = np.zeros((10, 10), int)
        np.add.at(joint, (bins(first, size, 10), bins(second, size, 10)), 1)
        assert surprise(joint) < 4
        assert surprise(np.bincount((first - second) % 100 // 5, minlength=20)) < 4
        assert abs(np.corrcoef(first, second)[0, 1]) < 5 / np.sqrt(len(found))


@pytest.mark.parametrize("size", [4000, 5000, 10**6, 11_300_000])
def test_neighbours_in_an_order_are_strangers(size: int) -> None:
    values = shuffled(np.arange(min(size, 200_000)), size, np.random.default_rng(11))
    for lag in (1, 2, 64, 128):
        assert abs(np.corrcoef(values[:-lag], values[lag:])[0, 1]) < 5 / np.sqrt(len(values) - lag)


@pytest.mark.parametrize("size", [5000, 11_300_000])
def test_the_beginning_of_an_order_is_spread_evenly(size: int) -> None:
    """Kolmogorov-Smirnov: a distance of 2.2 standard sizes would be one in ten thousand."""
    for seed in range(20):
        values = np.sort(shuffled(np.arange(1024), size, np.random.default_rng(seed))) / size
        distance = np.abs(values - (np.arange(1024) + 0.5) / 1024).max()
        assert distance * np.sqrt(1024) < 2.2


def test_passes_begin_with_different_numbers() -> None:
    """The first 500 of 5,000 share 50 with the first 500 of another order, give or take 6.4 each."""
    firsts = [set(shuffled(np.arange(500), 5000, np.random.default_rng(seed)).tolist()) for seed in range(200)]
    shared = [len(a & b) for a, b in zip(firsts[::2], firsts[1::2], strict=True)]
    assert abs(np.mean(shared) - 50) < 5 * 6.4 / np.sqrt(len(shared))
    assert 4 < np.std(shared) < 9


def test_the_walk_goes_on_as_long_as_it_must(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small sizes through the keyed permutation: a larger share of its grid is outside."""
    monkeypatch.setattr(sampler, "_SMALL", 0)
    for size in range(2, 300):
        for seed in range(3):
            np.testing.assert_array_equal(np.sort(order(size, seed)), np.arange(size))


# ---- draw_distinct


@given(
    st.lists(st.integers(1, 12) | st.integers(1, 2**40), min_size=1, max_size=8),
    st.integers(1, 40),
    st.integers(0, 2**32),
)
def test_distinct_while_there_are_enough_then_in_turn(sizes: list[int], count: int, seed: int) -> None:
    drawn = draw_distinct(np.array(sizes), count, np.random.default_rng(seed))
    assert drawn.shape == (len(sizes), count)
    for size, row in zip(sizes, drawn.tolist(), strict=True):
        different = min(size, count)
        assert all(0 <= value < size for value in row)
        assert len(set(row)) == different
        assert row == [row[place % different] for place in range(count)]


@pytest.mark.parametrize(("size", "count"), [(1, 1), (2, 1), (2, 2), (4, 2), (4, 4), (5, 3), (6, 2), (3, 5), (2, 7)])
def test_all_draws_in_all_orders_are_equally_likely(size: int, count: int) -> None:
    drawn = draw_distinct(np.full(20_000, size), count, np.random.default_rng(5))
    known = {draw: place for place, draw in enumerate(permutations(range(size), min(size, count)))}
    found = np.bincount([known[tuple(row)] for row in drawn[:, :size].tolist()], minlength=len(known))
    assert len(known) == 1 or surprise(found) < 4


def test_rows_of_different_sizes_are_drawn_independently() -> None:
    drawn = draw_distinct(np.tile([3, 4, 50], 8000), 2, np.random.default_rng(6)).reshape(-1, 3, 2)
    for first, second, sizes in [(0, 1, (3, 4)), (1, 2, (4, 50))]:
        joint = np.zeros(sizes, int)
        np.add.at(joint, (drawn[:, first, 0], drawn[:, second, 1]), 1)
        assert surprise(joint) < 4


def test_draws_from_millions_are_spread_evenly() -> None:
    size = 11_300_000
    drawn = draw_distinct(np.full(10_000, size), 4, np.random.default_rng(7))
    for column in drawn.T:
        assert surprise(np.bincount(bins(column, size, 100), minlength=100)) < 4


def test_draws_are_decided_by_the_generator_alone() -> None:
    sizes = np.array([5, 1, 900, 2])
    first, again, other = (draw_distinct(sizes, 3, np.random.default_rng(seed)) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()
    np.testing.assert_array_equal(sizes, [5, 1, 900, 2])

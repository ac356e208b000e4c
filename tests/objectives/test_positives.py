import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from hidisc.ground.errors import UserError
from hidisc.objectives.positives import attract, group_rows, level_weights, mean_positive, sum_groups
from tests import oracles

ids_of_rows = st.lists(st.integers(-3, 3), min_size=1, max_size=12).map(torch.tensor)


def draw(rows: int, dim: int = 4, seed: int = 0) -> Tensor:
    return torch.randn(rows, dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@given(ids_of_rows)
@settings(max_examples=50)
def test_rows_are_in_one_group_exactly_when_their_ids_are_equal(ids):
    groups = group_rows(ids)
    assert ((groups.ids[:, None] == groups.ids) == (ids[:, None] == ids)).all()
    assert groups.sizes.tolist() == [int((groups.ids == g).sum()) for g in range(len(groups.sizes))]
    assert int(groups.anchors) == max(1, sum(int((ids == i).sum() > 1) for i in ids))


@given(ids_of_rows)
@settings(max_examples=50)
def test_sums_of_groups_are_the_sums_of_their_rows(ids):
    values, groups = draw(len(ids)), group_rows(ids)
    for g, total in enumerate(sum_groups(values, groups)):
        torch.testing.assert_close(total, values[groups.ids == g].sum(dim=0))


@given(ids_of_rows, st.data())
@settings(max_examples=50)
def test_the_mean_over_positives_leaves_out_the_row_itself(ids, data):
    first = data.draw(st.integers(0, len(ids) - 1))
    last = data.draw(st.integers(first + 1, len(ids)))
    queries, keys = draw(last - first, seed=1), draw(len(ids), seed=2)
    similarity, has_any = mean_positive(queries, keys, group_rows(ids), first)
    for row, i in enumerate(range(first, last)):
        relatives = oracles.positives(ids[:, None], 0, i)
        assert bool(has_any[row]) == bool(relatives)
        expected = sum(float(queries[row] @ keys[p]) for p in relatives) / max(len(relatives), 1)
        if relatives:
            assert float(similarity[row]) == pytest.approx(expected, abs=1e-12)


def test_attraction_is_minus_the_mean_cosine_level_by_level():
    ancestry = torch.tensor([[0, 0, 0], [0, 0, 0], [0, 1, 1], [0, 1, 2], [1, 2, 3], [1, 2, 3], [2, 3, 4]])
    queries, targets = F.normalize(draw(7, seed=1)), F.normalize(draw(7, seed=2))
    total, levels = attract(queries, targets, ancestry, [2, 0, 0.5])
    pairs = -oracles.cosines(queries, targets)
    patient, patch = (float(oracles.mean_over_pairs(ancestry, level, pairs)) for level in (0, 2))
    assert levels.tolist() == pytest.approx([patient, 0, patch], abs=1e-12)
    assert float(total) == pytest.approx(2 * patient + 0.5 * patch, abs=1e-12)


def test_levels_not_named_have_weight_1():
    levels = ("patient", "slide", "patch")
    assert level_weights({}, levels) == (1, 1, 1)
    assert level_weights({"slide": 0, "patch": 0.5}, levels) == (1, 0, 0.5)


@pytest.mark.parametrize("weights", [{"site": 1.0}, {"slide": -1.0}, {"slide": 0.0, "patch": 0.0}])
def test_weights_that_do_not_fit_the_levels_are_refused(weights):
    with pytest.raises(UserError, match=r"^objective\.weights = \{'s.*levels of this run are slide, patch.*Change obj"):
        level_weights(weights, ("slide", "patch"))

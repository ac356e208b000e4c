import json
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from lightly.loss import NTXentLoss
from pytorch_metric_learning.losses import SupConLoss
from torch import Tensor

from hidisc.ground.errors import UserError
from hidisc.objectives import hidisc as module
from hidisc.objectives.hidisc import hidisc_loss, level_temperatures
from tests import oracles

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "loss.json").read_text())
TEMPERATURES = (0.07, 0.7)


def unit(seed: int, rows: int, dim: int = 8, dtype: torch.dtype = torch.float64) -> Tensor:
    z = torch.randn(rows, dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return F.normalize(z, dim=1).to(dtype)


def regular(*counts: int) -> Tensor:
    """Ancestry (N, levels) of a full tree: the last count is the views."""
    rows = torch.arange(int(torch.tensor(counts).prod()))
    return torch.stack([rows // int(torch.tensor(counts[level + 1 :]).prod()) for level in range(len(counts) - 1)], 1)


def with_grad(loss, z: Tensor, *args, **kwargs) -> tuple[Tensor, Tensor, Tensor]:
    """(total, levels, d total / d z)."""
    z = z.detach().clone().requires_grad_()
    total, levels = loss(z, *args, **kwargs)
    if total.requires_grad:
        total.backward()
    return total.detach(), levels.detach(), torch.zeros_like(z) if z.grad is None else z.grad


@st.composite
def trees(draw) -> tuple[Tensor, list[float]]:
    """Ragged ancestry (N, L), N 2 to 12 and L 1 to 5, rows in any order, and weights.

    Two branches at every step, so patients, slides and patches are repeated, and many rows are alone at a level.
    """
    levels, rows = draw(st.integers(1, 5)), draw(st.integers(2, 12))
    paths = [tuple(draw(st.lists(st.integers(0, 1), min_size=levels, max_size=levels))) for _ in range(rows)]
    ids: dict[tuple[int, ...], int] = {}
    ancestry = [[ids.setdefault(path[: level + 1], len(ids)) for level in range(levels)] for path in paths]
    weights = draw(st.lists(st.sampled_from([0.0, 0.5, 1.0, 3.0]), min_size=levels, max_size=levels))
    return torch.tensor(ancestry), weights


seeds, temperatures = st.integers(0, 2**31), st.sampled_from(TEMPERATURES)


@pytest.mark.parametrize("case", GOLDEN, ids=lambda case: f"{case['shape']} at {case['tau']}")
def test_equals_the_authors_code(case):
    *counts, dim = case["shape"]
    z = torch.tensor(case["z"], dtype=torch.float64).reshape(-1, dim)
    total, levels, grad = with_grad(hidisc_loss, z, regular(*counts), [1, 1, 1], case["tau"])
    assert float(total) == pytest.approx(case["sum"], abs=1e-6)
    assert levels.tolist() == pytest.approx([case["patient"], case["slide"], case["patch"]], abs=1e-6)
    assert float(grad.norm()) == pytest.approx(case["grad_norm"], abs=1e-6)

    total, levels, grad = with_grad(hidisc_loss, z.float(), regular(*counts), [1, 1, 1], case["tau"])
    assert total.dtype == levels.dtype == grad.dtype == torch.float32
    assert float(total) == pytest.approx(case["sum"], rel=2e-6)
    assert levels.tolist() == pytest.approx([case["patient"], case["slide"], case["patch"]], rel=2e-6)
    assert float(grad.norm()) == pytest.approx(case["grad_norm"], rel=1e-5)


@given(trees(), seeds, temperatures, st.sampled_from(["mean", "sum"]))
@settings(max_examples=60)
def test_equals_the_equations_on_any_tree(tree, seed, temperature, reduction):
    ancestry, weights = tree
    z = unit(seed, len(ancestry), 5)
    total, levels, grad = with_grad(hidisc_loss, z, ancestry, weights, temperature, reduction=reduction)
    slow, slow_levels, slow_grad = with_grad(oracles.hidisc, z, ancestry, weights, temperature, reduction)
    counts = torch.tensor([float(weight > 0) for weight in weights], dtype=torch.float64)
    torch.testing.assert_close(total, slow, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(levels, slow_levels * counts, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(grad, slow_grad, rtol=1e-9, atol=1e-9)


@given(trees(), seeds, st.sampled_from(["mean", "sum"]), st.data())
@settings(max_examples=60)
def test_equals_the_equations_across_finer_levels_and_with_a_temperature_per_level(tree, seed, reduction, data):
    ancestry, weights = tree
    count = len(weights)
    across = [data.draw(st.sampled_from([None, *range(level + 1, count)])) for level in range(count)]
    taus = [data.draw(st.sampled_from([0.07, 0.5, 0.7])) for _ in range(count)]
    z = unit(seed, len(ancestry), 5)
    rest = {"reduction": reduction, "across": across}
    total, levels, grad = with_grad(hidisc_loss, z, ancestry, weights, taus, **rest)
    slow, slow_levels, slow_grad = with_grad(oracles.hidisc, z, ancestry, weights, taus, reduction, across)
    counts = torch.tensor([float(weight > 0) for weight in weights], dtype=torch.float64)
    torch.testing.assert_close(total, slow, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(levels, slow_levels * counts, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(grad, slow_grad, rtol=1e-9, atol=1e-9)

    half = len(ancestry) // 2
    if 2 * half == len(ancestry):

        def by_two_ranks(z):
            parts = [
                hidisc_loss(z[mine], ancestry[mine], weights, taus, **rest, keys=(z, ancestry, mine.start))
                for mine in (slice(0, half), slice(half, 2 * half))
            ]
            return sum(part[0] for part in parts) / 2, sum(part[1] for part in parts) / 2

        for found, expected in zip(with_grad(by_two_ranks, z), (total, levels, grad), strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


def test_across_slides_those_of_the_same_slide_do_not_count_at_all():
    """Two slides of two patches: moving a patch changes nothing for the anchor on its own slide."""
    ancestry = torch.tensor([[0, 0], [0, 0], [0, 1], [0, 1], [1, 2]])
    z = unit(0, 5)
    tau, anchors = 0.5, range(4)  # the last has no positive
    expected = []
    for i in anchors:
        rest = [a for a in range(5) if ancestry[a, 1] != ancestry[i, 1]]
        relatives = [p for p in rest if ancestry[p, 0] == ancestry[i, 0]]
        denominator = torch.logsumexp(z[i] @ z[rest].T / tau, 0)
        expected.append(denominator - (z[i] @ z[relatives].T).mean() / tau)
    found = hidisc_loss(z, ancestry, [1, 0], tau, across=[1, None])[1][0]
    assert float(found) == pytest.approx(float(sum(expected)) / 4, abs=1e-12)
    assert float(found) != pytest.approx(float(hidisc_loss(z, ancestry, [1, 0], tau)[1][0]), abs=1e-3)


def test_patients_of_one_slide_leave_the_level_at_0_and_move_nothing():
    ancestry = torch.tensor([[0, 0], [0, 0], [1, 1], [1, 1]])
    total, levels, grad = with_grad(hidisc_loss, unit(0, 4), ancestry, [1, 0], 0.7, across=[1, None])
    assert (float(total), levels.tolist()) == (0, [0, 0])
    assert (grad == 0).all()


def test_the_gradient_across_is_the_one_finite_differences_give():
    ancestry = torch.tensor([[0, 0], [0, 1], [0, 1], [1, 2], [1, 3], [2, 4]])
    z = unit(0, 6, 4).requires_grad_()
    assert torch.autograd.gradcheck(lambda z: hidisc_loss(z, ancestry, [1, 0.5], [0.5, 0.1], across=[1, None])[0], z)


def test_one_temperature_for_all_levels_is_the_same_number_for_each():
    z, ancestry = unit(0, 12), regular(2, 2, 3)
    one, each = (with_grad(hidisc_loss, z, ancestry, [1, 2], tau) for tau in (0.3, [0.3, 0.3]))
    assert all(torch.equal(a, b) for a, b in zip(one, each, strict=True))
    mixed = hidisc_loss(z, ancestry, [1, 1], [0.3, 0.7])[1]
    assert mixed.tolist() == [float(hidisc_loss(z, ancestry, [1, 1], t)[1][n]) for n, t in enumerate((0.3, 0.7))]


def test_temperatures_by_the_names_of_levels():
    levels = ("patient", "slide", "patch")
    assert level_temperatures(0.1, levels) == (0.1, 0.1, 0.1)
    assert level_temperatures({"patient": 0.5, "patch": 0.1}, levels) == (0.5, 0.7, 0.1)
    with pytest.raises(UserError) as caught:
        level_temperatures({"site": 0.5}, levels)
    assert str(caught.value) == (
        "objective.temperature = {'site': 0.5}: the levels of this run are patient, slide, patch. Name these, or give "
        "one number."
    )
    with pytest.raises(UserError, match=r"^3 temperatures for 1 level\. Give one number, or one per level\.$"):
        hidisc_loss(unit(0, 4), torch.zeros(4, 1, dtype=torch.long), [1], [0.1, 0.2, 0.3])


@given(trees(), seeds, temperatures, st.randoms(use_true_random=False))
@settings(max_examples=60)
def test_neither_the_order_of_rows_nor_the_names_of_ancestors_matter(tree, seed, temperature, random):
    ancestry, weights = tree
    z = unit(seed, len(ancestry))
    total, levels, grad = with_grad(hidisc_loss, z, ancestry, weights, temperature)
    order = torch.tensor(random.sample(range(len(z)), len(z)))
    new_ids = torch.tensor(random.sample(range(-1000, 10**12), int(ancestry.max()) + 1))
    again, levels_again, grad_again = with_grad(hidisc_loss, z[order], new_ids[ancestry][order], weights, temperature)
    torch.testing.assert_close(again, total, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(levels_again, levels, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(grad_again, grad[order], rtol=1e-10, atol=1e-10)


@given(trees(), seeds, temperatures)
@settings(max_examples=40)
def test_ranks_add_up_to_one_batch(tree, seed, temperature):
    ancestry, weights = tree
    if len(ancestry) % 2:
        ancestry = torch.cat([ancestry, ancestry[:1]])
    z, half = unit(seed, len(ancestry)), len(ancestry) // 2
    for reduction in ("mean", "sum"):
        total, levels, grad = with_grad(hidisc_loss, z, ancestry, weights, temperature, reduction=reduction)

        def by_two_ranks(z, reduction=reduction):
            parts = [
                hidisc_loss(
                    z[mine],
                    ancestry[mine],
                    weights,
                    temperature,
                    reduction=reduction,
                    keys=(z, ancestry, mine.start),
                )
                for mine in (slice(0, half), slice(half, 2 * half))
            ]
            return sum(part[0] for part in parts) / 2, sum(part[1] for part in parts) / 2

        ranks_total, ranks_levels, ranks_grad = with_grad(by_two_ranks, z)
        torch.testing.assert_close(ranks_total, total, rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(ranks_levels, levels, rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(ranks_grad, grad, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_equals_pytorch_metric_learning_level_by_level(temperature):
    raw = torch.randn(40, 16, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    ancestry = torch.stack([torch.arange(40) // 7, torch.arange(40) // 3, torch.arange(40) // 2 % 17], dim=1)
    theirs = SupConLoss(temperature)
    _, levels, grad = with_grad(lambda w: hidisc_loss(F.normalize(w), ancestry, [1, 1, 1], temperature), raw)
    for level in range(3):
        assert float(levels[level]) == pytest.approx(float(theirs(raw, ancestry[:, level])), abs=1e-9)
    _, _, their_grad = with_grad(lambda w: (sum(theirs(w, ids) for ids in ancestry.T), levels), raw)
    torch.testing.assert_close(grad, their_grad, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_one_level_of_two_views_is_lightly_s_ntxent(temperature):
    raw = torch.randn(24, 16, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    ancestry, theirs = torch.arange(24)[:, None] // 2, NTXentLoss(temperature)
    total, levels, grad = with_grad(lambda w: hidisc_loss(F.normalize(w), ancestry, [1], temperature), raw)
    their_total, _, their_grad = with_grad(lambda w: (theirs(w[::2], w[1::2]), levels), raw)
    torch.testing.assert_close(total, their_total, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(grad, their_grad, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_the_gradient_is_the_one_finite_differences_give(temperature):
    ancestry = torch.tensor([[0, 0], [0, 1], [0, 1], [1, 2], [1, 2], [2, 3]])
    z = unit(0, 6, 4).requires_grad_()
    assert torch.autograd.gradcheck(lambda z: hidisc_loss(z, ancestry, [1, 0.5], temperature)[0], z)
    keys = unit(1, 6, 4).requires_grad_()  # anchors and keys apart, as across ranks
    assert torch.autograd.gradcheck(
        lambda z, keys: hidisc_loss(z, ancestry[2:4], [1, 0.5], temperature, keys=(keys, ancestry, 2))[0],
        (unit(2, 2, 4).requires_grad_(), keys),
    )


@pytest.mark.parametrize("block", [1, 30, 31, 100, 899, 900])
def test_the_size_of_the_blocks_does_not_matter(block, monkeypatch):
    z, ancestry = unit(0, 30), regular(3, 2, 2, 3)[:30]
    whole = with_grad(hidisc_loss, z, ancestry, [1, 2, 0.5], 0.07)
    monkeypatch.setattr(module, "_BLOCK", block)
    for value, expected in zip(with_grad(hidisc_loss, z, ancestry, [1, 2, 0.5], 0.07), whole, strict=True):
        torch.testing.assert_close(value, expected, rtol=1e-10, atol=1e-10)


def test_a_block_holds_no_more_similarities_than_it_may(monkeypatch):
    monkeypatch.setattr(module, "_BLOCK", 100)
    blocks = module._blocks(33, 30)
    assert [(rows.start, rows.stop) for rows in blocks] == [(start, start + 3) for start in range(0, 33, 3)]
    assert len(module._blocks(5, 1000)) == 5


def test_a_repeated_slide_is_a_positive_not_a_negative():
    z = unit(0, 8)
    twice = torch.tensor([[0, 0, 0], [0, 0, 0], [0, 0, 1], [0, 0, 1], [1, 1, 2], [1, 1, 2], [1, 1, 3], [1, 1, 3]])
    as_if_two = twice.clone()
    as_if_two[:, 1] = torch.arange(8) // 2  # what positions would say
    ours, wrong = (hidisc_loss(z, ids, [0, 1, 0], 0.7)[1][1] for ids in (twice, as_if_two))
    assert float(ours) == pytest.approx(float(oracles.hidisc(z, twice, [0, 1, 0], 0.7)[1][1]), abs=1e-9)
    assert float(ours) != pytest.approx(float(wrong), abs=1e-3)


def test_anchors_without_positives_take_no_part_but_remain_negatives():
    z, ancestry = unit(0, 5), torch.tensor([[0], [0], [1], [2], [3]])
    total, _, grad = with_grad(hidisc_loss, z, ancestry, [1], 0.7)
    pair = [torch.logsumexp(z[i] @ z[[a for a in range(5) if a != i]].T / 0.7, 0) - z[0] @ z[1] / 0.7 for i in (0, 1)]
    assert float(total) == pytest.approx(float(sum(pair)) / 2, abs=1e-12)
    assert (grad.norm(dim=1) > 0).all()


@pytest.mark.parametrize("rows", [0, 1, 2, 5])
def test_a_batch_without_any_positives_is_0_and_moves_nothing(rows):
    ancestry = torch.arange(rows)[:, None].repeat(1, 2)
    total, levels, grad = with_grad(hidisc_loss, unit(0, rows), ancestry, [1, 1], 0.7)
    assert (float(total), levels.tolist()) == (0, [0, 0])
    assert (grad == 0).all()


def test_a_lone_level_without_positives_leaves_the_others_alone():
    z, ancestry = unit(0, 6), torch.stack([torch.zeros(6, dtype=torch.long), torch.arange(6)], dim=1)
    total, levels, grad = with_grad(hidisc_loss, z, ancestry, [1, 1], 0.7)
    alone, _, alone_grad = with_grad(hidisc_loss, z, ancestry[:, :1], [1], 0.7)
    assert levels.tolist() == [float(alone), 0]
    torch.testing.assert_close(grad, alone_grad)
    assert float(total) == float(alone)


def test_all_rows_of_one_patient_is_the_uniform_limit():
    same = unit(0, 1).repeat(9, 1)
    total, _ = hidisc_loss(same, torch.zeros(9, 1, dtype=torch.long), [1], 0.07)
    assert float(total) == pytest.approx(float(torch.tensor(8.0).log()), abs=1e-6)


def test_the_sum_is_the_mean_times_the_anchors_of_each_level():
    z, ancestry = unit(0, 7), torch.tensor([[0, 0], [0, 1], [0, 1], [1, 2], [1, 2], [1, 2], [2, 3]])
    _, mean = hidisc_loss(z, ancestry, [1, 1])
    total, summed = hidisc_loss(z, ancestry, [1, 2], reduction="sum")
    torch.testing.assert_close(summed, mean * torch.tensor([6.0, 5.0], dtype=torch.float64))
    assert float(total) == pytest.approx(float(summed[0] + 2 * summed[1]))


def test_a_level_of_weight_0_is_neither_computed_nor_reported():
    z, ancestry = unit(0, 12), regular(2, 2, 3)
    total, levels, grad = with_grad(hidisc_loss, z, ancestry, [0, 2], 0.7)
    fine, _, fine_grad = with_grad(hidisc_loss, z, ancestry[:, 1:], [2], 0.7)
    assert float(total) == float(fine)
    assert levels.tolist() == [0, float(fine) / 2]
    torch.testing.assert_close(grad, fine_grad, rtol=0, atol=0)


def test_the_default_temperature_is_the_paper_s():
    z, ancestry = unit(0, 12), regular(2, 2, 3)
    assert float(hidisc_loss(z, ancestry, [1, 1])[0]) == float(hidisc_loss(z, ancestry, [1, 1], 0.7)[0])


@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.bfloat16, 0.02), (torch.float16, 0.002)])
def test_half_precision_inputs_are_computed_in_float32(dtype, tolerance, temperature):
    z, ancestry = unit(0, 64, 32, torch.float32), regular(4, 2, 4, 2)
    expected, _, expected_grad = with_grad(hidisc_loss, z, ancestry, [1, 1, 1], temperature)
    total, levels, grad = with_grad(hidisc_loss, z.to(dtype), ancestry, [1, 1, 1], temperature)
    assert total.dtype == levels.dtype == torch.float32
    assert grad.dtype == dtype
    assert float(total) == pytest.approx(float(expected), rel=tolerance)
    assert float((grad.float() - expected_grad).norm()) < 4 * tolerance * float(expected_grad.norm())
    rounded = hidisc_loss(z.to(dtype).float(), ancestry, [1, 1, 1], temperature)[0]
    assert float(total) == pytest.approx(float(rounded), rel=1e-6)  # nothing is lost but the inputs' own digits


@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_mixed_precision_does_not_reach_the_loss(temperature):
    z, ancestry = unit(0, 64, 32, torch.float32), regular(4, 2, 4, 2)
    expected = with_grad(hidisc_loss, z, ancestry, [1, 1, 1], temperature)
    with torch.autocast("cpu", dtype=torch.float16):
        mixed = with_grad(hidisc_loss, z, ancestry, [1, 1, 1], temperature)
    for value, plain in zip(mixed, expected, strict=True):
        torch.testing.assert_close(value, plain, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_a_very_low_temperature_neither_overflows_nor_underflows(dtype):
    z, ancestry = unit(0, 32, 16, dtype), regular(4, 2, 2, 2)
    z[0] = z[1]  # a similarity of 1 is a logit of 100
    z[3] = -z[2]
    total, levels, grad = with_grad(hidisc_loss, z, ancestry, [1, 1, 1], 0.01)
    assert torch.isfinite(total)
    assert torch.isfinite(levels).all()
    assert torch.isfinite(grad).all()
    slow, _ = oracles.hidisc(z.double(), ancestry, [1, 1, 1], 0.01)
    assert float(total) == pytest.approx(float(slow), rel=1e-4)


def test_the_input_and_the_ids_are_not_changed():
    z, ancestry = unit(0, 16), regular(2, 2, 2, 2)
    kept = z.clone(), ancestry.clone()
    with_grad(hidisc_loss, z, ancestry, [1, 1, 1], 0.07)
    assert torch.equal(z, kept[0])
    assert torch.equal(ancestry, kept[1])


def test_a_second_backward_pass_gives_the_same_again():
    z, ancestry = unit(0, 16).requires_grad_(), regular(2, 2, 2, 2)
    total, _ = hidisc_loss(z, ancestry, [1, 1, 1], 0.07)
    (first,) = torch.autograd.grad(total, z, retain_graph=True)
    (second,) = torch.autograd.grad(total, z)
    assert torch.equal(first, second)


def test_the_layout_in_memory_does_not_matter():
    z, ancestry = unit(0, 16), regular(2, 2, 2, 2)
    plain = with_grad(hidisc_loss, z, ancestry, [1, 1, 1], 0.07)
    by_columns = with_grad(lambda z: hidisc_loss(z.T.contiguous().T, ancestry, [1, 1, 1], 0.07), z)
    every_other = with_grad(lambda z: hidisc_loss(z.repeat_interleave(2, 0)[::2], ancestry, [1, 1, 1], 0.07), z)
    for value, columns, rows in zip(plain, by_columns, every_other, strict=True):
        torch.testing.assert_close(columns, value, rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(rows, value, rtol=1e-10, atol=1e-10)


Z, IDS = unit(0, 4), torch.tensor([[0, 0], [0, 0], [1, 1], [1, 1]])


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((Z[0], IDS, [1, 1]), r"z is torch\.float64 of shape \(8,\)\. Give \(N, D\) floating-point unit vectors\."),
        ((Z.long(), IDS, [1, 1]), r"z is torch\.int64 of shape \(4, 8\)\. Give \(N, D\) floating-point unit vectors\."),
        (
            (Z, IDS[:3], [1, 1]),
            r"ancestry is torch\.int64 of shape \(3, 2\) for z of shape \(4, 8\)\. Give integer ids \(N, levels\), "
            r"from coarse to fine\.",
        ),
        ((Z, IDS[:, 0], [1, 1]), r"ancestry is torch\.int64 of shape \(4,\) for z"),
        ((Z, IDS.double(), [1, 1]), r"ancestry is torch\.float64 of shape \(4, 2\) for z"),
        ((Z, IDS, [1, 1, 1]), r"3 weights for 2 levels\. Give one weight per level\."),
        ((Z, IDS[:, :0], []), r"0 weights for 0 levels\. Give one weight per level\."),
        ((Z, IDS, [1]), r"1 weight for 2 levels\. Give one weight per level\."),
        ((Z, IDS, [1, 1], 0.0), r"temperature is 0\.0\. Give a number above 0, such as 0\.7\."),
        ((Z, IDS, [1, 1], -0.7), r"temperature is -0\.7\. Give a number above 0, such as 0\.7\."),
    ],
)
def test_what_does_not_fit_together_is_refused_with_the_reason(arguments, sentence):
    with pytest.raises(UserError, match=f"^{sentence}"):
        hidisc_loss(*arguments)

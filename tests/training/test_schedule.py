"""The learning rate rises over the first tenth of the steps and then falls to 0 along half a cosine."""

import math

import pytest
import torch
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, SequentialLR

from hidisc.settings.train import OptimConfig
from hidisc.training.step import learning_rate


def rates(steps: int, **settings: float) -> list[float]:
    config = OptimConfig(steps=steps, **settings)
    return [learning_rate(step, config) for step in range(steps)]


@pytest.mark.parametrize(("steps", "warmup"), [(100, 0.1), (37, 0.3), (1000, 0.002), (50, 0.9)])
def test_it_is_what_torch_schedules(steps: int, warmup: float) -> None:
    warm = int(steps * warmup)
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1e-3)
    rise = LinearLR(optimizer, start_factor=1 / warm, total_iters=warm - 1)
    fall = CosineAnnealingLR(optimizer, T_max=steps - warm)
    schedule = SequentialLR(optimizer, [rise, fall], milestones=[warm])
    expected = []
    for _ in range(steps):
        expected.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    assert rates(steps, warmup=warmup) == pytest.approx(expected, rel=1e-9)


def test_the_paper_s_run_by_hand() -> None:
    found = rates(100_000)
    assert found[0] == pytest.approx(1e-3 / 10_000)
    assert found[4_999] == pytest.approx(0.5e-3)
    assert max(found) == found[9_999] == found[10_000] == 1e-3
    assert found[55_000] == pytest.approx(0.5e-3)
    assert found[32_500] == pytest.approx(0.5e-3 * (1 + math.sqrt(0.5)))
    assert 0 < found[-1] < 1e-11


def test_one_step_is_a_whole_one() -> None:
    assert rates(1) == [1e-3]
    assert rates(1, warmup=1) == [1e-3]


def test_without_warm_up_it_begins_at_the_top() -> None:
    assert rates(4, warmup=0, learning_rate=2) == pytest.approx([2, 1 + math.sqrt(0.5), 1, 1 - math.sqrt(0.5)])


def test_nothing_but_warm_up() -> None:
    assert rates(4, warmup=1, learning_rate=2) == [0.5, 1.0, 1.5, 2.0]


def test_a_warm_up_of_less_than_a_step_is_none() -> None:
    assert rates(9) == rates(9, warmup=0)

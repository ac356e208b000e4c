"""Threads of an evaluation: never more than the cores, one for BLAS, and as before afterwards."""

import numpy as np
import pytest
import torch
from threadpoolctl import threadpool_info

from hidisc.evaluation import neighbours
from hidisc.evaluation.neighbours import use_threads


def count_blas() -> set[int]:
    np.ones((2, 2)) @ np.ones((2, 2))
    return {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"}


def test_threads_are_bounded_and_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbours, "count_cores", lambda: 3)
    before, before_blas = torch.get_num_threads(), count_blas()
    torch.set_num_threads(8)
    try:
        with use_threads():
            assert torch.get_num_threads() == 3
            assert count_blas() == {1}
            with use_threads(1):
                assert torch.get_num_threads() == 1
            assert torch.get_num_threads() == 3
        assert torch.get_num_threads() == 8
        with pytest.raises(ZeroDivisionError), use_threads():
            _ = 1 / 0
        assert torch.get_num_threads() == 8
        torch.set_num_threads(2)
        with use_threads():  # what the user asks for is not raised
            assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert count_blas() == before_blas

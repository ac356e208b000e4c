"""The store that the tests of training share, and one thread for each of them."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.training.stores import make_store


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny store; not to be changed."""
    return make_store(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="package", autouse=True)
def _one_thread() -> Iterator[None]:
    """Networks this small are slower on two, several times so when another job has the second core."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)

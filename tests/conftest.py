"""What several test files share."""

import random
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings

from tests.commands import Forks

# how long an example takes is no property, and every machine sees the same examples
settings.register_profile("same everywhere", deadline=None, derandomize=True)
settings.load_profile("same everywhere")

SHARED = Path(__file__).parents[2] / "shared"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the files with whole commands first: a long one that came last would keep one core waiting."""
    whole = {item.path for item in items if item.get_closest_marker("whole")}
    items.sort(key=lambda item: item.path not in whole)


@pytest.hookimpl(tryfirst=True)
def pytest_fixture_setup() -> None:
    """Begin every fixture with the same random numbers, whichever test asks for it first."""
    seed_all()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call() -> None:
    """Begin every test with the same random numbers."""
    seed_all()


def seed_all() -> None:
    """Seed the global generators, for tests that do not mind which numbers they get."""
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002 - the global state is what is seeded
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)


@pytest.fixture(scope="session")
def forks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forks]:
    """Where commands are run."""
    forks = Forks(tmp_path_factory.mktemp("forks"))
    yield forks
    forks.close()


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real slides; it is on our machines only, so tests that need it are skipped elsewhere."""
    data = SHARED / "data"
    if not data.is_dir():
        pytest.skip(f"needs the real slides in {data}")
    return data


@pytest.fixture
def write_cohort(tmp_path: Path) -> Callable[..., Path]:
    """A function that writes `cohort.csv` from lines of text, and a small file of its own content a given name."""

    def write(lines: Iterable[str] | str, files: Iterable[str] = ()) -> Path:
        for name in files:
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(f"pixels of {name}", encoding="utf-8")
        csv = tmp_path / "cohort.csv"
        csv.write_text(lines if isinstance(lines, str) else "\n".join(lines) + "\n", encoding="utf-8")
        return csv

    return write

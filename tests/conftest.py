"""What several test files share."""

import json
import random
import sys
from collections import Counter
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


SECONDS = Path(__file__).with_name("seconds.json")
"""What groups of tests take: those that take at least a second. `pytest --record-seconds` writes it anew."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--record-seconds", action="store_true", help=f"write tests/{SECONDS.name} anew")


@pytest.hookimpl(tryfirst=True)  # before xdist, which makes the group a part of a test's name
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Make every file a group, unless its tests are in groups of their own, and put the longest group first.

    A worker of xdist runs whole groups, so that what a file makes is made once; a long group that came last would keep
    one core waiting. A group that has no entry is taken for a short one.
    """
    for item in items:
        if item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(str(item.path.relative_to(SECONDS.parent).with_suffix(""))))
    seconds = json.loads(SECONDS.read_text()) if SECONDS.is_file() else {}
    items.sort(key=lambda item: -seconds.get(group_of(item), 0.0))


def group_of(item: pytest.Item) -> str:
    """The group of a test, which one worker of xdist runs."""
    mark = item.get_closest_marker("xdist_group")
    return str(mark.args[0]) if mark else ""


def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> None:
    """Note what each phase of a test takes, where the process that writes the times will find it."""
    item.user_properties.append(("group and seconds", (group_of(item), call.duration)))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Write what every group took, when that is asked for."""
    if not config.getoption("--record-seconds"):
        return
    seconds: Counter[str] = Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if getattr(report, "when", "") == "teardown":
                for name, (group, taken) in report.user_properties:
                    seconds[group] += taken if name == "group and seconds" else 0.0
    rounded = {group: round(taken) for group, taken in sorted(seconds.items()) if taken >= 1}
    SECONDS.write_text(json.dumps(rounded, indent=1) + "\n")


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

"""One task per slide: here, on processes of this machine, or on those of a scheduler; a dead worker loses nothing."""

import gc
import os
import platform
import resource
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import dask
import pytest

from hidisc.ground import tasks as cluster
from hidisc.ground.errors import UserError
from hidisc.ground.progress import Watch
from hidisc.ground.tasks import run_tasks

TASKS = list(range(8))


def square(task: int, report: Watch) -> int:
    """The square of the task, in three steps; three is unlucky."""
    for _ in range(3):
        report(task)
    if task == 3:
        raise ValueError("three")
    return task * task


def outcomes(workers: int) -> dict[int, int | str]:
    """Result or error of every task."""
    found: dict[int, int | str] = {}
    for outcome in run_tasks(square, TASKS, workers=workers):
        assert outcome.task not in found
        found[outcome.task] = repr(outcome.error) if outcome.error else outcome.result
    return found


def test_an_error_ends_its_own_task_only() -> None:
    assert outcomes(workers=0) == {task: task * task for task in TASKS} | {3: "ValueError('three')"}


@pytest.mark.whole
def test_worker_processes_come_to_the_same() -> None:
    assert outcomes(workers=2) == outcomes(workers=0)


def count_faults(megabytes: int, report: Watch) -> int:
    """How many pages the kernel gives for twelve blocks that are freed one after the other."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(12):
        b"x" * (megabytes * 1_000_000)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


@pytest.mark.whole
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library than glibc keeps memory as it likes")
def test_worker_processes_keep_the_memory_they_free() -> None:
    """Dask sets MALLOC_TRIM_THRESHOLD_=65536 for its workers, with which each block would be given anew."""
    (outcome,) = run_tasks(count_faults, [5], workers=1)
    assert outcome.result is not None
    assert outcome.result < 2.5 * 5_000_000 / os.sysconf("SC_PAGE_SIZE")


def test_progress_arrives() -> None:
    reported: list[int] = []
    for _ in run_tasks(square, TASKS, workers=0, progress=reported.append):
        pass
    assert reported == [task for task in TASKS for _ in range(3)]


def slow(task: int, report: Watch) -> int:
    """Watch for longer than a worker keeps its reports back; the process it ran in."""
    for _ in range(3):
        time.sleep(0.6)
        report(task)
    return os.getpid()


@pytest.mark.whole
def test_progress_arrives_from_worker_processes() -> None:
    reported: list[int] = []
    processes = {outcome.result for outcome in run_tasks(slow, [1, 10], workers=2, progress=reported.append)}
    assert os.getpid() not in processes
    assert len(processes) == 2
    assert sum(reported) == 33
    assert len(reported) > 2  # on the way, not only at the end


def die_once(mark: Path, report: Watch) -> str:
    """Kill the worker the first time it is tried."""
    if not mark.exists():
        mark.write_text(str(os.getpid()))
        os.kill(os.getpid(), signal.SIGKILL)
    return mark.name


@pytest.mark.whole
def test_a_task_whose_worker_died_is_done_by_another(tmp_path: Path) -> None:
    marks = [tmp_path / f"{number}" for number in range(5)]
    for mark in marks[1:]:
        mark.write_text("")
    found = {outcome.task: outcome.result for outcome in run_tasks(die_once, marks, workers=2)}
    assert found == {mark: mark.name for mark in marks}
    assert marks[0].read_text() != ""  # it did die


def die_always(task: Path, report: Watch) -> str:
    """Kill the worker at every try of task 2; task 0 keeps the other one busy until then, so that the rest share it."""
    deaths = task.with_name("deaths")
    if task.name == "2":
        with deaths.open("a") as file:
            file.write("x")
        os.kill(os.getpid(), signal.SIGKILL)
    while task.name == "0" and not (deaths.exists() and len(deaths.read_text()) >= DEATHS):
        time.sleep(0.02)
    return task.name


DEATHS = 2
"""Workers that a task may kill before Dask gives it up, here."""


@pytest.mark.whole
def test_a_task_that_kills_every_worker_fails_alone(tmp_path: Path) -> None:
    tasks = [tmp_path / name for name in ("0", "2", "3", "4")]
    with dask.config.set({"distributed.scheduler.allowed-failures": DEATHS - 1}):
        found = {found.task.name: found for found in run_tasks(die_always, tasks, workers=2, hint="Leave it.")}
    assert {task: outcome.result for task, outcome in found.items()} == {"0": "0", "2": None, "3": "3", "4": "4"}
    assert (tmp_path / "deaths").read_text() == "x" * 2 * DEATHS, "among others, then alone"
    assert str(found["2"].error) == (
        "its worker process was killed several times while working on it, at last on it alone (out of memory, or a "
        "crash inside a library). Leave it."
    )


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Give up on a scheduler quickly.

    Dask deadlocks for ten seconds when a client that failed to connect is collected while another starts.
    """
    monkeypatch.setattr(cluster, "PATIENCE_S", 0.5)
    yield
    gc.collect()


def closed_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@pytest.mark.usefixtures("impatient")
def test_no_scheduler_answers() -> None:
    address = f"tcp://127.0.0.1:{closed_port()}"
    with pytest.raises(UserError) as caught:
        list(run_tasks(square, TASKS, workers=2, scheduler=address))
    assert str(caught.value) == (
        f"no Dask scheduler answers at '{address}'. Start one with `dask scheduler` and workers with "
        "`dask worker ADDRESS --nthreads 1`, or leave --scheduler out."
    )


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("address", ["nonsense://x", "tcp://127.0.0.1:port", ""])
def test_an_address_that_is_none(address: str) -> None:
    with pytest.raises(UserError, match=r"^no Dask scheduler answers at "):
        list(run_tasks(square, TASKS, workers=2, scheduler=address))

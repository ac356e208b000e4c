"""`kill -9` at any moment, workers that die, two commands at once: nothing is lost and the store is the same."""

import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hidisc.patches.record import RECORD
from hidisc.patches.store import STORE, PatchStore
from hidisc.slides.synthetic import draw_cohort
from hidisc.verbs.prepare import prepare
from tests.verbs.test_prepare import config, contents, rows_of

pytestmark = [pytest.mark.whole, pytest.mark.alone]
SETTINGS = ("grid.size_px=16", "tissue.skip_glass=false", "filter.min_pixel_std=0")


@pytest.fixture(scope="module")
def cohort(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draw_cohort(tmp_path_factory.mktemp("drawn"), patients=8, slides=3, fields=9, seed=5)


@pytest.fixture(scope="module")
def uninterrupted(cohort: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    out = tmp_path_factory.mktemp("whole") / "store"
    prepare(cohort, out, config(*SETTINGS), workers=0)
    return contents(out)


def command(cohort: Path, out: Path, *more: str) -> list[str]:
    settings = [word for setting in SETTINGS for word in ("--set", setting)]
    return [sys.executable, "-m", "hidisc", "prepare", str(cohort), "--out", str(out), *settings, *more]


def finished_slides(out: Path) -> int:
    return len(list(out.glob(f"shards/[!.]*/{RECORD}")))


def kill_when(process: subprocess.Popen[str], due: Callable[[], bool]) -> None:
    """End a process and all its children with `kill -9` as soon as something holds."""
    while process.poll() is None and not due():
        time.sleep(0.002)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@pytest.mark.parametrize("workers", ["0", "2"])
def test_kill_at_any_moment_then_the_same_command(
    cohort: Path, uninterrupted: dict[str, bytes], tmp_path: Path, workers: str
) -> None:
    out = tmp_path / "store"
    rng = random.Random(int(workers))
    finished, kills = 0, 0
    while kills < 5 and finished < 24:
        process = subprocess.Popen(
            command(cohort, out, "--workers", workers), stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        target = finished + rng.randint(1, 5)
        pause = rng.random() * 0.05
        kill_when(process, lambda target=target: finished_slides(out) >= target)
        time.sleep(pause)
        kills += 1
        finished = finished_slides(out)
        assert finished == 24 or not (out / STORE).exists()
    assert kills >= 3
    done = subprocess.run(
        command(cohort, out, "--workers", workers, "--json"), capture_output=True, text=True, check=True
    )
    assert f"{finished} of 24 slides are in" in done.stderr or f"all {finished} slides are in" in done.stderr
    assert contents(out) == uninterrupted


def test_kill_while_the_tables_are_written(cohort: Path, uninterrupted: dict[str, bytes], tmp_path: Path) -> None:
    out = tmp_path / "store"
    for moment in ("patches.parquet", "failures.csv", STORE, "pictures"):
        process = subprocess.Popen(
            command(cohort, out, "--workers", "0"), stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        kill_when(process, lambda moment=moment: (out / moment).exists())
    subprocess.run(command(cohort, out, "--workers", "0"), check=True)
    assert contents(out) == uninterrupted


def test_two_commands_at_once_do_not_share_a_folder(cohort: Path, tmp_path: Path) -> None:
    out = tmp_path / "store"
    first = subprocess.Popen(command(cohort, out, "--workers", "0"), stderr=subprocess.PIPE, text=True)
    while not (out / "config.yaml").exists():
        time.sleep(0.01)
    second = subprocess.run(command(cohort, out, "--workers", "0"), capture_output=True, text=True, check=False)
    first.communicate()
    assert (first.returncode, second.returncode) == (0, 2)
    assert f"another hidisc is writing to {out}. Wait for it" in second.stderr


def test_control_c_stops_cleanly_and_the_same_command_goes_on(
    cohort: Path, uninterrupted: dict[str, bytes], tmp_path: Path
) -> None:
    for attempt in range(5):  # a machine that is slow to send the signal finds the work done
        out = tmp_path / f"store{attempt}"
        process = subprocess.Popen(
            command(cohort, out, "--workers", "2"), stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        while finished_slides(out) < 1:
            time.sleep(0.005)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to everyone in the foreground
        _, said = process.communicate(timeout=60)
        if process.returncode != 0:
            break
    assert process.returncode == 130
    assert "stopped. What is finished is safe: run the same command to go on." in said
    assert "Traceback" not in said
    subprocess.run(command(cohort, out, "--workers", "0"), check=True, capture_output=True)
    assert contents(out) == uninterrupted


@contextmanager
def dask(*arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """A real Dask process on loopback that ends with the block."""
    process = subprocess.Popen(
        [sys.executable, "-m", "distributed.cli." + arguments[0], *arguments[1:]],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def test_a_real_scheduler_loses_a_worker_and_nothing_else(
    cohort: Path, uninterrupted: dict[str, bytes], tmp_path: Path
) -> None:
    out, port = tmp_path / "store", free_port()
    address = f"tcp://127.0.0.1:{port}"
    scheduler_words = ["dask_scheduler", "--host", "127.0.0.1", "--port", str(port), "--no-dashboard"]
    worker_words = ["dask_worker", address, "--nthreads", "1", "--host", "127.0.0.1", "--no-dashboard", "--no-nanny"]
    scratch = ["--local-directory", str(tmp_path)]
    with (
        dask(*scheduler_words),
        dask(*worker_words, *scratch) as victim,
        dask(*worker_words, *scratch),
    ):
        process = subprocess.Popen(
            command(cohort, out, "--scheduler", address), stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        while finished_slides(out) < 6 and process.poll() is None:
            time.sleep(0.005)
        os.killpg(victim.pid, signal.SIGKILL)
        at_kill = finished_slides(out)
        _, said = process.communicate(timeout=120)
    assert process.returncode == 0, said
    assert at_kill < 24, "the worker was to die half-way"
    assert contents(out) == uninterrupted


def test_a_store_on_disk_reads_in_a_fresh_process(cohort: Path, tmp_path: Path) -> None:
    out = tmp_path / "store"
    subprocess.run(command(cohort, out), check=True, capture_output=True)
    assert len(PatchStore.load(out).info.slides) == len(rows_of(cohort))

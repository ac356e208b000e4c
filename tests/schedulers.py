"""A real Dask scheduler and its workers, on loopback."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from distributed.cli import dask_scheduler, dask_worker

from tests.commands import Forks, Running


@contextmanager
def start_scheduler(forks: Forks, folder: Path) -> Iterator[str]:
    """The address of a scheduler that ends with the block, and its workers with it."""
    file = folder / "scheduler.json"
    words = ["--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--scheduler-file", str(file)]
    process = forks.start(*words, script=Path(dask_scheduler.__file__))
    end = time.monotonic() + 60
    try:
        while (address := _read_address(file)) is None:
            assert time.monotonic() < end, "the scheduler does not start"
            time.sleep(0.02)
        yield address
    finally:
        process.kill()


def _read_address(file: Path) -> str | None:
    """The address that a scheduler writes; None before the file is whole."""
    try:
        return str(json.loads(file.read_text())["address"])
    except (FileNotFoundError, json.JSONDecodeError):
        return None


def start_worker(forks: Forks, address: str, folder: Path, at: str = "") -> Running:
    """A worker process of one thread, which ends with its scheduler; `at`: what `signal_at` gives."""
    words = [address, "--nthreads", "1", "--host", "127.0.0.1", "--no-dashboard", "--no-nanny", "--death-timeout", "10"]
    return forks.start(*words, "--local-directory", str(folder), script=Path(dask_worker.__file__), at=at)

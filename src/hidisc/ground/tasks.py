"""Work done ahead by threads, and tasks on Dask: a local cluster, a running scheduler by address, or this process.

Threads, not processes, read ahead: decoding releases Python's lock and nothing is copied between processes, so threads
read a third more per second (`bench/reading.py`), and there is nothing to start or to leave behind.
"""

import logging
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing import resource_tracker
from typing import Any, Generic, TypeVar

from hidisc.ground.errors import UserError
from hidisc.ground.machine import count_cores, keep_freed_memory
from hidisc.ground.progress import Watch, ignore
from hidisc.ground.stop import reached

_Item = TypeVar("_Item")
_Made = TypeVar("_Made")


def prefetch(
    work: Callable[[_Item], _Made], items: Iterable[_Item], threads: int | None, count: int
) -> Generator[_Made, None, None]:
    """work(item) of every item in order, up to `count` + 1 begun before they are asked for; holds that many results.

    `threads` None: one per core, at most 8. Closing the generator ends the threads.
    """
    pool = ThreadPoolExecutor(threads or min(count_cores(), 8), thread_name_prefix="hidisc-read")
    waiting: deque[Future[_Made]] = deque()
    try:
        for item in items:
            waiting.append(pool.submit(work, item))
            if len(waiting) > count:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


_Task = TypeVar("_Task")
_Result = TypeVar("_Result")
PATIENCE_S = 15.0
"""How long to wait for a scheduler to answer."""
_TOPIC = "hidisc-progress"
_SILENT = logging.CRITICAL + 1
"""Dask logs a client that leaves, or a worker that dies, as critical, with a traceback: ours to say in a sentence."""


@dataclass(frozen=True)
class TaskOutcome(Generic[_Task, _Result]):
    """The result of a task, or the error that ended it."""

    task: _Task
    result: _Result | None
    error: BaseException | None


def run_tasks(
    work: Callable[[_Task, Watch], _Result],
    tasks: Sequence[_Task],
    *,
    workers: int,
    scheduler: str | None = None,
    progress: Watch = ignore,
    hint: str = "",
) -> Iterator[TaskOutcome[_Task, _Result]]:
    """Outcomes as they come; a task whose worker dies is given to another, three times, and at last tried alone.

    `work(task, report)` calls `report(n)` for progress inside a task; `progress` receives it here. `hint`: what to do
    about a task that kills its workers.
    """
    if workers == 0 and scheduler is None:
        for task in tasks:
            yield _attempt(work, task, progress)
        return
    import distributed

    with _connect(workers, scheduler) as client:
        client.subscribe_topic(_TOPIC, lambda event: progress(int(event[1])))
        futures = client.map(partial(_on_worker, work), tasks, pure=False, key=f"hidisc-{time.time_ns()}")
        task_of = dict(zip([future.key for future in futures], tasks, strict=True))
        suspects = []
        for future in distributed.as_completed(futures, loop=client.loop):
            if isinstance(future.exception(), distributed.KilledWorker):
                suspects.append(task_of[future.key])
            else:
                yield _outcome(task_of[future.key], future, hint)
            future.release()
        # Dask blames the tasks that waited at the worker as well, and one short of memory may have enough alone
        for task in suspects:
            yield _outcome(task, client.submit(partial(_on_worker, work), task, pure=False), hint)


def _outcome(task: _Task, future: Any, hint: str) -> TaskOutcome[_Task, Any]:
    import distributed

    error = future.exception()
    if isinstance(error, distributed.KilledWorker):
        error = RuntimeError(
            "its worker process was killed several times while working on it, at last on it alone (out of memory, or "
            f"a crash inside a library). {hint}".rstrip()
        )
    return TaskOutcome(task, None if error else future.result(), error)


def _attempt(work: Callable[[_Task, Watch], _Result], task: _Task, report: Watch) -> TaskOutcome[_Task, _Result]:
    try:
        return TaskOutcome(task, work(task, report), None)
    except Exception as error:  # noqa: BLE001 - as on a worker: the caller decides what an error means
        return TaskOutcome(task, None, error)


def _on_worker(work: Callable[[Any, Watch], Any], task: Any) -> Any:
    """Run a task on a worker, sending progress at most once a second."""
    import distributed

    keep_freed_memory()  # Dask has every block given back to the kernel at once
    worker = distributed.get_worker()
    sent, waiting = time.monotonic(), 0

    def report(count: int) -> None:
        nonlocal sent, waiting
        waiting += count
        if time.monotonic() - sent > 1:
            worker.log_event(_TOPIC, waiting)
            sent, waiting = time.monotonic(), 0

    result = work(task, report)
    if waiting:
        worker.log_event(_TOPIC, waiting)
    return result


@contextmanager
def _connect(workers: int, scheduler: str | None) -> Iterator[Any]:
    """A client of the given scheduler, or of a cluster of `workers` processes on this machine (loopback only)."""
    import distributed

    for part in ("", ".nanny", ".worker", ".scheduler", ".core"):
        logging.getLogger(f"distributed{part}").setLevel(_SILENT)
    if scheduler is not None:
        try:
            client = distributed.Client(scheduler, timeout=PATIENCE_S, set_as_default=False)
        except (OSError, ValueError, TimeoutError) as error:
            raise UserError(
                f"no Dask scheduler answers at {scheduler!r}. Start one with `dask scheduler` and workers with "
                "`dask worker ADDRESS --nthreads 1`, or leave --scheduler out."
            ) from error
        with client:
            yield client
        return
    with ExitStack() as opened:
        with _shielded_from_ctrl_c():
            reached("workers.starting")
            cluster = distributed.LocalCluster(
                n_workers=workers,
                threads_per_worker=1,
                host="127.0.0.1",
                dashboard_address="127.0.0.1:0",  # any free port: several runs on one machine are usual
                memory_limit=0,  # a worker's memory is bounded by how a slide is cut
                silence_logs=_SILENT,
            )
            opened.enter_context(cluster)  # a Ctrl-C that came meanwhile is heard when this block ends
        yield opened.enter_context(distributed.Client(cluster, set_as_default=False))


@contextmanager
def _shielded_from_ctrl_c() -> Iterator[None]:
    """Threads and processes started in here do not hear Ctrl-C: a terminal sends it to all, and one answer is enough.

    It is held back, not lost: this thread hears it at the end of the block.
    """
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "pthread_sigmask"):
        yield
        return
    resource_tracker.ensure_running()  # started later, it would let signals through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

"""The processes of a run on several devices; a failure of one process ends all of them."""

import gc
import json
import logging
import os
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import asdict, dataclass
from datetime import timedelta
from itertools import count
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed
import torch.distributed as dist
import torch.distributed.nn.functional  # imported later, it would own the process group for ever: see release_frames
from lightning_fabric import Fabric as Fabric  # later stages take it from here: Lightning has one door
from torch import Tensor

from hidisc.artefacts.artefact import Work
from hidisc.ground.errors import ReportedElsewhereError, UserError
from hidisc.ground.machine import keep_freed_memory
from hidisc.ground.progress import Say
from hidisc.ground.tensors import refuse_missing_device

_EVERY_S = 0.5
"""Seconds between two readings of the store."""
PATIENCE_S = 60.0
"""Seconds after which a process that does not come out of its work by itself is ended; a checkpoint takes less."""
_FAREWELL_S = 10.0
"""Seconds in which processes that end together hear of each other."""
_FAILURE, _DEPARTED = "failure", "departed"
_LOST = (
    "another process of this run was lost: it was killed, ran out of memory, or its machine went down. What has been "
    "saved is whole: run the same command to go on."
)
_numbers = count()  # the store may outlive a process group (torchrun's does), so every run has names of its own


class RankError(Exception):
    """A failure of another process of the run that the user cannot fix."""


class OthersEndedError(Exception):
    """Another process has failed, or is about to say so; `FailureWatch.report` learns its reason."""


@dataclass(frozen=True)
class ProcessFailure:
    """The reason why a process ended."""

    rank: int
    code: int
    """Its exit code."""
    reason: str

    @classmethod
    def of(cls, error: BaseException, rank: int, world: int) -> "ProcessFailure":
        """The failure that an exception stands for."""
        if isinstance(error, UserError):
            return cls(rank, 2, str(error))
        if isinstance(error, KeyboardInterrupt):
            return cls(rank, 130, "interrupted")
        if isinstance(error, SystemExit):
            return cls(rank, error.code if isinstance(error.code, int) else 1, "stopped")
        if _is_lost_connection(error):
            return cls(rank, 1, _LOST)
        return cls(rank, 1, f"rank {rank} of {world}: {type(error).__name__}: {error}")

    @property
    def line(self) -> str:
        """The line that the command line prints; empty when a signal was obeyed."""
        if self.code >= 128:
            return ""
        return f"hidisc: {self.reason}" if self.code == 2 else f"hidisc: {RankError.__name__}: {self.reason}"

    def as_error(self) -> BaseException:
        """The exception that the first process raises, so that the user reads this reason."""
        if self.code == 2:
            return UserError(self.reason)
        return SystemExit(self.code) if self.code >= 128 else RankError(self.reason)


class FailureWatch:
    """Learns of a failure of any process of the group; every process has one from its launch to its end."""

    def __init__(self, store: Any, rank: int, world: int) -> None:
        """`store` is that of the process group of `world` processes."""
        self._store = dist.PrefixStore(f"hidisc/{next(_numbers)}", store)  # type: ignore[attr-defined]
        self._rank, self._world = rank, world
        self._failure: ProcessFailure | None = None
        self._is_leaving = threading.Event()
        self._has_departed = threading.Lock()
        self._thread = threading.Thread(target=self._wait_for_failure, name="hidisc-failures", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raise if another process has failed; costs nothing."""
        if self._failure is not None:
            raise OthersEndedError(self._failure.reason)

    def report(self, error: BaseException) -> BaseException:
        """Tell the other processes why this one ends, unless another failed first; returns the exception to raise here.

        Call it before any connection is closed.
        """
        own = ProcessFailure.of(error, self._rank, self._world)
        try:
            if isinstance(error, OthersEndedError):
                self._store.wait([_FAILURE], timedelta(seconds=_FAREWELL_S))
            failure = (self._read() if _is_consequence(error) else None) or self._publish(own)
        except RuntimeError:  # the store is gone, and with it the process that keeps it
            failure = self._failure or own
            if self._failure is None:
                return RankError(_LOST) if _is_consequence(error) else error
        self._failure = failure
        if not isinstance(error, Exception):
            return error  # a signal, which all of them obey
        if self._rank:
            return ReportedElsewhereError(failure.reason, failure.code)
        if failure == own and failure.reason != _LOST:
            return error
        return error if isinstance(error, UserError) else failure.as_error()

    def depart(self) -> None:
        """Stop the thread. The first process, which may keep the store, waits until the others have left."""
        self._is_leaving.set()
        self._thread.join(_FAREWELL_S)
        try:
            self._count_as_departed()
            is_lost = self._failure is not None and self._failure.reason == _LOST
            until = time.monotonic() + (0 if is_lost else _FAREWELL_S)
            while not self._rank and self._store.add(_DEPARTED, 0) < self._world and time.monotonic() < until:
                time.sleep(0.01)
        except RuntimeError:
            pass  # the process that kept it is gone

    def _publish(self, own: ProcessFailure) -> ProcessFailure:
        """Write our failure to the store unless another is there; returns the first failure."""
        return _parse(self._store.compare_set(_FAILURE, "", json.dumps(asdict(own))))

    def _read(self) -> ProcessFailure | None:
        return _parse(self._store.get(_FAILURE)) if self._store.check([_FAILURE]) else None

    def _count_as_departed(self) -> None:
        """Count this process, once, as a process that no longer needs the store."""
        if self._has_departed.acquire(blocking=False):
            self._store.add(_DEPARTED, 1)

    def _wait_for_failure(self) -> None:
        """Read the store until a process fails or this one leaves; after a failure, end this process if it hangs."""
        try:
            while (failure := self._read()) is None:
                if self._is_leaving.wait(_EVERY_S):
                    return
            self._failure = failure
            self._count_as_departed()
        except RuntimeError:
            return  # what the process itself meets will be said
        patience = PATIENCE_S * (2 if self._rank else 1)  # the first one is to say it before others end
        if not self._is_leaving.wait(patience):
            if self._rank == 0 and failure.line:
                print(failure.line, file=sys.stderr, flush=True)  # noqa: T201 - the command line can say it no more
            os._exit(failure.code)


def _parse(text: bytes) -> ProcessFailure:
    return ProcessFailure(**json.loads(text))


def _is_lost_connection(error: BaseException) -> bool:
    """Whether a collective failed because another process is gone."""
    return isinstance(error, RuntimeError) and ("gloo" in str(error) or isinstance(error, dist.DistError))


def _is_consequence(error: BaseException) -> bool:
    """Whether an error only follows from another process's."""
    return isinstance(error, OthersEndedError) or _is_lost_connection(error)


def release_frames(error: BaseException | None) -> None:
    """Clear the local variables of the code that failed, so that the process group has no owner but torch.

    Its connections close with its last owner, and only a closed connection ends the others' waiting. A model wrapped
    for several devices is such an owner; it lives in the local variables of the frames that the exception keeps.
    """
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__
    gc.collect()


_failure_watches: WeakKeyDictionary[Fabric, FailureWatch] = WeakKeyDictionary()
_PRECISION = {"32": "32-true", "bf16": "bf16-mixed", "16": "16-mixed"}


@contextmanager
def start(precision: str, device: str, devices: str | int, nodes: int) -> Iterator[Fabric]:
    """Begin this process, or one process per device; Lightning recognises torchrun and SLURM.

    A failure of one process ends all of them: the first rank raises the reason, the others raise
    `ReportedElsewhereError`.
    """
    logging.getLogger("lightning_fabric").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning_fabric")  # its advice is about loaders we do not use
    refuse_missing_device(device)
    try:
        fabric = Fabric(
            accelerator=device,
            devices=int(devices) if str(devices).isdigit() else devices,
            num_nodes=nodes,
            precision=_PRECISION[precision],  # type: ignore[arg-type]
        )
    except Exception as error:
        raise UserError(f"--device {device} --devices {devices} --nodes {nodes}: {error}") from error
    if precision == "16" and fabric.device.type == "cpu":  # Lightning would take bf16 instead
        raise UserError("precision 16 is for GPUs and there is none here. Set it to bf16 or 32.")
    is_ours = not torch.distributed.is_initialized()
    fabric.launch()
    if fabric.device.type == "cpu":
        keep_freed_memory()
    watch = _start_watch(fabric) if fabric.world_size > 1 else None
    failed = True
    try:
        yield fabric
        failed = False
    except BaseException as error:
        if watch is None:
            raise
        instead = watch.report(error)
        release_frames(error)
        if instead is error:
            raise
        raise instead from error
    finally:
        if is_ours and torch.distributed.is_initialized():
            _end_group(failed)
        if watch is not None:
            watch.depart()


def _start_watch(fabric: Fabric) -> FailureWatch:
    """Begin to watch for failures of the other ranks."""
    fabric.barrier()  # one that fails while another still connects to it could not be heard
    store = torch.distributed.distributed_c10d._get_default_store()
    _failure_watches[fabric] = FailureWatch(store, fabric.global_rank, fabric.world_size)
    return _failure_watches[fabric]


def _end_group(failed: bool) -> None:
    """End the process group: left to the interpreter's end, its threads can abort it."""
    destroy = torch.distributed.destroy_process_group
    if failed and torch.distributed.get_backend() == "nccl":  # destroyed, it would wait for ranks that wait for us
        destroy = getattr(torch.distributed.distributed_c10d, "_abort_process_group", destroy)  # not in torch 2.4
    destroy()


def check_others(fabric: Fabric) -> None:
    """Raise if another rank has failed: for loops in which ranks do not wait for each other."""
    if fabric in _failure_watches:
        _failure_watches[fabric].check()


def run_on_first_rank(fabric: Fabric, begin: Callable[[], None]) -> None:
    """Call `begin` on the first rank while the other ranks wait; a UserError of the first rank ends all of them."""
    refusal = None
    if fabric.is_global_zero:
        try:
            begin()
        except UserError as error:
            refusal = error
    if on_any(fabric, refusal is not None):
        raise refusal or OthersEndedError("the first process refused to begin")


@contextmanager
def made_by_first(fabric: Fabric, made: AbstractContextManager[Work]) -> Iterator[Work | None]:
    """An artefact that the first rank makes (`artefacts.artefact.make`) for all; None on the others."""
    with ExitStack() as held:
        works: list[Work] = []
        run_on_first_rank(fabric, lambda: works.append(held.enter_context(made)))
        yield works[0] if works else None


def finished_before(fabric: Fabric, work: Work | None, say: Say) -> bool:
    """Whether the artefact was finished before and is undamaged, as the first rank sees it."""
    return on_any(fabric, work is not None and work.is_finished(say))


BATCHES_BETWEEN = 10
"""Batches after which ranks ask each other whether to stop: asking makes every device wait for every other."""


def asks_others(step: int, accumulate: int, world: int) -> bool:
    """Whether ranks ask each other after a step of so many batches; a process alone knows of its own signal at once."""
    return world == 1 or step % max(1, BATCHES_BETWEEN // accumulate) == 0


def on_any(fabric: Fabric, mine: bool) -> bool:
    """Whether something is true on any rank."""
    if fabric.world_size == 1:
        return mine
    count = torch.tensor(float(mine), device=fabric.device)
    return bool(fabric.all_reduce(count, reduce_op="sum") > 0)  # type: ignore[operator]


def sum_of_all(fabric: Fabric, value: int) -> int:
    """The sum of a count over ranks."""
    if fabric.world_size == 1:
        return value
    return int(fabric.all_reduce(torch.tensor(value, device=fabric.device), reduce_op="sum"))  # type: ignore[arg-type]


def first_of_all(fabric: Fabric, step: int) -> int:
    """The smallest step of any rank that is not -1; -1 if there is none."""
    if fabric.world_size == 1:
        return step
    steps = fabric.all_gather(torch.tensor(step, device=fabric.device)).flatten().tolist()  # type: ignore[union-attr]
    return min((step for step in steps if step >= 0), default=-1)


def mean_of_all(fabric: Fabric, value: Tensor) -> float:
    """The mean of a number over ranks."""
    value = value.detach().float()
    if fabric.world_size > 1:
        value = fabric.all_reduce(value, reduce_op="mean")  # type: ignore[assignment]
    return float(value)

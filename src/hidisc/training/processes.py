"""The processes of a run, and what they must agree on."""

import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from weakref import WeakKeyDictionary

import torch
import torch.distributed
import torch.distributed.nn.functional  # imported later, it would own the process group for ever: see release_frames
from lightning_fabric import Fabric as Fabric  # later stages take it from here: Lightning has one door
from torch import Tensor

from hidisc.artefacts.artefact import Work
from hidisc.ground.errors import UserError
from hidisc.ground.machine import keep_freed_memory
from hidisc.training.failures import FailureWatch, OthersEndedError, release_frames

_failure_watches: WeakKeyDictionary[Fabric, FailureWatch] = WeakKeyDictionary()
_PRECISION = {"32": "32-true", "bf16": "bf16-mixed", "16": "16-mixed"}


@contextmanager
def start(precision: str, device: str, devices: str | int, nodes: int) -> Iterator[Fabric]:
    """This process, or one per device; torchrun and SLURM are recognised by Lightning.

    What ends one of them ends all of them (`failures`): the first rank raises the reason, the others
    `ReportedElsewhereError`.
    """
    logging.getLogger("lightning_fabric").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning_fabric")  # its advice is about loaders we do not use
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
    """Do something on the first rank while the others wait; what it refuses ends them all."""
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


def finished_before(fabric: Fabric, work: Work | None, say: Callable[[str], None]) -> bool:
    """Whether the artefact was finished before, and is undamaged; what the first rank sees counts for all."""
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
    """The smallest step of any rank; -1 is none."""
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

"""The processes of a run, and what they must agree on."""

import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager

import torch
import torch.distributed
from lightning.fabric import Fabric as Fabric  # later stages take it from here: Lightning has one door
from torch import Tensor

from hidisc.artefacts.artefact import Work
from hidisc.errors import UserError

_PRECISION = {"32": "32-true", "bf16": "bf16-mixed", "16": "16-mixed"}


@contextmanager
def start(precision: str, device: str, devices: str | int, nodes: int) -> Iterator[Fabric]:
    """This process, or one a device; torchrun and SLURM are recognised by Lightning."""
    for name in ("lightning.fabric", "lightning.pytorch"):  # Fabric speaks under either name
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning")  # its advice is about loaders we do not use
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
    try:
        yield fabric
    finally:  # left to the interpreter's end, the threads of a process group can abort it
        if is_ours and torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()


def first_does(fabric: Fabric, begin: Callable[[], None]) -> None:
    """Do something on the first rank while the others wait; what it refuses ends them all."""
    refusal = None
    if fabric.is_global_zero:
        try:
            begin()
        except UserError as error:
            refusal = error
    if on_any(fabric, refusal is not None):
        raise refusal or UserError("the first process refused to begin; what it said is the reason.")


@contextmanager
def made_by_first(fabric: Fabric, made: AbstractContextManager[Work]) -> Iterator[Work | None]:
    """An artefact that the first rank makes (`artefacts.artefact.make`) for all; None on the others."""
    with ExitStack() as held:
        works: list[Work] = []
        first_does(fabric, lambda: works.append(held.enter_context(made)))
        yield works[0] if works else None


def finished_before(fabric: Fabric, work: Work | None, say: Callable[[str], None]) -> bool:
    """Whether the artefact was finished before, and is undamaged; what the first rank sees counts for all."""
    return on_any(fabric, work is not None and work.is_finished(say))


def on_any(fabric: Fabric, mine: bool) -> bool:
    """Whether it is so on any rank."""
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

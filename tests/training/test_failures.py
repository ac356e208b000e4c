"""Three real processes, one of which fails: each learns the reason, and the first is the one to say it."""

import json
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from unittest.mock import ANY

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.multiprocessing import start_processes

from hidisc.ground.errors import UserError
from hidisc.training import processes as failures
from hidisc.training.processes import Fabric, check_others, run_on_first_rank, start

RANKS, SECONDS = 3, 180
SENTENCE = "shard 7 is damaged. Run `hidisc doctor`."


@dataclass(frozen=True)
class Seen:
    """What a process raised."""

    kind: str
    words: str
    code: int | None = None


Work = Callable[[Fabric], None]


def wait_in_a_collective(fabric: Fabric) -> None:
    """As in training: gradients are averaged, step after step."""
    learner = fabric.setup_module(nn.Linear(2, 2))
    for _ in range(10_000):
        fabric.backward(learner(torch.ones(1, 2)).sum())
    raise AssertionError("nobody failed")


def work_alone(fabric: Fabric) -> None:
    """As in embedding: nobody waits for anybody."""
    for _ in range(2000):
        check_others(fabric)
        time.sleep(0.02)
    raise AssertionError("nobody failed")


def fail(error: BaseException) -> Work:
    def after_some_steps(fabric: Fabric) -> None:
        learner = fabric.setup_module(nn.Linear(2, 2))
        for _ in range(3):
            fabric.backward(learner(torch.ones(1, 2)).sum())
        raise error

    return after_some_steps


def fail_alone(error: BaseException) -> Work:
    def at_once(fabric: Fabric) -> None:
        raise error

    return at_once


def refuse_on_the_first(fabric: Fabric) -> None:
    def refuse() -> None:
        raise UserError(SENTENCE)

    run_on_first_rank(fabric, refuse)


def agree_to_fail(fabric: Fabric) -> None:
    """As `check_rank`: all of them, each with a number of its own."""
    raise UserError(f"rank {fabric.global_rank} has collapsed.")


def be_killed(fabric: Fabric) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def sleep(fabric: Fabric) -> None:
    """As in a collective that waits for ever, where nothing tells the process that another is gone."""
    time.sleep(10 * SECONDS)


CASES: dict[str, tuple[Work, ...]] = {
    "a user's error in a collective": (wait_in_a_collective, fail(UserError(SENTENCE)), wait_in_a_collective),
    "a user's error elsewhere": (work_alone, work_alone, fail_alone(UserError(SENTENCE))),
    "a user's error on the first": (fail(UserError(SENTENCE)), wait_in_a_collective, wait_in_a_collective),
    "another error": (wait_in_a_collective, wait_in_a_collective, fail(ValueError("no such thing"))),
    "another error on the first": (fail(ValueError("no such thing")), wait_in_a_collective, wait_in_a_collective),
    "a refusal": (refuse_on_the_first,) * RANKS,
    "an error of all": (agree_to_fail,) * RANKS,
    "a signal to one": (wait_in_a_collective, fail(SystemExit(143)), wait_in_a_collective),
    "a signal to all": (fail_alone(SystemExit(143)),) * RANKS,
    "no error": (lambda fabric: fabric.barrier(),) * RANKS,
}
KILLED = (wait_in_a_collective, be_killed, wait_in_a_collective)
STUCK = (sleep, fail_alone(UserError(SENTENCE)))

ELSEWHERE = Seen("ReportedElsewhereError", SENTENCE, 2)
USER = Seen("UserError", SENTENCE)
BUG = "rank {} of 3: ValueError: no such thing"
STOPPED = Seen("SystemExit", "143", 143)
LOST = (
    "another process of this run was lost: it was killed, ran out of memory, or its machine went down. What has been "
    "saved is whole: run the same command to go on."
)
EXPECTED: dict[str, list[Seen | None]] = {
    "a user's error in a collective": [USER, ELSEWHERE],
    "a user's error elsewhere": [USER, ELSEWHERE],
    "a user's error on the first": [USER, ELSEWHERE],
    "another error": [Seen("RankError", BUG.format(2)), Seen("ReportedElsewhereError", BUG.format(2), 1)],
    "another error on the first": [
        Seen("ValueError", "no such thing"),
        Seen("ReportedElsewhereError", BUG.format(0), 1),
    ],
    "a refusal": [USER, ELSEWHERE],
    "an error of all": [Seen("UserError", "rank 0 has collapsed."), ANY],
    "a signal to one": [STOPPED, Seen("ReportedElsewhereError", "stopped", 143)],
    "a signal to all": [STOPPED, STOPPED],
    "no error": [None, None],
    "killed": [Seen("RankError", LOST), Seen("ReportedElsewhereError", LOST, 1)],
}
"""What the first and the third process raise."""


def enter(port: int, rank: int, world: int) -> None:
    """Have this process be one that torchrun started: the store is kept by the one who started it."""
    os.environ |= {
        "GLOO_SOCKET_IFNAME": "lo",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(world),
        "GROUP_RANK": "0",
        "TORCHELASTIC_RUN_ID": "test",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }


def raised(works: Sequence[Work], port: int, rank: int) -> Seen | None:
    """What the work of a process raises in the end."""
    enter(port, rank, len(works))
    try:
        with start("32", "cpu", len(works), 1) as fabric:
            works[rank](fabric)
    except BaseException as error:  # noqa: BLE001 - what the test is about
        return Seen(type(error).__name__, str(error), getattr(error, "code", None))
    return None


def all_cases(rank: int, ports: list[int], folder: str) -> None:
    """One process through all cases, one after the other; then the second is killed, then the first gets stuck."""
    torch.set_num_threads(1)
    seen = {name: raised(works, port, rank) for port, (name, works) in zip(ports, CASES.items(), strict=False)}
    seen["killed"] = raised(KILLED, ports[-2], rank)
    Path(folder, f"{rank}.json").write_text(json.dumps({name: what and asdict(what) for name, what in seen.items()}))
    os.dup2(os.open(Path(folder, f"{rank}.txt"), os.O_WRONLY | os.O_CREAT), 2)
    failures.PATIENCE_S = 1.0
    raised(STUCK, ports[-1], 0 if rank == 0 else 1)


@dataclass(frozen=True)
class Ranks:
    """What became of the processes."""

    codes: list[int | None]
    seen: list[dict[str, Seen | None]]
    """What each raised in every case; the one that was killed could not write it down."""
    said_at_last: str
    """What the first one wrote to stderr when it was stuck."""


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Ranks:
    """Three processes that go through all cases; they end by themselves, or are ended after three minutes."""
    folder = tmp_path_factory.mktemp("failures")
    stores = [dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False) for _ in range(len(CASES) + 2)]
    arguments = ([store.port for store in stores], str(folder))
    multiprocessing.set_forkserver_preload([__name__])  # torch is imported once for all of them
    processes = start_processes(all_cases, arguments, RANKS, join=False, start_method="forkserver").processes
    until = time.monotonic() + SECONDS
    for process in processes:
        process.join(max(0.0, until - time.monotonic()))
    codes = [process.exitcode for process in processes]
    for process in processes:
        process.kill()
    texts = [json.loads((folder / f"{rank}.json").read_text()) for rank in (0, 2)]
    seen = [{name: Seen(**what) if what else None for name, what in text.items()} for text in texts]
    return Ranks(codes, seen, (folder / "0.txt").read_text())


@pytest.mark.whole
@pytest.mark.parametrize("name", EXPECTED)
def test_all_know_and_the_first_says_it(ranks: Ranks, name: str) -> None:
    assert [seen[name] for seen in ranks.seen] == EXPECTED[name]


@pytest.mark.whole
def test_a_first_process_that_waits_for_ever_is_ended_with_the_reason(ranks: Ranks) -> None:
    assert ranks.codes == [2, -signal.SIGKILL, 0]
    assert ranks.said_at_last == f"hidisc: {SENTENCE}\n"

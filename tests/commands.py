"""Commands run as a user runs them, in processes of their own, stopped at the step a test names."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import typer.main

from hidisc.cli import app
from hidisc.ground import stop

ENVIRONMENT = {
    **os.environ,
    "OMP_NUM_THREADS": "1",
    "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16",  # virtual machines can name AMX among their abilities and trap on it
}
LIMIT_S = 600
"""How long a command may take before it is taken for one that hangs."""
FORKS = """
import atexit, gc, json, os, runpy, signal, sys, threading, traceback
import hidisc.__main__
import hidisc.verbs.export_vectors
import hidisc.benchmarking.work, hidisc.verbs.doctor, hidisc.verbs.export
import hidisc.verbs.demo, hidisc.verbs.prepare, hidisc.verbs.report, hidisc.verbs.views
import hidisc.evaluation.probes.linear, hidisc.evaluation.probes.attention
import openTSNE  # what commands import when they need it
import distributed, pyarrow.dataset, rich.progress
from hidisc.ground import stop as steps
from hidisc.cli import main

def become(order):
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts background jobs with Ctrl-C ignored
    signal.alarm(order["limit"])
    os.chdir(order["folder"])
    os.environ.update(order["environment"])
    if steps.VARIABLE in os.environ:
        steps.watch_steps(steps.signal_at(os.environ[steps.VARIABLE]))
    for number, path in enumerate(order["output"], 1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    for rank in range(1, order["ranks"]):  # after the files are open, so that ranks do not write over each other
        if os.fork() == 0:
            os.environ["RANK"] = os.environ["LOCAL_RANK"] = str(rank)
            break
    if order["script"]:
        sys.argv = [order["script"], *order["words"]]
        runpy.run_path(order["script"], run_name="__main__")
    else:
        sys.modules["__main__"].__spec__ = hidisc.__main__.__spec__  # as `python -m hidisc` has it
        sys.argv = [hidisc.__main__.__file__, *order["words"]]
        main()

def end(order):
    code = 1
    try:
        become(order)
        code = 0
    except SystemExit as exit:
        code = exit.code or 0
    except BaseException:
        traceback.print_exc()
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # taking down all that was imported takes longer than most commands

gc.freeze()
children = set()
for line in sys.stdin:
    order = json.loads(line)
    if "wait" in order:
        _, status = os.waitpid(order["wait"], os.WUNTRACED)
        if os.WIFSTOPPED(status):
            print("stopped", flush=True)
        else:
            children.remove(order["wait"])
            print(os.waitstatus_to_exitcode(status), flush=True)
        continue
    child = os.fork()
    if child == 0:
        end(order)
    children.add(child)
    print(child, flush=True)
for child in children:
    os.killpg(child, signal.SIGKILL)
"""


def signal_at(step: str, number: int = 1, file: str = "*", *, sent: str = "SIGKILL", to: str = "process") -> str:
    """The order to send a signal when a command reaches a step of `hidisc.ground.stop` for the `number`th time."""
    order = f"{sent} {to} {number} {step} {file}"
    stop.signal_at(order)  # refuses a step that does not exist
    return order


@dataclass(frozen=True)
class Ended:
    """A command that has ended: its exit code, or minus the signal that ended it.

    That two test patients show nothing is said to every training of a tiny store, and left out of what it has `said`.
    """

    code: int
    result: str
    said: str

    def __post_init__(self) -> None:
        said = [line for line in self.said.splitlines(keepends=True) if "can show nothing: in `hidisc ev" not in line]
        object.__setattr__(self, "said", "".join(said))


class Forks:
    """Runs commands, each in a process and session of its own that need not import everything again."""

    def __init__(self, folder: Path) -> None:
        """What commands print goes to files in `folder`; they run in it unless another one is given."""
        self._folder, self._count = folder, 0
        self._process = subprocess.Popen(
            [sys.executable, "-c", FORKS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT
        )

    def run(
        self,
        *words: str | Path,
        at: str = "",
        folder: Path | None = None,
        script: Path | None = None,
        ranks: int = 1,
    ) -> Ended:
        """Run `hidisc` with words, or a Python script, to its end; `at`: what `signal_at` gives.

        With several `ranks` there are as many processes, as `torchrun` would start them.
        """
        return self.start(*words, at=at, folder=folder, script=script, ranks=ranks).ended()

    def start(
        self,
        *words: str | Path,
        at: str = "",
        folder: Path | None = None,
        script: Path | None = None,
        ranks: int = 1,
    ) -> "Running":
        """Start a command and come back at once."""
        self._count += 1
        output = [self._folder / f"{self._count}.{name}" for name in ("stdout", "stderr")]
        order = {
            "words": list(map(str, words)),
            "script": str(script or ""),
            "folder": str(folder or self._folder),
            "ranks": ranks,
            "environment": (torchrun(ranks) if ranks > 1 else {}) | ({stop.VARIABLE: at} if at else {}),
            "output": list(map(str, output)),
            "limit": LIMIT_S,
        }
        return Running(self, int(self._ask(order)), output)

    def wait(self, process: int) -> str:
        """Wait until a process ends, or stops by SIGSTOP: the exit code, or "stopped"."""
        return self._ask({"wait": process})

    def _ask(self, order: dict[str, object]) -> str:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return self._process.stdout.readline().strip()

    def close(self) -> None:
        """Let it go."""
        self._process.communicate(timeout=60)


class Running:
    """A command that was started; its process leads a group of its own."""

    def __init__(self, forks: Forks, process: int, output: list[Path]) -> None:
        self._forks, self._output = forks, output
        self.process = process

    def stopped(self) -> None:
        """Wait until the command has stopped itself by SIGSTOP."""
        assert self._forks.wait(self.process) == "stopped"

    def go_on(self) -> None:
        """Let a stopped command go on."""
        os.kill(self.process, signal.SIGCONT)

    def kill(self) -> None:
        """End the command and what it has started."""
        os.killpg(self.process, signal.SIGKILL)
        self.ended()

    def ended(self) -> Ended:
        """Wait until the command ends; of one that was killed, until its processes have let go of what they held."""
        code = int(self._forks.wait(self.process))
        if code < 0:
            self.wait_for_group()
        result, said = (path.read_text() for path in self._output)
        return Ended(code, result, said)

    def wait_for_group(self) -> None:
        """Wait until the processes that the command started have ended as well."""
        end = time.monotonic() + 60
        while is_alive(self.process):
            assert time.monotonic() < end, "a process is left behind"
            time.sleep(0.02)


def torchrun(ranks: int) -> dict[str, str]:
    """What `torchrun` tells the first of several processes on one machine."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    size = {name: str(ranks) for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE")}
    rank = dict.fromkeys(("RANK", "LOCAL_RANK", "GROUP_RANK"), "0")
    return {**size, **rank, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "TORCHELASTIC_RUN_ID": "tests"}


def is_alive(group: int) -> bool:
    """Whether any process is left in a group."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def parse(verb: str, arguments: list[str], folder: Path) -> None:
    """Parse the words of a command in a folder where every path that they name exists; raises where one is wrong."""
    for word in arguments:
        path = folder / word.rpartition("=")[2].lstrip("/")
        if not word.startswith("-") and not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
    with contextlib.chdir(folder):
        typer.main.get_command(app).commands[verb].make_context(verb, list(arguments))  # type: ignore[attr-defined]


def run(*command: str | Path, at: str = "", timeout: float = LIMIT_S) -> Ended:
    """Run a command in a fresh interpreter, as a user does, until it ends by itself."""
    done = subprocess.run(
        [sys.executable, "-m", "hidisc", *map(str, command)],
        capture_output=True,
        text=True,
        check=False,
        env={**ENVIRONMENT, **({stop.VARIABLE: at} if at else {})},
        timeout=timeout,
    )
    return Ended(done.returncode, done.stdout, done.stderr)

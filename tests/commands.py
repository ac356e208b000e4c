"""Commands run as a user runs them, in processes of their own, and what became of them."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ENVIRONMENT = {
    **os.environ,
    "OMP_NUM_THREADS": "1",
    "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16",  # virtual machines can name AMX among their abilities and trap on it
}
FORKS = """
import json, os, sys
import hidisc.verbs.embed, hidisc.verbs.evaluate, hidisc.verbs.report, hidisc.verbs.train
from hidisc.cli import main
for line in sys.stdin:
    order = json.loads(line)
    child = os.fork()
    if child == 0:
        os.chdir(order["folder"])
        for number, path in enumerate(order["output"], 1):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
        sys.argv = ["hidisc", *order["words"]]
        main()
    print(child, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@dataclass(frozen=True)
class Ended:
    """A command that has ended: its exit code, or minus the signal that ended it."""

    code: int
    result: str
    said: str


class Forks:
    """Runs commands one after another, each in a process of its own that need not import everything again."""

    def __init__(self, folder: Path, work: Path | None = None) -> None:
        """What commands print goes to files in `folder`; they run in `work`."""
        self._output = folder / "stdout", folder / "stderr"
        self._work = work or folder
        self._process = subprocess.Popen(
            [sys.executable, "-c", FORKS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT
        )

    def run(self, *command: str, kill: Callable[[int], None] = lambda _: None) -> Ended:
        """Run a command to its end; `kill` is called with its process id when it has begun."""
        assert self._process.stdin
        assert self._process.stdout
        order = {"words": command, "folder": str(self._work), "output": list(map(str, self._output))}
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        kill(int(self._process.stdout.readline()))
        code = int(self._process.stdout.readline())
        result, said = (path.read_text() for path in self._output)
        return Ended(code, result, said)

    def close(self) -> None:
        """Let it go."""
        self._process.communicate(timeout=60)


def run(*command: str, timeout: float = 120) -> Ended:
    """Run a command as a user does, until it ends by itself."""
    done = subprocess.run(
        [sys.executable, "-m", "hidisc", *command],
        capture_output=True,
        text=True,
        check=False,
        env=ENVIRONMENT,
        timeout=timeout,
    )
    return Ended(done.returncode, done.stdout, done.stderr)


def wait_for(due: Callable[[], Any], seconds: float = 90) -> None:
    end = time.monotonic() + seconds
    while not due():
        assert time.monotonic() < end, "it takes too long"
        time.sleep(0.001)

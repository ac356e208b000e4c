"""The harness: commands in forks end, stop and hear signals as commands that a user starts."""

import signal
from pathlib import Path

import pytest

from tests.commands import Forks, signal_at

SCRIPT = """
import os, signal, sys
from hidisc.ground.stop import reached
print(os.getcwd(), sys.argv[1:], signal.getsignal(signal.SIGINT) is signal.default_int_handler, flush=True)
reached("slide.done")
print("went on", file=sys.stderr)
sys.exit(7)
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    (tmp_path / "script.py").write_text(SCRIPT)
    return tmp_path / "script.py"


def test_a_script_hears_ctrl_c_wherever_the_tests_were_started(forks: Forks, script: Path, tmp_path: Path) -> None:
    ended = forks.run("a", "b", script=script, folder=tmp_path)
    assert (ended.code, ended.result, ended.said) == (7, f"{tmp_path} ['a', 'b'] True\n", "went on\n")


def test_a_command_is_killed_interrupted_or_stopped_at_a_step(forks: Forks, script: Path) -> None:
    killed = forks.run(script=script, at=signal_at("slide.done"))
    assert (killed.code, killed.said) == (-signal.SIGKILL, "")
    interrupted = forks.run(script=script, at=signal_at("slide.done", sent="SIGINT", to="group"))
    assert interrupted.said.endswith("KeyboardInterrupt\n")
    stopped = forks.start(script=script, at=signal_at("slide.done", sent="SIGSTOP"))
    stopped.stopped()
    other = forks.run(script=script)  # while the first one waits
    stopped.go_on()
    assert stopped.ended() == other


def test_ranks_know_their_number(forks: Forks, tmp_path: Path) -> None:
    (tmp_path / "rank.py").write_text("import os\nopen(os.environ['RANK'], 'w').write(os.environ['WORLD_SIZE'])\n")
    started = forks.start(script=tmp_path / "rank.py", folder=tmp_path, ranks=3)
    assert started.ended().code == 0
    started.wait_for_group()
    assert {path.name: path.read_text() for path in tmp_path.iterdir() if path.suffix == ""} == dict.fromkeys(
        "012", "3"
    )


def test_an_order_for_a_step_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match="names no step"):
        signal_at("slide.dane")

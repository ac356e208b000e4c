"""Named steps: nothing happens unless a test asks for it, and then at the step, the file and the time it says."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import hidisc
from hidisc.ground import stop
from hidisc.ground.files import new_folder, write_atomic
from hidisc.ground.stop import STEPS, VARIABLE, reached, signal_at, watch_steps

SOURCES = sorted(Path(hidisc.__file__).parent.rglob("*.py"))


@pytest.fixture
def watched() -> Iterator[list[tuple[str, str]]]:
    """The steps reached, each with the name of its file."""
    found: list[tuple[str, str]] = []
    watch_steps(lambda step, file: found.append((step, file)))
    yield found
    watch_steps(None)


def test_nobody_watches_unless_a_test_asks_for_it() -> None:
    assert VARIABLE.startswith("HIDISC_TEST_")
    assert VARIABLE not in os.environ
    assert stop._watch is None
    reached("file.written", Path("store.json"))


def test_every_step_is_called_somewhere_and_every_call_is_a_step() -> None:
    called = {name for path in SOURCES for name in re.findall(r"\breached\(\s*\"([\w.]+)\"", path.read_text())}
    assert called == set(STEPS)


def test_a_file_is_whole_beside_its_name_and_then_under_it(tmp_path: Path, watched: list[tuple[str, str]]) -> None:
    seen = []

    def look(step: str, file: str) -> None:
        seen.append((step, file, (tmp_path / "a.json").exists(), sorted(p.read_text() for p in tmp_path.iterdir())))

    watch_steps(look)
    write_atomic(tmp_path / "a.json", b"whole")
    assert seen == [("file.written", "a.json", False, ["whole"]), ("file.renamed", "a.json", True, ["whole"])]


def test_a_folder_is_whole_beside_its_name_and_then_under_it(tmp_path: Path, watched: list[tuple[str, str]]) -> None:
    with new_folder(tmp_path / "slide") as part:
        (part / "x").write_text("whole")
        assert watched == []
    assert watched == [("folder.written", "slide"), ("folder.renamed", "slide")]


def test_a_signal_is_sent_at_the_step_the_file_and_the_time_an_order_says(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[tuple[str, int, int]] = []
    monkeypatch.setattr(os, "kill", lambda process, number: sent.append(("process", process, number)))
    monkeypatch.setattr(os, "killpg", lambda group, number: sent.append(("group", group, number)))
    watch = signal_at("SIGKILL process 2 file.written step-*.safetensors")
    for step, file in (("file.written", "a.json"), ("file.renamed", "step-1.safetensors"), ("slide.done", "")):
        watch(step, file)
    watch("file.written", "step-1.safetensors")
    assert sent == []
    for _ in range(2):  # only the second time
        watch("file.written", "step-2.safetensors")
    signal_at("SIGINT group 1 slide.done *")("slide.done", "")
    assert sent == [("process", os.getpid(), signal.SIGKILL), ("group", os.getpgrp(), signal.SIGINT)]


@pytest.mark.parametrize("order", ["SIGKILL process 1 no.step *", "SIGKILL everyone 1 slide.done *"])
def test_an_order_that_names_nothing_is_refused(order: str) -> None:
    with pytest.raises(ValueError, match=f"{VARIABLE}='{re.escape(order)}' names no step of file.written, "):
        signal_at(order)


def test_the_variable_is_read_on_import() -> None:
    code = "from hidisc.ground.stop import reached\n"
    code += "for n in range(3):\n    print(n, flush=True)\n    reached('slide.done')"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, VARIABLE: "SIGKILL process 2 slide.done *"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, "0\n1\n")

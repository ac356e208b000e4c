"""One process at a time in a folder, with the kernel's locks and without."""

import errno
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hidisc.artefacts import lock
from hidisc.artefacts.lock import OWNER, HeldError, hold
from hidisc.ground.errors import UserError
from hidisc.ground.files import LOCK

HOLD = """
import signal, sys, time
from pathlib import Path
from hidisc.artefacts.lock import hold
signal.signal(signal.SIGALRM, lambda *_: sys.exit())
with hold(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def other(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the folder."""
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def test_two_processes_never_hold_one_folder(tmp_path: Path, other: subprocess.Popen[str]) -> None:
    with pytest.raises(UserError) as caught, hold(tmp_path):
        pass
    assert str(caught.value) == f"another hidisc is writing to {tmp_path}. Wait for it or give another --out."


def test_a_killed_process_lets_go(tmp_path: Path, other: subprocess.Popen[str]) -> None:
    other.send_signal(signal.SIGKILL)
    other.wait()
    with hold(tmp_path):
        pass


def test_a_folder_can_be_held_again_after_an_error(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), hold(tmp_path):
        raise RuntimeError
    with hold(tmp_path):
        pass


def test_hold_makes_the_folder(tmp_path: Path) -> None:
    with hold(tmp_path / "new" / "deep"):
        assert (tmp_path / "new" / "deep").is_dir()


def test_out_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("mine")
    with pytest.raises(UserError, match=r"out is a file\. Give a folder for --out\."), hold(tmp_path / "out"):
        pass
    with pytest.raises(UserError, match=r"cannot be written \(Not a directory\)"), hold(tmp_path / "out" / "deep"):
        pass


def test_one_can_wait_for_another_to_leave(tmp_path: Path, other: subprocess.Popen[str]) -> None:
    other.send_signal(signal.SIGALRM)  # ends it a moment later
    with hold(tmp_path, wait_s=30):
        pass


# ---- file systems without locks


@pytest.fixture(params=["no flock on this file system", "no fcntl on this system"])
def without_locks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system (Lustre without `-o flock`) or a system (Windows) that has no locks."""
    if "fcntl" in request.param:
        monkeypatch.setitem(sys.modules, "fcntl", None)
        return

    def refuse(*_: Any) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr("fcntl.flock", refuse)


@pytest.mark.usefixtures("without_locks")
def test_a_file_that_names_its_owner_keeps_others_out(tmp_path: Path) -> None:
    with hold(tmp_path):
        assert (tmp_path / OWNER).read_text() == f"{os.getpid()} {socket.gethostname()}"
        with pytest.raises(HeldError) as caught, hold(tmp_path):
            pass
    assert str(caught.value) == (
        f"another hidisc (process {os.getpid()} on {socket.gethostname()}) is writing to {tmp_path}, whose file system "
        f"has no locks. Wait for it or give another --out; if it was killed, delete {tmp_path / OWNER}."
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == [LOCK]
    with hold(tmp_path):
        pass


@pytest.mark.usefixtures("without_locks")
def test_a_dead_owner_is_taken_over_and_one_elsewhere_is_not(tmp_path: Path) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    (tmp_path / OWNER).write_text(f"{dead.pid} {socket.gethostname()}")
    with hold(tmp_path):
        pass
    for owner in (f"{dead.pid} elsewhere", "", "nonsense"):
        (tmp_path / OWNER).write_text(owner)
        with pytest.raises(HeldError, match="whose file system has no locks"), hold(tmp_path):
            pass
        assert (tmp_path / OWNER).read_text() == owner


def test_a_living_owner_that_came_between_keeps_its_file(tmp_path: Path) -> None:
    """Two processes find one dead owner; the slower of them meets the file of the quicker one."""
    (tmp_path / OWNER).write_text("1 quicker")
    lock._remove(tmp_path / OWNER, "99 dead")
    assert (tmp_path / OWNER).read_text() == "1 quicker"
    assert [path.name for path in tmp_path.iterdir()] == [OWNER]


def test_a_lock_that_fails_otherwise_is_no_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("fcntl.flock", refuse)
    with pytest.raises(OSError, match="Input/output"), hold(tmp_path):
        pass

"""One writer per folder: a lock of the kernel where there is one, else a file that names its owner."""

import errno
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

from hidisc.ground.errors import UserError
from hidisc.ground.files import LOCK, beside, make_folder

OWNER = ".lock-owner"
_NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.EINVAL)
_PAUSE_S = 0.05


class HeldError(UserError):
    """Another process is at work in a folder."""


@contextmanager
def hold(out: Path, wait_s: float = 0) -> Iterator[None]:
    """Keep other hidisc processes out of a folder, after waiting up to `wait_s` for them to leave it.

    The kernel lets go of its lock even after `kill -9`. File systems without locks (Lustre without `-o flock`, Windows)
    get a file with the owner's name; one that a dead process of this machine left is taken over.
    """
    make_folder(out)
    try:
        lock = (out / LOCK).open("a+")
    except OSError as error:
        raise UserError(f"{out} cannot be written ({error.strerror}). Give another --out.") from error
    with lock:
        if _take(lock, out, time.monotonic() + wait_s):
            yield
            return
    with _owned(out, time.monotonic() + wait_s):
        yield


def _take(lock: TextIO, out: Path, until: float) -> bool:
    """Take the kernel's lock; False where there is none."""
    try:
        import fcntl
    except ImportError:
        return False
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError as error:
            if time.monotonic() >= until:
                raise HeldError(f"another hidisc is writing to {out}. Wait for it or give another --out.") from error
            time.sleep(_PAUSE_S)
        except OSError as error:
            if error.errno in _NO_LOCKS:
                return False
            raise


@contextmanager
def _owned(out: Path, until: float) -> Iterator[None]:
    """Hold a folder by a file that only one process can make."""
    path, name = out / OWNER, f"{os.getpid()} {socket.gethostname()}"
    while True:
        try:
            handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
            break
        except FileExistsError:
            with suppress(FileNotFoundError):
                owner = path.read_text(encoding="utf-8")
                if _is_dead(owner):
                    _remove(path, owner)
                elif time.monotonic() >= until:
                    pid, _, host = owner.partition(" ")
                    raise HeldError(
                        f"another hidisc (process {pid or 'unknown'} on {host or 'an unknown machine'}) is writing to "
                        f"{out}, whose file system has no locks. Wait for it or give another --out; if it was killed, "
                        f"delete {path}."
                    ) from None
                else:
                    time.sleep(_PAUSE_S)
    try:
        os.write(handle, name.encode())
        os.close(handle)
        yield
    finally:
        path.unlink(missing_ok=True)


def _is_dead(owner: str) -> bool:
    """Whether an owner is a process of this machine that is there no more."""
    pid, _, host = owner.partition(" ")
    if host != socket.gethostname() or not pid.isdigit():
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return False


def _remove(path: Path, owner: str) -> None:
    """Remove a dead owner's file, unless another process has taken the folder over meanwhile."""
    taken = beside(path)
    path.rename(taken)
    if taken.read_text(encoding="utf-8") != owner:
        with suppress(FileExistsError):
            os.link(taken, path)
    taken.unlink()

"""Files and folders that are there wholly or not at all: written beside, synced, renamed."""

import errno
import os
import re
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hidisc.ground.errors import UserError
from hidisc.ground.steps import reached

LOCK = ".lock"
PART = ".part-"
"""Prefix of what is being written; what is so called was left by a killed process."""
_PART_NAME = re.compile(rf"{re.escape(PART)}.*-[0-9a-f]{{8}}", re.DOTALL)


def make_folder(out: Path) -> None:
    """Make a folder to write to, and those above it."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:
        raise UserError(f"{out} is a file. Give a folder for --out.") from error
    except OSError as error:
        raise UserError(f"{out} cannot be written ({error.strerror}). Give another --out.") from error


def beside(path: Path) -> Path:
    """A new name next to `path` to write under until it is whole."""
    return path.with_name(f"{PART}{path.name}-{uuid.uuid4().hex[:8]}")


def is_part(path: Path) -> bool:
    """Whether a name is one that `beside` gives."""
    return _PART_NAME.fullmatch(path.name) is not None


def sweep(folder: Path) -> None:
    """Remove what killed processes were writing in a held folder.

    Folders below that have a lock of their own are artefacts of their own, whose owners may be at work, and are left
    alone; so are links.
    """
    for path in list(folder.iterdir()):
        is_folder = path.is_dir() and not path.is_symlink()
        if is_part(path):
            shutil.rmtree(path) if is_folder else path.unlink()
        elif is_folder and not (path / LOCK).exists():
            sweep(path)


def write_atomic(path: Path, data: bytes) -> None:
    """Write a file so that after a crash at any moment it is wholly the old or wholly the new one."""
    with replaced(path) as part:
        part.write_bytes(data)


@contextmanager
def replaced(path: Path) -> Iterator[Path]:
    """A name to write under that becomes `path`, synced, when the block ends well, and vanishes when it does not."""
    part = beside(path)
    try:
        yield part
        sync(part)
        reached("file.written", path)
        part.replace(path)
        sync(path.parent)
        reached("file.renamed", path)
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def new_folder(final: Path) -> Iterator[Path]:
    """A folder to fill that becomes `final` when the block ends well, synced and whole, and vanishes when it does not.

    If another worker was quicker, its equal result stays.
    """
    part = beside(final)
    part.mkdir(parents=True)
    try:
        yield part
        for file in part.iterdir():
            sync(file)
        sync(part)
        reached("folder.written", final)
        try:
            part.rename(final)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
        sync(final.parent)
        reached("folder.renamed", final)
    finally:
        shutil.rmtree(part, ignore_errors=True)


@contextmanager
def full_disk_said(what_is_safe: str) -> Iterator[None]:
    """Turn a full disk into a sentence."""
    try:
        yield
    except OSError as error:
        refuse_full_disk(error, what_is_safe)
        raise


def refuse_full_disk(error: BaseException | None, what_is_safe: str) -> None:
    """Raise a sentence if the error is a full disk; do nothing about others."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        raise UserError(
            f"the disk is full ({error.strerror}). {what_is_safe}: free some space and run the same command again."
        ) from error


def sync(path: Path) -> None:
    """Make a file's content, or the renames inside a folder, survive a power cut."""
    if os.name == "nt" and path.is_dir():
        return  # Windows opens no folders, and keeps their renames by itself
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def relate(path: Path, home: Path) -> str:
    """How to get to a path from a folder, so that what is written down names no one's home and survives a move."""
    try:
        return Path(os.path.relpath(path.resolve(), home.resolve())).as_posix()
    except ValueError:  # another drive of Windows
        return path.name


def name_related(recorded: str, home: Path) -> str:
    """What the file or folder is called that `relate` has written down in a folder: `..` is no name to show."""
    return (home / recorded).resolve().name

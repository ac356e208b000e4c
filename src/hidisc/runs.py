"""The life of an output folder: begun with a config, held by one process, resumed after a crash, never overwritten.

Every artefact is written the same way: pieces beside and renamed (`write_atomic`, `new_folder`), the file
that makes it whole last. What lies in the folder is a function of the input and the config, not of the time.
"""

import errno
import fcntl
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any, TextIO, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from hidisc.config import differences, to_yaml
from hidisc.errors import UserError
from hidisc.steps import reached

Model = TypeVar("Model", bound=BaseModel)
PART = ".part-"
"""Prefix of what is being written; anything so called is left over from a killed process."""


class HeldError(UserError):
    """Another process is at work in a folder."""


@contextmanager
def hold(out: Path) -> Iterator[None]:
    """Keep other hidisc processes out of a folder; the kernel lets go even after `kill -9`."""
    make_folder(out)
    with _open_lock(out) as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise HeldError(f"another hidisc is writing to {out}. Wait for it or give another --out.") from error
        except OSError:  # a file system without locks: every step below is atomic on its own
            pass
        sweep(out)
        yield


def make_folder(out: Path) -> None:
    """Make a folder to write to, and those above it."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:
        raise UserError(f"{out} is a file. Give a folder for --out.") from error
    except OSError as error:
        raise UserError(f"{out} cannot be written ({error.strerror}). Give another --out.") from error


def _open_lock(out: Path) -> TextIO:
    try:
        return (out / ".lock").open("a+")
    except OSError as error:
        raise UserError(f"{out} cannot be written ({error.strerror}). Give another --out.") from error


def sweep(out: Path) -> None:
    """Remove what killed processes were writing; only while the folder is held."""
    for left_over in [*out.glob(f"{PART}*"), *out.glob(f"*/{PART}*"), *out.glob(f"*/*/{PART}*")]:
        shutil.rmtree(left_over) if left_over.is_dir() else left_over.unlink()


def begin(out: Path, kind: str, config: BaseModel, changeable: tuple[str, ...] = (), hint: str = "") -> bool:
    """Write `config.yaml`, or compare it with the one there; whether the folder had been begun before.

    Settings whose name starts with one of `changeable` may differ from what the folder was begun with.
    """
    record = out / "config.yaml"
    new = {"kind": kind, **config.model_dump(mode="json")}
    old = _read_record(record)
    if old is None:
        strangers = [path.name for path in out.iterdir() if path.name != ".lock" and not path.name.startswith(PART)]
        if strangers:
            raise UserError(
                f"{out} holds something else ({', '.join(sorted(strangers)[:3])}) and is not overwritten. "
                "Give a new or empty folder for --out."
            )
        write_atomic(record, f"kind: {kind}\n{to_yaml(config)}".encode())
        return False
    changed = [line for line in differences(old, new) if not line.startswith(changeable)]
    if changed:
        raise UserError(
            f"{out} was begun with other settings ({'; '.join(changed)}). Use the same ones to go on, "
            f"or give a new --out.{hint}"
        )
    if old != new:
        write_atomic(record, f"kind: {kind}\n{to_yaml(config)}".encode())
    return True


def read_kind(out: Path) -> str | None:
    """Which verb began a folder; None when none of ours did."""
    record = _read_record(out / "config.yaml")
    return str(record["kind"]) if record else None


def read_finished(file: Path, model: type[Model], kind: str, unfinished: str, absent: str) -> Model:
    """The file that is written last and makes an artefact whole; what the sentences say where it is not there."""
    if not file.is_file():
        raise UserError(unfinished if read_kind(file.parent) == kind else absent)
    try:
        return model.model_validate_json(file.read_bytes())
    except ValidationError as error:
        raise UserError(f"{file} is damaged or of another version of hidisc ({error.errors()[0]['msg']}).") from error


def _read_record(path: Path) -> dict[str, Any] | None:
    """The settings a folder was begun with; None when it was not, or by something other than hidisc."""
    try:
        record = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError, UnicodeDecodeError, yaml.YAMLError):
        return None
    return record if isinstance(record, dict) and "kind" in record else None


def beside(path: Path) -> Path:
    """A new name next to `path` to write under until it is whole."""
    return path.with_name(f"{PART}{path.name}-{uuid.uuid4().hex[:8]}")


def write_atomic(path: Path, data: bytes) -> None:
    """Write a file so that after a crash at any moment it is wholly the old or wholly the new one."""
    part = beside(path)
    try:
        part.write_bytes(data)
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
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def count_cores() -> int:
    """Cores this process may use: on a cluster node those of the job, not all the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def versions(*packages: str) -> dict[str, str | None]:
    """Installed versions by distribution name, None where one is not installed."""
    found: dict[str, Any] = {}
    for name in packages:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    return found

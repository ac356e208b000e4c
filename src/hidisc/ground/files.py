"""Files and folders that are complete or absent: written, synced, renamed; checksums; JSON records.

Two checksums for two purposes. SHA-256 names content: leakage checks and `hidisc doctor` compare it. CRC-32 finds
damage at the speed of memory, 25 times quicker, so that every file can be verified whenever it is used.
"""

import errno
import hashlib
import json
import os
import re
import shutil
import uuid
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from hidisc.ground.errors import UserError
from hidisc.ground.stop import reached

AnyPath = str | os.PathLike[str]


class Record(BaseModel):
    """A frozen model that refuses unknown keys and documents each field by the string under it."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, use_attribute_docstrings=True, allow_inf_nan=False, serialize_by_alias=True
    )


Model = TypeVar("Model", bound=BaseModel)
_BLOCK = 2**24
_SAMPLES, _SAMPLE_BYTES = 64, 4096
_SEAL = b',\n "sha256": "'


class FileEntry(Record):
    """A file of an artefact."""

    path: str
    """Relative to the artefact."""
    bytes: int
    sha256: str
    crc32: int
    needed: bool = True
    """Whether the artefact is damaged without it; checkpoints and pictures may be deleted."""


def describe_file(path: Path, name: str | None = None, *, needed: bool = True) -> FileEntry:
    """A file as it is now, under a name relative to its artefact."""
    sha, crc, size = hashlib.sha256(), 0, 0
    for block in _blocks(path):
        sha.update(block)
        crc, size = crc32(block, crc), size + len(block)
    return FileEntry(path=name or path.name, bytes=size, sha256=sha.hexdigest(), crc32=crc, needed=needed)


def find_problem(folder: Path, entry: FileEntry, check: Literal["size", "crc32", "sha256"] = "crc32") -> str | None:
    """What is wrong with a file, None when nothing is: its size and, unless that is all to `check`, its content."""
    path = folder / entry.path
    if not path.is_file():
        return f"{entry.path} is missing" if entry.needed else None
    size = path.stat().st_size
    if size != entry.bytes:
        return f"{entry.path} has {size:,} bytes instead of {entry.bytes:,}"
    if check == "size":
        return None
    is_same = crc_file(path) == entry.crc32 if check == "crc32" else hash_file(path) == entry.sha256
    return None if is_same else f"{entry.path} has changed (its checksum differs)"


def hash_file(path: Path) -> str:
    """SHA-256 of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def crc_file(path: Path) -> int:
    """CRC-32 of a file's content."""
    crc = 0
    for block in _blocks(path):
        crc = crc32(block, crc)
    return crc


def crc32(data: Any, start: int = 0) -> int:
    """CRC-32 of bytes, going on from that of those before."""
    return _find_crc32()(data, start)


@cache
def _find_crc32() -> Callable[[Any, int], int]:
    """The quickest that is installed; looked for once, as that takes longer than the checksum of a patch."""
    try:
        from imagecodecs import deflate_crc32

        deflate_crc32(b"")  # which may be there and not have been built
    except ImportError:
        return zlib.crc32
    return deflate_crc32


def sample_file(path: Path) -> str:
    """SHA-256 of a file's size and of 64 blocks of 4 KB spread over it; of all of it when it is not larger than these.

    It tells two slides apart without reading gigabytes: compressed pixels differ nearly everywhere.
    """
    size = path.stat().st_size
    digest = hashlib.sha256(f"{size} ".encode())
    with path.open("rb") as file:
        if size <= _SAMPLES * _SAMPLE_BYTES:
            digest.update(file.read())
        else:
            for number in range(_SAMPLES):
                file.seek(number * (size - _SAMPLE_BYTES) // (_SAMPLES - 1))
                digest.update(file.read(_SAMPLE_BYTES))
    return digest.hexdigest()


def digest(value: Any) -> str:
    """SHA-256 of anything JSON can hold."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()


def seal(model: BaseModel) -> bytes:
    """A model as JSON whose last value is the SHA-256 of all that stands before it."""
    text = model.model_dump_json(indent=1).encode().removesuffix(b"\n}")
    return text + _SEAL + hashlib.sha256(text).hexdigest().encode() + b'"\n}\n'


def unseal(data: bytes, model: type[Model]) -> Model:
    """The model that `seal` wrote; ValueError when a byte of it has changed or it is of another version."""
    text, found, checksum = data.rpartition(_SEAL)
    if not found or checksum != hashlib.sha256(text).hexdigest().encode() + b'"\n}\n':
        raise ValueError("its checksum differs")
    try:
        return model.model_validate_json(text + b"\n}")
    except ValidationError as error:
        raise ValueError(f"it is of another version of hidisc: {error.errors()[0]['msg']}") from error


def _blocks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            yield block


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

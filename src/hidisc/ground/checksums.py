"""What a file must be: its size and checksums; and JSON that knows its own.

Two checksums for two purposes. SHA-256 names content: leakage checks and `hidisc doctor` compare it. CRC-32 finds
damage at the speed of memory, 25 times quicker, so that whatever is used can be verified whenever it is used.
"""

import hashlib
import json
import zlib
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ValidationError

from hidisc.ground.records import Record

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

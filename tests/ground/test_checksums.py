"""Checksums find what they should, and sealed JSON knows its own."""

import hashlib
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hidisc.ground.files import (
    Record,
    crc32,
    crc_file,
    describe_file,
    find_problem,
    hash_file,
    sample_file,
    seal,
    unseal,
)


class Known(Record):
    """What is sealed."""

    name: str
    values: tuple[float, ...] = ()


@given(st.binary(), st.binary())
def test_crc32_is_the_usual_one_and_goes_on(one: bytes, two: bytes) -> None:
    assert crc32(two, crc32(one)) == crc32(one + two) == zlib.crc32(one + two)


def test_a_file_is_described_by_both_checksums(tmp_path: Path) -> None:
    data = np.random.default_rng(0).bytes(2**24 + 5)  # more than one block
    (tmp_path / "a").write_bytes(data)
    entry = describe_file(tmp_path / "a", "deep/a")
    assert (entry.path, entry.bytes) == ("deep/a", len(data))
    assert entry.sha256 == hash_file(tmp_path / "a") == hashlib.sha256(data).hexdigest()
    assert entry.crc32 == crc_file(tmp_path / "a") == zlib.crc32(data)


def test_a_problem_is_found_by_as_much_as_is_checked(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    entry = describe_file(tmp_path / "a")
    (tmp_path / "a").write_bytes(b"abd")
    assert find_problem(tmp_path, entry, "size") is None
    assert (
        find_problem(tmp_path, entry)
        == find_problem(tmp_path, entry, "sha256")
        == ("a has changed (its checksum differs)")
    )


@given(st.text(), st.lists(st.floats(allow_nan=False, allow_infinity=False)))
def test_what_is_sealed_is_unsealed(name: str, values: list[float]) -> None:
    known = Known(name=name.encode("utf-8", "replace").decode(), values=tuple(values))
    assert unseal(seal(known), Known) == known


@given(st.integers(0), st.integers(1, 255))
def test_any_changed_byte_breaks_the_seal(place: int, change: int) -> None:
    data = bytearray(seal(Known(name='"sha256": "', values=(0.5, 2))))
    data[place % len(data)] ^= change
    with pytest.raises(ValueError, match="its checksum differs"):
        unseal(bytes(data), Known)


def test_another_version_is_told_from_damage() -> None:
    class Later(Record):
        other: int = 1

    with pytest.raises(ValueError, match="it is of another version of hidisc"):
        unseal(seal(Later()), Known)


@pytest.mark.parametrize("size", [0, 1, 4096, 64 * 4096, 64 * 4096 + 1, 10**7])
def test_samples_tell_files_apart(tmp_path: Path, size: int) -> None:
    rng = np.random.default_rng(size)
    for name in ("one", "two"):
        (tmp_path / name).write_bytes(rng.bytes(size))
    if size:
        assert sample_file(tmp_path / "one") != sample_file(tmp_path / "two")
    data = bytearray((tmp_path / "one").read_bytes())
    for place in {0, size - 1} if size else ():
        data[place] ^= 1
        (tmp_path / "changed").write_bytes(data)
        assert sample_file(tmp_path / "changed") != sample_file(tmp_path / "one")
    (tmp_path / "longer").write_bytes((tmp_path / "one").read_bytes() + b"\0")
    assert sample_file(tmp_path / "longer") != sample_file(tmp_path / "one")

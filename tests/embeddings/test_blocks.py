"""A file of vectors written block by block: any order, any process, and a full disk is said."""

import errno
import os
from pathlib import Path

import numpy as np
import pytest

from hidisc.embeddings.extract import BlockFile


@pytest.mark.parametrize(("rows", "block"), [(10, 4), (8, 4), (3, 4), (1, 1)])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_any_order_gives_the_same_file(tmp_path: Path, rows: int, block: int, dtype: str) -> None:
    values = np.random.default_rng(0).normal(size=(rows, 3)).astype(dtype)
    file = BlockFile(tmp_path / "v.npy", rows, 3, dtype, block)
    file.create()
    assert file.missing() == list(range(-(-rows // block)))
    for number in reversed(file.missing()):
        BlockFile(tmp_path / "v.npy", rows, 3, dtype, block).write(number, values[file.rows(number)])
    assert file.missing() == []
    read = np.load(tmp_path / "v.npy", mmap_mode="r")
    assert read.dtype == dtype
    np.testing.assert_array_equal(read, values)
    np.save(tmp_path / "w.npy", values)
    assert (tmp_path / "w.npy").read_bytes() == (tmp_path / "v.npy").read_bytes()


def test_what_is_there_is_gone_on_with(tmp_path: Path) -> None:
    for number in range(2):
        file = BlockFile(tmp_path / "v.npy", 6, 2, "float32", 2)
        file.create()
        file.write(number, np.full((2, 2), number))
    assert file.missing() == [2]
    assert np.load(tmp_path / "v.npy")[:4].tolist() == [[0, 0], [0, 0], [1, 1], [1, 1]]


def test_a_file_without_its_record_is_made_anew(tmp_path: Path) -> None:
    file = BlockFile(tmp_path / "v.npy", 6, 2, "float32", 2)
    file.create()
    file.write(0, np.ones((2, 2)))
    file.done_path.unlink()
    file.create()
    assert file.missing() == [0, 1, 2]


def test_a_block_is_said_to_be_there_only_when_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = BlockFile(tmp_path / "v.npy", 4, 2, "float32", 2)
    file.create()

    def full(handle: int, data: object, offset: int) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(OSError, match="No space"):
        file.write(0, np.ones((2, 2)))
    assert file.missing() == [0, 1]


def test_the_space_is_taken_at_the_beginning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(handle: int, offset: int, length: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    file = BlockFile(tmp_path / "v.npy", 4, 2, "float32", 2)
    with pytest.raises(OSError, match="No space"):
        file.create()
    assert not file.path.exists()


def test_file_systems_that_cannot_reserve_do_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unable(handle: int, offset: int, length: int) -> None:
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(os, "posix_fallocate", unable)
    file = BlockFile(tmp_path / "v.npy", 4, 2, "float32", 2)
    file.create()
    file.write(1, np.ones((2, 2)))
    assert np.load(file.path)[2:].tolist() == [[1, 1], [1, 1]]


def test_writes_in_pieces_are_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda handle, data, offset: whole(handle, data[:3], offset))
    values = np.arange(8, dtype=np.float32).reshape(4, 2)
    file = BlockFile(tmp_path / "v.npy", 4, 2, "float32", 4)
    file.create()
    file.write(0, values)
    np.testing.assert_array_equal(np.load(file.path), values)

"""Rows of bytes in one file, read where they lie."""

import gc
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from hidisc.patches import shard as shards
from hidisc.patches.shard import Shard, ShardWriter

ROWS = [0, 1, 255, 256, 257, 600]


def row_bytes(row: int) -> bytes:
    """Different bytes of a different length for every row; some are empty."""
    return np.random.default_rng(row).bytes(row % 97)


def write(path: Path, rows: int, patch_bytes: int = 100) -> Path:
    """A shard of `rows` rows, cut from the boxes 7, 10, 13, ..."""
    with ShardWriter(path, patch_bytes, "a slide") as writer:
        for row in range(rows):
            writer.append(7 + 3 * row, row_bytes(row))
    return path


@pytest.mark.parametrize("rows", ROWS)
def test_rows_across_batches(tmp_path: Path, rows: int) -> None:
    shard = Shard(write(tmp_path / "s.arrow", rows))
    order = np.random.default_rng(0).permutation(rows)
    assert [bytes(shard[row]) for row in order] == [row_bytes(row) for row in order]


@pytest.mark.parametrize("rows", ROWS)
def test_boxes_in_the_order_of_writing(tmp_path: Path, rows: int) -> None:
    boxes = Shard(write(tmp_path / "s.arrow", rows)).boxes
    assert boxes.dtype == np.int32
    assert boxes.tolist() == [7 + 3 * row for row in range(rows)]


@pytest.mark.parametrize(("rows", "row"), [(0, 0), (3, 3), (256, 256), (257, 257), (257, 300), (257, -1)])
def test_a_row_that_is_not_there(tmp_path: Path, rows: int, row: int) -> None:
    with pytest.raises(IndexError):
        Shard(write(tmp_path / "s.arrow", rows))[row]


def test_large_patches_go_into_smaller_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "BATCH_BYTES", 1000)
    path = write(tmp_path / "s.arrow", 23, patch_bytes=100)
    assert pa.ipc.open_file(str(path)).num_record_batches == 3
    shard = Shard(path)
    assert [bytes(shard[row]) for row in range(23)] == [row_bytes(row) for row in range(23)]


def test_a_batch_of_the_largest_raw_patches_fits_arrows_offsets() -> None:
    largest = 4096 * 4096 * 6 * 2  # the config's largest side, six channels of 16 bits
    assert max(largest, shards.BATCH_BYTES) < 2**31


def test_reading_copies_nothing(tmp_path: Path) -> None:
    shard = Shard(write(tmp_path / "s.arrow", 600))
    gc.collect()  # what other tests left behind must not be freed in between
    before = pa.total_allocated_bytes()
    views = [shard[row] for row in range(600)]
    assert all(isinstance(view, memoryview) and view.readonly for view in views)
    assert pa.total_allocated_bytes() == before
    first, again = (np.frombuffer(shard[500], np.uint8) for _ in range(2))
    assert first.ctypes.data == again.ctypes.data


def test_a_view_outlives_its_shard(tmp_path: Path) -> None:
    view = Shard(write(tmp_path / "s.arrow", 300))[299]
    assert bytes(view) == row_bytes(299)


def test_the_same_rows_give_the_same_bytes(tmp_path: Path) -> None:
    first, second = (write(tmp_path / name, 300).read_bytes() for name in ("a.arrow", "b.arrow"))
    assert first == second


@pytest.mark.parametrize("share", [0, 0.3, 0.999])
def test_a_truncated_shard_is_refused(tmp_path: Path, share: float) -> None:
    path = write(tmp_path / "s.arrow", 300)
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])
    with pytest.raises((ValueError, OSError)):
        Shard(path)

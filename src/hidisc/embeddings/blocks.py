"""A large .npy file written in blocks by several processes, that a killed one can go on with.

Beside `NAME.npy` lies `NAME.done`, one byte per block: 1 once the block is on the disk. Both are written by `pwrite`,
not through a memory map: a full disk is then an error with a sentence and not the end of the process.
"""

import errno
import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hidisc.ground.files import beside, sync
from hidisc.ground.steps import reached


class BlockFile:
    """(rows, dim) numbers; `missing()` blocks, `write(block, values)`, in any order, from any process."""

    def __init__(self, path: Path, rows: int, dim: int, dtype: str, block: int) -> None:
        self.path, self._rows, self._block = path, rows, block
        self._row_bytes = dim * np.dtype(dtype).itemsize
        self._shape, self._dtype = (rows, dim), np.dtype(dtype)
        self.done_path = path.with_suffix(".done")
        self.blocks = -(-rows // block)

    def create(self) -> None:
        """Make both files unless they are there; all the space is taken now, so that a small disk is said at once."""
        if self.path.exists() and self.done_path.exists():
            return
        part = beside(self.path)
        np.lib.format.open_memmap(part, "w+", self._dtype, self._shape).flush()
        with part.open("r+b") as file:
            try:
                os.posix_fallocate(file.fileno(), 0, part.stat().st_size)
            except OSError as error:
                if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
                    raise
        done = beside(self.done_path)
        done.write_bytes(bytes(self.blocks))
        for written, final in ((part, self.path), (done, self.done_path)):
            sync(written)
            written.replace(final)
        sync(self.path.parent)

    def missing(self) -> list[int]:
        """Blocks that are not written yet."""
        return [number for number, state in enumerate(self.done_path.read_bytes()) if not state]

    def rows(self, block: int) -> slice:
        """The rows of a block."""
        return slice(block * self._block, min((block + 1) * self._block, self._rows))

    def write(self, block: int, values: NDArray[np.generic]) -> None:
        """Put the values (n, dim) of a block on the disk, then say so."""
        header = self.path.stat().st_size - self._rows * self._row_bytes
        data = np.ascontiguousarray(values, self._dtype).tobytes()
        _put(self.path, data, header + block * self._block * self._row_bytes)
        reached("block.written")
        _put(self.done_path, b"\1", block)
        reached("block.done")


def _put(path: Path, data: bytes, offset: int) -> None:
    handle = os.open(path, os.O_WRONLY)
    try:
        view = memoryview(data)
        while view:
            written = os.pwrite(handle, view, offset)
            view, offset = view[written:], offset + written
        os.fsync(handle)
    finally:
        os.close(handle)

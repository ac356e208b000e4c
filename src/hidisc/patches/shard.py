"""The encoded patches of a slide in one file; patches of coarser scales as cells that neighbours share."""

from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hidisc.ground.files import crc32
from hidisc.patches.codec import CodecName, decode
from hidisc.slides.grid import Lattice
from hidisc.slides.slide import Pixels, Slide

BATCH_ROWS, BATCH_BYTES = 256, 2**28
_SCHEMA = pa.schema([("box", pa.int32()), ("data", pa.binary()), ("crc32", pa.uint32())])
_OWNER, _CELLS = b"hidisc.owner", b"hidisc.cells"


class ShardWriter:
    """Writes rows in order; the file is whole only after `close`. `patch_bytes`: of a decoded patch.

    `cells`: how many are along a side of a patch, and how many in a row of the slide, where boxes are cells.
    """

    def __init__(self, path: Path, patch_bytes: int, owner: str, cells: tuple[int, int] | None = None) -> None:
        self._batch_rows = max(1, min(BATCH_ROWS, BATCH_BYTES // patch_bytes))
        metadata = {_OWNER: owner} | ({_CELLS: f"{cells[0]},{cells[1]}"} if cells else {})
        self._writer = pa.ipc.new_file(str(path), _SCHEMA.with_metadata(metadata))
        self._boxes: list[int] = []
        self._data: list[bytes] = []

    def append(self, box: int, data: bytes) -> None:
        """Add one patch."""
        self._boxes.append(box)
        self._data.append(data)
        if len(self._boxes) == self._batch_rows:
            self._flush()

    def close(self) -> None:
        """Write what is left and the footer."""
        self._flush()
        self._writer.close()

    def __enter__(self) -> "ShardWriter":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _flush(self) -> None:
        if self._boxes:
            checksums = [crc32(data) for data in self._data]
            self._writer.write_batch(pa.record_batch([self._boxes, self._data, checksums], schema=_SCHEMA))
            self._boxes, self._data = [], []


class _Batch:
    """One record batch: where each patch ends, the bytes of all patches, their checksums, and which were compared."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        _, data, checksums = batch.columns
        _, ends, values = data.buffers()
        self.ends = np.frombuffer(ends, np.int32, len(data) + 1)
        self.values = memoryview(values).cast("B")
        self.checksums: NDArray[np.uint32] = checksums.to_numpy()
        self.is_verified = bytearray(len(data))


class Shard:
    """A memory-mapped shard; `shard[row]` is a verified view of the encoded bytes, nothing is copied."""

    def __init__(self, path: Path) -> None:
        self._reader = pa.ipc.open_file(pa.memory_map(str(path)))
        metadata = self._reader.schema.metadata or {}
        self.owner = metadata.get(_OWNER, b"").decode()
        self.per_side, self._across = map(int, metadata.get(_CELLS, b"1,0").split(b","))
        """Cells along a side of a patch; 1: a row is a patch."""
        self._batches: list[_Batch | None] = [None] * self._reader.num_record_batches
        self._batch_rows = self._reader.get_batch(0).num_rows if self._batches else 1  # all but the last have as many

    def __getitem__(self, row: int) -> memoryview:
        if row < 0:
            raise IndexError(f"row {row}")
        index, within = divmod(row, self._batch_rows)
        batch = self._batches[index]
        if batch is None:
            batch = self._batches[index] = _Batch(self._reader.get_batch(index))
        patch = batch.values[batch.ends[within] : batch.ends[within + 1]]
        if not batch.is_verified[within]:
            if crc32(patch) != batch.checksums[within]:
                raise ValueError("its checksum differs")
            batch.is_verified[within] = True
        return patch

    def find_rows(self, boxes: NDArray[np.int32]) -> NDArray[np.int32]:
        """(N,) the row of each of some boxes, -1 where it has none."""
        order, ordered = self._by_box
        if not len(ordered):
            return np.full(len(boxes), -1, np.int32)
        place = np.searchsorted(ordered, boxes).clip(max=len(ordered) - 1)
        return np.where(ordered[place] == boxes, order[place], -1).astype(np.int32)

    def cells(self, row: int) -> NDArray[np.int32]:
        """(per_side, per_side) rows of the cells of a patch, whose upper left cell is in `row`."""
        steps = np.arange(self.per_side, dtype=np.int32)
        rows = self.find_rows((self.boxes[row] + steps[:, None] * self._across + steps).ravel())
        if (rows < 0).any():
            raise ValueError("a cell of it is missing")
        return rows.reshape(self.per_side, self.per_side)

    @cached_property
    def _by_box(self) -> tuple[NDArray[np.intp], NDArray[np.int32]]:
        """The rows in the order of their boxes, and these boxes."""
        order = np.argsort(self.boxes, kind="stable")
        return order, self.boxes[order]

    @cached_property
    def boxes(self) -> NDArray[np.int32]:
        """(rows,) the box each row was cut from."""
        columns: list[Any] = [self._reader.get_batch(index).column(0).to_numpy() for index in range(len(self._batches))]
        return np.concatenate(columns) if columns else np.empty(0, np.int32)


def cell_column(scale: int) -> str:
    """The column of `boxes.parquet` for a coarser scale, counted from 1."""
    return f"cell_{scale}"


def scale_shard(shard: str, scale: int) -> str:
    """The shard of a scale, counted from the finest (0), beside a shard of the finest."""
    return f"{shard.removesuffix('.arrow')}.scale-{scale}.arrow" if scale else shard


class PlaceWriter:
    """Writes places at all scales: the patch of the finest one, and the cells around it that are not written yet.

    Its shards are whole only after `close`.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        owners: Sequence[str],
        patch_bytes: int,
        slide: Slide,
        lattices: Sequence[Lattice],
        first_cells: Sequence[NDArray[np.int32]],
        to_bytes: Callable[[Pixels], bytes],
    ) -> None:
        """`first_cells` (boxes,) of each coarser scale, -1: a patch is left out; `to_bytes`: from a cell's pixels."""
        cells = [None, *((lattice.per_side, lattice.across) for lattice in lattices)]
        self._finest, *self._coarser = (
            ShardWriter(path, patch_bytes, owner, shape)
            for path, owner, shape in zip(paths, owners, cells, strict=True)
        )
        self._slide, self._lattices, self._first_cells, self._to_bytes = slide, lattices, first_cells, to_bytes
        self._is_written = [np.zeros(lattice.total, bool) for lattice in lattices]

    def append(self, box: int, data: bytes) -> None:
        """Add a place, whose encoded patch at the finest scale is `data`."""
        self._finest.append(box, data)
        scales = zip(self._coarser, self._lattices, self._first_cells, self._is_written, strict=True)
        for shard, lattice, first, is_written in scales:
            for cell in lattice.cells(int(first[box])) if first[box] >= 0 else ():
                if not is_written[cell]:
                    shard.append(cell, self._to_bytes(lattice.read(self._slide, cell)))
                    is_written[cell] = True

    def __enter__(self) -> "PlaceWriter":
        return self

    def __exit__(self, *_: object) -> None:
        for shard in (self._finest, *self._coarser):
            shard.close()


def assemble(
    shard: Shard, row: int, codec: CodecName, shape: tuple[int, int, int], dtype: np.dtype[Any], out: Pixels | None
) -> Pixels:
    """The patch of `shape` whose upper left cell is in `row` of a shard, into `out` if given."""
    out = np.empty(shape, dtype) if out is None else out
    side = shape[0] // shard.per_side
    for (down, right), cell in np.ndenumerate(shard.cells(row)):
        pixels = decode(shard[int(cell)], codec, (side, side, shape[2]), dtype)
        out[down * side : (down + 1) * side, right * side : (right + 1) * side] = pixels
    return out

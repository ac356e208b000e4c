"""The patches of the coarser scales of a slide, in shards of their own: each cell written once, and put together again.

Beside the shard `patches-0.arrow` of the finest scale there are `patches-0.scale-1.arrow`, `patches-0.scale-2.arrow`.
The column `cell_1` of `boxes.parquet` has the upper left cell of every box's patch at the first coarser scale.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hidisc.patches.codec import CodecName, decode
from hidisc.patches.shard import Shard, ShardWriter
from hidisc.slides.scales import Lattice
from hidisc.slides.slide import Pixels, Slide


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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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

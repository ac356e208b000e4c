"""The loop of `hidisc embed`: read ahead, run the encoder, write block by block; then the table and the record.

Beside `NAME.npy` lies `NAME.done`, one byte per block: 1 once the block is on the disk. Both are written by `pwrite`,
not through a memory map: a full disk is then an error with a sentence and not the end of the process.
"""

import errno
import os
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hidisc.embeddings.embeddings import EMBEDDINGS, PATCHES, VECTORS, Embeddings, EmbeddingsInfo
from hidisc.embeddings.model import OpenedModel
from hidisc.ground.errors import UserError
from hidisc.ground.files import beside, relate, replaced, sync, write_atomic
from hidisc.ground.machine import versions
from hidisc.ground.progress import Say, Watch
from hidisc.ground.stop import reached
from hidisc.ground.tasks import prefetch
from hidisc.ground.tensors import to_device
from hidisc.patches.store import InputRule, PatchError, PatchStore
from hidisc.patches.table import PatchTable
from hidisc.sampling.batches import as_tensor, to_input
from hidisc.settings.embed import EmbedConfig
from hidisc.training.build import list_slides
from hidisc.training.processes import Fabric, check_others


class BlockFile:
    """(rows, dim) numbers; `missing()` blocks, `write(block, values)`, in any order, from any process."""

    def __init__(self, path: Path, rows: int, dim: int, dtype: str, block: int) -> None:
        self.path, self._rows, self._block = path, rows, block
        self._row_bytes = dim * np.dtype(dtype).itemsize
        self._shape, self._dtype = (rows, dim), np.dtype(dtype)
        self.done_path = path.with_suffix(".done")
        self.blocks = -(-rows // block)

    def create(self) -> None:
        """Make both files unless they are there; all space is taken now, so that a full disk is noticed at once."""
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
        """Put the values (n, dim) of a block on the disk, then mark the block as done."""
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


_BATCHES = 16
"""Batches between two writes; at most this many are lost to a crash on each device."""
_AT_ONCE = 64
"""Patches that a CPU embeds at once: the activations of more patches do not fit its caches."""
_ROWS = 4096
"""Rows copied at once."""
_FEW = 1000
_PACKAGES = ("hidisc", "torch", "timm", "numpy", "onnxruntime")


def extract(
    fabric: Fabric,
    store: PatchStore | Embeddings,
    rows: NDArray[np.int64],
    model: OpenedModel,
    out: Path,
    config: EmbedConfig,
    say: Say,
    watch: Watch,
) -> None:
    """Embed rows of a store (N,), or map rows of embeddings, each device its share of the blocks, and write the folder.

    The caller holds `out`. A row's vector depends on its block only, so however often the work was interrupted, and on
    however many devices it ran, the file is the same. Memory: the model, one block and the batches read ahead.
    """
    file = BlockFile(out / VECTORS, len(rows), model.dim, config.dtype, _BATCHES * config.batch)
    if fabric.is_global_zero:
        file.create()
    fabric.barrier()
    missing = file.missing()
    fabric.barrier()  # nobody writes before all have read what is missing
    mine = missing[fabric.global_rank :: fabric.world_size]
    watch(len(rows) - sum(len(rows[file.rows(block)]) for block in missing))
    device = torch.device("cpu") if model.runs_on_cpu_only else fabric.device
    net = model.net.to(device).to(memory_format=torch.channels_last)
    parts = [
        (block, rows[file.rows(block)][start : start + config.batch])
        for block in mine
        for start in range(0, len(rows[file.rows(block)]), config.batch)
    ]
    dtype = torch.float16 if config.dtype == "float16" else torch.float32
    read, bad, held = 0, 0, []
    pin = device.type == "cuda"
    source = prefetch(lambda part: _read(store, part[1], pin), parts, config.threads, config.prefetch)
    with closing(source), torch.inference_mode():
        for (block, batch), (pixels, unread) in zip(parts, source, strict=True):
            check_others(fabric)
            rule = store.info.input if isinstance(store, PatchStore) else None
            vectors = _embed(fabric, net, to_device(pixels, device), rule).to(dtype).cpu().numpy()
            _check(vectors, store, batch, config.dtype)
            for index, reason in unread:
                vectors[index] = np.nan
                say(f"warning: {reason} It is left out.")
            read, bad = read + len(batch), bad + len(unread)
            if bad > config.max_bad_share * max(read, _FEW):
                raise UserError(
                    f"{bad} of the {read:,} patches read so far cannot be read, more than max_bad_share = "
                    f"{config.max_bad_share:g} allows. Run `hidisc doctor {store.path}`."
                )
            held.append(vectors)
            if sum(map(len, held)) == len(rows[file.rows(block)]):
                file.write(block, np.concatenate(held))
                held = []
            watch(len(batch) * fabric.world_size)
    fabric.barrier()
    if fabric.is_global_zero:
        _finish(store, rows, model, out, config)
    fabric.barrier()


def _read(store: PatchStore | Embeddings, rows: NDArray[np.int64], pin: bool) -> tuple[Tensor, list[tuple[int, str]]]:
    """Pixels (B, C, H, W) of rows, and the unreadable places with the reasons; these pixels stay black.

    `pin` puts them in page-locked memory, for a GPU. Of embeddings, vectors (B, D) of rows.
    """
    if isinstance(store, Embeddings):
        return torch.from_numpy(np.asarray(store.vectors[rows], np.float32)), []
    pixels = np.zeros((len(rows), *store.shape), store.dtype)
    unread = []
    for index, row in enumerate(rows):
        try:
            store.read(int(row), pixels[index])
        except PatchError as error:
            unread.append((index, str(error)))
    images = as_tensor(pixels)
    return images.pin_memory() if pin else images, unread


def _embed(fabric: Fabric, net: nn.Module, pixels: Tensor, rule: InputRule | None) -> Tensor:
    """Vectors of stored pixels, or of other vectors where there is no rule for pixels."""
    if rule is None:
        return net(pixels).float()
    parts = torch.split(pixels, _AT_ONCE) if pixels.device.type == "cpu" else (pixels,)
    with fabric.autocast():
        vectors = [net(to_input(part, rule)) for part in parts]
    return torch.cat(vectors).float()


def _check(vectors: NDArray[Any], store: PatchStore | Embeddings, rows: NDArray[np.int64], dtype: str) -> None:
    """Refuse vectors that contain NaN or infinity."""
    wrong = np.flatnonzero(~np.isfinite(vectors).all(axis=1))
    if len(wrong):
        slide = store.table.column("slide")[rows[wrong[0]]]
        remedy = "dtype=float32 and precision=32" if dtype == "float16" else "precision=32, or another encoder"
        raise UserError(
            f"the encoder gives infinite or undefined numbers, first for a patch of slide {slide!r} (row "
            f"{rows[wrong[0]]:,} of {store.path}). Set {remedy}."
        )


def _finish(
    store: PatchStore | Embeddings, rows: NDArray[np.int64], model: OpenedModel, out: Path, config: EmbedConfig
) -> None:
    """Leave out patches that could not be read, then write the table and the record.

    The table is there before the file shrinks, so that a process killed between the two knows which rows it has.
    """
    vectors = np.load(out / VECTORS, mmap_mode="r", allow_pickle=False)
    if len(vectors) == len(rows):
        good = ~np.isnan(vectors[:, 0])
        with replaced(out / PATCHES) as part:
            store.table.select(rows[good]).save(part)
        if not good.all():
            _compact(out / VECTORS, good)
    table = PatchTable.load(out / PATCHES)
    made: dict[str, Any] = {
        "rows": len(table),
        "dim": model.dim,
        "dtype": config.dtype,
        "model": model.card.relate_source(Path(), out),
        "slides": list_slides(store.info.slides, *table.codes("slide")),
        "splits": config.splits,
        "per_slide": config.per_slide,
        "seed": config.seed,
        "bad_patches": len(rows) - len(table),
        "versions": versions(*_PACKAGES),
    }
    if isinstance(store, Embeddings):
        info = _describe_mapped(store, made, out)
    else:
        about = {"store_checksum": store.checksum, "level_names": store.info.level_names}
        info = EmbeddingsInfo(store=relate(store.path, out), **about, **made)
    write_atomic(out / EMBEDDINGS, (info.model_dump_json(indent=1) + "\n").encode())


def _describe_mapped(start: Embeddings, made: dict[str, Any], out: Path) -> EmbeddingsInfo:
    """The record of embeddings that a map has made of others: pictures and places are those of the start."""
    before = start.info
    if made["per_slide"] is None:
        made = {**made, "per_slide": before.per_slide, "seed": before.seed}
    about = {
        "store": before.store and relate(start.path / before.store, out),
        "start": relate(start.path, out),
        "start_checksum": start.artefact.checksum,
        "splits": made["splits"] or before.splits,
        "bad_patches": before.bad_patches,
    }
    return before.model_copy(update={**made, **about})


def _compact(path: Path, good: NDArray[np.bool_]) -> None:
    """Write the file anew with the good rows only."""
    old = np.load(path, mmap_mode="r", allow_pickle=False)
    kept = np.flatnonzero(good)
    with replaced(path) as part:
        new = np.lib.format.open_memmap(part, "w+", old.dtype, (len(kept), old.shape[1]))
        for start in range(0, len(kept), _ROWS):
            new[start : start + _ROWS] = old[kept[start : start + _ROWS]]
        new.flush()

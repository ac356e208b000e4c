"""Small pictures of patches: read from the stores that embeddings were made of, and packed into a page."""

import base64
import io
import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from hidisc.embeddings.embeddings import Embeddings
from hidisc.evaluation.duplicates import store_rows
from hidisc.ground.machine import count_cores
from hidisc.patches.store import PatchError, PatchStore
from hidisc.reporting.captions import encode, to_address
from hidisc.slides.display import as_rgb, shrink

GREY = 214
"""Level of the tile that stands for a patch that cannot be read."""
_SPRITE_PX = 4096
"""Longest side of one picture of many tiles: phones refuse larger ones."""
_QUALITY = 80


class PatchReader:
    """Reads the patches that embeddings were made of, from their stores, each of which is opened once."""

    def __init__(self) -> None:
        self._stores: dict[tuple[Path, str], PatchStore | str] = {}
        self.unreadable = 0
        """Patches shown as grey tiles."""

    @property
    def missing(self) -> tuple[str, ...]:
        """Why there are no pictures of some embeddings, one sentence per store."""
        return tuple(store for store in self._stores.values() if isinstance(store, str))

    def tiles(self, embeddings: Embeddings, rows: NDArray[np.int64], side_px: int) -> NDArray[np.uint8] | None:
        """Return pictures (n, side_px, side_px, 3) of some rows (n,) of the embeddings; None without their store."""
        path = (embeddings.path / embeddings.info.store).resolve()
        key = (path, embeddings.info.store_checksum)
        if key not in self._stores:
            reason = f"the store {path.name!r} is not where it was, or has changed. Embed it again to see its pictures."
            self._stores[key] = embeddings.open_store() or reason
        store = self._stores[key]
        if isinstance(store, str):
            return None

        def read(row: int) -> NDArray[np.uint8] | None:
            try:
                return shrink(as_rgb(store.read(row)), side_px)
            except PatchError:
                return None

        tiles = np.full((len(rows), side_px, side_px, 3), GREY, np.uint8)
        with ThreadPoolExecutor(count_cores()) as pool:  # decoding releases the interpreter's lock
            for number, tile in enumerate(pool.map(read, store_rows(embeddings, rows, store).tolist())):
                if tile is None:
                    self.unreadable += 1
                else:
                    tiles[number] = tile
        return tiles


@dataclass(frozen=True)
class Sprite:
    """N tiles on as few large pictures as possible: tile i is on picture i // each, and there row by row."""

    uris: tuple[str, ...]
    side_px: int
    across: int
    """Tiles in a row of a picture."""
    each: int
    """Tiles on a full picture."""


def pack_sprite(tiles: NDArray[np.uint8]) -> Sprite:
    """Lay out tiles (N, side_px, side_px, 3) on large pictures, white where none is left."""
    side = tiles.shape[1]
    most = _SPRITE_PX // side
    across = min(most, max(1, math.ceil(math.sqrt(len(tiles)))))
    each = across * most
    # JPEG mixes the colours of blocks of 16 px, across the edges of tiles that such blocks do not fit
    sharp = side % 16 != 0
    uris = []
    for start in range(0, len(tiles), each):
        part = tiles[start : start + each]
        down = math.ceil(len(part) / across)
        full = np.full((down * across, side, side, 3), 255, np.uint8)
        full[: len(part)] = part
        picture = full.reshape(down, across, side, side, 3).swapaxes(1, 2).reshape(down * side, across * side, 3)
        uris.append(to_uri(picture, sharp))
    return Sprite(tuple(uris), side, across, each)


def to_uri(rgb: NDArray[np.uint8], sharp: bool = False) -> str:
    """Return a picture (H, W, 3) as the address of a JPEG that holds all of it; `sharp` keeps all of its colour."""
    options = {"quality": _QUALITY, "subsampling": 0 if sharp else 2, "optimize": True}
    return to_address("image/jpeg", encode(Image.fromarray(rgb), "JPEG", **options))


def from_uri(uri: str) -> NDArray[np.uint8]:
    """Return the pixels (H, W, 3) of a picture that `to_uri` wrote."""
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(uri.split(",", 1)[1]))))

"""Random reads from a store against one file per patch: Pillow over JPEG files, tifffile over TIFF files.

And against themselves without the checksum, which is compared when a patch is first read: here all patches have been
read before, as in a training after its first pass. The first pass over raw patches takes up to 36 us more per 270 KB.

    python bench/reads.py

Batches of 50 random patches of 300 px, each side up to one array a batch; one thread, everything in the page cache.
The drawn patches are about 30 KB as JPEG; real H&E of that size is 35 KB.
"""

import tempfile
from pathlib import Path

import imagecodecs
import numpy as np
import tifffile
from PIL import Image

from harness import Claim, best_of, on_one_thread
from hidisc.patches import shard
from hidisc.patches.folders import find_folder
from hidisc.patches.store import PatchStore
from hidisc.settings.prepare import ImportConfig, PixelsConfig
from hidisc.slides.reader import open_slide
from hidisc.slides.resample import read_scaled
from hidisc.slides.synthetic import draw_cohort
from hidisc.verbs.prepare import import_patches

SLIDES, PATCHES, BATCH = 4, 100, 50


def write_files(folder: Path) -> tuple[list[Path], list[Path]]:
    """Drawn tissue as one JPEG and one TIFF a patch, in patient/slide/patch folders: (jpegs, tiffs)."""
    draw_cohort(folder / "drawn", patients=4, slides=1, fields=PATCHES, field_px=300, mpp=0.25, seed=0)
    jpegs, tiffs = [], []
    for slide_path in sorted((folder / "drawn" / "slides").glob("*.tiff"))[:SLIDES]:
        with open_slide(slide_path) as slide:
            for index in range(PATCHES):
                row, column = divmod(index, 10)
                patch = read_scaled(slide, 300 + 300 * column, 300 + 300 * row, 300, 300, 1.0)
                for kind, files in (("jpg", jpegs), ("tif", tiffs)):
                    path = folder / kind / slide_path.stem / "1" / f"{index:03}.{kind}"
                    path.parent.mkdir(parents=True, exist_ok=True)
                    files.append(path)
                jpegs[-1].write_bytes(imagecodecs.jpeg8_encode(patch, level=90, subsampling="444"))
                tifffile.imwrite(tiffs[-1], patch, photometric="rgb")
    return jpegs, tiffs


class _AnyChecksum(int):
    """Differs from no other."""

    def __ne__(self, other: object) -> bool:
        return False

    __hash__ = int.__hash__


_ANY = _AnyChecksum()


def read_all(store: PatchStore, batches: list[list[int]]) -> None:
    """Read every batch; each is let go before the next, as in training, so that memory is not asked for anew."""
    for batch in batches:
        store.read_many(batch)


def unchecked(store: PatchStore, batches: list[list[int]]) -> None:
    """Read without comparing checksums."""
    before = shard.crc32
    shard.crc32 = lambda _: _ANY
    try:
        read_all(store, batches)
    finally:
        shard.crc32 = before


def measure() -> list[Claim]:
    """Time one pass over all patches in random order."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        jpegs, tiffs = write_files(folder)
        stores = {}
        for codec, kind in (("jpeg", "jpg"), ("raw", "tif"), ("zstd", "tif"), ("png", "tif")):
            config = ImportConfig(pixels=PixelsConfig(codec=codec))
            import_patches(find_folder(folder / kind), folder / f"store-{codec}", config, workers=0)
            stores[codec] = PatchStore.load(folder / f"store-{codec}")
        batches = np.random.default_rng(0).permutation(len(jpegs)).reshape(-1, BATCH).tolist()
        seconds = best_of(
            15,
            jpeg=lambda: read_all(stores["jpeg"], batches),
            pillow=lambda: [len(np.stack([np.asarray(Image.open(jpegs[i])) for i in batch])) for batch in batches],
            raw=lambda: read_all(stores["raw"], batches),
            zstd=lambda: read_all(stores["zstd"], batches),
            png=lambda: read_all(stores["png"], batches),
            jpeg_unchecked=lambda: unchecked(stores["jpeg"], batches),
            raw_unchecked=lambda: unchecked(stores["raw"], batches),
            tifffile=lambda: [len(np.stack([tifffile.imread(tiffs[i]) for i in batch])) for batch in batches],
        )
        sizes = {
            codec: sum(file.stat().st_size for file in store.path.rglob("*.arrow")) for codec, store in stores.items()
        }
    rate = {name: len(jpegs) / time for name, time in seconds.items()}
    return [
        Claim("random JPEG reads : Pillow, one JPEG file per patch", rate["jpeg"], rate["pillow"], "patches/s", 1.3),
        Claim("random raw reads : tifffile, one TIFF file per patch", rate["raw"], rate["tifffile"], "patches/s", 3),
        Claim("random zstd reads : PNG, the same patches", rate["zstd"], rate["png"], "patches/s", 3),
        Claim("size of zstd : PNG", sizes["zstd"] / 1e6, sizes["png"] / 1e6, "MB", 1.1, higher_is_better=False),
        Claim("random JPEG reads : without checksums", rate["jpeg"], rate["jpeg_unchecked"], "patches/s", 0.98),
        Claim("random raw reads : without checksums", rate["raw"], rate["raw_unchecked"], "patches/s", 0.85),
    ]


def claims() -> list[Claim]:
    """Measure on one thread."""
    return on_one_thread(measure)


if __name__ == "__main__":
    print(*claims(), sep="\n")

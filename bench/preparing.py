"""`prepare` against a bare loop that reads the same regions with OpenSlide and encodes them the same way, per core.

    python bench/preparing.py

Ours is all of cutting a slide: thumbnail, tissue, scores, tables, checksums and syncing to disk; the bare loop only
reads, shrinks and encodes. Both in one process on one thread, on drawn slides with levels 4 times apart: JPEG tiles of
0.25 um/px cut at 0.5, the same tiles at 0.5 um/px cut at 0.5, and JPEG 2000 tiles as Aperio writes them. Three scales
(0.5, 1.0 and 2.0) are compared with 0.5 alone, both with stain normalisation, which is the default. What is compared is
processor time, so that other work on the machine does not count.
"""

import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import imagecodecs
import numpy as np
import openslide
import pyarrow.parquet as pq
import tifffile
from numpy.typing import NDArray
from PIL import Image

from harness import Claim, on_one_thread
from hidisc.patches.cut import CutTask, cut_slide
from hidisc.patches.record import BOXES, SlideRecord
from hidisc.patches.shard import Shard
from hidisc.settings.config import load_config
from hidisc.settings.prepare import PrepareConfig
from hidisc.slides.cohort import SlideRow
from hidisc.slides.slide import CACHE_BYTES
from hidisc.slides.stain import Stains, normalise
from hidisc.slides.synthetic import DIAGNOSES, draw_patient, draw_slide, draw_staining, write_pyramid

FIELDS, FIELD_PX, MPP, CUT_PX, TILE_PX, ROUNDS = 144, 600, 0.25, 300, 256, 3


def draw() -> NDArray[np.uint8]:
    """Tissue of 14 x 14 fields."""
    rng = np.random.default_rng(0)
    patient = draw_patient(next(iter(DIAGNOSES.values())), rng)
    staining = draw_staining((0.95, 0.95, 0.95), rng)
    return draw_slide(patient, staining, rng, fields=FIELDS, field_px=FIELD_PX, mpp=MPP)


def write_aperio(path: Path, pixels: NDArray[np.uint8], mpp: float) -> None:
    """An Aperio slide of JPEG 2000 tiles, of about as many bytes as those of TCGA."""
    with tifffile.TiffWriter(path) as tif:
        for step in (1, 4, 16):
            level = np.asarray(Image.fromarray(pixels).reduce(step))
            height, width = level.shape[:2]
            size = f"{width}x{height}"
            tif.write(
                encode_tiles(level),
                shape=level.shape,
                dtype=np.uint8,
                tile=(TILE_PX, TILE_PX),
                photometric="rgb",
                compression=tifffile.COMPRESSION.APERIO_JP2000_RGB,
                description=f"Aperio Image Library v11\r\n{size} [0,0 {size}] J2K/KDU Q=70|AppMag = 40|MPP = {mpp}",
                metadata=None,
            )


def encode_tiles(level: NDArray[np.uint8]) -> Iterator[bytes]:
    """The tiles of a level, those at its edges filled up."""
    short = [(0, -side % TILE_PX) for side in level.shape[:2]]
    padded = np.pad(level, (*short, (0, 0)), mode="edge")
    for y in range(0, padded.shape[0], TILE_PX):
        for x in range(0, padded.shape[1], TILE_PX):
            tile = np.ascontiguousarray(padded[y : y + TILE_PX, x : x + TILE_PX])
            yield bytes(imagecodecs.jpeg2k_encode(tile, level=34, reversible=False, codecformat="j2k"))


class Slide:
    """One slide, cut by both; the bare loop is told which boxes to read and which patches to encode."""

    def __init__(self, path: Path, mpp: float) -> None:
        self.path, self.side_px = path, round(CUT_PX * 0.5 / mpp)
        self._made = 0
        folder = self.cut()
        boxes = pq.read_table(folder / BOXES)
        self.corners = list(zip(boxes["x"].to_pylist(), boxes["y"].to_pylist(), strict=True))
        self._kept = set(Shard(folder / "patches-0.arrow").boxes.tolist())
        self._stains = Stains.from_dict(SlideRecord.load(folder).stain or {})

    def cut(self, *changes: str) -> Path:
        """Cut it as `prepare` does, into a folder of its own."""
        self._made += 1
        config = load_config(PrepareConfig, None, changes)
        task = CutTask(SlideRow("P", "S", self.path), self.path.parent / f"{self.path.name}-{self._made}", config)
        cut_slide(task)
        return task.folder

    def loop(self, stained: bool) -> None:
        """Read each region in this order with the same tile cache, shrink it, encode the kept ones as JPEG."""
        with openslide.OpenSlide(self.path) as slide:
            slide.set_cache(openslide.OpenSlideCache(CACHE_BYTES))
            for index, corner in enumerate(self.corners):
                region = slide.read_region(corner, 0, (self.side_px, self.side_px)).convert("RGB")
                if self.side_px != CUT_PX:
                    region = region.resize((CUT_PX, CUT_PX), Image.Resampling.HAMMING)
                if index in self._kept:
                    patch = np.asarray(region)
                    patch = normalise(patch[None], self._stains)[0] if stained else patch
                    imagecodecs.jpeg8_encode(patch, level=90, subsampling="444")

    def compare(self, what: str, bar: float, stained: bool = False) -> Claim:
        """Patches per second of processor time: the best of interleaved rounds, after one that does not count."""
        changes = () if stained else ("stain.method=none",)
        ours, bare = measure_both(lambda: self.cut(*changes), lambda: self.loop(stained))
        patches = len(self.corners)
        return Claim(f"prepare, {what} : bare OpenSlide loop", patches / ours, patches / bare, "patches/s", bar)

    def compare_scales(self, what: str, bar: float) -> Claim:
        """Seconds of processor time for three scales against those for the finest of them alone."""
        ours, one = measure_both(lambda: self.cut("grid.mpp=[0.5, 1.0, 2.0]"), self.cut)
        return Claim(f"prepare, three scales, {what} : the finest alone", ours, one, "s", bar, higher_is_better=False)


def measure_both(ours: Callable[[], object], theirs: Callable[[], object]) -> tuple[float, float]:
    """Seconds of processor time of each: the best of interleaved rounds, after one that does not count."""
    best = [float("inf"), float("inf")]
    for number in range(ROUNDS + 1):
        for side, call in enumerate((ours, theirs)):
            start = time.process_time()
            call()
            if number:
                best[side] = min(best[side], time.process_time() - start)
    return best[0], best[1]


def measure() -> list[Claim]:
    """Time both on each slide."""
    with tempfile.TemporaryDirectory() as name:
        folder, pixels = Path(name), draw()
        for mpp in (MPP, 0.5):
            # 28 x 28 fields; real slides are larger still, and fewer of their squares lie at an edge
            write_pyramid(folder / f"{mpp}.tiff", np.tile(pixels, (2, 2, 1)), mpp, TILE_PX, step=4)
        write_aperio(folder / "aperio.svs", pixels, MPP)
        jpeg, same, aperio = (
            Slide(folder / "0.25.tiff", MPP),
            Slide(folder / "0.5.tiff", 0.5),
            Slide(folder / "aperio.svs", MPP),
        )
        return [
            jpeg.compare("JPEG tiles at half their scale", 2.0),
            same.compare("JPEG tiles at their own scale", 3.0),
            aperio.compare("JPEG 2000 tiles at half their scale", 1.3),
            jpeg.compare("JPEG tiles at half their scale, both with Macenko", 1.7, stained=True),
            jpeg.compare_scales("JPEG tiles at half their scale", 1.35),
            same.compare_scales("JPEG tiles at their own scale", 1.35),
            aperio.compare_scales("JPEG 2000 tiles at half their scale", 1.35),
        ]


def claims() -> list[Claim]:
    """Measure on one thread."""
    return on_one_thread(measure)


if __name__ == "__main__":
    print(*claims(), sep="\n")

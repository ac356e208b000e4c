"""`prepare` against a bare loop that reads the same regions with OpenSlide and encodes them the same way, per core.

    python bench/preparing.py

Ours is all of cutting a slide: thumbnail, tissue, scores, tables, checksums and syncing to disk; the bare loop only
reads, shrinks and encodes. Both in one process on one thread, on a drawn slide of 0.25 um/px cut at 0.5.
"""

import tempfile
from pathlib import Path

import imagecodecs
import numpy as np
import openslide
import pyarrow.parquet as pq
from PIL import Image

from harness import Claim, best_of, on_one_thread
from hidisc.patches.cut import CutTask, cut_slide
from hidisc.patches.record import BOXES, SlideRecord
from hidisc.patches.shard import Shard
from hidisc.settings.load import load_config
from hidisc.settings.prepare import PrepareConfig
from hidisc.slides.cohort import SlideRow
from hidisc.slides.pyramid import write_pyramid
from hidisc.slides.stain import Stains, normalise
from hidisc.slides.synthetic import DIAGNOSES, draw_patient, draw_slide, draw_staining
from hidisc.slides.wsi import CACHE_BYTES

FIELDS, FIELD_PX, MPP = 144, 600, 0.25


def write_slide(path: Path) -> None:
    """A drawn slide as scanners write them: JPEG tiles of 256 px, levels 4 times apart."""
    rng = np.random.default_rng(0)
    patient = draw_patient(next(iter(DIAGNOSES.values())), rng)
    staining = draw_staining((0.95, 0.95, 0.95), rng)
    pixels = draw_slide(patient, staining, rng, fields=FIELDS, field_px=FIELD_PX, mpp=MPP)
    write_pyramid(path, np.tile(pixels, (2, 1, 1)), MPP, step=4)  # 14 x 28 fields; real slides are larger still


def bare_loop(path: Path, corners: list[tuple[int, int]], kept: set[int], stains: Stains | None) -> None:
    """Read each region in this order with the same tile cache, shrink it, encode the kept ones as JPEG."""
    with openslide.OpenSlide(path) as slide:
        slide.set_cache(openslide.OpenSlideCache(CACHE_BYTES))
        for index, corner in enumerate(corners):
            region = slide.read_region(corner, 0, (600, 600)).convert("RGB")
            patch = np.asarray(region.resize((300, 300), Image.Resampling.HAMMING))
            if index in kept:
                patch = patch if stains is None else normalise(patch[None], stains)[0]
                imagecodecs.jpeg8_encode(patch, level=90, subsampling="444")


def measure() -> list[Claim]:
    """Time both on one slide."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = folder / "slide.tiff"
        write_slide(path)
        made = 0

        def cut(*changes: str) -> Path:
            nonlocal made
            made += 1
            config = load_config(PrepareConfig, None, changes)
            task = CutTask(SlideRow("P", "S", path), folder / f"cut-{made}", config)
            cut_slide(task)
            return task.folder

        first = cut()
        boxes = pq.read_table(first / BOXES)
        corners = list(zip(boxes["x"].to_pylist(), boxes["y"].to_pylist(), strict=True))
        kept = set(Shard(first / "patches-0.arrow").boxes().tolist())
        stains = Stains.from_dict(SlideRecord.load(first).stain or {})
        seconds = best_of(
            3,
            plain=lambda: cut("stain.method=none"),
            bare=lambda: bare_loop(path, corners, kept, None),
            stained=cut,
            bare_stained=lambda: bare_loop(path, corners, kept, stains),
        )
    rate = {name: len(corners) / time for name, time in seconds.items()}
    return [
        Claim(
            "prepare, no stain : bare OpenSlide loop, read, shrink, encode",
            rate["plain"],
            rate["bare"],
            "patches/s",
            1.5,
        ),
        Claim(
            "prepare, Macenko : bare OpenSlide loop, same Macenko",
            rate["stained"],
            rate["bare_stained"],
            "patches/s",
            1.2,
        ),
    ]


def claims() -> list[Claim]:
    """Measure on one thread."""
    return on_one_thread(measure)


if __name__ == "__main__":
    print(*claims(), sep="\n")

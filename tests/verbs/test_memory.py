"""A slide of 100,000 x 100,000 px stays below 1 GB in a worker, with a pyramid and without one; a picture as well."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import imagecodecs
import numpy as np
import pytest
import tifffile
from PIL import Image

from hidisc.slides.readers.picture import MAX_MEGAPIXELS
from hidisc.slides.synthetic import DIAGNOSES, draw_patient, draw_slide, draw_staining

SIDE_PX, TILE_PX = 100_000, 512
TISSUE = range(64, 80)  # tiles of level 0, across and down
CUT_AND_REPORT = """
import re, sys
from pathlib import Path
from hidisc.settings.config import load_config
from hidisc.settings.prepare import PrepareConfig
from hidisc.verbs.prepare import prepare

built = prepare(Path(sys.argv[1]), Path(sys.argv[2]), load_config(PrepareConfig), workers=0)
peak = int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])
print(built.summary()["patches"], peak / 2**20)
"""


def write_huge_slide(path: Path, levels: tuple[int, ...]) -> None:
    """Glass with a square of drawn tissue in it; tiles are encoded once and written again and again."""
    rng = np.random.default_rng(0)
    patient, staining = draw_patient(DIAGNOSES["dense-round"], rng), draw_staining((0.95, 0.95, 0.95), rng)
    drawn = draw_slide(patient, staining, rng, fields=1, field_px=TILE_PX, mpp=0.25)
    tissue, glass = (
        bytes(imagecodecs.jpeg8_encode(np.ascontiguousarray(drawn[at : at + TILE_PX, at : at + TILE_PX]), level=80))
        for at in (TILE_PX, 0)
    )
    with tifffile.TiffWriter(path, bigtiff=True) as tiff:
        for down in levels:
            side = SIDE_PX // down
            across = -(-side // TILE_PX)
            where = range(TISSUE.start // down, TISSUE.stop // down)

            def tiles(across: int = across, where: range = where) -> Iterator[bytes]:
                for row in range(across):
                    for column in range(across):
                        yield tissue if row in where and column in where else glass

            tiff.write(
                tiles(),
                shape=(side, side, 3),
                dtype=np.uint8,
                tile=(TILE_PX, TILE_PX),
                photometric="ycbcr",
                subsampling=(2, 2),
                compression="jpeg",
                subfiletype=int(down > 1),
                resolution=(4e4 / down, 4e4 / down),
                resolutionunit="CENTIMETER",
                metadata=None,
            )


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc")
@pytest.mark.parametrize("levels", [(1, 4, 16), (1,)], ids=["pyramid", "one level"])
def test_a_huge_slide_stays_below_1_gb(tmp_path: Path, levels: tuple[int, ...]) -> None:
    write_huge_slide(tmp_path / "huge.tiff", levels)
    (tmp_path / "cohort.csv").write_text("patient,slide,path\nP,S,huge.tiff\n")
    done = subprocess.run(
        [sys.executable, "-c", CUT_AND_REPORT, tmp_path / "cohort.csv", tmp_path / "store"],
        capture_output=True,
        text=True,
        check=True,
    )
    patches, peak_gb = map(float, done.stdout.split())
    assert patches >= (len(TISSUE) * TILE_PX / 600 - 2) ** 2
    assert peak_gb < 1
    print(f"{patches:.0f} patches, peak {peak_gb:.2f} GB")


READ_AND_REPORT = """
import re, sys
from pathlib import Path
from hidisc.slides.readers.picture import read_picture

def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) * 1024

read_picture(Path(sys.argv[1]))
before = peak()
pixels = read_picture(Path(sys.argv[2]))
print((peak() - before) / (pixels.shape[0] * pixels.shape[1]))
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc")
@pytest.mark.parametrize("mode", ["RGB", "RGBA"])
def test_a_picture_takes_its_pixels_and_pillows_copy(tmp_path: Path, mode: str) -> None:
    """3 bytes per pixel, and 4 while Pillow has them: the largest picture takes 0.7 GB, beside 0.2 GB of libraries."""
    for name, side in (("warm.png", 100), ("large.png", 4000)):
        Image.new(mode, (side, side), (90, 60, 120)).save(tmp_path / name)
    done = subprocess.run(
        [sys.executable, "-c", READ_AND_REPORT, tmp_path / "warm.png", tmp_path / "large.png"],
        capture_output=True,
        text=True,
        check=True,
    )
    bytes_per_pixel = float(done.stdout)
    assert bytes_per_pixel < 7.5
    assert bytes_per_pixel * MAX_MEGAPIXELS * 1e6 < 0.75e9

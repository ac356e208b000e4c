"""Pixels -> a pyramidal TIFF as scanners write them; for drawn slides, tests and benchmarks."""

from pathlib import Path

import numpy as np
import tifffile
from numpy.typing import NDArray
from PIL import Image

SMALLEST_LEVEL_PX = 64


def write_pyramid(path: Path, pixels: NDArray[np.uint8], mpp: float, tile_px: int = 256, step: int = 2) -> None:
    """Write `pixels` (H, W, 3) as a tiled JPEG TIFF, each level `step` times coarser by box average, down to 64 px.

    OpenSlide reads it as `generic-tiff`, with `mpp` from the resolution tags. The file appears whole or not at all,
    and holds no date or version, so the same pixels give the same bytes.
    """
    beside = path.with_name(path.name + ".part")
    with tifffile.TiffWriter(beside, bigtiff=pixels.nbytes > 2**31) as tiff:
        level, level_mpp = pixels, mpp
        while True:
            tiff.write(
                level,
                photometric="rgb",
                tile=(tile_px, tile_px),
                compression="jpeg",
                compressionargs={"level": 93},
                subsampling=(1, 1),  # full-resolution chroma: the stain is in it
                subfiletype=int(level is not pixels),
                resolution=(1e4 / level_mpp, 1e4 / level_mpp),
                resolutionunit="CENTIMETER",
                software=False,
                metadata=None,
            )
            if min(level.shape[:2]) < step * SMALLEST_LEVEL_PX:
                break
            height, width = (side // step * step for side in level.shape[:2])
            level = np.asarray(Image.fromarray(level[:height, :width]).reduce(step))
            level_mpp *= step
    beside.replace(path)

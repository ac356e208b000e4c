"""Patch files to import, and stores made of them, for the tests of this folder and of reporting."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from hidisc.patches.folders import find_folder
from hidisc.patches.store import PatchStore
from hidisc.settings.prepare import ImportConfig
from hidisc.verbs.prepare import import_patches

Pictures = Mapping[str, NDArray[Any]]


def noise(seed: int, size_px: int = 16, channels: int = 3, dtype: str = "uint8") -> NDArray[Any]:
    """Pixels (size_px, size_px, channels), others for every seed."""
    top = np.iinfo(dtype).max
    return np.random.default_rng(seed).integers(0, top, (size_px, size_px, channels), dtype=dtype, endpoint=True)


def pictures_of(*slides: str, patches: int = 3) -> dict[str, NDArray[Any]]:
    """Pixels by path: `patches` pictures of every slide, each given as `patient/slide`."""
    paths = [f"{slide}/{number}.png" for slide in slides for number in range(patches)]
    return {path: noise(seed) for seed, path in enumerate(paths)}


def write_pictures(root: Path, pictures: Pictures) -> Path:
    """Write 8-bit pictures below `root`, given by relative path."""
    for name, pixels in pictures.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels.squeeze()).save(root / name)
    return root


def make_store(folder: Path, pictures: Pictures, **settings: Any) -> PatchStore:
    """Import pictures (`patient/slide/patch.png`, written to `folder/patches`) into `folder/store`."""
    source = find_folder(write_pictures(folder / "patches", pictures))
    import_patches(source, folder / "store", ImportConfig(**settings), workers=0)
    return PatchStore.load(folder / "store")


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, by relative path."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}

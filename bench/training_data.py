"""Training data of Raman patches against the authors' way: 1.8 times with strong views, 1.5 times with weak ones.

    python bench/training_data.py

Drawn patches of 300 px, two channels of 16 bits, in OpenSRH's folders. Ours: a store as `hidisc import opensrh` makes
it by default; a batch is read from it and becomes two views per patch. Theirs, as in the authors' public code: one TIFF
file per patch, read by tifffile; for each view the two channels are scaled, the third is computed, all are clamped, and
torchvision's transforms follow, image by image. Both have the same operations with the same probabilities and end with
one tensor of all views in memory that is used again (the authors' code stacks four times, each time in new memory: it
is spared that). Of torchvision's two generations the faster one counts. Numbers are views per second of processor time
on one thread, medians over rounds in turn; all files are in the page cache.
"""

import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import tifffile
import torch
from numpy.typing import NDArray
from torch import Tensor
from torchvision.transforms import transforms as v1
from torchvision.transforms import v2

from harness import Claim, median_rates, on_one_thread
from hidisc.patches.folders import META, SPLIT, find_opensrh
from hidisc.patches.store import PatchStore
from hidisc.sampling.batches import Batches
from hidisc.sampling.hierarchy import Hierarchy
from hidisc.sampling.sampler import Sampler
from hidisc.settings.prepare import ImportConfig, PixelsConfig
from hidisc.settings.train import BatchConfig, ComputeConfig, DataConfig, TrainConfig, ViewsConfig
from hidisc.training.step import ViewMaker
from hidisc.verbs.prepare import import_patches
from macenko import SIZE_PX, draw_tissue
from views import compose

PATIENTS, PATCHES, VIEWS, ROUNDS = 4, 12, 2, 15
WEAK = ViewsConfig(ops=("flips",), probability=0.5)
STRONG = ViewsConfig(saturation=0, hue=0)
"""Saturation and hue mean nothing in Raman channels: ours leaves them out, so theirs is spared them."""


def draw_raman(seed: int) -> NDArray[np.uint16]:
    """Return a patch (2, 300, 300) of CH2 and CH3: the drawn tissue's red and green as light, with photon noise."""
    rng = np.random.default_rng(seed)
    light = 3000 + 40.0 * draw_tissue(seed)[..., :2]
    noisy = light + rng.normal(0, 1, light.shape) * np.sqrt(8 * light)
    return np.moveaxis(noisy.clip(0, 65535).astype(np.uint16), 2, 0)


def write_opensrh(root: Path) -> list[Path]:
    """Write drawn patches in OpenSRH's folders; return their files."""
    patients, files = {}, []
    for patient in range(PATIENTS):
        name, paths = f"NIO_{patient}", []
        for patch in range(PATCHES):
            paths.append(f"{name}/1/patches/{patch}.tif")
            files.append(root / paths[-1])
            files[-1].parent.mkdir(parents=True, exist_ok=True)
            tifffile.imwrite(files[-1], draw_raman(patient * PATCHES + patch))
        patients[name] = {"class": "hgg", "slides": {"1": {"tumor_patches": paths, "normal_patches": []}}}
    (root / "meta").mkdir()
    (root / META).write_text(json.dumps(patients))
    (root / SPLIT).write_text(json.dumps({"train": [*patients], "val": []}))
    return files


def load_all(store: PatchStore, views: ViewsConfig) -> Callable[[], Tensor]:
    """Return what reads every patch of the store in one batch and makes its views, as a training step does."""
    tree = Hierarchy().grow(store.table, store.table.column("row") >= 0)
    batch = BatchConfig(images=len(store) * VIEWS, draw={"patch": PATCHES}, views=VIEWS)
    config = TrainConfig(batch=batch, views=views, compute=ComputeConfig(channels_last=False))
    batches = Batches(store, tree, Sampler(tree, batch, seed=0), DataConfig(), seed=0)
    make, generator = ViewMaker(config, store), torch.Generator()
    return lambda: make(batches.load(0).pixels, generator.manual_seed(0))[0]


class ThreeChannels(torch.nn.Module):
    """CH3 - CH2, CH2 and CH3 (3, H, W), clamped to [0, 1], of channels (2, H, W)."""

    def forward(self, image: Tensor) -> Tensor:
        """Return the three channels."""
        ch2, ch3 = image
        return torch.stack([ch3 - ch2 + 5000 / 65536, ch2, ch3]).clamp(0, 1)


def load_files(files: list[Path], version: ModuleType, config: ViewsConfig) -> Callable[[], Tensor]:
    """Return what reads every file and makes its views with torchvision, image by image."""
    transforms = version.Compose([version.Normalize((0, 0), (65536, 65536)), ThreeChannels(), compose(version, config)])

    memory = torch.empty(len(files) * VIEWS, 3, SIZE_PX, SIZE_PX)

    def load() -> Tensor:
        torch.manual_seed(0)
        images = (torch.from_numpy(tifffile.imread(file).astype(np.float32)) for file in files)
        return torch.stack([transforms(image) for image in images for _ in range(VIEWS)], out=memory)

    return load


def rate_of(load: Callable[[], object]) -> Callable[[], float]:
    """Return what measures the views per second of processor time of one pass."""
    load()  # so that the files are in the page cache and checksums have been compared

    def measure() -> float:
        start = time.process_time()
        load()
        return PATIENTS * PATCHES * VIEWS / (time.process_time() - start)

    return measure


def measure() -> list[Claim]:
    """Measure both kinds of views and the size on disk, in this process, on one thread."""
    torch.set_num_threads(1)
    found, sizes = [], {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        files = write_opensrh(folder / "OpenSRH")
        for codec in ("png", ImportConfig().pixels.codec):  # the last one, the default, is the one that is read
            path = folder / f"store-{codec}"
            import_patches(
                find_opensrh(folder / "OpenSRH"), path, ImportConfig(pixels=PixelsConfig(codec=codec)), workers=0
            )
            sizes[codec] = sum(file.stat().st_size for file in path.rglob("*.arrow")) / 1e6
        store = PatchStore.load(path)
        for kind, config, bar in (("strong", STRONG, 1.8), ("weak", WEAK, 1.5)):
            rates = median_rates(
                ROUNDS,
                ours=rate_of(load_all(store, config)),
                newer=rate_of(load_files(files, v2, config)),
                older=rate_of(load_files(files, v1, config)),
            )
            what = f"training data, Raman, 300 px, {kind} views : TIFF files and torchvision, image by image"
            found.append(Claim(what, rates["ours"], max(rates["newer"], rates["older"]), "views per CPU s", bar))
    found.append(Claim(f"size of {codec}, Raman : PNG", sizes[codec], sizes["png"], "MB", 1.1, higher_is_better=False))
    return found


def claims() -> list[Claim]:
    """Measure on one thread."""
    return on_one_thread(measure)


if __name__ == "__main__":
    print(*claims(), sep="\n")

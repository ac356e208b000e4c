"""Strong views at 300 px against torchvision's transforms, one image at a time: 2 times.

    python bench/views.py

Both sides turn the same drawn tissue, float tensors already in memory, into two views per patch with the paper's ten
operations at probability 0.3, on one thread of one process, in turns. torchvision's reference is the faster of its
two generations; it is spared putting its views together to a batch, and is told that outside a turned picture
there is nothing (`fill=None`), which gives the same black as its default and takes half the time.
"""

from types import ModuleType

import torch
from torchvision.transforms import transforms as v1
from torchvision.transforms import v2

from harness import Claim, best_of, on_one_thread
from hidisc.sampling.views import make_views
from hidisc.settings.train import ViewsConfig
from macenko import SIZE_PX, draw_tissue

PATCHES, VIEWS = 48, 2


def compose(version: ModuleType, config: ViewsConfig) -> torch.nn.Module:
    """Return torchvision's transforms of the config's operations: the weak ones, or the strong ones in their order."""
    p = config.probability
    flips = [version.RandomHorizontalFlip(p), version.RandomVerticalFlip(p)]
    if config.ops == ("flips",):
        return version.Compose(flips)
    jitter = version.ColorJitter(config.brightness, config.contrast, config.saturation, config.hue)
    blur = version.GaussianBlur(config.blur_kernel_px, (config.blur_sigma, config.blur_sigma))
    fill = {"fill": None} if version is v2 else {}
    affine = version.RandomAffine(config.affine_degrees, config.affine_translate, **fill)
    steps = [
        *flips,
        version.RandomApply([v2.GaussianNoise(0.0, config.noise_sigma[0])], p),  # v1 has none
        version.RandomApply([jitter], p),
        version.RandomAutocontrast(p),
        version.RandomSolarize(config.solarize_threshold, p),
        version.RandomAdjustSharpness(config.sharpness_factor, p),
        version.RandomApply([blur], p),
        version.RandomErasing(p),
        version.RandomApply([affine], p),
        version.RandomApply([version.RandomResizedCrop(SIZE_PX)], p),
    ]
    return version.Compose(steps)


def measure() -> list[Claim]:
    """Time both sides in this process, on one thread."""
    torch.set_num_threads(1)
    config = ViewsConfig()
    tissue = torch.stack([torch.from_numpy(draw_tissue(seed)) for seed in range(PATCHES)])
    images = tissue.permute(0, 3, 1, 2).float().div(255).contiguous()
    generator = torch.Generator()

    def by_torchvision(transforms: torch.nn.Module) -> list[torch.Tensor]:
        torch.manual_seed(0)
        return [transforms(image) for image in images for _ in range(VIEWS)]

    newer, older = compose(v2, config), compose(v1, config)
    seconds = best_of(
        10,
        ours=lambda: make_views(images, VIEWS, config, generator.manual_seed(0), colour=True),
        newer=lambda: by_torchvision(newer),
        older=lambda: by_torchvision(older),
    )
    speed = {name: PATCHES * VIEWS / value for name, value in seconds.items()}
    reference = max(speed["newer"], speed["older"])
    return [Claim("Strong views, 300 px : torchvision, image by image", speed["ours"], reference, "views/s", 2.0)]


def claims() -> list[Claim]:
    """Return the claims as measured now."""
    return on_one_thread(measure)


if __name__ == "__main__":
    for claim in claims():
        print(claim)

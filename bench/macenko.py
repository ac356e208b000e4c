"""Macenko at 300 px against torchstain's torch backend: 2.5 times in patch mode, 10 times in slide mode.

    python bench/macenko.py

Both sides run on one thread of one process, in turns, on the same drawn tissue. torchstain gets its own input
(a float CHW tensor, prepared outside the timing), is spared its separate H and E pictures (`stains=False`), and
is timed to the uint8 picture. In slide mode the stains are estimated once a slide and every patch is repainted
with them; torchstain has no such mode, so the reference is the same.
"""

import numpy as np
import torch
import torchstain
from numpy.typing import NDArray

from harness import Claim, best_of, on_one_thread
from hidisc.slides.stain import LIGHT, REFERENCE, estimate_stains, normalise, normalise_each

SIZE_PX = 300
PATCHES = 12


def draw_tissue(seed: int) -> NDArray[np.uint8]:
    """Return a patch (300, 300, 3) of pink stroma with gaps and blue nuclei, by Beer-Lambert, with camera noise."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:SIZE_PX, :SIZE_PX]
    waves = [np.sin(x * rng.normal(0, 0.06) + y * rng.normal(0, 0.06) + rng.uniform(0, 6)) for _ in range(6)]
    stroma = np.clip(0.55 + 0.25 * sum(waves), 0, 1.6)
    nuclei = np.zeros((SIZE_PX, SIZE_PX))
    for _ in range(110):
        (cx, cy), (rx, ry) = rng.uniform(0, SIZE_PX, 2), rng.uniform(5, 10, 2)
        inside = ((x - cx) / rx) ** 2 + ((y - cy) / ry) ** 2 < 1
        nuclei[inside] = rng.uniform(0.9, 2.0)
    chromatin = 1 + 0.15 * rng.normal(size=nuclei.shape)
    amounts = np.stack([0.08 * stroma + nuclei * chromatin, stroma * (1 - 0.5 * (nuclei > 0))], axis=-1)
    light = LIGHT * np.exp(-amounts @ (REFERENCE.vectors @ np.array([[0.95, 0.1], [0.05, 0.9]])).T)
    return np.clip(light + rng.normal(0, 2, light.shape), 0, 255).astype(np.uint8)


def measure() -> list[Claim]:
    """Time both sides in this process, on one thread."""
    torch.set_num_threads(1)
    patches = np.stack([draw_tissue(seed) for seed in range(PATCHES)])
    stains = estimate_stains(patches)
    if stains is None or normalise_each(patches)[1].any():
        raise RuntimeError("The drawn tissue shows no two stains: the comparison would be void.")
    tensors = [torch.from_numpy(patch).permute(2, 0, 1).float().contiguous() for patch in patches]
    torchstain_normalizer = torchstain.normalizers.MacenkoNormalizer(backend="torch")

    seconds = best_of(
        15,
        reference=lambda: [
            torchstain_normalizer.normalize(tensor, stains=False)[0].to(torch.uint8).numpy() for tensor in tensors
        ],
        patch=lambda: normalise_each(patches),
        slide=lambda: normalise(patches, stains),
    )
    speed = {name: PATCHES / value for name, value in seconds.items()}
    return [
        Claim("Macenko, patch mode, 300 px : torchstain, torch", speed["patch"], speed["reference"], "patches/s", 2.5),
        Claim("Macenko, slide mode, 300 px : torchstain, torch", speed["slide"], speed["reference"], "patches/s", 10.0),
    ]


def claims() -> list[Claim]:
    """Return the claims as measured now."""
    return on_one_thread(measure)


if __name__ == "__main__":
    for claim in claims():
        print(claim)

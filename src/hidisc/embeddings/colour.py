"""The colour floor: an encoder that sees no shape, only the mean and the deviation of every channel of a patch.

An encoder that is no better than these numbers has learned nothing but stain, scanner and brightness.
"""

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hidisc.artefacts.artefact import read_kind
from hidisc.ground.errors import UserError
from hidisc.patches.store import PatchError, PatchStore, as_input

COLOUR = "colour"
"""Its name in `hidisc embed STORE colour`."""
_MOST = 4096
"""Most patches from which the means and deviations of the columns are computed."""


class Colour(nn.Module):
    """Pixels (B, C, H, W) in [0, 1] -> (B, 2C): means and deviations of the channels, each column standardised.

    The raw numbers of tissue point in nearly the same direction (the median cosine of two patches is 0.99), which the
    temperature of the vote, float16 and the check for collapse are not made for. Accuracy is the same.
    `centre` and `scale` (2C,) are the columns' mean and deviation in a store; no label is used.
    """

    centre: Tensor
    scale: Tensor

    def __init__(self, centre: Tensor, scale: Tensor) -> None:
        super().__init__()
        self.register_buffer("centre", centre)
        self.register_buffer("scale", scale)

    def forward(self, x: Tensor) -> Tensor:
        """One vector per picture."""
        return (summarise_channels(x.float()) - self.centre) / self.scale


def summarise_channels(x: Tensor) -> Tensor:
    """Mean and standard deviation of every channel (B, 2C) of pictures (B, C, H, W)."""
    deviation, mean = torch.std_mean(x, dim=(2, 3), correction=0)
    return torch.cat([mean, deviation], dim=1)


def fit_colour(store: PatchStore, rows: NDArray[np.int64]) -> Colour:
    """The floor for some rows (N,) of a store, standardised by at most 4,096 of them, evenly spaced.

    In float64 and rounded, so that the same patches give the same encoder with any number of threads.
    """
    chosen = rows[np.linspace(0, len(rows) - 1, min(len(rows), _MOST)).astype(np.int64)]
    colours = torch.cat([torch.empty(0, 2 * store.input_channels), *(read_colour(store, int(row)) for row in chosen)])
    deviation, centre = torch.std_mean(colours, dim=0, correction=0)
    deviation = torch.where(deviation > 1e-5, deviation, 1.0)  # a column that never varies stays 0
    return Colour(centre.nan_to_num().round(decimals=6).float(), deviation.round(decimals=6).float())


def refuse_path(name: Path) -> None:
    """Refuse a file or folder of the floor's own name, unless it holds embeddings, which cannot be meant."""
    if name.exists() and read_kind(name) != "embed":
        raise UserError(
            f"{name} is the name of the colour floor and of something that is here. Write ./{name} for what is here, "
            "or rename it to have the floor."
        )


def read_colour(store: PatchStore, row: int) -> Tensor:
    """(1, 2C) float64 of one patch; (0, 2C) where it cannot be read, which `extract` reports."""
    try:
        pixels = torch.from_numpy(as_input(store.read(row), store.info.input))
    except PatchError:
        return torch.empty(0, 2 * store.input_channels)
    return summarise_channels(pixels.permute(2, 0, 1)[None].double())

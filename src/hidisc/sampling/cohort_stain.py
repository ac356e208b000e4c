"""CohortStain: how the slides of a cohort differ in stain, from which views draw other stains of the same cohort.

The idea is that of RandStainNA (Shen et al., MICCAI 2022): normalise a picture to a stain that is drawn from the
distribution of stains that there are. Here a stain is the mean and the spread of the amounts of haematoxylin, of eosin
and of the residual, over a slide. A view moves the whole slide to a drawn stain, so that patches of a slide with
many nuclei stay darker than those with few.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hidisc.ground.errors import UserError
from hidisc.ground.files import Record
from hidisc.ground.seeds import Purpose, make_rng
from hidisc.patches.store import PatchError, PatchStore
from hidisc.slides.stain import OD_OF_LEVEL, REFERENCE

_PATCHES = 16
"""Patches of each slide that are measured."""
_MIN_STD = 0.01
"""Least spread of an amount, in optical density: a slide without a stain must not have its noise amplified."""
_MOST_SD = 2.0
"""Drawn stains are at most so many standard deviations from the cohort's mean."""
VECTORS = np.column_stack([REFERENCE.vectors, np.cross(*REFERENCE.vectors.T)])
"""(3, 3) optical density of haematoxylin, of eosin and of the residual, as columns."""

Stain = tuple[tuple[float, float], tuple[float, float], tuple[float, float]]
"""(mean, logarithm of the standard deviation) of each of the three amounts."""


class CohortStain(Record):
    """`stain.json` of a run: the stain of every slide that is learned from."""

    slides: dict[str, Stain]


@dataclass(frozen=True, eq=False)
class BatchStains:
    """The stains of a batch's slides, and those of the cohort."""

    own: Tensor
    """(N, 3, 2) the stain of each picture's slide."""
    mean: Tensor
    """(3, 2) over the slides of the cohort."""
    std: Tensor
    """(3, 2) standard deviation between the slides of the cohort."""

    def draw_maps(self, uniform: Tensor) -> Tensor:
        """Affine maps (V N, 3, 4) of optical density that give each of V views a normally distributed stain.

        `uniform` (V N, 6) in [0, 1), views of a picture next to each other. An amount a of a slide with mean m and
        deviation s becomes (a - m) s' / s + m', with (m', log s') drawn.
        """
        normal = (torch.erfinv(2 * uniform - 1) * 2**0.5).clamp(-_MOST_SD, _MOST_SD).view(-1, 3, 2)
        drawn = self.mean + self.std * normal
        own = self.own.repeat_interleave(len(drawn) // max(len(self.own), 1), 0)
        factor = (drawn[..., 1] - own[..., 1]).exp()
        shift = drawn[..., 0] - own[..., 0] * factor
        vectors = uniform.new_tensor(VECTORS.tolist())
        return torch.cat([vectors * factor[:, None] @ vectors.inverse(), (shift @ vectors.T)[:, :, None]], dim=2)


class StainTable:
    """Looks up the stains of patches by their rows in the table of a store."""

    def __init__(self, store: PatchStore, cohort: CohortStain) -> None:
        codes, names = store.table.codes("slide")
        stains = torch.tensor([cohort.slides[name] for name in cohort.slides])
        number = {name: index for index, name in enumerate(cohort.slides)}
        self._of_slide = torch.tensor([number.get(name, -1) for name in names])
        self._codes, self._stains = torch.from_numpy(codes.astype(np.int64)), stains
        self._mean, self._std = stains.mean(dim=0), stains.std(dim=0, correction=0)

    def look_up(self, rows: Tensor) -> BatchStains:
        """The stains of patches, given by their rows (N,) of the table."""
        return BatchStains(self._stains[self._of_slide[self._codes[rows]]], self._mean, self._std)


def measure_stains(store: PatchStore, rows: NDArray[np.integer], seed: int) -> CohortStain:
    """The stain of every slide that has one of some rows of the table, measured from these rows alone."""
    if not store.is_colour or store.dtype != np.uint8:
        raise UserError(
            f"views.ops: 'cohort_stain' measures stains in 8-bit red, green and blue, and {store.path} has no such "
            "pictures. Leave 'cohort_stain' out of views.ops."
        )
    is_used = np.zeros(len(store.table), bool)
    is_used[rows] = True
    slides = {name: every[is_used[every]] for name, every in sorted(store.table.rows_by("slide").items())}
    measured = {name: _measure_slide(store, used, name, seed) for name, used in slides.items() if len(used)}
    return CohortStain(slides=measured)


def _measure_slide(store: PatchStore, rows: NDArray[np.integer], name: str, seed: int) -> Stain:
    """The stain of a slide from a few of its patches; patches that cannot be read are passed over."""
    pixels: list[NDArray[np.generic]] = []
    for row in make_rng(seed, Purpose.COHORT_STAIN, name).permutation(rows):
        try:
            pixels.append(store.read(int(row)))
        except PatchError as error:
            last = error
        if len(pixels) == _PATCHES:
            break
    if not pixels:
        raise UserError(f"{last} No other patch of slide {name!r} can be read: repair or remove that slide.")
    return measure_pixels(np.concatenate([patch.reshape(-1, 3) for patch in pixels]))


def measure_pixels(pixels: NDArray[np.generic]) -> Stain:
    """The stain of pixels (N, 3) uint8."""
    amounts = OD_OF_LEVEL[pixels].astype(np.float64) @ np.linalg.inv(VECTORS).T
    means, spreads = amounts.mean(axis=0), np.log(np.maximum(amounts.std(axis=0), _MIN_STD))
    pairs: Sequence[tuple[float, float]] = list(zip(means.tolist(), spreads.tolist(), strict=True))
    return pairs[0], pairs[1], pairs[2]

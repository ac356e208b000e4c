"""Batches read ahead of training; an unreadable patch is replaced by another of its slide."""

from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hidisc.ground.errors import UserError
from hidisc.ground.seeds import Purpose, make_rng
from hidisc.ground.tasks import prefetch
from hidisc.patches.store import SRH_OFFSET, SRH_SCALE, InputRule, PatchError, PatchStore
from hidisc.sampling.hierarchy import Tree
from hidisc.sampling.sampler import Sampler
from hidisc.settings.train import DataConfig

_TRIES = 8
_SIGN = np.uint16(2**15)
_FEW = 1000
"""Patches that are read before the share of bad patches is judged."""


@dataclass(frozen=True)
class Batch:
    """M patches as they are stored, and the slides, patients and labels they belong to."""

    step: int
    pixels: Tensor
    """(M, C, H, W) as `as_tensor` holds stored ones; `to_input` makes floats of them."""
    ancestry: Tensor
    """(M, levels) int64."""
    labels: Tensor
    """(M,) int64 codes of the label column; -1: no label."""
    bad: tuple[str, ...]
    """The reason why each replaced patch could not be read."""


class Batches:
    """Reads the batches of the steps of one rank, `prefetch` of them before they are asked for, in order.

    Memory: `prefetch` + 2 batches of stored patches.
    """

    def __init__(
        self,
        store: PatchStore,
        tree: Tree,
        sampler: Sampler,
        config: DataConfig,
        seed: int,
        rank: int = 0,
        *,
        pin: bool = False,
    ) -> None:
        """`pin` puts batches into page-locked memory, from which a GPU takes them while the host goes on."""
        self._store, self._tree, self._sampler, self._config = store, tree, sampler, config
        self._seed, self._rank, self._pin = seed, rank, pin
        self._labels: NDArray[np.int32] = store.table.codes("label")[0]
        self._slides: NDArray[np.int32] = store.table.codes("slide")[0]
        self.read, self.bad = 0, 0

    def steps(self, first: int, last: int) -> Generator[Batch, None, None]:
        """The batches of steps first ... last - 1; raises UserError when too many patches are bad."""
        source = prefetch(self.load, range(first, last), self._config.threads, self._config.prefetch)
        with closing(source):
            for batch in source:
                self._count(batch)
                yield batch

    def load(self, step: int) -> Batch:
        """The batch of one step."""
        draw = self._sampler.draw(step, self._rank)
        store, ancestry = self._store, draw.ancestry.copy()
        pixels = np.empty((len(draw.places), *store.shape), store.dtype)
        bad: list[str] = []
        for index, leaf in enumerate(draw.places):
            ancestry[index, -1] = self._read(int(leaf), pixels[index], step, index, bad)
        labels = self._labels[ancestry[:, -1]].astype(np.int64)
        tensors = as_tensor(pixels), torch.from_numpy(ancestry), torch.from_numpy(labels)
        if self._pin:
            tensors = tensors[0].pin_memory(), tensors[1].pin_memory(), tensors[2].pin_memory()
        return Batch(step, *tensors, tuple(bad))

    def _read(self, leaf: int, out: NDArray[np.generic], step: int, index: int, bad: list[str]) -> int:
        """Read a leaf of the tree, or another of its slide; the table row that was read."""
        bad_before = len(bad)
        for candidate in self._candidates(leaf, step, index):
            row = int(self._tree.leaves[candidate])
            try:
                self._store.read(row, out)
                return row
            except PatchError as error:
                bad.append(str(error))
        others = len(bad) - bad_before - 1
        raise UserError(
            f"{bad[-1]} No other patch beside it can be read ({others} tried): repair or remove that slide, "
            "then train again."
        )

    def _candidates(self, leaf: int, step: int, index: int) -> Iterator[int]:
        """The leaf itself, then a few other leaves of its slide with the same parent, in random order."""
        yield leaf
        first, last = self._tree.siblings(leaf)
        slides = self._slides[self._tree.leaves[first:last]]
        same_slide = first + np.flatnonzero(slides == self._slides[self._tree.leaves[leaf]])
        rng = make_rng(self._seed, Purpose.REPLACEMENT, step, self._rank, index)
        yield from rng.permutation(same_slide[same_slide != leaf])[:_TRIES]

    def _count(self, batch: Batch) -> None:
        """Stop when the share of bad patches is above `max_bad_share`."""
        self.read += len(batch.pixels)
        self.bad += len(batch.bad)
        share = self._config.max_bad_share
        if self.bad > share * max(self.read, _FEW):
            raise UserError(
                f"{self.bad} of the {self.read:,} patches read so far cannot be read, more than data.max_bad_share = "
                f"{share:g} allows; the last: {batch.bad[-1]}"
            )


def as_tensor(pixels: NDArray[np.generic]) -> Tensor:
    """(M, C, H, W) from stored pixels (M, H, W, C), their memory as it is, and small until they are on the device.

    8 bits are uint8. 16 bits are int16, lower by 32,768, because devices know no unsigned ones; `pixels` is changed.
    """
    if pixels.dtype == np.uint16:
        pixels = np.bitwise_xor(pixels, _SIGN, out=pixels).view(np.int16)
    return torch.from_numpy(pixels).permute(0, 3, 1, 2)


def to_input(pixels: Tensor, rule: InputRule) -> Tensor:
    """Float32 input in [0, 1] from the pixels of `as_tensor`, on their device; the same as `patches.store.as_input`."""
    is_small = pixels.dtype == torch.uint8
    values = pixels.float() if is_small else pixels.float().add_(2**15)
    if rule == "unit":
        return values.div_(255 if is_small else 65535)
    ch2, ch3 = values.mul_(1 / SRH_SCALE).unbind(1)
    return torch.stack([(ch3 - ch2).add_(SRH_OFFSET / SRH_SCALE).clamp_(0, 1), ch2, ch3], dim=1)

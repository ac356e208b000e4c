"""HiDisc (Jiang et al., CVPR 2023): at every level, rows that share an ancestor attract each other, others repel."""

from collections.abc import Sequence
from typing import Any, Literal

import torch
import torch.nn.functional as F
from pydantic import Field, field_validator
from torch import Tensor
from torch.autograd import Function

from hidisc.ground.errors import UserError
from hidisc.ground.tensors import constant, gather_ranks
from hidisc.ground.text import count
from hidisc.models.encoder import Encoder, Images
from hidisc.objectives.objective import LevelSettings, Losses, Objective, Rows
from hidisc.objectives.positives import group_level, mean_positive

_BLOCK = 2**20
"""Similarities in memory at once."""
_TAU = 0.7
"""The paper's temperature."""


class Settings(LevelSettings):
    """Settings of HiDisc; SimCLR is the same with the patch level alone."""

    name: Literal["hidisc"] = "hidisc"
    """The objective."""
    weights: dict[str, float] = Field({})
    """Weight (lambda) of each level; levels not named have 1, a level with 0 costs nothing."""
    temperature: float | dict[str, float] = _TAU
    """Temperature of the soft-max (tau), or one per level; 0.7 in the paper's text, 0.07 in its public code."""
    reduction: Literal["mean", "sum"] = "mean"
    """How the loss is reduced over anchors: mean as in public contrastive code, or sum as in the paper's Eq. 1."""

    @field_validator("temperature")
    @classmethod
    def _is_positive(cls, given: float | dict[str, float]) -> float | dict[str, float]:
        if min(given.values() if isinstance(given, dict) else [given], default=1) <= 0:
            raise ValueError("a temperature is above 0")
        return given


def hidisc_loss(
    z: Tensor,
    ancestry: Tensor,
    weights: Sequence[float],
    temperature: float | Sequence[float] = _TAU,
    *,
    reduction: Literal["mean", "sum"] = "mean",
    keys: tuple[Tensor, Tensor, int] | None = None,
    across: Sequence[int | None] | None = None,
) -> tuple[Tensor, Tensor]:
    """Eq. 1-4 of the paper: (weighted sum, value of each level (L,)).

    `z` (N, D) unit vectors, `ancestry` (N, L) ids from coarse to fine, `weights` one per level, and so is `temperature`
    unless it is one number. Positives of an anchor
    are all other rows with its id at that level, so a repeated slide is a positive. An anchor without any takes no part
    in that level. Across ranks, `keys` are everyone's (z (M, D), ancestry (M, L)) and the place of our first row
    among them: the mean of the ranks' values is then the loss of the one large batch. Computed in float32 or better.

    `across` has, for a level, a finer one at which positives must differ from the anchor (patches of the same patient
    on other slides). What is equal there is neither a positive nor a negative at that level: it is in no sum.

    The positives' similarities are summed as `z_i . sum(z_p)`, group by group, so that all levels share one pass over
    the N x M similarities, which are never all in memory; levels with another temperature or `across` have their own.
    """
    taus = [temperature] * len(weights) if isinstance(temperature, int | float) else list(temperature)
    across = across or [None] * len(weights)
    _check(z, ancestry, weights, taus)
    z = z.float() if z.dtype in (torch.bfloat16, torch.float16) else z
    all_z, all_ancestry, first = keys if keys is not None else (z, ancestry, 0)
    all_z = all_z.to(z.dtype)
    ranks = len(all_z) / max(len(z), 1)
    log_sums: dict[tuple[float, int | None], Tensor] = {}
    levels = []
    for level, weight in enumerate(weights):
        if weight == 0:
            levels.append(z.new_zeros(()))
            continue
        tau, inner = taus[level], across[level]
        if (tau, inner) not in log_sums:
            apart = None if inner is None else (ancestry[:, inner], all_ancestry[:, inner])
            log_sums[tau, inner] = _LogSumExp.apply(z, all_z, first, tau, apart)
        groups = group_level(all_ancestry, level, inner)
        similarity, has_any = mean_positive(z, all_z, groups, first)
        loss = torch.where(has_any, log_sums[tau, inner] - similarity / tau, 0).sum() * ranks
        if reduction == "mean":  # over the anchors of all ranks that have a positive
            loss = loss / groups.anchors
        levels.append(loss)
    values = torch.stack(levels)
    return (values * constant(weights, values)).sum(), values.detach()


def contrast_ranks(
    z: Tensor,
    ids: Tensor,
    weights: Sequence[float],
    temperature: float | Sequence[float],
    reduction: Literal["mean", "sum"] = "mean",
    across: Sequence[int | None] | None = None,
) -> tuple[Tensor, Tensor]:
    """`hidisc_loss` of this rank's anchors z (N, D) with ids (N, L) against the keys of all ranks."""
    (keys, first), (all_ids, _) = gather_ranks(z), gather_ranks(ids)
    keys_of_all = keys, all_ids, first
    return hidisc_loss(z, ids, weights, temperature, reduction=reduction, keys=keys_of_all, across=across)


class Loss(Objective):
    """HiDisc over the levels of the batch."""

    def __init__(self, settings: Settings, encoder: Encoder, levels: Sequence[str], classes: Sequence[str]) -> None:
        super().__init__(settings, encoder, levels, classes)
        self.temperatures = level_temperatures(settings.temperature, levels)

    def forward(self, encoder: Encoder, images: Images, rows: Rows) -> Losses:
        """Anchors of this rank against the keys of all."""
        z = F.normalize(encoder.project(images).float(), dim=1)
        total, values = contrast_ranks(
            z, rows.ancestry, self.weights, self.temperatures, self.settings.reduction, self.across
        )
        return Losses(total, self.name_levels(values), z.detach())


def level_temperatures(temperature: float | dict[str, float], levels: Sequence[str]) -> tuple[float, ...]:
    """One temperature per level; levels that are not named have the paper's."""
    if isinstance(temperature, int | float):
        return (temperature,) * len(levels)
    if not set(temperature) <= set(levels):
        raise UserError(
            f"objective.temperature = {temperature}: the levels of this run are {', '.join(levels)}. Name these, or "
            "give one number."
        )
    return tuple(temperature.get(level, _TAU) for level in levels)


class _LogSumExp(Function):
    """log sum over a != i of exp(z_i . z_a / tau), (N,), block by block; the blocks are made anew going back.

    `apart` (ids (N,) of the rows, ids (M,) of the keys): the sum is over keys whose id is not that of the row.
    """

    @staticmethod
    def forward(
        ctx: Any, z: Tensor, keys: Tensor, first: int, temperature: float, apart: tuple[Tensor, Tensor] | None
    ) -> Tensor:
        out = z.new_empty(len(z))
        with torch.autocast(z.device.type, enabled=False):
            for rows in _blocks(len(z), len(keys)):
                out[rows] = _similarities(z, keys, rows, first, temperature, apart).logsumexp(dim=1)
        ctx.save_for_backward(z, keys, out)
        ctx.first, ctx.temperature, ctx.apart = first, temperature, apart
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        z, keys, out = ctx.saved_tensors
        grad_z, grad_keys = torch.empty_like(z), torch.zeros_like(keys)
        scale = grad / ctx.temperature
        with torch.autocast(z.device.type, enabled=False):
            for rows in _blocks(len(z), len(keys)):
                share = _similarities(z, keys, rows, ctx.first, ctx.temperature, ctx.apart)
                share.sub_(out[rows, None]).exp_().mul_(scale[rows, None])
                torch.mm(share, keys, out=grad_z[rows])
                grad_keys.addmm_(share.T, z[rows])
        return grad_z, grad_keys, None, None, None


def _similarities(
    z: Tensor, keys: Tensor, rows: slice, first: int, temperature: float, apart: tuple[Tensor, Tensor] | None
) -> Tensor:
    """(rows, M) z_i . z_a / tau, and the lowest number for a row with itself (minus infinity could lead to NaN)."""
    block, lowest = (z[rows] / temperature) @ keys.T, torch.finfo(z.dtype).min
    if apart is not None:
        return block.masked_fill_(apart[0][rows, None] == apart[1], lowest)  # a row with itself among them
    block.diagonal(first + rows.start).fill_(lowest)
    return block


def _blocks(rows: int, columns: int) -> list[slice]:
    height = max(1, _BLOCK // max(columns, 1))
    return [slice(start, min(start + height, rows)) for start in range(0, rows, height)]


def _check(z: Tensor, ancestry: Tensor, weights: Sequence[float], temperatures: Sequence[float]) -> None:
    """Refuse inputs whose shapes or values do not fit together."""
    if z.ndim != 2 or not z.is_floating_point():
        raise UserError(f"z is {z.dtype} of shape {tuple(z.shape)}. Give (N, D) floating-point unit vectors.")
    if ancestry.ndim != 2 or len(ancestry) != len(z) or ancestry.is_floating_point():
        raise UserError(
            f"ancestry is {ancestry.dtype} of shape {tuple(ancestry.shape)} for z of shape {tuple(z.shape)}. Give "
            "integer ids (N, levels), from coarse to fine."
        )
    if len(weights) != ancestry.shape[1] or not len(weights):
        given, levels = count(len(weights), "weight"), count(ancestry.shape[1], "level")
        raise UserError(f"{given} for {levels}. Give one weight per level.")
    if len(temperatures) != len(weights):
        given, levels = count(len(temperatures), "temperature"), count(len(weights), "level")
        raise UserError(f"{given} for {levels}. Give one number, or one per level.")
    for temperature in temperatures:
        if temperature <= 0:
            raise UserError(f"temperature is {temperature}. Give a number above 0, such as 0.7.")

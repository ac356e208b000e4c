"""Batch normalisation by the statistics of all ranks' rows, so that several devices are one large one.

torch's own `SyncBatchNorm` is for GPUs only, and in every layer the host waits for the device. This one runs on every
device, nobody waits, and its parameters and buffers have the names of the layer it replaces. The gradient is written
out, because autograd would keep a second copy of every layer's input.
"""

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from timm.layers.norm_act import BatchNormAct2d
from torch import Tensor, nn
from torch.autograd import Function
from torch.nn.modules.batchnorm import _BatchNorm

from hidisc.ground.errors import UserError
from hidisc.ground.tensors import count_ranks, gather_ranks

_PLAIN = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


class BatchNormOfAllRanks(_BatchNorm):
    """(B, C, ...) -> the same: a channel less its mean, divided by its deviation, over the rows of all ranks.

    Ranks may have different numbers of rows. In evaluation, and alone, it is what torch's layer is.
    """

    def __init__(self, replaced: _BatchNorm) -> None:
        super().__init__(
            replaced.num_features,
            replaced.eps,
            replaced.momentum,
            affine=False,
            track_running_stats=replaced.track_running_stats,
        )
        self.affine, self.training = replaced.affine, replaced.training
        self._parameters.update(replaced._parameters)
        self._buffers.update(replaced._buffers)
        self._modules.update(replaced._modules)  # timm's `drop` and `act`

    def forward(self, x: Tensor) -> Tensor:
        """Normalise, then drop and activate where the layer does that as well."""
        if (self.training or self.running_mean is None) and count_ranks() > 1:
            y, mean, variance, count = _Normalise.apply(x, self.weight, self.bias, self.eps)
            if self.training and self.running_mean is not None:
                self._remember(mean, variance, count)
        else:
            y = super().forward(x)
        for module in self._modules.values():
            y = module(y)  # type: ignore[misc]
        return y

    @torch.no_grad()
    def _remember(self, mean: Tensor, variance: Tensor, count: Tensor) -> None:
        """Move the running statistics towards those of a batch, as torch does: with the unbiased variance."""
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        share: Any = self.momentum if self.momentum is not None else 1 / self.num_batches_tracked.to(mean.dtype)
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), share)
        self.running_var.lerp_((variance * (count / (count - 1))).to(self.running_var.dtype), share)

    def _check_input_dim(self, x: Tensor) -> None:
        """Rows of any shape have channels."""


class _Normalise(Function):
    """(y, mean, variance, count) of x, weight and bias, the statistics over all ranks and without a gradient.

    With x^ = (x - mean) / deviation, the gradient of what all ranks made of y is, for N rows of all ranks,
    weight / deviation (dy - sum(dy) / N - x^ sum(dy x^) / N): two sums for each channel go round.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        mean, variance, count = _statistics(x)
        y = F.batch_norm(x, mean, variance, weight, bias, training=False, eps=eps)
        deviation = (variance + eps).sqrt()
        ctx.save_for_backward(x, weight, mean, deviation, count)
        ctx.mark_non_differentiable(mean, variance, count)
        return y, mean, variance, count

    @staticmethod
    def backward(ctx: Any, dy: Tensor, *_: Tensor) -> tuple[Tensor, Tensor | None, Tensor | None, None]:
        x, weight, mean, deviation, count = ctx.saved_tensors
        rest = [dim for dim in range(x.ndim) if dim != 1]
        hat = (x - _channels(mean, x)) / _channels(deviation, x)
        of_bias, of_weight = dy.sum(rest, dtype=mean.dtype), (dy * hat).sum(rest, dtype=mean.dtype)
        sums = torch.stack([of_bias, of_weight])
        dist.all_reduce(sums)
        sums /= count
        dx = dy - _channels(sums[0], x) - hat * _channels(sums[1], x)
        scale = 1 / deviation if weight is None else weight / deviation
        dx = (dx * _channels(scale, x)).to(x.dtype)
        return (dx, None, None, None) if weight is None else (dx, of_weight, of_bias, None)


def _statistics(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(C,) mean and (C,) biased variance over the rows of all ranks, in float32 or better, and the number of values.

    Every rank's own mean and variance are put together (Chan, Golub and LeVeque, 1979): a sum of squares would lose
    the variance of a channel that is far from 0.
    """
    rest = [dim for dim in range(x.ndim) if dim != 1]
    exact = x if x.dtype == torch.float64 else x.float()
    variance, mean = torch.var_mean(exact, rest, correction=0)
    count, channels = mean.new_full((1,), x.numel() / x.shape[1]), x.shape[1]
    of_all, _ = gather_ranks(torch.cat([mean, variance, count])[None])
    means, variances, counts = of_all[:, :channels], of_all[:, channels:-1], of_all[:, -1:]  # (ranks, C) and (ranks, 1)
    share = counts / counts.sum()
    mean = (share * means).sum(dim=0)
    variance = (share * (variances + (means - mean) ** 2)).sum(dim=0)
    return mean, variance, counts.sum()


def _channels(values: Tensor, x: Tensor) -> Tensor:
    """(C,) as (1, C, 1, ...), to go with x."""
    return values.view(1, -1, *[1] * (x.ndim - 2))


def normalise_over_ranks(module: nn.Module) -> nn.Module:
    """The module with every batch normalisation replaced by one over all ranks; parameters stay the same objects."""
    if isinstance(module, _BatchNorm) and not isinstance(module, BatchNormOfAllRanks):
        if type(module) not in (*_PLAIN, BatchNormAct2d):
            raise UserError(
                f"compute.sync_batchnorm is set, and the backbone has layers of the kind {type(module).__name__}, "
                "whose statistics cannot be shared between devices. Set compute.sync_batchnorm=false or change "
                "model.backbone."
            )
        return BatchNormOfAllRanks(module)
    for name, child in module.named_children():
        module.add_module(name, normalise_over_ranks(child))
    return module

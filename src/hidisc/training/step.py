"""One optimiser step. Nothing in it waits for the device: its result stays there until a row of metrics is due."""

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor

from hidisc.ground.seeds import Purpose, make_seed
from hidisc.sampling.batches import Batch, to_input
from hidisc.sampling.views import make_views
from hidisc.settings.train import TrainConfig


@dataclass(frozen=True)
class StepResult:
    """Losses, embeddings and gradient norm of a step, on the device."""

    losses: dict[str, Tensor]
    """`loss` and its parts, means over the batches of the step."""
    embeddings: Tensor
    """(N, D) what the loss of the last batch saw."""
    norm: float | Tensor
    """Of the gradient before it was clipped; 0 when it was not asked for."""


def take_step(
    fabric: Fabric,
    learner: Any,
    optimizer: Any,
    batches: Iterable[Batch],
    config: TrainConfig,
    *,
    colour: bool,
    progress: float,
    wants_norm: bool,
) -> StepResult:
    """Average the gradients of `optim.accumulate` batches and move the weights.

    `colour` says that channels are red, green and blue, `progress` how much of the run is done after the step.
    """
    accumulate, losses = config.optim.accumulate, dict[str, Tensor]()
    for part, batch in enumerate(batches):
        with fabric.no_backward_sync(learner, enabled=part < accumulate - 1):
            total, parts, embeddings = _forward(fabric, learner, batch, config, colour)
            fabric.backward(total / accumulate)
        for name, value in {"loss": total.detach(), **parts}.items():
            losses[name] = losses.get(name, 0) + value / accumulate
    norm = _clip(fabric, learner, optimizer, config.optim.clip, wants_norm)
    optimizer.step()
    optimizer.zero_grad()
    learner.module.objective.after_step(learner.module.encoder, progress)
    return StepResult(losses, embeddings, norm)


def _forward(
    fabric: Fabric, learner: Any, batch: Batch, config: TrainConfig, colour: bool
) -> tuple[Tensor, dict[str, Tensor], Tensor]:
    """Views on the device, then the loss; all randomness is a function of (seed, step, rank)."""
    where = (batch.step, fabric.global_rank)
    torch.manual_seed(make_seed(config.seed, Purpose.DROPOUT, *where))  # which draws from torch's global state
    generator = torch.Generator().manual_seed(make_seed(config.seed, Purpose.VIEWS, *where))
    with torch.no_grad():
        x = to_input(fabric.to_device(batch.pixels))
        views = make_views(x, config.batch.views, config.views, generator, colour=colour)
        if config.compute.channels_last:
            flat = views.flatten(0, 1).contiguous(memory_format=torch.channels_last)
            views = flat.view(views.shape[0], views.shape[1], *flat.shape[1:])
    ancestry, labels = fabric.to_device((batch.ancestry, batch.labels))
    return learner(views, ancestry, labels)


def _clip(fabric: Fabric, learner: Any, optimizer: Any, limit: float | None, wants_norm: bool) -> float | Tensor:
    """The gradient norm, before it is clipped; only worked out when someone asks."""
    if limit is None and not wants_norm:
        return 0.0
    norm = fabric.clip_gradients(learner, optimizer, max_norm=limit or inf, error_if_nonfinite=False)
    return norm if norm is not None else 0.0

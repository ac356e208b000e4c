"""One training step: encoder and objective as one module, its learning rate, and whether it is compiled."""

from collections.abc import Iterable
from dataclasses import dataclass
from importlib.util import find_spec
from math import cos, inf, pi
from os import environ
from pathlib import Path
from shutil import which
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from hidisc.artefacts.artefact import read_settings
from hidisc.ground.errors import UserError
from hidisc.ground.progress import Say
from hidisc.ground.seeds import Purpose, make_seed
from hidisc.models.encoder import Encoder
from hidisc.models.vector_map import VectorMap
from hidisc.objectives.objective import Objective, Rows
from hidisc.patches.store import PatchStore
from hidisc.sampling.batches import Batch, to_input
from hidisc.sampling.cohort_stain import BatchStains, StainTable
from hidisc.sampling.views import list_kinds, make_views
from hidisc.settings.train import OptimConfig, TrainConfig
from hidisc.training.vectors import VectorViews

LONG_RUN_STEPS = 10_000
"""At a quarter of a second per step and a tenth of it saved, two minutes of compiling are repaid after 4,800 steps."""


def pays_to_compile(device: str, steps: int) -> bool:
    """Whether a run of so many steps on a kind of device is compiled when `compute.compile` is `auto`."""
    return device == "cuda" and steps >= LONG_RUN_STEPS


def decide_compile(config: TrainConfig, out: Path, fabric: Fabric, say: Say) -> TrainConfig:
    """The config with true or false for `compute.compile=auto`: the run's first choice, else the faster one here."""
    if config.compute.compile != "auto" or config.map.kind not in (None, "adapter"):  # a closed form has no steps
        return config
    decided = ((read_settings(out) or {}).get("compute") or {}).get("compile")
    if not isinstance(decided, bool):
        pays = pays_to_compile(fabric.device.type, config.optim.steps)
        missing = find_missing_compiler(fabric.device.type)
        decided = pays and missing is None
        if pays and fabric.is_global_zero:
            not_compiled = f"is not compiled, which would be faster: {missing} is missing"
            say(f"compute.compile=auto: the backbone {not_compiled if missing else 'is compiled, which takes minutes'}")
    return config.model_copy(update={"compute": config.compute.model_copy(update={"compile": decided})})


def check_compiler(config: TrainConfig, device: str) -> None:
    """Refuse a run that is to be compiled where that is not possible."""
    missing = find_missing_compiler(device) if config.compute.compile is True else None
    if missing:
        raise UserError(
            f"compute.compile = true: {missing} is missing on this machine, for {device}. Install it, or train anew "
            "with --set compute.compile=false and a new --out."
        )


def find_missing_compiler(device: str) -> str | None:
    """The program that torch.compile lacks on this machine for a kind of device; None: it lacks nothing."""
    if device == "cuda" and find_spec("triton") is None:
        return "the package triton"
    variable, *names = ("CC", "cc", "gcc", "clang") if device == "cuda" else ("CXX", "c++", "g++", "clang++")
    return None if any(map(which, [environ.get(variable, ""), *names])) else "a C++ compiler"


def learning_rate(step: int, config: OptimConfig) -> float:
    """At step 0, 1, ...: rises linearly over the warm-up, then falls to 0 along half a cosine."""
    warm = int(config.warmup * config.steps)
    if step < warm:
        return config.learning_rate * (step + 1) / warm
    return config.learning_rate * 0.5 * (1 + cos(pi * (step - warm) / max(config.steps - warm, 1)))


def is_backbone_frozen(step: int, config: OptimConfig) -> bool:
    """Whether the backbone keeps its weights at step 0, 1, ..."""
    return step < int(config.freeze_backbone * config.steps)


class Learner(nn.Module):
    """Everything that is trained, saved and resumed."""

    def __init__(self, encoder: Encoder | VectorMap, objective: Objective) -> None:
        super().__init__()
        self.encoder, self.objective = encoder, objective

    def forward(
        self, views: tuple[Tensor, ...], ancestry: Tensor, labels: Tensor
    ) -> tuple[Tensor, dict[str, Tensor], Tensor]:
        """(total, parts, embeddings (N, D)) of views (M, V, C, H, W), ancestry (M, L) and labels (M,).

        The global views come first, then those of another size.
        """
        count = sum(of_size.shape[1] for of_size in views)
        ids, codes = ancestry.repeat_interleave(count, 0), labels.repeat_interleave(count, 0)
        images = views if len(views) > 1 else views[0].flatten(0, 1)
        losses = self.objective(self.encoder, images, Rows(ids, codes, count, views[0].shape[1]))
        return losses.total, losses.parts, losses.embeddings


@dataclass(frozen=True)
class StepResult:
    """Losses, embeddings and gradient norm of a step, on the device."""

    losses: dict[str, Tensor]
    """`loss` and its parts, means over the batches of the step."""
    embeddings: Tensor
    """(N, D) the vectors that the loss of the last batch was computed from."""
    norm: float | Tensor
    """Of the gradient before it was clipped; 0 when it was not asked for."""


class ViewMaker:
    """Makes the views of a run's batches; on a CPU always in the same memory, because new memory is slow there."""

    def __init__(self, config: TrainConfig, store: PatchStore) -> None:
        self._config, self._colour, self._rule = config, store.is_colour, store.info.input
        self._kinds = list_kinds(config.views, config.batch.views)
        self._memory: dict[int, Tensor] = {}

    @torch.no_grad()
    def __call__(
        self, pixels: Tensor, generator: torch.Generator, stains: BatchStains | None = None
    ) -> tuple[Tensor, ...]:
        """Views (M, V, C, H, W) of a batch's pixels (M, ...), on their device; the next ones overwrite them.

        The global views come first, then the local ones if there are any.
        """
        return tuple(self._make(kind, pixels, generator, stains) for kind in range(len(self._kinds)))

    def _make(self, kind: int, pixels: Tensor, generator: torch.Generator, stains: BatchStains | None) -> Tensor:
        memory, (number, part) = self._memory.get(kind), self._kinds[kind]
        views = make_views(
            pixels,
            number,
            self._config.views,
            generator,
            colour=self._colour,
            stains=stains,
            to_float=lambda x: to_input(x, self._rule),
            out=memory if memory is not None and len(memory) == len(pixels) else None,
            part=part,
        )
        if pixels.device.type == "cpu":
            self._memory[kind] = views
        if not self._config.compute.channels_last:
            return views
        flat = views.flatten(0, 1).contiguous(memory_format=torch.channels_last)
        return flat.view(views.shape[0], views.shape[1], *flat.shape[1:])


def take_step(
    fabric: Fabric,
    learner: Any,
    optimizer: Any,
    batches: Iterable[Batch],
    config: TrainConfig,
    make: ViewMaker | VectorViews,
    *,
    progress: float,
    wants_norm: bool,
    stains: StainTable | None = None,
) -> StepResult:
    """Average the gradients of `optim.accumulate` batches and move the weights.

    `progress` says how much of the run is done after the step, `stains` are those of the slides where views need them.
    """
    accumulate, losses = config.optim.accumulate, dict[str, Tensor]()
    for part, batch in enumerate(batches):
        with fabric.no_backward_sync(learner, enabled=part < accumulate - 1):
            total, parts, embeddings = _forward(fabric, learner, batch, config, make, stains)
            fabric.backward(total / accumulate)
        for name, value in {"loss": total.detach(), **parts}.items():
            losses[name] = losses.get(name, 0) + value / accumulate
    norm = _clip(fabric, learner, optimizer, config.optim.clip, wants_norm)
    optimizer.step()
    optimizer.zero_grad()
    learner.module.objective.after_step(learner.module.encoder, progress)
    return StepResult(losses, embeddings, norm)


def _forward(
    fabric: Fabric,
    learner: Any,
    batch: Batch,
    config: TrainConfig,
    make: ViewMaker | VectorViews,
    stains: StainTable | None,
) -> tuple[Tensor, dict[str, Tensor], Tensor]:
    """Views on the device, then the loss; all randomness is a function of (seed, step, rank)."""
    where = (batch.step, fabric.global_rank)
    torch.manual_seed(make_seed(config.seed, Purpose.DROPOUT, *where))  # which draws from torch's global state
    generator = torch.Generator().manual_seed(make_seed(config.seed, Purpose.VIEWS, *where))
    of_batch = stains.look_up(batch.ancestry[:, -1]) if stains is not None else None
    views = make(fabric.to_device(batch.pixels), generator, of_batch)
    ancestry, labels = fabric.to_device((batch.ancestry, batch.labels))
    return learner(views, ancestry, labels)


def _clip(fabric: Fabric, learner: Any, optimizer: Any, limit: float | None, wants_norm: bool) -> float | Tensor:
    """The gradient norm, before it is clipped; only worked out when someone asks."""
    if limit is None and not wants_norm:
        return 0.0
    norm = fabric.clip_gradients(learner, optimizer, max_norm=limit or inf, error_if_nonfinite=False)
    return norm if norm is not None else 0.0

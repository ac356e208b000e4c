"""Checks that stop a run which learns nothing any more; its last checkpoint is from before."""

from collections.abc import Mapping
from pathlib import Path

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from hidisc.ground.errors import UserError
from hidisc.settings.train import TrainConfig
from hidisc.training.checkpoint import list_checkpoints
from hidisc.training.processes import first_of_all, on_any

_ADVICE = "Lower optim.learning_rate, set optim.clip=1, or use compute.precision=32, with a new --out."


def note_finite(first_bad_step: Tensor, loss: Tensor, step: int) -> Tensor:
    """The first step whose loss was not finite, -1 while all were; it stays on the device, which nobody waits for."""
    return torch.where(~torch.isfinite(loss) & (first_bad_step < 0), step, first_bad_step)


def check_finite(fabric: Fabric, first_bad_step: int, out: Path) -> None:
    """Stop when a loss was not finite; `first_bad_step` is -1 while all were."""
    step = first_of_all(fabric, first_bad_step)
    if step >= 0:
        raise UserError(f"the loss is not finite at step {step:,}. {_kept(out)}. {_ADVICE}")


def check_weights(fabric: Fabric, learner: nn.Module, step: int, out: Path) -> None:
    """Stop before weights that are not finite are saved: a gradient can be so where the loss was not."""
    values = [value for value in learner.state_dict().values() if value.is_floating_point()]
    if on_any(fabric, not torch.stack([value.isfinite().all() for value in values]).all()):
        raise UserError(f"the weights are not finite after step {step:,}. {_kept(out)}. {_ADVICE}")


def check_rank(fabric: Fabric, rank: float, step: int, config: TrainConfig, out: Path) -> None:
    """Stop when, after the warm-up, the embeddings have fallen together."""
    least = config.log.min_rank
    if on_any(fabric, step > config.optim.warmup * config.optim.steps and least > 0 and not rank >= least):
        raise UserError(
            f"the embeddings have collapsed at step {step:,}: their effective rank is {rank:.2f}, below log.min_rank = "
            f"{least:g}. {_kept(out)}. Lower optim.learning_rate or use stronger views, with a new --out; "
            "log.min_rank=0 trains on regardless."
        )


def check_entropy(fabric: Fabric, row: Mapping[str, float], step: int, config: TrainConfig, out: Path) -> None:
    """Stop when, after the warm-up, a teacher says the same of all images; most objectives have none."""
    if "teacher_entropy" not in row:
        return
    least, most = config.log.entropy
    over_batch, per_image = row["prototype_entropy"], row["teacher_entropy"]
    is_warm = step > config.optim.warmup * config.optim.steps
    if on_any(fabric, is_warm and over_batch < least):
        raise UserError(
            f"the teacher has collapsed at step {step:,}: it gives all images the same prototype (entropy over the "
            f"batch {over_batch:.4f} of its largest value, below log.entropy = {[least, most]}). {_kept(out)}. Lower "
            "objective.centre_momentum or raise objective.teacher_temperature, with a new --out; log.entropy=[0, 1] "
            "trains on regardless."
        )
    if on_any(fabric, is_warm and per_image > most):
        raise UserError(
            f"the teacher has collapsed at step {step:,}: to every image all prototypes are alike (entropy per image "
            f"{per_image:.4f} of its largest value, above log.entropy = {[least, most]}). {_kept(out)}. Lower "
            "objective.teacher_temperature or optim.learning_rate, with a new --out; log.entropy=[0, 1] trains on "
            "regardless."
        )


def _kept(out: Path) -> str:
    saved = list_checkpoints(out)
    return f"The last good state is {saved[-1]}" if saved else "No checkpoint had been written"

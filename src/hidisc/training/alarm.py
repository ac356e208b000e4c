"""What stops a run that learns nothing any more; its last checkpoint is from before."""

from pathlib import Path

from lightning.fabric import Fabric

from hidisc.config import TrainConfig
from hidisc.errors import UserError
from hidisc.training.checkpoint import list_checkpoints
from hidisc.training.ranks import on_any


def check_finite(fabric: Fabric, first_bad_step: int, out: Path) -> None:
    """Stop when a loss was not finite; `first_bad_step` is -1 while all were."""
    if on_any(fabric, first_bad_step >= 0):
        raise UserError(
            f"the loss is not finite at step {max(first_bad_step, 1):,}. {_kept(out)}. Lower optim.learning_rate, set "
            "optim.clip=1, or use compute.precision=32, with a new --out."
        )


def check_rank(fabric: Fabric, rank: float, step: int, config: TrainConfig, out: Path) -> None:
    """Stop when, after the warm-up, the embeddings have fallen together."""
    least = config.log.min_rank
    if on_any(fabric, step > config.optim.warmup * config.optim.steps and least > 0 and not rank >= least):
        raise UserError(
            f"the embeddings have collapsed at step {step:,}: their effective rank is {rank:.2f}, below log.min_rank = "
            f"{least:g}. {_kept(out)}. Lower optim.learning_rate or use stronger views, with a new --out; "
            "log.min_rank=0 trains on regardless."
        )


def _kept(out: Path) -> str:
    saved = list_checkpoints(out)
    return f"The last good state is {saved[-1]}" if saved else "No checkpoint had been written"

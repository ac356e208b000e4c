"""Nearest neighbours during training, and the checks that stop a useless run: collapse, values that are not finite."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from lightning_fabric import Fabric
from numpy.typing import NDArray
from torch import Tensor, nn

from hidisc.ground.errors import UserError
from hidisc.ground.seeds import Purpose, make_rng
from hidisc.ground.tensors import to_device
from hidisc.models.encoder import Encoder
from hidisc.patches.store import PatchError, PatchStore, as_input
from hidisc.settings.train import DataConfig, MonitorConfig, TrainConfig
from hidisc.training.build import rows_to_learn
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
    """Stop when, after the warm-up, a teacher gives all images the same output; most objectives have no teacher."""
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


_BATCH = 64


class Monitor:
    """Accuracy of k nearest neighbours: a fixed sample of one split, against a sample of the splits learned from.

    Neighbours vote with their similarities; `hidisc evaluate` has the paper's protocol.
    """

    def __init__(self, store: PatchStore, config: MonitorConfig, data: DataConfig, seed: int) -> None:
        self._store, self._k = store, config.k
        labels, self._classes = store.table.codes("label")
        if config.split in data.splits:
            raise UserError(
                f"monitor.split = {config.split!r} is learned from (data.splits), so it tells nothing. "
                "Give another split."
            )
        rng = make_rng(seed, Purpose.MONITORED_PATCHES)
        self._bank, self._queries = (
            self._sample(rows & (labels >= 0), config.patches, rng)
            for rows in (
                rows_to_learn(store, data),
                store.table.in_splits((config.split or "",), "monitor.split", store.path),
            )
        )
        if not len(self._bank) or not len(self._queries):
            raise UserError(f"monitor.split = {config.split!r}: there are no labelled patches to compare.")
        self._labels = torch.from_numpy(labels.astype(np.int64))

    def _sample(self, mask: NDArray[np.bool_], count: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """At most `count` rows of a mask (N,), in ascending order, without the rows whose patch cannot be read."""
        rows = np.flatnonzero(mask)
        drawn = np.sort(rng.choice(rows, min(count, len(rows)), replace=False))
        return drawn[np.array([self._is_readable(row) for row in drawn], bool)]

    def _is_readable(self, row: int) -> bool:
        try:
            self._store.read(row)
        except PatchError:
            return False
        return True

    @torch.inference_mode()
    def accuracy(self, encoder: Encoder, device: torch.device) -> float:
        """Share of the sampled patches whose label is predicted correctly."""
        was_training = encoder.training
        encoder.eval()
        bank, queries = (self._embed(encoder, rows, device) for rows in (self._bank, self._queries))
        encoder.train(was_training)
        near = (queries @ bank.T).topk(min(self._k, len(bank)), dim=1)
        votes = F.one_hot(self._labels[self._bank][near.indices], len(self._classes)) * near.values[..., None]
        return float((votes.sum(dim=1).argmax(dim=1) == self._labels[self._queries]).float().mean())

    def _embed(self, encoder: Encoder, rows: NDArray[np.int64], device: torch.device) -> Tensor:
        parts = []
        for start in range(0, len(rows), _BATCH):
            pixels = as_input(self._store.read_many(rows[start : start + _BATCH]), self._store.info.input)
            x = to_device(torch.from_numpy(pixels).permute(0, 3, 1, 2), device)
            parts.append(F.normalize(encoder.features(x).float(), dim=1).cpu())
        return torch.cat(parts)

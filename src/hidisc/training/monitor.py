"""How well nearest neighbours predict labels in the middle of a training, which is not changed by it."""

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from hidisc.ground.errors import UserError
from hidisc.ground.seeds import Purpose, make_rng
from hidisc.models.encoder import Encoder
from hidisc.patches.inputs import as_input
from hidisc.patches.store import PatchError, PatchStore
from hidisc.sampling.transfer import to_device
from hidisc.settings.train import DataConfig, MonitorConfig
from hidisc.training.training_set import rows_to_learn

_BATCH = 64


class Monitor:
    """Accuracy of k nearest neighbours: a fixed sample of the split to predict against one of those learned from.

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
        """As many rows of a mask (N,) as are asked for, less those whose patch cannot be read."""
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

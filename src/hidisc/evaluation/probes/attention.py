"""The attention probe: gated attention over all patches of a slide (Ilse, Tomczak and Welling, ICML 2018)."""

import math
from collections.abc import Iterable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from sklearn.preprocessing import StandardScaler
from torch import Tensor, nn

from hidisc.evaluation.metrics import Ints
from hidisc.evaluation.neighbours import use_threads
from hidisc.evaluation.predictions import Key, Predictions
from hidisc.evaluation.probes.folds import assign_folds, find_patients, sample_per_patient
from hidisc.evaluation.task import LabelledPatches, Task
from hidisc.ground.columns import Columns
from hidisc.ground.progress import Watch, ignore
from hidisc.ground.seeds import Purpose, make_rng, make_seed
from hidisc.ground.text import count, plural
from hidisc.settings.evaluate import MilConfig

_HELD_OUT = 5
"""One patient of so many is held out, and there must be at least so many."""
_SCALE_PATCHES = 20_000
"""Most patches from which the mean and deviation are computed."""
_KEPT = 2**28
"""Numbers (rows x dimensions) of the bank's embeddings up to which they are kept in memory: 1 GB."""
_BLOCK = 2**22
"""Numbers (rows x dimensions) of a bag's embeddings in memory at once: 16 MB."""


class GatedAttention(nn.Module):
    """Logits (L,) of a bag from the embeddings h (K, D) of its patches.

    Eq. 9: a_k = softmax over k of w^T (tanh(V h_k) * sigm(U h_k)). Eq. 7: z = sum of a_k h_k. The classifier is linear.
    """

    def __init__(self, dim: int, hidden_dim: int, classes: int, generator: torch.Generator) -> None:
        super().__init__()

        def draw(*shape: int) -> nn.Parameter:
            bound = 1 / math.sqrt(shape[-1])  # as in torch's linear layers, which draw from the global state
            return nn.Parameter(torch.empty(shape).uniform_(-bound, bound, generator=generator))

        self.VU, self.w = draw(2 * hidden_dim, dim), draw(hidden_dim)  # V above U: one product for both
        self.weight, self.bias = draw(classes, dim), nn.Parameter(torch.zeros(classes))

    def attend(self, h: Tensor) -> Tensor:
        """(K,) attention scores, before the softmax of Eq. 9."""
        v, u = (h @ self.VU.T).chunk(2, dim=1)
        return (torch.tanh(v) * torch.sigmoid(u)) @ self.w

    def forward(self, h: Tensor) -> Tensor:
        """The whole bag at once."""
        return self.weight @ (self.attend(h).softmax(dim=0) @ h) + self.bias

    @torch.no_grad()
    def forward_blocks(self, blocks: Iterable[Tensor]) -> tuple[Tensor, Tensor]:
        """Logits (L,) and attention (K,) of a bag in blocks (n, D), of which one at a time is in memory; no gradients.

        A softmax is relative to the largest score so far, so its sums are rescaled when a larger one comes.
        """
        largest, total, z, scores = torch.tensor(-math.inf), torch.tensor(0.0), torch.tensor(0.0), []
        for h in blocks:
            scores.append(self.attend(h))
            larger = torch.maximum(largest, scores[-1].max())
            weight, rescale = (scores[-1] - larger).exp(), (largest - larger).exp()
            total, z, largest = total * rescale + weight.sum(), z * rescale + weight @ h, larger
        return self.weight @ (z / total) + self.bias, torch.cat(scores).softmax(dim=0)


@dataclass(frozen=True)
class Bags:
    """B bags of patches with one label each."""

    units: Columns
    """(B,) each: names of the levels above the patch, coarsest first."""
    patches: tuple[Ints, ...]
    """The patches of each bag, as ascending indices into the bank or the queries."""
    labels: Ints
    """(B,) codes of the task's classes."""
    left_out: int
    """Bags with patches of several labels."""

    def __len__(self) -> int:
        return len(self.labels)


def find_bags(patches: LabelledPatches, levels: tuple[str, ...]) -> Bags:
    """The units of the level just above the patch that have one label."""
    units = patches.units(levels[:-1])
    has_one = units.have_one_label(patches.labels)
    first = units.first[has_one]
    names: Columns = {level: patches.names(level)[first] for level in levels[:-1]}
    members = tuple(rows for rows, is_kept in zip(units.rows(), has_one, strict=True) if is_kept)
    return Bags(names, members, patches.labels[first], int((~has_one).sum()))


class StandardVectors:
    """Standardised embeddings (n, D) of patches: `vectors(indices)`; `keep` them in memory if they fit 1 GB."""

    def __init__(self, patches: LabelledPatches, scaler: StandardScaler, *, keep: bool) -> None:
        self._patches = patches
        self.dim = len(scaler.mean_)
        self._mean, self._sd = scaler.mean_.astype(np.float32), scaler.scale_.astype(np.float32)
        self._kept = self._scale(patches.vectors()) if keep and len(patches) * self.dim <= _KEPT else None

    def _scale(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        return np.divide(np.subtract(x, self._mean, out=x), self._sd, out=x)

    def __call__(self, indices: Ints) -> Tensor:
        """(n, D) of some patches."""
        if self._kept is not None:
            return torch.from_numpy(self._kept[indices])
        return torch.from_numpy(self._scale(self._patches.vectors(indices)))

    def blocks(self, indices: Ints) -> Iterator[Tensor]:
        """The same in blocks of at most 16 MB."""
        height = max(1, _BLOCK // self.dim)
        return (self(indices[start : start + height]) for start in range(0, len(indices), height))


@use_threads(1)  # a bag is too little work for several
def mil_predictions(
    task: Task, key: Key, config: MilConfig, seed: int, watch: Watch = ignore
) -> tuple[Predictions | None, tuple[str, ...], NDArray[np.float32] | None]:
    """Predictions of the queries' bags, normally slides; remarks; and the attention (N,) of the query patches.

    The predictions are None where no bag has one label, and the remark says so. The attention sums to 1 over each bag;
    it is NaN for patches of bags that are left out, and None where nothing was trained. Classes are not weighted to be
    equal, as in the other probes. `watch` is called after every epoch.

    Memory: the bank's embeddings up to 1 GB, a larger bank is read bag by bag; 20,000 patches for the mean and
    deviation, in float64; the queries in blocks of 16 MB.
    """
    bank, queries, level = task.bank, task.queries, task.levels[-2]
    training, test = find_bags(bank, task.levels), find_bags(queries, task.levels)
    for bags, role in ((training, "reference"), (test, "test")):
        if not len(bags):
            return None, (f"Every {role} {level} has patches of several labels, so it has no label.",), None
    remarks = [f"Trained on {count(len(training), 'bag')} of reference patches; a bag is the patches of one {level}."]
    if training.left_out:
        remarks.append(f"Left out: {count(training.left_out, 'bag')} with patches of several labels.")
    present, codes = np.unique(training.labels, return_inverse=True)
    absent = np.delete(np.array(task.classes, object), present)
    remarks += [f"Class {name!r} has no such bag, so its probability is always 0." for name in absent]
    scores = np.zeros((len(test), len(task.classes)))
    attention = None
    if len(present) == 1:
        scores[:, present] = 1
        remarks.append(f"All bags have class {task.classes[present[0]]!r}, so it is predicted for every test {level}.")
    else:
        rng = make_rng(seed, Purpose.ATTENTION_FOLDS)
        patients = find_patients(bank, task.levels)
        sample = sample_per_patient(patients, _SCALE_PATCHES, rng)
        scaler = StandardScaler().fit(bank.vectors(sample).astype(np.float64))
        held_out = hold_out(patients[[patches[0] for patches in training.patches]], codes, rng)
        net, epoch = train(
            StandardVectors(bank, scaler, keep=True), training.patches, codes, held_out, config, seed, watch
        )
        vectors = StandardVectors(queries, scaler, keep=False)
        attention = np.full(len(queries), np.nan, np.float32)
        for bag, patches in enumerate(test.patches):
            logits, weights = net.forward_blocks(vectors.blocks(patches))
            scores[bag, present], attention[patches] = logits.double().softmax(dim=0), weights
        remarks.append(_describe_epoch(epoch, int(held_out.sum()), task, config))
    key = replace(key, level=level)
    predictions = Predictions(key, task.endpoint, test.units, test.labels, scores, test.left_out)
    return predictions, tuple(remarks), attention


def hold_out(patients: Ints, labels: Ints, rng: np.random.Generator) -> NDArray[np.bool_]:
    """(B,) which bags to hold out of training: those of about a fifth of the patients, with some of every class.

    None where there are too few patients to have every class both among these and among the others.
    """
    held_out: NDArray[np.bool_] = assign_folds(patients, labels, _HELD_OUT, rng) == 0
    classes = len(np.unique(labels))
    both_have_all = len(np.unique(labels[held_out])) == len(np.unique(labels[~held_out])) == classes
    return held_out if both_have_all and len(np.unique(patients)) >= _HELD_OUT else np.zeros_like(held_out)


def train(
    vectors: StandardVectors,
    bags: Sequence[Ints],
    labels: Ints,
    held_out: NDArray[np.bool_],
    config: MilConfig,
    seed: int,
    watch: Watch = ignore,
) -> tuple[GatedAttention, int]:
    """The network after the epoch of lowest loss on the bags held out (the last if there are none), and that epoch.

    `bags`: indices into `vectors`, `labels` (B,) codes from 0, `held_out` (B,). A step is one bag. The loss of a bag
    held out is of the same sampled patches in every epoch, so that epochs can be compared.
    """
    rng = make_rng(seed, Purpose.ATTENTION_BAGS)
    targets = torch.from_numpy(labels)
    generator = torch.Generator().manual_seed(make_seed(seed, Purpose.ATTENTION_WEIGHTS))
    net = GatedAttention(vectors.dim, config.hidden_dim, int(labels.max()) + 1, generator)
    optimizer = torch.optim.AdamW(net.parameters(), config.learning_rate, weight_decay=config.weight_decay, fused=True)
    validation = {bag: _sample(bags[bag], config.patches, rng) for bag in np.flatnonzero(held_out).tolist()}
    best_net, best_loss, best_epoch = net, math.inf, config.epochs
    for epoch in range(1, config.epochs + 1):
        for bag in rng.permutation(np.flatnonzero(~held_out)).tolist():
            optimizer.zero_grad()
            h = vectors(_sample(bags[bag], config.patches, rng))
            F.cross_entropy(net(h), targets[bag]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        if validation:
            with torch.no_grad():
                losses = [F.cross_entropy(net(vectors(patches)), targets[bag]) for bag, patches in validation.items()]
            loss = float(torch.stack(losses).mean())
            if loss < best_loss:
                best_net, best_loss, best_epoch = deepcopy(net), loss, epoch
        watch(1)
    return best_net, best_epoch


def _sample(patches: Ints, most: int, rng: np.random.Generator) -> Ints:
    """At most `most` of a bag's patches, ascending as on disk."""
    return patches if len(patches) <= most else np.sort(rng.choice(patches, most, replace=False))


def _describe_epoch(epoch: int, held_out: int, task: Task, config: MilConfig) -> str:
    """Which epoch's weights are used, and why."""
    level = task.levels[0]
    if held_out:
        return (
            f"The weights are those of epoch {epoch} of {config.epochs}, which had the lowest loss on {held_out:,} of "
            f"these bags, held out of training; all bags of a {level} are held out together."
        )
    return (
        f"The weights are those of the last of {config.epochs} epochs. To choose a better one, bags must be held out, "
        f"which needs at least {_HELD_OUT} reference {plural(level)}, and every class both among those held out and "
        "among the others."
    )

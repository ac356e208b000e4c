"""Third probe: gated attention over all patches of a slide (Ilse, Tomczak and Welling, ICML 2018)."""

import math
from collections.abc import Iterable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from sklearn.preprocessing import StandardScaler
from torch import Tensor, nn

from hidisc.evaluation.folds import deal_patients, find_patients, sample_per_patient
from hidisc.evaluation.pooling import group, has_one_label
from hidisc.evaluation.predictions import Predictions
from hidisc.evaluation.task import LabelledPatches, Task
from hidisc.ground.columns import Columns
from hidisc.ground.seeds import Purpose, make_rng, make_seed
from hidisc.settings.evaluate import MilConfig

_HELD_OUT = 5
"""One patient in so many, and as many at least there must be."""
_SCALE_PATCHES = 20_000
"""Most patches the mean and deviation are taken of."""
_KEPT = 2**28
"""Numbers of the bank's embeddings (1 GB) up to which they are kept in memory."""
_BLOCK = 2**22
"""Numbers of a bag's embeddings (16 MB) looked at together."""


class GatedAttention(nn.Module):
    """Logits (L,) of a bag from the embeddings h (K, D) of its patches.

    Eq. 9: a_k = softmax over k of w^T (tanh(V h_k) * sigm(U h_k)). Eq. 7: z = sum of a_k h_k. The classifier is linear.
    """

    def __init__(self, dim: int, hidden_dim: int, classes: int, generator: torch.Generator) -> None:
        super().__init__()

        def draw(*shape: int) -> nn.Parameter:
            bound = 1 / math.sqrt(shape[-1])  # as torch's linear layers have it, which draw from the global state
            return nn.Parameter(torch.empty(shape).uniform_(-bound, bound, generator=generator))

        self.V, self.U, self.w = draw(hidden_dim, dim), draw(hidden_dim, dim), draw(hidden_dim)
        self.weight, self.bias = draw(classes, dim), nn.Parameter(torch.zeros(classes))

    def attend(self, h: Tensor) -> Tensor:
        """(K,) what Eq. 9 takes the soft-max of."""
        return (torch.tanh(h @ self.V.T) * torch.sigmoid(h @ self.U.T)) @ self.w

    def classify(self, z: Tensor) -> Tensor:
        """(L,) logits of a bag's z (D,)."""
        return self.weight @ z + self.bias

    def forward(self, h: Tensor) -> Tensor:
        """The whole bag at once."""
        return self.classify(self.attend(h).softmax(dim=0) @ h)

    @torch.no_grad()
    def forward_blocks(self, blocks: Iterable[Tensor]) -> Tensor:
        """The same for a bag in blocks (n, D), of which one at a time is in memory; without gradients."""
        top, total, z = torch.tensor(-math.inf), torch.tensor(0.0), torch.tensor(0.0)
        for h in blocks:
            score = self.attend(h)
            new = torch.maximum(top, score.max())
            share, old = (score - new).exp(), (top - new).exp()  # what came before was relative to a smaller maximum
            total, z, top = total * old + share.sum(), z * old + share @ h, new
        return self.classify(z / total)


@dataclass(frozen=True)
class Bags:
    """B bags of patches with one label each."""

    units: Columns
    """(B,) each: names of the levels above the patch, coarsest first."""
    places: tuple[NDArray[np.int64], ...]
    """Of each bag: its patches, as ascending places of the bank or the queries."""
    labels: NDArray[np.int64]
    """(B,) codes of the task's classes."""
    left_out: int
    """Bags with patches of several labels."""

    def __len__(self) -> int:
        return len(self.labels)


def find_bags(patches: LabelledPatches, levels: tuple[str, ...]) -> Bags:
    """The units of the level just above the patch, told apart by all their ancestors."""
    above = levels[:-1]
    units, first = group(patches, above)
    places = np.split(np.argsort(units, kind="stable"), np.cumsum(np.bincount(units))[:-1])
    pure = has_one_label(units, patches.labels)
    names: Columns = {level: patches.names(level)[first[pure]] for level in above}
    chosen = tuple(bag for bag, is_pure in zip(places, pure, strict=True) if is_pure)
    return Bags(names, chosen, patches.labels[first[pure]], int((~pure).sum()))


class Vectors:
    """Standardised embeddings of patches, `vectors(places)`: (n, D); `keep`: in memory where 1 GB holds them."""

    def __init__(self, patches: LabelledPatches, scaler: StandardScaler, *, keep: bool) -> None:
        self._patches = patches
        self.dim = len(scaler.mean_)
        self._mean, self._sd = scaler.mean_.astype(np.float32), scaler.scale_.astype(np.float32)
        self._kept = self._scale(patches.vectors()) if keep and len(patches) * self.dim <= _KEPT else None

    def _scale(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        return np.divide(np.subtract(x, self._mean, out=x), self._sd, out=x)

    def __call__(self, places: NDArray[np.int64]) -> Tensor:
        """(n, D) of some places."""
        if self._kept is not None:
            return torch.from_numpy(self._kept[places])
        return torch.from_numpy(self._scale(self._patches.vectors(places)))

    def blocks(self, places: NDArray[np.int64]) -> Iterator[Tensor]:
        """Piece by piece."""
        height = max(1, _BLOCK // self.dim)
        return (self(places[start : start + height]) for start in range(0, len(places), height))


def mil_predictions(task: Task, config: MilConfig, seed: int) -> tuple[Predictions | None, tuple[str, ...]]:
    """Probabilities of the queries' bags, normally slides, and remarks; None where no bag has one label, and why.

    Classes are not weighed to be equal, as in the other probes, so that all three take the same to be common.

    Memory: the bank's embeddings up to 1 GB, a larger bank is read bag by bag; 20,000 patches for the mean and
    deviation, in float64; the queries in blocks of 16 MB.
    """
    bank, queries, level = task.bank, task.queries, task.levels[-2]
    known, asked = find_bags(bank, task.levels), find_bags(queries, task.levels)
    for bags, role in ((known, "bank"), (asked, "queries")):
        if not len(bags):
            return None, (f"Every {level} of the {role} has patches of several labels, so that it has none itself.",)
    remarks = [f"Learned from {len(known):,} bags of the bank, each the patches of a {level}."]
    if known.left_out:
        remarks.append(f"{known.left_out:,} more were left out, as their patches have several labels.")
    present, codes = np.unique(known.labels, return_inverse=True)
    absent = np.delete(np.array(task.classes, object), present)
    remarks += [f"Class {name!r} has no such bag, so its probability is always 0." for name in absent]
    scores = np.zeros((len(asked), len(task.classes)))
    if len(present) == 1:
        scores[:, present] = 1
        remarks.append(f"All of them are {task.classes[present[0]]!r}, so every query is taken for that.")
    else:
        rng = make_rng(seed, Purpose.ATTENTION_FOLDS)
        patients = find_patients(bank, task.levels)
        scaler = StandardScaler().fit(
            bank.vectors(sample_per_patient(patients, _SCALE_PATCHES, rng)).astype(np.float64)
        )
        held_out = hold_out(patients[[places[0] for places in known.places]], codes, rng)
        net, epoch = train(Vectors(bank, scaler, keep=True), known.places, codes, held_out, config, seed)
        vectors = Vectors(queries, scaler, keep=False)
        for bag, places in enumerate(asked.places):
            scores[bag, present] = net.forward_blocks(vectors.blocks(places)).double().softmax(dim=0)
        remarks.append(_say(epoch, int(held_out.sum()), task, config))
    return Predictions(level, task.classes, asked.units, asked.labels, scores, asked.left_out), tuple(remarks)


def hold_out(patients: NDArray[np.int64], labels: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.bool_]:
    """(B,) which bags to choose the epoch by: those of about a fifth of the patients, with some of every class.

    None of them where there are too few patients to have every class on both sides.
    """
    held_out: NDArray[np.bool_] = deal_patients(patients, labels, _HELD_OUT, rng) == 0
    count = len(np.unique(labels))
    both = len(np.unique(labels[held_out])) == len(np.unique(labels[~held_out])) == count
    return held_out if both and len(np.unique(patients)) >= _HELD_OUT else np.zeros_like(held_out)


def train(
    vectors: Vectors,
    bags: Sequence[NDArray[np.int64]],
    labels: NDArray[np.int64],
    held_out: NDArray[np.bool_],
    config: MilConfig,
    seed: int,
) -> tuple[GatedAttention, int]:
    """The head after the epoch of least loss on the bags held out (of the last where there are none), and that epoch.

    `bags`: places of `vectors`, `labels` (B,) codes from 0, `held_out` (B,). A step is one bag; bags held out are
    looked at through the same patches in every epoch.
    """
    rng = make_rng(seed, Purpose.ATTENTION_BAGS)
    targets = torch.from_numpy(labels)
    generator = torch.Generator().manual_seed(make_seed(seed, Purpose.ATTENTION_WEIGHTS))
    net = GatedAttention(vectors.dim, config.hidden_dim, int(labels.max()) + 1, generator)
    optimizer = torch.optim.AdamW(net.parameters(), config.learning_rate, weight_decay=config.weight_decay)
    looked_at = {bag: _draw(bags[bag], config.patches, rng) for bag in np.flatnonzero(held_out).tolist()}
    best, least, taken = net, math.inf, config.epochs
    for epoch in range(1, config.epochs + 1):
        for bag in rng.permutation(np.flatnonzero(~held_out)).tolist():
            optimizer.zero_grad()
            logits = net(vectors(_draw(bags[bag], config.patches, rng)))
            torch.autograd.backward(F.cross_entropy(logits, targets[bag]))
            optimizer.step()
        if looked_at:
            with torch.no_grad():
                losses = [F.cross_entropy(net(vectors(some)), targets[bag]) for bag, some in looked_at.items()]
            loss = float(torch.stack(losses).mean())
            if loss < least:
                best, least, taken = deepcopy(net), loss, epoch
    return best, taken


def _draw(places: NDArray[np.int64], count: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """At most `count` of a bag's places, ascending as they lie on disk."""
    return places if len(places) <= count else np.sort(rng.choice(places, count, replace=False))


def _say(epoch: int, held_out: int, task: Task, config: MilConfig) -> str:
    """Which epoch was taken, and why."""
    level = task.levels[0]
    if held_out:
        return (
            f"Epoch {epoch} of {config.epochs} was taken, for the least loss on {held_out:,} of these bags, held out "
            f"of learning so that every {level} is wholly in or wholly out."
        )
    return (
        f"The last of {config.epochs} epochs was taken. To choose one, bags must be held out; that takes {_HELD_OUT} "
        f"of level {level!r}, and every class both among those held out and among the others."
    )

"""Learning from vectors instead of pictures: their set, batches, views and maps; and maps in closed form.

An adapter is trained by the loop of all other trainings (`fit`); a closed form reads its vectors once.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hidisc.ground.errors import UserError
from hidisc.ground.progress import Say
from hidisc.models.linear_maps import Moments, centre, check_dim, list_blocks, measure_moments, turn_to_units, whiten
from hidisc.models.vector_map import MapCard, VectorMap
from hidisc.objectives.positives import level_weights
from hidisc.patches.record import SlideId
from hidisc.patches.table import PatchTable
from hidisc.sampling.batches import Batch, Batches
from hidisc.sampling.cohort_stain import BatchStains
from hidisc.sampling.hierarchy import Tree
from hidisc.sampling.sampler import Sampler
from hidisc.settings.level_names import LevelNames
from hidisc.settings.train import DataConfig, MapConfig, TrainConfig


@dataclass(frozen=True)
class VectorsInfo:
    """What a `VectorSet` shares with the record of a store."""

    slides: tuple[SlideId, ...]
    level_names: LevelNames


@dataclass(frozen=True)
class VectorSet:
    """The vectors (N, D) of an encoder, with the table of their patches: what a map learns from."""

    path: Path
    info: VectorsInfo
    table: PatchTable
    vectors: NDArray[Any]
    checksum: str
    encoder: MapCard
    """The map that does nothing: whose vectors these are, and what that encoder has seen."""

    def card(self, config: MapConfig) -> MapCard:
        """The card of a map of these vectors, before it has learned."""
        is_adapter = config.kind == "adapter"
        changes = {
            "kind": config.kind,
            "layers": config.layers if is_adapter else 0,
            "hidden_dim": config.hidden_dim if is_adapter and config.layers == 2 else 0,
        }
        return self.encoder.model_copy(update=changes)

    def describe(self, rows: NDArray[np.integer[Any]]) -> tuple[NDArray[np.float64], float]:
        """Mean (D,) and deviation of the numbers of some rows (n,); NaN and infinity are refused."""
        total, squares = np.zeros(self.vectors.shape[1]), 0.0
        shift = np.asarray(self.vectors[rows[0]], np.float64)
        for block in list_blocks(len(rows)):
            x = np.asarray(self.vectors[rows[block]], np.float64) - shift
            total, squares = total + x.sum(axis=0), squares + float(np.square(x).sum())
        mean = total / len(rows)
        variance = squares / len(rows) - float(np.square(mean).sum())
        if not np.isfinite(variance) or variance <= 0:
            problem = "are all the same" if np.isfinite(variance) else "contain NaN or infinity"
            raise UserError(
                f"the vectors of {self.path} to learn from {problem}. Make them again with another encoder."
            )
        return mean + shift, float(np.sqrt(variance / len(mean)))


class VectorBatches(Batches):
    """Batches of vectors; `pixels` of a batch are vectors (M, D) float32."""

    def __init__(
        self, vectors: VectorSet, tree: Tree, sampler: Sampler, config: DataConfig, seed: int, rank: int = 0
    ) -> None:
        super().__init__(vectors, tree, sampler, config, seed, rank)  # type: ignore[arg-type]  # its table is read here
        self._vectors = vectors.vectors

    def load(self, step: int) -> Batch:
        """The batch of one step."""
        draw = self._sampler.draw(step, self._rank)
        rows = draw.ancestry[:, -1]
        vectors = torch.from_numpy(np.asarray(self._vectors[rows], np.float32))
        labels = torch.from_numpy(self._labels[rows].astype(np.int64))
        return Batch(step, vectors, torch.from_numpy(draw.ancestry), labels, ())


class VectorViews:
    """Random views of vectors: some of their numbers become those of the mean vector, and noise is added."""

    def __init__(self, config: TrainConfig, mean: Tensor, scale: Tensor) -> None:
        self._config, self._mean, self._scale = config, mean, scale

    @torch.no_grad()
    def __call__(
        self, vectors: Tensor, generator: torch.Generator, stains: BatchStains | None = None
    ) -> tuple[Tensor, ...]:
        """Views (M, V, D) of vectors (M, D)."""
        views = vectors[:, None].repeat(1, self._config.batch.views, 1)
        mean, scale, config = self._mean.to(vectors.device), self._scale.to(vectors.device), self._config
        if config.map.noise > 0:
            views += torch.randn(views.shape, generator=generator).to(views.device) * (scale * config.map.noise)
        if config.map.dropout > 0:
            is_dropped = torch.rand(views.shape, generator=generator) < config.map.dropout
            views = torch.where(is_dropped.to(views.device), mean, views)
        return (views,)


def begin_map(vectors: VectorSet, rows: NDArray[np.integer[Any]], config: MapConfig) -> VectorMap:
    """An adapter that changes nothing yet, scaled to the rows (n,) it is to learn from."""
    mean, scale = vectors.describe(np.sort(rows))
    new = VectorMap(vectors.card(config))
    new.get_buffer("backbone.mean").copy_(torch.from_numpy(mean))
    new.get_buffer("backbone.scale").fill_(scale)
    return new


def solve(vectors: VectorSet, tree: Tree, config: TrainConfig, say: Say) -> VectorMap:
    """The map of `config.map` for the leaves of a tree of some vectors. Memory: a few times D^2, and one block."""
    where, dim, kind = f"{vectors.path}", config.map.dim, config.map.kind
    level = find_level(tree.levels, config.map.level) if kind == "whiten-within" else None
    if dim is not None:
        check_dim(dim, vectors.vectors.shape[1], where)  # before all of them are read
    parts = measure_moments(vectors.vectors, tree, where, config.seed)
    if kind == "centre":
        made = centre(parts)
    elif kind == "linear-hidisc":
        weights = level_weights(config.objective.get("weights", {}), tree.levels)[:-1]
        made = turn_to_units(parts, dim, config.map.keep, config.map.shrinkage, weights, where)
    else:
        if level is not None:
            _note_same_units(parts, tree.levels, level, say)
        made = whiten(parts, dim, config.map.shrinkage, level, where)
    if made.shrinkage is not None and config.map.shrinkage is None and len(parts) > 1:
        say(f"map.shrinkage={made.shrinkage:g}, which predicts left-out {tree.levels[0]}s best")
    width = vectors.encoder.takes if made.matrix is None else len(made.matrix)
    card = vectors.card(config.map).model_copy(update={"features": width, "shrinkage": made.shrinkage})
    return VectorMap.of_linear(card, made)


def _note_same_units(parts: tuple[Moments, ...], levels: tuple[str, ...], level: int, say: Say) -> None:
    """Say where another level has the same units, so that the choice between the two changes nothing."""
    units = [sum(part.units[number] for part in parts) for number in range(len(levels) - 1)]
    for other, has in enumerate(units):
        if has == units[level] and other != level:
            coarse, fine = levels[min(level, other)], levels[max(level, other)]
            say(f"note: every {coarse} has one {fine}, so within {coarse}s and within {fine}s is the same")


def find_level(levels: tuple[str, ...], level: str) -> int:
    """The place of a level above the patch among those of a hierarchy; another name is refused."""
    if level not in levels[:-1]:
        raise UserError(
            f"map.level = {level!r} is none of {', '.join(levels[:-1])}. Give one of these, or name further columns "
            "from coarse to fine in batch.levels."
        )
    return levels.index(level)

"""The cells of a suite: a training of one row with one seed, and the places where it is judged."""

import re
from dataclasses import dataclass
from pathlib import Path

from hidisc.artefacts.artefact import open_artefact
from hidisc.ground.errors import UserError
from hidisc.settings.benchmark import RowConfig, ScaleConfig, SuiteConfig
from hidisc.settings.embed import EmbedConfig
from hidisc.settings.load import load_config
from hidisc.settings.train import TrainConfig

FAILED = "failed.txt"
CELLS = "cells"


@dataclass(frozen=True)
class EvaluationPoint:
    """One evaluation of a cell: after `step` steps, on the sample of patches of a seed."""

    step: int
    is_last: bool
    sampling: int

    @property
    def name(self) -> str:
        """Part of the folders' names."""
        return f"{self.step}-{self.sampling}"


@dataclass(frozen=True)
class Cell:
    """One training, in a folder of its own."""

    row: RowConfig
    seed: int
    folder: Path
    train: TrainConfig
    points: tuple[EvaluationPoint, ...]

    @property
    def name(self) -> str:
        """For messages."""
        return f"{self.row.name}, seed {self.seed}"

    @property
    def run(self) -> Path:
        """The folder of its training."""
        return self.folder / "run"

    def encoder(self, point: EvaluationPoint) -> Path:
        """The folder of the encoder that a point judges."""
        return self.run if point.is_last else self.folder / f"encoder-{point.step}"

    def embeddings(self, point: EvaluationPoint) -> Path:
        """The folder of a point's embeddings."""
        return self.folder / f"embeddings-{point.name}"

    def scores(self, point: EvaluationPoint) -> Path:
        """The folder of a point's scores."""
        return self.folder / f"scores-{point.name}"

    @property
    def is_done(self) -> bool:
        """Whether all its evaluations are there; what they were made from may be deleted, but not damaged."""
        made_from = [(self.run, "train"), *((self.embeddings(point), "embed") for point in self.points)]
        made_from += [(self.encoder(point), "encoder") for point in self.points if not point.is_last]
        try:
            for point in self.points:
                open_artefact(self.scores(point), "evaluate")
            for folder, kind in made_from:
                if folder.exists():
                    open_artefact(folder, kind)
        except UserError:
            return False
        return True

    @property
    def failure(self) -> str | None:
        """Why it failed when it was last tried, None when it did not."""
        path = self.folder / FAILED
        return path.read_text(encoding="utf-8") if path.is_file() and not self.is_done else None


def plan_cells(suite: SuiteConfig, scale: ScaleConfig, out: Path) -> list[Cell]:
    """All cells, seed by seed, so that a suite cut short has every row once before any has it twice."""
    found = []
    for seed in range(suite.seeds):
        for number, row in enumerate(suite.rows, 1):
            folder = out / CELLS / f"{number:02d}-{_slug(row.name)}-{seed}"
            layers = "+".join(layer for layer in (row.recipe, scale.recipe) if layer)
            changes = [*scale.changes, *row.changes, f"seed={seed}"]
            train = load_config(TrainConfig, layers, changes)
            steps = sorted({max(1, round(point * train.optim.steps)) for point in suite.evaluation_points})
            train = _keep_checkpoints(train, steps[:-1])  # the last one's encoder is the run's own
            points = tuple(
                EvaluationPoint(step, step == steps[-1], drawn) for step in steps for drawn in range(suite.samplings)
            )
            found.append(Cell(row, seed, folder, train, points))
    return found


def _keep_checkpoints(train: TrainConfig, steps: list[int]) -> TrainConfig:
    """The settings with the checkpoints of these steps kept too; how often others are written stays the recipe's."""
    kept = train.checkpoint.model_copy(update={"at": tuple(sorted({*train.checkpoint.at, *steps}))})
    return train.model_copy(update={"checkpoint": kept})


def sampling_of(suite: SuiteConfig, point: EvaluationPoint) -> EmbedConfig:
    """How the patches of a point are chosen."""
    return EmbedConfig(per_slide=suite.per_slide, seed=point.sampling)


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")

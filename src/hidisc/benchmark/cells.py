"""The cells of a suite: a training of one row with one seed, and the places where it is judged."""

import re
from dataclasses import dataclass
from pathlib import Path

from hidisc.artefacts.artefact import open_artefact
from hidisc.config import load_config
from hidisc.errors import UserError
from hidisc.settings.benchmarking import RowConfig, ScaleConfig, SuiteConfig
from hidisc.settings.judging import EmbedConfig
from hidisc.settings.training import TrainConfig

FAILED = "failed.txt"
CELLS = "cells"


@dataclass(frozen=True)
class Look:
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
    looks: tuple[Look, ...]

    @property
    def name(self) -> str:
        """For messages."""
        return f"{self.row.name}, seed {self.seed}"

    @property
    def run(self) -> Path:
        """The folder of its training."""
        return self.folder / "run"

    def encoder(self, look: Look) -> Path:
        """The folder of the encoder that a look judges."""
        return self.run if look.is_last else self.folder / f"encoder-{look.step}"

    def embeddings(self, look: Look) -> Path:
        """The folder of a look's embeddings."""
        return self.folder / f"embeddings-{look.name}"

    def scores(self, look: Look) -> Path:
        """The folder of a look's scores."""
        return self.folder / f"scores-{look.name}"

    @property
    def is_done(self) -> bool:
        """Whether all its evaluations are there; what they were made from may be deleted, but not damaged."""
        made_from = [(self.run, "train"), *((self.embeddings(look), "embed") for look in self.looks)]
        made_from += [(self.encoder(look), "encoder") for look in self.looks if not look.is_last]
        try:
            for look in self.looks:
                open_artefact(self.scores(look), "evaluate")
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
            steps = sorted({max(1, round(look * train.optim.steps)) for look in suite.looks})
            train = _keep_checkpoints(train, steps[:-1])  # the last one's encoder is the run's own
            looks = tuple(Look(step, step == steps[-1], drawn) for step in steps for drawn in range(suite.samplings))
            found.append(Cell(row, seed, folder, train, looks))
    return found


def _keep_checkpoints(train: TrainConfig, steps: list[int]) -> TrainConfig:
    """The settings with the checkpoints of these steps kept too; how often others are written stays the recipe's."""
    kept = train.checkpoint.model_copy(update={"at": tuple(sorted({*train.checkpoint.at, *steps}))})
    return train.model_copy(update={"checkpoint": kept})


def sampling_of(suite: SuiteConfig, look: Look) -> EmbedConfig:
    """How the patches of a look are chosen."""
    return EmbedConfig(per_slide=suite.per_slide, seed=look.sampling)


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")

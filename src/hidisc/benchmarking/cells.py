"""The cells of a suite: a training of one row with one seed on one fold, and the points at which it is judged."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hidisc.artefacts.artefact import open_artefact
from hidisc.artefacts.inputs import ExpectedInputs
from hidisc.embeddings.embeddings import without_vectors
from hidisc.evaluation.cross_validation import plan_folds
from hidisc.evaluation.task import choose_task
from hidisc.ground.errors import UserError
from hidisc.ground.files import make_folder, write_atomic
from hidisc.patches.splits import Folds
from hidisc.patches.store import PatchStore
from hidisc.settings.benchmark import RowConfig, ScaleConfig, SuiteConfig
from hidisc.settings.config import load_config
from hidisc.settings.embed import EmbedConfig, ForeignConfig
from hidisc.settings.evaluate import EvaluateConfig, FoldsConfig
from hidisc.settings.train import TrainConfig

FAILED = "failed.txt"
CELLS, POOLED = "cells", "pooled"


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
class SuiteCell:
    """One training, in a folder of its own."""

    row: RowConfig
    seed: int
    folder: Path
    train: TrainConfig
    points: tuple[EvaluationPoint, ...]
    evaluate: EvaluateConfig
    fold: int | None = None
    """The fold whose patients it has not learned from, counted from 1; None judges all patients that are judged."""

    @property
    def name(self) -> str:
        """For messages."""
        return f"{self.row.name}, seed {self.seed}" + (f", fold {self.fold}" if self.fold else "")

    @property
    def steps(self) -> int:
        """Steps of training that it takes."""
        return self.train.optim.steps if self.row.encoder == "trained" else 0

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


@dataclass(frozen=True)
class CellTask:
    """A cell with what it needs, for a worker anywhere that sees the same folders."""

    cell: SuiteCell
    suite: SuiteConfig
    store: Path
    expected: ExpectedInputs
    """What the benchmark was begun from: another store, or other starting weights, are refused."""
    device: str
    threads: int | None


def plan_cells(
    suite: SuiteConfig, scale: ScaleConfig, out: Path, stores: Mapping[str, PatchStore] | None = None
) -> list[SuiteCell]:
    """All cells, seed by seed, so that a suite cut short has every row once before any has it twice.

    `stores`: by the names that rows give them; folds are made of their patients, and what could not be judged after
    the trainings is refused.
    """
    found = []
    unembedded = {key: without_vectors(store) for key, store in (stores or {}).items()}
    judged = suite.evaluate.model_copy(update={"floor": False, "audit": False})  # the floors are rows
    for seed in range(suite.seeds):
        rule, folds_of = suite.folds.model_copy(update={"seed": seed}), dict[str, Folds]()
        for key, patches in unembedded.items():
            if rule.are_used:
                folds_of[key] = plan_folds(patches, rule, suite.evaluate)
            elif seed == 0:
                choose_task(patches, patches, suite.evaluate)
        for number, row in enumerate(list_rows(suite), 1):
            store = (stores or {})[row.store] if rule.are_used else None
            folds = folds_of[row.store] if store else ()
            splits = store.table.splits if store else ()
            name = f"{number:02d}-{_slug(row.name)}-{seed}"
            train = _load_training(row, scale, seed)
            points = _plan_points(suite, row, train)
            if row.encoder != "trained":  # it has learned from nobody, so that one encoder serves all folds
                evaluate = judged.model_copy(update={"folds": rule if folds else FoldsConfig()})
                found.append(SuiteCell(row, seed, out / CELLS / name, train, points, evaluate))
                continue
            kept = {*train.checkpoint.at, *(point.step for point in points if not point.is_last)}
            checkpoint = train.checkpoint.model_copy(update={"at": tuple(sorted(kept))})
            train = train.model_copy(update={"checkpoint": checkpoint})
            if not folds:
                found.append(SuiteCell(row, seed, out / CELLS / name, train, points, judged))
            elif train.data.splits != TrainConfig().data.splits:
                raise UserError(
                    f"the row {row.name!r} learns from data.splits = {list(train.data.splits)}, but with folds every "
                    "training learns from all patients outside its fold. Leave data.splits out; data.leave_out names "
                    "patients that are never learned from."
                )
            for fold, patients in enumerate(folds, 1):
                never = dict.fromkeys((*train.data.leave_out, *patients))  # those of the row in every fold
                data = train.data.model_copy(update={"splits": splits, "leave_out": tuple(never)})
                evaluate = judged.model_copy(update={"test_patients": patients})
                one = train.model_copy(update={"data": data})
                found.append(SuiteCell(row, seed, out / CELLS / f"{name}-fold-{fold}", one, points, evaluate, fold))
    return found


def list_rows(suite: SuiteConfig) -> tuple[RowConfig, ...]:
    """The rows of a suite and behind them the floors that it does not have itself."""
    if not suite.floors:
        return suite.rows
    first = next((row for row in suite.rows if row.recipe), None)
    floors = [RowConfig(name="Colour alone", encoder="colour", store=suite.rows[0].store)]
    if first is not None:
        changes = (*first.changes, "model.weights=null")
        floors.append(
            first.model_copy(update={"name": "Untrained", "encoder": "start", "changes": changes, "at": None})
        )
    names = {row.name for row in suite.rows}
    return (*suite.rows, *(floor for floor in floors if floor.name not in names))


def _load_training(row: RowConfig, scale: ScaleConfig, seed: int) -> TrainConfig:
    if row.encoder == "colour":
        return TrainConfig(seed=seed)
    layers = "+".join(layer for layer in (row.recipe, scale.recipe) if layer)
    return load_config(TrainConfig, layers, [*scale.changes, *row.changes, f"seed={seed}"])


def _plan_points(suite: SuiteConfig, row: RowConfig, train: TrainConfig) -> tuple[EvaluationPoint, ...]:
    """When a row is judged, and on how many samples of patches."""
    steps = sorted({max(1, round(point * train.optim.steps)) for point in suite.evaluation_points})
    if row.encoder != "trained":
        steps = [0]
    return tuple(EvaluationPoint(step, step == steps[-1], drawn) for step in steps for drawn in range(suite.samplings))


def plan_embedding(suite: SuiteConfig, cell: SuiteCell, point: EvaluationPoint, size_px: int) -> EmbedConfig:
    """Which patches of a point are embedded, and how an encoder that was not trained is made; `size_px`: of patches."""
    if cell.row.encoder != "start":
        return EmbedConfig(per_slide=suite.per_slide, seed=point.sampling)
    model = cell.train.model
    start = ForeignConfig(weights=model.weights, options=model.options, size_px=size_px)
    seed = cell.seed * suite.samplings + point.sampling  # other random weights for every seed
    return EmbedConfig(per_slide=suite.per_slide, seed=seed, model=start)


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def keep_reason(cell: SuiteCell, error: BaseException) -> None:
    """Write into a cell's folder why it failed."""
    make_folder(cell.folder)  # a worker that does not see our folders has made none
    write_atomic(cell.folder / FAILED, say_reason(error).encode())


def say_reason(error: BaseException) -> str:
    """Why a cell failed, in a line."""
    return str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"


def list_finished(cells: Sequence[SuiteCell]) -> list[list[SuiteCell]]:
    """The cells of each row and seed whose folds are all finished, in the order of the folds."""
    groups: dict[tuple[str, int], list[SuiteCell]] = {}
    for cell in cells:
        if cell.fold is not None:
            groups.setdefault((cell.row.name, cell.seed), []).append(cell)
    return [folds for folds in groups.values() if all(cell.is_done for cell in folds)]


def pooled_scores(folds: Sequence[SuiteCell], point: EvaluationPoint, out: Path) -> Path:
    """The folder of the scores that the folds of a row and seed have together."""
    return out / POOLED / f"{folds[0].folder.name.rpartition('-fold-')[0]}-{point.name}"

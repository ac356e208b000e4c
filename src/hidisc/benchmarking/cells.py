"""The cells of a suite: a training of one row with one seed on one fold, and the points at which it is judged."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hidisc.artefacts.artefact import open_artefact
from hidisc.artefacts.inputs import ExpectedInputs
from hidisc.embeddings.embeddings import Embeddings, without_vectors
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
    map: TrainConfig | None = None
    """The settings of a map of the encoder's vectors; None: there is none."""
    fold: int | None = None
    """The fold whose patients it has not learned from, counted from 1; None judges all patients that are judged."""

    @property
    def name(self) -> str:
        """For messages."""
        return f"{self.row.name}, seed {self.seed}" + (f", fold {self.fold}" if self.fold else "")

    @property
    def steps(self) -> int:
        """Steps of training that it takes."""
        return self.train.optim.steps if _has_steps(self.row, self.train) else 0

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

    def map_run(self, point: EvaluationPoint) -> Path:
        """The folder of the map of a point's embeddings."""
        return self.folder / f"map-{point.name}"

    def mapped(self, point: EvaluationPoint) -> Path:
        """The folder of a point's embeddings behind the map."""
        return self.folder / f"mapped-{point.name}"

    def scores(self, point: EvaluationPoint) -> Path:
        """The folder of a point's scores."""
        return self.folder / f"scores-{point.name}"

    @property
    def is_done(self) -> bool:
        """Whether all its evaluations are there; what they were made from may be deleted, but not damaged."""
        made_from = [(self.run, "train"), *((self.embeddings(point), "embed") for point in self.points)]
        made_from += [(self.map_run(point), "train") for point in self.points]
        made_from += [(self.mapped(point), "embed") for point in self.points]
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
    suite: SuiteConfig, scale: ScaleConfig, out: Path, stores: Mapping[str, PatchStore | Embeddings] | None = None
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
        for number, row in enumerate(list_rows(suite, scale, stores or {}), 1):
            store = (stores or {})[row.store] if rule.are_used else None
            folds = folds_of[row.store] if store else ()
            splits = store.table.splits if store else ()
            name = f"{number:02d}-{_slug(row.name)}-{seed}"
            train = _load_training(row, scale, seed)
            points = _plan_points(suite, row, train)
            behind = load_config(TrainConfig, row.map, [f"seed={seed}"]) if row.map else None
            if row.encoder != "trained" and not (
                folds and behind
            ):  # it has learned from nobody, so that one encoder serves all folds
                evaluate = judged.model_copy(update={"folds": rule if folds else FoldsConfig()})
                found.append(SuiteCell(row, seed, out / CELLS / name, train, points, evaluate, behind))
                continue
            kept = {*train.checkpoint.at, *(point.step for point in points if not point.is_last)}
            checkpoint = train.checkpoint.model_copy(update={"at": tuple(sorted(kept))})
            train = train.model_copy(update={"checkpoint": checkpoint})
            if not folds:
                found.append(SuiteCell(row, seed, out / CELLS / name, train, points, judged, behind))
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
                then = behind and behind.model_copy(update={"data": data})
                folder = out / CELLS / f"{name}-fold-{fold}"
                found.append(SuiteCell(row, seed, folder, one, points, evaluate, then, fold))
    return found


def list_rows(
    suite: SuiteConfig, scale: ScaleConfig, stores: Mapping[str, PatchStore | Embeddings]
) -> tuple[RowConfig, ...]:
    """The rows of a suite and behind them the floors that it does not have itself."""
    if not suite.floors:
        return suite.rows
    first = next((row for row in suite.rows if row.recipe), None)
    floors = [RowConfig(name="Colour alone", encoder="colour", store=suite.rows[0].store)]
    if isinstance(stores.get(suite.rows[0].store), Embeddings):
        start = RowConfig(name="As they are", recipe="centre", encoder="start", store=suite.rows[0].store)
        floors = [start, start.model_copy(update={"name": "Whitened within slides", "map": "whiten-within"})]
    elif first is not None:
        start = first.model_copy(update={"name": "Start", "encoder": "start", "at": None, "map": ""})
        changes = (*first.changes, "model.weights=null")
        floors.append(start.model_copy(update={"name": "Untrained", "changes": changes}))
        has_start = any(row.encoder == "start" for row in suite.rows)
        if not has_start and _load_training(first, scale, 0).model.weights is not None:
            whitened = {"name": "Start, whitened within slides", "map": "whiten-within"}
            floors += [start, start.model_copy(update=whitened)]
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
    if not _has_steps(row, train):
        steps = [0]
    return tuple(EvaluationPoint(step, step == steps[-1], drawn) for step in steps for drawn in range(suite.samplings))


def _has_steps(row: RowConfig, train: TrainConfig) -> bool:
    """Whether a row is trained step by step; maps in closed form are not."""
    return row.encoder == "trained" and train.map.kind in (None, "adapter")


def plan_embedding(suite: SuiteConfig, cell: SuiteCell, point: EvaluationPoint, size_px: int | None) -> EmbedConfig:
    """Which patches of a point are embedded, and how an encoder that was not trained is made.

    `size_px`: of patches; None: of embeddings, which a map or nothing is put behind.
    """
    if cell.row.encoder != "start" or size_px is None:
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

"""The work of one cell of a benchmark: a training, its embeddings and their evaluation, here or on a worker."""

from typing import Any

import torch

from hidisc.artefacts.artefact import make
from hidisc.artefacts.inputs import EMBEDDINGS, ChangedInputError
from hidisc.artefacts.lock import hold
from hidisc.benchmarking.cells import FAILED, CellTask, EvaluationPoint, SuiteCell, keep_reason, plan_embedding
from hidisc.embeddings.colour import COLOUR
from hidisc.ground.files import refuse_full_disk, sweep
from hidisc.ground.progress import Progress, Watch
from hidisc.ground.stop import reached
from hidisc.models.card import CARD, WEIGHTS
from hidisc.patches.store import PatchStore
from hidisc.settings.config import Config
from hidisc.training.run import Run
from hidisc.verbs.embed import embed
from hidisc.verbs.evaluate import evaluate
from hidisc.verbs.train import train


class _Steps(Progress):
    """Reports the steps of a training."""

    def __init__(self, report: Watch) -> None:
        self._report = report

    def advance(self, count: int = 1) -> None:
        self._report(count)


class _EncoderSettings(Config):
    """Which encoder of a training it is."""

    step: int


def do_cell(task: CellTask, report: Watch) -> None:
    """Train and evaluate one cell; what is there already is kept."""
    cell = task.cell
    with hold(cell.folder):
        sweep(cell.folder)
        (cell.folder / FAILED).unlink(missing_ok=True)
        before = torch.get_num_threads()
        if task.threads is not None:
            torch.set_num_threads(task.threads)
        try:
            _train_and_evaluate(task, report)
        except ChangedInputError:
            raise  # no fault of the cell
        except Exception as error:
            refuse_full_disk(error, "Finished trainings are safe")
            keep_reason(cell, error)
            raise
        finally:
            torch.set_num_threads(before)
    reached("cell.done", cell.folder)


def _train_and_evaluate(task: CellTask, report: Watch) -> None:
    cell, store, expected = task.cell, task.store, task.expected
    on: dict[str, Any] = {"device": task.device, "devices": 1}
    threads = task.threads or torch.get_num_threads()  # the same for all: the trainings are compared
    if cell.row.encoder == "trained":
        train(store, cell.run, cell.train, **on, threads=threads, watch=_Steps(report), expected=expected)
    reached("cell.trained", cell.folder)
    size_px = PatchStore.load(store, expected).info.size_px
    for point in cell.points:
        config, model = plan_embedding(task.suite, cell, point, size_px), _find_model(cell, point)
        out, name = cell.embeddings(point), cell.row.name
        made = embed(store, model, out, config, **on, name=name, shown=False, expected=expected)
        assert made is not None  # there is one device
        of_point = expected.add(EMBEDDINGS, made.artefact.checksum)
        evaluate(out, cell.scores(point), cell.evaluate, device=task.device, expected=of_point)


def _find_model(cell: SuiteCell, point: EvaluationPoint) -> str:
    """The encoder that a point judges, as `embed` opens it; one of an earlier step is written beside the run."""
    if cell.row.encoder == "colour":
        return COLOUR
    if cell.row.encoder == "start":
        return f"timm:{cell.train.model.backbone}"
    folder = cell.encoder(point)
    if not point.is_last:
        run = Run.load(cell.run)
        inputs = {"the run": run.card.weights}
        with make(folder, "encoder", _EncoderSettings(step=point.step), inputs) as work:
            if not work.is_finished():
                run.encoder_at(point.step).save(folder)
                work.finish((CARD, WEIGHTS))
    return str(folder)

"""`hidisc benchmark`: a suite of trainings, each evaluated, then the paper's tables with our numbers in them."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from hidisc.artefacts.artefact import begin_together, make, read_kind
from hidisc.artefacts.inputs import EMBEDDINGS, STORE, ChangedInputError, ExpectedInputs
from hidisc.artefacts.lock import HeldError
from hidisc.benchmarking.cells import CellTask, SuiteCell, keep_reason, plan_cells, say_reason
from hidisc.benchmarking.results import list_results, pool_cells, write_results
from hidisc.embeddings.embeddings import Embeddings, without_vectors
from hidisc.evaluation.cross_validation import plan_folds
from hidisc.evaluation.leakage import find_same_person, refuse_leaks
from hidisc.ground.errors import UserError
from hidisc.ground.files import AnyPath, digest, full_disk_said, refuse_full_disk
from hidisc.ground.machine import count_cores
from hidisc.ground.progress import Result, Say, Watch, ignore
from hidisc.ground.tasks import run_tasks
from hidisc.ground.text import count
from hidisc.patches.store import PatchStore
from hidisc.settings.benchmark import SuiteConfig
from hidisc.verbs.progress import show_progress

SCALES = ("small", "paper")
_PATIENCE_S = 60.0
"""How long jobs that start at once wait for each other to begin the folder."""
_DEADLY_CELL = "Give it more memory, or smaller batches with --set."


class _Settings(SuiteConfig):
    """The suite, and at which scale."""

    scale: str


@dataclass(frozen=True)
class Benchmarked:
    """What a call of `benchmark` has done."""

    page: Path | None
    """None while another process is still at some trainings, or at the page."""
    cells: int
    done: int
    failed: int

    def result(self) -> Result:
        """The page and how many trainings are done; no sentence while another process is at work."""
        record = {**asdict(self), "page": str(self.page) if self.page else None}
        if self.page is None:
            return Result(None, record, failed=bool(self.failed))
        done = f"{self.done} of {count(self.cells, 'training')}"
        sentence = f"{self.page}: {done}, tables in {self.page.parent / 'tables'}"
        return Result(sentence, record, failed=bool(self.failed))


def benchmark(
    suite: SuiteConfig,
    store: AnyPath,
    out: AnyPath,
    *,
    scale: str = "small",
    stores: Mapping[str, AnyPath] | None = None,
    workers: int | None = None,
    scheduler: str | None = None,
    device: str = "auto",
    say: Say = ignore,
) -> Benchmarked:
    """Train and evaluate every cell that is not done, then write the page.

    Several processes or machines may work on one folder: a cell is held by whoever does it, and the kernel lets go of
    it when that process dies. `workers`: cells at once here; `scheduler`: cells are given to Dask.
    """
    out = Path(out)
    if scale not in SCALES:
        raise UserError(f"--scale {scale!r} is none of {', '.join(SCALES)}.")
    size = suite.small if scale == "small" else suite.full
    places = {name: Path(path) for name, path in {"": store, **(stores or {})}.items()}
    missing = sorted({row.store for row in suite.rows} - set(places))
    if missing:
        raise UserError(
            f"rows of this suite need stores called {', '.join(missing)}. Give each as --store {missing[0]}=PATH."
        )
    settings = _Settings(**suite.model_dump(), scale=scale)
    opened = {name: _open(path) for name, path in sorted(places.items())}
    inputs = {f"{STORE} {name}".rstrip(): store.checksum for name, store in opened.items()}
    cells = plan_cells(suite, size, out.absolute(), opened)
    starts = _hash_weights(cells)
    inputs |= {f"the weights {name}": digest([*start.values()]) for name, start in starts.items()}
    begin_together(out, "benchmark", settings, inputs, wait_s=_PATIENCE_S)
    waiting = [cell for cell in cells if not cell.is_done]
    if waiting:
        _refuse_same_person(suite, {cell.row.store: opened[cell.row.store] for cell in waiting}, say)
        processes = 0 if scheduler else min(_count_workers(workers, device), len(waiting))
        where = f"on {scheduler}" if scheduler else f"{max(processes, 1)} at once"
        time = f"; all of them take {size.time}" if size.time else ""
        say(f"{count(len(cells), 'training')}, {len(waiting)} to do, {where}; {size.describe(scale)}{time}")
        threads = max(1, count_cores() // processes) if processes > 1 else None
        tasks = []
        for cell in waiting:
            start, of_row = starts.get(cell.train.model.weights or "", {}), cell.row.store
            given = EMBEDDINGS if isinstance(opened[of_row], Embeddings) else STORE
            expected = ExpectedInputs(out, {given: opened[of_row].checksum, **start})
            tasks.append(CellTask(cell, suite, places[of_row].absolute(), expected, device, threads))
        _do_all(tasks, len(cells), processes if processes > 1 else 0, scheduler, say)
    done, failed = sum(cell.is_done for cell in cells), sum(bool(cell.failure) for cell in cells)
    if done + failed < len(cells):
        say("some trainings are being done by another process: run the same command again when they are finished")
        return Benchmarked(None, len(cells), done, failed)
    try:
        with full_disk_said("Finished trainings are safe"), make(out, "benchmark", settings, inputs) as work:
            work.reopen()
            pool_cells(cells, out.absolute(), suite.folds)
            page = write_results(suite, cells, out, size.describe(scale))
            work.finish(list_results(out))
    except HeldError:
        say("all trainings are done, and another process is writing the page")
        return Benchmarked(None, len(cells), done, failed)
    return Benchmarked(page, len(cells), done, failed)


def _open(path: Path) -> PatchStore | Embeddings:
    """What a suite is run on: a store, or embeddings, of which maps are learned."""
    return Embeddings.load(path) if read_kind(path) == "embed" else PatchStore.load(path)


def _refuse_same_person(suite: SuiteConfig, stores: Mapping[str, PatchStore | Embeddings], say: Say) -> None:
    """Refuse folds of patients of whom one is there under two names, before an encoder is trained."""
    if not suite.folds.are_used:
        return
    say("comparing the patients of all folds, one of whom may be there under two names ...")
    for patches in map(without_vectors, stores.values()):
        everyone = set(patches.table.codes("patient")[1])  # encoders learn from patients without a label as well
        folds = plan_folds(patches, suite.folds, suite.evaluate)
        findings = find_same_person(patches, everyone, len(folds), suite.evaluate)
        refuse_leaks(findings, suite.evaluate.leakage, "--set evaluate.leakage.allow=true")
        for finding in findings:
            say(f"{finding.kind}: {finding.sentence}")


def _hash_weights(cells: Sequence[SuiteCell]) -> dict[str, dict[str, str]]:
    """Checksums of each of the starting weights, as `hash_start` gives them."""
    given = sorted({cell.train.model.weights for cell in cells if cell.train.model.weights} - {"hub"})
    for name in given:
        if not Path(name).exists():
            raise UserError(
                f"this suite has rows that start from the weights {name}, and there is no such file here. Put it into "
                'this folder; docs/training.md, "Starting from weights", says how to get one.'
            )
    if not given:
        return {}
    from hidisc.models.encoder import hash_start  # with torch, which nothing else here needs

    return {name: hash_start(name) for name in given}


def _count_workers(workers: int | None, device: str) -> int:
    """Trainings at once: those asked for, or one per core; one where there is a GPU to have to itself."""
    if workers is not None:
        return max(workers, 1)
    if device == "auto":
        import torch

        return 1 if torch.accelerator.is_available() else count_cores()
    return count_cores() if device == "cpu" else 1


def _do_all(tasks: Sequence[CellTask], cells: int, workers: int, scheduler: str | None, say: Say) -> None:
    """Every task, here or elsewhere, with a bar of the steps that trainings have done."""
    done, failed, steps = cells - len(tasks), 0, 0
    with show_progress("training", sum(task.cell.steps for task in tasks)) as bar:

        def show(more_steps: int = 0) -> None:
            nonlocal steps
            steps += more_steps
            bar.update(steps, f"{done}/{count(cells, 'training')}" + (f", {failed} failed" if failed else ""))

        show()
        outcomes = run_tasks(_do, tasks, workers=workers, scheduler=scheduler, progress=show, hint=_DEADLY_CELL)
        for outcome in outcomes:
            refuse_full_disk(outcome.error, "Finished trainings are safe")
            if isinstance(outcome.error, ChangedInputError):
                raise outcome.error
            cell = outcome.task.cell
            done += 1
            if isinstance(outcome.error, HeldError):
                say(f"{cell.name}: another process is working on it")
            elif outcome.error is not None:
                say(f"{cell.name}: failed: {say_reason(outcome.error)}")
                keep_reason(cell, outcome.error)
                failed += 1
            show()


def _do(task: CellTask, report: Watch) -> None:
    """Train and evaluate one cell; torch is loaded by whoever does it, and not to write a page."""
    from hidisc.benchmarking.work import do_cell

    do_cell(task, report)

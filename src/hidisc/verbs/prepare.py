"""`hidisc prepare`: a cohort of slides -> a PatchStore."""

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hidisc.config import PrepareConfig
from hidisc.errors import UserError
from hidisc.patches.cluster import Outcome, run_tasks
from hidisc.patches.commit import Member, Recipe, commit_store, refuse_strangers
from hidisc.patches.cut import CutTask, cut_slide, missing_boxes
from hidisc.patches.record import RECORD, SlideRecord
from hidisc.patches.store import Failure, StoreInfo
from hidisc.reporting.prepared import draw_store
from hidisc.runs import begin, hold
from hidisc.slides.cohort import Cohort
from hidisc.slides.picture import read_picture
from hidisc.slides.stain import REFERENCE, Stains, stains_of_reference
from hidisc.verbs.progress import show_progress

Say = Callable[[str], None]


@dataclass(frozen=True)
class Prepared:
    """What a `prepare` or `import` came to."""

    out: Path
    info: StoreInfo
    worked: int
    """Slides that were read in this call; the others were there already."""

    def summary(self) -> dict[str, Any]:
        """Counts for the line of result and for `--json`."""
        kept = sum(slide.kept for slide in self.info.slides)
        return {
            "store": str(self.out),
            "patients": len({slide.patient for slide in self.info.slides}),
            "slides": len(self.info.slides),
            "patches": kept,
            "dropped": sum(slide.dropped for slide in self.info.slides),
            "empty_slides": sum(slide.kept == 0 for slide in self.info.slides),
            "failed_slides": len(self.info.failures),
        }


def prepare(
    cohort_csv: Path,
    out: Path,
    config: PrepareConfig | None = None,
    *,
    refilter: bool = False,
    workers: int | None = None,
    scheduler: str | None = None,
    say: Say = lambda _: None,
) -> Prepared:
    """Cut every slide of a cohort into patches; slides that are there already are not read again.

    `workers` processes on this machine (default: one a core, 0: this process), or those of a Dask `scheduler`.
    Slides that fail are listed in the result and in `failures.csv`; the others are finished all the same.
    """
    config = config or PrepareConfig()
    cohort = Cohort.load(cohort_csv, config.label_level)
    for warning in cohort.warnings:
        say(f"warning: {warning}")
    reference = _reference(config)
    members = [Member(row.patient, row.slide, row.label, row.site, row.split) for row in cohort.slides]
    if refilter and not (out / "config.yaml").exists():
        raise UserError(f"{out} has no store to refilter. Run without --refilter first.")

    with hold(out):
        free = ("split.", "label_level", "seed", "assume_mpp") + (("filter.",) if refilter else ())
        hint = " A changed filter alone needs no reading again: add --refilter."
        begin(out, "prepare", config, changeable=free, hint=hint)
        refuse_strangers(out, members)
        tasks = [
            CutTask(row, out.resolve() / member.folder, config, reference)
            for row, member in zip(cohort.slides, members, strict=True)
        ]
        todo = [task for task in tasks if _needs_work(task)]
        say(_plan(len(tasks), len(todo), out))
        failures = _work(todo, len(tasks), workers, scheduler)
        if len(failures) == len(tasks):
            raise UserError(
                "no slide could be read:\n  " + "\n  ".join(_sentence(failure) for failure in failures[:20])
            )
        recipe = Recipe(config.filter, config.pixels, config.split, config.seed, config.grid.mpp)
        info = commit_store(out, members, failures, recipe)
        say(f"drawing pictures to look at into {out / 'pictures'}")
        draw_store(out, info)
    return Prepared(out, info, len(todo) - len(failures))


def _needs_work(task: CutTask) -> bool:
    """Whether a slide must be opened: it is not there, or the filter keeps boxes that were never stored."""
    if not (task.folder / RECORD).exists():
        return True
    record = SlideRecord.load(task.folder)
    if record.source_bytes != task.row.path.stat().st_size:
        raise UserError(
            f"the file of slide {task.row.slide!r} ({task.row.path}) has changed since it was prepared. "
            "Put the old file back, or give a new --out."
        )
    return len(missing_boxes(task.folder, record, task.config)) > 0


def _work(todo: list[CutTask], slides: int, workers: int | None, scheduler: str | None) -> list[Failure]:
    """Cut the slides that need it; the failures, in the order of the cohort."""
    if not todo:
        return []
    count = min(workers if workers is not None else len(os.sched_getaffinity(0)), len(todo))
    failures: dict[str, Failure] = {}
    sizes = {task.row.slide: task.row.path.stat().st_size for task in todo}
    with show_progress("cutting", slides, sum(sizes.values()), done=slides - len(todo)) as bar:
        outcomes = run_tasks(cut_slide, todo, workers=count, scheduler=scheduler, progress=bar.patches)
        for outcome in outcomes:
            failure = failure_of(outcome, outcome.task.row.patient, outcome.task.row.slide, outcome.task.row.path)
            if failure:
                failures[failure.slide] = failure
            bar.slide(sizes[outcome.task.row.slide], failed=failure is not None)
    return [failures[task.row.slide] for task in todo if task.row.slide in failures]


def failure_of(outcome: Outcome[Any, Any], patient: str, slide: str, path: Path) -> Failure | None:
    """The failure of a slide, None when it went well; a full disk ends everything, for it is no slide's fault."""
    error = outcome.error
    if error is None:
        return None
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        raise UserError(
            f"the disk is full ({error.strerror}). Slides already finished are safe: free some space and run the "
            "same command again."
        ) from error
    reason = str(error) if isinstance(error, UserError | RuntimeError) else f"{type(error).__name__}: {error}"
    return Failure(patient=patient, slide=slide, path=str(path), reason=reason)


def _sentence(failure: Failure) -> str:
    return f"slide {failure.slide!r} of patient {failure.patient!r}: {failure.reason}"


def _plan(slides: int, todo: int, out: Path) -> str:
    if todo == slides:
        return f"{slides} slides to cut into {out}"
    if todo == 0:
        return f"all {slides} slides are in {out} already; nothing is read again"
    return f"{slides - todo} of {slides} slides are in {out} already; {todo} to cut"


def _reference(config: PrepareConfig) -> Stains:
    """The stains to look like: the published ones or those of a reference picture."""
    name = config.stain.reference
    if name == "published" or config.stain.method == "none":
        return REFERENCE
    if not Path(name).is_file():
        raise UserError(
            f"stain.reference {name!r} is not a file. Give a picture of well-stained tissue, or `published`."
        )
    return stains_of_reference(read_picture(Path(name)), name)

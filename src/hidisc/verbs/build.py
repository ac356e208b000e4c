"""What `prepare` and `import` share: one task a slide with progress, failures listed, the store committed and drawn."""

import logging
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from threadpoolctl import threadpool_limits

from hidisc.config import Closed
from hidisc.errors import UserError
from hidisc.patches.cluster import Outcome, Report, run_tasks
from hidisc.patches.commit import Member, Recipe, assign_splits, commit_store, refuse_strangers
from hidisc.patches.record import RECORD, SlideRecord, is_whole
from hidisc.patches.store import STORE, Failure, PatchStore, StoreInfo
from hidisc.patches.table import PatchTable
from hidisc.reporting.prepared import draw_store, is_drawn
from hidisc.runs import begin, count_cores, hold, refuse_full_disk, sweep
from hidisc.steps import reached
from hidisc.stop import stopped_at_once
from hidisc.verbs.progress import show_progress

Say = Callable[[str], None]
_DEADLY_SLIDE = "Remove the slide or convert it to a tiled pyramidal TIFF."


class SlideTask(Protocol):
    """The work of one slide; sent to workers, so it pickles."""

    @property
    def folder(self) -> Path:
        """The slide's folder, absolute."""

    @property
    def source(self) -> Path:
        """What is read, for messages."""

    def size_bytes(self) -> int:
        """Bytes to read."""

    def needs_work(self, record: SlideRecord) -> bool:
        """Whether a slide that is there already lacks something."""

    def run(self, report: Report) -> SlideRecord:
        """Do it."""


@dataclass(frozen=True)
class Built:
    """What a `prepare` or `import` came to."""

    out: Path
    info: StoreInfo
    worked: int
    """Slides that were read in this call; the others were there already."""

    def summary(self) -> dict[str, Any]:
        """Counts for the line of result and for `--json`."""
        return {
            "store": str(self.out),
            "patients": len({slide.patient for slide in self.info.slides}),
            "slides": len(self.info.slides),
            "patches": sum(slide.kept for slide in self.info.slides),
            "dropped": sum(slide.dropped for slide in self.info.slides),
            "empty_slides": sum(slide.kept == 0 for slide in self.info.slides),
            "failed_slides": len(self.info.failures),
            "slides_read": self.worked,
        }


def build_store(
    out: Path,
    kind: str,
    config: Closed,
    members: Sequence[Member],
    tasks: Sequence[SlideTask],
    recipe: Recipe,
    *,
    changeable: tuple[str, ...] = (),
    hint: str = "",
    workers: int | None = None,
    scheduler: str | None = None,
    say: Say = lambda _: None,
) -> Built:
    """Do the tasks that are not done (`tasks[i]` is the work of `members[i]`) and commit the store."""
    members = assign_splits(members, recipe)
    with hold(out), stopped_at_once(say):
        begin(out, kind, config, changeable, hint)
        refuse_strangers(out, members)
        todo = {task.folder: member for task, member in zip(tasks, members, strict=True) if _is_open(task, member)}
        for folder in todo:
            _clear_if_damaged(folder)
        say(_plan(len(tasks), len(todo), out))
        waiting = [task for task in tasks if task.folder in todo]
        failures = _work(waiting, todo, len(tasks), workers, scheduler)
        if len(failures) == len(tasks):
            reasons = [f"slide {failure.slide!r}: {failure.reason}" for failure in failures[:20]]
            raise UserError("\n  ".join([f"none of the {len(tasks)} slides could be read:", *reasons]))
        sweep(out)  # after workers that were killed
        if recipe.filter.run:
            from hidisc.verbs.judge import judge_slides  # torch, which workers and most stores do without

            recipe = replace(recipe, judge=judge_slides(out, members, recipe, say))
        before = (out / STORE).read_bytes() if (out / STORE).is_file() else b""
        with suppress(UserError):  # a damaged store is about to be mended
            _warn_of_moved_patients(PatchStore.load(out).table, members, say)
        info = commit_store(out, members, failures, recipe)
        if (out / STORE).read_bytes() != before or not is_drawn(out):
            say(f"drawing what was kept and dropped into {out / 'pictures'}")
            draw_store(out)
    return Built(out, info, len(todo) - len(failures))


def _warn_of_moved_patients(table: PatchTable, members: Sequence[Member], say: Say) -> None:
    """Say which patients are on another side than in the store so far: encoders may have learned from them."""
    (patient, patients), (split, splits) = table.codes("patient"), table.codes("split")
    pairs = np.unique(np.stack([patient, split]), axis=1).T.tolist()
    old = {patients[i]: splits[j] if j >= 0 else None for i, j in pairs}
    moved = {m.patient: m.split for m in members if m.patient in old and old[m.patient] != m.split}
    if moved:
        name, side = next(iter(moved.items()))
        say(
            f"warning: {len(moved)} patients are on another side than before ({name!r}: {old[name]} -> {side}): "
            "the cohort or the split settings changed. Encoders trained on the old split have seen them; to keep sides "
            "for good, put a `split` column into the cohort."
        )


def _is_open(task: SlideTask, member: Member) -> bool:
    """Whether a slide must be read: it is not there, damaged, or lacks patches; refuses one whose file has changed."""
    if not (task.folder / RECORD).exists():
        return True
    record = SlideRecord.load(task.folder)
    if record.source_bytes != task.size_bytes():
        raise UserError(
            f"the file of slide {member.slide!r} ({task.source}) has changed since the store was made. "
            "Put the old file back, or give a new --out."
        )
    return not is_whole(task.folder, record) or task.needs_work(record)


def _clear_if_damaged(folder: Path) -> None:
    """Make room for a slide one of whose files was lost or cut short after it had been written."""
    if (folder / RECORD).exists() and not is_whole(folder, SlideRecord.load(folder)):
        shutil.rmtree(folder)


def _work(
    waiting: Sequence[SlideTask], todo: dict[Path, Member], slides: int, workers: int | None, scheduler: str | None
) -> list[Failure]:
    """Do what is waiting; the failures, in the order of the cohort."""
    if not waiting:
        return []
    count = min(workers if workers is not None else count_cores(), len(waiting))
    sizes = {task.folder: task.size_bytes() for task in waiting}
    failures: dict[Path, Failure] = {}
    with show_progress("reading", slides, sum(sizes.values()), done=slides - len(waiting)) as bar:
        for outcome in run_tasks(
            _run, waiting, workers=count, scheduler=scheduler, progress=bar.patches, hint=_DEADLY_SLIDE
        ):
            folder = outcome.task.folder
            if outcome.error is not None:
                failures[folder] = _failure(outcome, todo[folder])
            bar.slide(sizes[folder], failed=folder in failures)
            reached("slide.done", folder)
    return [failures[task.folder] for task in waiting if task.folder in failures]


def _run(task: SlideTask, report: Report) -> SlideRecord:
    logging.getLogger("tifffile").setLevel(logging.CRITICAL)  # damage is ours to report, in one sentence
    with threadpool_limits(1):  # a worker is a core, and sums in one thread are the same to the last bit everywhere
        return task.run(report)


def _failure(outcome: Outcome[SlideTask, SlideRecord], member: Member) -> Failure:
    """Why a slide failed; a full disk ends everything, for it is no slide's fault."""
    error = outcome.error
    refuse_full_disk(error, "Slides already finished are safe")
    reason = str(error) if isinstance(error, UserError | RuntimeError) else f"{type(error).__name__}: {error}"
    return Failure(patient=member.patient, slide=member.slide, path=str(outcome.task.source), reason=reason)


def _plan(slides: int, todo: int, out: Path) -> str:
    if todo == slides:
        return f"{slides} slides to read into {out}"
    if todo == 0:
        return f"all {slides} slides are in {out} already; none is read again"
    return f"{slides - todo} of {slides} slides are in {out} already; {todo} to read"

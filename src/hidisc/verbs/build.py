"""What `prepare` and `import` share: one task a slide with progress, failures listed, the store committed and drawn."""

import logging
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from threadpoolctl import threadpool_limits

from hidisc.artefacts.artefact import make
from hidisc.ground.errors import UserError
from hidisc.ground.files import refuse_full_disk, sweep
from hidisc.ground.machine import count_cores
from hidisc.ground.steps import reached
from hidisc.ground.stop import stopped_at_once
from hidisc.ground.tasks import Outcome, Report, run_tasks
from hidisc.patches.commit import Recipe, assign_splits, commit_store, refuse_unlisted
from hidisc.patches.record import RECORD, RecordError, SlideRecord, is_whole
from hidisc.patches.store import Failure, PatchStore, StoreInfo
from hidisc.patches.table import PatchTable
from hidisc.reporting.prepared import draw_store, is_drawn, list_pictures
from hidisc.settings.config import Config
from hidisc.slides.cohort import SlideRow
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

    def sample(self) -> str:
        """Checksum of samples of what is read."""

    def find_change(self, record: SlideRecord) -> str | None:
        """The fact under a slide that is there already which is another now; None: none is."""

    def lacks_patches(self, record: SlideRecord) -> bool:
        """Whether a slide that is there already must be opened again for more patches."""

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
    config: Config,
    members: Sequence[SlideRow],
    tasks: Sequence[SlideTask],
    recipe: Recipe,
    *,
    inputs: Mapping[str, str] | None = None,
    taken_over: tuple[str, ...] = (),
    hint: str = "",
    workers: int | None = None,
    scheduler: str | None = None,
    say: Say = lambda _: None,
) -> Built:
    """Do the tasks that are not done (`tasks[i]` is the work of `members[i]`) and commit the store."""
    members = assign_splits(members, recipe)
    with make(out, kind, config, inputs, taken_over=taken_over, hint=hint) as work, stopped_at_once(say):
        refuse_unlisted(out, members)
        waiting = _find_work(tasks, members)
        with suppress(UserError):  # a damaged or unfinished store is about to be repaired
            _warn_of_moved_patients(PatchStore.load(out).table, members, say)
        todo = {task.folder: member for task, member, _ in waiting}
        if todo:
            work.reopen()
        for task, member, why in waiting:
            if why:
                say(f"slide {member.slide!r} is read again: {why}")
                shutil.rmtree(task.folder)
        say(_plan(len(tasks), len(todo), out))
        failures = _work([task for task, _, _ in waiting], todo, len(tasks), workers, scheduler)
        if len(failures) == len(tasks):
            reasons = [f"slide {failure.slide!r}: {failure.reason}" for failure in failures[:20]]
            raise UserError("\n  ".join([f"none of the {len(tasks)} slides could be read:", *reasons]))
        sweep(out)  # after workers that were killed
        if recipe.filter.run:
            from hidisc.verbs.judge import judge_slides  # torch, which workers and most stores do without

            recipe = replace(recipe, classifier=judge_slides(out, members, recipe, say))
        committed = commit_store(work, members, failures, recipe)
        if committed.is_new or not is_drawn(out):
            work.finish(committed.files)  # without pictures, so that a killed command draws them
            say(f"drawing what was kept and dropped into {out / 'pictures'}")
            draw_store(out)
        work.finish(committed.files, list_pictures(out))
    return Built(out, committed.info, len(todo) - len(failures))


def _warn_of_moved_patients(table: PatchTable, members: Sequence[SlideRow], say: Say) -> None:
    """Say which patients are in another split than in the store so far: encoders may have learned from them."""
    (patient, patients), (split, splits) = table.codes("patient"), table.codes("split")
    pairs = np.unique(np.stack([patient, split]), axis=1).T.tolist()
    old = {patients[i]: splits[j] if j >= 0 else None for i, j in pairs}
    moved = {m.patient: m.split for m in members if m.patient in old and old[m.patient] != m.split}
    if moved:
        name, new = next(iter(moved.items()))
        say(
            f"warning: {len(moved)} patients are in another split than before ({name!r}: {old[name]} -> {new}): "
            "the cohort or the split settings changed. Encoders trained on the old split have seen them; to keep "
            "splits for good, put a `split` column into the cohort."
        )


def _find_work(tasks: Sequence[SlideTask], members: Sequence[SlideRow]) -> list[tuple[SlideTask, SlideRow, str | None]]:
    """The slides to read, and of those that are there but must be read anew, why; refuses changed files."""
    found: list[tuple[SlideTask, SlideRow, str | None]] = []
    for task, member in zip(tasks, members, strict=True):
        if not task.folder.exists():
            found.append((task, member, None))
            continue
        try:
            record = SlideRecord.load(task.folder)
        except RecordError:
            found.append((task, member, f"{RECORD} is missing or damaged"))
            continue
        if record.sample != task.sample():
            raise UserError(
                f"what slide {member.slide!r} was read from ({task.source}) has changed since the store was made. "
                "Put it back as it was, or give a new --out."
            )
        why = task.find_change(record) or (None if is_whole(task.folder, record) else "a file of it is damaged")
        if why or task.lacks_patches(record):
            found.append((task, member, why))
    return found


def _work(
    waiting: Sequence[SlideTask], todo: dict[Path, SlideRow], slides: int, workers: int | None, scheduler: str | None
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


def _failure(outcome: Outcome[SlideTask, SlideRecord], member: SlideRow) -> Failure:
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

"""What `prepare` and `import` share: one task per slide, progress, failures listed, the store committed and drawn.

Before the store is committed, a trained run may predict a label for every patch, so that some are dropped: the paper
drops blank and non-diagnostic SRH patches with a trained model; here it is any supervised run.
"""

import logging
import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from hidisc.artefacts.artefact import make
from hidisc.ground.errors import UserError
from hidisc.ground.files import hash_file, refuse_full_disk, sweep
from hidisc.ground.machine import count_cores
from hidisc.ground.progress import Result, Say, Watch, ignore
from hidisc.ground.stop import reached, stopped_at_once
from hidisc.ground.tasks import TaskOutcome, run_tasks
from hidisc.ground.text import count, name_some
from hidisc.models.card import WEIGHTS
from hidisc.patches.codec import decode
from hidisc.patches.commit import PredictedLabels, StorePlan, assign_splits, commit_store, refuse_unlisted
from hidisc.patches.record import RECORD, RecordError, SlideRecord, SlideTask, is_whole, slide_folder
from hidisc.patches.shard import Shard
from hidisc.patches.splits import find_split_doubts
from hidisc.patches.store import FAILURES, PatchStore, SlideFailure, StoreInfo, as_input
from hidisc.patches.table import PatchTable
from hidisc.reporting.prepared import draw_store, is_drawn, list_pictures
from hidisc.settings.level_names import LevelNames
from hidisc.settings.prepare import SplitConfig
from hidisc.slides.cohort import SlideRow
from hidisc.slides.slide import Pixels
from hidisc.verbs.progress import show_progress

if TYPE_CHECKING:  # torch and all
    from hidisc.models.encoder import Encoder

_PREDICTED_AT_ONCE = 256
"""Patches."""
_DEADLY_SLIDE = "Remove the slide or convert it to a tiled pyramidal TIFF."


@dataclass(frozen=True)
class Built:
    """The store that a `prepare` or `import` made."""

    out: Path
    info: StoreInfo
    worked: int
    """Slides that were read in this call; the others were there already."""

    def sentence(self) -> str:
        """The line of result: patches, slides and patients, what was dropped and what failed."""
        counts, words = self.summary(), self.info.level_names
        slides, empty, failed = counts["slides"], counts["empty_slides"], counts["failed_slides"]
        patches, patients = words.count(counts["patches"], "patch"), words.count(counts["patients"], "patient")
        source = f"{words.count(slides, 'slide')} of {patients}"
        if empty:
            shown = len({slide.patient for slide in self.info.slides if slide.kept})
            source = f"{slides - empty:,} of {words.count(slides, 'slide')} and {shown:,} of {patients}"
        # a box that is dropped has a patch of every scale
        dropped = words.count(counts["dropped"], "patch") if self.info.scales else count(counts["dropped"], "box")
        more = f", {words.count(failed, 'slide')} failed (see {self.out / FAILURES})" if failed else ""
        return f"{self.out}: {patches} of {source}, {dropped} dropped{more}"

    def result(self) -> Result:
        """The sentence, the counts, and why slides failed."""
        failures = self.info.failures
        notes = [f"failed: slide {each.slide!r} of patient {each.patient!r}: {each.reason}" for each in failures]
        record = {**self.summary(), "failures": [failure.model_dump() for failure in failures]}
        return Result(self.sentence(), record, tuple(notes), failed=bool(failures))

    def summary(self) -> dict[str, Any]:
        """Counts for `--json`."""
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
    members: Sequence[SlideRow],
    tasks: Sequence[SlideTask],
    plan: StorePlan,
    *,
    inputs: Mapping[str, str] | None = None,
    taken_over: tuple[str, ...] = (),
    hint: str = "",
    workers: int | None = None,
    scheduler: str | None = None,
    say: Say = ignore,
) -> Built:
    """Do the tasks that are not done (`tasks[i]` is the work of `members[i]`) and commit the store."""
    wanted = () if any(member.split for member in members) else _list_splits(plan.config.split)
    members = assign_splits(members, plan.config.split, plan.config.seed)
    empty = _warn_of_empty_splits(wanted, members, say)
    with (
        make(out, kind, plan.config, inputs, taken_over=taken_over, hint=hint) as work,
        stopped_at_once(say),
    ):
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
        say(_describe_work(out, plan.level_names, len(tasks), len(todo)))
        failures = _work([task for task, _, _ in waiting], todo, len(tasks), workers, scheduler, plan.level_names)
        if len(failures) == len(tasks):
            raise _none_read(failures)
        sweep(out)  # after workers that were killed
        if plan.config.filter.run:
            plan = replace(plan, classifier=_predict_labels(out, members, plan, say))
        committed = commit_store(work, members, failures, plan)
        if committed.is_new or not is_drawn(out):
            work.finish(committed.files)  # without pictures, so that a killed command draws them
            say(f"drawing what was kept and dropped into {out / 'pictures'}")
            draw_store(out)
        work.finish(committed.files, list_pictures(out))
    kept = {slide.slide for slide in committed.info.slides if slide.kept}
    left = [split for split in wanted if split not in empty]
    shown = [member for member in members if member.slide in kept]
    _warn_of_empty_splits(left, shown, say)
    for doubt in find_split_doubts(facts for member in shown for facts in _list_facts(member)):
        say(f"note: {doubt}")
    return Built(out, committed.info, len(todo) - len(failures))


def _list_facts(member: SlideRow) -> list[tuple[str, str | None, str | None]]:
    """Patient, label and split of a slide, for each label that its patches have."""
    labels = dict.fromkeys(member.columns.get("label", [member.label]))
    return [(member.patient, label, member.split) for label in labels]


def _describe_work(out: Path, names: LevelNames, slides: int, to_read: int) -> str:
    """How many slides there are, and how many of them are to be read."""
    there = slides - to_read
    if not there:
        return f"{names.count(slides, 'slide')} to read into {out}"
    if not to_read:
        return f"all {names.count(there, 'slide')} are in {out} already; none is read again"
    return f"{there:,} of {names.count(slides, 'slide')} are in {out} already; {to_read:,} to read"


def _none_read(failures: Sequence[SlideFailure]) -> UserError:
    """That every slide has failed, and why."""
    slides = len(failures)
    head = "the only slide cannot be read:" if slides == 1 else f"none of the {slides:,} slides can be read:"
    return UserError("\n  ".join([head, *(f"slide {one.slide!r}: {one.reason}" for one in failures[:20])]))


def _list_splits(config: SplitConfig) -> tuple[str, ...]:
    """The splits that patients are drawn into."""
    if config.folds:
        return tuple(f"fold-{number}" for number in range(1, config.folds + 1))
    return tuple(split for split, share in config.fractions.items() if share > 0)


def _warn_of_empty_splits(splits: Iterable[str], members: Sequence[SlideRow], say: Say) -> list[str]:
    """Say which splits have no patient with a slide among `members`; these splits."""
    used = {member.split for member in members}
    empty = [split for split in splits if split not in used]
    if empty:
        patients = count(len({member.patient for member in members}), "patient")
        say(
            f"warning: no patient is in split {name_some(empty)} ({patients} in all), and `hidisc evaluate` will need "
            "patients that training has not seen. Add patients, or put a `split` column into the cohort."
        )
    return empty


def _warn_of_moved_patients(table: PatchTable, members: Sequence[SlideRow], say: Say) -> None:
    """Say which patients are in another split than in the store so far: encoders may have learned from them."""
    (patient, patients), (split, splits) = table.codes("patient"), table.codes("split")
    pairs = np.unique(np.stack([patient, split]), axis=1).T.tolist()
    old = {patients[i]: splits[j] if j >= 0 else None for i, j in pairs}
    moved = {m.patient: m.split for m in members if m.patient in old and old[m.patient] != m.split}
    if moved:
        name, new = next(iter(moved.items()))
        say(
            f"warning: {count(len(moved), 'patient')} moved to another split ({name!r}: {old[name]} -> {new}): "
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
    waiting: Sequence[SlideTask],
    todo: dict[Path, SlideRow],
    slides: int,
    workers: int | None,
    scheduler: str | None,
    words: LevelNames,
) -> list[SlideFailure]:
    """Do what is waiting; the failures, in the order of the cohort."""
    if not waiting:
        return []
    processes = min(workers if workers is not None else count_cores(), len(waiting))
    sizes = {task.folder: task.size_bytes() for task in waiting}
    failures: dict[Path, SlideFailure] = {}
    # slides count by their size on disk, so that the time left does not assume that all are alike
    slides_done, bytes_done, boxes, began = slides - len(waiting), 0, 0, time.monotonic()
    with show_progress("reading", sum(sizes.values())) as bar:

        def show(more_boxes: int = 0) -> None:
            nonlocal boxes
            boxes += more_boxes
            failed = f", {len(failures)} failed" if failures else ""
            rate = boxes / max(time.monotonic() - began, 1e-6)
            done = f"{slides_done:,}/{words.count(slides, 'slide')}"
            bar.update(bytes_done, f"{done}{failed}  {rate:,.0f} {words.plural('patch')}/s")

        show()
        for outcome in run_tasks(
            _run, waiting, workers=processes, scheduler=scheduler, progress=show, hint=_DEADLY_SLIDE
        ):
            folder = outcome.task.folder
            if outcome.error is not None:
                failures[folder] = _failure(outcome, todo[folder])
            slides_done, bytes_done = slides_done + 1, bytes_done + sizes[folder]
            show()
            reached("slide.done", folder)
    return [failures[task.folder] for task in waiting if task.folder in failures]


def _run(task: SlideTask, report: Watch) -> SlideRecord:
    logging.getLogger("tifffile").setLevel(logging.CRITICAL)  # damage is ours to report, in one sentence
    with threadpool_limits(1):  # a worker is a core, and sums in one thread are the same to the last bit everywhere
        return task.run(report)


def _failure(outcome: TaskOutcome[SlideTask, SlideRecord], member: SlideRow) -> SlideFailure:
    """Why a slide failed; a full disk ends everything, for it is no slide's fault."""
    error = outcome.error
    refuse_full_disk(error, "Slides already finished are safe")
    reason = str(error) if isinstance(error, UserError | RuntimeError) else f"{type(error).__name__}: {error}"
    return SlideFailure(patient=member.patient, slide=member.slide, path=str(outcome.task.source), reason=reason)


def _predict_labels(out: Path, slides: Sequence[SlideRow], plan: StorePlan, say: Say) -> PredictedLabels:
    """Predict a label for every stored patch that has none yet; one file per slide, so a killed command goes on."""
    import torch  # which workers and most stores do without

    from hidisc.training.run import Run

    run = Run.load(Path(plan.config.filter.run or ""))
    encoder = run.encoder()
    labels = encoder.card.classes
    unknown = [label for label in plan.config.filter.drop_labels if label not in labels]
    if unknown:
        raise UserError(
            f"filter.drop_labels: {unknown[0]!r} is no label {run.path} predicts "
            f"({', '.join(labels) or 'it predicts none'}). Give labels of a run made with "
            "`hidisc train --recipe supervised`."
        )
    predictor = PredictedLabels(hash_file(run.path / WEIGHTS)[:12], labels)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    encoder.to(device)
    predicted = 0
    for slide in slides:
        folder = out / slide_folder(slide.slide)
        if (folder / RECORD).exists():
            predicted += _predict_slide(folder, encoder, predictor, plan, device)
    dropped = ", ".join(plan.config.filter.drop_labels)
    say(f"{run.path} predicted labels for {count(predicted, 'patch')}; those predicted as {dropped} are dropped")
    return predictor


def _predict_slide(folder: Path, encoder: "Encoder", predictor: PredictedLabels, plan: StorePlan, device: str) -> int:
    """Predict the labels that a slide lacks; the number of patches predicted."""
    record = SlideRecord.load(folder)
    if (record.size_px, record.channels) != (encoder.card.size_px, _stored_channels(encoder)):
        raise UserError(
            f"filter.run was trained on {encoder.card.size_px} px patches of {_stored_channels(encoder)} channels, and "
            f"slide {record.slide!r} has {record.channels} channels at {record.size_px} px. Train it on such patches."
        )
    codes, scores = predictor.load(folder, record.boxes)
    predicted = 0
    for file in record.shards:
        shard = Shard(folder / file)
        boxes = shard.boxes
        missing = np.flatnonzero(codes[boxes] < 0)
        for start in range(0, len(missing), _PREDICTED_AT_ONCE):
            rows = missing[start : start + _PREDICTED_AT_ONCE]
            shape, dtype = (record.size_px, record.size_px, record.channels), np.dtype(record.dtype)
            pixels = np.stack([decode(shard[int(row)], plan.config.pixels.codec, shape, dtype) for row in rows])
            codes[boxes[rows]], scores[boxes[rows]] = _predict(encoder, as_input(pixels, plan.input), device)
        predicted += len(missing)
    if predicted:
        predictor.save(folder, codes, scores)
    return predicted


def _stored_channels(encoder: "Encoder") -> int:
    return 2 if encoder.card.input == "srh" else encoder.card.channels


def _predict(encoder: "Encoder", pixels: Pixels, device: str) -> tuple[NDArray[np.int16], NDArray[np.float32]]:
    """(B,) most probable label and its probability, of input (B, H, W, C)."""
    import torch

    with torch.inference_mode():
        x = torch.from_numpy(pixels).permute(0, 3, 1, 2).to(device)
        best = encoder.classify_features(encoder.features(x)).float().softmax(dim=1).max(dim=1)
    return best.indices.cpu().numpy().astype(np.int16), best.values.cpu().numpy()

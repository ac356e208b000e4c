"""Progress bars on stderr: live on a terminal, a line now and then in a log file."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

if TYPE_CHECKING:  # torch and all, which a bar for slides does without
    from hidisc.training.fit import StepsDone

_EVERY_S = 30  # seconds between lines where there is no terminal (a SLURM log)


class SlideProgress:
    """Counts slides by their size on disk, so that the time left does not assume that all are alike."""

    def __init__(self, bar: Progress, slides: int, total_bytes: int, done: int) -> None:
        self._bar, self._slides, self._done = bar, slides, done
        self._total = max(total_bytes, 1)
        self._task = bar.add_task("", total=self._total, slides=self._text(), rate="")
        self._boxes, self._bytes, self._failed = 0, 0, 0
        self._start = self._said = time.monotonic()

    def patches(self, count: int) -> None:
        """`count` more boxes were read somewhere."""
        self._boxes += count
        self._show()

    def slide(self, size_bytes: int, failed: bool = False) -> None:
        """One more slide is finished."""
        self._done += 1
        self._failed += failed
        self._bytes += size_bytes
        self._bar.advance(self._task, size_bytes)
        self._show()

    def _text(self) -> str:
        return f"{self._done}/{self._slides} slides"

    def _show(self) -> None:
        elapsed = max(time.monotonic() - self._start, 1e-6)
        failed = f", {self._failed} failed" if self._failed else ""
        self._bar.update(self._task, slides=self._text() + failed, rate=f"{self._boxes / elapsed:,.0f} patches/s")
        if not self._bar.console.is_terminal and time.monotonic() - self._said > _EVERY_S:
            self._said = time.monotonic()
            left = elapsed * (self._total - self._bytes) / self._bytes if self._bytes else float("nan")
            self._bar.console.print(
                f"{self._text()}{failed}, {self._boxes / elapsed:,.0f} patches/s, {left / 60:.0f} min left"
            )


class _Left(ProgressColumn):
    """Time left, in words a person reads."""

    def render(self, task: Task) -> Text:
        return Text(f"{TimeRemainingColumn(compact=True).render(task)} left", style="progress.remaining")


@contextmanager
def show_progress(title: str, slides: int, total_bytes: int, done: int = 0) -> Iterator[SlideProgress]:
    """A bar while the block runs: a live one on a terminal, a line now and then in a log file."""
    console = Console(file=sys.stderr, soft_wrap=True)
    columns = (
        SpinnerColumn(),
        TextColumn(title),
        BarColumn(),
        TextColumn("{task.fields[slides]}"),
        TextColumn("{task.fields[rate]}"),
        _Left(),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        yield SlideProgress(bar, slides, total_bytes, done)


class TrainProgress:
    """Steps done, the last losses, images a second, time left; called with every step's progress."""

    def __init__(self, bar: Progress, steps: int, shown: bool) -> None:
        self._bar, self._shown = bar, shown
        self._task = bar.add_task("", total=steps, losses="", rate="")
        self._first: int | None = None
        self._start = self._said = time.monotonic()

    def __call__(self, now: "StepsDone") -> None:
        """Show it."""
        if self._first is None:
            self._first = now.step - 1
            self._bar.reset(self._task, total=now.steps, completed=self._first)
        row = now.row
        hidden = {"step", "learning_rate", "grad_norm", "images_per_s", "wait_share"}
        losses = "  ".join(f"{name} {value:.3f}" for name, value in row.items() if name not in hidden)
        losses = losses.replace("effective_rank", "rank").replace("knn_accuracy", "kNN")
        rate = f"{row['images_per_s']:,.0f} images/s" if row else ""
        self._bar.update(self._task, completed=now.step, losses=losses, rate=rate)
        if self._shown and not self._bar.console.is_terminal and time.monotonic() - self._said > _EVERY_S:
            self._said = time.monotonic()
            left = (self._said - self._start) * (now.steps - now.step) / max(now.step - self._first, 1)
            self._bar.console.print(f"step {now.step:,}/{now.steps:,}  {losses}  {rate}  {left / 60:.0f} min left")


@contextmanager
def show_training(steps: int, shown: bool) -> Iterator[TrainProgress]:
    """A bar while a run trains; `shown` on one rank only."""
    console = Console(file=sys.stderr, soft_wrap=True)
    columns = (
        SpinnerColumn(),
        TextColumn("training"),
        BarColumn(bar_width=20),
        TextColumn("{task.completed:,.0f}/{task.total:,.0f}"),
        TextColumn("{task.fields[losses]}"),
        TextColumn("{task.fields[rate]}"),
        _Left(),
    )
    with Progress(*columns, console=console, disable=not (shown and console.is_terminal)) as bar:
        yield TrainProgress(bar, steps, shown)


class PatchProgress:
    """Patches done, patches a second, time left; called with how many more are done."""

    def __init__(self, bar: Progress, total: int, shown: bool) -> None:
        self._bar, self._total, self._shown = bar, total, shown
        self._task = bar.add_task("", total=total, rate="")
        self._done, self._before = 0, 0
        self._start: float | None = None
        self._said = time.monotonic()

    def __call__(self, count: int) -> None:
        """Show it; the first count is what was there before."""
        now = time.monotonic()
        self._done += count
        if self._start is None:
            self._start, self._before = now, self._done
        elapsed = max(now - self._start, 1e-6)
        new = self._done - self._before
        rate = f"{new / elapsed:,.0f} patches/s" if new else ""
        self._bar.update(self._task, completed=min(self._done, self._total), rate=rate)
        if self._shown and not self._bar.console.is_terminal and now - self._said > _EVERY_S:
            self._said = now
            left = elapsed * (self._total - self._done) / max(new, 1)
            self._bar.console.print(f"{self._done:,}/{self._total:,} patches  {rate}  {left / 60:.0f} min left")


@contextmanager
def show_patches(title: str, total: int, shown: bool = True) -> Iterator[PatchProgress]:
    """A bar while patches are worked on one after the other; `shown` on one rank only."""
    console = Console(file=sys.stderr, soft_wrap=True)
    columns = (
        SpinnerColumn(),
        TextColumn(title),
        BarColumn(),
        TextColumn("{task.completed:,.0f}/{task.total:,.0f} patches"),
        TextColumn("{task.fields[rate]}"),
        _Left(),
    )
    with Progress(*columns, console=console, disable=not (shown and console.is_terminal)) as bar:
        yield PatchProgress(bar, total, shown)


class CellProgress:
    """Cells done of a benchmark, and the time left by the steps that trainings have done."""

    def __init__(self, bar: Progress, cells: int, done: int, steps: int) -> None:
        self._bar, self._cells, self._done, self._total = bar, cells, done, max(steps, 1)
        self._steps, self._failed = 0, 0
        self._task = bar.add_task("", total=self._total, cells=self._text())
        self._start = self._said = time.monotonic()

    def steps(self, count: int) -> None:
        """`count` more steps were trained somewhere."""
        self._steps += count
        self._show()

    def cell(self, failed: bool = False) -> None:
        """One more cell is finished."""
        self._done += 1
        self._failed += failed
        self._show()

    def _text(self) -> str:
        failed = f", {self._failed} failed" if self._failed else ""
        return f"{self._done}/{self._cells} cells{failed}"

    def _show(self) -> None:
        self._bar.update(self._task, completed=min(self._steps, self._total), cells=self._text())
        now = time.monotonic()
        if not self._bar.console.is_terminal and now - self._said > _EVERY_S:
            self._said = now
            left = (now - self._start) * (self._total - self._steps) / max(self._steps, 1)
            self._bar.console.print(f"{self._text()}, {left / 60:.0f} min left")


@contextmanager
def show_cells(cells: int, done: int, steps: int) -> Iterator[CellProgress]:
    """A bar while the cells of a benchmark are done."""
    console = Console(file=sys.stderr, soft_wrap=True)
    columns = (SpinnerColumn(), TextColumn("training"), BarColumn(), TextColumn("{task.fields[cells]}"), _Left())
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        yield CellProgress(bar, cells, done, steps)

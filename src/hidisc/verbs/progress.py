"""Progress on stderr: a live bar on a terminal or in a notebook, a line now and then in a log file."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from math import isnan
from typing import TYPE_CHECKING

from rich.console import Console, RenderableType
from rich.constrain import Constrain
from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, Task, TextColumn
from rich.table import Column
from rich.text import Text

from hidisc.ground.progress import Watch
from hidisc.settings.level_names import USUAL, LevelNames

if TYPE_CHECKING:  # torch and all, which a bar for slides does without
    from hidisc.training.fit import StepsDone

_FIRST_S, _EVERY_S = 5, 30
"""Seconds until the first line, and between lines, where there is no live bar (a SLURM log)."""
_ENOUGH, _ENOUGH_S = 0.01, 60
"""The share of the total, or the seconds, after which a time left can be told: at first it would be hours too long."""


class _Bar(Progress):
    """Leaves room at the end of the line for the ^C that a terminal writes there: it would break the line."""

    def get_renderables(self) -> Iterator[RenderableType]:
        if self.tasks:  # before there are any, there is no console either
            yield Constrain(self.make_tasks_table(self.tasks), self.console.width - 4)


class _Words(ProgressColumn):
    """What the caller says, cut where the terminal is too narrow."""

    def render(self, task: Task) -> Text:
        return Text(task.fields["text"], no_wrap=True, overflow="ellipsis")


class ProgressBar:
    """How much of a `total` is done, what the caller says about it, and the time left."""

    def __init__(self, bar: Progress, title: str, total: float, is_live: bool, shown: bool) -> None:
        self._bar, self._total, self._is_live, self._shown = bar, max(total, 1), is_live, shown
        self._task = bar.add_task(title, total=self._total, text="", left="")
        self._next_line = time.monotonic() + _FIRST_S
        self._began: tuple[float, float] | None = None
        self.speed = 0.0
        """How much was done per second since the first update; 0 before that can be measured."""

    def update(self, done: float, text: str) -> None:
        """Show `text` with `done` of the total; the first call says what was done before, if it is not 0."""
        now = time.monotonic()
        began, done_before = self._began = self._began or (now, done)
        self.speed = (done - done_before) / max(now - began, 1e-6)
        left = ""
        if self.speed and (done - done_before >= _ENOUGH * self._total or now - began >= _ENOUGH_S):
            seconds = max(self._total - done, 0) / self.speed
            left = f"{seconds:.0f} s left" if seconds < 100 else f"{seconds / 60:,.0f} min left"
        self._bar.update(self._task, completed=done, text=text, left=left)
        if self._shown and not self._is_live and now >= self._next_line:
            self._next_line = now + _EVERY_S
            self._bar.console.print(f"{text}  {left}".rstrip())


@contextmanager
def show_progress(title: str, total: float, shown: bool = True) -> Iterator[ProgressBar]:
    """A bar while the block runs; `shown` on one rank only. What stops the block erases it: a sentence says more."""
    console = Console(stderr=True, soft_wrap=True)
    # without ipywidgets rich has no live display in a notebook, and lines are shown instead
    is_live = console.is_terminal or (console.is_jupyter and find_spec("ipywidgets") is not None)
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        TextColumn("{task.fields[left]}", style="progress.remaining"),
        _Words(Column()),  # the only one that a narrow terminal cuts
    )
    is_live = is_live and shown
    with _Bar(*columns, console=console, disable=not is_live) as bar:
        try:
            yield ProgressBar(bar, title, total, is_live, shown)
        except BaseException:
            bar.live.transient = True
            raise


@contextmanager
def show_patches(title: str, total: int, shown: bool = True, words: LevelNames = USUAL) -> Iterator[Watch]:
    """A bar of patches; called with how many more are done, first with those that were done before."""
    done, unit = 0, words.plural("patch")
    with show_progress(title, total, shown) as bar:

        def add(count: int) -> None:
            nonlocal done
            done += count
            rate = f"  {bar.speed:,.0f} {unit}/s" if bar.speed else ""
            bar.update(done, f"{min(done, total):,}/{total:,} {unit}{rate}")

        yield add


@contextmanager
def show_count(title: str, total: int, unit: str, shown: bool = True) -> Iterator[Watch]:
    """A bar of anything that is counted, such as "fits", from 0; called with how many more are done."""
    done = 0
    with show_progress(title, total, shown) as bar:

        def add(count: int) -> None:
            nonlocal done
            done += count
            bar.update(done, f"{title}: {min(done, total):,}/{total:,} {unit}")

        bar.update(0, f"0/{total:,} {unit}")
        yield add


@contextmanager
def show_training(steps: int, shown: bool, words: LevelNames = USUAL) -> Iterator[Callable[["StepsDone"], None]]:
    """A bar of steps with the last losses and the images per second; called after every step."""
    hidden = {"step", "learning_rate", "grad_norm", "images_per_s", "wait_share"}
    names = {"effective_rank": "rank", "knn_accuracy": "kNN"}
    with show_progress("training", steps, shown) as bar:

        def show(now: "StepsDone") -> None:
            values = [
                f"{names.get(name, words.word(name))} {value:.3f}"
                for name, value in now.row.items()
                if name not in hidden and not isnan(value)
            ]
            if "images_per_s" in now.row:
                values.append(f"{now.row['images_per_s']:,.0f} images/s")
            bar.update(now.step, "  ".join([f"step {now.step:,}/{now.steps:,}", *values]))

        yield show

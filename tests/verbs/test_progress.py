"""The progress bar: lines in a log file, a bar on a terminal and in a notebook, erased by what stops the work."""

from collections.abc import Callable
from io import StringIO
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from hidisc.cli.options import say
from hidisc.verbs import progress
from hidisc.verbs.progress import show_patches, show_progress, show_training


@pytest.fixture
def wait(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """A clock that stands still until the function is called with seconds."""
    now = 100.0
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: now))  # not the clock of other threads

    def wait(seconds: float) -> None:
        nonlocal now
        now += seconds

    return wait


def print_to(monkeypatch: pytest.MonkeyPatch, **options: Any) -> StringIO:
    screen = StringIO()
    made = {"file": screen, "width": 200, "color_system": None, **options}
    monkeypatch.setattr(progress, "Console", lambda **_: Console(**made))
    return screen


def test_a_log_has_a_line_after_five_seconds_and_then_every_thirty(
    monkeypatch: pytest.MonkeyPatch, wait: Callable[[float], None]
) -> None:
    screen = print_to(monkeypatch)
    with show_patches("embedding", 1000) as add:
        add(200)  # were there before
        for _ in range(8):
            wait(5)
            add(50)
    assert screen.getvalue().splitlines() == [
        "250/1,000 patches  75 s left",
        "550/1,000 patches  10 patches/s  45 s left",
    ]


def test_the_time_left_is_measured_from_the_first_update_on(
    monkeypatch: pytest.MonkeyPatch, wait: Callable[[float], None]
) -> None:
    screen = print_to(monkeypatch)
    with show_progress("reading", 1000) as bar:
        wait(60)  # what came before is not counted
        bar.update(0, "0/2 slides")
        wait(31)
        bar.update(100, "1/2 slides")
    assert screen.getvalue().splitlines() == ["0/2 slides", "1/2 slides  5 min left"]


def test_no_time_left_is_told_from_less_than_a_hundredth_or_a_minute(
    monkeypatch: pytest.MonkeyPatch, wait: Callable[[float], None]
) -> None:
    """While its workers start, a benchmark does three steps in the time of three hundred."""
    screen = print_to(monkeypatch)
    with show_progress("training", 10_000) as bar:
        bar.update(0, "0/50 trainings")
        for seconds, done in ((5, 3), (30, 99), (24, 99), (10, 99)):
            wait(seconds)
            bar.update(done, f"{done} steps")
        assert bar.speed == 99 / 69
    assert screen.getvalue().splitlines() == ["3 steps", "99 steps", "99 steps  115 min left"]
    screen = print_to(monkeypatch)
    with show_progress("training", 10_000) as bar:
        bar.update(0, "0/50 trainings")
        wait(10)
        bar.update(100, "100 steps")
    assert screen.getvalue().splitlines() == ["100 steps  16 min left"]


def test_training_shows_the_loss_from_the_first_step(
    monkeypatch: pytest.MonkeyPatch, wait: Callable[[float], None]
) -> None:
    screen = print_to(monkeypatch)
    with show_training(1200, shown=True) as progress:
        progress.advance(0)
        wait(5)
        progress.show({"loss": 4.12345})
        progress.advance()
        wait(30)
        progress.show({"step": 50, "loss": 3, "knn_accuracy": float("nan"), "images_per_s": 1234.5})
        progress.advance(50)
    assert screen.getvalue().splitlines() == [
        "step 1/1,200  loss 4.123",
        "step 51/1,200  loss 3.000  1,234 images/s  11 min left",
    ]


def test_a_bar_that_is_not_shown_prints_nothing(monkeypatch: pytest.MonkeyPatch, wait: Callable[[float], None]) -> None:
    for options in ({}, {"force_terminal": True}):
        screen = print_to(monkeypatch, **options)
        with show_patches("embedding", 10, shown=False) as add:
            add(0)
            wait(100)
            add(10)
        assert screen.getvalue() == ""


def test_what_stops_the_work_erases_the_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = print_to(monkeypatch, force_terminal=True)

    def stop() -> None:
        with show_patches("embedding", 10) as add:
            add(3)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stop()
    assert "3/10 patches" in screen.getvalue()
    assert screen.getvalue().endswith("\x1b[1A\x1b[2K")  # up to the line of the bar, which is erased


def test_what_the_command_says_has_a_line_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = print_to(monkeypatch, force_terminal=True)
    with show_progress("training", 100) as bar:
        bar.update(1, "step 1/100")
        say("stopped after step 1, which is saved")
    lines = [line.split("\x1b[2K")[-1] for line in screen.getvalue().splitlines()]
    assert "stopped after step 1, which is saved" in lines


def test_a_narrow_terminal_cuts_the_words_and_keeps_the_time_left(
    monkeypatch: pytest.MonkeyPatch, wait: Callable[[float], None]
) -> None:
    screen = print_to(monkeypatch, force_terminal=True, width=60)
    with show_progress("training", 100) as bar:
        bar.update(1, "step 1/100")
        wait(1)
        bar.update(11, "step 11/100  loss 1.234  patient 0.500  slide 0.700  patch 0.200")
    last = [line for line in screen.getvalue().splitlines() if "training" in line][-1].split("\x1b[2K")[-1]
    assert " training ━" in last
    assert " 9 s left step 11/1" in last
    assert last.endswith("…")
    assert len(last) <= 56


@pytest.mark.parametrize("has_widgets", [True, False])
def test_a_notebook_has_a_live_bar_where_widgets_are_installed(
    monkeypatch: pytest.MonkeyPatch, has_widgets: bool
) -> None:
    print_to(monkeypatch, force_jupyter=True)
    monkeypatch.setattr(progress, "find_spec", lambda _: object() if has_widgets else None)
    made: dict[str, Any] = {}

    class Recorded(progress._Bar):
        def __init__(self, *columns: Any, **options: Any) -> None:
            made.update(options)
            super().__init__(*columns, **{**options, "disable": True})

    monkeypatch.setattr(progress, "_Bar", Recorded)
    with show_patches("embedding", 10) as add:
        add(1)
    assert made["disable"] is not has_widgets

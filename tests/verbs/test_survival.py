"""`kill -9` at every step that matters, workers that die, two commands at once: the store is the same in the end."""

import re
import signal
from pathlib import Path

import distributed
import pytest

from hidisc.ground.errors import UserError
from hidisc.ground.files import PART
from hidisc.patches.record import RECORD
from hidisc.patches.store import DROPPED, PATCHES, STORE, PatchStore
from hidisc.reporting.prepared import COUNTS
from hidisc.slides.synthetic import draw_cohort
from hidisc.verbs.prepare import prepare
from tests.commands import Forks, run, signal_at
from tests.schedulers import start_scheduler, start_worker
from tests.verbs.test_prepare import config, contents, rows_of

pytestmark = pytest.mark.whole
SETTINGS = ("grid.size_px=16", "tissue.skip_glass=false", "filter.min_pixel_std=0")
SLIDES = 8
GO_ON = "stopped. What is finished is safe: run the same command to go on.\n"


@pytest.fixture(scope="module")
def cohort(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draw_cohort(tmp_path_factory.mktemp("drawn"), patients=4, slides=SLIDES // 4, fields=2, seed=5)


@pytest.fixture(scope="module")
def uninterrupted(cohort: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    out = tmp_path_factory.mktemp("whole") / "store"
    prepare(cohort, out, config(*SETTINGS), workers=0)
    return contents(out)


def command(cohort: Path, out: Path, workers: int = 0) -> list[str]:
    settings = [word for setting in SETTINGS for word in ("--set", setting)]
    return ["prepare", str(cohort), "--out", str(out), "--workers", str(workers), *settings]


def finished_slides(out: Path) -> int:
    return len(list(out.glob(f"shards/[!.]*/{RECORD}")))


def half_written_slides(out: Path) -> int:
    return len(list(out.glob(f"shards/{PART}*")))


def without_progress(said: str) -> list[str]:
    """The lines that a command said, but for those that only a slow machine shows: `3/8 slides  2 s left`."""
    return [line for line in said.splitlines() if not re.match(r"[\d,]+/[\d,]+ slides  ", line)]


# Killed


def test_kill_at_every_step_of_a_slide_then_the_same_command(
    cohort: Path, uninterrupted: dict[str, bytes], forks: Forks, tmp_path: Path
) -> None:
    out, finished = tmp_path / "store", 0
    for step, number, more, half in (
        ("folder.written", 1, 0, 1),  # the first slide is about to get its name
        ("folder.renamed", 1, 1, 0),
        ("folder.written", 2, 1, 1),
        ("slide.done", 1, 1, 0),
        ("folder.renamed", 2, 2, 0),
    ):
        ended = forks.run(*command(cohort, out), at=signal_at(step, number))
        assert ended.code == -signal.SIGKILL
        finished += more
        assert (finished_slides(out), half_written_slides(out)) == (finished, half)
        with pytest.raises(UserError, match="is not finished"):
            PatchStore.load(out)
    assert forks.run(*command(cohort, out)).said.startswith(f"{finished} of {SLIDES} slides are in {out} already; 3 to")
    assert contents(out) == uninterrupted


def test_kill_everyone_while_workers_are_at_slides(
    cohort: Path, uninterrupted: dict[str, bytes], forks: Forks, tmp_path: Path
) -> None:
    out, finished = tmp_path / "store", 0
    for step in ("folder.written", "slide.done"):  # in a worker; in the command that started the workers
        ended = forks.run(*command(cohort, out, workers=2), at=signal_at(step, 1, to="group"))
        assert ended.code == -signal.SIGKILL
        assert finished_slides(out) >= finished
        finished = finished_slides(out)
        assert finished == 0 or step == "slide.done"
        assert half_written_slides(out) >= 1 or step == "slide.done"
        assert not (out / STORE).exists()
    assert 1 <= finished <= SLIDES
    last = forks.run(*command(cohort, out))
    assert f"{finished} of {SLIDES} slides are in" in last.said or f"all {finished} slides are in" in last.said
    assert contents(out) == uninterrupted


def test_workers_end_with_a_command_that_is_killed(cohort: Path, forks: Forks, tmp_path: Path) -> None:
    ended = forks.run(*command(cohort, tmp_path / "store", workers=2), at=signal_at("slide.done"))
    assert ended.code == -signal.SIGKILL  # and nobody of its group is left, which `run` waits for


FILES = ("config.yaml", PATCHES, DROPPED, "failures.csv", STORE, "P00*.jpg", "contact_sheet.jpg", COUNTS)


@pytest.mark.parametrize("step", ["file.written", "file.renamed"])
@pytest.mark.parametrize(
    "files", [(PATCHES, STORE, COUNTS), pytest.param(FILES, marks=pytest.mark.slow)], ids=["few", "every file"]
)
def test_kill_while_the_tables_and_pictures_are_written(
    cohort: Path, uninterrupted: dict[str, bytes], forks: Forks, tmp_path: Path, step: str, files: tuple[str, ...]
) -> None:
    out = tmp_path / "store"
    for file in files:
        before = (out / STORE).exists()
        assert forks.run(*command(cohort, out), at=signal_at(step, 1, file)).code == -signal.SIGKILL
        assert (out / STORE).exists() == (before or (step, file) == ("file.renamed", STORE))
        if (step, file) == ("file.written", STORE):  # from here on it is there
            assert forks.run(*command(cohort, out), at=signal_at("file.renamed", 1, STORE)).code == -signal.SIGKILL
    assert forks.run(*command(cohort, out)).code == 0
    assert contents(out) == uninterrupted


# Stopped


@pytest.mark.parametrize(("sent", "code"), [("SIGINT", 130), ("SIGTERM", 143)])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_signal_stops_cleanly_and_the_same_command_goes_on(
    cohort: Path, uninterrupted: dict[str, bytes], forks: Forks, tmp_path: Path, workers: int, sent: str, code: int
) -> None:
    out = tmp_path / "store"
    at = signal_at("slide.done", 1, sent=sent, to="group")  # as a terminal does: to everyone in the foreground
    started = forks.start(*command(cohort, out, workers), at=at)
    ended = started.ended()
    assert (ended.code, ended.result) == (code, "")
    assert ended.said.endswith(GO_ON)
    assert len(without_progress(ended.said)) == 2, "the plan and the end, no traceback and no line of a library"
    started.wait_for_group()
    assert finished_slides(out) >= 1
    assert not (out / STORE).exists()
    assert forks.run(*command(cohort, out)).code == 0
    assert contents(out) == uninterrupted


@pytest.mark.parametrize(("sent", "code"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_a_signal_while_workers_start_is_not_lost(
    cohort: Path, forks: Forks, tmp_path: Path, sent: str, code: int
) -> None:
    at = signal_at("workers.starting", 1, sent=sent, to="group")
    started = forks.start(*command(cohort, tmp_path / "store", workers=2), at=at)
    ended = started.ended()
    assert (ended.code, ended.result) == (code, "")
    assert ended.said.endswith(GO_ON)
    assert len(without_progress(ended.said)) == 2
    started.wait_for_group()


@pytest.mark.parametrize(("sent", "code"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_a_signal_within_a_slide_or_a_table_leaves_no_half_file(
    cohort: Path, uninterrupted: dict[str, bytes], forks: Forks, tmp_path: Path, sent: str, code: int
) -> None:
    out = tmp_path / "store"
    for step, file in (("folder.written", "*"), ("file.written", STORE), ("file.written", COUNTS)):
        ended = forks.run(*command(cohort, out), at=signal_at(step, 1, file, sent=sent))
        assert (ended.code, ended.result) == (code, "")
        assert ended.said.endswith(GO_ON)
        assert not list(out.rglob(f"{PART}*[!t]-????????"))
    assert forks.run(*command(cohort, out)).code == 0
    assert contents(out) == uninterrupted


def test_two_commands_at_once_do_not_share_a_folder(cohort: Path, forks: Forks, tmp_path: Path) -> None:
    out = tmp_path / "store"
    first = forks.start(*command(cohort, out), at=signal_at("folder.written", sent="SIGSTOP"))
    first.stopped()
    second = forks.run(*command(cohort, out))
    assert second.code == 2
    assert f"another hidisc is writing to {out}. Wait for it" in second.said
    assert half_written_slides(out) == 1, "the second command removes nothing of the first"
    first.go_on()
    assert first.ended().code == 0


# On a scheduler


def test_a_real_scheduler_loses_a_worker_and_nothing_else(
    cohort: Path, uninterrupted: dict[str, bytes], forks: Forks, tmp_path: Path
) -> None:
    out = tmp_path / "store"
    with start_scheduler(forks, tmp_path) as address:
        victim = start_worker(forks, address, tmp_path, at=signal_at("folder.written", 2))
        start_worker(forks, address, tmp_path)
        with distributed.Client(address, set_as_default=False) as client:
            client.wait_for_workers(2)
        ended = forks.run(*command(cohort, out), "--scheduler", address)
        assert ended.code == 0, ended.said
        assert victim.ended().code == -signal.SIGKILL, "the worker was to die half-way"
    assert contents(out) == uninterrupted


def test_a_store_is_made_by_the_command_itself(cohort: Path, uninterrupted: dict[str, bytes], tmp_path: Path) -> None:
    """Through a fresh interpreter, with as many workers as there are cores."""
    out = tmp_path / "store"
    words = command(cohort, out)
    ended = run(*words[: words.index("--workers")], *words[words.index("--workers") + 2 :])
    assert ended.code == 0
    assert len(PatchStore.load(out).info.slides) == len(rows_of(cohort))
    assert contents(out) == uninterrupted

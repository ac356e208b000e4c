"""Files and folders appear whole or not at all; only what is ours is swept away."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from hidisc.ground import files, stop
from hidisc.ground.files import LOCK, PART, beside, is_part, new_folder, relate, sweep, write_atomic


@pytest.mark.parametrize("step", ["sync", "replace"])
def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    write_atomic(tmp_path / "a", b"old")

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(*((files, "sync") if step == "sync" else (Path, "replace")), fail)
    with pytest.raises(OSError, match="No space"):
        write_atomic(tmp_path / "a", b"new")
    assert (tmp_path / "a").read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_a_file_is_synced_before_it_gets_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other order can leave an empty file under the final name after a power cut."""
    steps: list[str] = []
    sync, replace = files.sync, Path.replace
    monkeypatch.setattr(files, "sync", lambda path: (steps.append(f"sync {path.is_dir()}"), sync(path)))
    monkeypatch.setattr(Path, "replace", lambda self, to: (steps.append("rename"), replace(self, to)))
    write_atomic(tmp_path / "a", b"new")
    assert (tmp_path / "a").read_bytes() == b"new"
    assert steps == ["sync False", "rename", "sync True"]


def test_what_is_written_beside_is_recognised_as_left_over(tmp_path: Path) -> None:
    one, two = beside(tmp_path / "a"), beside(tmp_path / "a")
    assert one.parent == tmp_path
    assert one.name.startswith(PART)
    assert is_part(one)
    assert one != two


def test_a_folder_appears_when_its_block_ends_and_not_before(tmp_path: Path) -> None:
    with new_folder(tmp_path / "deep" / "x") as part:
        (part / "a").write_text("1")
        assert not (tmp_path / "deep" / "x").exists()
    assert (tmp_path / "deep" / "x" / "a").read_text() == "1"
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["x"]


def test_a_folder_whose_block_fails_leaves_nothing(tmp_path: Path) -> None:
    def fail() -> None:
        with new_folder(tmp_path / "x") as part:
            (part / "a").write_text("1")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert list(tmp_path.iterdir()) == []


def test_the_quicker_of_two_workers_wins(tmp_path: Path) -> None:
    with new_folder(tmp_path / "x") as slow:
        (slow / "a").write_text("second")
        with new_folder(tmp_path / "x") as quick:
            (quick / "a").write_text("first")
    assert (tmp_path / "x" / "a").read_text() == "first"
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


def test_what_killed_processes_left_is_swept_away(tmp_path: Path) -> None:
    (tmp_path / "shards" / "S1" / "deep").mkdir(parents=True)
    (tmp_path / "shards" / "S1" / "slide.json").write_text("whole")
    for left in ("patches.parquet", "shards/S1/patches-1.arrow", "shards/S1/deep/x"):
        beside(tmp_path / left).write_text("half")
    half = beside(tmp_path / "shards" / "S2")
    half.mkdir()
    (half / "slide.json").write_text("half")
    sweep(tmp_path)
    assert [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()] == [
        "shards/S1/slide.json"
    ]


def write_file(home: Path) -> None:
    write_atomic(home / "a", b"new")


def write_folder(home: Path) -> None:
    with new_folder(home / "x") as part:
        (part / "inside").write_bytes(b"new")


def contents(home: Path) -> dict[str, bytes]:
    return {str(path.relative_to(home)): path.read_bytes() for path in home.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("write", "step", "old", "new"),
    [
        (write_file, "file.written", {}, {"a": b"new"}),
        (write_file, "file.renamed", {}, {"a": b"new"}),
        (write_file, "file.written", {"a": b"old"}, {"a": b"new"}),
        (write_file, "file.renamed", {"a": b"old"}, {"a": b"new"}),
        (write_folder, "folder.written", {}, {"x/inside": b"new"}),
        (write_folder, "folder.renamed", {}, {"x/inside": b"new"}),
    ],
)
def test_a_process_killed_at_any_step_leaves_the_old_or_the_new(
    tmp_path: Path, write: Callable[[Path], None], step: str, old: dict[str, bytes], new: dict[str, bytes]
) -> None:
    """Every artefact is written by these two, so that commands need only be killed at a few of their files."""
    for name, data in old.items():
        (tmp_path / name).write_bytes(data)
    child = os.fork()
    if child == 0:
        stop.watch_steps(stop.signal_at(f"SIGKILL process 1 {step} *"))
        write(tmp_path)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    is_renamed = step.endswith("renamed")
    assert bool(list(tmp_path.glob(f"{PART}*"))) == (not is_renamed)
    sweep(tmp_path)
    assert contents(tmp_path) == (new if is_renamed else old)
    write(tmp_path)  # the same command again
    assert contents(tmp_path) == new


def test_what_is_not_ours_is_not_swept_away(tmp_path: Path) -> None:
    """Names that only begin like ours, an artefact inside that has its own lock, and what links lead to."""
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / f"{PART}notes").write_text("a stranger's")
    inner = tmp_path / "out" / "cells" / "one"
    inner.mkdir(parents=True)
    (inner / LOCK).write_text("")
    beside(inner / "being written").write_text("half")
    (tmp_path / "elsewhere").mkdir()
    beside(tmp_path / "elsewhere" / "x").write_text("another's")
    (tmp_path / "out" / "link").symlink_to(tmp_path / "elsewhere")
    before = sorted(tmp_path.rglob("*"))
    sweep(tmp_path / "out")
    assert sorted(tmp_path.rglob("*")) == before


def test_paths_are_written_down_relative_to_what_writes_them(tmp_path: Path) -> None:
    assert relate(tmp_path / "store", tmp_path / "a" / "embeddings") == "../../store"
    assert (tmp_path / "a" / "embeddings" / "../../store").resolve() == (tmp_path / "store").resolve()

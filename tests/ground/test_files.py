"""Files and folders appear whole or not at all; only what is ours is swept away."""

from pathlib import Path

import pytest

from hidisc.ground import files
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

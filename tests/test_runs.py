"""An output folder: held by one process, begun once, resumed with the same settings, never half-written."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from hidisc import runs
from hidisc.errors import UserError
from hidisc.runs import PART, begin, beside, hold, new_folder, versions, write_atomic
from hidisc.settings.preparing import GridConfig, PrepareConfig

HOLD = """
import sys, time
from pathlib import Path
from hidisc.runs import hold
with hold(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def other(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the folder."""
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def test_two_processes_never_hold_one_folder(tmp_path: Path, other: subprocess.Popen[str]) -> None:
    with pytest.raises(UserError) as caught, hold(tmp_path):
        pass
    assert str(caught.value) == f"another hidisc is writing to {tmp_path}. Wait for it or give another --out."


def test_a_killed_process_lets_go(tmp_path: Path, other: subprocess.Popen[str]) -> None:
    other.send_signal(signal.SIGKILL)
    other.wait()
    with hold(tmp_path):
        pass


def test_a_folder_can_be_held_again_after_an_error(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), hold(tmp_path):
        raise RuntimeError
    with hold(tmp_path):
        pass


def test_hold_makes_the_folder(tmp_path: Path) -> None:
    with hold(tmp_path / "new" / "deep"):
        assert (tmp_path / "new" / "deep").is_dir()


def test_what_a_killed_process_left_is_swept_away(tmp_path: Path) -> None:
    (tmp_path / f"{PART}patches.parquet-1").write_text("half")
    (tmp_path / "shards" / "S1").mkdir(parents=True)
    (tmp_path / "shards" / "S1" / f"{PART}patches-1.arrow-2").write_text("half")
    (tmp_path / "shards" / f"{PART}S2-3").mkdir()
    (tmp_path / "shards" / f"{PART}S2-3" / "record.json").write_text("half")
    (tmp_path / "shards" / "S1" / "record.json").write_text("whole")
    with hold(tmp_path):
        left = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file())
    assert left == [".lock", "shards/S1/record.json"]


def test_a_folder_in_use_is_not_swept(tmp_path: Path, other: subprocess.Popen[str]) -> None:
    (tmp_path / f"{PART}x-1").write_text("being written")
    with pytest.raises(UserError), hold(tmp_path):
        pass
    assert (tmp_path / f"{PART}x-1").exists()


def test_out_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("mine")
    with pytest.raises(UserError, match=r"out is a file\. Give a folder for --out\."), hold(tmp_path / "out"):
        pass
    with pytest.raises(UserError, match=r"cannot be written \(Not a directory\)"), hold(tmp_path / "out" / "deep"):
        pass


# Beginning


def test_a_new_folder_records_its_settings_and_goes_on_with_the_same(tmp_path: Path) -> None:
    config = PrepareConfig(seed=3)
    assert begin(tmp_path, "prepare", config) is False
    record = yaml.safe_load((tmp_path / "config.yaml").read_text())
    assert record == {"kind": "prepare", **config.model_dump(mode="json")}
    assert begin(tmp_path, "prepare", config) is True


def test_other_settings_are_named(tmp_path: Path) -> None:
    begin(tmp_path, "prepare", PrepareConfig())
    before = (tmp_path / "config.yaml").read_bytes()
    with pytest.raises(UserError) as caught:
        begin(tmp_path, "prepare", PrepareConfig(seed=1, grid=GridConfig(mpp=0.25)), hint=" Or do this.")
    assert str(caught.value) == (
        f"{tmp_path} was begun with other settings (grid.mpp: 0.5 -> 0.25; seed: 0 -> 1). "
        "Use the same ones to go on, or give a new --out. Or do this."
    )
    assert (tmp_path / "config.yaml").read_bytes() == before


def test_another_verb_is_named(tmp_path: Path) -> None:
    begin(tmp_path, "import", PrepareConfig())
    with pytest.raises(UserError, match="kind: import -> prepare"):
        begin(tmp_path, "prepare", PrepareConfig())


def test_changeable_settings_may_change_and_are_recorded(tmp_path: Path) -> None:
    begin(tmp_path, "prepare", PrepareConfig())
    assert begin(tmp_path, "prepare", PrepareConfig(seed=9), changeable=("seed",)) is True
    assert yaml.safe_load((tmp_path / "config.yaml").read_text())["seed"] == 9


def test_strange_files_are_not_overwritten(tmp_path: Path) -> None:
    for name in ("d.txt", "c", "b", "a"):
        (tmp_path / name).write_text("mine")
    with hold(tmp_path), pytest.raises(UserError) as caught:
        begin(tmp_path, "prepare", PrepareConfig())
    assert str(caught.value) == (
        f"{tmp_path} holds something else (a, b, c) and is not overwritten. Give a new or empty folder for --out."
    )
    assert not (tmp_path / "config.yaml").exists()


@pytest.mark.parametrize("text", [b"- a list", b"a: [broken", b"words", b"", b"\xff\xfe\x00", b"model: resnet"])
def test_a_strange_config_is_not_overwritten(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "config.yaml").write_bytes(text)
    with pytest.raises(UserError) as caught:
        begin(tmp_path, "prepare", PrepareConfig())
    assert str(caught.value) == (
        f"{tmp_path} holds something else (config.yaml) and is not overwritten. Give a new or empty folder for --out."
    )
    assert (tmp_path / "config.yaml").read_bytes() == text


# Writing


@pytest.mark.parametrize("step", ["sync", "replace"])
def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    write_atomic(tmp_path / "a", b"old")

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(*((runs, "sync") if step == "sync" else (Path, "replace")), fail)
    with pytest.raises(OSError, match="No space"):
        write_atomic(tmp_path / "a", b"new")
    assert (tmp_path / "a").read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_a_file_is_synced_before_it_gets_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other order can leave an empty file under the final name after a power cut."""
    steps: list[str] = []
    sync, replace = runs.sync, Path.replace
    monkeypatch.setattr(runs, "sync", lambda path: (steps.append(f"sync {path.is_dir()}"), sync(path)))
    monkeypatch.setattr(Path, "replace", lambda self, to: (steps.append("rename"), replace(self, to)))
    write_atomic(tmp_path / "a", b"new")
    assert (tmp_path / "a").read_bytes() == b"new"
    assert steps == ["sync False", "rename", "sync True"]


def test_what_is_written_beside_is_recognised_as_left_over(tmp_path: Path) -> None:
    one, two = beside(tmp_path / "a"), beside(tmp_path / "a")
    assert one.parent == tmp_path
    assert one.name.startswith(PART)
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


def test_cores_are_those_of_the_job() -> None:
    code = "import os; os.sched_setaffinity(0, {0}); from hidisc.runs import count_cores; print(count_cores())"
    if not hasattr(os, "sched_setaffinity"):
        pytest.skip("this system cannot give a process fewer cores")
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "1\n"


def test_versions() -> None:
    found = versions("numpy", "no-such-package")
    assert found["numpy"]
    assert found["no-such-package"] is None

"""`hidisc train` through the command line: killed, stopped, out of space, on two devices: the run is the same."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from io import StringIO
from pathlib import Path

import pytest
import torch
from rich.console import Console

from hidisc.models.encoder import WEIGHTS
from hidisc.runs import PART, hold
from hidisc.training.checkpoint import list_checkpoints, read_checkpoint
from hidisc.training.metrics import METRICS, read_metrics
from hidisc.training.run import RUN
from hidisc.verbs import progress
from tests.commands import ENVIRONMENT, Ended, Forks, run, wait_for
from tests.training.stores import TINY, losses, make_store, outcome
from tests.training.stores import train as train_here

LONG = ("optim.steps=40", "checkpoint.every=1")
BYOL = ("objective={name: byol, predictor_dim: 16}", "model.head.layers=2")
BF16 = ("compute.precision=bf16",)


def words(store: Path, out: Path, *changes: str) -> list[str]:
    """The command line without its first word."""
    settings = [word for change in (*TINY, *changes) for word in ("--set", change)]
    return ["train", str(store), "--out", str(out), "--device", "cpu", *settings]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_store(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def forks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forks]:
    forks = Forks(tmp_path_factory.mktemp("forks"))
    yield forks
    forks.close()


def rows(out: Path) -> int:
    return len(read_metrics(out / METRICS))


@pytest.fixture(scope="module")
def whole(store: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Ended]:
    """A run that nothing happened to, and what the command said."""
    out = tmp_path_factory.mktemp("whole") / "run"
    return out, run(*words(store, out, *LONG))


# What it prints


@pytest.mark.whole
def test_one_line_of_result(whole: tuple[Path, Ended]) -> None:
    out, ended = whole
    assert (ended.code, ended.said) == (0, "")
    assert ended.result.startswith(f"{out}: hidisc test_resnet, 40 steps, 1,280 images of 6 patients in 0.")
    assert ended.result.endswith(" min\n")
    assert ended.result.count("\n") == 1


@pytest.mark.whole
def test_a_finished_run_is_only_read(whole: tuple[Path, Ended], store: Path, forks: Forks) -> None:
    out, _ = whole
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.name != ".lock"}
    ended = forks.run(*words(store, out, *LONG), "--json")
    assert (ended.code, ended.said) == (0, "")
    record = json.loads((out / RUN).read_text())
    assert record.pop("patients")
    assert json.loads(ended.result) == {"run": str(out), **record}
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.name != ".lock"} == before


@pytest.fixture
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("_one_thread")
def test_lines_of_progress_go_to_stderr(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "_EVERY_S", 0)
    rows = train_here(store, tmp_path / "run", "monitor.every=2", "monitor.split=test").metrics()
    result, said = capfd.readouterr()
    assert result == ""
    lines = said.splitlines()
    assert len(lines) == 6
    assert lines[1].startswith(
        f"step 2/6  loss {rows[1]['loss']:.3f}  patient {rows[1]['patient']:.3f}  slide {rows[1]['slide']:.3f}  "
        f"patch {rows[1]['patch']:.3f}  rank {rows[1]['effective_rank']:.3f}  kNN {rows[1]['knn_accuracy']:.3f}  "
        f"{rows[1]['images_per_s']:,.0f} images/s  "
    )
    assert all(line.endswith(" min left") for line in lines)


@pytest.mark.usefixtures("_one_thread")
def test_a_terminal_has_a_bar(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    screen = StringIO()
    monkeypatch.setattr(
        progress, "Console", lambda **_: Console(file=screen, force_terminal=True, width=200, color_system=None)
    )
    last = train_here(store, tmp_path / "run").metrics()[-1]
    assert f"6/6 loss {last['loss']:.3f}  patient {last['patient']:.3f}" in screen.getvalue()
    assert " images/s " in screen.getvalue()
    assert " left" in screen.getvalue()


# Killed


@pytest.mark.alone
@pytest.mark.whole
@pytest.mark.parametrize("changes", [(), BYOL, BF16], ids=["hidisc", "byol", "bf16"])
def test_kill_at_any_moment_then_the_same_command(
    store: Path, forks: Forks, tmp_path: Path, changes: tuple[str, ...]
) -> None:
    whole, out = tmp_path / "whole", tmp_path / "run"
    assert forks.run(*words(store, whole, *LONG, *changes)).code == 0
    rng = random.Random(len(str(changes)))
    resumed, caught_writing = [], 0

    for number in range(12):
        further = (rows(out) if rows(out) else 0) + rng.randint(1, 4)

        def kill(process: int, number: int = number, further: int = further) -> None:
            nonlocal caught_writing
            wait_for(lambda: rows(out) >= further or (out / RUN).exists())
            if number % 2:  # while a checkpoint is being written
                wait_for(lambda: list(out.glob(f"checkpoints/{PART}*")) or (out / RUN).exists())
            else:
                time.sleep(rng.random() * 0.05)
            os.kill(process, signal.SIGKILL)

        if rows(out) >= 36:
            break
        ended = forks.run(*words(store, out, *LONG, *changes), kill=kill)
        assert ended.code == -signal.SIGKILL
        caught_writing += bool(list(out.glob(f"checkpoints/{PART}*")))
        saved = list_checkpoints(out)
        assert len(saved) <= 3, "at most one more than are kept"
        resumed.append(read_checkpoint(saved[-1])[0].step if saved else 0)

    assert len(resumed) >= 6
    assert caught_writing >= 2, "a checkpoint was to be half written"
    assert len(set(resumed)) > 3
    assert resumed == sorted(resumed), "nothing that was saved is lost"
    last = forks.run(*words(store, out, *LONG, *changes))
    assert (last.code, last.said) == (0, f"going on after step {resumed[-1]:,} ({saved[-1]})\n")
    assert outcome(out) == outcome(whole)
    assert len(losses(out)) == 40
    assert not list(out.rglob(f"{PART}*"))


@pytest.mark.alone
@pytest.mark.whole
def test_kill_the_command_itself(store: Path, whole: tuple[Path, Ended], tmp_path: Path) -> None:
    """The same through the real command, once: what comes before training is killed as well."""
    out = tmp_path / "run"
    for due in (lambda: (out / ".lock").exists(), lambda: rows(out) >= 9):
        process = subprocess.Popen(
            [sys.executable, "-m", "hidisc", *words(store, out, *LONG)], env=ENVIRONMENT, start_new_session=True
        )
        wait_for(due)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    ended = run(*words(store, out, *LONG))
    assert ended.code == 0
    assert ended.said.startswith("going on after step ")
    assert outcome(out) == outcome(whole[0])


# Stopped


@pytest.mark.alone
@pytest.mark.whole
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_stopped_at_a_step_that_is_saved(
    store: Path, whole: tuple[Path, Ended], forks: Forks, tmp_path: Path, number: int, code: int
) -> None:
    out = tmp_path / "run"
    sparse = words(store, out, "optim.steps=40", "checkpoint.every=1000")
    process = subprocess.Popen(
        [sys.executable, "-m", "hidisc", *sparse], stderr=subprocess.PIPE, text=True, env=ENVIRONMENT
    )
    wait_for(lambda: rows(out) >= 3)
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    (saved,) = list_checkpoints(out)
    step = read_checkpoint(saved)[0].step
    assert 3 <= step < 40
    assert (process.returncode, said) == (
        code,
        f"stopped after step {step}, which is saved: run the same command to go on.\n",
    )
    assert rows(out) == step
    assert forks.run(*sparse).code == 0
    assert losses(out) == losses(whole[0])
    assert (out / WEIGHTS).read_bytes() == (whole[0] / WEIGHTS).read_bytes()


# No space


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk that is nearly full."""
    disk = tmp_path / "disk"
    disk.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=13m", "tmpfs", str(disk)], check=False)
    if done.returncode:
        pytest.skip("only the superuser can make a small disk")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.whole
def test_a_full_disk(store: Path, whole: tuple[Path, Ended], forks: Forks, small_disk: Path) -> None:
    out = small_disk / "run"
    command = words(store, out, *LONG, "checkpoint.keep=5")
    ended = forks.run(*command)
    assert (ended.code, ended.result) == (2, "")
    assert ended.said == (
        "hidisc: the disk is full (No space left on device). What has been saved is whole: free some space and run the "
        "same command again.\n"
    )
    kept = [read_checkpoint(path)[0].step for path in list_checkpoints(out)]
    assert kept
    assert not list(out.rglob(f"{PART}*"))
    again = forks.run(*command)
    assert (again.code, again.said.splitlines()[1:]) == (2, ended.said.splitlines()), "still full"
    subprocess.run(["mount", "-o", "remount,size=100m", str(small_disk)], check=True)
    assert forks.run(*command).code == 0
    assert outcome(out) == outcome(whole[0])


# Refused


@pytest.mark.whole
def test_a_folder_that_another_process_holds(store: Path, forks: Forks, tmp_path: Path) -> None:
    with hold(tmp_path / "run"):
        ended = forks.run(*words(store, tmp_path / "run"))
    assert (ended.code, ended.result) == (2, "")
    assert (
        ended.said == f"hidisc: another hidisc is writing to {tmp_path / 'run'}. Wait for it or give another --out.\n"
    )


@pytest.mark.whole
@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (("seed=1",), "{out} was begun with other settings (seed: 0 -> 1). Use the same ones to go on, or give a"),
        (("optim.sleps=3",), "'optim.sleps' is not a setting. Did you mean 'optim.steps'?"),
        (("objective.name=hidsic",), "objective.name = 'hidsic' is none of byol, hidisc, simclr, "),
        (("model.backbone=resnet51",), "model.backbone = 'resnet51' is no timm model. Near it are "),
        (("batch.images=30",), "batch.images = 30 is not a multiple of 8 (8 images a patient). Set batch.images=32."),
    ],
)
def test_what_one_can_mend_is_said_in_a_sentence(
    whole: tuple[Path, Ended], store: Path, forks: Forks, tmp_path: Path, changes: tuple[str, ...], sentence: str
) -> None:
    out = whole[0] if changes == ("seed=1",) else tmp_path / "run"
    ended = forks.run(*words(store, out, *LONG, *changes))
    assert (ended.code, ended.result) == (2, "")
    assert ended.said.startswith("hidisc: ")
    assert sentence.format(out=out) in ended.said
    assert "Traceback" not in ended.said


# Two devices

ALIKE = (
    "model.backbone=test_vit",
    "model.options={qkv_bias: false}",
    "views.ops=[]",
    "optim.steps=8",
    "checkpoint.every=2",
)
"""Without batch statistics and random views two devices see what one does; a key's bias has no gradient but noise."""


@pytest.fixture(scope="module")
def on_two(store: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Ended]:
    """A run on two devices, and what the command said."""
    out = tmp_path_factory.mktemp("two") / "run"
    return out, run(*words(store, out, *ALIKE, "batch.images=48"), "--devices", "2")


@pytest.mark.whole
def test_two_devices_are_one_run(on_two: tuple[Path, Ended]) -> None:
    out, ended = on_two
    assert (ended.code, ended.said) == (0, "")
    assert ended.result.startswith(f"{out}: hidisc test_vit, 8 steps, 384 images of 6 patients in 0.")
    assert ended.result.count("\n") == 1
    assert json.loads((out / RUN).read_text())["devices"] == "2 x cpu, 32"
    assert rows(out) == 8


@pytest.mark.whole
@pytest.mark.parametrize("objective", ["hidisc", "simclr"])
def test_two_devices_learn_what_one_does(
    on_two: tuple[Path, Ended], store: Path, forks: Forks, tmp_path: Path, objective: str
) -> None:
    changes = (*ALIKE, "batch.images=48", f"objective={{name: {objective}}}")
    one, two = tmp_path / "one", on_two[0] if objective == "hidisc" else tmp_path / "two"
    assert forks.run(*words(store, one, *changes)).code == 0
    assert run(*words(store, two, *changes), "--devices", "2").code == 0
    levels = ("loss", "patch", "slide", "patient") if objective == "hidisc" else ("loss", "patch")
    pairs = list(zip(read_metrics(one / METRICS), read_metrics(two / METRICS), strict=True))
    for mine, its in pairs:
        assert [its[name] for name in levels] == pytest.approx([mine[name] for name in levels], rel=1e-5)
    assert pairs[0][1]["grad_norm"] == pytest.approx(pairs[0][0]["grad_norm"], rel=1e-5)
    (_, mine), (_, its) = (read_checkpoint(list_checkpoints(out)[-1]) for out in (one, two))
    for name in mine:
        torch.testing.assert_close(its[name], mine[name], rtol=1e-4, atol=1e-4, msg=name)


@pytest.mark.alone
@pytest.mark.whole
def test_two_devices_stopped_and_killed(on_two: tuple[Path, Ended], store: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    command = words(store, out, *ALIKE, "batch.images=48")
    for step, number in ((2, signal.SIGINT), (5, signal.SIGKILL)):
        process = subprocess.Popen(
            [sys.executable, "-m", "hidisc", *command, "--devices", "2"],
            stderr=subprocess.PIPE,
            text=True,
            env=ENVIRONMENT,
            start_new_session=True,
        )
        wait_for(lambda step=step: rows(out) >= step)
        os.killpg(process.pid, number)  # as a terminal and a scheduler do: to everyone
        _, said = process.communicate(timeout=60)
        if number == signal.SIGINT:
            assert process.returncode == 130
            assert said.count("stopped after step ") == 1
            assert len(said.splitlines()) == 1
    ended = run(*command, "--devices", "2")
    assert ended.code == 0
    assert ended.said.count("going on after step ") == 1
    assert outcome(out) == outcome(on_two[0])


@pytest.mark.whole
@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (("seed=1",), "was begun with other settings (seed: 0 -> 1)"),
        (("batch.images=40",), "batch.images = 40 is not a multiple of 16 (8 images a patient x 2 devices)"),
    ],
)
def test_two_devices_say_what_is_wrong_once(
    on_two: tuple[Path, Ended], store: Path, tmp_path: Path, changes: tuple[str, ...], sentence: str
) -> None:
    out = on_two[0] if changes == ("seed=1",) else tmp_path / "run"
    ended = run(*words(store, out, *ALIKE, "batch.images=48", *changes), "--devices", "2")
    assert (ended.code, ended.result) == (2, "")
    assert sentence in ended.said
    assert len(ended.said.splitlines()) == 1

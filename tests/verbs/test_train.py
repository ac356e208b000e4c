"""`hidisc train` through the command line: killed, stopped, out of space, on two devices: the run is the same."""

import json
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from io import StringIO
from pathlib import Path

import pytest
import torch
from rich.console import Console

from hidisc.artefacts.lock import hold
from hidisc.ground.files import PART
from hidisc.models.card import CARD, WEIGHTS
from hidisc.patches.folders import find_folder
from hidisc.training.checkpoint import list_checkpoints, read_checkpoint
from hidisc.training.log import METRICS, read_metrics
from hidisc.training.run import RUN
from hidisc.verbs import progress
from hidisc.verbs.prepare import import_patches
from tests.commands import Ended, Forks, run, signal_at
from tests.training.stores import TINY, losses, make_store, outcome
from tests.training.stores import train as train_here

STEPS = 10
LONG = (f"optim.steps={STEPS}", "checkpoint.every=1")
BYOL = ("objective={name: byol, predictor_dim: 16}", "model.head.layers=2")
BF16 = ("compute.precision=bf16",)


def words(store: Path, out: Path, *changes: str) -> list[str]:
    """The command line without its first word."""
    settings = [word for change in (*TINY, *changes) for word in ("--set", change)]
    return ["train", str(store), "--out", str(out), "--device", "cpu", *settings]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_store(tmp_path_factory.mktemp("tiny"))


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
    assert ended.result.startswith(f"{out}: hidisc test_resnet, 10 steps, 320 images of 6 patients in 0.")
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
    monkeypatch.setattr(progress, "_FIRST_S", 0)
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
    assert " left" not in lines[0]
    assert all(re.fullmatch(r"step .*  \d+ s left", line) for line in lines[1:])
    assert "nan" not in said


@pytest.mark.usefixtures("_one_thread")
def test_a_terminal_has_a_bar(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    screen = StringIO()
    monkeypatch.setattr(
        progress, "Console", lambda **_: Console(file=screen, force_terminal=True, width=200, color_system=None)
    )
    last = train_here(store, tmp_path / "run").metrics()[-1]
    assert f"step 6/6  loss {last['loss']:.3f}  patient {last['patient']:.3f}" in screen.getvalue()
    assert " images/s\n" in screen.getvalue()
    assert " left" in screen.getvalue()


def test_one_slide_per_patient_is_said_with_the_recipe_for_it(store: Path, tmp_path: Path) -> None:
    note = (
        "note: every patient has one slide, so the patient level and the slide level are the same; "
        "--recipe hidisc-slide is the method for such cohorts."
    )
    pictures = store.parent / "pictures"
    single = tmp_path / "pictures"
    for slide in sorted(pictures.glob("*/*-x")):
        shutil.copytree(slide, single / slide.relative_to(pictures))
    import_patches(find_folder(single, store.parent / "patients.csv"), tmp_path / "store", workers=0)
    said: list[str] = []
    train_here(tmp_path / "store", tmp_path / "run", said=said)
    assert note in said
    said.clear()
    train_here(
        tmp_path / "store", tmp_path / "slide", "objective.weights={patient: 0}", "batch.draw.slide=1", said=said
    )
    train_here(tmp_path / "store", tmp_path / "simclr", "batch.levels=[patch]", "batch.draw={}", said=said)
    train_here(tmp_path / "store", tmp_path / "byol", *BYOL, said=said)
    train_here(store, tmp_path / "two", said=said)
    assert note not in said


# Killed


KILLS = (
    ("file.written", 1, "config.yaml", 0),
    ("step.done", 1, "*", 0),
    ("file.written", 2, "step-*", 1),
    ("file.renamed", 2, "step-*", 3),
    ("checkpoint.saved", 1, "*", 4),
    ("step.done", 2, "*", 5),
    ("file.written", 3, "step-*", 7),
    ("file.written", 1, WEIGHTS, STEPS),
    ("file.renamed", 1, CARD, STEPS),
    ("file.written", 1, RUN, STEPS),
)
"""Steps at which a run is killed, one after the other, and the training step whose checkpoint is the last one then."""
FEW_KILLS = (("file.written", 3, "step-*", 2), ("step.done", 3, "*", 4), ("file.written", 1, RUN, STEPS))


@pytest.mark.whole
@pytest.mark.parametrize("changes", [(), BYOL, BF16], ids=["hidisc", "byol", "bf16"])
@pytest.mark.parametrize("kills", [FEW_KILLS, pytest.param(KILLS, marks=pytest.mark.slow)], ids=["few", "every step"])
def test_kill_at_a_step_then_the_same_command(
    store: Path, forks: Forks, tmp_path: Path, changes: tuple[str, ...], kills: tuple[tuple[str, int, str, int], ...]
) -> None:
    whole, out = tmp_path / "whole", tmp_path / "run"
    assert forks.run(*words(store, whole, *LONG, *changes)).code == 0
    for step, number, file, resumed in kills:
        ended = forks.run(*words(store, out, *LONG, *changes), at=signal_at(step, number, file))
        assert ended.code == -signal.SIGKILL
        assert bool(list(out.rglob(f"{PART}*"))) == (step == "file.written"), "a file was to be half written"
        saved = list_checkpoints(out)
        assert len(saved) <= 3, "at most one more than are kept"
        assert (read_checkpoint(saved[-1])[0].step if saved else 0) == resumed, "nothing that was saved is lost"
        assert not (out / RUN).exists()
    last = forks.run(*words(store, out, *LONG, *changes))
    assert (last.code, last.said) == (0, f"going on after step {STEPS:,} ({saved[-1]})\n")
    assert outcome(out) == outcome(whole)
    assert len(losses(out)) == STEPS
    assert not list(out.rglob(f"{PART}*"))


@pytest.mark.whole
def test_killed_after_the_last_checkpoint_no_more_are_kept(store: Path, forks: Forks, tmp_path: Path) -> None:
    at = signal_at("file.renamed", 1, f"step-{STEPS:08d}*")
    assert forks.run(*words(store, tmp_path / "run", *LONG), at=at).code == -signal.SIGKILL
    assert len(list_checkpoints(tmp_path / "run")) == 3
    assert forks.run(*words(store, tmp_path / "run", *LONG)).code == 0
    assert len(list_checkpoints(tmp_path / "run")) == 2


@pytest.mark.whole
def test_measurements_that_are_lost_are_not_made_up(store: Path, forks: Forks, tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert forks.run(*words(store, out)).code == 0
    (out / METRICS).write_text("step,loss\n1,0.0\n")
    ended = forks.run(*words(store, out))
    assert ended.code == 0
    assert (
        f"note: {out / METRICS} is lost. What was measured up to the last checkpoint cannot be made again without "
        "training anew, in a new --out; the encoder is as it was.\n"
    ) in ended.said


# Stopped


@pytest.mark.whole
@pytest.mark.parametrize(("sent", "code"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_stopped_at_a_step_that_is_saved(
    store: Path, whole: tuple[Path, Ended], forks: Forks, tmp_path: Path, sent: str, code: int
) -> None:
    out = tmp_path / "run"
    sparse = words(store, out, f"optim.steps={STEPS}", "checkpoint.every=1000")
    ended = forks.run(*sparse, at=signal_at("step.done", 3, sent=sent))
    (saved,) = list_checkpoints(out)
    assert read_checkpoint(saved)[0].step == 3
    assert (ended.code, ended.result) == (code, "")
    assert ended.said == "stopped after step 3, which is saved: run the same command to go on.\n"
    assert rows(out) == 3
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
        (("objective.name=hidsic",), "objective.name = 'hidsic' is none of byol, dino, hidisc, simclr, "),
        (("model.backbone=resnet51",), "model.backbone = 'resnet51' is no timm model. Near it are "),
        (("batch.images=30",), "batch.images = 30 is not a multiple of 8 (8 images per patient). Set batch.images=32."),
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
    "optim.learning_rate=0.0001",
    "checkpoint.every=2",
)
"""Without batch statistics and random views two devices see what one does; a key's bias has no gradient but noise. With
larger steps rounding errors grow a hundredfold in eight steps, on one device as on two."""


@pytest.fixture(scope="module")
def on_two(store: Path, forks: Forks, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Ended]:
    """A run on two devices, and what the command said."""
    out = tmp_path_factory.mktemp("two") / "run"
    return out, forks.run(*words(store, out, *ALIKE, "batch.images=48"), "--devices", "2")


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
    if objective != "hidisc":
        assert forks.run(*words(store, two, *changes), "--devices", "2", ranks=2).code == 0
    levels = ("loss", "patch", "slide", "patient") if objective == "hidisc" else ("loss", "patch")
    pairs = list(zip(read_metrics(one / METRICS), read_metrics(two / METRICS), strict=True))
    for mine, its in pairs:
        assert [its[name] for name in levels] == pytest.approx([mine[name] for name in levels], rel=1e-5)
    assert pairs[0][1]["grad_norm"] == pytest.approx(pairs[0][0]["grad_norm"], rel=1e-5)
    (_, mine), (_, its) = (read_checkpoint(list_checkpoints(out)[-1]) for out in (one, two))
    for name in mine:
        torch.testing.assert_close(its[name], mine[name], rtol=1e-4, atol=1e-4, msg=name)


@pytest.mark.whole
def test_two_devices_stopped_and_killed(on_two: tuple[Path, Ended], store: Path, forks: Forks, tmp_path: Path) -> None:
    out = tmp_path / "run"
    command = [*words(store, out, *ALIKE, "batch.images=48"), "--devices", "2"]
    # as a terminal and a scheduler do: to everyone
    stopped = forks.run(*command, at=signal_at("step.done", 3, sent="SIGINT", to="group"), ranks=2)
    assert stopped.code == 130
    assert stopped.said.count("stopped after step ") == 1
    assert len(stopped.said.splitlines()) == 1
    killed = forks.run(*command, at=signal_at("step.done", 2, to="group"), ranks=2)
    assert killed.code == -signal.SIGKILL
    ended = forks.run(*command, ranks=2)
    assert ended.code == 0
    assert ended.said.count("going on after step ") == 1
    assert outcome(out) == outcome(on_two[0])


@pytest.mark.whole
@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (("seed=1",), "was begun with other settings (seed: 0 -> 1)"),
        (("batch.images=40",), "batch.images = 40 is not a multiple of 16 (8 images per patient x 2 devices)"),
    ],
)
def test_two_devices_say_what_is_wrong_once(
    on_two: tuple[Path, Ended], store: Path, forks: Forks, tmp_path: Path, changes: tuple[str, ...], sentence: str
) -> None:
    out = on_two[0] if changes == ("seed=1",) else tmp_path / "run"
    ended = forks.run(*words(store, out, *ALIKE, "batch.images=48", *changes), "--devices", "2", ranks=2)
    assert (ended.code, ended.result) == (2, "")
    assert sentence in ended.said
    assert len(ended.said.splitlines()) == 1

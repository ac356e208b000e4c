"""A finished run opens and says what it learned from; an unfinished or damaged one is refused with what to do."""

import json
import shutil
from pathlib import Path

import pytest
import torch
import yaml

from hidisc.errors import UserError
from hidisc.models.encoder import CARD, WEIGHTS
from hidisc.patches.store import PatchStore
from hidisc.runs import versions
from hidisc.settings.training import TrainConfig
from hidisc.training.run import RUN, Run
from tests.training.stores import TRAIN, make_store, outcome, tiny, train, train_until


@pytest.fixture(scope="module")
def run(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A finished run; not to be changed."""
    return train(store, tmp_path_factory.mktemp("run") / "run", "optim.accumulate=2", "seed=4")


@pytest.fixture
def own(run: Run, tmp_path: Path) -> Path:
    """A copy of it to damage."""
    return shutil.copytree(run.path, tmp_path / "run")


def refusal(path: Path) -> str:
    with pytest.raises(UserError) as caught:
        Run.load(path)
    return str(caught.value)


def files(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Content and time of every file."""
    return {
        str(p.relative_to(folder)): (p.read_bytes(), p.stat().st_mtime_ns) for p in folder.rglob("*") if p.is_file()
    }


def test_the_record(run: Run, store: Path) -> None:
    record = json.loads((run.path / RUN).read_text())
    seconds = record.pop("seconds")
    assert 0 < seconds < 600
    assert record == {
        "format": "hidisc-run-1",
        "objective": "hidisc",
        "backbone": "test_resnet",
        "seed": 4,
        "steps": 6,
        "images": 6 * 2 * 32,
        "devices": "1 x cpu, 32",
        "store": PatchStore.load(store).info.patches.checksum,
        "splits": ["train"],
        "patients": list(TRAIN),
        "slides": 12,
        "patches": 72,
        "labels_used": [],
        "bad_patches": 0,
        "versions": versions("hidisc", "torch", "torchvision", "timm", "lightning", "numpy"),
    }
    assert None not in record["versions"].values()


def test_the_settings_are_all_there(run: Run) -> None:
    found = yaml.safe_load((run.path / "config.yaml").read_text())
    assert found.pop("kind") == "train"
    assert found.pop("objective") == {"name": "hidisc", "weights": {}, "temperature": 0.7, "reduction": "mean"}
    expected = tiny("optim.accumulate=2", "seed=4").model_dump(mode="json", exclude={"objective"})
    assert found == expected
    TrainConfig.model_validate(found)


def test_the_encoder_knows_every_slide_it_has_seen(run: Run, store: Path) -> None:
    slides = {entry.slide: entry for entry in PatchStore.load(store).info.slides}
    learned = run.card.learned_from
    assert [(s.patient, s.slide) for s in learned] == [(p, f"{p}/{p}-{s}") for p in TRAIN for s in "xy"]
    assert all(slides[s.slide].checksum == s.checksum for s in learned)
    assert run.card.labels_used == ()
    assert (run.card.backbone, run.card.size_px, run.card.channels) == ("test_resnet", 32, 3)


@pytest.mark.parametrize(
    ("changes", "used"),
    [
        (("batch.balance=true", "batch.images=16"), ("class balance",)),
        (("objective={name: supcon}",), ("objective",)),
        (("objective={name: supervised}",), ("objective",)),
        (("monitor.every=1", "monitor.split=test"), ("monitor",)),
    ],
)
def test_labels_that_were_used_are_recorded(
    store: Path, tmp_path: Path, changes: tuple[str, ...], used: tuple[str, ...]
) -> None:
    run = train(store, tmp_path / "run", *changes, "optim.steps=1")
    assert run.info.labels_used == run.card.labels_used == used
    assert set(run.info.patients) == {slide.patient for slide in run.card.learned_from} == set(TRAIN)


def test_the_encoder_is_that_of_the_last_checkpoint(run: Run) -> None:
    encoder = run.encoder()
    assert not encoder.training
    _, _, tensors = outcome(run.path)["checkpoint"]  # type: ignore[misc]
    for name, value in encoder.state_dict().items():
        assert value.numpy().tobytes() == tensors[f"learner.encoder.{name}"]
    assert encoder.project(torch.rand(2, 3, 32, 32)).shape == (2, 8)


def test_rows_of_metrics(run: Run) -> None:
    rows = run.metrics()
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 5, 6]
    assert list(rows[0]) == [
        *("step", "loss", "patient", "slide", "patch", "learning_rate", "grad_norm", "effective_rank"),
        *("images_per_s", "wait_share"),
    ]
    for row in rows:
        assert row["loss"] == pytest.approx(row["patient"] + row["slide"] + row["patch"], rel=1e-6)
        assert row["images_per_s"] > 0
        assert 0 <= row["wait_share"] <= 1
        assert 1 < row["effective_rank"] <= 8


def test_a_finished_run_is_not_touched(store: Path, own: Path) -> None:
    before = files(own)
    said: list[str] = []
    again = train(store, own, "optim.accumulate=2", "seed=4", said=said)
    assert again.info == Run.load(own).info
    assert said == []
    after = files(own)
    assert before.pop(".lock")[0] == after.pop(".lock")[0] == b""
    assert after == before


def test_other_settings_are_refused_by_name(store: Path, own: Path) -> None:
    before = files(own)
    with pytest.raises(UserError) as caught:
        train(store, own, "optim.accumulate=2", "seed=4", "optim.steps=7", "objective.temperature=0.1")
    assert str(caught.value) == (
        f"{own} was begun with other settings (objective.temperature: 0.7 -> 0.1; optim.steps: 6 -> 7). "
        "Use the same ones to go on, or give a new --out."
    )
    assert files(own)[RUN] == before[RUN]


def test_settings_that_do_not_change_the_result_may_change(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, out = train(store, tmp_path / "whole"), tmp_path / "run"
    train_until(3, monkeypatch, store, out)
    run = train(store, out, "log.every=3", "checkpoint.every=1", "checkpoint.keep=1", "data.threads=2", "data.ahead=1")
    assert [row["step"] for row in run.metrics()] == [1, 2, 3, 6]
    assert (out / WEIGHTS).read_bytes() == (whole.path / WEIGHTS).read_bytes()


@pytest.mark.parametrize("is_finished", [True, False])
def test_another_store_is_refused(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_finished: bool
) -> None:
    other, out = make_store(tmp_path, patches=5), tmp_path / "run"
    if is_finished:
        train(store, out)
    else:
        train_until(3, monkeypatch, store, out)
    with pytest.raises(UserError) as caught:
        train(other, out)
    assert str(caught.value) == (
        f"{out} was begun with other patches than {other} holds now. Give a new --out, or the old store."
    )
    assert train(store, out).info.patches == 72


def test_a_folder_of_something_else(store: Path, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match=r"holds something else \(notes.txt\) and is not overwritten"):
        train(store, tmp_path)
    with pytest.raises(UserError, match=r"was begun with other settings \(kind: import -> train"):
        train(store, store)


def test_something_else_is_no_run(tmp_path: Path, store: Path) -> None:
    for path in (tmp_path, store):
        assert refusal(path) == f"{path} is not a run (no run.json). Make one with `hidisc train`."


def test_an_unfinished_run_is_none_yet(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train_until(2, monkeypatch, store, tmp_path / "run")
    assert refusal(tmp_path / "run") == (
        f"run {tmp_path / 'run'} is not finished. Run the same `hidisc train` again; it goes on."
    )


@pytest.mark.parametrize("data", [b"", b"{", b"{}", b'{"format": "hidisc-run-2"}'])
def test_a_damaged_record(own: Path, data: bytes) -> None:
    (own / RUN).write_bytes(data)
    assert refusal(own).startswith(f"{own / RUN} is damaged or of another version of hidisc (")


def test_an_encoder_without_its_card(own: Path) -> None:
    (own / CARD).unlink()
    with pytest.raises(UserError, match=r"holds no encoder \(no encoder.json\)"):
        Run.load(own).encoder()

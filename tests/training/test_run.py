"""A finished run opens and says what it learned from; an unfinished or damaged one is refused with what to do."""

import json
import shutil
from pathlib import Path

import pytest
import torch
import yaml

from hidisc.artefacts.artefact import MANIFEST, verify
from hidisc.ground.errors import UserError
from hidisc.ground.machine import versions
from hidisc.models.card import CARD, UNKNOWN, WEIGHTS, trust_history
from hidisc.models.encoder import describe_weights
from hidisc.patches.store import PatchStore
from hidisc.settings.train import TrainConfig
from hidisc.training.checkpoint import list_checkpoints
from hidisc.training.log import METRICS
from hidisc.training.run import RUN, Run
from hidisc.verbs.train import train as train_as_told
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
        "objective": "hidisc",
        "backbone": "test_resnet",
        "seed": 4,
        "steps": 6,
        "images": 6 * 2 * 32,
        "devices": "1 x cpu, 32",
        "store": PatchStore.load(store).checksum,
        "splits": ["train"],
        "patients": list(TRAIN),
        "slides": 12,
        "patches": 72,
        "labels_used": [],
        "bad_patches": 0,
        "versions": versions("hidisc", "torch", "torchvision", "timm", "lightning-fabric", "numpy"),
        "level_names": {"patient": "patient", "slide": "slide", "patch": "patch"},
    }
    assert None not in record["versions"].values()


def test_the_settings_and_inputs_are_all_there(run: Run, store: Path) -> None:
    found = yaml.safe_load((run.path / "config.yaml").read_text())
    assert [found.pop(name) for name in ("kind", "format", "inputs")] == [
        "train",
        "hidisc-2",
        {"the store": PatchStore.load(store).checksum},
    ]
    assert found.pop("objective") == {
        "name": "hidisc",
        "weights": {},
        "across": {},
        "temperature": 0.7,
        "reduction": "mean",
    }
    expected = tiny("optim.accumulate=2", "seed=4", "compute.compile=false").model_dump(
        mode="json", exclude={"objective"}
    )
    assert found == expected
    TrainConfig.model_validate(found)


def test_the_encoder_knows_every_slide_it_has_seen(run: Run, store: Path) -> None:
    slides = {entry.slide: entry for entry in PatchStore.load(store).info.slides}
    learned = run.card.history.slides
    assert [(s.patient, s.slide) for s in learned] == [(p, f"{p}/{p}-{s}") for p in TRAIN for s in "xy"]
    assert all(slides[s.slide].checksum == s.checksum for s in learned)
    assert run.card.history.labels_used == ()
    assert run.card.history.is_complete
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
    assert run.info.labels_used == run.card.history.labels_used == used
    assert set(run.info.patients) == set(run.card.history.patients) == set(TRAIN)


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
    run = train(
        store, out, "log.every=3", "checkpoint.every=1", "checkpoint.keep=1", "data.threads=2", "data.prefetch=1"
    )
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
        f"{out} was begun with other settings (the content of the store has changed). Use the same ones to go on, or "
        "give a new --out."
    )
    assert train(store, out).info.patches == 72


def test_a_folder_of_something_else(store: Path, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match=r"holds something else \(notes.txt\) and is not overwritten"):
        train(store, tmp_path)
    with pytest.raises(UserError, match=r"was begun with other settings \(kind: import -> train"):
        train(store, store)


def test_something_else_is_no_run(tmp_path: Path, store: Path) -> None:
    assert refusal(tmp_path) == f"{tmp_path} is not a run. Make one with `hidisc train`."
    assert refusal(store) == f"{store} is not a run (it is a store). Make one with `hidisc train`."


def test_an_unfinished_run_is_none_yet(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train_until(2, monkeypatch, store, tmp_path / "run")
    assert refusal(tmp_path / "run") == (
        f"run {tmp_path / 'run'} is not finished. Run the same `hidisc train` again; it goes on."
    )


def flip(path: Path) -> None:
    """Change one byte in the middle of a file."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("name", [RUN, CARD, WEIGHTS, METRICS, "config.yaml"])
def test_any_changed_file_is_found_whenever_the_run_is_used(own: Path, name: str) -> None:
    flip(own / name)
    assert refusal(own) == (
        f"run {own} is damaged: {name} has changed (its checksum differs). Run the same `hidisc train` again: it "
        "repairs that."
    )
    assert verify(own) == [f"{name} has changed (its checksum differs)"]


def test_weights_of_another_run_are_found(own: Path, store: Path, tmp_path: Path) -> None:
    other = train(store, tmp_path / "other", "optim.accumulate=2", "seed=5")
    shutil.copy(other.path / WEIGHTS, own / WEIGHTS)
    assert refusal(own).startswith(f"run {own} is damaged: {WEIGHTS} has changed (its checksum differs)")


@pytest.mark.parametrize("name", [WEIGHTS, CARD, RUN])
def test_the_same_command_mends_a_damaged_run(own: Path, run: Run, store: Path, name: str) -> None:
    flip(own / name)
    said: list[str] = []
    mended = train(store, own, "optim.accumulate=2", "seed=4", said=said)
    assert said[0].startswith(f"note: {own} is damaged ({name} has changed")
    assert (own / WEIGHTS).read_bytes() == (run.path / WEIGHTS).read_bytes()
    assert (mended.card, mended.metrics()) == (run.card, run.metrics())
    assert verify(own) == []


def test_checkpoints_may_be_deleted_and_are_verified_while_they_are_there(own: Path) -> None:
    newest = list_checkpoints(own)[-1]
    flip(newest)
    assert verify(own) == [f"checkpoints/{newest.name} has changed (its checksum differs)"]
    shutil.rmtree(own / "checkpoints")
    assert verify(own) == []
    assert Run.load(own).encoder()


# ---- what an encoder has seen


def test_histories_compose_over_trainings(store: Path, run: Run, tmp_path: Path) -> None:
    """What the starting weights had seen counts as seen, wherever the weights came from."""
    first = train(store, tmp_path / "first", "data.splits=[test]", "objective={name: supcon}", "optim.steps=1")
    second = train(store, tmp_path / "second", f"model.weights={first.path / WEIGHTS}", "optim.steps=1")
    assert set(second.card.history.patients) == {*first.card.history.patients, *TRAIN}
    assert second.card.history.is_complete
    assert second.card.history.labels_used == ("objective",)
    assert second.info.labels_used == ()
    third = train(store, tmp_path / "third", f"model.weights={second.path / WEIGHTS}", "optim.steps=1")
    assert third.card.history == second.card.history.after(second.card.weights)
    assert third.card.history.started_from == (first.card.weights, second.card.weights)


def test_weights_without_a_past_make_it_unknown(store: Path, run: Run, tmp_path: Path) -> None:
    bare = tmp_path / "bare.safetensors"
    shutil.copy(run.path / WEIGHTS, bare)
    history = train(store, tmp_path / "one", f"model.weights={bare}", "optim.steps=1").card.history
    assert not history.is_complete
    assert set(history.patients) == set(TRAIN)
    later = train(store, tmp_path / "two", f"model.weights={tmp_path / 'one' / WEIGHTS}", "optim.steps=1")
    assert not later.card.history.is_complete


def test_a_card_speaks_only_of_its_own_weights(store: Path, run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "mixed"
    folder.mkdir()
    other = train(store, tmp_path / "other", "seed=9", "optim.steps=1")
    shutil.copy(run.path / CARD, folder / CARD)
    shutil.copy(other.path / WEIGHTS, folder / WEIGHTS)
    assert trust_history(describe_weights(folder / WEIGHTS).history) == UNKNOWN


def test_other_weights_under_the_same_name_are_refused(
    store: Path, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = tmp_path / "w.safetensors"
    shutil.copy(run.path / WEIGHTS, weights)
    train_until(3, monkeypatch, store, tmp_path / "run", f"model.weights={weights}")
    other = train(store, tmp_path / "other", "seed=9", "optim.steps=1")
    shutil.copy(other.path / WEIGHTS, weights)
    with pytest.raises(UserError, match=r"\(the content of model\.weights has changed\)"):
        train(store, tmp_path / "run", f"model.weights={weights}")


def test_a_run_of_an_earlier_version_is_refused_and_not_gone_on_with(own: Path, store: Path) -> None:
    config = yaml.safe_load((own / "config.yaml").read_text())
    for name in ("format", "inputs"):
        del config[name]
    (own / "config.yaml").write_text(yaml.safe_dump(config))
    (own / MANIFEST).unlink()
    before = files(own)
    expected = "is of hidisc 0.2 or older, and folders of these versions are not read. Run `hidisc train`"
    assert expected in refusal(own)
    with pytest.raises(UserError) as caught:
        train(store, own, "optim.accumulate=2", "seed=4")
    assert expected in str(caught.value)
    assert files(own) == before


def test_so_few_test_patients_are_said_before_training(store: Path, tmp_path: Path) -> None:
    said: list[str] = []
    train_as_told(store, tmp_path / "run", tiny("optim.steps=1"), device="cpu", devices=1, say=said.append)
    assert any("can show nothing: in `hidisc evaluate` and `hidisc benchmark`, --folds 3" in each for each in said)

"""`hidisc embed`: the encoder's own vectors in the table's order, whatever happened on the way."""

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from hidisc.artefacts.artefact import MANIFEST
from hidisc.embeddings import extract
from hidisc.embeddings.embeddings import EMBEDDINGS, PATCHES, VECTORS, Embeddings
from hidisc.ground.errors import UserError
from hidisc.models.card import WEIGHTS
from hidisc.patches.store import PatchStore, as_input
from hidisc.settings.embed import EmbedConfig
from hidisc.training.run import Run
from hidisc.verbs.doctor import find_damage
from hidisc.verbs.embed import embed
from hidisc.verbs.export_vectors import export_bags
from tests.commands import Forks, signal_at
from tests.training.stores import damage, make_store, train


@pytest.fixture(scope="module")
def run(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(store, tmp_path_factory.mktemp("run") / "run", "optim.steps=2").path


def made(store: Path, model: Path | str, out: Path, **settings: object) -> Embeddings:
    config = EmbedConfig.model_validate({"batch": 2, "threads": 1, **settings})
    found = embed(store, str(model), out, config, device="cpu", devices=1)
    assert found is not None
    return found


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != ".lock"}


@pytest.mark.parametrize("batch", [2, 96])  # the second goes through the network in two parts
def test_the_encoders_own_vectors_in_the_order_of_the_table(store: Path, run: Path, tmp_path: Path, batch: int) -> None:
    found, opened = made(store, run, tmp_path / "e", batch=batch), PatchStore.load(store)
    x = torch.from_numpy(as_input(opened.read_many(range(len(opened))), "unit")).permute(0, 3, 1, 2)
    with torch.inference_mode():
        expected = Run.load(run).encoder().features(x)
    np.testing.assert_allclose(found.vectors, expected, atol=1e-5)
    for column in opened.table.columns:
        np.testing.assert_array_equal(found.table.column(column), opened.table.column(column))
    info = found.info
    assert (info.rows, info.dim, info.dtype) == (len(opened), expected.shape[1], "float32")
    assert {slide.slide for slide in info.slides} == set(opened.table.column("slide"))
    assert info.model.history == Run.load(run).card.history
    assert (tmp_path / "e" / info.store).resolve() == store.resolve()
    assert (tmp_path / "e" / info.model.source).resolve() == run.resolve()
    assert str(tmp_path) not in (tmp_path / "e" / EMBEDDINGS).read_text()  # nor anyone's home
    assert sorted(contents(tmp_path / "e")) == ["artefact.json", "config.yaml", EMBEDDINGS, VECTORS, PATCHES]


def test_half_precision_storage(store: Path, run: Path, tmp_path: Path) -> None:
    full, half = made(store, run, tmp_path / "full"), made(store, run, tmp_path / "half", dtype="float16")
    assert half.vectors.dtype == np.float16
    np.testing.assert_allclose(half.vectors, full.vectors, rtol=2e-3, atol=1e-3)


def test_a_sample_of_every_slide(store: Path, run: Path, tmp_path: Path) -> None:
    whole, some = made(store, run, tmp_path / "whole"), made(store, run, tmp_path / "some", per_slide=2, seed=1)
    keys = list(zip(whole.table.column("slide"), whole.table.column("patch"), strict=True))
    places = [keys.index(key) for key in zip(some.table.column("slide"), some.table.column("patch"), strict=True)]
    assert len(places) == 2 * len(whole.info.slides)
    np.testing.assert_allclose(some.vectors, whole.vectors[places], atol=1e-5)
    assert (some.info.per_slide, some.info.seed) == (2, 1)


def test_unreadable_patches_are_left_out_and_said(store: Path, run: Path, tmp_path: Path) -> None:
    broken = tmp_path / "store"
    shutil.copytree(store, broken)
    damage(broken, 5, 40)
    said: list[str] = []
    config = EmbedConfig(batch=2, threads=1)
    found = embed(broken, str(run), tmp_path / "e", config, device="cpu", devices=1, say=said.append)
    assert found is not None
    whole = made(store, run, tmp_path / "whole")
    assert found.info.bad_patches == 2
    kept = np.delete(np.arange(len(whole)), [5, 40])
    np.testing.assert_array_equal(found.vectors, whole.vectors[kept])
    assert found.table.column("patch").tolist() == whole.table.column("patch")[kept].tolist()
    warnings = [line for line in said if line.startswith("warning: patch ")]
    assert len(warnings) == 2
    assert all(line.endswith("It is left out.") for line in warnings)


def test_killed_between_leaving_out_and_the_record(
    store: Path, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "store"
    shutil.copytree(store, broken)
    damage(broken, 5)
    expected = made(broken, run, tmp_path / "whole")

    def dies(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(extract, "list_slides", dies)  # after the file has shrunk
        with pytest.raises(KeyboardInterrupt):
            made(broken, run, tmp_path / "e")
    again = made(broken, run, tmp_path / "e")
    assert contents(tmp_path / "e") == contents(tmp_path / "whole")
    assert len(again) == len(expected) == 95


def test_too_many_unreadable_patches(store: Path, run: Path, tmp_path: Path) -> None:
    broken = tmp_path / "store"
    shutil.copytree(store, broken)
    damage(broken, *range(12))
    with pytest.raises(UserError) as caught:
        made(broken, run, tmp_path / "e")
    assert str(caught.value) == (
        "12 of the 12 patches read so far cannot be read, more than max_bad_share = 0.01 allows. Run "
        f"`hidisc doctor {broken}`."
    )


class Broken(torch.nn.Module):
    """An encoder that divides by nothing."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mean(dim=(2, 3)) * 1e30


@pytest.mark.parametrize(("dtype", "remedy"), [("float16", "dtype=float32 and precision=32")])
def test_infinite_numbers_are_refused(store: Path, tmp_path: Path, dtype: str, remedy: str) -> None:
    torch.jit.save(torch.jit.script(Broken()), str(tmp_path / "broken.pt"))
    with pytest.raises(UserError) as caught:
        made(store, tmp_path / "broken.pt", tmp_path / "e", dtype=dtype)
    assert str(caught.value) == (
        "the encoder gives infinite or undefined numbers, first for a patch of slide 'P0/P0-x' (row 0 of "
        f"{store}). Set {remedy}."
    )


def test_other_settings_store_or_encoder_are_refused(store: Path, run: Path, tmp_path: Path) -> None:
    made(store, run, tmp_path / "e")
    with pytest.raises(UserError, match=r"e was begun with other settings \(dtype: float32 -> float16\)"):
        made(store, run, tmp_path / "e", dtype="float16")
    with pytest.raises(UserError, match=r"other settings \(name: run -> test_resnet; the content of the encoder "):
        made(store, "timm:test_resnet", tmp_path / "e")
    other = make_store(tmp_path, patches=2)
    with pytest.raises(UserError, match=r"begun with other settings \(the content of the store has changed\)"):
        made(other, run, tmp_path / "e")
    assert made(store, run, tmp_path / "e", threads=2).info.rows == 96  # threads change nothing


def test_unfinished_and_damaged_ones_are_refused(store: Path, run: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"nothing does not exist\. Make it with `hidisc embed`\."):
        Embeddings.load(tmp_path / "nothing")
    made(store, run, tmp_path / "e")
    with (tmp_path / "e" / VECTORS).open("r+b") as file:
        file.truncate(1000)
    with pytest.raises(UserError, match=r"e are damaged: embeddings.npy has 1,000 bytes instead of [\d,]+. Run the"):
        Embeddings.load(tmp_path / "e")
    (tmp_path / "e" / MANIFEST).unlink()
    with pytest.raises(UserError, match=r"e are not finished\. Run the same `hidisc embed` again; it goes on\."):
        Embeddings.load(tmp_path / "e")


def test_doctor_finds_a_changed_bit(store: Path, run: Path, tmp_path: Path) -> None:
    made(store, run, tmp_path / "e")
    assert find_damage(tmp_path / "e") == find_damage(run) == []
    with (tmp_path / "e" / VECTORS).open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"x")
    assert find_damage(tmp_path / "e") == ["embeddings.npy has changed (its checksum differs)"]
    (tmp_path / "e" / PATCHES).unlink()
    assert find_damage(tmp_path / "e") == [
        "embeddings.npy has changed (its checksum differs)",
        "patches.parquet is missing",
    ]


@pytest.mark.parametrize("name", [VECTORS, PATCHES, EMBEDDINGS, "config.yaml"])
@pytest.mark.parametrize("left_over", [False, True])
def test_the_same_command_mends_damaged_embeddings(
    store: Path, run: Path, tmp_path: Path, name: str, left_over: bool
) -> None:
    made(store, run, tmp_path / "e")
    before = contents(tmp_path / "e")
    data = bytearray(before[name])
    data[len(data) // 2] ^= 1
    (tmp_path / "e" / name).write_bytes(data)
    if left_over:  # as by a process that was killed when all was written
        (tmp_path / "e" / VECTORS).with_suffix(".done").write_bytes(b"\1" * 9)
    with pytest.raises(UserError, match=f"are damaged: {name} has changed"):
        Embeddings.load(tmp_path / "e")
    made(store, run, tmp_path / "e")
    assert contents(tmp_path / "e") == before


def test_vectors_of_another_run_under_this_ones_name_are_refused(store: Path, run: Path, tmp_path: Path) -> None:
    made(store, run, tmp_path / "e")
    made(store, "timm:test_resnet", tmp_path / "other")
    shutil.copy(tmp_path / "other" / VECTORS, tmp_path / "e" / VECTORS)
    for use in (Embeddings.load, lambda path: export_bags(path, tmp_path / "bags")):
        with pytest.raises(UserError, match=r"e are damaged: embeddings\.npy has "):
            use(tmp_path / "e")
    shutil.copytree(run, tmp_path / "run")
    (tmp_path / "run" / WEIGHTS).write_bytes(b"nothing")
    assert "encoder.safetensors has 7 bytes instead of " in find_damage(tmp_path / "run")[0]


def command(store: Path, model: Path, out: Path) -> list[str]:
    return ["embed", str(store), str(model), "--out", str(out), "--device", "cpu", "--set", "batch=1"]


KILLS = (
    ("file.written", 1, "config.yaml", 0),
    ("block.written", 1, "*", 0),
    ("block.done", 1, "*", 1),
    ("block.written", 2, "*", 2),
    ("block.done", 2, "*", 4),
    ("file.written", 1, PATCHES, 6),
    ("file.renamed", 1, PATCHES, 6),
    ("file.written", 1, EMBEDDINGS, 6),
)
"""Steps at which the command is killed, one after the other, and how many of 6 blocks are ticked off then."""


@pytest.mark.whole
def test_kill_at_every_step_then_the_same_command(store: Path, run: Path, forks: Forks, tmp_path: Path) -> None:
    expected = made(store, run, tmp_path / "whole", batch=1, threads=None)
    out = tmp_path / "e"
    for step, number, file, blocks in KILLS:
        ended = forks.run(*command(store, run, out), at=signal_at(step, number, file))
        assert ended.code == -signal.SIGKILL
        done = out / "embeddings.done"
        assert (done.read_bytes().count(1) if done.exists() else 0) == blocks, "nothing that was written is lost"
        assert not (out / EMBEDDINGS).exists()
    assert forks.run(*command(store, run, out)).code == 0
    assert contents(out) == contents(tmp_path / "whole")
    assert Embeddings.load(out).info == expected.info


@pytest.mark.whole
def test_kill_when_the_record_is_there(store: Path, run: Path, forks: Forks, tmp_path: Path) -> None:
    """Only the file that ticks off blocks is left over."""
    made(store, run, tmp_path / "whole", batch=1, threads=None)
    at = signal_at("file.renamed", 1, EMBEDDINGS)
    assert forks.run(*command(store, run, tmp_path / "e"), at=at).code == -signal.SIGKILL
    assert forks.run(*command(store, run, tmp_path / "e")).code == 0
    found = contents(tmp_path / "e")
    found.pop("embeddings.done", None)
    assert found == contents(tmp_path / "whole")


@pytest.mark.whole
def test_two_devices_give_the_same_file(store: Path, run: Path, forks: Forks, tmp_path: Path) -> None:
    made(store, run, tmp_path / "one", batch=1, threads=None)
    done = forks.run(*command(store, run, tmp_path / "two"), "--devices", "2", "--json", ranks=2)
    assert done.code == 0, done.said
    assert contents(tmp_path / "two") == contents(tmp_path / "one")
    assert json.loads(done.result)["rows"] == 96


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk that is nearly full."""
    disk = tmp_path / "disk"
    disk.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24k", "tmpfs", str(disk)], check=False)
    if done.returncode:
        pytest.skip("mounting a small disk needs root")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.whole
def test_a_full_disk_is_said_at_once_and_what_is_written_stays(
    store: Path, run: Path, forks: Forks, small_disk: Path
) -> None:
    words = command(store, run, small_disk / "e")
    done = forks.run(*words)
    assert done.code == 2
    assert done.said.splitlines()[-1] == (
        "hidisc: the disk is full (No space left on device). What has been written is kept: free some space and run "
        "the same command again."
    )
    subprocess.run(["mount", "-o", "remount,size=10m", str(small_disk)], check=True)
    assert forks.run(*words).code == 0
    assert Embeddings.load(small_disk / "e").info.rows == 96

"""`hidisc export` takes a run or embeddings, each for what it can become."""

from pathlib import Path

import pytest

from hidisc.artefacts.artefact import verify
from hidisc.embeddings.bags import SLIDES
from hidisc.ground.errors import UserError
from hidisc.ground.files import PART, beside
from hidisc.models.encoder import HeadConfig, build_encoder
from hidisc.training.run import RUN, RunInfo
from hidisc.verbs.bags import export_bags
from hidisc.verbs.export import export
from tests.evaluation.made import make_embeddings
from tests.finished import finish


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """What a finished run must have for its encoder to be exported."""
    folder = tmp_path / "run"
    folder.mkdir()
    build_encoder("test_resnet", {}, HeadConfig(dim=4), channels=3, size_px=32).save(folder)
    info = RunInfo(
        objective="hidisc",
        backbone="test_resnet",
        seed=0,
        steps=1,
        images=1,
        seconds=1,
        devices="cpu",
        store="s",
        splits=(),
        patients=(),
        slides=0,
        patches=0,
        labels_used=(),
        bad_patches=0,
        versions={},
    )
    (folder / RUN).write_text(info.model_dump_json())
    finish(folder, "train")
    return folder


def test_a_run_becomes_a_file_that_is_read_back(run: Path, tmp_path: Path) -> None:
    file, difference = export(run, tmp_path / "out", "torchscript")
    assert file == tmp_path / "out" / "encoder.pt"
    assert file.is_file()
    assert difference < 1e-4


def test_nothing_is_overwritten(run: Path, tmp_path: Path) -> None:
    export(run, tmp_path / "out", "timm")
    with pytest.raises(
        UserError, match=r"model.safetensors is there already and is not overwritten. Give another --out"
    ):
        export(run, tmp_path / "out", "timm")
    before = (tmp_path / "out" / "preprocessing.json").read_bytes()
    with pytest.raises(UserError, match=r"out was begun with other settings \(to: timm -> torchscript\)"):
        export(run, tmp_path / "out", "torchscript")
    assert (tmp_path / "out" / "preprocessing.json").read_bytes() == before


def test_embeddings_become_bags(tmp_path: Path) -> None:
    made = make_embeddings(tmp_path / "emb")
    said: list[str] = []
    assert export_bags(made.path, tmp_path / "bags", said.append) == 36
    assert (tmp_path / "bags" / SLIDES).is_file()
    assert len(said) == 1  # the store is not there
    beside(tmp_path / "bags" / "h5_files" / "x").write_text("left over")
    assert export_bags(made.path, tmp_path / "bags") == 36
    assert not list((tmp_path / "bags").rglob(f"{PART}*"))


def test_what_cannot_become_that_is_said(run: Path, tmp_path: Path) -> None:
    made = make_embeddings(tmp_path / "emb")
    with pytest.raises(
        UserError, match=r"emb holds embeddings, and --to onnx writes an encoder. Give --to bags, or the"
    ):
        export(made.path, tmp_path / "out", "onnx")
    with pytest.raises(UserError, match=r"run is a run, and --to bags writes embeddings. Make them with `hidisc embed"):
        export_bags(run, tmp_path / "out")
    with pytest.raises(UserError, match=r"to = 'bags' is none of timm, onnx, torchscript. Embeddings become bags with"):
        export(made.path, tmp_path / "out", "bags")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="nowhere does not exist"):
        export_bags(tmp_path / "nowhere", tmp_path / "out")
    with pytest.raises(UserError, match="nowhere does not exist"):
        export(tmp_path / "nowhere", tmp_path / "out", "onnx")
    unfinished = tmp_path / "unfinished"
    unfinished.mkdir()
    (unfinished / "config.yaml").write_text("kind: embed\nformat: hidisc-2\n")
    with pytest.raises(UserError, match=r"embeddings .*unfinished are not finished"):
        export_bags(unfinished, tmp_path / "out")
    (unfinished / "config.yaml").write_text("kind: train\nformat: hidisc-2\n")
    with pytest.raises(UserError, match=r"run .*unfinished is not finished"):
        export(unfinished, tmp_path / "out", "onnx")
    assert not (tmp_path / "out").exists()


def test_a_strangers_folder_is_left_as_it_was(run: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.txt").write_text("x")
    beside(mine / "thesis.txt").write_text("being written")
    before = sorted(mine.iterdir())
    with pytest.raises(UserError, match=r"mine holds something else \(thesis.txt\) and is not overwritten"):
        export(run, mine, "timm")
    assert sorted(mine.iterdir()) == before


def test_an_exported_encoder_is_an_artefact_that_doctor_verifies(run: Path, tmp_path: Path) -> None:
    export(run, tmp_path / "out", "timm")
    assert verify(tmp_path / "out") == []
    (tmp_path / "out" / "config.json").write_text("{}")
    assert verify(tmp_path / "out")[0].startswith("config.json has 2 bytes instead of ")

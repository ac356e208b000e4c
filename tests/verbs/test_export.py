"""`hidisc export` takes a run or embeddings, each for what it can become."""

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import HfApi, ModelCard

import hidisc
from hidisc.artefacts.artefact import verify
from hidisc.embeddings.bags import SLIDES
from hidisc.embeddings.embeddings import EMBEDDINGS, Embeddings
from hidisc.evaluation.scores import Scores
from hidisc.ground.errors import UserError
from hidisc.ground.files import PART, beside
from hidisc.models.card import History, read_card
from hidisc.models.encoder import HeadConfig, build_encoder
from hidisc.patches.record import SlideId
from hidisc.training.run import RUN, RunInfo
from hidisc.verbs.export import export
from hidisc.verbs.export_vectors import export_bags
from tests.evaluation.made import make_embeddings
from tests.finished import finish, refinish
from tests.models.stand_in import StandIn
from tests.reporting.judged import LEAK, make_scores

NAME = "Müller"
"""In the name of every patient and slide."""


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """What a finished run must have for its encoder to be exported."""
    folder = tmp_path / "run"
    folder.mkdir()
    made = build_encoder("test_resnet", {}, HeadConfig(dim=4), channels=3, size_px=32, mpp=0.5)
    seen = [SlideId(patient=f"{NAME}-P{number // 2}", slide=f"{NAME}-S{number}", checksum="c") for number in range(4)]
    made.save(folder, made.card.model_copy(update={"history": History(slides=tuple(seen))}))
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
        patients=(f"{NAME}-P0", f"{NAME}-P1"),
        slides=4,
        patches=1234,
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
    with pytest.raises(
        UserError, match=r"to = 'bags' is none of timm, onnx, torchscript, exported. Embeddings become bags with"
    ):
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


@pytest.mark.parametrize("to", ["timm", "onnx", "torchscript", "exported"])
def test_no_exported_file_names_a_patient_a_slide_or_a_folder(run: Path, tmp_path: Path, to: Any) -> None:
    export(run, tmp_path / "out", to)
    assert NAME in (run / "encoder.json").read_text()
    spelt = [NAME.encode(), NAME.encode("utf-16-le"), json.dumps(NAME).strip('"').encode()]
    folders = [str(path).encode() for path in (run, Path(hidisc.__file__).parent, Path(torch.__file__).parents[1])]
    for file in (tmp_path / "out").iterdir():
        for content in read_all(file):
            for name in (*spelt, *folders):
                assert name not in content, f"{file.name} holds {name!r}"


def read_all(file: Path) -> list[bytes]:
    """What a file holds, and what the files in it hold if it is a zip."""
    if not zipfile.is_zipfile(file):
        return [file.read_bytes()]
    with zipfile.ZipFile(file) as archive:
        return [file.read_bytes(), *map(archive.read, archive.namelist())]


def evaluated(run: Path, folder: Path, weights: str | None = None, **options: Any) -> Path:
    """Scores of the run's encoder."""
    made = make_embeddings(folder / "emb")
    info = made.info.model_copy(
        update={"model": made.info.model.model_copy(update={"checksum": weights or read_card(run).weights})}
    )
    (made.path / EMBEDDINGS).write_text(info.model_dump_json())
    refinish(made.path)
    return make_scores(folder / "scores", Embeddings.load(made.path), **options).path


def test_the_model_card_is_read_by_the_hub_s_own_parser(run: Path, tmp_path: Path) -> None:
    export(run, tmp_path / "out", "timm", scores=evaluated(run, tmp_path, leak=True))
    card = ModelCard.load(tmp_path / "out" / "README.md")
    assert (card.data.library_name, card.data.pipeline_tag) == ("timm", "image-feature-extraction")
    assert "hidisc" in card.data.tags
    levels = Scores.load(tmp_path / "scores").info.list_levels()
    assert [result.metric_value for result in card.data.eval_results] == [
        level.metrics["accuracy"].value for level in reversed(levels)
    ]
    assert "trained without labels by hidisc (objective hidisc, 1 step, 1 image)" in card.text
    assert "4 slides of 2 patients; the last training drew from 1,234 patches." in card.text
    assert "Patches of 32 x 32 px at 0.5 um/px, 3 channels (8-bit / 255), values in [0, 1]" in card.text
    for level in levels:
        assert f"| {level.level} | {level.units:,} | {level.metrics['accuracy'].percent()} | " in card.text
    said = "the column 'label' is predicted (3 classes: a, b, c), of 9 patients of the split test, by the probe knn;"
    assert said in card.text
    assert card.data.eval_results[0].dataset_name == "label label, 9 patients of the split test"
    assert "Evaluated despite leakage: the numbers are too high." in card.text
    assert LEAK not in card.text  # it names patients
    assert verify(tmp_path / "out") == []


def test_a_card_without_evaluation_says_so(run: Path, tmp_path: Path) -> None:
    export(run, tmp_path / "out", "onnx")
    card = ModelCard.load(tmp_path / "out" / "README.md")
    assert "It was exported without an evaluation." in card.text
    assert card.data.eval_results is None
    assert "applied inside the network" in card.text


def test_scores_of_another_encoder_are_refused(run: Path, tmp_path: Path) -> None:
    other = evaluated(run, tmp_path, weights="another")
    with pytest.raises(
        UserError, match=r"scores is an evaluation of another encoder \(made\). Give the scores of this"
    ):
        export(run, tmp_path / "out", "timm", scores=other)
    assert not (tmp_path / "out").exists()


def test_an_encoder_is_pushed_to_a_hub(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with StandIn() as hub:
        monkeypatch.setattr("hidisc.models.backbone.HfApi", lambda: HfApi(endpoint=hub.address, token="none"))
        export(run, tmp_path / "out", "timm", push="lab/encoder")
        assert hub.created == [{"name": "encoder", "organization": "lab", "visibility": "private"}]
        files = {name: (tmp_path / "out" / name).read_bytes() for name in hub.files}
        assert sorted(files) == ["README.md", "config.json", "model.safetensors", "preprocessing.json"]
        assert hub.files == files
        hub.files.clear()
        export(run, tmp_path / "out", "timm", push="lab/encoder")  # again, as after a failure
        assert hub.files == files


def test_a_push_that_fails_is_said_and_can_be_repeated(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with StandIn() as hub:
        address = hub.address
    monkeypatch.setattr("hidisc.models.backbone.HfApi", lambda: HfApi(endpoint=address, token="none"))
    with pytest.raises(
        UserError, match=r"out was written, but --push lab/encoder failed \(.*\). Give OWNER/NAME, log in"
    ):
        export(run, tmp_path / "out", "timm", push="lab/encoder")
    assert verify(tmp_path / "out") == []

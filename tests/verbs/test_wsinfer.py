"""The classifier for WSInfer says what the linear probe of the evaluation said, and its config is of spec 1.0."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from hidisc import embed, evaluate, load_config, prepare, train
from hidisc.artefacts.artefact import verify
from hidisc.embeddings.embeddings import Embeddings
from hidisc.embeddings.given_names import GivenNames, save_labels
from hidisc.evaluation.scores import Scores
from hidisc.explorer.labels import LabelSets
from hidisc.ground.errors import UserError
from hidisc.patches.store import PatchStore
from hidisc.settings.evaluate import EvaluateConfig
from hidisc.settings.prepare import PrepareConfig
from hidisc.settings.train import TrainConfig
from hidisc.slides.synthetic import draw_cohort
from hidisc.verbs.export import export_wsinfer
from hidisc.verbs.report import heatmap
from tests.evaluation.made import relabel
from tests.training.stores import TINY

JUDGED = ("probes=[linear]", "bootstrap.resamples=20", "floor=false", "audit=false")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of four diagnoses, a run, its embeddings and its scores."""
    folder = tmp_path_factory.mktemp("home")
    cohort = draw_cohort(folder, patients=12, slides=1, fields=8, field_px=48, seed=2)
    split = ["split.fractions={train: 0.6, test: 0.4}", "grid.size_px=48"]
    prepare(cohort, folder / "store", load_config(PrepareConfig, None, split), workers=0)
    config = load_config(TrainConfig, None, [*TINY, "optim.steps=2"])
    train(folder / "store", folder / "run", config, device="cpu", devices=1)
    embed(folder / "store", folder / "run", folder / "embeddings", device="cpu", devices=1, shown=False)
    judged = load_config(EvaluateConfig, None, JUDGED)
    evaluate(folder / "embeddings", folder / "scores", judged, device="cpu")
    return folder


def test_wsinfer_gives_the_probabilities_of_the_probe(home: Path, tmp_path: Path) -> None:
    said: list[str] = []
    file, difference = export_wsinfer(home / "run", tmp_path / "out", home / "scores", said.append)
    assert difference < 1e-4
    assert len(said) == 1
    assert "Patches were stain-normalised before it saw them, and QuPath feeds them as scanned" in said[0]
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    store, patches = PatchStore.load(home / "store"), Scores.load(home / "scores").predictions("linear", "patch")
    known = config["transform"][-1]["arguments"]
    rows = patches.units["row"]
    pixels = torch.from_numpy(store.read_many(rows)).permute(0, 3, 1, 2) / 255
    mean, std = (torch.tensor(known[name])[:, None, None] for name in ("mean", "std"))
    assert len(Embeddings.load(home / "embeddings")) == len(store)  # rows of both are the same
    with torch.inference_mode():
        logits = torch.jit.load(str(file))((pixels - mean) / std)
    np.testing.assert_allclose(logits.softmax(dim=1).numpy(), patches.scores, atol=2e-3)
    assert config["class_names"] == list(patches.classes)
    assert verify(tmp_path / "out") == []
    card = (tmp_path / "out" / "README.md").read_text()
    assert "by the probe linear; in percent" in card


def test_the_config_is_of_spec_1(home: Path, tmp_path: Path) -> None:
    """Fields and types of WSInfer's `model-config` schema."""
    export_wsinfer(home / "run", tmp_path / "out", home / "scores")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config.keys() == {
        *("spec_version", "architecture", "num_classes", "class_names"),
        *("patch_size_pixels", "spacing_um_px", "transform"),
    }
    assert (config["spec_version"], config["num_classes"]) == ("1.0", len(config["class_names"]))
    assert (config["patch_size_pixels"], config["spacing_um_px"]) == (48, 0.5)
    assert [step["name"] for step in config["transform"]] == ["Resize", "ToTensor", "Normalize"]
    assert (tmp_path / "out" / "torchscript_model.pt").is_file()
    assert (tmp_path / "out" / "README.md").is_file()


def test_what_is_no_classifier_is_refused(home: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"--to wsinfer needs classes: give the evaluation of this run with --scores"):
        export_wsinfer(home / "run", tmp_path / "out", None)
    export_wsinfer(home / "run", tmp_path / "out", home / "scores")
    with pytest.raises(UserError, match=r"torchscript_model.pt is there already and is not overwritten. Give another"):
        export_wsinfer(home / "run", tmp_path / "out", home / "scores")
    judged = load_config(EvaluateConfig, None, [*JUDGED, "folds.number=2", "leakage.allow=true"])
    evaluate(home / "embeddings", tmp_path / "folds", judged, device="cpu")
    with pytest.raises(UserError, match=r"folds was evaluated with --folds or align. Evaluate once more without"):
        export_wsinfer(home / "run", tmp_path / "other", tmp_path / "folds")


def turn_labels(embeddings: Embeddings) -> None:
    """Give every patch of the embeddings the next class as its label."""
    classes = sorted(set(embeddings.table.column("label").tolist()))
    relabel(embeddings, lambda patient, split, label: classes[(classes.index(label) + 1) % len(classes)])


def name_patches(home: Path, classes: tuple[str, str]) -> None:
    """Give every patch a name of one's own, by its patient."""
    made = Embeddings.load(home / "embeddings")
    names = np.array([classes[patient[-1] in "02468"] for patient in made.table.column("patient")], object)
    given = GivenNames.none(len(names)).change(np.arange(len(names)), [names, "patch", None])
    save_labels(made.path, "mine", made.table, made.info.slides, given)


def change_the_embeddings(home: Path) -> None:
    turn_labels(Embeddings.load(home / "embeddings"))


def change_the_bank(home: Path) -> None:
    turn_labels(Embeddings.load(home / "bank"))


def change_the_names(home: Path) -> None:
    name_patches(home, ("first", "other"))


def change_the_store(home: Path) -> None:
    """The cohort's labels change, and `prepare` takes that over."""
    cohort = home / "cohort.csv"
    text = cohort.read_text()
    cohort.write_text(text.replace("dense-round", "x").replace("large-oval", "dense-round").replace("x", "large-oval"))
    split = ["split.fractions={train: 0.6, test: 0.4}", "grid.size_px=48"]
    prepare(cohort, home / "store", load_config(PrepareConfig, None, split), workers=0)


@pytest.mark.parametrize(
    ("change", "label", "said"),
    [
        (change_the_embeddings, "label", "the embeddings .*embeddings are not those that .*judged was made from"),
        (change_the_bank, "label", "the bank .*bank are not those that .*judged was made from"),
        (change_the_names, "mine", "the labels 'mine' of .*embeddings are not those that .*judged was made from"),
        (change_the_store, "label", "judged was made of other patches or labels than .*store holds now"),
    ],
)
def test_a_classifier_is_fitted_to_nothing_that_changed_since_the_evaluation(
    change: Callable[[Path], None], label: str, said: str, home: Path, tmp_path: Path
) -> None:
    """Labels that changed since would make another classifier under the numbers of the old one, and say nothing."""
    shutil.copytree(home, tmp_path / "home")
    home = tmp_path / "home"
    shutil.copytree(home / "embeddings", home / "bank")
    name_patches(home, ("other", "first"))
    judged = load_config(EvaluateConfig, None, [*JUDGED, f"label={label}"])
    bank = home / "bank" if label == "label" else None
    evaluate(home / "embeddings", home / "judged", judged, bank=bank, device="cpu")
    export_wsinfer(home / "run", tmp_path / "before", home / "judged")
    change(home)
    with pytest.raises(UserError, match=said):
        export_wsinfer(home / "run", tmp_path / "after", home / "judged")
    assert not (tmp_path / "after").exists()
    if change is change_the_store:
        with pytest.raises(UserError, match=said):
            heatmap(home / "store", home / "judged", "any", tmp_path / "heat.png")


def test_names_that_people_gave_become_a_classifier_and_changed_ones_do_not(home: Path, tmp_path: Path) -> None:
    made = Embeddings.load(home / "embeddings")
    sets = LabelSets(made.path, made.table, made.info.slides, lambda _: None)
    rows = np.arange(len(made))
    sets.give("mine", np.where(rows % 3 == 0, "gland", "other").astype(object), rows, given_by="slide")
    judged = load_config(EvaluateConfig, None, [*JUDGED, "label=mine"])
    evaluate(home / "embeddings", tmp_path / "scores", judged, device="cpu")
    export_wsinfer(home / "run", tmp_path / "out", tmp_path / "scores")
    assert json.loads((tmp_path / "out" / "config.json").read_text())["class_names"] == ["gland", "other"]
    sets.give("mine", "gland", rows[1:2], given_by="slide")
    with pytest.raises(UserError, match=r"the labels 'mine' of .* are not those that"):
        export_wsinfer(home / "run", tmp_path / "again", tmp_path / "scores")

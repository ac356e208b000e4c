import sys

import pytest
import torch

from hidisc import objectives
from hidisc.ground.errors import UserError
from hidisc.models.encoder import build_encoder
from hidisc.objectives.objective import Objective, Rows, find_objective, list_objectives, load_settings
from hidisc.settings.train import HeadConfig

SHIPPED = ["byol", "dino", "hidisc", "simclr", "simsiam", "supcon", "supervised", "vicreg"]

NEW = '''
from typing import Literal

from pydantic import Field

from hidisc.settings.config import Config
from hidisc.objectives.objective import Losses, Objective


class Settings(Config):
    name: Literal["shrink"] = "shrink"
    strength: float = Field(0.5, ge=0)
    """How much."""


class Loss(Objective):
    def __init__(self, settings, encoder, levels, classes):
        super().__init__(settings, encoder, levels, classes)
        self.strength = settings.strength

    def forward(self, encoder, images, rows):
        z = encoder.project(images)
        return Losses(self.strength * z.square().mean(), {}, z.detach())
'''


@pytest.fixture
def new_file(tmp_path, monkeypatch):
    (tmp_path / "shrink.py").write_text(NEW)
    monkeypatch.setattr(objectives, "__path__", [*objectives.__path__, str(tmp_path)])
    yield
    sys.modules.pop("hidisc.objectives.shrink", None)


def test_every_file_with_settings_is_an_objective():
    assert list_objectives() == SHIPPED


@pytest.mark.parametrize("name", SHIPPED)
def test_each_is_found_by_its_name_and_knows_it(name):
    settings = load_settings({"name": name})
    assert settings.name == name
    loss = find_objective(settings)
    assert loss.__module__ == f"hidisc.objectives.{name}"
    assert loss.needs_labels == (name in ("supcon", "supervised"))
    assert loss.uses_head == (name != "supervised")


def test_a_new_objective_is_a_new_file_and_nothing_else(new_file):
    assert list_objectives() == sorted([*SHIPPED, "shrink"])
    settings = load_settings({"name": "shrink", "strength": 2})
    with pytest.raises(UserError, match=r"^objective:\n  strength = -1: "):
        load_settings({"name": "shrink", "strength": -1})
    encoder = build_encoder("test_resnet", {}, HeadConfig(dim=4), channels=3, size_px=32)
    objective = find_objective(settings)(settings, encoder, ("patch",), ())
    rows = Rows(torch.zeros(2, 1, dtype=torch.long), torch.full((2,), -1), 2)
    losses = objective(encoder, torch.rand(2, 3, 32, 32), rows)
    losses.total.backward()
    assert losses.total.item() == pytest.approx(2 * float(losses.embeddings.square().mean()))


def test_hidisc_is_the_default_with_the_paper_s_values():
    settings = load_settings({})
    assert settings.model_dump() == {
        "name": "hidisc",
        "weights": {},
        "across": {},
        "temperature": 0.7,
        "reduction": "mean",
    }


def test_every_value_is_spelled_out():
    assert load_settings({"name": "vicreg", "variance": 10}).model_dump() == {
        "name": "vicreg",
        "weights": {},
        "across": {},
        "invariance": 25,
        "variance": 10,
        "covariance": 1,
    }


def test_an_unknown_name_is_refused_with_those_there_are():
    sentence = r"^objective\.name = 'moco' is none of byol, dino, hidisc, simclr, .*, vicreg\. Give one of these\.$"
    with pytest.raises(UserError, match=sentence):
        load_settings({"name": "moco"})
    with pytest.raises(UserError, match=r"^objective\.name = 'gather' is none of"):
        load_settings({"name": "gather"})


def test_an_unknown_setting_is_refused_with_the_nearest_one():
    with pytest.raises(
        UserError, match=r"^objective:\n  'temprature' is not a setting\. Did you mean 'temperature'\?$"
    ):
        load_settings({"name": "simclr", "temprature": 0.1})


@pytest.mark.parametrize(
    ("values", "setting"),
    [
        ({"name": "hidisc", "temperature": 0}, "temperature"),
        ({"name": "hidisc", "temperature": {"patient": 0.5, "slide": -1}}, "temperature"),
        ({"name": "hidisc", "reduction": "median"}, "reduction"),
        ({"name": "byol", "momentum": 1.5}, "momentum"),
        ({"name": "simsiam", "predictor_dim": 0}, "predictor_dim"),
        ({"name": "supervised", "label_smoothing": 1}, "label_smoothing"),
        ({"name": "vicreg", "covariance": -1}, "covariance"),
    ],
)
def test_values_out_of_range_are_refused_by_name(values, setting):
    with pytest.raises(UserError, match=rf"^objective:\n  {setting} = "):
        load_settings(values)


def test_what_objectives_share_computes_nothing_itself():
    encoder = build_encoder("test_resnet", {}, None, channels=3, size_px=32)
    base = Objective(None, encoder, ("patch",), ())
    base.after_step(encoder, 0.5)
    with pytest.raises(NotImplementedError):
        base(encoder, torch.rand(2, 3, 32, 32), None)

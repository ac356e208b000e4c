"""An adversary: its classifier learns to predict a column, and the encoder the opposite, ever more strongly."""

from math import exp
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from hidisc.ground.errors import UserError
from hidisc.models.encoder import Encoder, build_encoder
from hidisc.objectives.adversary import Adversary
from hidisc.objectives.objective import Objective, Rows, find_objective, load_settings
from hidisc.settings.train import HeadConfig
from tests.training.stores import make_store, train

LEVELS = ("patient", "slide", "patch")
CODES = torch.tensor([-1, 0, 1, 1, -1, 2, 0])
"""Of the rows of a table, of which five are learned from."""
ROWS = Rows(torch.tensor([[0, 0, 1], [0, 0, 1], [0, 1, 2], [0, 1, 2], [1, 2, 5], [1, 2, 5]]), torch.full((6,), -1), 2)


def make(name: str, weight: float = 0.3) -> tuple[Encoder, Objective, Adversary]:
    torch.manual_seed(0)
    settings = load_settings({"name": name} | ({"predictor_dim": 8} if name in ("byol", "simsiam") else {}))
    encoder = build_encoder("test_vit", {}, HeadConfig(dim=6), channels=3, size_px=32)
    inner = find_objective(settings)(settings, encoder, LEVELS, ())
    return encoder, inner, Adversary(inner, encoder, CODES, 3, weight)


def gradients(total: Tensor, parameters: list[Tensor]) -> list[Tensor]:
    return list(torch.autograd.grad(total, parameters, retain_graph=True, materialize_grads=True))


@pytest.mark.parametrize("name", ["hidisc", "byol", "vicreg"])
@pytest.mark.parametrize("progress", [0.0, 0.1, 1.0])
def test_the_encoder_learns_the_opposite_of_the_classifier(name: str, progress: float) -> None:
    encoder, inner, adversary = make(name)
    adversary.after_step(encoder, progress)
    images = torch.rand(6, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    ours = adversary(encoder, images, ROWS)

    plain = inner(encoder, images, ROWS)
    targets = torch.tensor([0, 0, 1, 1, 2, 2])
    entropy = F.cross_entropy(adversary.classifier(encoder.features(images)), targets)
    strength = 2 / (1 + exp(-10 * progress)) - 1
    assert ours.total.item() == pytest.approx((plain.total + 0.3 * entropy).item(), rel=1e-6)
    assert ours.parts["adversary"].item() == pytest.approx(entropy.item(), rel=1e-6)
    assert set(ours.parts) == {*plain.parts, "adversary", "adversary_accuracy"}

    body, head = list(encoder.parameters()), list(adversary.classifier.parameters())
    pairs = zip(gradients(plain.total, body), gradients(entropy, body), strict=True)
    expected = [own - 0.3 * strength * other for own, other in pairs]
    for found, slow in zip(gradients(ours.total, body), expected, strict=True):  # float32, so 1e-5 of the largest
        torch.testing.assert_close(found, slow, rtol=1e-4, atol=1e-5 * max(1.0, float(slow.abs().max())))
    for found, slow in zip(gradients(ours.total, head), gradients(0.3 * entropy, head), strict=True):
        torch.testing.assert_close(found, slow, rtol=1e-5, atol=1e-7)


def test_it_leaves_nothing_in_the_encoder_s_file() -> None:
    encoder, _, _ = make("hidisc")
    plain = build_encoder("test_vit", {}, HeadConfig(dim=6), channels=3, size_px=32)
    assert encoder.state_dict().keys() == plain.state_dict().keys()


def test_an_encoder_with_nothing_behind_its_embedding_has_no_adversary() -> None:
    _, inner, _ = make("hidisc")
    bare = build_encoder("test_vit", {}, None, channels=3, size_px=32)
    with pytest.raises(ValueError, match=r"^an adversary needs an encoder with a head or a classifier, which is given"):
        Adversary(inner, bare, CODES, 3, 0.3)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_store(tmp_path_factory.mktemp("tiny"))


def test_a_classifier_that_is_not_misled_learns_the_column(store: Path, tmp_path: Path) -> None:
    """With a weight that the encoder does not notice, the classifier finds out who is who."""
    changes = ("adversary.column=patient", "views.ops=[]", "optim.steps=60", "checkpoint.every=100", "batch.images=48")
    rows = train(store, tmp_path / "run", *changes, "adversary.weight=1e-6", "optim.learning_rate=0.01").metrics()
    assert rows[-1]["adversary"] < rows[0]["adversary"] - 0.5
    assert rows[-1]["adversary_accuracy"] > 0.5


@pytest.mark.parametrize(
    ("column", "sentence"),
    [
        ("scanner", "adversary.column = 'scanner' is no column of nuisances in this store. Give one of patient,"),
        ("label", "adversary.column = 'label' is no column of nuisances in this store. Give one of patient, slide,"),
        ("site", "adversary.column = 'site' cannot be predicted: some patches to learn from have none. Fill it,"),
        ("split", "adversary.column = 'split' cannot be predicted: all patches to learn from have the same. Fill it,"),
    ],
)
def test_columns_that_cannot_be_used(store: Path, tmp_path: Path, column: str, sentence: str) -> None:
    with pytest.raises(UserError) as caught:
        train(store, tmp_path / "run", f"adversary.column={column}")
    assert str(caught.value).startswith(sentence)

"""Each rival through its real class on a real, tiny encoder: plain against lightly, hierarchical against slow loops."""

from copy import deepcopy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from lightly.loss import NegativeCosineSimilarity, NTXentLoss, VICRegLoss
from lightly.models.modules import BYOLPredictionHead, SimSiamPredictionHead
from lightly.models.utils import update_momentum
from lightly.utils.scheduler import cosine_schedule
from pytorch_metric_learning.losses import SupConLoss
from torch import Tensor, nn

from hidisc.ground.errors import UserError
from hidisc.models.encoder import Encoder, build_encoder
from hidisc.objectives.objective import Losses, Objective, Rows, find_objective, load_settings
from hidisc.settings.train import HeadConfig
from tests import oracles

LEVELS = ("patient", "slide", "patch")
# One slide drawn twice (rows 0-3), a patch drawn twice (rows 4-7), a patient of one patch (rows 8-9).
RAGGED = torch.tensor(
    [[0, 0, 0], [0, 0, 0], [0, 0, 1], [0, 0, 1], [1, 1, 2], [1, 1, 2], [1, 1, 2], [1, 1, 2], [2, 2, 3], [2, 2, 3]]
)
PAIRS = torch.arange(10)[:, None] // 2
LABELS = torch.tensor([0, 0, 1, 1, 0, 0, 2, 2, 2, 2])
WEIGHTS = {"patient": 0.5, "slide": 2.0}
SMALL = {"simsiam": {"predictor_dim": 12}, "byol": {"predictor_dim": 12}}


def make(
    name: str, levels: tuple[str, ...] = ("patch",), classes: tuple[str, ...] = (), dim: int = 6, **values: Any
) -> tuple[Encoder, Objective]:
    torch.manual_seed(0)
    settings = load_settings({"name": name} | SMALL.get(name, {}) | values)
    loss = find_objective(settings)
    head = HeadConfig(dim=dim) if loss.uses_head else None
    encoder = build_encoder("test_resnet", {}, head, channels=3, size_px=32, classes=classes)
    return encoder, loss(settings, encoder, levels, classes)


def images(rows: int = 10, seed: int = 0) -> Tensor:
    return torch.rand(rows, 3, 32, 32, generator=torch.Generator().manual_seed(seed))


def rows(ancestry: Tensor, views: int = 2) -> Rows:
    return Rows(ancestry, LABELS, views)


def gradients(total: Tensor, *modules: nn.Module) -> list[Tensor]:
    parameters = [p for module in modules for p in module.parameters() if p.requires_grad]
    return list(torch.autograd.grad(total, parameters, retain_graph=True, materialize_grads=True))


def assert_same(ours: Losses, theirs: Tensor, *modules: nn.Module) -> None:
    """Value, and gradient of every weight; float32 through a network, so 1e-5 of the largest."""
    assert ours.total.item() == pytest.approx(theirs.item(), rel=1e-5, abs=1e-6)
    for mine, other in zip(gradients(ours.total, *modules), gradients(theirs, *modules), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-5 * max(1.0, float(other.abs().max())))


def plain_theirs(name: str, encoder: Encoder, objective: Objective) -> Tensor:
    """Lightly's value for the same images, through the same network."""
    z = encoder.project(images())
    cosine = NegativeCosineSimilarity()
    if name == "simclr":
        return NTXentLoss(0.7)(z[::2], z[1::2])
    if name == "vicreg":
        return VICRegLoss()(z[::2], z[1::2])
    p = objective.predictor(z)
    if name == "simsiam":
        return 0.5 * (cosine(p[::2], z[1::2].detach()) + cosine(p[1::2], z[::2].detach()))
    with torch.no_grad():
        target = objective.target.project(images())
    return 2 + cosine(p[::2], target[1::2]) + cosine(p[1::2], target[::2])  # mean of 2 - 2 cos over both directions


@pytest.mark.parametrize("name", ["simclr", "simsiam", "byol", "vicreg"])
def test_plain_form_is_lightly_s(name):
    encoder, objective = make(name)
    if name == "byol":  # a target of its own, as after some steps
        torch.manual_seed(1)
        objective.target.head[0].reset_parameters()
    ours = objective(encoder, images(), rows(PAIRS))
    assert_same(ours, plain_theirs(name, encoder, objective), encoder, objective)


# Two slides of the first patient, the second slide drawn twice; one slide of the second.
ACROSS = torch.tensor(
    [[0, 0, 0], [0, 0, 0], [0, 1, 1], [0, 1, 1], [0, 1, 2], [0, 1, 2], [1, 2, 3], [1, 2, 3], [1, 2, 4], [1, 2, 4]]
)


@pytest.mark.parametrize("name", ["hidisc", "simsiam", "byol", "vicreg"])
def test_positives_of_other_slides_only_are_the_slow_loop_s(name):
    """The patient level alone counts, so that all of the loss (but VICReg's other terms) is what is asked for here."""
    weights, across = {"patient": 1.0, "slide": 0.0, "patch": 0.0}, {"patient": "slide"}
    values = {"variance": 0.0, "covariance": 0.0, "invariance": 1.0} if name == "vicreg" else {}
    encoder, objective = make(name, LEVELS, weights=weights, across=across, **values)
    z = encoder.project(images())
    if name == "hidisc":
        theirs = oracles.hidisc(F.normalize(z, dim=1), ACROSS, [1, 0, 0], 0.7, "mean", [1, None, None])[0]
    elif name == "vicreg":
        distances = torch.stack([torch.stack([((a - b) ** 2).mean() for b in z]) for a in z])
        theirs = oracles.mean_over_pairs(ACROSS, 0, distances, inner=1)
    elif name == "simsiam":
        theirs = oracles.mean_over_pairs(ACROSS, 0, -oracles.cosines(objective.predictor(z), z.detach()), inner=1)
    else:
        target = objective.target.project(images()).detach()
        theirs = oracles.mean_over_pairs(ACROSS, 0, 2 - 2 * oracles.cosines(objective.predictor(z), target), inner=1)
    assert_same(objective(encoder, images(), rows(ACROSS)), theirs, encoder, objective)


@pytest.mark.parametrize("across", [{"site": "slide"}, {"patient": "patient"}, {"slide": "patient"}], ids=str)
def test_levels_that_are_not_finer_are_refused(across):
    with pytest.raises(UserError) as caught:
        make("hidisc", LEVELS, across=across)
    assert str(caught.value) == (
        f"objective.across = {across}: from coarse to fine, the levels of this run are patient, slide, patch. Give a "
        "level and a finer one: --set 'objective.across={patient: slide}'."
    )


def hierarchical_oracle(name: str, encoder: Encoder, objective: Objective, weights: list[float]) -> Tensor:
    z = encoder.project(images())
    if name == "hidisc":
        return oracles.hidisc(F.normalize(z, dim=1), RAGGED, weights, 0.7)[0]
    if name == "vicreg":
        return oracles.vicreg(z, RAGGED, weights, views=2)
    p = objective.predictor(z)
    if name == "simsiam":
        return oracles.simsiam(p, z, RAGGED, weights)
    return oracles.byol(p, objective.target.project(images()), RAGGED, weights)


@pytest.mark.parametrize("weights", [{}, WEIGHTS, {"slide": 0.0}], ids=str)
@pytest.mark.parametrize("name", ["hidisc", "simsiam", "byol", "vicreg"])
def test_hierarchical_form_is_the_slow_loop_s(name, weights):
    encoder, objective = make(name, LEVELS, weights=weights)
    ours = objective(encoder, images(), rows(RAGGED))
    each = [weights.get(level, 1.0) for level in LEVELS]
    assert_same(ours, hierarchical_oracle(name, encoder, objective, each), encoder, objective)
    counted = [level for level, weight in zip(LEVELS, each, strict=True) if weight]
    assert list(ours.parts)[: len(counted)] == counted
    assert "slide" in ours.parts or weights.get("slide") == 0


@pytest.mark.parametrize("name", ["hidisc", "simsiam", "byol", "vicreg"])
def test_parts_are_the_levels_unweighted_and_without_gradient(name):
    encoder, objective = make(name, LEVELS, weights=WEIGHTS)
    ours = objective(encoder, images(), rows(RAGGED))
    parts = {key: float(value) for key, value in ours.parts.items()}
    weighted = sum(WEIGHTS.get(level, 1.0) * parts[level] for level in LEVELS)
    if name == "vicreg":
        weighted = 25 * weighted + 25 * parts["variance"] + parts["covariance"]
    assert ours.total.item() == pytest.approx(weighted, rel=1e-5)
    assert not any(value.requires_grad for value in [*ours.parts.values(), ours.embeddings])
    assert ours.embeddings.shape == (10, 6)


@pytest.mark.parametrize("name", ["hidisc", "simsiam", "byol", "vicreg"])
def test_three_views_and_two_levels(name):
    encoder, objective = make(name, ("slide", "patch"))
    ancestry = torch.tensor([[0, 0]] * 3 + [[0, 1]] * 3 + [[1, 2]] * 3)
    z = encoder.project(images(9))
    ours = objective(encoder, images(9), Rows(ancestry, LABELS[:9], 3))
    if name == "hidisc":
        theirs = oracles.hidisc(F.normalize(z, dim=1), ancestry, [1, 1], 0.7)[0]
    elif name == "vicreg":
        theirs = oracles.vicreg(z, ancestry, [1, 1], views=3)
    elif name == "simsiam":
        theirs = oracles.simsiam(objective.predictor(z), z, ancestry, [1, 1])
    else:
        theirs = oracles.byol(objective.predictor(z), objective.target.project(images(9)), ancestry, [1, 1])
    assert_same(ours, theirs, encoder, objective)


@pytest.mark.parametrize("name", ["hidisc", "simclr", "simsiam", "byol", "vicreg", "supcon", "supervised"])
def test_mixed_precision_gives_nearly_the_same(name):
    encoder, objective = make(name, LEVELS, ("a", "b", "c") if name == "supervised" else ())
    plain = objective(encoder, images(), rows(RAGGED))
    with torch.autocast("cpu", dtype=torch.float16):
        mixed = objective(encoder, images(), rows(RAGGED))
    assert mixed.total.dtype == mixed.embeddings.dtype == torch.float32
    assert mixed.total.item() == pytest.approx(plain.total.item(), rel=0.02)


@pytest.mark.parametrize("name", ["hidisc", "simclr", "vicreg", "supcon"])
def test_mixed_precision_ends_where_the_loss_begins(name):
    encoder, objective = make(name, LEVELS)
    z = 3 * encoder.project(images()).detach()
    encoder.project = lambda _: z
    plain = objective(encoder, images(), rows(RAGGED))
    with torch.autocast("cpu", dtype=torch.float16):
        mixed = objective(encoder, images(), rows(RAGGED))
    assert mixed.total.item() == pytest.approx(plain.total.item(), rel=1e-6)


def test_simclr_looks_at_the_finest_level_only():
    encoder, objective = make("simclr", LEVELS)
    ours = objective(encoder, images(), rows(RAGGED))
    z = F.normalize(encoder.project(images()), dim=1)
    assert_same(ours, oracles.hidisc(z, RAGGED[:, -1:], [1], 0.7)[0], encoder)
    assert list(ours.parts) == ["patch"]


@pytest.mark.parametrize("temperature", [0.07, 0.7])
def test_supcon_is_pytorch_metric_learning_s(temperature):
    encoder, objective = make("supcon", LEVELS, temperature=temperature)
    ours = objective(encoder, images(), rows(RAGGED))
    assert_same(ours, SupConLoss(temperature)(encoder.project(images()), LABELS), encoder)
    assert list(ours.parts) == ["label"]


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_supervised_is_torch_s_cross_entropy(smoothing):
    encoder, objective = make("supervised", LEVELS, ("glioma", "meningioma", "normal"), label_smoothing=smoothing)
    ours = objective(encoder, images(), rows(RAGGED))
    logits = encoder.classifier(encoder.backbone(images()))
    assert_same(ours, nn.CrossEntropyLoss(label_smoothing=smoothing)(logits, LABELS), encoder)
    assert float(ours.parts["accuracy"]) == pytest.approx(float((logits.argmax(1) == LABELS).float().mean()))
    assert float(ours.parts["cross_entropy"]) == ours.total.item()
    assert encoder.head is None
    assert list(objective.parameters()) == []  # what is learned is in the encoder, and is saved with it


def test_the_classifier_is_saved_with_the_encoder(tmp_path):
    encoder, _ = make("supervised", LEVELS, ("glioma", "meningioma", "normal"))
    encoder.save(tmp_path)
    loaded = Encoder.load(tmp_path)
    assert loaded.card.classes == ("glioma", "meningioma", "normal")
    features = torch.rand(4, encoder.card.features)
    assert torch.equal(loaded.classify_features(features), encoder.classify_features(features))


def test_an_encoder_without_labels_says_so():
    encoder, _ = make("simclr")
    with pytest.raises(UserError, match=r"^this encoder predicts no labels\. Train one with `--recipe supervised`\.$"):
        encoder.classify_features(torch.rand(1, encoder.card.features))


def test_no_gradient_flows_into_simsiam_s_targets():
    encoder, objective = make("simsiam", LEVELS)
    kept = encoder.project
    seen = []
    encoder.project = lambda x: seen.append(kept(x)) or seen[-1]
    ours = objective(encoder, images(), rows(RAGGED))
    z = seen[0]
    (grad,) = torch.autograd.grad(ours.total, z, retain_graph=True)
    total = oracles.simsiam(objective.predictor(z), z, RAGGED, [1, 1, 1])  # its z.detach() is the target
    (stopped,) = torch.autograd.grad(total, z, retain_graph=True)
    torch.testing.assert_close(grad, stopped, rtol=1e-4, atol=1e-6)
    assert not ours.embeddings.requires_grad


@pytest.mark.parametrize(("name", "theirs"), [("simsiam", SimSiamPredictionHead), ("byol", BYOLPredictionHead)])
def test_predictors_are_built_as_lightly_s(name, theirs):
    _, objective = make(name)
    ours, reference = objective.predictor.state_dict(), theirs(6, 12, 6).layers.state_dict()
    assert {key: value.shape for key, value in ours.items()} == {key: value.shape for key, value in reference.items()}
    assert [type(layer) for layer in objective.predictor] == [type(layer) for layer in theirs(6, 12, 6).layers]


def test_byol_s_target_begins_as_the_encoder_and_learns_nothing_by_gradient():
    encoder, objective = make("byol", LEVELS)
    for slow, quick in zip(objective.target.state_dict().values(), encoder.state_dict().values(), strict=True):
        assert torch.equal(slow, quick)
        assert slow.data_ptr() != quick.data_ptr()
    objective(encoder, images(), rows(RAGGED)).total.backward()
    assert not any(p.requires_grad or p.grad is not None for p in objective.target.parameters())
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in objective.predictor.parameters())
    assert all(p.grad is not None for p in encoder.parameters())


def test_byol_s_total_is_2_minus_2_cos():
    encoder, objective = make("byol")
    objective.predictor = nn.Identity()  # target = encoder: prediction and target of a view are the same vector
    z = F.normalize(encoder.project(images()), dim=1).detach()
    ours = objective(encoder, images(), rows(PAIRS))
    assert ours.total.item() == pytest.approx(float((z[::2] - z[1::2]).square().sum(1).mean()), abs=1e-5)


@pytest.mark.parametrize("start", [0.9, 0.996])
@pytest.mark.parametrize("step", [0, 3, 5, 10])
def test_byol_s_target_moves_as_lightly_says(start, step):
    encoder, objective = make("byol", momentum=start)
    before = deepcopy(objective.target)
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter.add_(torch.randn_like(parameter))
    objective.after_step(encoder, step / 10)
    update_momentum(encoder, before, cosine_schedule(step, 11, start, 1.0))
    for ours, theirs in zip(objective.target.parameters(), before.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


def test_byol_s_momentum_is_the_given_one_at_first_and_1_at_last():
    encoder, objective = make("byol", momentum=0.75)
    at_first = [p.clone() for p in objective.target.parameters()]
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter.add_(1)
    objective.after_step(encoder, 1.0)
    assert all(torch.equal(p, q) for p, q in zip(objective.target.parameters(), at_first, strict=True))
    objective.after_step(encoder, 0.0)
    for parameter, first in zip(objective.target.parameters(), at_first, strict=True):
        torch.testing.assert_close(parameter, first + 0.25, rtol=0, atol=1e-6)


def test_other_objectives_do_nothing_after_a_step():
    for name in ("hidisc", "simclr", "simsiam", "vicreg", "supcon"):
        encoder, objective = make(name)
        before = [p.clone() for module in (encoder, objective) for p in module.parameters()]
        objective.after_step(encoder, 0.5)
        after = [p for module in (encoder, objective) for p in module.parameters()]
        assert all(torch.equal(p, q) for p, q in zip(before, after, strict=True))


def test_vicreg_weights_its_three_terms():
    encoder, objective = make("vicreg", LEVELS, invariance=2.0, variance=3.0, covariance=5.0)
    ours = objective(encoder, images(), rows(RAGGED))
    z = encoder.project(images())
    assert_same(ours, oracles.vicreg(z, RAGGED, [1, 1, 1], 2, invariance=2, variance=3, covariance=5), encoder)


def test_weights_of_levels_that_are_not_in_the_batch_are_refused():
    for name in ("hidisc", "simsiam", "byol", "vicreg"):
        with pytest.raises(UserError, match=r"^objective\.weights = \{'patient': 1\.0\}: the levels of this run are"):
            make(name, ("slide", "patch"), weights={"patient": 1.0})

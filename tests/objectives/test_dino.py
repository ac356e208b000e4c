"""DINO through its real class on a real, tiny encoder: plain against lightly, hierarchical against slow loops."""

from copy import deepcopy
from math import log
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from hidisc.ground.errors import UserError
from hidisc.models.encoder import Encoder, Images, build_encoder
from hidisc.objectives.dino import Loss, compare, measure_entropy, sinkhorn
from hidisc.objectives.objective import Losses, Rows, load_settings, spread_out
from hidisc.settings.train import HeadConfig
from tests import oracles

LEVELS = ("patient", "slide", "patch")
PATCHES, K = 5, 12
# One slide drawn twice (patches 0 and 1), a patch drawn twice (2 and 3), a patient of one patch.
RAGGED = torch.tensor([[0, 0, 0], [0, 0, 1], [1, 1, 2], [1, 1, 2], [2, 2, 3]])
# Two slides of the first patient, one of which has two patches; one slide of the second.
ACROSS = torch.tensor([[0, 0, 0], [0, 1, 1], [0, 1, 2], [1, 2, 3], [1, 2, 4]])


def make(levels: tuple[str, ...] = ("patch",), **values: Any) -> tuple[Encoder, Loss]:
    """A student, and a teacher that is already another one and has a centre."""
    torch.manual_seed(0)
    settings = load_settings({"name": "dino", "prototypes": K, "freeze_prototypes": 0.0} | values)
    encoder = build_encoder("test_resnet", {}, HeadConfig(dim=6), channels=3, size_px=32)
    objective = Loss(settings, encoder, levels, ())  # type: ignore[arg-type]
    with torch.no_grad():
        for parameter in (*objective.teacher.head.parameters(), *objective.teacher_prototypes.parameters()):
            parameter.add_(0.3 * torch.randn_like(parameter))
        objective.centre.copy_(0.1 * torch.randn(K))
    return encoder, objective


def draw(local: int = 0) -> tuple[Images, int]:
    """Two global views of every patch, and local ones; how many views there are of each."""
    rng = torch.Generator().manual_seed(0)
    whole = torch.rand(PATCHES, 2, 3, 32, 32, generator=rng)
    if not local:
        return whole.flatten(0, 1), 2
    return (whole, torch.rand(PATCHES, local, 3, 16, 16, generator=rng)), 2 + local


def rows_of(ancestry: Tensor, views: int) -> Rows:
    ids = ancestry.repeat_interleave(views, 0)
    return Rows(ids, torch.full((len(ids),), -1), views, 2)


def say(encoder: Encoder, objective: Loss, images: Images) -> tuple[Tensor, Tensor]:
    """What the teacher (G, K) and the student (N, K) say, before centre and temperature."""
    whole = images if isinstance(images, Tensor) else images[0].flatten(0, 1)
    with torch.no_grad():
        teacher = compare(objective.teacher.project(whole), objective.teacher_prototypes.weight)
    return teacher, compare(encoder.project(images), objective.prototypes.weight)


def assert_same(ours: Losses, theirs: Tensor, encoder: Encoder, objective: Loss) -> None:
    """Value to 1e-6; gradient of every weight, float32 through a network, to 1e-5 of the largest."""
    assert ours.total.item() == pytest.approx(theirs.item(), rel=1e-6)
    weights = [*encoder.parameters(), *objective.prototypes.parameters()]
    found, expected = (torch.autograd.grad(total, weights, retain_graph=True) for total in (ours.total, theirs))
    assert max(float(grad.abs().max()) for grad in expected) > 1e-3
    for mine, other in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-5 * max(1.0, float(other.abs().max())))


# Two views, and local ones: DINO itself


@pytest.mark.parametrize("local", [0, 1, 3])
def test_patch_level_and_centre_are_lightly_s(local: int) -> None:
    lightly = pytest.importorskip("lightly.loss", reason="lightly, the reference, is not installed")
    encoder, objective = make(warmup=0.0, teacher_temperature=[0.04, 0.05], centre_momentum=0.8)
    images, views = draw(local)
    teacher, student = say(encoder, objective, images)
    reference = lightly.DINOLoss(K, teacher_temp=0.05, student_temp=0.1, center_momentum=0.8)
    reference.center.copy_(objective.centre)
    theirs = reference([teacher[v::2] for v in range(2)], [student[v::views] for v in range(views)])
    ours = objective(encoder, images, rows_of(torch.arange(PATCHES)[:, None], views))
    assert_same(ours, theirs, encoder, objective)
    torch.testing.assert_close(objective.centre, reference.center.flatten(), rtol=0, atol=1e-6)


def test_the_centre_does_not_move_in_evaluation() -> None:
    encoder, objective = make()
    images, views = draw()
    before = objective.centre.clone()
    objective.eval()(encoder, images, rows_of(torch.arange(PATCHES)[:, None], views))
    assert torch.equal(objective.centre, before)
    objective.train()(encoder, images, rows_of(torch.arange(PATCHES)[:, None], views))
    assert not torch.equal(objective.centre, before)


def test_sinkhorn_is_lightly_s() -> None:
    swav = pytest.importorskip("lightly.loss.swav_loss", reason="lightly, the reference, is not installed")
    logits = torch.rand(20, 7, generator=torch.Generator().manual_seed(0))
    theirs = swav.sinkhorn(logits, iterations=3, epsilon=0.05)
    torch.testing.assert_close(sinkhorn(logits / 0.05), theirs, atol=1e-6, rtol=0)


def test_sinkhorn_uses_prototypes_evenly_and_knows_no_overflow() -> None:
    logits = torch.rand(64, 4, generator=torch.Generator().manual_seed(0)) + torch.tensor([0, 0, 0, 3.0])
    assert (F.softmax(logits / 0.5, dim=1).argmax(1) == 3).all(), "one prototype has them all"
    target = sinkhorn(logits / 0.5)
    torch.testing.assert_close(target.sum(dim=1), torch.ones(64))
    assert target.mean(dim=0).max() < 0.3
    assert sinkhorn(1e4 * logits).isfinite().all()


def test_sinkhorn_in_place_of_the_centre() -> None:
    encoder, objective = make(balance="sinkhorn", warmup=0.0)
    images, views = draw(1)
    before = objective.centre.clone()
    teacher, student = say(encoder, objective, images)
    rows = rows_of(torch.arange(PATCHES)[:, None], views)
    theirs = oracles.dino(sinkhorn(teacher / 0.07), student, rows.ancestry, rows.list_global().flatten(), [1.0])
    assert_same(objective(encoder, images, rows), theirs, encoder, objective)
    assert torch.equal(objective.centre, before)


# Relatives


@pytest.mark.parametrize("local", [0, 2])
@pytest.mark.parametrize("weights", [{}, {"patient": 0.5, "slide": 2.0}, {"slide": 0.0}], ids=str)
def test_hierarchical_form_is_the_slow_loop_s(weights: dict[str, float], local: int) -> None:
    encoder, objective = make(LEVELS, weights=weights, warmup=0.0)
    images, views = draw(local)
    rows = rows_of(RAGGED, views)
    teacher, student = say(encoder, objective, images)
    target = F.softmax((teacher - objective.centre) / 0.07, dim=1)
    each = [weights.get(level, 1.0) for level in LEVELS]
    ours, which = objective(encoder, images, rows), rows.list_global().flatten()
    assert_same(ours, oracles.dino(target, student, rows.ancestry, which, each), encoder, objective)
    counted = [level for level, weight in zip(LEVELS, each, strict=True) if weight]
    assert list(ours.parts) == [*counted, "teacher_entropy", "prototype_entropy"]
    parts = sum(weight * float(ours.parts.get(level, 0)) for level, weight in zip(LEVELS, each, strict=True))
    assert ours.total.item() == pytest.approx(parts, rel=1e-6)
    assert ours.embeddings.shape == (2 * PATCHES, 6)
    assert not any(value.requires_grad for value in (*ours.parts.values(), ours.embeddings))


def test_positives_of_other_slides_only_are_the_slow_loop_s() -> None:
    weights, across = {"patient": 1.0, "slide": 0.0, "patch": 0.0}, {"patient": "slide"}
    encoder, objective = make(LEVELS, weights=weights, across=across, warmup=0.0)
    images, views = draw(1)
    rows = rows_of(ACROSS, views)
    teacher, student = say(encoder, objective, images)
    target, which = F.softmax((teacher - objective.centre) / 0.07, dim=1), rows.list_global().flatten()
    theirs = oracles.dino(target, student, rows.ancestry, which, [1, 0, 0], across=[1, None, None])
    assert_same(objective(encoder, images, rows), theirs, encoder, objective)


def test_one_patch_per_patient_is_the_patch_level_thrice() -> None:
    """Where nobody has relatives, every level is that of the patch, and the loss is DINO's."""
    images, views = draw(2)
    losses = {}
    for levels in (LEVELS, ("patch",)):
        encoder, objective = make(levels)
        ids = torch.arange(PATCHES)[:, None].expand(-1, len(levels))
        losses[levels] = objective(encoder, images, rows_of(ids, views)).total.item()
    assert losses[LEVELS] == pytest.approx(3 * losses["patch",], rel=1e-6)


# What changes over a run


@pytest.mark.parametrize(("progress", "temperature"), [(0.0, 0.04), (0.1, 0.05), (0.3, 0.07), (1.0, 0.07)])
def test_sharpening_has_its_warm_up(progress: float, temperature: float) -> None:
    encoder, objective = make(momentum=1.0)
    objective.after_step(encoder, progress)
    assert float(objective._teacher_temperature()) == pytest.approx(temperature, rel=1e-5)


def test_prototypes_learn_after_the_first_steps() -> None:
    encoder, objective = make(freeze_prototypes=0.25)
    images, views = draw()
    rows = rows_of(torch.arange(PATCHES)[:, None], views)
    for progress, learns in ((0.0, False), (0.2, False), (0.25, True), (1.0, True)):
        objective.progress.fill_(progress)
        (grad,) = torch.autograd.grad(objective(encoder, images, rows).total, objective.prototypes.weight)
        assert bool(grad.abs().max() > 0) == learns


@pytest.mark.parametrize("step", [0, 3, 10])
def test_the_teacher_moves_as_lightly_says(step: int) -> None:
    utils = pytest.importorskip("lightly.models.utils", reason="lightly, the reference, is not installed")
    scheduler = pytest.importorskip("lightly.utils.scheduler", reason="lightly, the reference, is not installed")
    encoder, objective = make(momentum=0.9)
    before, prototypes = deepcopy(objective.teacher), deepcopy(objective.teacher_prototypes)
    objective.after_step(encoder, step / 10)
    momentum = scheduler.cosine_schedule(step, 11, 0.9, 1.0)
    utils.update_momentum(encoder, before, momentum)
    utils.update_momentum(objective.prototypes, prototypes, momentum)
    theirs = [*before.parameters(), *prototypes.parameters()]
    ours = [*objective.teacher.parameters(), *objective.teacher_prototypes.parameters()]
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-6)


def test_the_teacher_learns_nothing_by_gradient_and_all_of_it_is_state() -> None:
    encoder, objective = make()
    images, views = draw()
    objective(encoder, images, rows_of(torch.arange(PATCHES)[:, None], views)).total.backward()
    for module in (objective.teacher, objective.teacher_prototypes):
        assert not any(p.requires_grad or p.grad is not None for p in module.parameters())
    assert {"centre", "progress", "prototypes.weight", "teacher_prototypes.weight"} <= objective.state_dict().keys()
    assert {f"teacher.{name}" for name in encoder.state_dict()} <= objective.state_dict().keys()


# Precision


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_mixed_precision_gives_nearly_the_same(dtype: torch.dtype) -> None:
    encoder, objective = make(LEVELS, spread=0.1)
    images, views = draw(1)
    plain = objective.eval()(encoder, images, rows_of(RAGGED, views))
    with torch.autocast("cpu", dtype=dtype):
        mixed = objective(encoder, images, rows_of(RAGGED, views))
    assert mixed.total.dtype == mixed.embeddings.dtype == torch.float32
    assert mixed.total.item() == pytest.approx(plain.total.item(), rel=0.03)


def test_mixed_precision_ends_where_the_loss_begins() -> None:
    z, prototypes = torch.randn(8, 6), torch.randn(K, 6)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = compare(z, prototypes)
    assert torch.equal(mixed, compare(z, prototypes))


# Entropy, which shows both ways to collapse


def test_entropies() -> None:
    uniform = torch.full((6, K), 1 / K)
    one, several = F.one_hot(torch.zeros(6, dtype=torch.long), K).float(), F.one_hot(torch.arange(6), K).float()
    for target, per_view, of_all in ((uniform, 1, 1), (one, 0, 0), (several, 0, log(6) / log(K))):
        found = measure_entropy(target)
        assert float(found["teacher_entropy"]) == pytest.approx(per_view, abs=1e-6)
        assert float(found["prototype_entropy"]) == pytest.approx(of_all, abs=1e-6)


# The spread term


def test_spread_is_lightly_s_koleo_view_by_view() -> None:
    koleo = pytest.importorskip("lightly.loss.koleo_loss", reason="lightly, the reference, is not installed")
    x = torch.randn(7, 2, 5, generator=torch.Generator().manual_seed(0), requires_grad=True)
    ours, theirs = spread_out(x, torch.arange(7)), sum(koleo.KoLeoLoss()(x[:, v]) for v in range(2)) / 2
    assert ours.item() == pytest.approx(theirs.item(), rel=1e-6)
    torch.testing.assert_close(*(torch.autograd.grad(loss, x)[0] for loss in (ours, theirs)), atol=1e-6, rtol=1e-5)


def test_a_patch_is_not_moved_away_from_itself() -> None:
    x = F.normalize(torch.tensor([[1.0, 0], [1, 0.01], [0, 1]]), dim=1)[:, None]
    apart = (x[0] - x[2]).norm(), (x[1] - x[2]).norm()
    expected = -(apart[0].log() + apart[1].log() + apart[1].log()) / 3
    assert spread_out(x, torch.tensor([4, 4, 5])).item() == pytest.approx(expected.item(), rel=1e-5)
    assert spread_out(x, torch.tensor([4, 4, 4])).item() == 0


def test_spread_is_added_with_its_weight() -> None:
    images, views = draw(1)
    rows = rows_of(RAGGED, views)
    without = make(LEVELS)
    encoder, objective = make(LEVELS, spread=0.5)
    ours, plain = objective(encoder, images, rows), without[1](without[0], images, rows)
    features = encoder.features(images[0].flatten(0, 1)).unflatten(0, (PATCHES, 2))
    term = spread_out(features, RAGGED[:, -1])
    assert float(ours.parts["spread"]) == pytest.approx(term.item(), rel=1e-5)
    assert ours.total.item() == pytest.approx(plain.total.item() + 0.5 * term.item(), rel=1e-5)


# What is refused


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"prototypes": 1}, "prototypes"),
        ({"momentum": 1.5}, "momentum"),
        ({"temperature": 0}, "temperature"),
        ({"teacher_temperature": [0.04, 0]}, "teacher_temperature.1"),
        ({"balance": "both"}, "balance"),
        ({"spread": -1}, "spread"),
    ],
)
def test_values_out_of_range_are_refused_by_name(change: dict[str, Any], name: str) -> None:
    with pytest.raises(UserError, match=rf"^objective:\n  {name} = "):
        load_settings({"name": "dino"} | change)

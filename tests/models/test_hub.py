"""Models of the hub: looked up once when an encoder is built, never unpickled, never asked for again."""

import json
import os
import socket
from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import save_file

from hidisc.ground.errors import UserError
from hidisc.ground.files import seal
from hidisc.models import backbone as module
from hidisc.models.backbone import Architecture, find_architecture
from hidisc.models.card import CARD, WEIGHTS, read_card
from hidisc.models.encoder import Encoder, build_encoder
from hidisc.models.export import export_encoder, open_timm_folder
from tests.models.hub import Hub, make_hub, no_network


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    return make_hub(tmp_path / "hub", monkeypatch)


def build(name: str, weights: str | None = "hub", size_px: int = 32, **options) -> Encoder:
    return build_encoder(name, options, None, channels=3, size_px=size_px, weights=weights).eval()


def refusal(name: str, weights: str | None = "hub", **options) -> str:
    with pytest.raises(UserError) as caught:
        build(name, weights, **options)
    return str(caught.value)


def pictures() -> torch.Tensor:
    return torch.rand(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def test_the_proof_that_no_socket_is_opened_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    no_network(monkeypatch)
    with pytest.raises(pytest.fail.Exception, match="a socket was opened"):
        socket.create_connection(("localhost", 9))


@pytest.mark.parametrize("prefix", ["hf-hub:", "hf_hub:"])
def test_a_name_of_the_hub_becomes_an_architecture_of_timm(hub: Hub, prefix: str) -> None:
    hub.add("lab/model", "test_vit", args={"num_classes": 7, "init_values": 1e-5, "drop_rate": None})
    found = find_architecture(f"{prefix}lab/model@v2", {"drop_path_rate": 0.1})
    assert (found.name, found.options) == ("test_vit", {"init_values": 1e-5, "drop_path_rate": 0.1})
    assert found.notes["mean"] == [0.1, 0.2, 0.3]
    assert hub.asked == ["lab/model/config.json@v2"]
    assert find_architecture("test_vit", {"a": 1}) == Architecture("test_vit", {"a": 1})


def test_options_of_the_user_come_before_those_of_the_hub(hub: Hub) -> None:
    hub.add("lab/model", "test_vit", args={"init_values": 1e-5})
    assert find_architecture("hf-hub:lab/model", {"init_values": 0.1}).options == {"init_values": 0.1}


@pytest.mark.parametrize(("name", "args"), [("test_resnet", {}), ("test_vit", {"init_values": 1e-5, "img_size": 32})])
def test_an_encoder_of_the_hub_is_opened_without_the_hub(hub: Hub, name: str, args: dict, tmp_path: Path) -> None:
    theirs = hub.add("lab/model", name, args=args).eval()
    encoder = build("hf-hub:lab/model")
    assert hub.asked == ["lab/model/config.json", "lab/model/model.safetensors"]
    assert encoder.card.backbone == name
    assert encoder.card.options == ({"img_size": 32, "init_values": 1e-5} if args else {})
    assert (encoder.card.mean, encoder.card.std) == ((0.1, 0.2, 0.3), (0.4, 0.5, 0.6))
    encoder.save(tmp_path)
    assert "hub" not in (tmp_path / CARD).read_text()
    hub.asked.clear()
    again = Encoder.load(tmp_path)
    assert hub.asked == []
    with torch.inference_mode():
        expected = encoder(pictures())
        mean, std = (torch.tensor(v)[:, None, None] for v in (encoder.card.mean, encoder.card.std))
        headless = theirs.forward_head(theirs.forward_features((pictures() - mean) / std), pre_logits=True)
        torch.testing.assert_close(again(pictures()), expected, rtol=0, atol=0)
        torch.testing.assert_close(expected, headless)


def test_an_encoder_of_the_hub_is_exported_as_its_architecture(hub: Hub, tmp_path: Path) -> None:
    hub.add("lab/model", "test_resnet")
    export_encoder(build("hf-hub:lab/model"), tmp_path, "timm")
    assert json.loads((tmp_path / "config.json").read_text())["architecture"] == "test_resnet"


def test_random_weights_of_a_name_of_the_hub_fetch_its_description_only(hub: Hub) -> None:
    hub.add("lab/model", "test_resnet")
    assert build("hf-hub:lab/model", weights=None).card.backbone == "test_resnet"
    assert hub.asked == ["lab/model/config.json"]


def test_names_of_timm_fetch_the_safetensors_that_timm_would(hub: Hub) -> None:
    theirs = hub.add("timm/test_resnet.r160_in1k", "test_resnet")
    encoder = build("test_resnet")
    assert hub.asked == ["timm/test_resnet.r160_in1k/model.safetensors"]
    assert torch.equal(encoder.backbone.state_dict()["conv1.0.weight"], theirs.state_dict()["conv1.0.weight"])
    assert encoder.card.backbone == "test_resnet"
    assert encoder.card.mean == timm.get_pretrained_cfg("test_resnet").mean


def test_other_channels_than_the_hub_s_are_adapted_as_timm_does(hub: Hub) -> None:
    hub.add("timm/test_resnet.r160_in1k", "test_resnet")
    encoder = build_encoder("test_resnet", {}, None, channels=2, size_px=32, weights="hub")
    assert encoder.backbone.state_dict()["conv1.0.weight"].shape[1] == 2


@pytest.mark.parametrize("name", sorted(timm.list_pretrained(), key=len)[::60])
def test_timm_s_own_names_have_a_file_that_is_no_pickle_or_are_refused(hub: Hub, name: str) -> None:
    """Whatever timm notes of a name, what is asked for is a .safetensors file."""
    known = timm.get_pretrained_cfg(name)
    with pytest.raises(UserError) as caught:
        module.fetch_weights(name, None)
    if known.hf_hub_id:
        assert hub.asked == [f"{known.hf_hub_id}/model.safetensors"]
    else:
        assert hub.asked == []
        assert "as a pickle only" in str(caught.value)


@pytest.mark.parametrize(
    ("noted", "asked"),
    [
        (None, "model.safetensors"),
        ("pytorch_model.bin", "model.safetensors"),
        ("open_clip_pytorch_model.bin", "open_clip_model.safetensors"),
        ("other.bin", "other.safetensors"),
        ("teacher.pth", "teacher.safetensors"),
        ("own.safetensors", "own.safetensors"),
    ],
)
def test_the_file_that_is_asked_for(hub: Hub, noted: str | None, asked: str) -> None:
    with pytest.raises(UserError):
        module.fetch_weights("x", {"hf_hub_id": "lab/model", "hf_hub_filename": noted})
    assert hub.asked == [f"lab/model/{asked}"]


class Trap:
    """Makes a folder when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


CONVERT = (
    "Convert them with `safetensors.torch.save_file(state_dict, ...)` where you trust the file, and give it as "
    "model.weights."
)


def test_a_pickle_on_the_hub_is_refused_and_not_fetched(hub: Hub, tmp_path: Path) -> None:
    hub.add("lab/model", "test_resnet", pickled=True)
    torch.save(Trap(tmp_path / "sprung"), hub.folder / "lab/model/pytorch_model.bin")
    assert refusal("hf-hub:lab/model") == (
        "the hub has the weights of 'test_resnet' as a pickle only (lab/model holds no model.safetensors), which can "
        f"run code when it is opened. {CONVERT}"
    )
    assert hub.asked == ["lab/model/config.json", "lab/model/model.safetensors"]
    assert not (tmp_path / "sprung").exists()


def test_a_pickle_that_timm_knows_by_its_address_is_refused(hub: Hub) -> None:
    said = refusal("legacy_seresnet18.in1k")
    assert said.startswith("timm has the weights of 'legacy_seresnet18.in1k' as a pickle only (https://")
    assert said.endswith(f"seresnet18-4bb0ce65.pth), which can run code when it is opened. {CONVERT}")


def test_a_model_without_weights_is_refused(hub: Hub) -> None:
    assert refusal("coatnet_0_224") == (
        "timm has no weights for 'coatnet_0_224'. Give a .safetensors file as model.weights, or null."
    )


def test_a_pickle_under_the_name_of_a_safetensors_file_is_refused(hub: Hub, tmp_path: Path) -> None:
    hub.add("lab/model", "test_resnet")
    torch.save({"conv1.0.weight": Trap(tmp_path / "sprung")}, hub.folder / "lab/model/model.safetensors")
    said = refusal("hf-hub:lab/model")
    assert said.startswith(
        "model.backbone = 'test_resnet' cannot be made for 3 channels of 32 px with model.options = "
    )
    assert "and the hub's weights (" in said
    assert not (tmp_path / "sprung").exists()


def test_weights_of_another_network_are_refused(hub: Hub) -> None:
    hub.add("lab/model", "test_resnet")
    save_file({"conv1.0.weight": torch.zeros(1)}, hub.folder / "lab/model/model.safetensors")
    assert "cannot be made for 3 channels of 32 px with model.options = {} and the hub's weights (" in refusal(
        "hf-hub:lab/model"
    )


def test_what_the_hub_says_cannot_bring_a_file(hub: Hub, tmp_path: Path) -> None:
    hub.add("lab/model", "test_resnet")
    config = json.loads((hub.folder / "lab/model/config.json").read_text())
    config["model_args"] = {"checkpoint_path": str(tmp_path / "x.pth")}
    (hub.folder / "lab/model/config.json").write_text(json.dumps(config))
    assert refusal("hf-hub:lab/model").startswith("model.options has 'checkpoint_path', which is not yours to set")


@pytest.mark.parametrize("architecture", ["hf-hub:lab/other", "local-dir:/tmp/x", "no_such"])
def test_what_the_hub_says_leads_nowhere_else(hub: Hub, architecture: str) -> None:
    hub.add("lab/model", "test_resnet")
    config = json.loads((hub.folder / "lab/model/config.json").read_text())
    (hub.folder / "lab/model/config.json").write_text(json.dumps(config | {"architecture": architecture}))
    assert refusal("hf-hub:lab/model").startswith(f"model.backbone = {architecture!r} is ")
    assert hub.asked == ["lab/model/config.json"]


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"architecture": "test_resnet", "pretrained_cfg": 3}'])
def test_a_description_that_is_none_is_refused(hub: Hub, text: str) -> None:
    hub.add("lab/model", "test_resnet")
    (hub.folder / "lab/model/config.json").write_text(text)
    assert refusal("hf-hub:lab/model").startswith(
        "the description of model.backbone = 'hf-hub:lab/model' cannot be fetched ("
    )


def test_a_hub_out_of_reach_says_what_to_do(hub: Hub) -> None:
    assert refusal("hf-hub:lab/none") == (
        "the description of model.backbone = 'hf-hub:lab/none' cannot be fetched (no repository lab/none). Give the "
        "timm name of its architecture as model.backbone and its .safetensors file as model.weights."
    )
    assert refusal("test_resnet") == (
        "the weights of 'test_resnet' cannot be fetched (no repository timm/test_resnet.r160_in1k). Download them "
        "elsewhere and give the .safetensors file as model.weights."
    )


@pytest.mark.parametrize("name", ["hf-hub:lab/model", "hf_hub:lab/model"])
def test_a_card_that_names_the_hub_is_refused_without_asking_it(hub: Hub, tmp_path: Path, name: str) -> None:
    """A card that was changed by hand and sealed again."""
    hub.add("lab/model", "test_resnet")
    build("hf-hub:lab/model").save(tmp_path)
    card = read_card(tmp_path)
    (tmp_path / CARD).write_bytes(seal(card.model_copy(update={"backbone": name})))
    hub.asked.clear()
    with pytest.raises(UserError) as caught:
        Encoder.load(tmp_path)
    assert str(caught.value) == (
        f"{tmp_path / CARD}: backbone = {name!r} is a name of the hub, which is asked when an encoder is built and not "
        "when it is opened. Put the `architecture` and `model_args` of the hub's config.json in the place of the "
        "backbone and its options, or train again."
    )
    assert hub.asked == []
    (tmp_path / CARD).write_bytes(seal(card.model_copy(update={"backbone": "test_resnet", "options": {}})))
    assert (tmp_path / WEIGHTS).is_file()
    assert Encoder.load(tmp_path).card.backbone == "test_resnet"


def test_a_timm_folder_that_names_the_hub_is_refused_without_asking_it(hub: Hub, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"architecture": "hf-hub:lab/model", "pretrained_cfg": {}}))
    with pytest.raises(UserError) as caught:
        open_timm_folder(tmp_path)
    assert str(caught.value).startswith(
        f"{tmp_path / 'config.json'}: architecture = 'hf-hub:lab/model' is a name of the hub, which is asked when an "
    )
    assert hub.asked == []


@pytest.mark.parametrize("weights", [None, "hub", "x.safetensors"])
def test_a_folder_as_backbone_is_refused_with_what_to_give(tmp_path: Path, weights: str | None) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"architecture": "test_resnet", "pretrained_cfg": {}}))
    torch.save(Trap(tmp_path / "sprung"), tmp_path / "pytorch_model.bin")
    assert refusal(f"local-dir:{tmp_path}", weights) == (
        f"model.backbone = 'local-dir:{tmp_path}' is a folder, from which timm may read a pickle. Give the "
        f"`architecture` that its config.json names instead, and --set model.weights={tmp_path}/model.safetensors."
    )
    assert not (tmp_path / "sprung").exists()

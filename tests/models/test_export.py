"""Exported encoders give the same embeddings when other libraries read them."""

import json
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor

from hidisc.ground.errors import UserError
from hidisc.models import export as module
from hidisc.models.encoder import Encoder, build_encoder
from hidisc.models.export import PREPROCESSING, export_encoder
from hidisc.patches.store import as_input
from hidisc.settings.train import HeadConfig


def encoder(backbone: str = "test_resnet", channels: int = 3, size_px: int = 48) -> Encoder:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        made = build_encoder(backbone, {}, HeadConfig(dim=16), channels=channels, size_px=size_px, mpp=0.5)
        scaled = made.card.model_copy(update={"mean": (0.4,) * channels, "std": (0.2,) * channels})
        return Encoder(scaled, made.backbone).eval()


def pictures(of: Encoder, count: int = 5) -> Tensor:
    card = of.card
    return torch.rand(count, card.channels, card.size_px, card.size_px, generator=torch.Generator().manual_seed(1))


@torch.inference_mode()
def same(ours: Tensor, theirs: Tensor) -> bool:
    return torch.allclose(ours, theirs, atol=1e-4 * float(ours.abs().max()))


KINDS = [("test_resnet", 3, 48), ("test_vit", 2, 96)]


@pytest.mark.parametrize(("backbone", "channels", "size_px"), KINDS)
def test_timm_loads_the_folder_and_the_state_dict(tmp_path: Path, backbone: str, channels: int, size_px: int) -> None:
    ours = encoder(backbone, channels, size_px)
    assert export_encoder(ours, tmp_path, "timm") < 1e-4
    known = json.loads((tmp_path / PREPROCESSING).read_text())
    x = pictures(ours)
    prepared = (x - torch.tensor(known["mean"])[:, None, None]) / torch.tensor(known["std"])[:, None, None]
    with torch.inference_mode():
        theirs = timm.create_model(f"local-dir:{tmp_path}", pretrained=True).eval()(prepared)
        assert same(ours.features(x), theirs)
        size = {"img_size": size_px} if backbone == "test_vit" else {}
        plain = timm.create_model(backbone, in_chans=channels, num_classes=0, **size)
        plain.load_state_dict(load_file(tmp_path / "model.safetensors"))
        assert same(ours.features(x), plain.eval()(prepared))
    assert known["mean_and_std_are_applied"] == "before the network"


@pytest.mark.parametrize("backbone", ["test_resnet", "test_vit"])
def test_timm_s_own_transform_gives_the_pixels_that_our_encoder_saw(tmp_path: Path, backbone: str) -> None:
    ours = encoder(backbone, 3, 48)
    export_encoder(ours, tmp_path, "timm")
    patch = np.random.default_rng(0).integers(0, 256, (48, 48, 3), dtype=np.uint8)
    seen: list[Tensor] = []
    ours.backbone.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    with torch.inference_mode():
        ours.features(torch.from_numpy(as_input(patch, "unit")).permute(2, 0, 1)[None])
    model = timm.create_model(f"local-dir:{tmp_path}", pretrained=True)
    for config in (
        timm.data.resolve_data_config(model.pretrained_cfg),
        timm.data.resolve_data_config({}, model=model),
        timm.data.resolve_model_data_config(model),
    ):
        transform = timm.data.create_transform(**config, is_training=False)
        assert torch.equal(transform(Image.fromarray(patch)), seen[0][0])


@pytest.mark.parametrize(("backbone", "channels", "size_px"), KINDS)
def test_onnxruntime_agrees_at_any_batch_size(tmp_path: Path, backbone: str, channels: int, size_px: int) -> None:
    ours = encoder(backbone, channels, size_px)
    assert export_encoder(ours, tmp_path, "onnx") < 1e-4
    session = onnxruntime.InferenceSession(str(tmp_path / "encoder.onnx"), providers=["CPUExecutionProvider"])
    for count in (1, 5):
        x = pictures(ours, count)
        with torch.inference_mode():
            theirs = session.run(["features"], {"images": x.numpy()})[0]
            assert same(ours.features(x), torch.from_numpy(np.asarray(theirs)))
    assert json.loads((tmp_path / PREPROCESSING).read_text())["mean_and_std_are_applied"] == "inside the network"


@pytest.mark.parametrize(("backbone", "channels", "size_px"), KINDS)
def test_torchscript_agrees_at_any_batch_size(tmp_path: Path, backbone: str, channels: int, size_px: int) -> None:
    ours = encoder(backbone, channels, size_px)
    assert export_encoder(ours, tmp_path, "torchscript") < 1e-4
    theirs = torch.jit.load(str(tmp_path / "encoder.pt"))
    for count in (1, 5):
        x = pictures(ours, count)
        assert same(ours.features(x), theirs(x))


@pytest.mark.parametrize(("backbone", "channels", "size_px"), KINDS)
def test_torch_export_agrees_at_any_batch_size(tmp_path: Path, backbone: str, channels: int, size_px: int) -> None:
    ours = encoder(backbone, channels, size_px)
    assert export_encoder(ours, tmp_path, "exported") < 1e-4
    theirs = torch.export.load(tmp_path / "encoder.pt2").module()
    for count in (1, 5):
        x = pictures(ours, count)
        assert same(ours.features(x), theirs(x))


def test_an_export_that_differs_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "run_exported", lambda folder, to, x: torch.zeros(len(x), 1))
    with pytest.raises(UserError, match=r"gives other embeddings than the encoder \(relative difference 1, at most"):
        export_encoder(encoder(), tmp_path, "timm")


def test_nothing_half_written_is_left(tmp_path: Path) -> None:
    for to in ("timm", "onnx", "torchscript", "exported"):
        export_encoder(encoder(), tmp_path, to)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "config.json",
        "encoder.onnx",
        "encoder.pt",
        "encoder.pt2",
        "model.safetensors",
        PREPROCESSING,
    ]

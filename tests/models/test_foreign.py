"""Networks of others as modules: what stands before them, what they may give, and where they run."""

import builtins
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from torch import Tensor, nn

from hidisc.ground.errors import UserError
from hidisc.models import foreign
from hidisc.models.foreign import Prepared, TorchScriptNet, check_output, size_of_timm


class Gives(nn.Module):
    """Returns what a function makes of the input."""

    def __init__(self, make: object) -> None:
        super().__init__()
        self.make = make

    def forward(self, x: Tensor) -> object:
        return self.make(x)


def test_pixels_are_scaled_after_they_are_resized() -> None:
    x = torch.rand(2, 2, 8, 8, generator=torch.Generator().manual_seed(0))
    net = Prepared(Gives(lambda given: given.flatten(1)), 8, (0.5, 0.25), (2.0, 4.0))
    mean, std = torch.tensor([0.5, 0.25])[:, None, None], torch.tensor([2.0, 4.0])[:, None, None]
    assert torch.allclose(net(x), ((x - mean) / std).flatten(1))
    assert torch.equal(Prepared(Gives(lambda given: given.flatten(1)), 8)(x), x.flatten(1))
    sharp = (x > 0.5).float()
    large = Prepared(Gives(lambda given: given.flatten(1)), 16)(sharp)
    assert large.shape == (2, 2 * 16 * 16)
    assert large.min() >= 0  # bicubic overshoots beside an edge
    assert large.max() <= 1


def test_scaling_alone_by_one_of_the_two() -> None:
    x = torch.rand(2, 1, 4, 4)
    assert torch.allclose(Prepared(nn.Flatten(), 4, mean=(0.5,))(x), x.flatten(1) - 0.5)
    assert torch.allclose(Prepared(nn.Flatten(), 4, std=(0.5,))(x), x.flatten(1) * 2)


def test_mean_and_deviation_move_with_the_module_and_are_not_saved() -> None:
    net = Prepared(nn.Flatten(), 4, (0.5,), (0.5,))
    assert net.state_dict() == {}
    assert net.to(torch.float64)(torch.rand(2, 1, 4, 4, dtype=torch.float64)).dtype == torch.float32


@pytest.mark.parametrize(
    ("make", "dim", "notes"),
    [
        (lambda x: x.flatten(1), 48, ()),
        (lambda x: x, 3, ("it returns maps of 4 x 4, which are averaged",)),
        (lambda x: x.mean((2, 3), keepdim=True), 3, ("it returns maps of 1 x 1, which are averaged",)),
        (lambda x: [x.flatten(1)], 48, ()),
        (lambda x: {"a": None, "b": (x.flatten(1), x)}, 48, ("it returns 2 outputs, of which the first (0) is kept",)),
    ],
)
def test_one_vector_a_picture(make: object, dim: int, notes: tuple[str, ...]) -> None:
    net = Prepared(Gives(make), 4)
    assert check_output(net, 3, 4, "it") == (dim, notes)
    assert net(torch.rand(7, 3, 4, 4)).shape == (7, dim)


def test_maps_are_averaged_over_the_picture() -> None:
    x = torch.rand(2, 3, 4, 4)
    assert torch.allclose(Prepared(nn.Identity(), 4)(x), x.mean((2, 3)))


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda x: None, r"^it returns NoneType, not a tensor. Export it so that it returns \(B, D\)"),
        (lambda x: {"a": "text"}, r"^it returns dict, not a tensor"),
        (
            lambda x: x.flatten(2),
            r"^it returns tokens \(2, 3, 16\), and which of them stand for the picture",
        ),
        (lambda x: x.sum(), r"^it returns \(\) for a batch of 2, not one vector per picture"),
        (lambda x: x[:, :, :2], r"^it returns \(2, 3, 2, 4\) for a batch of 2, not one vector"),
        (lambda x: x.flatten(1)[:1], r"^it returns \(1, 48\) for a batch of 2, not one vector"),
        (lambda x: x.flatten(1)[:, :0], r"^it returns \(2, 0\) for a batch of 2, not one vector"),
        (
            lambda x: x @ torch.ones(3, 3),
            r"^it takes no pictures of 3 channels and 4 px \(.+\). Give the side",
        ),
        (lambda x: x[5], r"^it takes no pictures of 3 channels and 4 px"),
    ],
)
def test_anything_else_is_refused(make: object, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        check_output(Prepared(Gives(make), 4), 3, 4, "it")


def test_torchscript_is_read_anew_for_another_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Frozen weights do not move with `.to`."""
    path = tmp_path / "a.pt"
    torch.jit.save(torch.jit.trace(nn.Flatten().eval(), torch.rand(2, 1, 4, 4)), str(path))
    net = TorchScriptNet(path)
    asked = []

    def load(path: Path, device: torch.device) -> nn.Module:
        asked.append(device)
        return nn.Flatten()

    monkeypatch.setattr(foreign, "_load_script", load)
    net(torch.rand(2, 1, 4, 4))
    assert asked == []
    for _ in range(2):
        assert net(torch.rand(2, 1, 4, 4, device="meta")).device.type == "meta"
    assert asked == [torch.device("meta")]


def test_torchscript_saved_in_training_mode_is_set_to_evaluate(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Flatten(), nn.Dropout(0.9)).train()
    torch.jit.save(torch.jit.script(net), str(tmp_path / "a.pt"))
    x = torch.rand(3, 1, 4, 4)
    assert torch.equal(TorchScriptNet(tmp_path / "a.pt")(x), x.flatten(1))


def test_a_pickle_is_never_opened(tmp_path: Path) -> None:
    """Nor is one that calls itself a zip; reading it would leave a file behind."""

    class Bomb:
        def __reduce__(self) -> tuple[object, tuple[str, str]]:
            return builtins.open, (str(tmp_path / "bomb"), "w")

    for number, zipped in enumerate((True, False)):
        path = tmp_path / f"{number}.pt"
        torch.save(Bomb(), path, _use_new_zipfile_serialization=zipped)
        with pytest.raises(UserError, match="is a pickled checkpoint"):
            TorchScriptNet(path)
    assert not (tmp_path / "bomb").exists()


def test_batches_are_filled_up_with_their_last_picture() -> None:
    images = np.arange(5)[:, None]
    assert [part[:, 0].tolist() for part in foreign._split(images, 2)] == [[0, 1], [2, 3], [4, 4]]
    assert [part[:, 0].tolist() for part in foreign._split(images, 5)] == [[0, 1, 2, 3, 4]]
    assert [part[:, 0].tolist() for part in foreign._split(images, None)] == [[0, 1, 2, 3, 4]]


def test_what_timm_notes_of_its_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    assert size_of_timm("resnet50") == 224
    assert size_of_timm("test_resnet.r160_in1k") == 160
    assert size_of_timm("resnet50.no_such_tag") is None
    assert size_of_timm("no_such_model") is None
    monkeypatch.setattr(timm.models, "load_model_config_from_hf", lambda name: ({"input_size": (3, 96, 96)}, name, {}))
    assert size_of_timm("hf-hub:owner/name") == 96

    def fail(name: str) -> None:
        raise OSError(name)

    monkeypatch.setattr(timm.models, "load_model_config_from_hf", fail)
    assert size_of_timm("hf-hub:owner/name") is None

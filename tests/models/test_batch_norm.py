"""Two real gloo processes with unequal batches against torch's own layers on the whole batch in one process."""

import copy
import multiprocessing
import os
import socket
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from timm.layers import BatchNormAct2d
from timm.layers.split_batchnorm import SplitBatchNorm2d
from torch import Tensor, nn
from torch.multiprocessing import start_processes
from torch.nn.parallel import DistributedDataParallel

from hidisc.ground.errors import UserError
from hidisc.models.batch_norm import BatchNormOfAllRanks, normalise_over_ranks
from hidisc.models.encoder import build_encoder
from hidisc.objectives.objective import Rows, find_objective, load_settings
from hidisc.settings.train import HeadConfig

RANKS, SECONDS = 2, 120
PARTS = (slice(0, 5), slice(5, 8))
"""Rows of each rank."""
LAYERS: dict[str, Callable[[], nn.Module]] = {
    "rows": lambda: nn.BatchNorm1d(4),
    "rows without weights": lambda: nn.BatchNorm1d(4, affine=False),
    "pictures": lambda: nn.BatchNorm2d(4, momentum=0.3),
    "a mean of all batches": lambda: nn.BatchNorm2d(4, momentum=None),
    "no running statistics": lambda: nn.BatchNorm2d(4, track_running_stats=False),
    "with an activation": lambda: BatchNormAct2d(4, act_layer=nn.SiLU),
    "far from 0": lambda: nn.BatchNorm2d(4),
}
OBJECTIVES = {
    "byol": {"name": "byol", "predictor_dim": 16},
    "vicreg": {"name": "vicreg"},
    "simsiam": {"name": "simsiam", "predictor_dim": 16},
    "hidisc": {"name": "hidisc"},
}
LEVELS = ("patient", "slide", "patch")
ANCESTRY = torch.tensor([[i // 8, i // 4, i // 2] for i in range(32)])
"""Two ranks of two patients, with two slides each, two patches of each and two views of those."""


def inputs(name: str) -> Tensor:
    """(2, 2, 8, 4[, 3, 3]): two batches with channels of different deviations, and what their values count."""
    rng = torch.Generator().manual_seed(len(name))
    shape = (2, 8, 4) if "rows" in name else (2, 8, 4, 3, 3)
    x, weights = torch.randn(2, *shape, generator=rng)
    x = x * torch.tensor([0.5, 1.0, 2.0, 4.0]).view(4, *[1] * (x.ndim - 3)) + (30 if name == "far from 0" else 3)
    return torch.stack([x, weights])


def go_through(layer: nn.Module, given: Tensor, dtype: torch.dtype = torch.float32) -> dict[str, Any]:
    """What a layer makes of two batches, with the gradients of a weighted sum of it."""
    x = given[0].to(dtype, copy=True).requires_grad_()
    y = torch.stack([layer(batch) for batch in x])
    (y.float() * given[1]).sum().backward()
    grads = {name: parameter.grad for name, parameter in layer.named_parameters()}
    layer.eval()
    return {"y": y.detach(), "x": x.grad, "eval": layer(x[0]).detach(), **grads, **dict(layer.named_buffers())}


class Both(nn.Module):
    """A network with batch normalisation and an objective under one roof."""

    def __init__(self, values: dict[str, Any]) -> None:
        super().__init__()
        torch.manual_seed(0)
        settings = load_settings(values)
        head = HeadConfig(layers=2, hidden_dim=16, dim=8, norm_last=True)
        self.encoder = build_encoder("test_resnet", {}, head, channels=3, size_px=32)
        self.objective = find_objective(settings)(settings, self.encoder, LEVELS, ())
        self.train().double()  # so that rounding in twenty layers does not hide a wrong gradient

    def forward(self, images: Tensor, rows: Rows) -> Tensor:
        return self.objective(self.encoder, images, rows).total


def step(model: nn.Module, images: Tensor, rows: Rows) -> dict[str, Tensor]:
    """Loss, gradients and running statistics of a step."""
    loss = model(images, rows)
    loss.backward()
    values = {name: p.grad for name, p in model.named_parameters() if p.requires_grad} | dict(model.named_buffers())
    return {"loss": loss.detach(), **{name.removeprefix("module."): value.clone() for name, value in values.items()}}


def images() -> Tensor:
    return torch.rand(len(ANCESTRY), 3, 32, 32, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def one_rank(rank: int, port: int, folder: str) -> None:
    """All layers and all objectives in one process of two."""
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", timedelta(seconds=60), world_size=RANKS, rank=rank)
    results: dict[str, Any] = {}
    for name, make in LAYERS.items():
        results[name] = go_through(normalise_over_ranks(make()), inputs(name)[:, :, PARTS[rank]])
    half = inputs("pictures")[:, :, PARTS[rank]]
    results["bfloat16"] = go_through(normalise_over_ranks(nn.BatchNorm2d(4)), half, torch.bfloat16)
    mine = slice(rank * 16, rank * 16 + 16)
    rows = Rows(ANCESTRY[mine], torch.zeros(16, dtype=torch.int64), 2)
    for name, values in OBJECTIVES.items():
        model = DistributedDataParallel(normalise_over_ranks(Both(values)))
        results[name] = step(model, images()[mine], rows)
        model.zero_grad()
        results[f"{name}, again"] = step(model, images()[mine].flip(3), rows)
    torch.save(results, Path(folder) / f"{rank}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def by_rank(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each of two processes computed; they end by themselves, or are ended after two minutes."""
    folder = tmp_path_factory.mktemp("ranks")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    multiprocessing.set_forkserver_preload([__name__])  # torch is imported once for both
    context = start_processes(one_rank, (port, str(folder)), RANKS, join=False, start_method="forkserver")
    try:
        for _ in range(RANKS):
            if context.join(timeout=SECONDS):
                break
        else:
            pytest.fail(f"the two processes were not done after {SECONDS} s")
    finally:
        for process in context.processes:
            if process.is_alive():
                process.kill()
    return [torch.load(folder / f"{rank}.pt") for rank in range(RANKS)]


def close(found: Tensor, expected: Tensor, what: str) -> None:
    scale = max(1.0, float(expected.abs().max()))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5 * scale, msg=lambda text: f"{what}: {text}")


@pytest.mark.whole
@pytest.mark.parametrize("name", LAYERS)
def test_unequal_ranks_are_one_batch(by_rank: list[dict[str, Any]], name: str) -> None:
    alone = go_through(LAYERS[name](), inputs(name))
    ranks = [results[name] for results in by_rank]
    assert ranks[0].keys() == alone.keys()
    for key in ("y", "x"):
        close(torch.cat([rank[key] for rank in ranks], dim=1), alone[key], key)
    if name != "no running statistics":
        close(torch.cat([rank["eval"] for rank in ranks]), alone["eval"], "eval")
    for key in alone.keys() & {"weight", "bias"}:  # of a sum over rows, the gradient is the sum of the ranks'
        close(ranks[0][key] + ranks[1][key], alone[key], key)
    for key in alone.keys() & {"running_mean", "running_var", "num_batches_tracked"}:
        for rank in ranks:
            close(rank[key], alone[key], key)


@pytest.mark.whole
def test_half_precision_keeps_full_statistics(by_rank: list[dict[str, Any]]) -> None:
    rounded = inputs("pictures").bfloat16().float()
    expected = go_through(nn.BatchNorm2d(4), rounded)
    found = [results["bfloat16"] for results in by_rank]
    assert found[0]["y"].dtype == found[0]["x"].dtype == torch.bfloat16
    torch.testing.assert_close(
        torch.cat([rank["y"] for rank in found], dim=1).float(), expected["y"], rtol=1e-2, atol=1e-2
    )
    for key in ("running_mean", "running_var"):
        close(found[0][key], expected[key], key)


@pytest.mark.whole
@pytest.mark.parametrize("name", OBJECTIVES)
def test_two_ranks_train_as_one(by_rank: list[dict[str, Any]], name: str) -> None:
    """Losses, gradients and running statistics of two steps; ranks alone would have other statistics."""
    model = Both(OBJECTIVES[name])
    rows = Rows(ANCESTRY, torch.zeros(32, dtype=torch.int64), 2)
    alone = step(model, images(), rows)
    model.zero_grad()
    for key, expected in ((name, alone), (f"{name}, again", step(model, images().flip(3), rows))):
        ranks = [results[key] for results in by_rank]
        assert ranks[0].keys() == expected.keys()
        close(sum(rank["loss"] for rank in ranks) / RANKS, expected["loss"], "loss")
        for what in expected.keys() - {"loss"}:
            for rank in ranks:
                close(rank[what], expected[what], what)
    own = copy.deepcopy(model).train()
    half = step(own, images()[:16], Rows(ANCESTRY[:16], rows.labels[:16], 2))
    assert abs(float(half["loss"]) - float(by_rank[0][f"{name}, again"]["loss"])) > 1e-3


@pytest.mark.parametrize("name", LAYERS)
def test_alone_it_is_torchs_layer(name: str) -> None:
    expected, found = (
        go_through(LAYERS[name](), inputs(name)),
        go_through(normalise_over_ranks(LAYERS[name]()), inputs(name)),
    )
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        assert torch.equal(found[key], value), key


def test_a_checkpoint_fits_both_ways() -> None:
    plain, over_ranks = Both(OBJECTIVES["byol"]), normalise_over_ranks(Both(OBJECTIVES["byol"]))
    assert [(name, value.shape) for name, value in plain.state_dict().items()] == [
        (name, value.shape) for name, value in over_ranks.state_dict().items()
    ]
    plain.load_state_dict(over_ranks.state_dict())
    over_ranks.load_state_dict(plain.state_dict())
    assert sum(isinstance(module, BatchNormOfAllRanks) for module in over_ranks.modules()) > 10
    assert not any(type(module) in (nn.BatchNorm1d, nn.BatchNorm2d) for module in over_ranks.modules())


def test_parameters_stay_the_same_objects() -> None:
    layer = nn.Sequential(nn.BatchNorm2d(4))
    before = dict(layer.named_parameters()) | dict(layer.named_buffers())
    after = normalise_over_ranks(layer)
    now = dict(after.named_parameters()) | dict(after.named_buffers())
    assert {name: id(value) for name, value in now.items()} == {name: id(value) for name, value in before.items()}


def test_a_layer_that_is_normalised_in_parts_is_refused() -> None:
    with pytest.raises(UserError) as caught:
        normalise_over_ranks(nn.Sequential(SplitBatchNorm2d(4)))
    assert str(caught.value) == (
        "compute.sync_batchnorm is set, and the backbone has layers of the kind SplitBatchNorm2d, whose statistics "
        "cannot be shared between devices. Set compute.sync_batchnorm=false or change model.backbone."
    )

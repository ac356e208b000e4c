"""Two real gloo processes against one process on the same global batch: the same loss and the same gradients."""

import multiprocessing
import os
import socket
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.multiprocessing import start_processes
from torch.nn.parallel import DistributedDataParallel

from hidisc.ground.tensors import gather_ranks
from hidisc.models.encoder import Images, build_encoder
from hidisc.objectives.objective import Rows, find_objective, load_settings
from hidisc.settings.train import HeadConfig

LEVELS = ("patient", "slide", "patch")
RANKS, SECONDS = 2, 120
# Patients of a rank are its own, as the sampler draws them; a slide and a patch are repeated.
REGULAR = [
    [[0, 0, 0], [0, 0, 0], [0, 0, 1], [0, 0, 1], [1, 1, 2], [1, 1, 2], [1, 2, 3], [1, 2, 3]],
    [[2, 3, 4], [2, 3, 4], [2, 3, 4], [2, 3, 4], [3, 4, 5], [3, 4, 5], [3, 5, 6], [3, 5, 6]],
]
# The second rank has fewer anchors with positives at every level, and a patient is on both ranks.
UNEQUAL = [
    [[0, 0, 0], [0, 0, 0], [0, 1, 1], [0, 1, 1], [1, 2, 2], [1, 2, 2], [1, 2, 3], [1, 2, 3]],
    [[2, 3, 4], [2, 3, 4], [3, 4, 5], [4, 5, 6], [5, 6, 7], [6, 7, 8], [7, 8, 9], [1, 9, 10]],
]
# Eight anchors of the first rank have a positive on another slide and four of the second, and nobody is on both.
SPLIT = [
    [[0, 0, 0], [0, 0, 0], [0, 1, 1], [0, 1, 1], [1, 2, 2], [1, 2, 2], [1, 6, 3], [1, 6, 3]],
    [[2, 3, 4], [2, 3, 4], [2, 4, 5], [2, 4, 5], [3, 5, 6], [3, 5, 6], [3, 5, 7], [3, 5, 7]],
]
# What the second rank has no positives of at all.
LONELY = [REGULAR[0], [[10 + i, 10 + i, 10 + i] for i in range(8)]]
# Two global views and two local ones of each patch.
LOCAL = [[[0, 0, 0]] * 4 + [[0, 1, 1]] * 4, [[1, 2, 2]] * 4 + [[1, 2, 3]] * 4]
DINO = {"name": "dino", "prototypes": 24, "freeze_prototypes": 0.0}
CASES: dict[str, tuple[dict[str, Any], list[list[list[int]]]]] = {
    "hidisc": ({"name": "hidisc"}, REGULAR),
    "hidisc, low temperature": ({"name": "hidisc", "temperature": 0.07}, REGULAR),
    "hidisc, weighted": ({"name": "hidisc", "weights": {"patient": 2.0, "slide": 0.0}}, UNEQUAL),
    "hidisc, unequal ranks": ({"name": "hidisc"}, UNEQUAL),
    "hidisc, a rank without positives": ({"name": "hidisc"}, LONELY),
    "hidisc, the paper's sum": ({"name": "hidisc", "reduction": "sum"}, UNEQUAL),
    "hidisc, across slides": ({"name": "hidisc", "across": {"patient": "slide"}}, REGULAR),
    "hidisc, across slides, unequal ranks": ({"name": "hidisc", "across": {"patient": "slide"}}, UNEQUAL),
    "hidisc, temperatures": ({"name": "hidisc", "temperature": {"patient": 0.5, "slide": 0.1}}, UNEQUAL),
    "vicreg, across slides": ({"name": "vicreg", "across": {"patient": "slide"}}, UNEQUAL),
    "simsiam, across slides": ({"name": "simsiam", "predictor_dim": 16, "across": {"patient": "slide"}}, SPLIT),
    "byol, across slides": ({"name": "byol", "predictor_dim": 16, "across": {"patient": "slide"}}, SPLIT),
    "simclr": ({"name": "simclr"}, REGULAR),
    "simclr, unequal ranks": ({"name": "simclr"}, UNEQUAL),
    "supcon": ({"name": "supcon"}, UNEQUAL),
    "vicreg": ({"name": "vicreg"}, REGULAR),
    "vicreg, unequal ranks": ({"name": "vicreg"}, UNEQUAL),
    "simsiam": ({"name": "simsiam", "predictor_dim": 16}, REGULAR),
    "byol": ({"name": "byol", "predictor_dim": 16}, REGULAR),
    "dino": (DINO, REGULAR),
    "dino, across slides": (DINO | {"across": {"patient": "slide"}}, SPLIT),
    "dino, a rank without positives": (DINO, LONELY),
    "dino, sinkhorn": (DINO | {"balance": "sinkhorn"}, REGULAR),
    "dino, spread out": (DINO | {"spread": 0.5}, SPLIT),
    "dino, local views": (DINO | {"spread": 0.1}, LOCAL),
    "hidisc, local views": ({"name": "hidisc"}, LOCAL),
    "vicreg, local views": ({"name": "vicreg"}, LOCAL),
}
LABELS = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1, 0, 0, 2, 2, 3, 3, 4, 5])  # 4 and 5 are alone, 0 is on both ranks


class Both(nn.Module):
    """Encoder and objective under one roof, as DistributedDataParallel wants it."""

    def __init__(self, values: dict[str, Any]) -> None:
        super().__init__()
        torch.manual_seed(0)
        settings = load_settings(values)
        options = {"dynamic_img_size": True}
        self.encoder = build_encoder("test_vit", options, HeadConfig(dim=8), channels=3, size_px=32)
        self.objective = find_objective(settings)(settings, self.encoder, LEVELS, ())
        # batch normalisation of the predictors; the rest knows no batches, and DINO's centre moves in training
        self.objective.train(values["name"] == "dino")
        if values["name"] == "dino":
            nn.init.normal_(self.objective.teacher_prototypes.weight)

    def forward(self, images: Images, rows: Rows) -> Tensor:
        return self.objective(self.encoder, images, rows).total


def batch(ancestry: list[list[list[int]]], part: slice = slice(None)) -> tuple[Images, Rows]:
    """The global batch, rank after rank, or the rows of one rank."""
    ids = torch.tensor(ancestry).flatten(0, 1)[part]
    generator = torch.Generator().manual_seed(0)
    if ancestry is not LOCAL:
        return torch.rand(len(LABELS), 3, 32, 32, generator=generator)[part], Rows(ids, LABELS[part], 2)
    whole = torch.rand(len(LABELS) // 2, 3, 32, 32, generator=generator).unflatten(0, (-1, 2))
    local = torch.rand(len(LABELS) // 2, 3, 16, 16, generator=generator).unflatten(0, (-1, 2))
    patches = slice(None) if part == slice(None) else slice(part.start // 4, part.stop // 4)
    return (whole[patches], local[patches]), Rows(ids, LABELS[part], 4, 2)


def run(model: nn.Module, images: Images, rows: Rows) -> dict[str, Tensor]:
    """The loss, every gradient, and DINO's centre after the step."""
    loss = model(images, rows)
    loss.backward()
    found = {name.removeprefix("module."): p.grad for name, p in model.named_parameters() if p.requires_grad}
    found |= {name: value for name, value in model.named_buffers() if name.endswith("centre")}
    return {"loss": loss.detach(), **{name.removeprefix("module."): value for name, value in found.items()}}


def one_rank(rank: int, port: int, folder: str) -> None:
    """All cases, and what `gather` alone gives, in one process of two."""
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    address = f"tcp://127.0.0.1:{port}"
    dist.init_process_group("gloo", address, timedelta(seconds=60), world_size=RANKS, rank=rank)
    results: dict[str, Any] = {}
    for name, (values, ancestry) in CASES.items():
        mine = slice(rank * 8, rank * 8 + 8)
        results[name] = run(DistributedDataParallel(Both(values)), *batch(ancestry, mine))

    x = torch.full((3, 2), float(rank), requires_grad=True)
    y = torch.zeros(6, 2, requires_grad=True)
    earlier = y * 1  # autograd comes to it after `gather`, with the same gradient tensor
    rows_of_all, first = gather_ranks(x)
    (rows_of_all + earlier).mul(torch.arange(12.0).reshape(6, 2) + 100 * rank).sum().backward()
    ids, _ = gather_ranks(torch.arange(4).reshape(2, 2) + 10 * rank)
    results["gather"] = {"rows": rows_of_all.detach(), "first": first, "x": x.grad, "y": y.grad, "ids": ids}
    torch.save(results, Path(folder) / f"{rank}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def by_rank(tmp_path_factory) -> list[dict[str, Any]]:
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


@pytest.mark.whole
@pytest.mark.parametrize("name", CASES)
def test_two_ranks_are_one_large_batch(name, by_rank):
    values, ancestry = CASES[name]
    alone = run(Both(values), *batch(ancestry))
    ranks = [results[name] for results in by_rank]
    torch.testing.assert_close(sum(rank["loss"] for rank in ranks) / RANKS, alone["loss"], rtol=1e-5, atol=1e-5)
    assert ranks[0].keys() == alone.keys()
    assert any(grad.abs().max() > 1e-4 for key, grad in alone.items() if key != "loss")
    for key in alone.keys() - {"loss"}:
        for rank in ranks:  # DistributedDataParallel has averaged them already
            scale = max(1.0, float(alone[key].abs().max()))
            torch.testing.assert_close(rank[key], alone[key], rtol=1e-5, atol=1e-5 * scale, msg=lambda m, k=key: k + m)


@pytest.mark.whole
def test_unequal_ranks_do_disagree_on_their_own(by_rank):
    """The cases above would prove nothing if the ranks' losses were alike or did not know of each other."""
    for name in ("hidisc, unequal ranks", "simclr, unequal ranks", "supcon"):
        first, second = (float(results[name]["loss"]) for results in by_rank)
        assert abs(first - second) > 0.1
    values, ancestry = CASES["hidisc"]
    own = Both(values)(*batch(ancestry, slice(8))).item()
    assert abs(own - float(by_rank[0]["hidisc"]["loss"])) > 0.1


@pytest.mark.whole
def test_rows_come_in_the_order_of_ranks_and_gradients_are_summed_over_them(by_rank):
    weights = torch.arange(12.0).reshape(6, 2)
    for rank, results in enumerate(by_rank):
        found = results["gather"]
        assert found["rows"].tolist() == [[0, 0]] * 3 + [[1, 1]] * 3
        assert found["first"] == 3 * rank
        assert found["ids"].tolist() == [[0, 1], [2, 3], [10, 11], [12, 13]]
        assert torch.equal(found["x"], (2 * weights + 100)[3 * rank : 3 * rank + 3])
        assert torch.equal(found["y"], weights + 100 * rank)  # another's gradient is not written over


def test_alone_the_rows_are_ours():
    x = torch.rand(3, 2, requires_grad=True)
    rows, first = gather_ranks(x)
    assert rows is x
    assert first == 0

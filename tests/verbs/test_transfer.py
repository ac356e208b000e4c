"""Two devices that start from weights learn what one does, also when the backbone begins to learn on the way."""

import signal
from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import save_file

from hidisc.training.checkpoint import list_checkpoints, read_checkpoint
from hidisc.training.log import METRICS, read_metrics
from tests.commands import Forks, signal_at
from tests.training.stores import TINY, make_store, outcome

SCALE = ("model.mean=[0.5, 0.5, 0.5]", "model.std=[0.5, 0.5, 0.5]")
RATES = ("optim.layer_decay=0.7", "optim.decay_norms=false", "optim.freeze_backbone=0.5")
SAME = ("views.ops=[]", "optim.steps=6", "batch.images=48", *SCALE, *RATES)
"""Without random views, two devices see what one does."""
VIT = ("model.backbone=test_vit", "model.options={qkv_bias: false}")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_store(tmp_path_factory.mktemp("tiny"))


def command(store: Path, out: Path, weights: Path, *changes: str) -> list[str]:
    settings = (*TINY, *SAME, f"model.weights={weights}", *changes)
    words = [word for change in settings for word in ("--set", change)]
    return ["train", str(store), "--out", str(out), "--device", "cpu", *words]


@pytest.mark.whole
@pytest.mark.parametrize("kind", ["a transformer", "frozen statistics", "statistics of all ranks"])
def test_two_devices_learn_what_one_does(store: Path, forks: Forks, tmp_path: Path, kind: str) -> None:
    changes = {
        "a transformer": VIT,
        "frozen statistics": ("model.batch_norm=frozen", "compute.sync_batchnorm=true"),
        "statistics of all ranks": ("compute.sync_batchnorm=true",),
    }[kind]
    torch.manual_seed(0)
    options = {"img_size": 32, "qkv_bias": False} if VIT[0] in changes else {}
    net = timm.create_model("test_vit" if options else "test_resnet", **options)
    for _ in range(0 if options else 20):
        net(torch.rand(16, 3, 32, 32))
    weights = tmp_path / "weights.safetensors"
    save_file(net.state_dict(), weights)
    one, two = tmp_path / "one", tmp_path / "two"
    assert forks.run(*command(store, one, weights, *changes)).code == 0
    ended = forks.run(*command(store, two, weights, *changes), "--devices", "2", ranks=2)
    assert (ended.code, ended.said) == (0, "")
    pairs = list(zip(read_metrics(one / METRICS), read_metrics(two / METRICS), strict=True))
    assert len(pairs) == 6
    for mine, its in pairs:
        for name in mine.keys() - {"effective_rank", "images_per_s", "wait_share"}:
            assert its[name] == pytest.approx(mine[name], rel=1e-3 if name == "grad_norm" else 1e-4), name
    assert pairs[3][0]["grad_norm"] > 1.05 * pairs[2][0]["grad_norm"], "the backbone has gradients from step 4 on"
    mine, its = (read_checkpoint(list_checkpoints(out)[-1])[1] for out in (one, two))
    assert mine.keys() == its.keys()

    again = tmp_path / "again"
    words = [*command(store, again, weights, *changes), "--devices", "2"]
    killed = forks.run(*words, at=signal_at("step.done", 3, to="group"), ranks=2)
    assert killed.code == -signal.SIGKILL
    assert forks.run(*words, ranks=2).code == 0
    assert outcome(again) == outcome(two)

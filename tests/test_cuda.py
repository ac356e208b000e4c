"""What runs on a GPU, run on one that is not there: nothing is left on the CPU, and no step waits for the device.

The fake one (`tests/fake_gpu.py`) has shapes and devices and no numbers. That it notices what it is for is tested last.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from lightning_fabric.accelerators import CPUAccelerator
from lightning_fabric.strategies import SingleDeviceStrategy
from torch import Tensor, nn
from torch.testing._internal.distributed.fake_pg import FakeStore

from hidisc.embeddings import extract
from hidisc.evaluation import neighbours
from hidisc.evaluation.neighbours import find_neighbours
from hidisc.ground.tensors import to_device
from hidisc.models.batch_norm import BatchNormOfAllRanks
from hidisc.models.encoder import effective_rank
from hidisc.models.foreign import Prepared
from hidisc.objectives import hidisc
from hidisc.objectives.objective import list_objectives, load_settings
from hidisc.patches.store import PatchStore
from hidisc.sampling import operations, views
from hidisc.sampling.batches import Batches
from hidisc.sampling.cohort_stain import BatchStains, StainTable, measure_stains
from hidisc.sampling.views import DRAWS, make_views
from hidisc.settings.train import ViewsConfig
from hidisc.training import monitor as sanity
from hidisc.training import step
from hidisc.training.build import build_learner, build_optimizer, choose_training_set
from hidisc.training.monitor import Monitor, note_finite
from hidisc.training.processes import Fabric
from hidisc.training.step import take_step
from hidisc.verbs import build
from tests.fake_gpu import CUDA, fake_gpu, move
from tests.training.stores import make_store, tiny

SMALL = {"byol": "predictor_dim: 16", "simsiam": "predictor_dim: 16", "dino": "prototypes: 16"}
LOCAL = ("views.local={number: 2, size_px: 16}", "views.global={size_px: 24, scale: [0.4, 1]}")
SETTINGS = {
    "accumulated and clipped": ("optim.accumulate=2", "optim.clip=0.5"),
    "a transformer": ("model.backbone=test_vit", "model.options={drop_path_rate: 0.5, proj_drop_rate: 0.1}"),
    "bf16": ("compute.precision=bf16",),
    "all views": (f"views.ops=[{', '.join(DRAWS)}]", "views.probability=0.5"),
    "across slides": ("objective={name: hidisc, across: {patient: slide}, temperature: {patient: 0.5}}",),
    "local views": LOCAL,
    "dino with all options": ("objective={name: dino, prototypes: 16, spread: 0.1, balance: sinkhorn}", *LOCAL),
    "rows as they are": ("compute.channels_last=false", "views.ops=[]"),
}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> PatchStore:
    return PatchStore.load(make_store(tmp_path_factory.mktemp("tiny")))


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """A GPU that is not there, and what made the host wait for it."""
    with fake_gpu(monkeypatch) as waits:
        yield waits


class Training:
    """A run before its first step, as `fit` makes it, with the learner on the GPU."""

    def __init__(self, store: PatchStore, *changes: str, world: int = 1) -> None:
        self.config, self.store = tiny(*changes), store
        objective = load_settings(self.config.objective)
        training_set = choose_training_set(store, self.config, objective)
        self.learner_on_cpu = build_learner(training_set, self.config, objective, world).train()
        sampler = training_set.sampler(self.config, world)
        self._source = Batches(store, training_set.tree, sampler, self.config.data, self.config.seed, pin=True)
        precision: Any = {"32": "32-true", "bf16": "bf16-mixed"}[self.config.compute.precision]
        strategy = SingleDeviceStrategy(device=CUDA, accelerator=CPUAccelerator())
        self._measured = measure_stains(store, training_set.tree.leaves, seed=0)
        self.fabric = Fabric(strategy=strategy, precision=precision)

    def begin(self) -> None:
        """Move to the fake GPU; from here on nothing holds numbers."""
        module = move(self.learner_on_cpu)
        self._stains = StainTable(self.store, self._measured) if "cohort_stain" in self.config.views.ops else None
        optimizer = build_optimizer(module, self.config)  # type: ignore[arg-type]
        self.learner, self.optimizer = self.fabric.setup(module, optimizer, move_to_device=False)
        self.batches = [self._source.load(part) for part in range(self.config.optim.accumulate)]

    def step(self) -> step.StepResult:
        """An optimiser step that nobody logs."""
        return take_step(
            self.fabric,
            self.learner,
            self.optimizer,
            iter(self.batches),
            self.config,
            step.ViewMaker(self.config, self.store),
            progress=0.5,
            wants_norm=False,
            stains=self._stains,
        )


def objective(name: str) -> tuple[str, ...]:
    """Settings of an objective, with labels and without."""
    changes: tuple[str, ...] = (f"objective={{name: {name}, {SMALL.get(name, '')}}}", "model.head.layers=2")
    return (*changes, "batch.levels=[patch]", "batch.draw={}") if name == "supervised" else changes


@pytest.mark.parametrize("op", DRAWS)
@pytest.mark.parametrize("probability", [0.5, 1])
def test_views(gpu: list[str], op: Any, probability: float) -> None:
    images = torch.rand(6, 3, 24, 32, device=CUDA)
    config = ViewsConfig(ops=(op,), probability=probability)
    of_slides = BatchStains(torch.zeros(6, 3, 2, device="cpu"), *torch.ones(2, 3, 2, device="cpu"))
    made = make_views(images, 2, config, torch.Generator().manual_seed(0), colour=True, stains=of_slides)
    assert (made.device, tuple(made.shape)) == (CUDA, (6, 2, 3, 24, 32))
    assert gpu == []


def test_views_of_other_channels_in_several_pieces(gpu: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(views, "DEVICE_VALUES", 3 * 2 * 24 * 32)  # three images at a time
    images = torch.rand(4, 2, 24, 32, device=CUDA)
    config = ViewsConfig(ops=tuple(op for op in DRAWS if "stain" not in op))
    made = make_views(images, 2, config, torch.Generator().manual_seed(0), colour=False)
    assert (made.device, tuple(made.shape)) == (CUDA, (4, 2, 2, 24, 32))
    assert gpu == []


@pytest.mark.parametrize(
    "changes", [*map(objective, list_objectives()), *SETTINGS.values()], ids=[*list_objectives(), *SETTINGS]
)
def test_a_step_of_training(store: PatchStore, monkeypatch: pytest.MonkeyPatch, changes: tuple[str, ...]) -> None:
    """Views, loss, gradients, optimiser: twice, as the optimiser's state is made in the first step."""
    run = Training(store, *changes)
    with fake_gpu(monkeypatch) as waits:
        run.begin()
        first_bad = torch.full((), -1, device=CUDA)
        for number in (1, 2):
            taken = run.step()
            first_bad = note_finite(first_bad, taken.losses["loss"], number)
        assert waits == []
        trained = [p for p in run.learner.parameters() if p.requires_grad]
        state = [value for p in trained for name, value in run.optimizer.state[p].items() if name != "step"]
        assert len(state) == 2 * len(trained), "every weight had a gradient"
        for value in (*taken.losses.values(), taken.embeddings, first_bad, *trained, *state):
            assert value.device == CUDA
        if run.config.objective["name"] != "supervised":
            assert taken.losses.keys() > {"loss"}


@pytest.fixture
def _two_ranks() -> Iterator[None]:
    """A process group whose second rank is not there."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("_two_ranks")
@pytest.mark.parametrize("name", ["byol", "dino", "hidisc", "vicreg"])
def test_a_step_of_one_of_two_ranks(store: PatchStore, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Rows and batch statistics of all ranks are gathered on the device, and nobody waits."""
    run = Training(store, *objective(name), "compute.sync_batchnorm=true", "batch.images=48", world=2)
    assert any(isinstance(module, BatchNormOfAllRanks) for module in run.learner_on_cpu.modules())
    with fake_gpu(monkeypatch) as waits:
        run.begin()
        taken = run.step()
        assert waits == []
        assert all(value.device == CUDA for value in taken.losses.values())


def test_what_is_logged(store: PatchStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Whoever asks for numbers waits, and asks the device, not the CPU."""
    run = Training(store, "optim.clip=1")
    with fake_gpu(monkeypatch) as waits:
        run.begin()
        taken = run.step()
        assert waits == []
        float(taken.norm)
        effective_rank(taken.embeddings)
        sanity.check_weights(run.fabric, run.learner, 1, tmp_path)
        assert waits


def test_the_monitor(store: PatchStore, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Training(store)
    with fake_gpu(monkeypatch) as waits:
        run.begin()
        watched = run.config.monitor.model_copy(update={"split": "test"})
        monitor = Monitor(store, watched, run.config.data, 0)
        monitor.accuracy(run.learner.module.encoder, CUDA)
        assert set(waits) == {"a copy to the host"}


def test_embedding(store: PatchStore, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Training(store)
    net = Prepared(run.learner_on_cpu.encoder, 48, [0.5] * 3, [0.2] * 3).eval()
    with fake_gpu(monkeypatch) as waits, torch.inference_mode():
        pixels, unread = extract._read(store, np.arange(5), pin=True)
        vectors = extract._embed(run.fabric, move(net), to_device(pixels, CUDA), "unit")
        assert (vectors.device, len(vectors), unread, waits) == (CUDA, 5, [], [])


def test_labels_that_a_supervised_run_predicts(store: PatchStore, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Training(store, *objective("supervised"))
    encoder = run.learner_on_cpu.encoder.eval()
    with fake_gpu(monkeypatch):
        codes, scores = build._predict(move(encoder), np.zeros((5, 32, 32, 3), np.float32), "cuda:0")  # type: ignore[arg-type]
    assert codes.shape == scores.shape == (5,)


@pytest.mark.parametrize("memory_gb", [1.0, 4e-5], ids=["whole", "in pieces"])
@pytest.mark.parametrize("columns", [4096, 64], ids=["one tile", "tiles"])
def test_neighbours(gpu: list[str], monkeypatch: pytest.MonkeyPatch, memory_gb: float, columns: int) -> None:
    monkeypatch.setattr(neighbours, "_COLUMNS", columns)
    rng = np.random.default_rng(0)
    queries, bank = (rng.random((rows, 8), np.float32) for rows in (5, 300))
    for _, near, places in find_neighbours(queries, bank, 4, memory_gb, "cuda:0"):
        assert near.shape == places.shape
    assert gpu


# What it is for


@pytest.fixture
def plain(store: PatchStore) -> Training:
    return Training(store, "views.ops=[noise, jitter]", "views.probability=1")


def failure_of(run: Training, monkeypatch: pytest.MonkeyPatch) -> str:
    """What a step raises; nothing when it comes to its end without waiting."""
    with fake_gpu(monkeypatch) as waits:
        run.begin()
        try:
            run.step()
        except RuntimeError as error:
            return str(error)
        return "; ".join(sorted(set(waits)))


def test_the_fake_one_is_quiet_when_all_is_well(plain: Training, monkeypatch: pytest.MonkeyPatch) -> None:
    assert failure_of(plain, monkeypatch) == ""


def test_a_tensor_on_the_cpu_is_noticed(plain: Training, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operations, "constant", lambda values, like: torch.tensor(values))
    assert "found at least two devices, cuda:0" in failure_of(plain, monkeypatch)


def test_a_buffer_on_the_cpu_is_noticed(plain: Training, monkeypatch: pytest.MonkeyPatch) -> None:
    begin = plain.begin

    def forget() -> None:
        begin()
        normal = next(m for m in plain.learner.modules() if isinstance(m, nn.BatchNorm2d))
        normal.running_mean = torch.zeros(normal.num_features)

    monkeypatch.setattr(plain, "begin", forget)
    assert "found at least two devices, cuda:0" in failure_of(plain, monkeypatch)


def test_a_generator_on_the_cpu_is_noticed(plain: Training, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operations, "start_generator", lambda generator, device: generator)
    assert "Expected a 'cuda' device type for generator but found 'cpu'" in failure_of(plain, monkeypatch)


def test_a_tensor_on_the_cpu_in_a_backward_pass_is_noticed(plain: Training, monkeypatch: pytest.MonkeyPatch) -> None:
    backward = hidisc._LogSumExp.backward

    def wrong(ctx: Any, grad: Tensor) -> Any:
        first, *others = backward(ctx, grad)
        return first + torch.zeros(first.shape), *others

    monkeypatch.setattr(hidisc._LogSumExp, "backward", staticmethod(wrong))
    assert "found at least two devices, cuda:0" in failure_of(plain, monkeypatch)


@pytest.mark.parametrize(
    ("wait", "noted"),
    [
        (lambda x: float(x.sum()), "aten._local_scalar_dense.default"),
        (lambda x: x.sum().item(), "aten._local_scalar_dense.default"),
        (lambda x: bool((x > 0).all()), "aten._local_scalar_dense.default"),
        (lambda x: x.cpu(), "a copy to the host"),
        (lambda x: (x > 0).nonzero(), "aten.nonzero.default"),
        (lambda x: x.new_tensor([1.0, 2.0]), "a copy from memory that is not page-locked"),
        (lambda x: torch.tensor([1.0], device=x.device), "a copy from memory that is not page-locked"),
        (lambda x: torch.zeros(3).to(x.device), "a copy from memory that is not page-locked"),
        (lambda x: torch.zeros(3).to(x.device, non_blocking=True), "a copy from memory that is not page-locked"),
        (lambda x: torch.zeros(3).pin_memory().to(x.device), "a copy from memory that is not page-locked"),
    ],
)
def test_waiting_is_noticed(gpu: list[str], wait: Any, noted: str) -> None:
    wait(torch.rand(4, device=CUDA))
    assert gpu == [noted]


def test_waiting_in_a_step_is_noticed(plain: Training, monkeypatch: pytest.MonkeyPatch) -> None:
    made = step.to_input
    monkeypatch.setattr(step, "to_input", lambda pixels, rule: made(pixels, rule) * float(pixels.sum()))
    assert failure_of(plain, monkeypatch) == "aten._local_scalar_dense.default"


def test_what_only_the_device_knows_is_noticed(plain: Training, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step, "to_input", lambda pixels, _: torch.unique(pixels.float()))
    assert "aten._unique2.default" in failure_of(plain, monkeypatch)

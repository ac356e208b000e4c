"""Short trainings: whatever ends them, the same call goes on to the same bits; what goes wrong is named."""

import errno
import shutil
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from math import cos, pi
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from hidisc.artefacts.artefact import verify
from hidisc.ground import files
from hidisc.ground.errors import UserError
from hidisc.ground.progress import Progress
from hidisc.objectives import hidisc as objective
from hidisc.objectives.hidisc import hidisc_loss
from hidisc.objectives.objective import Losses, Rows, find_objective, load_settings
from hidisc.patches.folders import find_folder
from hidisc.patches.store import PatchStore
from hidisc.sampling.batches import Batches, to_input
from hidisc.training import checkpoint, fit, monitor, plan
from hidisc.training.build import build_learner, choose_training_set
from hidisc.training.checkpoint import checkpoint_path, list_checkpoints, read_checkpoint
from hidisc.training.processes import asks_others
from hidisc.training.run import STAIN
from hidisc.verbs import train as verb
from hidisc.verbs.prepare import import_patches
from tests.training.stores import TRAIN, damage, losses, outcome, tiny, train, train_until

VIT = ("model.backbone=test_vit", "model.options={drop_path_rate: 0.5}")
DINO = "objective={name: dino, prototypes: 32, momentum: 0.5, spread: 0.1, freeze_prototypes: 0.3}"
KINDS = {
    "hidisc": (),
    "byol": ("objective={name: byol, momentum: 0.5, predictor_dim: 16}", "model.head.layers=2"),
    "dino": (DINO, "views.local={number: 2, size_px: 16}", "views.global.scale=[0.4, 1]", "optim.accumulate=2"),
    "accumulated and clipped": ("optim.accumulate=2", "optim.clip=0.5"),
    "stochastic depth": VIT,
    "supervised": ("objective={name: supervised}", "batch.levels=[patch]", "batch.draw={}"),
    "across slides": ("objective.across={patient: slide}", "objective.temperature={patient: 0.5, patch: 0.1}"),
    "stains of the cohort": ("views.ops=[flips, cohort_stain]", "views.probability=0.8"),
}


def names(run: Path) -> list[str]:
    return [path.name for path in list_checkpoints(run)]


def refusal(store: Path, out: Path, *changes: str) -> str:
    with pytest.raises(UserError) as caught:
        train(store, out, *changes)
    return str(caught.value)


# Going on


@pytest.mark.parametrize("kind", KINDS)
def test_interrupted_and_not(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    whole, out = train(store, tmp_path / "whole", *KINDS[kind]), tmp_path / "run"
    for step in (1, 3, 4, 6):  # before the first checkpoint, between two, at one before and after it is written
        train_until(step, monkeypatch, store, out, *KINDS[kind])
    said: list[str] = []
    run = train(store, out, *KINDS[kind], said=said)
    assert said == [f"going on after step 4 ({out / 'checkpoints' / 'step-00000004.safetensors'})"]
    assert outcome(out) == outcome(whole.path)
    assert len(losses(out)) == 6
    assert (run.info.images, run.info.steps) == (whole.info.images, 6)


def test_stochastic_depth_is_at_work(store: Path, tmp_path: Path) -> None:
    """Else the case above would show nothing about what is drawn within the network."""
    for name, changes in (("with", VIT), ("without", VIT[:1])):
        train(store, tmp_path / name, *changes, "optim.steps=1")
    assert losses(tmp_path / "with") != losses(tmp_path / "without")


def test_another_seed_is_another_run(store: Path, tmp_path: Path) -> None:
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        train(store, tmp_path / name, f"seed={seed}", "optim.steps=2")
    assert outcome(tmp_path / "a") == outcome(tmp_path / "b") != outcome(tmp_path / "c")
    assert losses(tmp_path / "a")[0]["loss"] != losses(tmp_path / "c")[0]["loss"]


def test_the_random_state_of_the_caller_is_left_alone(store: Path, tmp_path: Path) -> None:
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    train(store, tmp_path / "run", *VIT, "optim.steps=1")
    assert torch.equal(torch.rand(2), expected)


class Plain(torch.nn.Module):
    """An encoder that says what it is shown."""

    dim = 128

    def project(self, x: torch.Tensor) -> torch.Tensor:
        return x


@pytest.mark.parametrize("name", ["hidisc", "supcon", "vicreg"])
def test_two_threads_add_up_in_one_order(name: str) -> None:
    """A batch of the paper's size, relatives far apart in it: threads that share a sum must not race for it."""
    settings = load_settings({"name": name})
    torch.manual_seed(0)
    loss = find_objective(settings)(settings, Plain(), ("patient", "slide", "patch"), ("a", "b"))  # type: ignore[arg-type]
    x = torch.randn(512, 128)
    numbers = torch.arange(256).repeat_interleave(2)
    rows = Rows(torch.stack([numbers % 7, numbers % 14, numbers], dim=1), numbers % 2, views=2)
    seen = set()
    torch.set_num_threads(2)
    try:
        for _ in range(10):
            x.grad = None
            loss(Plain(), x.requires_grad_(), rows).total.backward()
            seen.add(x.grad.numpy().tobytes())  # type: ignore[union-attr]
    finally:
        torch.set_num_threads(1)
    assert len(seen) == 1


class ShownRows(Progress):
    """Keeps what it is shown."""

    def __init__(self) -> None:
        self.rows, self.steps = list[dict[str, float]](), 0

    def show(self, values: Mapping[str, float]) -> None:
        self.rows.append(dict(values))

    def advance(self, count: int = 1) -> None:
        self.steps += count


def test_losses_are_shown_from_the_first_step_on(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The progress bar need not wait for the first row of metrics.csv; a device waits once for it, not every step."""
    reads = []
    monkeypatch.setattr(fit, "mean_of_all", lambda fabric, value: (reads.append(1), float(value))[1])
    out, shown = tmp_path / "run", ShownRows()
    config = tiny("optim.steps=5", "log.every=4", "checkpoint.every=2")
    verb.train(store, out, config, device="cpu", devices=1, watch=shown)
    assert [row["step"] for row in shown.rows] == [1, 1, 1, 4, 5]
    assert shown.steps == 5
    assert shown.rows[0].keys() == {"step", "loss", "patient", "slide", "patch", "images_per_s", "wait_share"}
    assert [row["step"] for row in losses(out)] == [4, 5]
    assert len(reads) == 3 * 4, "loss and its parts in three steps of five"
    every = tmp_path / "every"
    verb.train(store, every, tiny("optim.steps=5"), device="cpu", devices=1)
    names_of_losses = ("loss", "patient", "slide", "patch")
    assert [shown.rows[0][name] for name in names_of_losses] == [losses(every)[0][name] for name in names_of_losses]


@pytest.mark.parametrize("moment", ["before", "after"])
def test_interrupted_while_the_encoder_is_written(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    whole, out = train(store, tmp_path / "whole"), tmp_path / "run"
    write = fit.write_atomic

    def stop(path: Path, data: bytes) -> None:
        if moment == "after":
            write(path, data)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(fit, "write_atomic", stop)
        with pytest.raises(KeyboardInterrupt):
            train(store, out)
    before = names(out)
    train(store, out)
    assert outcome(out) == outcome(whole.path)
    assert names(out) == before == ["step-00000004.safetensors", "step-00000006.safetensors"]


def test_a_run_goes_on_from_the_one_before_when_the_last_is_removed(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, out = train(store, tmp_path / "whole"), tmp_path / "run"
    train_until(5, monkeypatch, store, out)
    last = list_checkpoints(out)[-1]
    last.write_bytes(last.read_bytes()[:-1])
    assert refusal(store, out).startswith(f"checkpoint {last} is damaged (")
    last.unlink()
    train(store, out)
    assert outcome(out) == outcome(whole.path)


def test_the_checkpoint_of_another_model_is_refused(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, other = tmp_path / "mine", tmp_path / "other"
    train_until(3, monkeypatch, store, mine)
    train_until(3, monkeypatch, store, other, "model.head.dim=9")
    shutil.copy(list_checkpoints(other)[-1], list_checkpoints(mine)[-1])
    assert " is of another model. Remove it to go on" in refusal(store, mine)


def test_checkpoints_are_few(store: Path, tmp_path: Path) -> None:
    train(store, tmp_path / "run", "checkpoint.every=1", "checkpoint.keep=3", "optim.steps=5")
    assert names(tmp_path / "run") == [f"step-{step:08d}.safetensors" for step in (3, 4, 5)]


AT = ("optim.steps=9", "checkpoint.at=[1, 5, 7]")


def test_checkpoints_asked_for_are_written_and_kept(store: Path, tmp_path: Path) -> None:
    run = train(store, tmp_path / "run", *AT)
    assert names(run.path) == [f"step-{step:08d}.safetensors" for step in (1, 5, 7, 8, 9)]
    every = train(store, tmp_path / "every", "optim.steps=9", "checkpoint.every=1", "checkpoint.keep=9")
    assert outcome(run.path) == outcome(every.path)
    for step in (1, 5, 7):
        found, expected = (one.encoder_at(step).state_dict() for one in (run, every))
        assert all(torch.equal(found[name], expected[name]) for name in expected)


@pytest.mark.parametrize("step", [2, 6, 8])
def test_a_run_with_checkpoints_asked_for_goes_on_exactly(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    whole, out = train(store, tmp_path / "whole", *AT), tmp_path / "run"
    train_until(step, monkeypatch, store, out, *AT)
    said: list[str] = []
    train(store, out, *AT, said=said)
    before = {2: 1, 6: 5, 8: 7}[step]
    assert f"going on after step {before} (" in said[-1]
    assert outcome(out) == outcome(whole.path)
    assert names(out) == names(whole.path)
    for kept in (1, 5, 7):
        found, expected = (read_checkpoint(checkpoint_path(run, kept))[1] for run in (out, whole.path))
        assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_checkpoints_behind_the_end_are_refused() -> None:
    with pytest.raises(UserError) as caught:
        tiny("optim.steps=9", "checkpoint.at=[5, 3000]")
    assert str(caught.value) == (
        "settings:\n  checkpoint.at = [5, 3000] has step 3,000, but the training ends with optim.steps = 9. "
        "Leave it out, or train longer."
    )


def test_time_adds_up_over_interruptions(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train_until(5, monkeypatch, store, tmp_path / "run")
    before = read_checkpoint(list_checkpoints(tmp_path / "run")[-1])[0].seconds
    assert 0 < before <= train(store, tmp_path / "run").info.seconds + 0.05


@pytest.mark.parametrize(
    ("accumulate", "world", "steps"),
    [(1, 1, [1, 2, 3, 4, 5]), (1, 2, [10, 20, 30]), (4, 2, [2, 4, 6, 8]), (10, 2, [1, 2, 3]), (64, 2, [1, 2, 3])],
)
def test_ranks_ask_each_other_to_stop_every_ten_batches(accumulate: int, world: int, steps: list[int]) -> None:
    asked = [step for step in range(1, steps[-1] + 1) if asks_others(step, accumulate, world)]
    assert asked == steps


def test_a_training_outside_the_main_thread(store: Path, tmp_path: Path) -> None:
    """Where signals cannot be caught, as in a notebook's worker."""
    with ThreadPoolExecutor(1) as pool:
        run = pool.submit(train, store, tmp_path / "run", "optim.steps=1").result()
    assert run.info.steps == 1


def test_the_stains_of_the_cohort_are_measured_once_and_kept(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, changes = tmp_path / "run", KINDS["stains of the cohort"]
    train_until(3, monkeypatch, store, out, *changes)
    path = out / STAIN
    data = path.read_bytes()
    monkeypatch.setattr(plan, "measure_stains", None)  # it is not measured again
    path.write_bytes(data.replace(b"P0-x", b"P0-z"))
    said = refusal(store, out, *changes)
    assert said == f"{path} is damaged (its checksum differs). Remove it: it is measured again."
    path.write_bytes(data)
    run = train(store, out, *changes)
    assert b"P0-x" in data
    assert b"T0-x" not in data, "test patients are not measured"
    path.write_bytes(data.replace(b"P0-x", b"P0-z"))
    assert any(STAIN in problem for problem in verify(run.path)), "`hidisc doctor` knows the file"


# A full disk


@pytest.mark.parametrize("what", ["step-", "metrics", "config", "encoder", "run.json"])
def test_a_full_disk_is_said_and_nothing_is_lost(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    whole, out = train(store, tmp_path / "whole"), tmp_path / "run"
    if what != "config":
        train_until(3, monkeypatch, store, out)
    write = Path.write_bytes

    def full(path: Path, data: bytes) -> int:
        if what in path.name:
            write(path, data[: len(data) // 2])
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(path, data)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", full)
        assert refusal(store, out) == (
            "the disk is full (No space left on device). What has been saved is whole: free some space and run the "
            "same command again."
        )
    kept = {"config": [], "encoder": [4, 6], "run.json": [4, 6]}.get(what, [2])
    assert [read_checkpoint(path)[0].step for path in list_checkpoints(out)] == kept
    assert not list(out.rglob(f"{files.PART}*"))
    train(store, out)
    assert outcome(out) == outcome(whole.path)


# Alarms


def spoil(monkeypatch: pytest.MonkeyPatch, call: int, how: Callable[[Losses], Losses]) -> None:
    """Have the objective answer something else the n-th time it is asked."""
    forward, calls = objective.Loss.forward, []

    def spoiled(*args: object) -> Losses:
        calls.append(None)
        right = forward(*args)  # type: ignore[arg-type]
        return how(right) if len(calls) == call else right

    monkeypatch.setattr(objective.Loss, "forward", spoiled)


def no_number(right: Losses) -> Losses:
    return Losses(right.total * float("nan"), right.parts, right.embeddings)


def no_gradient(right: Losses) -> Losses:
    """The same loss, but its gradient is no number: 0 times the infinite slope of a root at 0."""
    return Losses(right.total + (right.total * 0).sqrt(), right.parts, right.embeddings)


ADVICE = "Lower optim.learning_rate, set optim.clip=1, or use compute.precision=32, with a new --out."


@pytest.mark.parametrize("log_every", [1, 100])
@pytest.mark.parametrize(
    ("changes", "call", "how", "sentence"),
    [
        ((), 4, no_number, "the loss is not finite at step 4"),
        ((), 3, no_number, "the loss is not finite at step 3"),
        (("optim.accumulate=2",), 7, no_number, "the loss is not finite at step 4"),
        (("optim.accumulate=2",), 8, no_number, "the loss is not finite at step 4"),
        ((), 4, no_gradient, "the weights are not finite after step 4"),
        ((), 3, no_gradient, "the loss is not finite at step 4"),
    ],
)
def test_numbers_that_are_not_finite(
    store: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    log_every: int,
    changes: tuple[str, ...],
    call: int,
    how: Callable[[Losses], Losses],
    sentence: str,
) -> None:
    out = tmp_path / "run"
    spoil(monkeypatch, call, how)
    said = refusal(store, out, *changes, f"log.every={log_every}")
    good = out / "checkpoints" / "step-00000002.safetensors"
    assert said == f"{sentence}. The last good state is {good}. {ADVICE}"
    assert list_checkpoints(out) == [good]
    assert all(value.isfinite().all() for value in read_checkpoint(good)[1].values())


def test_a_learning_rate_that_is_far_too_high(store: Path, tmp_path: Path) -> None:
    said = refusal(store, tmp_path / "run", "optim.learning_rate=1e30", "optim.warmup=0")
    assert said == f"the loss is not finite at step 2. No checkpoint had been written. {ADVICE}"


def collapse(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the objective see the same embedding for every image."""
    forward = objective.Loss.forward

    def collapsed(*args: object) -> Losses:
        right = forward(*args)  # type: ignore[arg-type]
        return Losses(right.total, right.parts, torch.ones_like(right.embeddings))

    monkeypatch.setattr(objective.Loss, "forward", collapsed)


@pytest.mark.parametrize(("warmup", "at"), [(0, 1), (0.5, 4), (0.34, 3)])
def test_a_collapse_stops_after_the_warm_up(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, warmup: float, at: int
) -> None:
    collapse(monkeypatch)
    out = tmp_path / "run"
    said = refusal(store, out, f"optim.warmup={warmup}", "checkpoint.every=1")
    kept = f"The last good state is {list_checkpoints(out)[-1]}" if at > 1 else "No checkpoint had been written"
    assert said == (
        f"the embeddings have collapsed at step {at}: their effective rank is 1.00, below log.min_rank = 1.05. {kept}. "
        "Lower optim.learning_rate or use stronger views, with a new --out; log.min_rank=0 trains on regardless."
    )
    assert names(out) == [f"step-{step:08d}.safetensors" for step in range(1, at)][-2:]


def test_a_collapse_that_one_asked_for(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    collapse(monkeypatch)
    run = train(store, tmp_path / "run", "log.min_rank=0")
    assert [row["effective_rank"] for row in run.metrics()] == pytest.approx([1] * 6)


def test_a_collapsed_run_goes_on_when_told_to(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        collapse(patch)
        refusal(store, tmp_path / "run", "checkpoint.every=1", "optim.warmup=0.5")
    assert train(store, tmp_path / "run", "log.min_rank=0", "optim.warmup=0.5").info.steps == 6


@pytest.mark.parametrize(
    ("temperature", "bounds", "sentence"),
    [
        (
            0.01,
            [0.9, 1.0],
            r"^the teacher has collapsed at step 4: it gives all images the same prototype \(entropy over the batch "
            r"0\.[2-8]\d{3} of its largest value, below log\.entropy = \[0\.9, 1\.0\]\)\. The last good state is .*"
            r"step-00000002\.safetensors\. Lower objective\.centre_momentum or raise objective\.teacher_temperature, ",
        ),
        (
            100,
            [0.01, 0.999],
            r"^the teacher has collapsed at step 4: to every image all prototypes are alike \(entropy per image "
            r"1\.0000 of its largest value, above log\.entropy = \[0\.01, 0\.999\]\)\. The last good state is .*"
            r"step-00000002\.safetensors\. Lower objective\.teacher_temperature or optim\.learning_rate, with a new ",
        ),
    ],
    ids=["few prototypes", "uniform"],
)
def test_a_teacher_that_says_the_same_of_all_images(
    store: Path, tmp_path: Path, temperature: float, bounds: list[float], sentence: str
) -> None:
    """A sharp teacher uses few prototypes in its first steps, and a blunt one all of them alike."""
    settings = f"objective={{name: dino, teacher_temperature: [{temperature}, {temperature}]}}"
    changes = (settings, "log.min_rank=0", "optim.warmup=0.5", f"log.entropy={bounds}")
    with pytest.raises(UserError, match=sentence):
        train(store, tmp_path / "run", *changes)
    assert len(train(store, tmp_path / "run", *changes, "log.entropy=[0, 1]").metrics()) == 6


def test_refusals_name_a_checkpoint_that_is_there(tmp_path: Path) -> None:
    assert monitor._kept(tmp_path) == "No checkpoint had been written"


# What a step is


def step_by_hand(store: Path, parts: int) -> tuple[torch.nn.Module, float]:
    """The learner after the gradients of the first batches were averaged, and their norm; views are the patch."""
    config = tiny("views.ops=[]")
    opened = PatchStore.load(store)
    settings = load_settings(config.objective)
    training_set = choose_training_set(opened, config, settings)
    learner = build_learner(training_set, config, settings, 1).train()
    batches = Batches(opened, training_set.tree, training_set.sampler(config, 1), config.data, config.seed)
    total = torch.zeros(())
    for part in range(parts):
        batch = batches.load(part)
        x = to_input(batch.pixels, "unit").repeat_interleave(2, 0)
        z = F.normalize(learner.encoder.project(x), dim=1)
        total = total + hidisc_loss(z, batch.ancestry.repeat_interleave(2, 0), [1, 1, 1])[0]
    (total / parts).backward()
    grads = [parameter.grad for parameter in learner.parameters() if parameter.grad is not None]
    return learner, float(torch.cat([grad.flatten() for grad in grads]).norm())


def first_moments(run: Path) -> torch.Tensor:
    """AdamW's mean gradient, in the order of the parameters; after one step a tenth of the gradient."""
    tensors = read_checkpoint(list_checkpoints(run)[-1])[1]
    numbers = sorted(int(name.split(".")[1]) for name in tensors if name.endswith(".exp_avg"))
    return torch.cat([tensors[f"optimizer.{number}.exp_avg"].flatten() for number in numbers])


@pytest.mark.parametrize("parts", [1, 3])
def test_accumulated_gradients_are_the_mean(store: Path, tmp_path: Path, parts: int) -> None:
    learner, norm = step_by_hand(store, parts)
    run = train(store, tmp_path / "run", "views.ops=[]", "optim.steps=1", f"optim.accumulate={parts}")
    (row,) = run.metrics()
    assert row["grad_norm"] == pytest.approx(norm, rel=1e-4)
    expected = torch.cat([p.grad.flatten() for p in learner.parameters() if p.grad is not None]) / 10
    torch.testing.assert_close(first_moments(run.path), expected, rtol=1e-3, atol=1e-5 * norm)
    torch.optim.AdamW(learner.parameters(), row["learning_rate"], weight_decay=0.01).step()
    for name, value in run.encoder().named_parameters():
        torch.testing.assert_close(
            value, learner.encoder.get_parameter(name), rtol=0, atol=2e-3 * row["learning_rate"] + 1e-6
        )


@pytest.mark.parametrize("log_every", [1, 100])
def test_clipped_gradients(store: Path, tmp_path: Path, log_every: int) -> None:
    once = ("optim.steps=1", f"log.every={log_every}")
    free = train(store, tmp_path / "free", *once)
    clipped = train(store, tmp_path / "clipped", *once, "optim.clip=0.25")
    norm = free.metrics()[0]["grad_norm"]
    assert norm > 1
    assert clipped.metrics()[0]["grad_norm"] == norm, "the norm that is written down is from before"
    assert 10 * float(first_moments(free.path).norm()) == pytest.approx(norm, rel=1e-4)
    assert 10 * float(first_moments(clipped.path).norm()) == pytest.approx(0.25, rel=1e-4)


def test_writing_rows_down_changes_nothing(store: Path, tmp_path: Path) -> None:
    seen = [outcome(train(store, tmp_path / f"{every}", f"log.every={every}").path) for every in (1, 4)]
    assert seen[0]["checkpoint"] == seen[1]["checkpoint"]
    assert [row["step"] for row in losses(tmp_path / "4")] == [4, 6]
    assert losses(tmp_path / "4") == [losses(tmp_path / "1")[step - 1] for step in (4, 6)]


def test_learning_lowers_the_loss(store: Path, tmp_path: Path) -> None:
    rows = train(store, tmp_path / "run", "optim.steps=40", "views.ops=[flips]", "checkpoint.every=40").metrics()
    loss = [row["loss"] for row in rows]
    assert np.mean(loss[-5:]) < np.mean(loss[:5]) - 0.3


def test_the_target_of_byol_follows_slowly(store: Path, tmp_path: Path) -> None:
    """By 1 - momentum of the way at every step, and the momentum rises along a cosine to 1 at the last."""
    train(store, tmp_path / "run", *KINDS["byol"], "checkpoint.every=1", "checkpoint.keep=6")
    states = [read_checkpoint(path)[1] for path in list_checkpoints(tmp_path / "run")]
    slow = "learner.objective.target.backbone.conv1.0.weight"
    quick = slow.replace("objective.target", "encoder")
    for step, (before, after) in enumerate(pairwise(states), 2):
        share = 0.5 * (cos(pi * step / 6) + 1) / 2
        expected = before[slow] + share * (after[quick] - before[slow])
        torch.testing.assert_close(after[slow], expected, rtol=1e-6, atol=1e-9)
        assert torch.equal(after[slow], before[slow]) == (step == 6)
        assert not torch.equal(after[quick], before[quick])


def test_few_patients_repeat_and_it_is_said(store: Path, tmp_path: Path) -> None:
    said: list[str] = []
    train(store, tmp_path / "run", "batch.images=64", "optim.steps=1", said=said)
    assert said == [
        "note: a batch of 64 images draws 8 patients and there are 6: some repeat within a batch, as positives. "
        "Smaller batch.images avoid it."
    ]


ACROSS = "objective={name: hidisc, across: {patient: slide}}"


def test_patients_of_one_slide_have_no_positives_on_another_and_it_is_said(store: Path, tmp_path: Path) -> None:
    pictures = shutil.copytree(store.parent / "pictures", tmp_path / "pictures")
    for patient in ("P0", "P3"):
        shutil.rmtree(pictures / patient / f"{patient}-y")
    import_patches(find_folder(pictures, store.parent / "patients.csv"), tmp_path / "some", workers=0)
    said: list[str] = []
    train(tmp_path / "some", tmp_path / "run", ACROSS, "optim.steps=1", said=said)
    assert said == ["note: 2 of 6 patients have one slide and so no positives at that level (objective.across)."]
    for patient in TRAIN:
        shutil.rmtree(pictures / patient / f"{patient}-y", ignore_errors=True)
    import_patches(find_folder(pictures, store.parent / "patients.csv"), tmp_path / "one", workers=0)
    sentence = "so there are no positives at that level. Leave it out, or change batch.draw."
    assert refusal(tmp_path / "one", tmp_path / "refused", ACROSS) == (
        f"objective.across = {{patient: slide}}, and every patient has one slide, {sentence}"
    )
    assert refusal(store, tmp_path / "drawn", ACROSS, "batch.draw={slide: 1, patch: 2}") == (
        f"objective.across = {{patient: slide}}, and batch.draw takes of every patient one slide, {sentence}"
    )


def test_half_precision_needs_a_gpu(store: Path, tmp_path: Path) -> None:
    assert refusal(store, tmp_path / "run", "compute.precision='16'") == (
        "precision 16 is for GPUs and there is none here. Set it to bf16 or 32."
    )
    assert not (tmp_path / "run").exists()


# Patches that cannot be read


@pytest.fixture
def own(store: Path, tmp_path: Path) -> Path:
    """A copy of the store to damage."""
    return shutil.copytree(store, tmp_path / "store")


def test_a_bad_patch_is_replaced_named_and_counted(own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    damage(own, 3)
    said: list[str] = []
    run = train(own, tmp_path / "run", "optim.steps=12", said=said)
    shard = own / PatchStore.load(own).info.shards[0]
    assert run.info.bad_patches == len(said) > 1
    for line in said:
        assert line.startswith("warning: step ")
        assert f": patch 3 of {shard} cannot be decoded (" in line
        assert line.endswith("Another patch of its slide was taken.")

    again = tmp_path / "again"
    for step in (3, 7, 11):
        train_until(step, monkeypatch, own, again, "optim.steps=12")
    assert train(own, again, "optim.steps=12").info.bad_patches == run.info.bad_patches
    assert outcome(again) == outcome(run.path)


def test_too_many_bad_patches(own: Path, tmp_path: Path) -> None:
    damage(own, *range(0, 60, 2))
    said = refusal(own, tmp_path / "run", "optim.steps=60", "checkpoint.every=60")
    assert " patches read so far cannot be read, more than data.max_bad_share = 0.01 allows; the last: patch " in said
    allowed = train(own, tmp_path / "run", "optim.steps=60", "checkpoint.every=60", "data.max_bad_share=1")
    assert allowed.info.bad_patches > 60


def test_a_slide_that_cannot_be_read_at_all(own: Path, tmp_path: Path) -> None:
    damage(own, *range(6))
    said = refusal(own, tmp_path / "run", "data.max_bad_share=1", "optim.steps=30")
    assert "No other patch beside it can be read (5 tried): repair or remove that slide, then train again." in said


def test_bad_patches_from_before_an_interruption_stop_nothing(
    own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their share is of what was read, and after an interruption little has been."""
    damage(own, 3)
    train_until(5, monkeypatch, own, tmp_path / "run", "optim.steps=8")
    last = list_checkpoints(tmp_path / "run")[-1]
    info, tensors = read_checkpoint(last)
    many = info.model_copy(update={"bad_patches": 500}).model_dump_json()
    last.write_bytes(checkpoint.save(tensors, {"hidisc": many}))
    assert train(own, tmp_path / "run", "optim.steps=8").info.bad_patches >= 500

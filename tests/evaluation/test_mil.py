"""Gated attention against a loop written from the equation, and a head that finds the one patch that matters."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from sklearn.neighbors import KNeighborsClassifier
from sklearn.preprocessing import StandardScaler

from hidisc.evaluation.predictions import ENCODER, Key, Predictions
from hidisc.evaluation.probes import attention as mil
from hidisc.evaluation.probes.attention import (
    GatedAttention,
    StandardVectors,
    find_bags,
    hold_out,
    mil_predictions,
    train,
)
from hidisc.evaluation.probes.linear import linear_scores
from hidisc.evaluation.task import LabelledPatches, Task, choose_task
from hidisc.ground.seeds import Purpose, make_seed
from hidisc.patches.table import PatchTable
from hidisc.settings.evaluate import EvaluateConfig, LinearConfig, MilConfig
from tests.evaluation.made import make_embeddings

QUICK = MilConfig(epochs=3, hidden_dim=8)


@pytest.fixture
def task(tmp_path: Path) -> Task:
    """Three classes, three patients each on both sides, two slides of ten patches each."""
    made = make_embeddings(tmp_path / "e")
    return choose_task(made, made, EvaluateConfig())


def make_net(dim: int = 5, hidden_dim: int = 4, classes: int = 3, seed: int = 0) -> GatedAttention:
    return GatedAttention(dim, hidden_dim, classes, torch.Generator().manual_seed(seed))


def predict(task: Task, config: MilConfig, seed: int) -> tuple[Predictions | None, tuple[str, ...]]:
    """Predictions of the bags, and remarks."""
    return mil_predictions(task, Key(ENCODER, "mil", "patch"), config, seed)[:2]


def some(side: LabelledPatches, mask: np.ndarray) -> LabelledPatches:
    return replace(side, rows=side.rows[mask], labels=side.labels[mask])


def slow_logits(net: GatedAttention, h: Sequence[Sequence[float]]) -> list[float]:
    """Eq. 9 and Eq. 7, number by number."""
    (v, u), w = (half.tolist() for half in net.VU.chunk(2)), net.w.tolist()

    def dot(a: Sequence[float], b: Sequence[float]) -> float:
        return sum(x * y for x, y in zip(a, b, strict=True))

    raw = []
    for patch in h:
        gated = [math.tanh(dot(row, patch)) / (1 + math.exp(-dot(gate, patch))) for row, gate in zip(v, u, strict=True)]
        raw.append(math.exp(dot(w, gated)))
    z = [sum(a / sum(raw) * patch[d] for a, patch in zip(raw, h, strict=True)) for d in range(len(h[0]))]
    return [dot(row, z) + bias for row, bias in zip(net.weight.tolist(), net.bias.tolist(), strict=True)]


@given(st.integers(1, 12), st.integers(0, 99), st.lists(st.integers(0, 12), max_size=4))
def test_attention_is_the_equation_whole_in_blocks_and_in_any_order(bag: int, seed: int, cuts: list[int]) -> None:
    net = make_net(seed=seed).double()
    rng = np.random.default_rng(seed)
    with torch.no_grad():
        net.bias += 0.3
        net.w *= 5
    h = rng.normal(size=(bag, 5)) * 2
    expected = slow_logits(net, h.tolist())
    whole = torch.from_numpy(h)
    np.testing.assert_allclose(net(whole).detach(), expected, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(net(whole[rng.permutation(bag)]).detach(), expected, rtol=1e-10, atol=1e-12)
    blocks = [torch.from_numpy(block) for block in np.split(h, sorted({cut for cut in cuts if 0 < cut < bag}))]
    np.testing.assert_allclose(net.forward_blocks(iter(blocks))[0], expected, rtol=1e-10, atol=1e-12)


def slow_gradients(net: GatedAttention, h: torch.Tensor, label: int) -> list[torch.Tensor]:
    """Those of the cross-entropy of a bag, derived by hand.

    With t = tanh(V h), g = sigm(U h), p the probabilities and y the label, one-hot:
    dW = (p - y) z^T, da_k = (p - y)^T W h_k, ds = a (da - a.da), dt = ds w g (1 - t^2), dg = ds w t g (1 - g).
    """
    v, u = (h @ net.VU.T).chunk(2, dim=1)
    t, g = v.tanh(), u.sigmoid()
    a = ((t * g) @ net.w).softmax(dim=0)
    z = a @ h
    error = (net.weight @ z + net.bias).softmax(dim=0) - F.one_hot(torch.tensor(label), len(net.bias))
    da = h @ (error @ net.weight)
    ds = a * (da - a @ da)
    dt = torch.outer(ds, net.w) * g
    return [
        torch.cat([dt * (1 - t * t), dt * t * (1 - g)], dim=1).T @ h,
        ds @ (t * g),
        torch.outer(error, z),
        error,
    ]


@given(st.integers(1, 12), st.integers(0, 99))
def test_gradients_are_those_of_the_equation(bag: int, seed: int) -> None:
    rng = torch.Generator().manual_seed(seed)
    net, h, label = make_net(seed=seed).double(), torch.randn(bag, 5, generator=rng, dtype=torch.float64), seed % 3
    F.cross_entropy(net(h), torch.tensor(label)).backward()
    with torch.no_grad():
        expected = slow_gradients(net, h, label)
    for parameter, gradient in zip(net.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-9, atol=1e-12)


def test_blocks_with_scores_beyond_floats_are_still_numbers() -> None:
    net = make_net()
    with torch.no_grad():
        net.w *= 1e4
    h = torch.randn(60, 5, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(net.forward_blocks(h.split(7))[0], net(h).detach())
    torch.testing.assert_close(net.forward_blocks(h.flip(0).split(7))[0], net(h).detach())


def test_attention_is_that_of_the_equation() -> None:
    net, rng = GatedAttention(6, 4, 2, torch.Generator().manual_seed(0)), np.random.default_rng(0)
    h = rng.normal(size=(20, 6)).astype(np.float32)
    v, u = np.split(net.VU.detach().numpy(), 2)
    scores = (np.tanh(h @ v.T) / (1 + np.exp(-h @ u.T))) @ net.w.detach().numpy()
    expected = np.exp(scores) / np.exp(scores).sum()
    np.testing.assert_allclose(net.forward_blocks(torch.from_numpy(h).split(7))[1], expected, rtol=1e-4)


def test_attention_is_told_of_every_query_patch(task: Task) -> None:
    labels = task.queries.labels.copy()
    bags = find_bags(task.queries, task.levels)
    labels[bags.patches[0][0]] = (labels[bags.patches[0][0]] + 1) % 3  # a bag of two labels is not judged
    mixed = replace(task, queries=replace(task.queries, labels=labels))
    _, _, attention = mil_predictions(mixed, Key(ENCODER, "mil", "patch"), QUICK, seed=0)
    assert attention is not None
    assert np.isnan(attention[bags.patches[0]]).all()
    np.testing.assert_allclose([attention[patches].sum() for patches in bags.patches[1:]], 1, rtol=1e-5)


def test_bags_are_told_apart_by_their_ancestors(task: Task) -> None:
    arrow = task.bank.embeddings.table.arrow
    names = [name.split("/")[1] for name in arrow.column("slide").to_pylist()]  # "0" and "1" for everybody
    place = arrow.column_names.index("slide")
    arrow = arrow.set_column(place, "slide", pa.array(names).dictionary_encode())
    made = replace(task.bank.embeddings, table=PatchTable(arrow))
    bags = find_bags(replace(task.bank, embeddings=made), task.levels)
    assert len(bags) == 18
    assert list(bags.units) == ["patient", "slide"]
    assert sorted(zip(*bags.units.values(), strict=True)) == [
        (f"{label}-{number}", f"{slide}") for label in "abc" for number in (3, 4, 5) for slide in (0, 1)
    ]
    assert np.array_equal(np.sort(np.concatenate(bags.patches)), np.arange(180))
    for patient, label, places in zip(bags.units["patient"], bags.labels, bags.patches, strict=True):
        assert set(task.bank.names("patient")[places]) == {patient}
        assert "abc"[label] == patient[0]
        assert (np.diff(places) > 0).all()
    scattered = np.random.default_rng(0).permutation(task.bank.rows)  # bags need not lie together
    lain = replace(task.bank, rows=scattered, labels=task.bank.labels[scattered.argsort().argsort()])
    assert {len(places) for places in find_bags(lain, task.levels).patches} == {10}


def test_predictions_name_the_bags_of_the_queries(task: Task) -> None:
    found, remarks = predict(task, QUICK, seed=0)
    assert found is not None
    assert (found.level, found.classes, len(found), found.left_out) == ("slide", ("a", "b", "c"), 18, 0)
    assert sorted(found.units["slide"]) == [f"{label}-{n}/{s}" for label in "abc" for n in (0, 1, 2) for s in (0, 1)]
    for patient, slide, truth in zip(found.units["patient"], found.units["slide"], found.truth, strict=True):
        assert slide.startswith(patient)
        assert patient[0] == "abc"[truth]
    np.testing.assert_allclose(found.scores.sum(axis=1), 1)
    assert remarks[0] == "Trained on 18 bags of reference patches; a bag is the patches of one slide."
    assert len(remarks) == 2
    assert remarks[1].startswith("The weights are those of epoch ")
    assert remarks[1].endswith(
        " of 3, which had the lowest loss on 6 of these bags, held out of training; all bags of a patient are held out "
        "together."
    )


def test_any_level_above_the_patch_can_be_the_bag(tmp_path: Path) -> None:
    made = make_embeddings(tmp_path / "e")
    found, remarks = predict(choose_task(made, made, EvaluateConfig(levels=("patient", "patch"))), QUICK, seed=0)
    assert found is not None
    assert (found.level, list(found.units), len(found)) == ("patient", ["patient"], 9)
    assert remarks[0] == "Trained on 9 bags of reference patches; a bag is the patches of one patient."
    found, _ = predict(choose_task(made, made, EvaluateConfig(levels=("site", "patient", "slide", "patch"))), QUICK, 0)
    assert found is not None
    assert list(found.units) == ["site", "patient", "slide"]


def relabel(side: LabelledPatches, slides: Sequence[str]) -> LabelledPatches:
    """The first patch of some slides, and every patch of the others, as it is; the rest of those slides as `a`."""
    labels = side.labels.copy()
    for slide in slides:
        labels[np.flatnonzero(side.names("slide") == slide)[1:]] = 0
    return replace(side, labels=labels)


def test_bags_of_several_labels_are_left_out_on_both_sides(task: Task) -> None:
    mixed = replace(task, bank=relabel(task.bank, ["c-3/0", "b-3/1"]), queries=relabel(task.queries, ["c-0/1"]))
    found, remarks = predict(mixed, QUICK, seed=0)
    assert found is not None
    assert len(found) == 17
    assert found.left_out == 1
    assert "c-0/1" not in found.units["slide"]
    assert remarks[:2] == (
        "Trained on 16 bags of reference patches; a bag is the patches of one slide.",
        "Left out: 2 bags with patches of several labels.",
    )


@pytest.mark.parametrize(("part", "role"), [("bank", "reference"), ("queries", "test")])
def test_nothing_but_mixed_bags_is_no_task(task: Task, part: str, role: str) -> None:
    side = getattr(task, part)
    side = some(side, side.labels == 2)
    found, remarks = predict(replace(task, **{part: relabel(side, np.unique(side.names("slide")))}), QUICK, 0)
    assert found is None
    assert remarks == (f"Every {role} slide has patches of several labels, so it has no label.",)


def test_a_class_without_bags_has_probability_0(task: Task) -> None:
    few = replace(task, bank=some(task.bank, task.bank.labels != 1))
    found, remarks = predict(few, QUICK, seed=0)
    assert found is not None
    assert (found.scores[:, 1] == 0).all()
    assert (found.scores[:, [0, 2]] > 0).all()
    np.testing.assert_allclose(found.scores.sum(axis=1), 1)
    assert remarks[1] == "Class 'b' has no such bag, so its probability is always 0."
    one = replace(task, bank=some(task.bank, task.bank.labels == 2))
    found, remarks = predict(one, QUICK, seed=0)
    assert found is not None
    assert (found.scores == [0, 0, 1]).all()
    assert remarks == (
        "Trained on 6 bags of reference patches; a bag is the patches of one slide.",
        "Class 'a' has no such bag, so its probability is always 0.",
        "Class 'b' has no such bag, so its probability is always 0.",
        "All bags have class 'c', so it is predicted for every test slide.",
    )


def test_with_too_few_patients_the_last_epoch_is_taken(task: Task) -> None:
    names = task.bank.names("patient")
    said = (
        "The weights are those of the last of 3 epochs. To choose a better one, bags must be held out, which needs at "
        "least 5 reference patients, and every class both among those held out and among the others."
    )
    for left_out in (["a-3", "a-4"], ["a-3", "b-3", "c-3", "a-4", "b-4"]):  # a class of one patient; four patients
        few = replace(task, bank=some(task.bank, ~np.isin(names, left_out)))
        found, remarks = predict(few, QUICK, seed=0)
        assert found is not None
        assert np.isfinite(found.scores).all()
        assert remarks[-1] == said


def test_labels_of_the_queries_are_not_looked_at(task: Task) -> None:
    order = {"a": 2, "b": 0, "c": 1}
    labels = np.array([order[name[0]] for name in task.queries.names("patient")])
    expected, _ = predict(task, QUICK, seed=0)
    found, _ = predict(replace(task, queries=replace(task.queries, labels=labels)), QUICK, seed=0)
    assert found is not None
    assert expected is not None
    assert (found.scores == expected.scores).all()
    assert (found.truth != expected.truth).all()


def test_a_query_does_not_depend_on_the_others(task: Task) -> None:
    expected, _ = predict(task, QUICK, seed=0)
    mask = task.queries.names("slide") == "b-1/0"
    found, _ = predict(replace(task, queries=some(task.queries, mask)), QUICK, seed=0)
    assert found is not None
    assert expected is not None
    np.testing.assert_allclose(found.scores[0], expected.scores[expected.units["slide"] == "b-1/0"][0], rtol=1e-6)


def test_the_seed_decides_and_global_random_numbers_are_left_alone(task: Task) -> None:
    config = MilConfig(epochs=2, hidden_dim=8, patches=4)
    np.random.seed(5)  # noqa: NPY002 - it is the global state that is looked at
    torch.manual_seed(5)
    state, numbers = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    first, said = predict(task, config, seed=0)
    assert torch.equal(torch.get_rng_state(), state)
    assert (np.random.get_state()[1] == numbers).all()  # noqa: NPY002
    torch.manual_seed(6)
    again, same = predict(task, config, seed=0)
    other, _ = predict(task, config, seed=1)
    assert first is not None
    assert again is not None
    assert other is not None
    assert (first.scores == again.scores).all()
    assert said == same
    assert not np.allclose(first.scores, other.scores)


@pytest.mark.parametrize(("name", "numbers"), [("_KEPT", 0), ("_BLOCK", 1), ("_BLOCK", 16 * 3)])
def test_disk_and_blocks_change_nothing(task: Task, name: str, numbers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    expected, _ = predict(task, QUICK, seed=0)
    monkeypatch.setattr(mil, name, numbers)
    found, _ = predict(task, QUICK, seed=0)
    assert found is not None
    assert expected is not None
    np.testing.assert_allclose(found.scores, expected.scores, rtol=1e-5)


def test_a_large_bank_is_read_bag_by_bag(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []

    class Watched:
        def __getitem__(self, rows: np.ndarray) -> np.ndarray:
            read.append(len(rows))
            return np.asarray(task.bank.embeddings.vectors[rows])

    bank = replace(task.bank, embeddings=replace(task.bank.embeddings, vectors=Watched()))
    scaler = StandardScaler().fit(task.bank.vectors())
    StandardVectors(bank, scaler, keep=True)(np.arange(4))
    StandardVectors(bank, scaler, keep=False)(np.arange(4))
    monkeypatch.setattr(mil, "_KEPT", 16 * 180 - 1)
    large = StandardVectors(bank, scaler, keep=True)(np.arange(4))
    assert read == [180, 4, 4]
    np.testing.assert_allclose(large, scaler.transform(task.bank.vectors())[:4], rtol=1e-4, atol=1e-5)


@given(st.lists(st.integers(0, 2), min_size=2, max_size=14), st.integers(0, 50))
def test_the_held_out_are_whole_patients_with_every_class_on_both_sides(labels_of: list[int], seed: int) -> None:
    patients = np.repeat(np.arange(len(labels_of)), 2)
    labels = np.unique(np.repeat(labels_of, 2), return_inverse=True)[1]
    held_out = hold_out(patients, labels, np.random.default_rng(seed))
    counts = np.bincount(labels) // 2
    if len(labels_of) < 5 or counts.min() < 2:
        assert not held_out.any()
        return
    assert not set(patients[held_out]) & set(patients[~held_out])
    assert (np.bincount(labels[held_out]) // 2 == np.ceil(counts / 5)).all()


class Fixed:
    """Vectors in memory that remember how many patches were asked for."""

    def __init__(self, x: np.ndarray) -> None:
        self.x, self.dim, self.asked = torch.from_numpy(x.astype(np.float32)), x.shape[1], []

    def __call__(self, places: np.ndarray) -> torch.Tensor:
        self.asked.append(places.tolist())
        return self.x[places]


def toy_bags(seed: int = 0, bags: int = 20, size: int = 6) -> tuple[Fixed, list[np.ndarray], np.ndarray, np.ndarray]:
    """(vectors, bags, labels, held out): two classes that are hard to tell."""
    rng = np.random.default_rng(seed)
    labels = np.arange(bags) % 2
    x = rng.normal(size=(bags * size, 5)) + np.repeat(labels, size)[:, None] * 0.4
    held_out = np.arange(bags) < 6
    return Fixed(x), np.split(np.arange(bags * size), bags), labels, held_out


def held_out_loss(net: GatedAttention, vectors: Fixed, bags: list[np.ndarray], labels: np.ndarray) -> float:
    with torch.no_grad():
        return float(np.mean([F.cross_entropy(net(vectors(b)), torch.tensor(y)) for b, y in zip(bags, labels)]))  # noqa: B905


def test_the_epoch_of_least_loss_on_the_held_out_is_taken() -> None:
    vectors, bags, labels, held_out = toy_bags()
    nobody = np.zeros(14, bool)
    least, losses = [], []
    for epochs in range(1, 9):
        config = MilConfig(epochs=epochs, hidden_dim=8, learning_rate=0.02)
        net, epoch = train(vectors, bags, labels, held_out, config, seed=5)
        least.append((held_out_loss(net, vectors, bags[:6], labels[:6]), epoch))
        net, last = train(vectors, bags[6:], labels[6:], nobody, config, seed=5)
        assert last == epochs
        losses.append(held_out_loss(net, vectors, bags[:6], labels[:6]))
    best = int(np.argmin(losses))
    assert 0 < best < 7, "an epoch in between, or the test says nothing"
    assert least[-1] == (pytest.approx(losses[best]), best + 1)
    assert [epoch for _, epoch in least] == [int(np.argmin(losses[: n + 1])) + 1 for n in range(8)]


def test_the_held_out_are_not_learned_from() -> None:
    vectors, bags, labels, held_out = toy_bags()
    config = MilConfig(epochs=1, hidden_dim=8)
    net, _ = train(vectors, bags, labels, held_out, config, seed=1)
    other, _ = train(vectors, bags, np.where(held_out, 1 - labels, labels), held_out, config, seed=1)
    assert all(torch.equal(a, b) for a, b in zip(net.parameters(), other.parameters(), strict=True))


def test_a_step_sees_so_many_patches_of_a_bag_other_ones_each_time() -> None:
    vectors, bags, labels, held_out = toy_bags(size=30)
    bags[7] = bags[7][:3]
    train(vectors, bags, labels, held_out, MilConfig(epochs=5, hidden_dim=4, patches=10), seed=0)
    assert {len(places) for places in vectors.asked} == {10, 3}
    learned = [places for places in vectors.asked if places[0] >= 180]
    looked_at = [places for places in vectors.asked if places[0] < 180]
    assert len(learned) == 14 * 5
    assert len({tuple(places) for places in learned}) == 13 * 5 + 1
    assert len(looked_at) == 6 * 5
    assert len({tuple(places) for places in looked_at}) == 6  # the same patches every time, so that epochs compare
    order = [[places[0] // 30 for places in learned[start : start + 14]] for start in (0, 14)]
    assert sorted(order[0]) == sorted(order[1]) == list(range(6, 20))
    assert order[0] != order[1]


def test_settings_of_the_optimiser_are_used() -> None:
    vectors, bags, labels, held_out = toy_bags()

    def size(**settings: Any) -> float:
        net, _ = train(vectors, bags, labels, held_out, MilConfig(epochs=2, hidden_dim=8, **settings), seed=0)
        assert net.VU.shape == (2 * 8, 5)
        return float(sum(p.detach().square().sum() for p in net.parameters()))

    begun = make_net(5, 8, 2, make_seed(0, Purpose.ATTENTION_WEIGHTS))
    start = float(sum(p.detach().square().sum() for p in begun.parameters()))
    assert size(learning_rate=1e-9) == pytest.approx(start, rel=1e-4)
    assert size(learning_rate=1e-2, weight_decay=5.0) < 0.5 * size(learning_rate=1e-2, weight_decay=0.0)


def test_classes_are_taken_to_be_as_common_as_in_the_bank() -> None:
    nothing, bags = Fixed(np.zeros((40, 5))), np.split(np.arange(40), 40)
    labels, nobody = (np.arange(40) % 4 == 0).astype(np.int64), np.zeros(40, bool)
    net, _ = train(nothing, bags, labels, nobody, MilConfig(epochs=20, hidden_dim=4, learning_rate=5e-3), seed=0)
    assert float(net(torch.zeros(3, 5)).softmax(dim=0)[1].detach()) == pytest.approx(0.25, abs=0.06)


def needle(task: Task) -> Task:
    """One patch in 20 of a slide tells the class by its second number, and that it is the one by its first."""
    rng = np.random.default_rng(1)
    table = task.bank.embeddings.table
    patients, labels = table.codes("patient")[0], table.codes("label")[0]
    x = 0.3 * rng.normal(size=(patients.max() + 1, 32))[patients] + rng.normal(size=(len(patients), 32))
    x[:, 0] = rng.normal(size=len(x)) * 0.3
    tells = rng.permuted(np.tile(np.arange(20) == 0, (len(x) // 20, 1)), axis=1).ravel()
    x[tells, 0] = 5
    x[tells, 1] = np.where(labels == 0, -4, 4)[tells]
    made = replace(task.bank.embeddings, vectors=x.astype(np.float32))
    sides = replace(task.bank, embeddings=made), replace(task.queries, embeddings=made)
    return replace(task, bank=sides[0], queries=sides[1])


def test_the_head_finds_the_one_patch_of_twenty_that_tells(tmp_path: Path) -> None:
    made = make_embeddings(tmp_path / "e", classes="ab", patients=40, slides=2, patches=20, dim=32)
    task = needle(choose_task(made, made, EvaluateConfig()))
    bank, queries = task.bank, task.queries
    found, _ = predict(task, MilConfig(), seed=0)
    assert found is not None
    assert (found.predicted == found.truth).mean() > 0.9  # seeds 0 to 4: .95 to 1
    neighbours = KNeighborsClassifier(200, metric="cosine").fit(bank.vectors(), bank.labels)
    bags = find_bags(queries, task.levels)
    for scores in (neighbours.predict_proba(queries.vectors()), linear_scores(task, LinearConfig(), 0)[0]):
        pooled = np.stack([scores[places].mean(axis=0) for places in bags.patches])
        assert (pooled.argmax(axis=1) == bags.labels).mean() < 0.75


def test_plain_embeddings_are_learned_too(task: Task) -> None:
    found, _ = predict(task, MilConfig(), seed=0)
    assert found is not None
    assert (found.predicted == found.truth).mean() > 0.9


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_a_dimension_that_never_changes_does_no_harm(task: Task, dtype: Any) -> None:
    vectors = np.array(task.bank.embeddings.vectors)
    vectors[:, 0] = 7
    made = replace(task.bank.embeddings, vectors=vectors.astype(dtype))
    sides = replace(task.bank, embeddings=made), replace(task.queries, embeddings=made)
    found, _ = predict(replace(task, bank=sides[0], queries=sides[1]), QUICK, seed=0)
    assert found is not None
    assert np.isfinite(found.scores).all()


def test_ragged_bags(task: Task) -> None:
    rng = np.random.default_rng(0)
    ragged = replace(
        task, bank=some(task.bank, rng.random(180) < 0.3), queries=some(task.queries, rng.random(180) < 0.3)
    )
    found, _ = predict(ragged, QUICK, seed=0)
    assert found is not None
    assert len({len(places) for places in find_bags(ragged.queries, ragged.levels).patches}) > 3
    assert np.isfinite(found.scores).all()

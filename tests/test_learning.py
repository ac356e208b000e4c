"""What the method claims, seen on the drawn cohort: with flips alone, the more of the hierarchy, the better."""

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from hidisc import PatchStore, Run, draw_cohort, prepare
from hidisc.models.encoder import Encoder
from hidisc.patches.store import as_input
from hidisc.settings.config import load_config
from hidisc.settings.prepare import GridConfig, PrepareConfig
from hidisc.settings.train import TrainConfig
from hidisc.slides.synthetic import Morphology
from hidisc.verbs.train import train

METHODS = ("hidisc-patient", "hidisc-slide", "simclr")
SEEDS = (0, 1, 2)
SCALED_DIAGNOSES = {
    f"{nuclei}-{glands}": Morphology(27_000, 1.2, axis_ratio, 0.5, glands_um)
    for nuclei, axis_ratio in (("round", 0.9), ("spindle", 0.4))
    for glands, glands_um in (("nests", (7.0, 7.0)), ("cords", (40.0, 7.0)))
}
"""Diagnoses of which one half is told at one scale only: nuclei at 0.5 um/px, where 48 px show a part of one gland, and
glands at 2.0 um/px, where a nucleus is one pixel wide."""


@torch.inference_mode()
def embed(store: PatchStore, encoder: Encoder, side: str) -> tuple[torch.Tensor, np.ndarray, np.ndarray]:
    """(N, D) unit embeddings of a side's patches, their labels and patients."""
    rows = np.flatnonzero(store.table.column("split") == side)
    parts = [
        encoder.features(torch.from_numpy(as_input(store.read_many(block), "unit")).permute(0, 3, 1, 2))
        for block in np.array_split(rows, len(rows) // 256 + 1)
    ]
    label, patient = (store.table.column(name)[rows] for name in ("label", "patient"))
    return F.normalize(torch.cat(parts), dim=1), label, patient


def accuracies(store: PatchStore, encoder: Encoder) -> tuple[float, float]:
    """(patch, patient) accuracy of 20 nearest neighbours of held-out patients' patches, the paper's weights."""
    (bank, known, _), (queries, truth, patients) = (embed(store, encoder, side) for side in ("train", "test"))
    names = np.unique(known)
    near = (queries @ bank.T).topk(20, dim=1)
    one_hot = torch.from_numpy((known[:, None] == names).astype(np.float32))
    scores = (one_hot[near.indices] * (near.values / 0.07).exp()[..., None]).sum(dim=1)
    scores = (scores / scores.sum(dim=1, keepdim=True)).numpy()
    patch = float((names[scores.argmax(1)] == truth).mean())
    means = {name: scores[patients == name].mean(axis=0) for name in np.unique(patients)}
    right = [names[mean.argmax()] == truth[patients == name][0] for name, mean in means.items()]
    return patch, float(np.mean(right))


@pytest.mark.slow
def test_more_of_the_hierarchy_is_better_with_weak_views(tmp_path: Path) -> None:
    found: dict[str, list[tuple[float, float]]] = {}
    for seed in SEEDS:
        folder = tmp_path / f"seed{seed}"
        cohort = draw_cohort(folder / "cohort", seed=seed)
        split = {"fractions": {"train": 0.75, "test": 0.25}}
        prepare(cohort, folder / "store", PrepareConfig(grid=GridConfig(size_px=48), seed=seed, split=split))
        store = PatchStore.load(folder / "store")
        for method in METHODS:
            config = load_config(TrainConfig, f"{method}+weak+laptop", [f"seed={seed}"])
            train(folder / "store", folder / method, config, device="cpu")
            found.setdefault(method, []).append(accuracies(store, Run.load(folder / method).encoder()))
            print(f"seed {seed}  {method:<15} patch {found[method][-1][0]:.3f}  patient {found[method][-1][1]:.3f}")
    mean = {method: np.mean(values, axis=0) for method, values in found.items()}
    for method, values in found.items():
        patch, patient = mean[method]
        print(f"{method:<15} patch {patch:.3f} ({np.std(values, axis=0)[0]:.3f})  patient {patient:.3f}")
    for better, worse in (("hidisc-patient", "hidisc-slide"), ("hidisc-slide", "simclr")):
        assert mean[better][0] > mean[worse][0]
        assert mean[better][1] > mean[worse][1]
    assert mean["hidisc-patient"][0] - mean["simclr"][0] > 0.25


@pytest.mark.slow
def test_what_is_told_at_one_scale_only_needs_that_scale(tmp_path: Path) -> None:
    """Nuclei are told at 0.5 um/px and glands at 2.0: encoders of one scale fail on the other's classes."""
    found = judge_scales(tmp_path, steps=600)
    fine, coarse, both = found["0.5"], found["2"], found["both"]
    assert fine["nuclei"] > 0.7 > 0.65 > fine["glands"]
    assert coarse["glands"] > 0.7 > 0.65 > coarse["nuclei"]
    assert both["nuclei"] - coarse["nuclei"] > 0.1
    assert both["glands"] - fine["glands"] > 0.1


def judge_scales(folder: Path, steps: int) -> dict[str, dict[str, float]]:
    """How many of the held-out patients' places have their nuclei and their glands recognised, by encoder.

    They learn from labels, which takes minutes where learning without them takes hours. An encoder of one scale sees
    the patches of that scale, the other one those of both scales, one behind the other.
    """
    cohort = draw_cohort(folder / "cohort", patients=24, slides=2, fields=4, field_px=192, diagnoses=SCALED_DIAGNOSES)
    grid = GridConfig(size_px=48, mpp=(0.5, 2.0))
    split = {"fractions": {"train": 2 / 3, "test": 1 / 3}}
    prepare(cohort, folder / "store", PrepareConfig(grid=grid, split=split))
    store = PatchStore.load(folder / "store")
    mpp = store.table.column("mpp")
    found = {}
    for name, scales in (("0.5", (0.5,)), ("2", (2.0,)), ("both", (0.5, 2.0))):
        changes = (f"data.mpp={list(scales)}", f"optim.steps={steps}")
        train(
            folder / "store", folder / name, load_config(TrainConfig, "supervised+weak+laptop", changes), device="cpu"
        )
        encoder = Run.load(folder / name).encoder()
        sides = {}
        for side in ("train", "test"):
            z, label, _ = embed(store, encoder, side)
            at = mpp[store.table.column("split") == side]
            places = torch.cat([z[torch.from_numpy(at == scale)] for scale in scales], dim=1)
            sides[side] = F.normalize(places, dim=1), label[at == 0.5]
        found[name] = {part: _recognise(sides, number) for number, part in enumerate(("nuclei", "glands"))}
    return found


def _recognise(sides: dict[str, tuple[torch.Tensor, np.ndarray]], number: int) -> float:
    """The share of test places whose part of the label (`nuclei-glands`) the 20 nearest training places vote for."""
    (bank, known), (queries, truth) = sides["train"], sides["test"]
    known, truth = (np.array([label.split("-")[number] for label in labels]) for labels in (known, truth))
    near = (queries @ bank.T).topk(20, dim=1).indices.numpy()
    votes = (known[near] == known[0]).mean(axis=1) > 0.5
    return float((votes == (truth == known[0])).mean())

"""One person under two names is found among all patients of folds, whatever the seed, before anything is trained."""

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from hidisc.benchmarking.benchmark import benchmark
from hidisc.embeddings.embeddings import without_vectors
from hidisc.evaluation import leakage
from hidisc.evaluation.leakage import find_nearest_of_others, find_same_person
from hidisc.ground.errors import UserError
from hidisc.patches.folders import find_folder
from hidisc.patches.splits import make_folds
from hidisc.patches.store import PatchStore
from hidisc.settings.benchmark import SuiteConfig
from hidisc.settings.config import load_config
from hidisc.settings.evaluate import EvaluateConfig, FoldsConfig
from hidisc.settings.prepare import FilterConfig, ImportConfig
from hidisc.verbs.embed import embed
from hidisc.verbs.evaluate import evaluate
from hidisc.verbs.prepare import import_patches
from tests.evaluation.test_duplicates import saved_again
from tests.patches.pictures import write_pictures
from tests.training.stores import TINY

PATIENTS = tuple(f"P{number}" for number in range(8))
SEEDS = range(6)
SUITE = f"""
title: Tiny
rows:
  - {{name: HiDisc-Patient, recipe: hidisc-patient+weak}}
seeds: 1
floors: false
folds: {{number: 2}}
evaluate: {{knn: {{k: 5}}, probes: [knn], bootstrap: {{resamples: 0}}}}
small: {{changes: [{", ".join(f'"{change}"' for change in TINY)}, optim.steps=2]}}
"""


def tissue(seed: int) -> NDArray[np.uint8]:
    """Smooth coloured noise of several sizes, (64, 64, 3), other for every seed."""
    rng = np.random.default_rng(seed)
    parts = [rng.normal(size=(64 // size, 64 // size, 3)).repeat(size, 0).repeat(size, 1) for size in (16, 8, 4, 2)]
    return (128 + 25 * sum(parts)).clip(0, 255).astype(np.uint8)


def make_cohort(folder: Path, *, copy: bool = False, file: bool = False, unlabelled: str = "") -> Path:
    """Eight patients with 6 patches each; with `copy`, P6 is P4 turned and saved anew, with `file` it has P4's file."""
    pictures = {
        f"{who}/{who}-x/{patch}.png": tissue(100 * int(who[1]) + patch) for who in PATIENTS for patch in range(6)
    }
    for patch in range(6) if copy or file else ():
        source = pictures[f"P4/P4-x/{patch}.png"]
        pictures[f"P6/P6-x/{patch}.png"] = source if file else saved_again(source[::-1].transpose(1, 0, 2), 85)
    rows = [f"{who},{'' if who == unlabelled else 'ab'[number // 2 % 2]},train" for number, who in enumerate(PATIENTS)]
    folder.mkdir()
    (folder / "patients.csv").write_text("\n".join(["patient,label,split", *rows]) + "\n")
    source = find_folder(write_pictures(folder / "pictures", pictures), folder / "patients.csv")
    import_patches(source, folder / "store", ImportConfig(filter=FilterConfig(min_pixel_std=0)), workers=0)
    return folder / "store"


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    home = tmp_path_factory.mktemp("cohorts")
    return {
        "plain": make_cohort(home / "plain"),
        "copy": make_cohort(home / "copy", copy=True),
        "file": make_cohort(home / "file", file=True),
        "unlabelled": make_cohort(home / "unlabelled", copy=True, unlabelled="P6"),
    }


def fold_of(store: PatchStore, seed: int) -> dict[str, int]:
    folds = make_folds(store.table, FoldsConfig(number=2, seed=seed), "label", store.path)
    return {patient: number for number, fold in enumerate(folds) for patient in fold}


def test_some_seeds_have_both_names_in_one_fold(stores: dict[str, Path]) -> None:
    together = {fold["P4"] == fold["P6"] for fold in (fold_of(PatchStore.load(stores["copy"]), seed) for seed in SEEDS)}
    assert together == {True, False}


def refusal_of_training(store: Path, out: Path, *changes: str) -> str:
    suite = out.with_suffix(".yaml")
    suite.write_text(SUITE)
    with pytest.raises(UserError) as caught:
        benchmark(load_config(SuiteConfig, str(suite), list(changes)), store, out, workers=1, device="cpu")
    assert not (out / "cells").exists(), "nothing was trained"
    return str(caught.value)


@pytest.mark.parametrize("seed", SEEDS)
def test_pictures_of_one_person_are_refused_before_training_whatever_the_seed(
    stores: dict[str, Path], tmp_path: Path, seed: int
) -> None:
    said = refusal_of_training(stores["copy"], tmp_path / "out", f"folds.seed={seed}")
    assert "near-duplicate" in said
    assert "'P4'" in said
    assert "'P6'" in said
    assert said.endswith(
        "Give --set evaluate.leakage.allow=true to evaluate anyway; every table and page will then say so."
    )


def test_one_slide_file_under_two_patients_is_refused_before_training(stores: dict[str, Path], tmp_path: Path) -> None:
    said = refusal_of_training(stores["file"], tmp_path / "out")
    assert said.startswith(
        "1 slide file is listed under two patients ('P6/P6-x' of patient 'P6' is 'P4/P4-x' of patient 'P4'), so that "
        "folds may learn from a patient and judge the same one. Remove one of each from the cohort, or list both under "
        "one patient. "
    )


@pytest.mark.parametrize("kind", ["copy", "file"])
@pytest.mark.parametrize("seed", SEEDS)
def test_evaluate_refuses_one_person_whatever_the_seed(
    stores: dict[str, Path], tmp_path: Path, seed: int, kind: str
) -> None:
    colour = embed(stores[kind], "colour", tmp_path / "e", device="cpu", shown=False)
    assert colour is not None
    quick = ["probes=[knn]", "bootstrap.resamples=0", "audit=false", "floor=false", "folds.number=2"]
    config = load_config(EvaluateConfig, None, [*quick, f"folds.seed={seed}"])
    with pytest.raises(UserError, match="Give --allow-leakage to evaluate anyway"):
        evaluate(colour.path, tmp_path / "s", config)
    allowed = load_config(EvaluateConfig, None, [*quick, f"folds.seed={seed}", "leakage.allow=true"])
    scores = evaluate(colour.path, tmp_path / "s", allowed)
    assert any("P4" in finding.sentence and finding.kind == "leak" for finding in scores.info.leakage)
    assert "DESPITE LEAKAGE" in scores.verdict()


def test_a_copy_without_a_label_is_learned_from_and_so_refused(stores: dict[str, Path], tmp_path: Path) -> None:
    said = refusal_of_training(stores["unlabelled"], tmp_path / "out")
    assert "'P4'" in said
    assert "'P6'" in said


def test_a_plain_cohort_is_trained_and_judged(stores: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "suite.yaml").write_text(SUITE)
    said: list[str] = []
    suite = load_config(SuiteConfig, str(tmp_path / "suite.yaml"))
    done = benchmark(suite, stores["plain"], tmp_path / "out", workers=1, device="cpu", say=said.append)
    assert (done.done, done.failed) == (2, 0)
    assert said[0] == "comparing the patients of all folds, one of whom may be there under two names ..."
    store = PatchStore.load(stores["plain"])
    assert find_same_person(without_vectors(store), set(PATIENTS), 2, suite.evaluate) == ()


def test_patients_that_folds_do_not_judge_are_not_compared(stores: dict[str, Path]) -> None:
    store = PatchStore.load(stores["copy"])
    assert find_same_person(without_vectors(store), {"P0", "P1", "P2", "P3", "P4"}, 2, EvaluateConfig()) == ()
    (finding,) = find_same_person(without_vectors(store), {"P0", "P1", "P2", "P4", "P6"}, 2, EvaluateConfig())
    assert finding.kind == "leak"


@pytest.mark.parametrize("block", [3, 512])
def test_the_nearest_of_others_is_that_of_slow_loops(monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    monkeypatch.setattr(leakage, "_BLOCK", block)
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(40, 5)).astype(np.float32)
    patients = rng.integers(0, 4, 40).astype(np.int32)
    nearest, similarities = find_nearest_of_others(vectors, patients)
    for row, vector in enumerate(vectors.astype(float)):
        cosines = {
            other: vector @ theirs / np.linalg.norm(vector) / np.linalg.norm(theirs)
            for other, theirs in enumerate(vectors.astype(float))
            if patients[other] != patients[row]
        }
        assert nearest[row] == max(cosines, key=lambda other: cosines[other])
        assert similarities[row] == pytest.approx(max(cosines.values()), abs=1e-6)
    assert (find_nearest_of_others(vectors, np.zeros(40, np.int32))[0] == -1).all()


def test_of_a_large_cohort_the_same_positions_of_every_slide_are_looked_at(
    stores: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leakage, "_MOST", 24)
    read: list[int] = []
    store = PatchStore.load(stores["copy"])
    whole = PatchStore.read
    monkeypatch.setattr(PatchStore, "read", lambda its, row: read.append(row) or whole(its, row))
    (finding,) = find_same_person(without_vectors(store), set(PATIENTS), 2, EvaluateConfig())
    assert finding.kind == "leak"
    assert len(read) <= 3 * 24
    numbers, patients = store.table.column("patch"), store.table.column("patient")
    of_patient = {who: {int(numbers[row]) for row in read if patients[row] == who} for who in PATIENTS}
    assert len({frozenset(seen) for seen in of_patient.values()}) == 1
    assert len(of_patient["P4"]) == 3

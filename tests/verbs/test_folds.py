"""`hidisc benchmark --folds`: no encoder learns from the patients it is judged on, and each is judged once per seed."""

import shutil
import signal
from pathlib import Path

import pytest

from hidisc.benchmarking.benchmark import benchmark
from hidisc.benchmarking.cells import plan_cells
from hidisc.evaluation.compare import compare
from hidisc.evaluation.scores import Scores
from hidisc.ground.errors import UserError
from hidisc.patches.splits import make_folds
from hidisc.patches.store import PatchStore
from hidisc.reporting.evaluated import gather
from hidisc.reporting.verdict import describe, find_verdict
from hidisc.settings.benchmark import SuiteConfig
from hidisc.settings.config import load_config
from hidisc.settings.evaluate import EvaluateConfig
from hidisc.training.run import Run
from hidisc.verbs.doctor import find_damage
from hidisc.verbs.evaluate import evaluate
from tests.commands import Forks, signal_at
from tests.training.stores import TEST, TINY, TRAIN, make_store

SUITE = f"""
title: Tiny
rows:
  - {{name: HiDisc-Patient, recipe: hidisc-patient+weak}}
seeds: 2
folds: {{number: 2}}
evaluate: {{knn: {{k: 5}}, probes: [knn], bootstrap: {{resamples: 50}}}}
small: {{changes: [{", ".join(f'"{change}"' for change in TINY)}, optim.steps=2]}}
"""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_store(tmp_path_factory.mktemp("tiny"), unlabelled=("P5",))


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("suite") / "tiny.yaml"
    path.write_text(SUITE)
    return path


def tables(out: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((out / "tables").iterdir()) if path.name[0] != "."}


@pytest.fixture(scope="module")
def whole(store: Path, suite: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A benchmark that nothing happened to."""
    out = tmp_path_factory.mktemp("whole") / "out"
    done = benchmark(load_config(SuiteConfig, str(suite)), store, out, workers=1, device="cpu")
    assert (done.cells, done.done, done.failed) == (8, 8, 0)  # two folds and two floors for each seed
    return out


def test_a_folds_patients_are_never_learned_from(whole: Path, store: Path, suite: Path) -> None:
    config, opened = load_config(SuiteConfig, str(suite)), PatchStore.load(store)
    judged: dict[int, list[str]] = {0: [], 1: []}
    for cell in plan_cells(config, config.small, whole, {"": opened}):
        if cell.fold is None:
            continue
        rule = config.folds.model_copy(update={"seed": cell.seed})
        patients = make_folds(opened.table, rule, "label", store)[cell.fold - 1]
        learned = set(Run.load(cell.run).info.patients)
        assert learned == {*TRAIN, *TEST} - set(patients), "everyone else, whatever the split, also without a label"
        scores = Scores.load(cell.scores(cell.points[-1]))
        assert set(scores.predictions("knn", "patient").clusters) == set(patients)
        judged[cell.seed] += patients
    assert sorted(judged[0]) == sorted(judged[1]) == sorted({*TRAIN, *TEST} - {"P5"})


def test_tables_and_floors_are_of_all_patients(whole: Path, suite: Path) -> None:
    pooled = sorted((whole / "pooled").iterdir())
    assert [path.name for path in pooled] == ["01-hidisc-patient-0-2-0", "01-hidisc-patient-1-2-0"]
    ours = [[Scores.load(path).predictions("knn", "patient")] for path in pooled]
    assert [len(training[0]) for training in ours] == [7, 7]
    evaluate = load_config(SuiteConfig, str(suite)).evaluate
    found = []
    for floor in ("02-colour-alone", "03-untrained"):
        judged = [
            Scores.load(path).predictions("knn", "patient") for path in sorted(whole.glob(f"cells/{floor}-*/sc*"))
        ]
        theirs = [judged] if "colour" in floor else [[one] for one in judged]  # colour: one encoder for both seeds
        difference = compare(ours, theirs, evaluate.bootstrap, evaluate.seed)["auroc"]
        assert difference.value is not None
        found.append(difference.value)
    floors = (whole / "tables" / "floors.md").read_text().splitlines()
    row = next(line for line in floors if "| AUROC | HiDisc-Patient |" in line)  # patients come first
    assert f"{100 * min(found):+.1f} [" in row  # the best floor is the one that is least behind
    assert "| HiDisc-Patient | 0 | 1 | patch |" in (whole / "tables" / "folds.md").read_text()
    assert find_damage(whole) == []


def test_a_fold_that_was_judged_anew_is_pooled_anew(whole: Path, store: Path, suite: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    shutil.copytree(whole, out)
    fold = out / "cells" / "01-hidisc-patient-0-fold-1" / "scores-2-0"
    config = EvaluateConfig.model_validate(Scores.load(fold).info.config)
    shutil.rmtree(fold)
    evaluate(fold.parent / "embeddings-2-0", fold, config.model_copy(update={"seed": 1}))
    before = Scores.load(out / "pooled" / "01-hidisc-patient-0-2-0").artefact.manifest.inputs
    done = benchmark(load_config(SuiteConfig, str(suite)), store, out, workers=1, device="cpu")
    after = Scores.load(out / "pooled" / "01-hidisc-patient-0-2-0").artefact.manifest.inputs
    assert done.page is not None
    assert [name for name in before if before[name] != after[name]] == ["fold 1"]


def test_patients_that_a_row_leaves_out_are_left_out_in_every_fold(store: Path, suite: Path, tmp_path: Path) -> None:
    rows = """rows=[{name: all, recipe: hidisc-patient+weak},
        {name: without P0, recipe: hidisc-patient+weak, changes: ['data.leave_out=[P0]']}]"""
    config = load_config(SuiteConfig, str(suite), [rows, "seeds=1", "floors=false"])
    assert benchmark(config, store, tmp_path / "out", workers=1, device="cpu").failed == 0
    learned = {
        name: [set(Run.load(run).info.patients) for run in sorted((tmp_path / "out").glob(f"cells/{name}-*/run"))]
        for name in ("01-all", "02-without-p0")
    }
    assert [patients - {"P0"} for patients in learned["01-all"]] == learned["02-without-p0"]
    assert any("P0" in patients for patients in learned["01-all"])
    pooled = gather(sorted((tmp_path / "out" / "pooled").iterdir()))
    assert [len(model.scores) for model in pooled] == [1, 1], "two rows, and not two seeds of one"
    assert "P0" in Scores.load(pooled[1].scores[0].path).predictions("knn", "patient").clusters, "and still judged"


def test_a_row_that_names_splits_is_refused(store: Path, suite: Path, tmp_path: Path) -> None:
    rows = "rows=[{name: a, recipe: simclr+weak, changes: ['data.splits=[test]']}]"
    config = load_config(SuiteConfig, str(suite), [rows])
    with pytest.raises(
        UserError, match=r"the row 'a' learns from data.splits = \['test'\], but with folds every .* all "
    ):
        benchmark(config, store, tmp_path / "out", workers=1, device="cpu")


def test_weights_that_were_replaced_are_refused(store: Path, suite: Path, tmp_path: Path) -> None:
    weights = tmp_path / "weights.safetensors"
    weights.write_bytes(b"one")
    rows = f"rows=[{{name: a, recipe: simclr+weak, changes: ['model.weights={weights}']}}]"
    config = load_config(SuiteConfig, str(suite), [rows, "seeds=1", "folds.number=0", "floors=false"])
    assert benchmark(config, store, tmp_path / "out", workers=1, device="cpu").failed == 1  # no safetensors
    weights.write_bytes(b"two")
    with pytest.raises(UserError, match=f"the content of the weights {weights} has changed"):
        benchmark(config, store, tmp_path / "out", workers=1, device="cpu")


def test_a_report_has_one_row_for_the_seeds_and_says_who_was_learned_from(whole: Path) -> None:
    (model,) = gather(sorted((whole / "pooled").iterdir()))
    assert len(model.scores) == 2
    trust = find_verdict(model).trust
    assert "Each of these patients was judged by an encoder that was trained without that one's fold." in trust
    assert not any("none of the test patients is among them" in sentence for sentence in trust)
    assert dict(describe(model))["Trained on"].endswith(", each encoder without its fold")


KILLS = (
    ("cell.trained", 1, "*"),
    ("file.written", 1, "scores.json"),
    ("cell.done", 2, "*"),
    ("cell.done", 6, "*"),  # all cells
    ("file.written", 1, "scores.json"),  # the pooled ones of the first seed
    ("file.written", 1, "scores.json"),
    ("file.written", 2, "scores.json"),
    ("file.written", 1, "benchmark.html"),
)
"""Steps at which the same command is killed, one after the other."""
FEW_KILLS = (("cell.done", 8, "*"), ("file.written", 2, "scores.json"))


@pytest.mark.whole
@pytest.mark.parametrize("kills", [FEW_KILLS, pytest.param(KILLS, marks=pytest.mark.slow)], ids=["few", "every step"])
def test_killed_at_a_step_the_tables_are_the_same(
    whole: Path, store: Path, suite: Path, forks: Forks, tmp_path: Path, kills: tuple[tuple[str, int, str], ...]
) -> None:
    out = tmp_path / "out"
    words = ["benchmark", str(suite), str(store), "--out", str(out), "--device", "cpu", "--workers", "1"]
    for step, number, file in kills:
        killed = forks.run(*words, at=signal_at(step, number, file))
        assert killed.code == -signal.SIGKILL, (step, file, killed.said)
    last = forks.run(*words)
    assert last.code == 0, last.said
    assert tables(out) == tables(whole)


def test_folds_on_the_command_line_are_those_of_a_suite(
    whole: Path, store: Path, suite: Path, forks: Forks, tmp_path: Path
) -> None:
    other = tmp_path / "other.yaml"
    other.write_text(suite.read_text().replace("folds: {number: 2}\n", ""))
    ended = forks.run("benchmark", str(other), str(store), "--out", str(whole), "--device", "cpu", "--folds", "2")
    assert ended.code == 0, ended.said
    assert "8 of 8 trainings" in ended.result

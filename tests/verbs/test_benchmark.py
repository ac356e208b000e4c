"""`hidisc benchmark`: every cell a run; killed, shared, failed: the tables are those of an uninterrupted one."""

import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from hidisc.artefacts.artefact import begin_together, read_kind
from hidisc.artefacts.inputs import ChangedInputError
from hidisc.artefacts.lock import hold
from hidisc.benchmarking import benchmark as verb
from hidisc.benchmarking.benchmark import benchmark
from hidisc.ground.errors import UserError
from hidisc.ground.stop import watch_steps
from hidisc.models.card import WEIGHTS
from hidisc.models.encoder import build_encoder
from hidisc.patches.folders import find_folder
from hidisc.patches.store import PatchStore
from hidisc.settings.benchmark import RowConfig, SuiteConfig
from hidisc.settings.config import load_config
from hidisc.training.checkpoint import list_checkpoints
from hidisc.training.run import Run
from hidisc.verbs.doctor import find_damage, what_to_do
from hidisc.verbs.prepare import import_patches
from tests.commands import Forks, signal_at
from tests.schedulers import start_scheduler, start_worker
from tests.training.stores import TINY, make_store

STEPS = 4
SUITE = f"""
title: Tiny
paper: [weak_aug]
rows:
  - {{name: SimCLR, recipe: simclr+weak}}
  - {{name: HiDisc-Patient, recipe: hidisc-patient+weak}}
claims:
  - {{text: HiDisc-Patient is better, better: HiDisc-Patient, than: SimCLR}}
seeds: 2
floors: false
evaluate: {{knn: {{k: 5}}, probes: [knn], bootstrap: {{resamples: 50}}}}
small: {{changes: [{", ".join(f'"{change}"' for change in TINY)}, optim.steps={STEPS}]}}
"""
PUT = f"--scale small puts {', '.join(map(repr, TINY[:3]))} and {len(TINY) - 2} more over every row"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_store(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("suite") / "tiny.yaml"
    path.write_text(SUITE)
    return path


def load(suite: Path, *changes: str) -> SuiteConfig:
    return load_config(SuiteConfig, str(suite), list(changes))


def tables(out: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((out / "tables").iterdir()) if path.name[0] != "."}


@pytest.fixture(scope="module")
def whole(store: Path, suite: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A benchmark that nothing happened to."""
    out = tmp_path_factory.mktemp("whole") / "out"
    said: list[str] = []
    done = benchmark(load(suite), store, out, workers=1, device="cpu", say=said.append)
    assert (done.page, done.cells, done.done, done.failed) == (out / "benchmark.html", 4, 4, 0)
    assert said == [f"4 trainings, 4 to do, 1 at once; {PUT}"]
    return out


def test_every_cell_is_a_run_that_is_judged(whole: Path) -> None:
    folders = sorted(path.name for path in (whole / "cells").iterdir())
    assert folders == ["01-simclr-0", "01-simclr-1", "02-hidisc-patient-0", "02-hidisc-patient-1"]
    for name in folders:
        info = Run.load(whole / "cells" / name / "run").info
        assert (info.steps, info.seed) == (STEPS, int(name[-1]))
    text = (whole / "tables" / "paper-weak-aug.md").read_text()
    assert "| SimCLR | here |" in text
    assert "31.5 (2.3)" in text
    claims = (whole / "tables" / "claims.md").read_text()
    assert "| HiDisc-Patient is better | not measured |" in claims
    assert "2 patients are too few to tell" in claims


def test_a_finished_benchmark_is_written_again_without_training(whole: Path, store: Path, suite: Path) -> None:
    before = tables(whole), (whole / "benchmark.html").read_bytes()
    said: list[str] = []
    done = benchmark(load(suite), store, whole, workers=1, device="cpu", say=said.append)
    assert (done.done, said) == (4, [])
    assert (tables(whole), (whole / "benchmark.html").read_bytes()) == before


def test_the_page_is_left_to_who_is_writing_it(whole: Path, store: Path, suite: Path) -> None:
    said: list[str] = []
    with hold(whole):
        done = benchmark(load(suite), store, whole, workers=1, device="cpu", say=said.append)
    assert (done.page, done.done) == (None, 4)
    assert said == ["all trainings are done, and another process is writing the page"]


def command(suite: Path, store: Path, out: Path, *more: str) -> list[str]:
    return ["benchmark", str(suite), str(store), "--out", str(out), "--device", "cpu", *more]


KILLS = (
    ("file.written", 1, "config.yaml", 0),
    ("step.done", 2, "*", 0),
    ("cell.trained", 1, "*", 0),
    ("block.done", 1, "*", 0),
    ("file.written", 1, "scores.json", 0),
    ("cell.done", 1, "*", 1),
    ("cell.trained", 2, "*", 2),
    ("cell.done", 2, "*", 4),
    ("file.written", 1, "benchmark.html", 4),
)
"""Steps at which the same command is killed, one after the other, and the cells that are done then."""
FEW_KILLS = (("cell.trained", 2, "*", 1), ("file.written", 1, "benchmark.html", 4))


@pytest.mark.whole
@pytest.mark.parametrize("kills", [FEW_KILLS, pytest.param(KILLS, marks=pytest.mark.slow)], ids=["few", "every step"])
def test_killed_at_a_step_the_tables_are_the_same(
    whole: Path, store: Path, suite: Path, forks: Forks, tmp_path: Path, kills: tuple[tuple[str, int, str, int], ...]
) -> None:
    out = tmp_path / "out"
    words = command(suite, store, out, "--workers", "1")
    for step, number, file, done in kills:
        assert forks.run(*words, at=signal_at(step, number, file)).code == -signal.SIGKILL
        assert len(list(out.glob("cells/*/scores-*/scores.json"))) == done
    last = forks.run(*words)
    assert last.code == 0, last.said
    assert last.result == f"{out}/benchmark.html: 4 of 4 trainings, tables in {out}/tables\n"
    assert tables(out) == tables(whole)


@pytest.mark.whole
def test_everyone_killed_while_workers_are_at_cells(
    whole: Path, store: Path, suite: Path, forks: Forks, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    words = command(suite, store, out)
    assert forks.run(*words, "--workers", "2", at=signal_at("cell.trained", to="group")).code == -signal.SIGKILL
    last = forks.run(*words, "--workers", "1")
    assert last.code == 0, last.said
    assert tables(out) == tables(whole)


@pytest.mark.whole
def test_two_processes_share_the_cells(whole: Path, store: Path, suite: Path, forks: Forks, tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = command(suite, store, out, "--workers", "1")
    first = forks.start(*words, at=signal_at("cell.trained", sent="SIGSTOP"))
    first.stopped()
    second = forks.run(*words)
    assert (second.code, second.result) == (0, "")
    assert "SimCLR, seed 0: another process is working on it" in second.said
    assert len(list(out.glob("cells/*/scores-*/scores.json"))) == 3
    first.go_on()
    ended = first.ended()
    assert ended.code == 0, ended.said
    assert ended.result.endswith(f"4 of 4 trainings, tables in {out}/tables\n")
    assert tables(out) == tables(whole)


@pytest.mark.whole
def test_cells_are_given_to_dask(whole: Path, store: Path, suite: Path, forks: Forks, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with start_scheduler(forks, tmp_path) as address:
        for _ in range(2):
            start_worker(forks, address, tmp_path)
        done = benchmark(load(suite), store, out, scheduler=address, device="cpu")
    assert done.done == 4
    assert tables(out) == tables(whole)


def test_a_failed_cell_is_shown_with_its_reason_and_tried_again(store: Path, suite: Path, tmp_path: Path) -> None:
    hot = "{name: hot, recipe: simclr+weak, changes: [optim.learning_rate=1e30]}"
    config = load(suite, f"rows=[{{name: SimCLR, recipe: simclr+weak}}, {hot}]", "claims=[]", "seeds=1")
    said: list[str] = []
    done = benchmark(config, store, tmp_path / "out", workers=1, device="cpu", say=said.append)
    assert (done.done, done.failed) == (1, 1)
    (sentence,) = [text for text in said if text.startswith("hot, seed 0: failed: ")]
    assert "not finite" in sentence
    assert done.page
    assert "not finite" in done.page.read_text()
    assert "1 of 2 trainings finished, 1 failed." in done.page.read_text()
    again: list[str] = []
    benchmark(config, store, tmp_path / "out", workers=1, device="cpu", say=again.append)
    assert again[0] == f"2 trainings, 1 to do, 1 at once; {PUT}"


def test_a_damaged_encoder_on_the_way_is_made_again(store: Path, suite: Path, tmp_path: Path) -> None:
    config, out = load(suite, "seeds=1", "evaluation_points=[0.5, 1.0]"), tmp_path / "out"
    benchmark(config, store, out, workers=1, device="cpu")
    encoder = out / "cells" / "01-simclr-0" / f"encoder-{STEPS // 2}"
    before = (encoder / "encoder.safetensors").read_bytes()
    (encoder / "encoder.safetensors").write_bytes(before[:-1] + b"x")
    assert len(find_damage(out)) == 1
    assert benchmark(config, store, out, workers=1, device="cpu").done == 2
    assert find_damage(out) == []
    assert (encoder / "encoder.safetensors").read_bytes() == before


def test_a_cell_that_another_process_is_at_is_left_to_it(
    store: Path, suite: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, out, said = load(suite, "seeds=1"), tmp_path / "out", list[str]()
    monkeypatch.setattr(verb, "run_tasks", lambda *_, **__: iter(()))  # begun, and nothing done
    assert benchmark(config, store, out, workers=1, device="cpu").page is None
    monkeypatch.undo()
    with hold(out / "cells" / "01-simclr-0"):
        done = benchmark(config, store, out, workers=1, device="cpu", say=said.append)
    assert (done.page, done.done, done.failed) == (None, 1, 0)
    assert "SimCLR, seed 0: another process is working on it" in said
    assert said[-1].startswith("some trainings are being done by another process: run the same command again")
    assert benchmark(config, store, out, workers=1, device="cpu").done == 2


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"scale": "huge"}, "--scale 'huge' is none of small, paper."),
        ({}, "rows of this suite need stores called raw. Give each as --store raw=PATH."),
    ],
)
def test_what_cannot_be_done_is_said(
    store: Path, suite: Path, tmp_path: Path, options: dict[str, str], sentence: str
) -> None:
    rows = "rows=[{name: A, recipe: simclr+weak, store: raw}]"
    with pytest.raises(UserError) as raised:
        benchmark(load(suite, rows, "claims=[]"), store, tmp_path / "out", device="cpu", **options)  # type: ignore[arg-type]
    assert str(raised.value) == sentence


def test_weights_that_are_missing_are_said_before_anything_is_trained(store: Path, suite: Path, tmp_path: Path) -> None:
    missing = "{name: A, recipe: simclr+weak, changes: [model.weights=gone.safetensors]}"
    config = load(suite, f"rows=[{{name: SimCLR, recipe: simclr+weak}}, {missing}]", "claims=[]")
    with pytest.raises(UserError) as raised:
        benchmark(config, store, tmp_path / "out", device="cpu")
    assert str(raised.value) == (
        "this suite has rows that start from the weights gone.safetensors, and there is no such file here. Put it into "
        'this folder; docs/training.md, "Starting from weights", says how to get one.'
    )
    assert not (tmp_path / "out").exists()


def test_rows_of_a_suite_of_ones_own_run_as_written(store: Path, tmp_path: Path) -> None:
    changes = [*TINY, "optim.steps=1", "model.backbone=resnet18"]
    row = RowConfig(name="A", recipe="simclr+weak", changes=tuple(changes))
    config = SuiteConfig(title="own", rows=(row,), seeds=1, floors=False, evaluate={"probes": ["knn"], "knn": {"k": 5}})
    said: list[str] = []
    done = benchmark(config, store, tmp_path / "out", workers=1, device="cpu", say=said.append)
    assert said == ["1 training, 1 to do, 1 at once; every row as written"]
    info = Run.load(tmp_path / "out/cells/01-a-0/run").info
    assert (info.backbone, info.steps) == ("resnet18", 1)
    assert done.page
    assert "every row as written: 1 of 1 trainings finished." in done.page.read_text()


def import_again(folder: Path) -> None:
    """Import the patches of `make_store` again with the labels of two patients exchanged."""
    table = (folder / "patients.csv").read_text()
    (folder / "patients.csv").write_text(table.replace("P0,a", "P0,?").replace("P1,b", "P1,a").replace("P0,?", "P0,b"))
    import_patches(find_folder(folder / "pictures", folder / "patients.csv"), folder / "store", workers=0)


@contextmanager
def done_once(step: str, change: Callable[[], None], number: int = 1) -> Iterator[None]:
    """Have a function called when a named step is reached for the `number`th time."""
    left = number

    def watch(reached: str, file: str) -> None:
        nonlocal left
        left -= reached == step
        if left == 0:
            left = -1
            change()

    watch_steps(watch)
    try:
        yield
    finally:
        watch_steps(None)


STARTED = "{{name: SimCLR, recipe: simclr+weak, changes: ['model.weights={weights}']}}"
FROZEN = "{{name: frozen, recipe: simclr+weak, encoder: start, changes: ['model.weights={weights}']}}"


@pytest.fixture(scope="module")
def weights(store: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, bytes]:
    """Two files of starting weights."""
    folders = [tmp_path_factory.mktemp("weights") for _ in range(2)]
    for seed, folder in enumerate(folders):
        torch.manual_seed(seed)
        build_encoder("test_resnet", {}, None, channels=3, size_px=32).save(folder)
    first, second = ((folder / WEIGHTS).read_bytes() for folder in folders)
    return first, second


def list_cells(out: Path) -> list[str]:
    return sorted(path.parts[-3] for path in out.glob("cells/*/scores-*/artefact.json"))


@pytest.mark.parametrize(
    ("step", "number"), [("cell.done", 1), ("cell.trained", 1), ("step.done", 2), ("block.done", 1)]
)
def test_a_store_that_changes_during_a_benchmark_is_refused(
    suite: Path, tmp_path: Path, step: str, number: int
) -> None:
    store = make_store(tmp_path)
    kept, out, config = tmp_path / "kept", tmp_path / "out", load(suite, "seeds=1")
    shutil.copytree(store, kept)
    with done_once(step, lambda: import_again(tmp_path), number), pytest.raises(ChangedInputError) as caught:
        benchmark(config, store, out, workers=1, device="cpu")
    assert str(caught.value) == (
        f"the store {store} is no longer what it was when {out} was begun. Put it back as it was to go on, or give a "
        "new --out. What is finished is kept."
    )
    assert not (out / "benchmark.html").exists(), "no page of a mixture"
    finished = list_cells(out)
    assert finished == (["01-simclr-0"] if step == "cell.done" else [])
    with pytest.raises(UserError, match="the content of the store has changed"):
        benchmark(config, store, out, workers=1, device="cpu")
    shutil.rmtree(store)
    shutil.copytree(kept, store)
    said: list[str] = []
    assert benchmark(config, store, out, workers=1, device="cpu", say=said.append).done == 2
    assert said == [f"2 trainings, {2 - len(finished)} to do, 1 at once; {PUT}"]
    fresh = tmp_path / "fresh"
    benchmark(config, store, fresh, workers=1, device="cpu")
    assert tables(out) == tables(fresh)


@pytest.mark.parametrize("row", [STARTED, FROZEN], ids=["trained", "frozen"])
def test_weights_that_change_during_a_benchmark_are_refused(
    store: Path, suite: Path, weights: tuple[bytes, bytes], tmp_path: Path, row: str
) -> None:
    file, out = tmp_path / "w.safetensors", tmp_path / "out"
    file.write_bytes(weights[0])
    rows = f"rows=[{{name: other, recipe: simclr+weak}}, {row.format(weights=file)}]"
    config = load(suite, rows, "claims=[]", "seeds=1")
    with done_once("cell.done", lambda: file.write_bytes(weights[1])), pytest.raises(ChangedInputError) as caught:
        benchmark(config, store, out, workers=1, device="cpu")
    assert str(caught.value) == (
        f"model.weights = '{file}' is no longer what it was when {out} was begun. Put it back as it was to go on, or "
        "give a new --out. What is finished is kept."
    )
    assert (list_cells(out), (out / "benchmark.html").exists()) == (["01-other-0"], False)
    file.write_bytes(weights[0])
    assert benchmark(config, store, out, workers=1, device="cpu").done == 2


@pytest.mark.whole
def test_an_input_that_changes_is_refused_by_a_dask_worker(
    store: Path, suite: Path, weights: tuple[bytes, bytes], forks: Forks, tmp_path: Path
) -> None:
    file, out = tmp_path / "w.safetensors", tmp_path / "out"
    file.write_bytes(weights[0])
    config = load(suite, f"rows=[{STARTED.format(weights=file)}]", "claims=[]", "seeds=1")
    with start_scheduler(forks, tmp_path) as address:
        start_worker(forks, address, tmp_path)
        with pytest.raises(ChangedInputError, match=r"model\.weights = .* is no longer what it was"):
            benchmark(  # what is said, is said after the checksums are taken and before a cell is given to a worker
                config, store, out, scheduler=address, device="cpu", say=lambda _: file.write_bytes(weights[1])
            )
    assert not (out / "benchmark.html").exists()


def test_doctor_finds_what_is_damaged_in_a_cell(store: Path, suite: Path, tmp_path: Path) -> None:
    out, row = tmp_path / "out", "rows=[{name: SimCLR, recipe: simclr+weak}]"
    benchmark(load(suite, row, "claims=[]", "seeds=1"), store, out, workers=1, device="cpu")
    assert find_damage(out) == []
    damaged = out / "cells/01-simclr-0/embeddings-4-0/embeddings.npy"
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"x")
    assert find_damage(out) == ["cells/01-simclr-0/embeddings-4-0: embeddings.npy has changed (its checksum differs)"]
    assert what_to_do(out) == "run the same `hidisc benchmark` again: what is damaged is made again"
    assert benchmark(load(suite, row, "claims=[]", "seeds=1"), store, out, workers=1, device="cpu").done == 1


def test_jobs_that_start_at_once_do_not_refuse_each_other(store: Path, suite: Path, tmp_path: Path) -> None:
    """Eight of an array: each finds the folder begun by itself or by another, never half begun or held."""
    config = load(suite)
    sums = {"the store": PatchStore.load(store).checksum}
    settings = verb._Settings(**config.model_dump(), scale="small")
    start = threading.Barrier(8)
    failed: list[BaseException] = []

    def begin() -> None:
        start.wait()
        try:
            begin_together(tmp_path / "out", "benchmark", settings, sums, wait_s=30)
        except BaseException as error:  # noqa: BLE001 - of another thread, shown below
            failed.append(error)

    jobs = [threading.Thread(target=begin) for _ in range(8)]
    for job in jobs:
        job.start()
    for job in jobs:
        job.join()
    assert failed == []
    assert read_kind(tmp_path / "out") == "benchmark"


def test_other_settings_are_refused(whole: Path, store: Path, suite: Path) -> None:
    with pytest.raises(UserError, match=r"was begun with other settings \(seeds: 2 -> 1\)"):
        benchmark(load(suite, "seeds=1"), store, whole, device="cpu")


def test_a_row_may_learn_from_another_store(store: Path, suite: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other = make_store(tmp_path / "other", patches=5)
    config = load(
        suite,
        "rows=[{name: A, recipe: simclr+weak}, {name: B, recipe: simclr+weak, store: raw}]",
        "claims=[]",
        "seeds=1",
    )
    done = benchmark(config, store, tmp_path / "out", stores={"raw": other}, workers=1, device="cpu")
    assert done.done == 2
    learned = [Run.load(tmp_path / "out/cells" / name / "run").info.patches for name in ("01-a-0", "02-b-0")]
    assert learned == [72, 60]


def test_a_curve_has_an_encoder_a_look(store: Path, suite: Path, tmp_path: Path) -> None:
    rows = "rows=[{name: SimCLR, recipe: simclr+weak}]"
    config = load(suite, rows, "claims=[]", "seeds=1", "evaluation_points=[0.33, 0.67, 1.0]", "axis=steps")
    out = tmp_path / "out"
    assert benchmark(config, store, out, workers=1, device="cpu").done == 1
    cell = out / "cells" / "01-simclr-0"
    assert sorted(path.name for path in cell.glob("scores-*")) == ["scores-1-0", "scores-3-0", "scores-4-0"]
    trained = Run.load(cell / "run")
    kept = [path.name for path in list_checkpoints(trained.path)]  # 3 and 4 are the newest as well
    assert kept == [f"step-{step:08d}.safetensors" for step in (1, 3, 4)]
    x = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert torch.equal(trained.encoder_at(4).features(x), trained.encoder().features(x))
        assert not torch.equal(trained.encoder_at(3).features(x), trained.encoder().features(x))
    with pytest.raises(UserError, match=r"has no checkpoint of step 2\. Train with checkpoint\.at=\[2\] to keep it\."):
        trained.encoder_at(2)
    assert (out / "figures" / "axis.png").is_file()


@pytest.mark.whole
def test_the_command_line_says_what_is_wrong(store: Path, suite: Path, forks: Forks, tmp_path: Path) -> None:
    wrong = forks.run(*command(suite, store, tmp_path / "out", "--store", "raw"))
    assert (wrong.code, wrong.result) == (2, "")
    assert wrong.said == "hidisc: --store 'raw' is not NAME=PATH. Give a name that the suite uses and a store.\n"
    unknown = forks.run("benchmark", "nonsense", str(store), "--out", str(tmp_path / "out"))
    assert unknown.code == 2
    assert "weak" in unknown.said
    hot = "rows=[{name: hot, recipe: simclr+weak, changes: [optim.learning_rate=1e30]}]"
    failed = forks.run(*command(suite, store, tmp_path / "hot", "--set", hot, "--set", "claims=[]", "--set", "seeds=1"))
    assert failed.code == 1
    assert "hot, seed 0: failed: " in failed.said

"""Every command x every input x every moment at which the input may change: from before, from now or refused.

A case changes one input of one command at one moment, in a copy of a small world of patch files. What comes out must be
what the command makes of the world before the change, or of the world after it, or a refusal that names the input. The
table of all cases stands in docs/reliability.md.
"""

import json
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hidisc.artefacts.artefact import CONFIG, MANIFEST
from hidisc.auditing.audit import AUDIT
from hidisc.benchmarking.benchmark import benchmark
from hidisc.embeddings.embeddings import PATCHES, VECTORS, Embeddings
from hidisc.embeddings.given_names import GivenNames, save_labels
from hidisc.evaluation.scores import Scores
from hidisc.ground.errors import UserError
from hidisc.ground.progress import SILENT
from hidisc.ground.stop import watch_steps
from hidisc.models.card import CARD, PREPROCESSING, WEIGHTS
from hidisc.models.encoder import build_encoder
from hidisc.patches.folders import find_folder
from hidisc.patches.store import PatchStore
from hidisc.settings.audit import AuditConfig
from hidisc.settings.benchmark import SuiteConfig
from hidisc.settings.config import load_config
from hidisc.settings.embed import EmbedConfig
from hidisc.settings.evaluate import EvaluateConfig
from hidisc.settings.prepare import ImportConfig
from hidisc.verbs.audit import audit
from hidisc.verbs.embed import embed
from hidisc.verbs.evaluate import evaluate
from hidisc.verbs.prepare import import_patches
from hidisc.verbs.train import train
from tests.made_once import make_once
from tests.patches.pictures import noise, write_pictures
from tests.training.stores import TINY, make_store, tiny

PAGE = Path(__file__).parents[2] / "docs" / "reliability.md"
MOMENTS = ("it begins", "the middle", "stopped", "finished")
"""As the command begins; in its middle; after it was stopped there, before it goes on; after it has finished, before it
is run again."""
FAST = ("it begins", "stopped")
"""Moments that `make test` tries; the other ones, and benchmarks, are slow tests."""
START = Path("w/weights.safetensors")
Settings = tuple[str, ...]


def import_into(out: Path, settings: Settings) -> None:
    import_patches(
        find_folder(Path("pictures"), Path("patients.csv")), out, load_config(ImportConfig, None, settings), workers=0
    )


def train_into(out: Path, settings: Settings) -> None:
    config = tiny(f"model.weights={START}", "optim.steps=4", *settings)
    train("store", out, config, device="cpu", devices=1, watch=SILENT)


def embed_into(out: Path, settings: Settings, model: str = "run") -> None:
    config = load_config(EmbedConfig, None, ["batch=4", *settings])  # blocks of 64 patches: two
    embed("store", model, out, config, device="cpu", devices=1, shown=False)


def embed_start_into(out: Path, settings: Settings) -> None:
    embed_into(out, (f"model.weights={START}", *settings), "timm:test_resnet")


def evaluate_into(out: Path, settings: Settings) -> None:
    config = ["probes=[knn]", "knn.k=5", "bootstrap.resamples=20", "folds.number=2", "audit=false", *settings]
    evaluate("embeddings", out, load_config(EvaluateConfig, None, config), device="cpu")


def evaluate_names_into(out: Path, settings: Settings) -> None:
    evaluate_into(out, ("label=named", *settings))


def benchmark_into(out: Path, settings: Settings) -> None:
    text = f"""
title: Two cells
rows:
  - {{name: other, recipe: simclr+weak}}
  - {{name: started, recipe: simclr+weak, changes: [model.weights={START}]}}
seeds: 1
floors: false
evaluate: {{knn: {{k: 5}}, probes: [knn], bootstrap: {{resamples: 20}}}}
small: {{changes: [{", ".join(f'"{change}"' for change in TINY)}, optim.steps=2]}}
"""
    Path("suite.yaml").write_text(text)
    benchmark(load_config(SuiteConfig, "suite.yaml", settings), "store", out, workers=1, device="cpu")


def audit_into(out: Path, settings: Settings) -> None:
    audit(["embeddings"], out, load_config(AuditConfig, None, ["k=5", *settings]), device="cpu")


def read_store(out: Path) -> object:
    return PatchStore.load(out).checksum


def read_run(out: Path) -> object:
    return (out / WEIGHTS).read_bytes()


def read_embeddings(out: Path) -> object:
    return [(out / name).read_bytes() for name in (VECTORS, PATCHES)]


def read_scores(out: Path) -> object:
    return Scores.load(out).info.model_dump_json(exclude={"embeddings", "bank"})


def read_audit(out: Path) -> object:
    return (out / AUDIT).read_bytes()


def read_benchmark(out: Path) -> object:
    files = sorted([*(out / "tables").glob("[!.]*"), *out.glob(f"cells/*/*/{VECTORS}")])
    return [path.read_bytes() for path in files]


def change_picture() -> None:
    write_pictures(Path("pictures"), {"P0/P0-x/0.png": noise(7, 32)})


def change_label() -> None:
    table = Path("patients.csv").read_text()
    Path("patients.csv").write_text(table.replace("P0,a,train", "P0,b,test"))


def change_label_in_store() -> None:
    change_label()
    import_into(Path("store"), ())


def change_pixels_in_store() -> None:
    change_picture()
    shutil.rmtree("store")
    import_into(Path("store"), ())


def exchange(path: str) -> Callable[[], None]:
    """Put what lies at `other/path` in the place of `path`."""

    def change() -> None:
        if Path(path).is_dir():
            shutil.rmtree(path)
            shutil.copytree(Path("other") / path, path)
        else:
            shutil.copy(Path("other") / path, path)

    return change


CHANGES: dict[str, tuple[Callable[[], None], str]] = {
    "a patch file": (change_picture, "P0-x|picture"),
    "a label and split in the table": (change_label, "patients.csv"),
    "a label and split in the store": (change_label_in_store, "the store"),
    "pixels in the store": (change_pixels_in_store, "the store"),
    "starting weights": (exchange(str(START)), "weights|encoder"),
    "their preprocessing.json": (exchange(f"w/{PREPROCESSING}"), "weights|encoder"),
    "the run": (exchange("run"), "encoder"),
    "the embeddings": (exchange("embeddings"), "embeddings"),
    "names given to patches": (exchange("labels/named.parquet"), "the labels"),
    "a setting": (lambda: None, "other settings"),
}
"""Changes of inputs, and what a refusal must name."""


@dataclass(frozen=True)
class Command:
    """A command, the inputs that it reads, and the named step in its middle."""

    make: Callable[[Path, Settings], None]
    read: Callable[[Path], object]
    inputs: tuple[str, ...]
    middle: tuple[str, str]
    setting: str


OF_STORE = ("a label and split in the store", "pixels in the store")
OF_START = ("starting weights", "their preprocessing.json")
COMMANDS = {
    "import": Command(
        import_into,
        read_store,
        ("a patch file", "a label and split in the table"),
        ("slide.done", ""),
        "pixels.codec=raw",
    ),
    "train": Command(train_into, read_run, (*OF_STORE, *OF_START), ("checkpoint.saved", ""), "optim.weight_decay=0.2"),
    "embed": Command(embed_into, read_embeddings, (*OF_STORE, "the run"), ("block.done", ""), "dtype=float16"),
    "embed timm:NAME": Command(
        embed_start_into, read_embeddings, (*OF_STORE, *OF_START), ("block.done", ""), "dtype=float16"
    ),
    "evaluate": Command(
        evaluate_into,
        read_scores,
        ("the embeddings", "pixels in the store"),
        ("file.renamed", MANIFEST),
        "knn.k=4",
    ),
    "evaluate names": Command(
        evaluate_names_into,
        read_scores,
        ("the embeddings", "names given to patches"),
        ("file.renamed", MANIFEST),
        "knn.k=4",
    ),
    "audit": Command(audit_into, read_audit, ("the embeddings", "pixels in the store"), ("file.written", AUDIT), "k=4"),
    "benchmark": Command(benchmark_into, read_benchmark, (*OF_STORE, *OF_START), ("cell.done", ""), "evaluate.knn.k=4"),
}
CASES = [
    (name, changed, moment)
    for name, command in COMMANDS.items()
    for changed in (*command.inputs, "a setting")
    for moment in (MOMENTS if changed != "a setting" else MOMENTS[2:])  # settings cannot change while it runs
]


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Patch files, a store of them, starting weights, a run, embeddings and names of patches, and others of each."""
    return make_once("changed-inputs", make_world, tmp_path_factory)


def make_world(folder: Path) -> None:
    folder.mkdir(parents=True)
    make_store(folder)
    shutil.copytree(folder / "store", folder / "other" / "store")
    for seed, home in enumerate((folder, folder / "other")):
        (home / "w").mkdir(parents=True)
        torch.manual_seed(seed)
        build_encoder("test_resnet", {}, None, channels=3, size_px=32).save(home / "w")
        (home / "w" / WEIGHTS).rename(home / START)
        (home / "w" / CARD).unlink()
        said = {"channels": 3, "mean": [0.1 * seed] * 3, "std": [0.5] * 3}
        (home / "w" / PREPROCESSING).write_text(json.dumps(said))
        train(home / "store", home / "run", tiny(f"seed={seed}", "optim.steps=1"), device="cpu", devices=1)
        config = EmbedConfig(seed=seed)  # the seed of random weights, which have learned from nobody
        embed(home / "store", "timm:test_resnet", home / "embeddings", config, device="cpu", devices=1, shown=False)
        made = Embeddings.load(home / "embeddings")
        patients = made.table.column("patient").tolist()
        names = np.array([f"{(int(name[1]) + seed * (name == 'P0')) % 2}" for name in patients], object)
        given = GivenNames.none(len(names)).change(np.arange(len(names)), [names, "patch", None])
        save_labels(made.path, "named", made.table, made.info.slides, given)


class Stopped(BaseException):
    """The end of a process at a named step."""


@contextmanager
def at_step(step: str, file: str, act: Callable[[], None]) -> Iterator[list[str]]:
    """Have a function called once, when a named step of a file is first reached; yields the step then."""
    happened: list[str] = []

    def watch(reached: str, name: str) -> None:
        if not happened and reached == step and file in ("", name):
            happened.append(step)
            act()

    watch_steps(watch)
    try:
        yield happened
    finally:
        watch_steps(None)


def stop() -> None:
    raise Stopped


_fresh: dict[tuple[str, str], Any] = {}
"""What commands make of the world before and after a change, by command and change."""


def make_fresh(name: str, changed: str, world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> object:
    """What a command makes of a world in which an input, or nothing (""), was changed before."""
    if (name, changed) not in _fresh:
        folder = tmp_path / "fresh" / (changed or "nothing")
        shutil.copytree(world, folder)
        monkeypatch.chdir(folder)
        command = COMMANDS[name]
        if changed:
            CHANGES[changed][0]()
        command.make(Path("out"), (command.setting,) if changed == "a setting" else ())
        _fresh[name, changed] = command.read(Path("out"))
    return _fresh[name, changed]


@pytest.mark.parametrize(
    ("name", "changed", "moment"),
    [
        pytest.param(*case, marks=() if case[2] in FAST and case[0] != "benchmark" else pytest.mark.slow)
        for case in CASES
    ],
)
def test_no_result_is_a_mixture(
    name: str, changed: str, moment: str, world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = make_fresh(name, "", world, tmp_path, monkeypatch)
    after = make_fresh(name, changed, world, tmp_path, monkeypatch)
    assert before != after, "the change must matter"
    shutil.copytree(world, tmp_path / "world")
    monkeypatch.chdir(tmp_path / "world")
    command, (change, named), out = COMMANDS[name], CHANGES[changed], Path("out")
    settings: Settings = (command.setting,) if changed == "a setting" else ()
    try:
        if moment in MOMENTS[:2]:
            step, file = ("file.renamed", CONFIG) if moment == "it begins" else command.middle
            with at_step(step, file, change) as happened:
                command.make(out, ())
            assert happened
        else:
            if moment == "stopped":
                with at_step(*command.middle, stop), pytest.raises(Stopped):
                    command.make(out, ())
            else:
                command.make(out, ())
            change()
            command.make(out, settings)
        found = command.read(out)
        outcome = "before" if found == before else "after" if found == after else "mixture"
    except UserError as error:
        outcome = "refused" if re.search(named, str(error)) else f"refused without a word of {changed}: {error}"
    assert outcome != "mixture"
    assert read_table()[name, changed][moment] == outcome, f"{PAGE} says otherwise"


def read_table() -> dict[tuple[str, str], dict[str, str]]:
    """Outcomes by command and input, then by moment, as the page has them."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in PAGE.read_text().splitlines()]
    of_command = [row for row in rows if len(row) == 2 + len(MOMENTS) and row[0].strip("`") in COMMANDS]
    return {(row[0].strip("`"), row[1]): dict(zip(MOMENTS, row[2:], strict=True)) for row in of_command}


def test_the_page_has_every_case_and_no_other() -> None:
    cells = {(*row, moment) for row, cells in read_table().items() for moment, cell in cells.items() if cell != "-"}
    assert cells == set(CASES)

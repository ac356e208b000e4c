"""The public Python API: every name is seen and described, and every function takes a path as text or as a Path."""

import inspect
import os
import pydoc
import re
import typing
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

import hidisc
from hidisc.ground.files import AnyPath
from tests.patches.pictures import pictures_of, write_pictures
from tests.patches.test_opensrh import study, write_opensrh
from tests.reporting.pdf import skip_pdf
from tests.training.stores import TINY

SOURCE = Path(hidisc.__file__)
QUICK = {"bootstrap": {"resamples": 20}, "probes": ["knn"], "knn": {"k": 3}}
SUITE = {
    "title": "Tiny",
    "rows": [{"name": "HiDisc", "recipe": "hidisc-patient+weak"}],
    "seeds": 1,
    "evaluate": QUICK,
    "small": {"changes": [*TINY, "optim.steps=2"]},
}


def test_dir_shows_the_api_and_nothing_else() -> None:
    assert [name for name in dir(hidisc) if not name.startswith("__")] == hidisc.__all__
    assert dir(hidisc) == sorted(dir(hidisc))


def test_the_docstring_says_what_every_public_name_is() -> None:
    """`help(hidisc)` begins with it."""
    lines = re.findall(r"^- `\w+`: \S.*\.$", hidisc.__doc__ or "", re.MULTILINE)
    assert sorted(line.split("`")[1] for line in lines) == hidisc.__all__
    shown = pydoc.plain(pydoc.text.docmodule(hidisc))
    assert all(line in shown for line in lines)


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="No hidisc attribute Patchstore"):
        _ = hidisc.Patchstore


def test_a_name_of_the_api_is_what_it_was_after_everything_is_loaded() -> None:
    """Importing a folder sets it in its package, so no folder has the name of a verb."""
    import_module("hidisc.benchmarking.cells")
    for name in hidisc.__all__:
        assert not isinstance(getattr(hidisc, name), ModuleType), name
    assert hidisc.benchmark is import_module("hidisc.benchmarking.benchmark").benchmark


class Elsewhere:
    """Something that is no Path and no text, but names a file."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __fspath__(self) -> str:
        return self.path


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Slides, a store, a run, embeddings and scores, made with nothing but text for paths."""
    folder = tmp_path_factory.mktemp("work")
    before = Path.cwd()
    os.chdir(folder)
    try:
        cohort = hidisc.draw_cohort("drawn", patients=8, slides=1, fields=8, field_px=48)
        assert cohort == Path("drawn/cohort.csv")
        split = {"fractions": {"train": 0.5, "test": 0.5}}
        grid = {"size_px": 48}
        hidisc.prepare(
            "drawn/cohort.csv", "store", hidisc.PrepareConfig.model_validate({"split": split, "grid": grid}), workers=0
        )
        config = hidisc.load_config(hidisc.TrainConfig, None, [*TINY, "optim.steps=2"])
        assert hidisc.train("store", "run", config, device="cpu", devices=1) is not None
        assert hidisc.embed("store", "run", "embeddings", device="cpu", devices=1, shown=False) is not None
        judging = hidisc.EvaluateConfig.model_validate(QUICK)
        hidisc.evaluate("embeddings", "scores", judging, bank="embeddings", device="cpu")
    finally:
        os.chdir(before)
    return folder


@pytest.mark.parametrize("kind", [str, Path, Elsewhere])
def test_every_artefact_opens_by_text_and_by_path(
    work: Path, kind: typing.Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(work)
    assert len(hidisc.Cohort.load(kind("drawn/cohort.csv")).slides) == 8
    with hidisc.open_slide(kind("drawn/slides/P001-S1.tiff")) as slide:
        assert slide.path == Path("drawn/slides/P001-S1.tiff")
    store, run = hidisc.PatchStore.load(kind("store")), hidisc.Run.load(kind("run"))
    embeddings, scores = hidisc.Embeddings.load(kind("embeddings")), hidisc.Scores.load(kind("scores"))
    for loaded, path in ((store, "store"), (run, "run"), (embeddings, "embeddings"), (scores, "scores")):
        assert loaded.path == Path(path)
    assert store.read(0).shape == (48, 48, 3)
    assert hidisc.Encoder.load(kind("run")).card == run.card
    assert len(hidisc.PatchTable.load(kind("store/patches.parquet"))) == len(store)
    patches = hidisc.Predictions.load(kind("scores/predictions_patch.parquet"))
    assert len(patches) == len(scores.predictions("knn", "patch"))


def test_every_verb_takes_text_and_paths(work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is read is given as something else that names a file, what is written as text."""
    monkeypatch.chdir(work)
    skip_pdf(monkeypatch)
    kind = Elsewhere

    def out(name: str) -> str:
        return str(tmp_path / name)

    small = hidisc.ReportConfig(points=10, picture_px=16, sheet_rows=1)
    assert hidisc.report([kind("scores")], out("report.html"), small) == tmp_path / "report.html"
    slide = hidisc.Scores.load("scores").predictions("knn", "slide").units["slide"][0]
    assert hidisc.heatmap(kind("store"), kind("scores"), slide, out("heat.png")) == tmp_path / "heat.png"
    assert (tmp_path / "heat.png").is_file()
    assert hidisc.export(kind("run"), out("timm"), "timm")[0] == tmp_path / "timm" / "model.safetensors"
    assert hidisc.export_bags(kind("embeddings"), out("bags")) == 8
    embedded = hidisc.embed(kind("store"), kind("run"), out("e"), device="cpu", devices=1, shown=False)
    assert embedded is not None
    assert embedded.path == tmp_path / "e"
    write_pictures(tmp_path / "pictures", pictures_of("P1/A", "P2/A", patches=1))
    (tmp_path / "patients.csv").write_text("patient,label\nP1,a\nP2,b\n")
    (tmp_path / "patches.csv").write_text("patient,slide,path\nP1,A,pictures/P1/A/0.png\nP2,A,pictures/P2/A/0.png\n")
    write_opensrh(tmp_path / "opensrh", {"X": study("X", "hgg")}, {"train": ["X"], "val": []})
    for name, source in {
        "folder": hidisc.find_folder(out("pictures"), kind(out("patients.csv"))),
        "table": hidisc.find_table(out("patches.csv")),
        "srh": hidisc.find_opensrh(out("opensrh")),
    }.items():
        assert hidisc.import_patches(source, out(name), workers=0).out == tmp_path / name
    suite = hidisc.SuiteConfig.model_validate(SUITE)
    done = hidisc.benchmark(suite, kind("store"), out("b"), stores={"x": kind("store")}, workers=1, device="cpu")
    assert done.page == tmp_path / "b" / "benchmark.html"


def test_no_door_of_the_api_asks_for_a_path_object() -> None:
    """A parameter that takes a Path takes text as well; those of the artefacts' own classes are made inside."""
    wrong = []
    for name in hidisc.__all__:
        thing = getattr(hidisc, name)
        doors = {name: thing} if inspect.isfunction(thing) else {f"{name}.load": getattr(thing, "load", None)}
        for door, function in doors.items():
            hints = typing.get_type_hints(function) if function else {}
            wrong += [f"{door}: {key}" for key, hint in hints.items() if key != "return" and _wants_path(hint)]
    assert wrong == []


def _wants_path(hint: typing.Any) -> bool:
    inner = typing.get_args(hint)
    if typing.get_origin(hint) in (Sequence, Mapping):
        return any(map(_wants_path, inner))
    return hint is Path or (Path in inner and hint != AnyPath)

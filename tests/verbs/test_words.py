"""Scans of patients, as ACDC has them, through all commands: results, headings, tables and captions say scan and slice.

Notes, errors and running text say slide and patch everywhere. Results, headings and tables of slides say so as well.
"""

import csv
import re
from html import unescape
from pathlib import Path

import h5py
import numpy as np
import pytest
from matplotlib.text import Text

from hidisc.benchmarking.benchmark import benchmark
from hidisc.embeddings.embeddings import EMBEDDINGS, Embeddings
from hidisc.evaluation.scores import SCORES, Scores
from hidisc.patches.nifti import find_nifti
from hidisc.patches.store import STORE
from hidisc.reporting.heatmap import draw_heatmap
from hidisc.settings.audit import AuditConfig
from hidisc.settings.benchmark import SuiteConfig
from hidisc.settings.config import load_config
from hidisc.settings.evaluate import EvaluateConfig
from hidisc.settings.level_names import USUAL, LevelNames, find_names
from hidisc.settings.prepare import PrepareConfig, VolumesConfig
from hidisc.settings.report import ReportConfig
from hidisc.settings.train import TrainConfig
from hidisc.slides.synthetic import draw_cohort
from hidisc.training.run import RUN
from hidisc.verbs.audit import audit
from hidisc.verbs.embed import embed
from hidisc.verbs.evaluate import evaluate
from hidisc.verbs.prepare import import_volumes, prepare
from hidisc.verbs.report import report
from hidisc.verbs.train import train
from tests.commands import Forks
from tests.patches.volumes import draw_volume, write_cohort, write_nifti
from tests.reporting.pdf import skip_pdf
from tests.said import Said
from tests.training.stores import TINY

pytestmark = pytest.mark.whole
OTHER = re.compile(r"\b\w*(?:slide|patch)\w*", re.I)


def learn_and_judge(folder: Path, said: list[str], recipe: str) -> Scores:
    steps = load_config(TrainConfig, recipe, [*TINY, "optim.steps=2", "batch.images=8"])
    train(folder / "store", folder / "run", steps, device="cpu", devices=1, say=said.append)
    embed(folder / "store", folder / "run", folder / "embeddings", device="cpu", devices=1, say=said.append)
    judged = load_config(EvaluateConfig, None, ["knn.k=5", "bootstrap.resamples=20", "mil.epochs=2"])
    return evaluate(folder / "embeddings", folder / "scores", judged, device="cpu", progress=Said(said))


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """A folder in which all commands have run on drawn scans, and their results."""
    folder, said, results = tmp_path_factory.mktemp("scans"), list[str](), list[str]()
    root = write_cohort(folder / "nifti", patients=8)
    write_nifti(root / "patient007/patient007_frame03.nii.gz", draw_volume(0)[:, :, :0])  # fails
    config = load_config(VolumesConfig, None, ["size_px=32", "split.fractions={train: 0.5, test: 0.5}"])
    source = find_nifti(root, config, folder / "patients.csv")
    results.append(import_volumes(source, folder / "store", config, workers=0, say=said.append).sentence())
    results.append(learn_and_judge(folder, said, "hidisc-patient+mri").verdict())
    with pytest.MonkeyPatch.context() as patch:
        skip_pdf(patch)
        audit([folder / "embeddings"], folder / "audit", AuditConfig(), device="cpu", say=said.append)
        report([folder / "scores"], folder / "report.html", ReportConfig(perplexity=5), say=said.append)
    suite = SuiteConfig.model_validate(
        {
            "title": "Tiny",
            "rows": [{"name": "Colour", "encoder": "colour"}],
            "seeds": 1,
            "floors": False,
            "evaluate": {"knn": {"k": 5}, "probes": ["knn"], "bootstrap": {"resamples": 20}},
        }
    )
    with pytest.MonkeyPatch.context() as patch:
        skip_pdf(patch)
        benchmark(suite, folder / "store", folder / "benchmark", workers=1, device="cpu", say=said.append)
    return folder, results


def read_headings(page: Path) -> str:
    """Titles, contents, headings, heads of tables and of facts, captions, and the names of the columns of the map."""
    html = page.read_text()
    heads = re.findall(r"<(title|h[1-6]|th|dt|figcaption|nav)\b[^>]*>(.*?)</\1>", html, flags=re.S)
    described = re.findall(r'\s(?:alt|aria-label)="([^"]*)"', re.sub(r"<script\b.*?</script>", "", html, flags=re.S))
    titles = re.findall(r'"title":"([^"]*)"', html)  # of the map's columns
    return unescape(" ".join([*(re.sub(r"<[^>]*>", " ", text) for _, text in heads), *described, *titles]))


@pytest.mark.parametrize("page", ["report.html", "audit/audit.html", "benchmark/benchmark.html"])
def test_headings_tables_and_captions_of_pages_say_scan_and_slice(lab: tuple[Path, list[str]], page: str) -> None:
    text = read_headings(lab[0] / page)
    assert OTHER.findall(text) == []
    if not page.startswith("audit"):
        assert re.search(r"\bslices?\b", text, re.I)
        assert re.search(r"\bscans?\b", text, re.I)
    if page == "report.html":
        assert "Map of the slices" in text
    if page == "audit/audit.html":
        assert re.search(r"[\d,]+ slices of \d+ patients", (lab[0] / page).read_text())


def test_tables_say_scan_and_slice_and_are_named_so(lab: tuple[Path, list[str]]) -> None:
    files = [*(lab[0] / "report_files").rglob("*"), *(lab[0] / "audit/tables").iterdir()]
    assert [path.name for path in files if OTHER.search(path.name)] == []
    for path in files:
        if path.suffix == ".csv":
            header, *rows = csv.reader(path.open())
            is_name = [column not in ("Notes", "What it means") for column in header]
            cells = [*header, *(cell for row in rows for cell, wanted in zip(row, is_name, strict=True) if wanted)]
            assert OTHER.findall(" ".join(cells)) == [], path.name
        if path.suffix == ".md":
            assert OTHER.findall(path.read_text().partition("\n")[0]) == [], path.name
    assert (lab[0] / "report_files/tables/classes-knn-scan.csv").is_file()


def test_results_say_scan_and_slice(lab: tuple[Path, list[str]]) -> None:
    folder, results = lab
    text = "\n".join(results).replace(str(folder), "")
    assert OTHER.findall(re.sub(r"`[^`]*`", "", text)) == []
    assert "96 slices of 16 scans of 8 patients" in text
    assert re.search(r"scan accuracy \d", text)


def test_files_keep_the_names_of_their_columns(lab: tuple[Path, list[str]]) -> None:
    scores = Scores.load(lab[0] / "scores")
    assert scores.info.levels == ("patient", "slide", "patch")
    assert (lab[0] / "scores" / "predictions_slide.parquet").is_file()


def test_the_command_line_says_scan_in_results_and_slide_in_errors(lab: tuple[Path, list[str]], forks: Forks) -> None:
    folder = lab[0]
    ended = forks.run("embed", "store", "run", "--per-slide", "2", "--out", "few", "--device", "cpu", folder=folder)
    assert "32 slices of 16 scans as" in ended.result
    ended = forks.run("evaluate", "few", "--set", "classes=[none, other]", "--out", "no", folder=folder)
    assert ended.code == 2
    assert "classes: no patch has label 'none'" in ended.said
    ended = forks.run("train", "store", "--set", "batch.levels=[centre, patch]", "--out", "no", folder=folder)
    assert ended.code == 2
    assert "'centre' is no column of names" in ended.said
    ended = forks.run("import", "nifti", "nifti", "--set", "size_px=32", "--out", "again", folder=folder)
    assert ended.code == 1
    assert "failed: slide 'patient007/patient007_frame03' of patient 'patient007': " in ended.said
    ended = forks.run("import", "table", "patients.csv", "--pseudonyms", "key", "--out", "no", folder=folder)
    assert ended.code == 2
    assert "--pseudonyms goes with `import nifti` and `dicom`" in ended.said


# What leaves for other tools, and what only reads


@pytest.fixture(scope="module")
def slides(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same of drawn slides."""
    folder = tmp_path_factory.mktemp("slides")
    cohort = draw_cohort(folder, patients=8, slides=1, fields=4, seed=3)
    config = load_config(PrepareConfig, None, ["grid.size_px=32", "split.fractions={train: 0.5, test: 0.5}"])
    prepare(cohort, folder / "store", config, workers=0)
    learn_and_judge(folder, [], "hidisc-patient")
    return folder


def run_others(folder: Path, forks: Forks, unit: str) -> str:
    """All that the commands which only read say of the artefacts of a folder, and the model card."""
    commands = (
        ("export", "run", "--to", "torchscript", "--scores", "scores", "--out", "encoder"),
        ("export", "run", "--to", "bags", "--out", "no"),
        ("export", "embeddings", "--to", "bags", "--out", "bags"),
        ("export", "embeddings", "--to", "geojson", "--out", "boxes"),
        ("export", "scores", "--to", "geojson", "--out", "tiles"),
        ("export", "embeddings", "--to", "anndata", "--out", "table"),
        ("export", "run", "--to", "wsinfer", "--scores", "scores", "--out", "qupath"),
        ("heatmap", "store", "scores", unit, "--out", "heat.png"),
        ("heatmap", "store", "scores", "nobody", "--out", "heat.png"),
        ("views", "store", "--patches", "2", "--views", "2", "--out", "views.png"),
        ("explore", "store", "embeddings", "--save", "taken", "--patient", unit.partition("/")[0].partition("-")[0]),
        ("explore", "store", "store", "--no-browser"),
        ("doctor", "damaged"),
    )
    (folder / "damaged").mkdir()
    for name in ("artefact.json", "config.yaml", STORE):
        (folder / "damaged" / name).write_bytes((folder / "store" / name).read_bytes())
    ended = [forks.run(*words, folder=folder) for words in commands]
    said = [line for each in ended for line in f"{each.said}\n{each.result}".splitlines() if "damaged: " not in line]
    return "\n".join([*said, (folder / "encoder/README.md").read_text()])


def in_sentences(text: str) -> str:
    """A text without its code, paths, and names of files."""
    return re.sub(r"```.*?```|`[^`]*`|\S*/\S*|--\S+|\S+\.png", "", text, flags=re.S)


def test_results_of_exports_and_pictures_and_the_table_of_the_model_card_say_scan(
    lab: tuple[Path, list[str]], forks: Forks
) -> None:
    folder = lab[0]
    unit = Embeddings.load(folder / "embeddings").table.column("slide")[0]
    text = run_others(folder, forks, unit)
    for sentence in (
        "bags: bags of 16 scans",
        "note: 16 of 16 slides have no known um/px",
        "embeddings has patches that were imported as files: it is not known where on a slide they are.",
        "table/embeddings.h5ad: 96 slices",
        f"slide {unit!r} of store was imported as patches, so it has no thumbnail to paint on.",
        "'nobody' is no slide of store.",
        "views.png: 2 slices, 2 views of each",
        "taken/index.html: 2 scans; open it in a browser",
        "delete the folders of slides whose patches are damaged",
        "that turns a patch into",
        "8 slides of 4 patients; the last training drew from 48 patches.",
        "| scan | 8 |",
        "name: slice classification by knn",
        "Patches of 32 x 32 px",
    ):
        assert sentence in text, sentence
    with h5py.File(next((folder / "bags/h5_files").iterdir())) as file:
        assert file["coords"].attrs["coords_are"] == "side by side in one row: where the patches lay is not known"


def test_those_of_slides_say_slide(slides: Path, forks: Forks) -> None:
    table = Embeddings.load(slides / "embeddings").table
    unit = table.column("slide")[np.flatnonzero(table.column("split") == "test")[0]]
    text = run_others(slides, forks, unit)
    for sentence in (
        "bags: bags of 8 slides",
        "boxes: geojson of 8 slides",
        f"heat.png: scores of slide {unit}",
        "'nobody' is no slide of store.",
        "views.png: 2 patches, 2 views of each",
        "taken/index.html: 1 slide; open it in a browser",
        "delete the folders of slides whose patches are damaged",
        "that turns a patch into",
        "| slide | 4 |",
        "Patches of 32 x 32 px",
    ):
        assert sentence in text, sentence
    assert not re.search(r"\b(?:scans?|slices?)\b", in_sentences(text))


@pytest.mark.parametrize(("names", "word"), [(LevelNames(slide="eye", patch="picture"), "Eye"), (USUAL, "Slide")])
def test_a_heatmap_names_what_it_shows(names: LevelNames, word: str) -> None:
    figure = draw_heatmap(np.zeros((9, 9, 3), np.uint8), {"a": np.zeros((9, 9))}, "", words=names)
    assert word in [text.get_text() for text in figure.findobj(Text)]


def test_names_are_found_in_every_artefact_and_are_the_usual_ones_elsewhere(
    lab: tuple[Path, list[str]], tmp_path: Path
) -> None:
    scans = LevelNames(slide="scan", patch="slice")
    assert [find_names(lab[0] / name) for name in ("store", "run", "embeddings", "scores")] == [scans] * 4
    assert [find_names(tmp_path), find_names(tmp_path / "nothing")] == [USUAL] * 2
    for file in (STORE, RUN, EMBEDDINGS, SCORES):
        (tmp_path / file).write_text("[1")
    assert find_names(tmp_path) == USUAL

"""Scans of patients, as ACDC has them, through all commands: no page and no message speaks of slides and patches."""

import re
from html import unescape
from pathlib import Path

import pytest

from hidisc.evaluation.scores import Scores
from hidisc.patches.nifti import find_nifti
from hidisc.settings.audit import AuditConfig
from hidisc.settings.benchmark import SuiteConfig
from hidisc.settings.evaluate import EvaluateConfig
from hidisc.settings.imports import VolumesConfig
from hidisc.settings.load import load_config
from hidisc.settings.report import ReportConfig
from hidisc.settings.train import TrainConfig
from hidisc.verbs.audit import audit
from hidisc.verbs.benchmark import benchmark
from hidisc.verbs.embed import embed
from hidisc.verbs.evaluate import evaluate
from hidisc.verbs.imports import import_volumes
from hidisc.verbs.report import report
from hidisc.verbs.train import train
from tests.commands import Forks
from tests.patches.volumes import draw_volume, write_cohort, write_nifti
from tests.training.stores import TINY

pytestmark = pytest.mark.whole
OTHER = re.compile(r"\b\w*(?:slide|patch)\w*", re.I)


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """A folder in which all commands have run on drawn scans, and all that they said."""
    folder, said = tmp_path_factory.mktemp("scans"), list[str]()
    root = write_cohort(folder / "nifti", patients=8)
    write_nifti(root / "patient007/patient007_frame03.nii.gz", draw_volume(0)[:, :, :0])  # fails
    config = load_config(VolumesConfig, None, ["size_px=32", "split.fractions={train: 0.5, test: 0.5}"])
    source = find_nifti(root, config, folder / "patients.csv")
    said.append(import_volumes(source, folder / "store", config, workers=0, say=said.append).sentence())
    steps = load_config(TrainConfig, "hidisc-patient+mri", [*TINY, "optim.steps=2", "batch.images=8"])
    train(folder / "store", folder / "run", steps, device="cpu", devices=1, say=said.append)
    embed(folder / "store", folder / "run", folder / "embeddings", device="cpu", devices=1, say=said.append)
    judged = load_config(EvaluateConfig, None, ["knn.k=5", "bootstrap.resamples=20", "mil.epochs=2"])
    scores = evaluate(folder / "embeddings", folder / "scores", judged, device="cpu", say=said.append)
    said.append(scores.verdict())
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
    benchmark(suite, folder / "store", folder / "benchmark", workers=1, device="cpu", say=said.append)
    return folder, said


def visible(page: Path) -> str:
    """The text of a page, with that of its pictures, but for code and for settings, whose names stay."""
    html = page.read_text()
    shown = re.sub(r"<(script|style|pre|code)\b.*?</\1>", "", html, flags=re.S)
    described = re.findall(r'\s(?:alt|aria-label)="([^"]*)"', shown)
    titles = re.findall(r'"title":"([^"]*)"', html)  # of the map's columns
    return unescape(" ".join([re.sub(r"<[^>]*>", " ", shown), *described, *titles]))


@pytest.mark.parametrize("page", ["report.html", "audit/audit.html", "benchmark/benchmark.html"])
def test_pages_speak_of_scans_and_slices(lab: tuple[Path, list[str]], page: str) -> None:
    text = visible(lab[0] / page)
    assert OTHER.findall(text) == []
    assert re.search(r"\bslices?\b", text)
    assert "scan" in text.lower() or page.startswith("audit")


def test_tables_speak_of_scans_and_slices_and_are_named_so(lab: tuple[Path, list[str]]) -> None:
    files = [*(lab[0] / "report_files").rglob("*"), *(lab[0] / "audit/tables").iterdir()]
    assert [path.name for path in files if OTHER.search(path.name)] == []
    for path in files:
        if path.suffix in (".csv", ".md", ".tex"):
            assert OTHER.findall(path.read_text()) == [], path.name
    assert (lab[0] / "report_files/tables/classes-knn-scan.csv").is_file()


def test_messages_speak_of_scans_and_slices(lab: tuple[Path, list[str]]) -> None:
    folder, said = lab
    text = "\n".join(said).replace(str(folder), "")
    assert len(said) > 10
    assert OTHER.findall(re.sub(r"`[^`]*`", "", text)) == []
    assert "96 slices of 16 scans of 8 patients" in text
    assert re.search(r"scan accuracy \d", text)


def test_files_keep_the_names_of_their_columns(lab: tuple[Path, list[str]]) -> None:
    scores = Scores.load(lab[0] / "scores")
    assert scores.info.levels == ("patient", "slide", "patch")
    assert (lab[0] / "scores" / "predictions_slide.parquet").is_file()


def test_the_command_line_speaks_so(lab: tuple[Path, list[str]], forks: Forks) -> None:
    folder = lab[0]
    ended = forks.run("embed", "store", "run", "--per-slide", "2", "--out", "few", "--device", "cpu", folder=folder)
    assert "32 slices of 16 scans as" in ended.result
    ended = forks.run("evaluate", "few", "--set", "classes=[none, other]", "--out", "no", folder=folder)
    assert ended.code == 2
    assert "classes: no slice has label 'none'" in ended.said
    ended = forks.run("train", "store", "--set", "batch.levels=[centre, patch]", "--out", "no", folder=folder)
    assert ended.code == 2
    assert "'centre' is no column of names" in ended.said
    ended = forks.run("import", "nifti", "nifti", "--set", "size_px=32", "--out", "again", folder=folder)
    assert ended.code == 1
    assert "failed: scan 'patient007/patient007_frame03' of patient 'patient007': " in ended.said
    ended = forks.run("import", "table", "patients.csv", "--pseudonyms", "key", "--out", "no", folder=folder)
    assert ended.code == 2
    assert "--pseudonyms goes with `import nifti` and `dicom`" in ended.said

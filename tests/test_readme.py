"""Every command and snippet in README and docs is run, in the order its page has it."""

import contextlib
import io
import re
import shlex
import shutil
import tomllib
from pathlib import Path

import numpy as np
import pytest
import tifffile
import yaml
from PIL import Image

from hidisc.evaluation.classes import METRICS
from hidisc.objectives.objective import list_objectives, load_settings
from hidisc.patches.store import PatchStore
from hidisc.settings.audit import AuditConfig
from hidisc.settings.benchmark import SuiteConfig
from hidisc.settings.config import VERBS, list_recipes, list_settings
from hidisc.settings.embed import EmbedConfig
from hidisc.settings.evaluate import EvaluateConfig
from hidisc.settings.prepare import FeaturesConfig, ImportConfig, PrepareConfig, VolumesConfig
from hidisc.settings.report import ReportConfig
from hidisc.settings.train import TrainConfig
from hidisc.slides.synthetic import draw_cohort
from tests.commands import Forks, parse
from tests.embeddings.others import make_cohort, write_stamp, write_table, write_trident
from tests.made_once import make_once
from tests.patches.test_opensrh import study, write_opensrh
from tests.patches.volumes import draw_volume, write_cohort, write_dicom

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
LINKED = [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]
SHORTER = {
    "hidisc prepare": "--workers 0",
    "hidisc import": "--workers 0",
    "hidisc train embeddings": "--device cpu",
    "hidisc train": "--set optim.steps=2 --set batch.images=16 --device cpu",
    "hidisc explore": "--no-browser --stop-after 0",
    "hidisc report": "--set points=50 --set sheet_rows=2",
    "hidisc benchmark weak store --folds": "--set 'small.changes=[optim.steps=2, batch.images=16]' --workers 1 "
    "--set 'rows=[{name: HiDisc-Patient, recipe: hidisc-patient+weak}]' --set claims=[] --set floors=false",
    "hidisc benchmark vectors": "--workers 1 --set folds.number=2 --set evaluate.probes=[knn] --set seeds=1 --set "
    "claims=[] --set 'rows=[{name: As they are, recipe: centre, encoder: start}, {name: L, recipe: linear-hidisc}]'",
    "hidisc benchmark": "--set 'small.changes=[optim.steps=2, batch.images=16]' --set seeds=1 --workers 1",
}
"""What is added to a command so that it takes seconds; the first that fits."""
FOLDERS = (
    "ground|settings|artefacts|slides|patches|sampling|models|objectives|training|embeddings|evaluation|reporting|"
    "benchmark|explore|verbs|tests|examples|fuzz"
)
CONFIGS = (
    PrepareConfig,
    ImportConfig,
    VolumesConfig,
    FeaturesConfig,
    TrainConfig,
    EmbedConfig,
    EvaluateConfig,
    AuditConfig,
    ReportConfig,
    SuiteConfig,
)
NOT_HERE = ("git clone", "make ", "cd ")  # the set-up of a clean clone, which `.ci/run` does


def blocks(page: Path, language: str) -> list[str]:
    """The fenced blocks of a page in one language."""
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.M | re.S)


def commands(page: Path, language: str = "bash") -> list[str]:
    lines = [line.split("  #")[0].strip() for block in blocks(page, language) for line in block.splitlines()]
    return [line for line in lines if line and not line.startswith(NOT_HERE)]


def draw_lab(folder: Path) -> None:
    """Draw all that the pages speak of: slides and their cohort, Raman slides, patches, volumes, features, OpenSRH."""
    folder.mkdir()
    draw_cohort(folder, patients=5, slides=1, fields=2, field_px=300, seed=0)
    rng = np.random.default_rng(0)
    raman = ["patient,slide,path,mpp"]
    for number in range(2):
        pixels = rng.integers(0, 65535, (2, 320, 320), dtype=np.uint16)
        tifffile.imwrite(folder / f"raman{number}.tif", pixels, photometric="minisblack")
        raman.append(f"R{number},R{number}-1,raman{number}.tif,0.5")
    (folder / "raman.csv").write_text("\n".join(raman))
    table, patients = ["patient,slide,path,label"], ["patient,label"]
    for patient in "abcde":
        (folder / "patches" / patient / "1").mkdir(parents=True)
        patients.append(f"{patient},normal")
        for patch in range(2):
            path = Path("patches") / patient / "1" / f"{patch}.png"
            Image.fromarray(rng.integers(0, 255, (32, 32, 3), dtype=np.uint8)).save(folder / path)
            table.append(f"{patient},1,{path},normal")
    (folder / "patches.csv").write_text("\n".join(table))
    (folder / "patients.csv").write_text("\n".join(patients))
    eyes = {f"E{number}{eye}": f"E{number},{eye}" for number in range(6) for eye in ("left", "right")}
    wells = {f"C{number}-{plate}": f"C{number},{plate},{plate}-A1" for number in range(6) for plate in ("p1", "p2")}
    for name, columns, units in (("eyes", "patient,slide", eyes), ("plates", "patient,plate,slide", wells)):
        (folder / name).mkdir()
        rows = [f"{columns},path"]
        for file, unit in units.items():
            for patch in range(2):
                path = f"{name}/{file}-{patch}.png"
                Image.fromarray(rng.integers(0, 255, (48, 48, 3), dtype=np.uint8)).save(folder / path)
                rows.append(f"{unit},{path}")
        (folder / f"{name}.csv").write_text("\n".join(rows))
    write_cohort(folder / "scans", table="scan-patients.csv")
    for number in range(2):
        write_dicom(folder / "series" / str(number), draw_volume(number), f"MRN{number}")
    features, rows = make_cohort(patients=10, slides=1)
    write_trident(folder / "job", features)
    write_stamp(folder / "stamp", features)
    write_table(folder / "clinical.csv", rows)
    features, rows = make_cohort(patients=3, slides=1, seed=1, prefix="N")
    write_trident(folder / "new", features)
    write_table(folder / "new.csv", [{"patient": row["patient"], "slide": row["slide"]} for row in rows])
    write_opensrh(folder / "OpenSRH", {"NIO_1": study("NIO_1", "hgg")}, {"train": ["NIO_1"], "val": []})


def first_pages() -> dict[str, Path]:
    """The page that has a command first; a command of several pages is run there."""
    found: dict[str, Path] = {}
    for page in PAGES:
        for command in commands(page):
            found.setdefault(command, page)
    return found


def result(command: str) -> str:
    """The name of what a command writes, or nothing."""
    words = shlex.split(command)
    return words[words.index("--out") + 1] if "--out" in words else ""


class Lab:
    """A folder in which commands of the pages are run."""

    def __init__(self, folder: Path, forks: Forks) -> None:
        self.folder, self._forks = folder, forks
        self._makers = {result(command): command for command in reversed(first_pages())}

    def run(self, command: str) -> None:
        """Run a command, after those of other pages whose results the command reads."""
        assert command.startswith("hidisc "), command
        words = shlex.split(command)[1:]
        for name in words:
            if name in self._makers and name != result(command) and not (self.folder / name).exists():
                self.run(self._makers[name])
        shorter = next((more for start, more in SHORTER.items() if command.startswith(start)), "")
        words = [self.find_test_slide() if word == "SLIDE" else word for word in words]
        ended = self._forks.run(*words, *shlex.split(shorter), folder=self.folder)
        assert ended.code == 0, f"{command}\n{ended.said}"

    def find_test_slide(self) -> str:
        """A slide of the split `test`, where a page says SLIDE."""
        table = PatchStore.load(self.folder / "store").table
        return str(table.column("slide")[table.column("split") == "test"][0])


@pytest.fixture(scope="session")
def started(tmp_path_factory: pytest.TempPathFactory, forks: Forks) -> Path:
    """A lab in which README's first commands were run, up to the scores; it is made once for all workers of xdist."""

    def make(folder: Path) -> None:
        draw_lab(folder)
        for command in STARTED:
            Lab(folder, forks).run(command)

    return make_once("lab", make, tmp_path_factory)


PAGES_THAT_RUN = [page for page in PAGES if commands(page) or blocks(page, "python")]
STARTED = commands(ROOT / "README.md")[:4]


@pytest.mark.whole
@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=pytest.mark.xdist_group(f"test_readme {page.name}")) for page in PAGES_THAT_RUN],
    ids=lambda page: page.name,
)
def test_every_command_and_snippet_runs(page: Path, started: Path, forks: Forks, tmp_path: Path) -> None:
    lab = Lab(tmp_path / "lab", forks)
    shutil.copytree(started, lab.folder)
    for command in commands(page):
        if first_pages()[command] == page and command not in STARTED:
            lab.run(command)
    for snippet in blocks(page, "python"):
        with contextlib.chdir(lab.folder), contextlib.redirect_stdout(io.StringIO()):
            exec(compile(snippet, page.name, "exec"), {})


def test_pages_have_commands() -> None:
    assert {result(command) for command in STARTED} == {"store", "run", "embeddings", "scores"}
    assert len(first_pages()) + sum(len(blocks(page, "python")) for page in PAGES) >= 80


def test_commands_for_clusters_have_options_that_exist(tmp_path: Path) -> None:
    found = [command for page in PAGES for command in commands(page, "sh") if command.startswith("hidisc ")]
    assert found
    for command in found:
        _, verb, *arguments = shlex.split(command)
        parse(verb, arguments, tmp_path)


def anchors(page: Path) -> set[str]:
    """What a link can point at in a page: its headings, as GitHub spells them."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", LINKED, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target, anchor in re.findall(r"\]\(([^)#]*)(?:#([^)]*))?\)", page.read_text()):
        path = page.parent / target if target else page
        assert path.exists(), f"{page.name} links to {target}"
        assert not anchor or anchor in anchors(path), f"{page.name} links to {target}#{anchor}"


def test_files_the_pages_name_are_there() -> None:
    named = [name for page in LINKED for name in re.findall(rf"`((?:{FOLDERS})/[\w/]+\.py)", page.read_text())]
    assert len(named) > 10
    for name in named:
        assert (ROOT / name).exists() or (ROOT / "src/hidisc" / name).exists(), name


def test_the_tree_of_the_architecture_is_the_tree() -> None:
    """Below `  folder/  meaning`, lines of `    module module  meaning` name every module of the folder."""
    tree = blocks(ROOT / "docs" / "architecture.md", "")[0]
    named: dict[str, set[str]] = {}
    for line in tree.splitlines():
        if folder := re.match(r"  (\w+)/ ", line):
            modules = named[folder[1]] = set()
        elif named and (names := re.match(r"    (\w+(?: \w+)*)(?:  |$)", line)):
            modules |= set(names[1].split())
    folders = [path.parent for path in (ROOT / "src/hidisc").glob("*/__init__.py")]
    assert named == {path.name: {file.stem for file in path.glob("*.py")} - {"__init__"} for path in folders}


def test_targets_of_make_that_the_pages_name_exist() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.M))
    pages = [*PAGES, ROOT / "CONTRIBUTING.md"]
    named = {name for page in pages for name in re.findall(r"`make ([a-z]+)", page.read_text())}
    named |= {
        name for page in pages for block in blocks(page, "bash") for name in re.findall(r"^make (\w+)", block, re.M)
    }
    assert named >= {"install", "demo", "check", "test", "slow", "bench", "fuzz"}
    assert named <= targets


def test_the_version_is_the_same_everywhere() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == version
    assert citation["license"] == "MIT"
    assert citation["preferred-citation"]["year"] == 2023
    assert re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.M)[0] == version


def test_every_setting_named_in_the_docs_exists() -> None:
    known = {name for model in CONFIGS for name in list_settings(model)}
    for objective in list_objectives():
        known |= {f"objective.{name}" for name in list_settings(type(load_settings({"name": objective})))}
    groups = {name.split(".")[0] for name in known if "." in name}
    known |= {name.rpartition(".")[0] for name in known}  # groups, such as views.local
    pattern = re.compile(rf"`((?:{'|'.join(groups)})\.[a-z_]+)[=`: ]")
    named = {name for page in PAGES for name in pattern.findall(page.read_text())}
    assert len(named) >= 8
    assert {name for name in named if not name.endswith(".safetensors")} <= known


def test_the_table_of_metrics_is_what_they_declare() -> None:
    page = (ROOT / "docs" / "evaluating.md").read_text()
    for metric in METRICS.values():
        better = "higher" if metric.higher_is_better else "lower"
        assert f"| {metric.title} | `{metric.key}` | {metric.meaning} | {better} |" in page


def test_recipes_the_docs_name_are_shipped() -> None:
    named = {name for page in PAGES for name in re.findall(r"--recipe ([\w+-]+)", page.read_text())}
    assert {part for name in named for part in name.split("+")} <= {
        recipe for shelf in VERBS for recipe in list_recipes(shelf)
    }
    assert named

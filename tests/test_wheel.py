"""A wheel holds all that the package needs, and works where nothing of the repository is."""

import os
import re
import shutil
import site
import subprocess
import sys
import tomllib
import venv
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built as `python -m build --wheel` does, from a copy, so that nothing is left in the repository."""
    copy = tmp_path_factory.mktemp("copy")
    shutil.copytree(ROOT / "src", copy / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    code = "from setuptools.build_meta import build_wheel; print(build_wheel('dist'))"
    done = subprocess.run([sys.executable, "-c", code], cwd=copy, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return copy / "dist" / done.stdout.splitlines()[-1]


@dataclass(frozen=True)
class Empty:
    """An environment into which the wheel alone was installed."""

    path: Path

    def run(self, command: str, *words: str | Path, folder: Path | None = None) -> str:
        """What a command of it prints, called in a folder that is not the repository."""
        inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        done = subprocess.run(
            [self.path / "bin" / command, *words],
            cwd=folder or self.path,
            env={**inherited, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def python(self, code: str) -> str:
        return self.run("python", "-c", code).strip()


@pytest.fixture(scope="module")
def empty(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Empty:
    """pip installs the wheel without its dependencies: torch and the others, gigabytes, are those that are here.

    Their folder is added by a line of a .pth file, which is searched after the environment's own folder and whose own
    .pth files, such as the one of an editable install of this repository, are not read.
    """
    path = tmp_path_factory.mktemp("empty") / "venv"
    venv.create(path, with_pip=False, symlinks=True)
    pip = [sys.executable, "-m", "pip", "--python", path / "bin" / "python", "--disable-pip-version-check"]
    install = [*pip, "install", "--quiet", "--no-index", "--no-deps", wheel]
    done = subprocess.run(install, cwd=path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (packages,) = path.glob("lib/python*/site-packages")
    (packages / "libraries.pth").write_text("\n".join(site.getsitepackages()) + "\n")
    return Empty(path)


@pytest.mark.whole
def test_every_file_of_the_package_is_inside(wheel: Path) -> None:
    source = {
        path.relative_to(ROOT / "src").as_posix()
        for path in (ROOT / "src" / "hidisc").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if not name.split("/")[0].endswith(".dist-info")}
    assert packed == source
    assert {Path(name).suffix for name in packed} >= {".py", ".yaml", ".html", ".css", ".js", ".csv", ".typed"}


@pytest.mark.whole
def test_it_says_what_it_is_where_nothing_of_the_repository_is(empty: Empty) -> None:
    assert Path(empty.python("import hidisc; print(hidisc.__file__)")).is_relative_to(empty.path)
    searched = empty.python("import sys; print('\\n'.join(sys.path))").split("\n")
    assert not [path for path in searched if Path(path).is_relative_to(ROOT / "src")]
    assert "hidisc-patient" in empty.run("hidisc", "recipes", "train")
    assert "grid.size_px" in empty.run("hidisc", "settings", "prepare")
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    code = "from importlib.metadata import metadata as m; print(m('hidisc')['Version'], *m('hidisc').get_all({!r}))"
    version, *extras = empty.python(code.format("Provides-Extra")).split()
    assert version == known["version"]
    assert set(extras) == set(known["optional-dependencies"]) >= {"anndata", "volumes", "wandb"}


@pytest.mark.slow
def test_it_goes_from_drawn_slides_to_a_report_where_nothing_of_the_repository_is(empty: Empty, tmp_path: Path) -> None:
    draw = "from hidisc.slides.synthetic import draw_cohort; draw_cohort({!r}, patients=8, slides=1, fields=4)"
    empty.python(draw.format(str(tmp_path)))

    def hidisc(*words: str) -> str:
        return empty.run("hidisc", *words, folder=tmp_path)

    cut = ["grid.size_px=48", "split.fractions={train: 0.5, test: 0.5}"]
    hidisc("prepare", "cohort.csv", "--out", "store", "--workers", "2", *(f"--set={change}" for change in cut))
    hidisc("train", "store", "--recipe", "hidisc-patient+weak+laptop", "--set", "optim.steps=2", "--out", "run")
    hidisc("embed", "store", "run", "--out", "embeddings")
    hidisc("evaluate", "embeddings", "--out", "scores")
    assert "report.html" in hidisc("report", "scores", "--out", "report.html")
    page = (tmp_path / "report.html").read_text()
    assert re.search(r"<style>.+</style>", page, re.DOTALL)  # the templates and CSS of the wheel
    hidisc("explore", "store", "embeddings", "--save", "page", "--patient", "P001")
    assert {path.suffix for path in (tmp_path / "page").rglob("*")} >= {".html", ".js", ".css"}

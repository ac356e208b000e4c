"""A wheel holds all that the package needs, and works where nothing of the repository is."""

import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
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
def test_it_works_where_nothing_else_is(wheel: Path, tmp_path: Path) -> None:
    """Unpacked as pip unpacks it; the libraries are those that are here."""
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site"), "OMP_NUM_THREADS": "1"}

    def run(*words: str) -> str:
        done = subprocess.run(
            [sys.executable, *words], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert Path(run("-c", "import hidisc; print(hidisc.__file__)").strip()).is_relative_to(tmp_path / "site")
    assert "hidisc-patient" in run("-m", "hidisc", "recipes", "train")
    assert "optim.steps" in run("-m", "hidisc", "settings", "train")
    code = "from hidisc.benchmark.published import read_published; print(len(read_published()) > 100)"
    assert run("-c", code) == "True\n"
    code = "from importlib import resources; print((resources.files('hidisc.reporting') / 'page.html').is_file())"
    assert run("-c", code) == "True\n"
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (metadata,) = (tmp_path / "site").glob("*.dist-info/METADATA")
    for extra in ("anndata", "hub", "wandb"):
        assert f"Provides-Extra: {extra}" in metadata.read_text()
    assert f"Version: {known['version']}" in metadata.read_text()

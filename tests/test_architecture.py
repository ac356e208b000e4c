"""Data flows one way: a module imports its own folder or one upstream, and each heavy library has one door."""

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from itertools import accumulate
from pathlib import Path

import pytest

import hidisc

ROOT = Path(hidisc.__file__).parent
GROUND = ["ground", "settings", "artefacts"]
STAGES = ["slides", "patches", "sampling", "models", "objectives", "training", "embeddings", "evaluation"]
STAGES += ["auditing", "reporting", "explorer", "verbs", "benchmarking", "cli", "__main__"]
ORDER = {name: place for place, name in enumerate([*GROUND, *STAGES])}
LIBRARIES = """
anndata colorcet dask distributed h5py huggingface_hub imagecodecs jinja2 lightning lightning_fabric matplotlib numpy
nibabel onnx onnxruntime openTSNE openpyxl openslide pandas PIL pyarrow pydicom pytorch_lightning rich safetensors
scipy simplejpeg
sklearn tifffile timm torch torchvision
"""
"""What takes time to load."""
LOADED = {
    "cli": "",
    "verbs.doctor verbs.settings": "",
    "verbs.prepare": "imagecodecs numpy openslide PIL pyarrow rich simplejpeg tifffile",
    "verbs.report benchmarking.benchmark": "imagecodecs jinja2 matplotlib numpy PIL pyarrow rich",
    "verbs.explore": "imagecodecs numpy openslide PIL pyarrow simplejpeg tifffile",
    "verbs.export_vectors training.run": "h5py imagecodecs numpy PIL pyarrow",
    "verbs.demo": "imagecodecs jinja2 matplotlib numpy openslide PIL pyarrow rich simplejpeg tifffile",
    "verbs.evaluate verbs.views models.encoder objectives.hidisc": (
        "huggingface_hub imagecodecs numpy PIL pyarrow rich safetensors torch"
    ),
    "verbs.audit": "imagecodecs jinja2 matplotlib numpy PIL pyarrow rich scipy sklearn torch",
    "verbs.train verbs.embed verbs.export": (
        "h5py huggingface_hub imagecodecs jinja2 lightning_fabric numpy PIL pyarrow rich safetensors timm torch "
        "torchvision"
    ),
}
"""Modules of ours, and all that importing them may load of LIBRARIES; the rest waits until it is used."""
BROUGHT = {"sklearn": "scipy", "timm": "torchvision"}
"""Heavy libraries that others of LIBRARIES import."""
POSIX = {"fcntl", "grp", "pwd", "resource", "termios", "syslog"}
DOORS = {
    "openslide": {"slides", "verbs"},  # verbs/doctor.py asks for its version
    "tifffile": {"slides"},
    "simplejpeg": {"slides"},
    "pyarrow": {"ground", "patches"},
    "distributed": {"ground"},
    "dask": {"ground"},
    "timm": {"models"},
    "huggingface_hub": {"models"},
    "lightning_fabric": {"training"},
    "lightning": set(),
    "pytorch_lightning": set(),
    "torchvision": set(),
    "h5py": {"embeddings"},
    "anndata": {"embeddings"},
    "pandas": {"embeddings"},
    "openpyxl": {"ground"},
    "nibabel": {"patches"},
    "pydicom": {"patches"},
    "sklearn": {"evaluation", "auditing", "reporting", "explorer"},  # curves are drawn where figures are
    "matplotlib": {"reporting"},
    "openTSNE": {"reporting"},
    "jinja2": {"reporting"},
    "rich": {"verbs"},
    "tornado": {"explorer"},
    "typer": {"cli"},
}


def imports() -> list[tuple[Path, str, str]]:
    """(file, the stage it is in, what it imports) for every import anywhere in the package."""
    found = []
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).parts
        stage = parts[0].removesuffix(".py")
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found += [(path, stage, alias.name) for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{path}: relative import"
                found.append((path, stage, node.module or ""))
    return found


def test_imports_point_upstream_only() -> None:
    wrong = []
    for path, stage, module in imports():
        if module.startswith("hidisc."):
            target = module.split(".")[1]
            if stage != "__init__" and ORDER[target] > ORDER[stage]:
                wrong.append(f"{path.relative_to(ROOT)} imports {module}")
    assert wrong == []


def test_every_folder_is_a_known_stage() -> None:
    folders = {path.name for path in ROOT.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert folders <= {*GROUND, *STAGES}


def test_heavy_libraries_enter_through_one_door() -> None:
    wrong = [
        f"{path.relative_to(ROOT)} imports {module}"
        for path, stage, module in imports()
        if module.split(".")[0] in DOORS and stage not in DOORS[module.split(".")[0]]
    ]
    assert wrong == []


def test_nothing_that_windows_lacks_is_imported_with_a_module() -> None:
    """It is imported where it is used, so that a store can be read anywhere."""
    found = []
    for path in sorted(ROOT.rglob("*.py")):
        for node in ast.parse(path.read_text()).body:
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            found += [f"{path.relative_to(ROOT)} imports {name}" for name in names if name in POSIX]
    assert found == []


def test_no_module_is_named_after_nothing() -> None:
    names = {path.stem for path in ROOT.rglob("*.py")}
    assert names.isdisjoint({"utils", "util", "common", "helpers", "misc"})


def test_nothing_is_unpickled_and_no_label_picture_is_reached() -> None:
    assert "pickle" not in {module.split(".")[0] for _, _, module in imports()}
    for path in ROOT.rglob("*.py"):
        text = path.read_text()
        assert "associated_images" not in text
        loads = [line for line in text.splitlines() if "torch.load" in line]
        assert all("weights_only=True" in line for line in loads), path  # which takes tensors and nothing else


def imported_at_once(node: ast.AST) -> Iterator[str]:
    """What a piece of code imports when it is loaded: not what functions do, and not what is for type checkers."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from (alias.name for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            yield from [child.module or "", *(f"{child.module}.{alias.name}" for alias in child.names)]
        elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            yield from imported_at_once(ast.Module(child.orelse, []))
        elif not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield from imported_at_once(child)


@cache
def imported_by(module: str) -> tuple[str, ...]:
    """What loading one of our modules imports, with the folders above it; nothing where no such module is."""
    path = ROOT.parent.joinpath(*module.split("."))
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    if not path.is_file():
        return ()
    parents = accumulate(module.split(".")[:-1], lambda folder, name: f"{folder}.{name}")
    return (*parents, *imported_at_once(ast.parse(path.read_text())))


def loaded_by(modules: str) -> tuple[set[str], set[str]]:
    """All that loading modules of ours loads, by way of others of ours: (modules of ours, heavy libraries)."""
    ours, libraries = set(), set()
    waiting = [f"hidisc.{module}" for module in modules.split()]
    while waiting:
        name = waiting.pop()
        if not name.startswith("hidisc"):
            libraries.add(name.split(".")[0])
        elif name not in ours and imported_by(name):
            ours.add(name)
            waiting += imported_by(name)
    return ours, libraries & set(LIBRARIES.split())


@pytest.mark.parametrize("modules", LOADED)
def test_a_verb_loads_only_what_it_uses(modules: str) -> None:
    assert loaded_by(modules)[1] - set(LOADED[modules].split()) == set()


@pytest.mark.parametrize("modules", ["cli verbs.doctor verbs.settings", " ".join(LOADED)], ids=["light", "all"])
def test_a_fresh_process_loads_what_the_imports_say(modules: str) -> None:
    """Without torchmetrics and pandas, which Fabric and sklearn import where these are: here, not at a user's."""
    code = "import sys; sys.modules['torchmetrics'] = sys.modules['pandas'] = None\n"
    code += "".join(f"import hidisc.{module}\n" for module in modules.split())
    code += "print(*(name for name in sys.modules if name.startswith('hidisc')))\n"
    code += f"print(*(name for name in {LIBRARIES.split()} if sys.modules.get(name)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=os.environ, check=True)
    ours, libraries = (set(line.split()) for line in done.stdout.splitlines())
    expected_ours, expected_libraries = loaded_by(modules)
    assert ours == expected_ours
    brought = {name for library in expected_libraries for name in BROUGHT.get(library, "").split()}
    assert libraries == expected_libraries | brought


def test_public_api_is_lazy_and_whole() -> None:
    for name in hidisc.__all__:
        assert getattr(hidisc, name) is not None

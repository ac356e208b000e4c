"""Every script in `examples/` runs as it is, in an empty folder, and says what its docstring promises."""

import importlib.util
import re
import subprocess
from pathlib import Path

import pytest
import torch

from hidisc import hidisc_loss
from tests.commands import Forks, parse

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
SCRIPTS = sorted([*EXAMPLES.glob("cluster/*.sh"), *EXAMPLES.glob("cluster/*.sbatch")])
PAGE = ROOT / "docs" / "scaling.md"
PYTHON_EXAMPLES = {
    "hidisc_in_100_lines": r"before training: +patch accuracy [2-6]\d%[^$]*all levels: patch accuracy (?:9\d|100)%",
    "loss_in_your_loop": r"after: the nearest patch has the diagnosis in (?:[89]\d|100)%",
    "own_dataset": r"embeddings: \(480, \d+\).*\nHiDisc, knn: patient accuracy ",
    "judge_a_foreign_encoder": r"foreign, knn: patient accuracy [^$]*\nuntrained, knn: [^$]*open judged/report\.html",
}


def test_every_example_is_run_here() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == set(PYTHON_EXAMPLES)


@pytest.mark.whole
@pytest.mark.parametrize("name", PYTHON_EXAMPLES)
def test_an_example_runs_as_it_is(name: str, forks: Forks, tmp_path: Path) -> None:
    done = forks.run(script=EXAMPLES / f"{name}.py", folder=tmp_path)
    assert done.code == 0, done.said
    assert re.search(PYTHON_EXAMPLES[name], done.result), done.result


@pytest.mark.parametrize("weights", [[1.0, 1.0, 1.0], [0.5, 2.0, 1.0], [0.0, 0.0, 1.0]])
def test_the_loss_in_100_lines_is_that_of_hidisc(weights: list[float]) -> None:
    spec = importlib.util.spec_from_file_location("hidisc_in_100_lines", EXAMPLES / "hidisc_in_100_lines.py")
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    rng = torch.Generator().manual_seed(1)
    z = torch.nn.functional.normalize(torch.randn(40, 8, generator=rng, dtype=torch.float64), dim=1)
    patch = torch.randint(12, (40,), generator=rng)  # some patches have one view only, and no positive
    ancestry = torch.stack([patch // 4, patch // 2, patch], dim=1)
    ours, theirs = z.clone().requires_grad_(), z.clone().requires_grad_()
    plain, (fast, _) = example.hidisc_loss(ours, ancestry, weights), hidisc_loss(theirs, ancestry, weights)
    torch.testing.assert_close(plain, fast)
    plain.backward()
    fast.backward()
    torch.testing.assert_close(ours.grad, theirs.grad)


def test_the_page_shows_every_script_as_it_is() -> None:
    shown = re.findall(r"^`(examples/cluster/[\w.-]+)`.*?\n\n```sh\n(.*?)^```", PAGE.read_text(), re.M | re.S)
    assert {ROOT / name: text for name, text in shown} == {path: path.read_text() for path in SCRIPTS}


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_bash_accepts_a_script(script: Path) -> None:
    done = subprocess.run(["bash", "-n", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def hidisc_commands(script: Path) -> list[list[str]]:
    """The words behind `hidisc` of every command of a script, however it is started; variables become 1."""
    text = re.sub(r"\\\n", " ", script.read_text())
    lines = [line.split("  #")[0] for line in text.splitlines() if not line.lstrip().startswith("#")]
    found = [re.search(r"(?:^|[ ;&(])(?:-m )?hidisc ([a-z]+ .*)", line) for line in lines]
    bare = [re.sub(r"\s+(?:&|\|\||&&|;).*", "", match[1]) for match in found if match]
    return [re.sub(r"\"?\$\{?[\w-]+\}?\"?", "1", line).split() for line in bare]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_commands_of_a_script_have_options_that_exist(script: Path, tmp_path: Path) -> None:
    found = hidisc_commands(script)
    assert found
    for verb, *arguments in found:
        parse(verb, arguments, tmp_path)

"""Every script in `examples/` runs as it is, in an empty folder, and says what its docstring promises."""

import re
import subprocess
from pathlib import Path

import pytest
import typer.main

from hidisc.cli import app
from tests.commands import Forks

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
SCRIPTS = sorted([*EXAMPLES.glob("cluster/*.sh"), *EXAMPLES.glob("cluster/*.sbatch")])
PAGE = ROOT / "docs" / "scaling.md"
PYTHON_EXAMPLES = {
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
def test_commands_of_a_script_have_options_that_exist(script: Path) -> None:
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    found = hidisc_commands(script)
    assert found
    for verb, *arguments in found:
        commands[verb].make_context(verb, arguments)

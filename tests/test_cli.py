"""The command line: one line of result or JSON on stdout, the rest on stderr, exit codes that mean something."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from hidisc.evaluation.scores import Scores
from hidisc.slides.synthetic import draw_cohort
from tests.commands import Ended, Forks, run


@pytest.fixture(scope="module")
def cohort(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draw_cohort(tmp_path_factory.mktemp("drawn"), patients=4, slides=1, fields=2, seed=1)


def prepare(forks: Forks, cohort: Path, out: Path, *more: str) -> Ended:
    return forks.run("prepare", cohort, "--out", out, "--workers", "0", "--set", "grid.size_px=48", *more)


def test_help_names_every_verb() -> None:
    done = run("--help")
    assert done.code == 0
    for verb in ("prepare", "import", "doctor", "demo"):
        assert verb in done.result


def test_version(forks: Forks) -> None:
    assert forks.run("--version").result.startswith("hidisc 0.")


def test_a_result_is_one_line_on_stdout(cohort: Path, forks: Forks, tmp_path: Path) -> None:
    done = prepare(forks, cohort, tmp_path / "store")
    assert done.code == 0
    assert done.result.splitlines() == [f"{tmp_path / 'store'}: 8 patches of 4 slides of 4 patients, 40 boxes dropped"]
    assert "4 slides to read into" in done.said


def test_json_is_all_of_stdout(cohort: Path, forks: Forks, tmp_path: Path) -> None:
    done = prepare(forks, cohort, tmp_path / "store", "--json")
    found = json.loads(done.result)
    assert (found["patches"], found["slides"], found["patients"], found["failures"]) == (8, 4, 4, [])


def test_a_failed_slide_gives_exit_code_1_and_its_reason(cohort: Path, forks: Forks, tmp_path: Path) -> None:
    (tmp_path / "bad.svs").write_bytes(b"no slide at all")
    good = next((cohort.parent / "slides").iterdir())
    (tmp_path / "cohort.csv").write_text(f"patient,slide,path\nA,good,{good}\nB,bad,bad.svs\n")
    done = prepare(forks, tmp_path / "cohort.csv", tmp_path / "store")
    assert done.code == 1
    assert "failed: slide 'bad' of patient 'B':" in done.said
    assert "1 slides failed (see" in done.result
    assert "Traceback" not in done.said


def test_what_the_user_can_mend_is_a_sentence_and_exit_code_2(forks: Forks, tmp_path: Path) -> None:
    (tmp_path / "cohort.csv").write_text("patient,slide\nA,B\n")
    done = prepare(forks, tmp_path / "cohort.csv", tmp_path / "store")
    assert (done.code, done.result) == (2, "")
    assert done.said.startswith(f"hidisc: {tmp_path / 'cohort.csv'}: column 'path' is missing.")
    assert "Traceback" not in done.said


def test_debug_shows_the_traceback(forks: Forks, tmp_path: Path) -> None:
    done = forks.run("--debug", "prepare", tmp_path / "none.csv", "--out", tmp_path / "store")
    assert done.code == 2
    assert "Traceback" in done.said
    assert "does not exist. Give the path of your CSV file." in done.said


def test_a_verb_that_does_not_exist_is_a_usage_error(forks: Forks) -> None:
    assert forks.run("prepear").code == 2


def test_recipe_seed_and_set_are_all_heard(cohort: Path, forks: Forks, tmp_path: Path) -> None:
    done = prepare(forks, cohort, tmp_path / "store", "--recipe", "srh", "--seed", "7", "--assume-mpp", "0.4")
    assert done.code == 0
    record = (tmp_path / "store" / "config.yaml").read_text()
    for line in ("seed: 7", "assume_mpp: 0.4", "method: none", "size_px: 48"):
        assert line in record


def test_imports(forks: Forks, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for patient in ("a", "b"):
        (tmp_path / "in" / patient / "1").mkdir(parents=True)
        Image.fromarray(rng.integers(0, 255, (16, 16), dtype=np.uint8)).save(tmp_path / "in" / patient / "1" / "x.png")
    folder = forks.run("import", "folder", tmp_path / "in", "--out", tmp_path / "f", "--workers", "0", "--json")
    assert json.loads(folder.result)["patches"] == 2
    (tmp_path / "t.csv").write_text("patient,slide,path\na,1,in/a/1/x.png\nb,1,in/b/1/x.png\n")
    table = forks.run("import", "table", tmp_path / "t.csv", "--out", tmp_path / "t", "--workers", "0", "--json")
    assert json.loads(table.result)["patients"] == 2
    srh = forks.run("import", "opensrh", tmp_path / "in", "--out", tmp_path / "o", "--workers", "0")
    assert srh.code == 2
    assert "Give the OpenSRH folder that holds `meta`." in srh.said
    odd = forks.run("import", "table", tmp_path / "t.csv", "--out", tmp_path / "x", "--patients", tmp_path / "t.csv")
    assert odd.code == 2
    assert "--patients goes with `import folder`" in odd.said


def test_doctor_on_this_machine_and_on_a_store(cohort: Path, forks: Forks, tmp_path: Path) -> None:
    machine = forks.run("doctor", "--json")
    found = json.loads(machine.result)
    assert found["devices"].startswith("cpu")
    assert found["reader openslide"].startswith("library 4")

    prepare(forks, cohort, tmp_path / "store")
    assert "all files are as written" in forks.run("doctor", tmp_path / "store").result
    shard = next((tmp_path / "store").rglob("*.arrow"))
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)
    damaged = forks.run("doctor", tmp_path / "store")
    assert damaged.code == 1
    assert f"damaged: {shard.relative_to(tmp_path / 'store')} has changed" in damaged.said
    nowhere = forks.run("doctor", tmp_path / "nowhere")
    assert nowhere.code == 2
    sentence = f"{tmp_path / 'nowhere'} does not exist. Give a folder that hidisc made, or the page of a report."
    assert sentence in nowhere.said


@pytest.mark.whole
def test_the_quick_demo_runs_and_resumes(forks: Forks, tmp_path: Path) -> None:
    out = tmp_path / "demo"
    first = forks.run("demo", "--out", out, "--quick", "--workers", "0")
    assert first.code == 0, first.said
    assert first.result == f"{out / 'report.html'}: open it in a browser\n"
    assert "  hidisc prepare cohort.csv --out store\n" in first.said
    steps = [line[:3] for line in first.said.splitlines() if line[1:3] == "/5"]
    assert steps == ["1/5", "2/5", "3/5", "4/5", "5/5"]
    assert " min; one training each, patients that neither has seen, " in first.said
    for name, recipe in (("HiDisc-Patient", "hidisc-patient"), ("SimCLR", "simclr")):
        patch, *_, patient = Scores.load(out / recipe / "scores").info.probes[0].levels
        row = next(line for line in first.said.splitlines() if line.startswith(f"  {name}"))
        assert row.split()[1] == patch.metrics["accuracy"].percent().split()[0]
        assert patient.metrics["accuracy"].percent() in row
    again = forks.run("demo", "--out", out, "--quick", "--workers", "0")
    assert again.result == first.result
    assert "all 48 slides are in" in again.said
    assert again.said.splitlines()[-1] == first.said.splitlines()[-1]

"""The command line: one line of result or JSON on stdout, the rest on stderr, exit codes that mean something."""

import json
from pathlib import Path

import numpy as np
import pytest
import typer
from PIL import Image

from hidisc.cli import app
from hidisc.evaluation.scores import Scores
from hidisc.patches.store import PatchStore
from hidisc.settings.audit import AuditConfig
from hidisc.settings.benchmark import SuiteConfig
from hidisc.settings.config import Config, load_config
from hidisc.settings.embed import EmbedConfig
from hidisc.settings.evaluate import EvaluateConfig
from hidisc.settings.prepare import ImportConfig, PrepareConfig
from hidisc.settings.report import ReportConfig
from hidisc.settings.train import TrainConfig
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
    assert "1 slide failed (see" in done.result
    assert "Traceback" not in done.said


def test_what_the_user_can_fix_is_a_sentence_and_exit_code_2(forks: Forks, tmp_path: Path) -> None:
    (tmp_path / "cohort.csv").write_text("patient,slide\nA,B\n")
    done = prepare(forks, tmp_path / "cohort.csv", tmp_path / "store")
    assert (done.code, done.result) == (2, "")
    assert done.said.startswith(f"hidisc: {tmp_path / 'cohort.csv'}: column 'path' is missing.")
    assert "Traceback" not in done.said


def test_debug_shows_the_traceback(forks: Forks, tmp_path: Path) -> None:
    done = forks.run("--debug", "prepare", tmp_path / "none.csv", "--out", tmp_path / "store")
    assert done.code == 2
    assert "Traceback" in done.said
    assert f"hidisc: {tmp_path / 'none.csv'} does not exist." in done.said


def test_a_mistyped_verb_or_option_is_a_usage_error_that_names_the_right_one(forks: Forks, tmp_path: Path) -> None:
    verb = forks.run("prepear")
    assert verb.code == 2
    assert "No such command 'prepear'. Did you mean 'prepare'" in verb.said
    option = forks.run("train", tmp_path, "--recpie", "simclr", "--out", "run")
    assert option.code == 2
    assert "--recpie" in option.said
    assert "--recipe" in option.said


SETTINGS = {
    "prepare": "prepare",
    "import": "import",
    "train": "train",
    "embed": "embed",
    "evaluate": "evaluate",
    "audit": "audit",
    "report": "report",
    "benchmark": "benchmark",
    "views": "train",
}
"""The verbs with `--set`, and whose settings these are."""


def test_every_verb_has_json_and_an_example_of_its_own_that_parses(forks: Forks) -> None:
    command = typer.main.get_command(app)
    for name, verb in command.commands.items():  # type: ignore[attr-defined]
        assert any("--json" in option.opts for option in verb.params), name
        example, *more = verb.epilog.split("\n\n")
        assert example.startswith(f"Example: hidisc {name} ")
        assert ("--set " in example) == (name in SETTINGS)
        if name in SETTINGS:
            assert more == [f"`hidisc settings {SETTINGS[name]}` lists every setting with its default and its range."]
        words = [word for word in example.removeprefix("Example: hidisc ").split() if word.startswith("--")]
        assert {word for option in verb.params for word in option.opts} >= set(words), name
    assert "Example: hidisc train store" in forks.run("train", "--help").result


@pytest.mark.parametrize(
    ("config", "verb"),
    [
        (PrepareConfig, "prepare"),
        (ImportConfig, "import"),
        (TrainConfig, "train"),
        (EmbedConfig, "embed"),
        (EvaluateConfig, "evaluate"),
        (AuditConfig, "audit"),
        (ReportConfig, "report"),
        (SuiteConfig, "benchmark"),
        (TrainConfig, "views"),
    ],
)
def test_the_setting_in_an_example_is_one_of_the_verb(config: type[Config], verb: str) -> None:
    epilog = typer.main.get_command(app).commands[verb].epilog  # type: ignore[attr-defined]
    change = epilog.split("--set ")[1].split()[0]
    recipe = "main" if verb == "benchmark" else None
    load_config(config, recipe, [change])  # refuses what is no setting


def test_a_path_that_does_not_exist_is_said_with_near_names(forks: Forks, tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    for words in (("train", "stroe"), ("evaluate", "stroe"), ("embed", "stroe", "timm:resnet18"), ("doctor", "stroe")):
        out = () if words[0] == "doctor" else ("--out", "out")
        done = forks.run(*words, *out, folder=tmp_path)
        assert (done.code, done.said) == (2, "hidisc: stroe does not exist. Did you mean store?\n")
    inside = forks.run("doctor", tmp_path / "stroe" / "a" / "b")
    assert inside.said == f"hidisc: {tmp_path / 'stroe'} does not exist. Did you mean {tmp_path / 'store'}?\n"
    alone = forks.run("train", "something-else", "--out", "out", folder=tmp_path)
    assert alone.said == "hidisc: something-else does not exist.\n"
    model = forks.run("embed", "store", "stor", "--out", "out", folder=tmp_path)
    assert model.said == "hidisc: stor does not exist. Did you mean store?\n"
    model = forks.run("embed", "store", "resnet18", "--out", "out", folder=tmp_path)
    assert model.said.startswith("hidisc: resnet18 does not exist. Give a run, an exported encoder, `timm:NAME`, ")
    named = forks.run("benchmark", "stain", "store", "--store", "raw=stor", "--out", "out", folder=tmp_path)
    assert named.said == "hidisc: stor does not exist. Did you mean store?\n"


def test_a_folder_of_slides_is_no_cohort(cohort: Path, forks: Forks, tmp_path: Path) -> None:
    slides = cohort.parent / "slides"
    done = prepare(forks, slides, tmp_path / "store")
    assert done.code == 2
    assert done.said == (
        f"hidisc: {slides} is a folder, and `hidisc prepare` needs a table that says which patient each slide belongs "
        f"to. `hidisc cohort {slides} --out cohort.csv` drafts it from the names of the files.\n"
    )
    near = prepare(forks, cohort.parent, tmp_path / "store")
    assert near.said == f"hidisc: {cohort.parent} is a folder. Did you mean the table {cohort}?\n"


def test_doctor_names_the_kinds_it_takes(cohort: Path, forks: Forks, tmp_path: Path) -> None:
    nothing = forks.run("doctor", tmp_path)
    assert nothing.code == 2
    assert nothing.said == (
        f"hidisc: {tmp_path} is no artefact of hidisc (no artefact.json). `hidisc doctor` takes the folder of a store, "
        "run, encoder, embeddings, scores, audit, benchmark, exported encoder, bags, exported patches, or the page of "
        "a report.\n"
    )
    prepare(forks, cohort, tmp_path / "store")
    around = forks.run("doctor", ".", folder=tmp_path)
    assert around.said.endswith("or the page of a report. It holds 'store': give one of these.\n")


def test_views_are_also_json(cohort: Path, forks: Forks, tmp_path: Path) -> None:
    prepare(forks, cohort, tmp_path / "store")
    words = ("views", tmp_path / "store", "--out", tmp_path / "views.png", "--patches", "2", "--views", "3")
    assert json.loads(forks.run(*words, "--json").result) == {
        "picture": str(tmp_path / "views.png"),
        "patches": 2,
        "views": 3,
    }
    assert forks.run(*words).result == f"{tmp_path / 'views.png'}: 2 patches, 3 views of each\n"


def test_a_run_in_the_place_of_a_store_is_named(cohort: Path, forks: Forks, tmp_path: Path) -> None:
    prepare(forks, cohort, tmp_path / "store")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").write_text("{kind: train, format: hidisc-2, inputs: {}}")
    swapped = forks.run("embed", "run", "store", "--out", "embeddings", folder=tmp_path)
    assert swapped.code == 2
    assert swapped.said == (
        "hidisc: run is a run and store is a store: the two are swapped. "
        "Write `hidisc embed store run --out embeddings`.\n"
    )
    assert "run is not a store (it is a run)." in forks.run("train", "run", "--out", "x", folder=tmp_path).said
    other = forks.run("heatmap", "run", "store", "slide", "--out", "x.png", folder=tmp_path)
    assert "store holds no scores (it is a store)." in other.said


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
    assert "column 'slide' is one that hidisc writes itself. Rename it." in odd.said


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
        patch, *_, patient = Scores.load(out / recipe / "scores").info.list_levels()
        row = next(line for line in first.said.splitlines() if line.startswith(f"  {name}"))
        assert row.split()[1] == patch.metrics["accuracy"].percent().split()[0]
        assert patient.metrics["accuracy"].percent() in row
    again = forks.run("demo", "--out", out, "--quick", "--workers", "0", "--json")
    assert json.loads(again.result) == {"page": str(out / "report.html")}
    assert "all 48 slides are in" in again.said
    assert again.said.splitlines()[-1] == first.said.splitlines()[-1]


def test_a_name_that_is_too_long_for_the_disk_is_one_sentence(cohort: Path, tmp_path: Path, forks: Forks) -> None:
    for command in (["prepare", cohort], ["cohort", cohort.parent / "slides"], ["prepare", cohort, "--refilter"]):
        done = forks.run(*command, "--out", tmp_path / f"{'o' * 300}.csv")
        assert done.code == 2
        assert done.said.splitlines()[-1].endswith("... is too long for this disk. Give a shorter name.")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        (
            ["train", "x", "--epochs", "3"],
            "`hidisc train` has no option --epochs; it is the setting optim.steps: --set ",
        ),
        (["train", "x", "--lr=3"], "it is the setting optim.learning_rate: --set optim.learning_rate=VALUE."),
        (["train", "x", "--batch-size", "3"], "it is the setting batch.images"),
        (["evaluate", "x", "--k", "3"], "it is the setting knn.k: --set knn.k=VALUE."),
        (["prepare", "x", "--size-px", "3"], "it is the setting grid.size_px"),
    ],
)
def test_a_setting_written_as_an_option_is_named(command: list[str], sentence: str) -> None:
    done = run(*command)
    assert done.code == 2
    assert sentence in done.said


def test_a_device_that_is_not_there_is_one_sentence(cohort: Path, tmp_path: Path, forks: Forks) -> None:
    store = tmp_path / "store"
    assert prepare(forks, cohort, store).code == 0
    for command in (["train", store], ["embed", store, "colour"]):
        done = forks.run(*command, "--device", "mps", "--out", tmp_path / "out")
        assert done.code == 2
        assert "--device mps: torch finds no such device on this machine. Give one of auto, cpu" in done.said
    assert not (tmp_path / "out").exists()


def test_patients_are_described_by_a_table_of_their_own(cohort: Path, tmp_path: Path, forks: Forks) -> None:
    slides = [line.split(",")[:3] for line in cohort.read_text().replace('"', "").splitlines()]
    bare = cohort.with_name("bare.csv")
    bare.write_text("\n".join(map(",".join, slides)) + "\n")
    patients = sorted({row[0] for row in slides[1:]})
    people = tmp_path / "people.csv"
    people.write_text("patient,label,split,age\n" + "".join(f"{p},x,train,{n}\n" for n, p in enumerate(patients)))
    assert prepare(forks, bare, tmp_path / "store", "--patients", str(people)).code == 0
    table = PatchStore.load(tmp_path / "store").table
    assert set(table.column("age")) == set("0123")
    assert set(table.column("split")) == {"train"}
    wrong = tmp_path / "wrong.csv"
    wrong.write_text("patient,label\n" + "".join(f"{p},nosuch\n" for p in patients))
    done = prepare(forks, cohort, tmp_path / "other", "--patients", str(wrong))
    assert done.code == 2
    assert "has label 'nosuch', but" in done.said
    assert not (tmp_path / "other").exists()
    people.write_text(f"patient,age\n{patients[0]},3\nnobody,4\n")
    done = prepare(forks, bare, tmp_path / "third", "--patients", str(people))
    assert "does not list the patients" in done.said
    assert "lists patients who have no slides: 'nobody'." in done.said

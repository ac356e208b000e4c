"""What cannot be evaluated is refused in a sentence before anything is computed or trained, with exit code 2."""

from collections.abc import Callable
from pathlib import Path

import pytest

from hidisc.benchmarking.benchmark import benchmark
from hidisc.embeddings.embeddings import PATCHES, Embeddings
from hidisc.evaluation import cross_validation
from hidisc.ground.errors import UserError
from hidisc.patches.folders import find_folder
from hidisc.patches.table import PatchTable
from hidisc.settings.benchmark import SuiteConfig
from hidisc.settings.config import load_config
from hidisc.settings.evaluate import EvaluateConfig
from hidisc.settings.prepare import ImportConfig
from hidisc.verbs.evaluate import evaluate
from hidisc.verbs.prepare import import_patches
from tests.commands import Forks
from tests.evaluation.made import make_embeddings, relabel
from tests.finished import refinish
from tests.patches.pictures import pictures_of, write_pictures
from tests.training.stores import TINY, make_store

SUITE = f"""
title: Tiny
rows:
  - {{name: HiDisc-Patient, recipe: hidisc-patient+weak}}
seeds: 1
floors: false
evaluate: {{knn: {{k: 5}}, probes: [knn], bootstrap: {{resamples: 50}}}}
small: {{changes: [{", ".join(f'"{change}"' for change in TINY)}, optim.steps=2]}}
"""
COLUMNS = "it has patient, slide, label, site, split. Set levels=[...] and label=... to some of these."


@pytest.fixture(scope="module")
def embeddings(tmp_path_factory: pytest.TempPathFactory) -> Embeddings:
    return make_embeddings(tmp_path_factory.mktemp("made") / "e", learned=False)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_store(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("suite") / "tiny.yaml"
    path.write_text(SUITE)
    return path


def refuse(action: Callable[[], object], out: Path) -> str:
    with pytest.raises(UserError) as caught:
        action()
    assert not out.exists(), "nothing was made"
    return str(caught.value)


def judged(embeddings: Embeddings, out: Path, *changes: str) -> str:
    return refuse(lambda: evaluate(embeddings.path, out, load_config(EvaluateConfig, None, list(changes))), out)


def trained(suite: Path, store: Path, out: Path, *changes: str) -> str:
    config = load_config(SuiteConfig, str(suite), list(changes))
    return refuse(lambda: benchmark(config, store, out, workers=1, device="cpu"), out)


@pytest.mark.parametrize("label", ["nosuch", "patch"])
@pytest.mark.parametrize("number", [0, 3])
def test_a_label_that_is_no_column_of_names(
    embeddings: Embeddings, store: Path, suite: Path, tmp_path: Path, label: str, number: int
) -> None:
    sentence = f"{{}} has no column of names '{label}'; {COLUMNS}"
    out = tmp_path / "out"
    assert judged(embeddings, out, f"label={label}", f"folds.number={number}") == sentence.format(embeddings.path)
    assert trained(suite, store, out, f"evaluate.label={label}", f"folds.number={number}").startswith(
        f"{store} has no column of names '{label}'; it has patient, slide, label"
    )


def test_the_command_line_ends_with_2(
    embeddings: Embeddings, store: Path, suite: Path, forks: Forks, tmp_path: Path
) -> None:
    out = str(tmp_path / "out")
    for words in (
        ["evaluate", str(embeddings.path), "--folds", "3", "--set", "label=nosuch"],
        ["evaluate", str(embeddings.path), "--folds", "3", "--set", "label=patch"],
        ["benchmark", str(suite), str(store), "--set", "evaluate.label=nosuch"],
        ["benchmark", str(suite), str(store), "--set", "evaluate.label=nosuch", "--folds", "3"],
    ):
        ended = forks.run(*words, "--out", out, "--device", "cpu")
        assert ended.code == 2, ended.said
        assert "has no column of names" in ended.said
        assert "Traceback" not in ended.said


@pytest.mark.parametrize("changes", [(), ("folds.number=2",)], ids=["splits", "folds"])
def test_a_cohort_of_one_class_is_refused_before_training(
    suite: Path, tmp_path: Path, changes: tuple[str, ...]
) -> None:
    made = relabel(make_embeddings(tmp_path / "e", learned=False), lambda *_: "a")
    assert judged(made, tmp_path / "out", *changes).startswith(f"all patches of {made.path} have the label 'a', and")
    pictures = pictures_of(*(f"P{number}/P{number}-x" for number in range(4)))
    rows = [f"P{number},a,{'test' if number > 1 else 'train'}" for number in range(4)]
    (tmp_path / "patients.csv").write_text("\n".join(["patient,label,split", *rows]) + "\n")
    source = find_folder(write_pictures(tmp_path / "pictures", pictures), tmp_path / "patients.csv")
    import_patches(source, tmp_path / "store", ImportConfig(), workers=0)
    said = trained(suite, tmp_path / "store", tmp_path / "out", *changes)
    assert said.startswith(f"all patches of {tmp_path / 'store'} have the label 'a', and an evaluation needs two")


def test_a_column_of_many_numbers_is_no_column_of_classes(tmp_path: Path) -> None:
    made = make_embeddings(tmp_path / "e", learned=False)
    patients = sorted(set(made.table.column("patient")))

    def measured(number: int) -> Embeddings:
        """The table with `til`: a number per patient, of so many different ones."""
        values = [f"{patients.index(patient) % number + 0.5}" for patient in made.table.column("patient")]
        arrow = made.table.arrow
        if "til" in made.table.columns:
            arrow = arrow.drop_columns("til")
        PatchTable(arrow).add_names("til", values).save(made.path / PATCHES)
        refinish(made.path)
        return Embeddings.load(made.path)

    made = measured(12)
    for changes in ((), ("folds.number=2",)):
        assert judged(made, tmp_path / "out", "label=til", *changes) == (
            f"til of {made.path} has 12 different numbers ('0.5', '1.5', '10.5' and 9 more), and each would be a class "
            "of its own. Add a column of classes to the cohort, such as low and high til, and set label=COLUMN; or "
            "name the classes with classes=[...]."
        )
    quick = ["label=til", "probes=[knn]", "folds.number=2", "bootstrap.resamples=0", "audit=false", "floor=false"]
    some = load_config(EvaluateConfig, None, [*quick, "classes=['0.5', '1.5']"])
    assert evaluate(made.path, tmp_path / "some", some).info.endpoint.classes == ("0.5", "1.5")
    few = evaluate(measured(10).path, tmp_path / "few", load_config(EvaluateConfig, None, quick))
    assert len(few.info.endpoint.classes) == 10


def test_levels_that_folds_would_split_are_refused_before_anything_is_judged(
    embeddings: Embeddings, store: Path, suite: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cross_validation, "pool_evaluations", None)
    levels = "levels=[site, patient, slide, patch]"
    assert judged(embeddings, tmp_path / "out", "folds.number=3", levels) == (
        f"levels begin with 'site', and some sites of {embeddings.path} have patients in several folds, so that they "
        "would be judged more than once. Set --set folds.by=site."
    )


def test_folds_by_site_may_have_sites_as_the_first_level(tmp_path: Path) -> None:
    made = make_embeddings(tmp_path / "e", learned=False)
    changes = ["folds.number=2", "folds.by=site", "levels=[site, patient, slide, patch]", "probes=[knn]"]
    config = load_config(EvaluateConfig, None, [*changes, "bootstrap.resamples=0", "audit=false", "floor=false"])
    scores = evaluate(made.path, tmp_path / "s", config)
    assert scores.info.levels[0] == "site"

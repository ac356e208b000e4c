"""Suites and their cells: every shipped one fits together, and plans what the paper's tables need."""

from importlib import resources
from pathlib import Path

import pytest

from hidisc.benchmarking.cells import plan_cells, plan_embedding
from hidisc.ground.errors import UserError
from hidisc.settings.benchmark import SuiteConfig
from hidisc.settings.config import keep_facts, list_recipes, load_config
from hidisc.settings.train import TrainConfig

SUITES = [name for name in list_recipes("benchmark") if name != "tcga"]
EXAMPLES = sorted((Path(__file__).parents[2] / "examples" / "suites").glob("*.yaml"))


def load(suite: str, *changes: str) -> SuiteConfig:
    return load_config(SuiteConfig, suite, ["floors=false", *changes])


def test_the_papers_experiments_and_ours_are_all_there() -> None:
    paper = {"main", "weak", "lambda", "learning-rate", "batch-size", "iterations"}
    assert set(SUITES) == paper | {"hierarchical", "distillation", "stain", "small-cohort", "vectors"}


@pytest.mark.parametrize("suite", sorted(set(SUITES) - {"small-cohort", "vectors"}))
@pytest.mark.parametrize("scale", ["small", "full"])
def test_every_suite_plans_trainings(suite: str, scale: str, tmp_path: Path) -> None:
    config = load(suite)
    cells = plan_cells(config, getattr(config, scale), tmp_path)
    assert len(cells) == len(config.rows) * config.seeds
    assert len({cell.folder for cell in cells}) == len(cells)
    assert [cell.train.seed for cell in cells] == [cell.seed for cell in cells]
    if scale == "full":
        assert all(cell.train.model.backbone == "resnet50" for cell in cells)
        assert {cell.train.optim.steps for cell in cells} == {100_000}
    else:
        assert all(cell.train.model.backbone == "test_resnet" for cell in cells)


@pytest.mark.parametrize("suite", SUITES)
def test_every_suite_says_what_it_is_for(suite: str) -> None:
    text = (resources.files("hidisc.settings.recipes") / "benchmark" / f"{suite}.yaml").read_text(encoding="utf-8")
    assert [f"# {word}" in text for word in ("Purpose:", "Command:", "Machine:", "Paper:")] == [True] * 4
    source = "embeddings" if suite == "vectors" else "store"
    assert f"hidisc benchmark {suite} {source}" in text


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_suite_among_the_examples_plans_trainings(path: Path, tmp_path: Path) -> None:
    config = load(str(path), "folds.number=0")
    assert len(plan_cells(config, config.small, tmp_path)) == len(config.rows) * config.seeds
    assert f"hidisc benchmark examples/suites/{path.name} " in path.read_text()


def test_the_suite_for_small_cohorts_trains_as_the_recipe_for_them(tmp_path: Path) -> None:
    """What docs/lab/real-cohorts.md measured is what `hidisc train --recipe small-cohort` does."""
    config = load("small-cohort", "folds.number=0")
    (cell,) = [
        cell
        for cell in plan_cells(config, config.small, tmp_path)
        if (cell.row.name, cell.seed) == ("ImageNet: HiDisc-Patient", 0)
    ]
    weights = "model.weights=tf_efficientnet_lite0.safetensors"
    assert cell.train == load_config(TrainConfig, "hidisc-patient+small-cohort", [weights])


def test_a_benchmark_goes_on_when_its_suite_says_another_time() -> None:
    facts = [
        keep_facts(SuiteConfig, load("small-cohort", *changes).model_dump(mode="json"))
        for changes in ([], ["small.time=an hour"], ["small.changes=[optim.steps=5]"])
    ]
    assert facts[0] == facts[1]
    assert facts[0] != facts[2]


def test_seeds_come_round_after_round(tmp_path: Path) -> None:
    config = load("weak")
    cells = plan_cells(config, config.small, tmp_path)
    assert [cell.seed for cell in cells] == [0] * 5 + [1] * 5 + [2] * 5
    assert [cell.row.name for cell in cells[:5]] == [row.name for row in config.rows]
    assert cells[3].folder == tmp_path / "cells" / "04-hidisc-patient-0"
    assert cells[3].name == "HiDisc-Patient, seed 0"
    assert cells[0].train.views.ops == ("flips",)


def test_tcga_samples_patches_three_times(tmp_path: Path) -> None:
    config = load("weak+tcga")
    cells = plan_cells(config, config.full, tmp_path)
    assert [(point.step, point.sampling) for point in cells[0].points] == [(60_000, 0), (60_000, 1), (60_000, 2)]
    embedded = [plan_embedding(config, cells[0], point, 300) for point in cells[0].points]
    assert [(one.seed, one.per_slide) for one in embedded] == [(0, 400), (1, 400), (2, 400)]
    assert cells[0].train.batch.images == 448


def test_looks_on_the_way_keep_their_checkpoints(tmp_path: Path) -> None:
    config = load("iterations", "small.changes=[optim.steps=100]")
    (cell,) = plan_cells(config, config.small, tmp_path)
    assert [point.step for point in cell.points] == list(range(10, 101, 10))
    assert [point.is_last for point in cell.points] == [False] * 9 + [True]
    recipe = load_config(TrainConfig, "hidisc-patient+laptop").checkpoint
    assert cell.train.checkpoint == recipe.model_copy(update={"at": tuple(range(10, 100, 10))})


def test_looks_keep_no_checkpoint_but_their_own(tmp_path: Path) -> None:
    """By their greatest common divisor, 333 and 667 of 1,000 steps would be 1,000 checkpoints."""
    config = load("iterations", "small.changes=[optim.steps=1000]", "evaluation_points=[0.333, 0.667, 1.0]")
    (cell,) = plan_cells(config, config.small, tmp_path)
    assert [point.step for point in cell.points] == [333, 667, 1000]
    checkpoint = cell.train.checkpoint
    assert (checkpoint.at, checkpoint.every, checkpoint.keep) == ((333, 667), 200, 2)
    one = load("weak")
    assert {cell.train.checkpoint.at for cell in plan_cells(one, one.small, tmp_path)} == {()}


def test_looks_add_to_the_checkpoints_that_a_row_asks_for(tmp_path: Path) -> None:
    rows = "rows=[{name: A, recipe: hidisc-patient, changes: ['checkpoint.at=[40, 7]', 'checkpoint.every=30']}]"
    config = load("iterations", "small.changes=[optim.steps=100]", "evaluation_points=[0.4, 1.0]", rows)
    (cell,) = plan_cells(config, config.small, tmp_path)
    assert (cell.train.checkpoint.at, cell.train.checkpoint.every) == ((7, 40), 30)


def test_looks_of_a_short_training_are_all_checkpoints(tmp_path: Path) -> None:
    config = load("iterations", "small.changes=[optim.steps=15]")
    (cell,) = plan_cells(config, config.small, tmp_path)
    assert [point.step for point in cell.points] == [2, 3, 4, 6, 8, 9, 10, 12, 14, 15]
    assert cell.train.checkpoint.at == (2, 3, 4, 6, 8, 9, 10, 12, 14)


def test_learning_rates_and_lambdas_are_those_of_the_paper(tmp_path: Path) -> None:
    config = load("learning-rate")
    rates = [cell.train.optim.learning_rate for cell in plan_cells(config, config.full, tmp_path)]
    assert rates == [10.0**-power for power in range(8)]
    assert [row.at for row in config.rows] == rates
    config = load("lambda")
    for cell in plan_cells(config, config.full, tmp_path):
        weights = cell.train.objective["weights"]
        assert cell.row.name == " ".join(f"{weights[level]:g}" for level in ("patient", "slide", "patch"))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (["samplings=3"], "samplings need per_slide"),
        (["evaluation_points=[1.0, 0.5]"], "evaluation_points must rise"),
        (["evaluation_points=[0.0, 0.5]"], "evaluation_points must rise"),
        (["rows=[{name: A, recipe: simclr}, {name: A, recipe: byol}]", "claims=[]"], "two rows have one name"),
        (["rows=[{name: A, recipe: simclr}]"], "a claim speaks of 'HiDisc-Patient', which is no row"),
        (["evaluation_points=[0.5]"], "the last of evaluation_points must be 1.0"),
    ],
)
def test_what_does_not_fit_together_is_refused(changes: list[str], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence.replace("(", r"\(")):
        load("weak", *changes)


def test_where_rows_start_from_weights_the_start_is_a_floor(tmp_path: Path) -> None:
    rows = "rows=[{name: A, recipe: simclr, changes: [model.weights=a.safetensors]}]"

    def floors(*changes: str) -> list[str]:
        config = load_config(SuiteConfig, "weak", ["claims=[]", "seeds=1", rows, *changes])
        return [cell.row.name for cell in plan_cells(config, config.small, tmp_path) if cell.row.encoder != "trained"]

    assert floors() == ["Colour alone", "Untrained", "Start", "Start, whitened within slides"]
    assert floors("floors=false") == []
    assert floors("rows=[{name: A, recipe: simclr}]") == ["Colour alone", "Untrained"]
    config = load_config(SuiteConfig, "weak", ["claims=[]", "seeds=1", rows])
    *_, start, whitened = plan_cells(config, config.small, tmp_path)
    assert start.train.model.weights == whitened.train.model.weights == "a.safetensors"
    assert (start.map, whitened.map and whitened.map.map.kind) == (None, "whiten-within")
    shipped = load_config(SuiteConfig, "small-cohort", ["folds.number=0", "seeds=1"])
    names = [cell.row.name for cell in plan_cells(shipped, shipped.small, tmp_path) if cell.row.encoder == "start"]
    assert names[:2] == ["ImageNet: frozen", "ImageNet: frozen, whitened within slides"]
    assert not [name for name in names if name.startswith("Start")]

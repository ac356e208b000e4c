"""Every shipped recipe of `hidisc train`: it says what it is for, it fits together, and it trains."""

from collections.abc import Iterator
from importlib import resources
from math import prod
from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import save_file

from hidisc.objectives.objective import find_objective, list_objectives, load_settings
from hidisc.patches.store import PatchStore
from hidisc.settings.config import list_recipes, load_config, read_recipe
from hidisc.settings.embed import EmbedConfig
from hidisc.settings.evaluate import EvaluateConfig
from hidisc.settings.train import TrainConfig
from hidisc.training.build import choose_training_set
from hidisc.verbs.train import train
from tests.training.stores import TRAIN, make_store

METHODS = {
    "hidisc-patient": "hidisc",
    "hidisc-slide": "hidisc",
    "hidisc-slide-literal": "hidisc",
    "hidisc-patch": "hidisc",
    "hidisc-multiscale": "hidisc",
    "hidisc-any-scale": "hidisc",
    "simclr": "simclr",
    "simsiam": "simsiam",
    "simsiam-hierarchical": "simsiam",
    "byol": "byol",
    "byol-hierarchical": "byol",
    "vicreg": "vicreg",
    "dino": "dino",
    "dino-hierarchical": "dino",
    "vicreg-hierarchical": "vicreg",
    "supcon": "supcon",
    "supervised": "supervised",
}
"""Recipes that name an objective; the others are put over one of them."""
MAPS = ("centre", "whiten", "whiten-within", "linear-hidisc", "hidisc-adapter")
"""Recipes for vectors."""
OVERS = ("strong", "weak", "stain", "srh", "tcga", "laptop", "public-code", "transfer", "mri", "small-cohort")
SMALL = (
    "model.backbone=test_resnet",
    "model.head.hidden_dim=16",
    "model.head.dim=8",
    "views.local.size_px=16",
    "batch.images=16",
    "optim.steps=2",
    "log.every=1",
    "data.threads=1",
)


def load(recipe: str | None, *changes: str) -> TrainConfig:
    return load_config(TrainConfig, recipe, changes)


def text_of(recipe: str) -> str:
    return (resources.files("hidisc.settings.recipes") / "train" / f"{recipe}.yaml").read_text(encoding="utf-8")


def patients_of(config: TrainConfig) -> float:
    """The paper's n."""
    return config.batch.images / (prod(config.batch.draw.values()) * config.batch.views)


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Patches of 8 patients; two after each other are one place at two scales."""
    return make_store(tmp_path_factory.mktemp("tiny"), scales=(0.5, 1.0))


def test_all_are_here() -> None:
    assert set(list_recipes("train")) == {*METHODS, *OVERS, *MAPS}
    assert set(METHODS.values()) == set(list_objectives())


@pytest.mark.parametrize("name", list_recipes("train"))
def test_each_says_what_it_is_for(name: str) -> None:
    lines = text_of(name).splitlines()
    header = [line for line in lines if line.startswith("#")]
    assert header == lines[: len(header)]
    heads = [line.split(":")[0] for line in header if line[2] != " "]
    assert heads == ["# Purpose", "# Command", "# Machine", "# Paper"]
    (command,) = (line.split(":", 1)[1].strip() for line in header if line.startswith("# Command"))
    start, recipe, end = command.partition(" --recipe ")[0], command.split(" --recipe ")[1].split()[0], command[-10:]
    source = "embeddings" if name in MAPS else "store"
    assert (start, end) == (f"hidisc train {source}", " --out run")
    assert name in recipe.split("+")
    load(recipe)


@pytest.mark.parametrize(("shelf", "model"), [("embed", EmbedConfig), ("evaluate", EvaluateConfig)])
def test_those_of_the_judging_verbs_too(shelf: str, model: type[EmbedConfig] | type[EvaluateConfig]) -> None:
    assert list_recipes(shelf)
    for name in list_recipes(shelf):
        text = (resources.files("hidisc.settings.recipes") / shelf / f"{name}.yaml").read_text(encoding="utf-8")
        heads = [line.split(":")[0] for line in text.splitlines() if line.startswith("#") and line[2] != " "]
        assert heads == ["# Purpose", "# Command", "# Machine", "# Paper"]
        assert f"hidisc {shelf} " in text
        assert f"--recipe {name} " in text
        assert load_config(model, name) != model()


@pytest.mark.parametrize("name", METHODS)
def test_a_method_names_its_objective_and_all_a_batch_is_made_of(name: str) -> None:
    written = read_recipe(name, "train").settings
    assert written["objective"]["name"] == METHODS[name]
    assert set(written["batch"]) == {"levels", "images", "draw", "views"}, "so that it can be put over another"
    assert load(name).batch.images == 512
    assert find_objective(load_settings(load(name).objective)).needs_labels == (name in ("supcon", "supervised"))


@pytest.mark.parametrize("name", OVERS)
def test_what_is_put_over_a_method_names_none(name: str) -> None:
    written = read_recipe(name, "train").settings
    assert "name" not in written.get("objective", {})
    assert "levels" not in written.get("batch", {})


@pytest.mark.parametrize("views", ["", "+weak", "+strong", "+stain"])
@pytest.mark.parametrize("size", ["", "+tcga", "+srh"])
@pytest.mark.parametrize("method", METHODS)
def test_every_method_with_every_view_and_size(method: str, views: str, size: str) -> None:
    config = load(method + views + size)
    assert load_settings(config.objective).model_dump()["name"] == METHODS[method]
    assert patients_of(config) == int(patients_of(config)) > 0
    assert (config.batch.images, config.optim.steps) == ((448, 60_000) if size == "+tcga" else (512, 100_000))
    ops = {"+weak": ("flips",), "+stain": ("flips", "stain")}.get(views, TrainConfig().views.ops)
    assert config.views.ops == ops
    assert config.model.backbone == "resnet50"
    assert load(method + size + views) == config, "the order does not matter"


@pytest.mark.parametrize("method", [*METHODS, "hidisc-patient+public-code"])
@pytest.mark.parametrize("views", ["weak", "stain"])
def test_laptop_makes_any_of_them_small(method: str, views: str) -> None:
    config = load(f"{method}+{views}+laptop")
    assert config.model.backbone == "test_resnet"
    assert patients_of(config) == int(patients_of(config))
    assert max(config.model.head.hidden_dim, config.model.head.dim) <= 512


# Defaults are the paper's values


def test_the_defaults_are_the_paper_s() -> None:
    config = load(None)
    assert (config.model.backbone, config.model.weights) == ("resnet50", None)
    assert (config.model.head.layers, config.model.head.dim) == (1, 128)
    assert (config.optim.learning_rate, config.optim.warmup) == (1e-3, 0.1)
    assert (config.batch.images, config.optim.steps) == (512, 100_000)
    assert (config.batch.levels, config.batch.views) == (("patient", "slide", "patch"), 2)
    assert config.batch.draw == {"slide": 2, "patch": 2}
    assert patients_of(config) == 64
    assert (config.batch.balance, config.monitor.every) == (False, None)
    assert config.views.probability == 0.3
    assert len(config.views.ops) == 10
    loss = load_settings(config.objective).model_dump()
    assert (loss["name"], loss["temperature"], loss["weights"]) == ("hidisc", 0.7, {}), "lambda is 1 at every level"


def test_the_default_is_hidisc_patient_with_strong_views_on_srh() -> None:
    config = load("hidisc-patient+strong+srh")
    assert load_settings(config.objective) == load_settings(load(None).objective)
    assert config.model_dump(exclude={"objective"}) == load(None).model_dump(exclude={"objective"})


def test_the_paper_s_tcga_batch() -> None:
    config = load("hidisc-patient+tcga")
    assert (config.batch.images, config.optim.steps, patients_of(config)) == (448, 60_000, 56)


@pytest.mark.parametrize(
    ("name", "draw", "weights"),
    [
        ("hidisc-patch", {"slide": 1, "patch": 1}, {"patient": 0, "slide": 0, "patch": 1}),
        ("hidisc-slide", {"slide": 1, "patch": 2}, {"patient": 0, "slide": 1, "patch": 1}),
        ("hidisc-slide-literal", {"slide": 2, "patch": 1}, {"patient": 0, "slide": 1, "patch": 1}),
        ("hidisc-patient", {"slide": 2, "patch": 2}, {}),
    ],
)
def test_the_three_hidiscs(name: str, draw: dict[str, int], weights: dict[str, float]) -> None:
    config = load(name)
    assert config.batch.draw == draw
    assert load_settings(config.objective).model_dump()["weights"] == weights


def test_all_contrastive_methods_have_one_temperature() -> None:
    for name in ("hidisc-patient", "hidisc-slide", "hidisc-patch", "simclr", "supcon"):
        assert load(name).objective["temperature"] == 0.7


def test_the_rivals_are_those_of_their_papers() -> None:
    byol, simsiam, vicreg, dino = (load(name) for name in ("byol", "simsiam", "vicreg", "dino"))
    assert (dino.model.head.layers, dino.model.head.hidden_dim, dino.model.head.dim) == (3, 2048, 256)
    assert (dino.batch.views, dino.views.local.number, dino.views.local.size_px) == (2, 6, 96)
    assert (dino.views.global_.scale, dino.views.local.scale) == ((0.4, 1), (0.05, 0.4))
    assert (byol.model.head.layers, byol.model.head.hidden_dim, byol.model.head.dim) == (2, 4096, 256)
    assert (byol.objective["momentum"], byol.objective["predictor_dim"]) == (0.996, 4096)
    assert (simsiam.model.head.layers, simsiam.model.head.hidden_dim, simsiam.model.head.dim) == (3, 2048, 2048)
    assert (simsiam.model.head.norm_last, simsiam.objective["predictor_dim"]) == (True, 512)
    assert (vicreg.model.head.layers, vicreg.model.head.hidden_dim, vicreg.model.head.dim) == (3, 8192, 8192)
    assert [vicreg.objective[name] for name in ("invariance", "variance", "covariance")] == [25, 25, 1]


def test_where_the_public_code_differs() -> None:
    config = load("hidisc-patient+public-code")
    assert config.objective == {"name": "hidisc", "temperature": 0.07}
    assert (config.batch.balance, config.views.probability) == (True, 0.5)
    assert set(config.views.ops) == set(TrainConfig().views.ops)
    assert config.views.ops[-1] == "erasing"


# Each of them trains


def recipes() -> list[str]:
    return [*METHODS, *(f"hidisc-patient+{over}" for over in OVERS)]


def save_weights(folder: Path) -> Path:
    """Weights as they come from elsewhere, which have seen pictures."""
    net = timm.create_model("test_resnet")
    for _ in range(20):
        net(torch.randn(16, 3, 32, 32))
    save_file(net.state_dict(), folder / "weights.safetensors")
    return folder / "weights.safetensors"


@pytest.mark.parametrize("recipe", recipes())
def test_two_steps(store: Path, tmp_path: Path, recipe: str) -> None:
    predictor = ["objective.predictor_dim=8"] if METHODS[recipe.split("+")[0]] in ("byol", "simsiam") else []
    weights = [f"model.weights={save_weights(tmp_path)}"] if recipe.endswith(("transfer", "small-cohort")) else []
    config = load(recipe, *SMALL, *predictor, *weights)
    run = train(store, tmp_path / "run", config, device="cpu", devices=1)
    assert run is not None
    assert run.info.objective == METHODS[recipe.split("+")[0]]
    assert set(run.info.patients) == set(TRAIN)
    rows = run.metrics()
    assert [row["step"] for row in rows] == [1, 2]
    assert all(0 <= abs(row["loss"]) < float("inf") for row in rows)
    labels = {"supcon": ("objective",), "supervised": ("objective",), "hidisc-patient+public-code": ("class balance",)}
    assert run.info.labels_used == labels.get(recipe, ())
    features = run.encoder().features(torch.rand(2, 3, 32, 32))
    assert features.shape == (2, run.card.features)


@pytest.mark.parametrize("recipe", recipes())
def test_a_batch_of_the_recipe_s_own_size_can_be_drawn(store: Path, recipe: str) -> None:
    config = load(recipe)
    chosen = choose_training_set(PatchStore.load(store), config, load_settings(config.objective))
    drawn = chosen.sampler(config, world=1).draw(0)
    assert len(drawn.places) * config.batch.views == config.batch.images

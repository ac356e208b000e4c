"""Settings: closed, documented, all of them read; what a recipe or `--set` gets wrong is said by name."""

import ast
import re
from importlib import import_module, resources
from pathlib import Path

import pytest
import yaml
from pydantic import BaseModel, ValidationError

from hidisc import settings
from hidisc.ground.errors import UserError
from hidisc.objectives.objective import list_objectives, load_settings
from hidisc.settings.benchmark import SuiteConfig
from hidisc.settings.config import Config, differences, keep_facts, list_recipes, load_config, read_recipe, to_yaml
from hidisc.settings.evaluate import EvaluateConfig
from hidisc.settings.prepare import ImportConfig, PrepareConfig
from hidisc.settings.train import TrainConfig

SRC = Path(settings.__file__).parents[1]
PAGES = [
    import_module(f"hidisc.settings.{name}")
    for name in ("prepare", "train", "embed", "evaluate", "report", "benchmark")
]
OWNERS = {"SuiteConfig": ("suite",), "RowConfig": ("row",), "ClaimConfig": ("claim",), "ScaleConfig": ("scale", "size")}
"""What the code calls the parts of a suite."""
MODELS = [
    kind
    for page in PAGES
    for kind in vars(page).values()
    if isinstance(kind, type) and issubclass(kind, Config) and kind.__module__ == page.__name__
]


def refusal(recipe: str | None = None, *changes: str) -> str:
    with pytest.raises(UserError) as caught:
        load_config(PrepareConfig, recipe, changes)
    return str(caught.value)


def fields() -> list[tuple[type[BaseModel], str]]:
    return [(model, name) for model in MODELS for name in model.model_fields]


def is_group(model: type[BaseModel], name: str) -> bool:
    kind = model.model_fields[name].annotation
    return isinstance(kind, type) and issubclass(kind, BaseModel)


# What a user types


def test_defaults_then_recipe_then_changes(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("grid: {mpp: 0.25, size_px: 64}\nseed: 5\n")
    config = load_config(PrepareConfig, str(tmp_path / "mine.yaml"), ["grid.mpp=1", "stain.method=none"])
    assert (config.grid.mpp, config.grid.size_px, config.seed, config.stain.method) == (1.0, 64, 5, "none")
    assert config.filter == PrepareConfig().filter


@pytest.mark.parametrize(
    ("change", "value"),
    [
        ("grid.mpp=0.25", 0.25),
        (" grid.mpp = 0.25", 0.25),
        ("grid.mpp=1e-1", 0.1),
        ("grid.stride_px=null", None),
        ("grid.allow_upsampling=true", True),
        ("stain.reference=a=b.png", "a=b.png"),
        ("stain.reference=[odd", "[odd"),
        ("split.fractions={a: 1, b: 2}", {"a": 1, "b": 2}),
    ],
)
def test_set_takes_yaml_values(change: str, value: object) -> None:
    group, name = change.partition("=")[0].strip().split(".")
    assert getattr(getattr(load_config(PrepareConfig, None, [change]), group), name) == value


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ("grid.mpp", "--set 'grid.mpp' has no '='. Write it as --set grid.mpp=VALUE."),
        ("", "--set '' has no '='. Write it as --set a.b=VALUE."),
        ("grid.sise_px=3", "'grid.sise_px' is not a setting. Did you mean 'grid.size_px'?"),
        ("size_px=3", "'size_px' is not a setting. Did you mean 'grid.size_px'?"),
        ("mpp=3", "'mpp' is not a setting. Did you mean 'grid.mpp'?"),
        ("qqq=3", "'qqq' is not a setting. Settings are: grid.mpp, grid.size_px, "),
        ("seed.x=3", "seed = {'x': 3}: input should be a valid integer."),
        ("grid=5", "grid = 5: input should be a valid dictionary or instance of GridConfig."),
        ("grid.mpp=", "grid.mpp = None: mpp is a number above 0 and at most 100, or several"),
        ("grid.mpp=-1", "grid.mpp = -1: mpp is a number above 0 and at most 100, or several"),
        (
            "grid.size_px=2.5",
            "grid.size_px = 2.5: input should be a valid integer, got a number with a fractional part.",
        ),
        ("tissue.thumbnail_mpp=.inf", "tissue.thumbnail_mpp = inf: input should be a finite number."),
        ("pixels.codec=webp", "pixels.codec = 'webp': input should be 'jpeg', 'zstd', 'png' or 'raw'."),
        ("split.fractions={}", "fractions must name every split, two or more"),
        ("split.fractions.train=0.7", "--set 'split.fractions={train: 0.7, test: 0.3}'"),
        ("split.fractions={a: -1, b: 3}", "with shares of at least 0 that add up to more than 0"),
        ("split.fractions={a: .nan}", "split.fractions.a = nan: input should be a finite number."),
    ],
)
def test_set_refusals(change: str, sentence: str) -> None:
    said = refusal(None, change)
    assert sentence in said
    assert "vfractions" not in said


def test_setting_below_a_single_value() -> None:
    assert "--set seed.x: 'seed' is a single value, not a group of settings." in refusal(None, "seed=1", "seed.x=2")


def test_all_wrong_settings_at_once() -> None:
    said = refusal(None, "grid.mpp=-1", "pixels.codec=webp", "nonsense=1")
    assert said.startswith("settings:\n  ")
    assert len(said.splitlines()) == 4


@pytest.mark.parametrize("name", ["hee", "nowhere/he.yaml", "__init__", "__pycache__", "."])
def test_unknown_recipe(name: str) -> None:
    known = ", ".join(list_recipes("prepare"))
    meant = " Did you mean 'he'?" if name == "hee" else ""
    assert refusal(name) == (
        f"recipe {name!r} is neither a file nor one of {known}.{meant} Give one of these or a YAML file."
    )


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"grid: {mpp: 0.5", "is not valid YAML: while parsing"),
        (b"grid:\n\tmpp: 1", "is not valid YAML: while scanning"),
        (b"- grid\n- mpp\n", "is not a list of settings. Write `grid:` and `  mpp: 0.5` below it."),
        (b"grid", "is not a list of settings."),
        (b"# gr\xf6\xdfe\nseed: 1\n", "is not UTF-8 text. Save it as UTF-8."),
        (b"gird: {mpp: 1}", "'gird' is not a setting. Did you mean 'grid.mpp'?"),
        (b"1: 2", "1 = 1: keys should be strings."),
    ],
)
def test_bad_recipe_files(tmp_path: Path, data: bytes, sentence: str) -> None:
    (tmp_path / "mine.yaml").write_bytes(data)
    said = refusal(str(tmp_path / "mine.yaml"))
    assert sentence in said
    assert said.startswith(f"recipe '{tmp_path / 'mine.yaml'}'")


def test_an_empty_recipe_and_an_empty_group_are_the_defaults(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("# nothing yet\ngrid:\n")
    config = load_config(PrepareConfig, str(tmp_path / "mine.yaml"), ["grid.mpp=1"])
    assert config.grid.size_px == PrepareConfig().grid.size_px


# What is shipped


@pytest.mark.parametrize("kind", [PrepareConfig, TrainConfig])
def test_shipped_recipes_are_valid_and_say_what_they_are_for(kind: type[Config]) -> None:
    for name in list_recipes(kind.recipes):
        check_recipe(name, kind)


def check_recipe(name: str, kind: type[Config]) -> None:
    text = (resources.files("hidisc.settings.recipes") / kind.recipes / f"{name}.yaml").read_text(encoding="utf-8")
    heads = [line.split(":")[0] for line in text.splitlines() if line.startswith("# ") and line[2] != " "]
    assert heads == ["# Purpose", "# Command", "# Machine", "# Paper"]
    assert re.search(rf"hidisc {kind.recipes} .*--recipe (\S+\+)*{name}(\+\S+)* ", text)
    assert load_config(kind, name) is not None
    assert read_recipe(name, kind.recipes).settings


def test_recipes_are_found() -> None:
    assert {"he", "srh", "small-regions"} <= set(list_recipes("prepare"))
    assert {"hidisc-patient", "simclr", "weak", "tcga"} <= set(list_recipes("train"))


def test_recipes_in_layers_the_later_over_the_earlier(tmp_path: Path) -> None:
    (tmp_path / "a+b.yaml").write_text("seed: 7\n")
    config = load_config(TrainConfig, "hidisc-slide+weak+tcga", ["optim.steps=5"])
    assert config.objective["weights"] == {"patient": 0, "slide": 1, "patch": 1}
    assert (config.views.ops, config.batch.images, config.batch.draw) == (("flips",), 448, {"slide": 1, "patch": 2})
    assert (config.optim.steps, config.optim.learning_rate) == (5, 1e-3)
    assert load_config(TrainConfig, "simclr").batch.draw == {}
    assert load_config(TrainConfig, str(tmp_path / "a+b.yaml")).seed == 7


def test_a_recipe_of_another_verb_is_named() -> None:
    with pytest.raises(UserError, match=r"or a YAML file\. It is a recipe of `hidisc prepare`\."):
        load_config(TrainConfig, "simclr+he")
    assert "It is a recipe of `hidisc train`." in refusal("weak")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ("views.crop_scale=[0.5, 0.2]", "crop_scale must be a range [low, high] above 0"),
        ("views.noise_sigma=[-1, 0.2]", "noise_sigma must be a range [low, high] above 0"),
        ("views.blur_kernel_px=4", "blur_kernel_px must be odd, not 4"),
        ("views.ops=[flips, flips]", "ops names one operation twice; name each once"),
        ("views.ops=[rotate]", "views.ops.0 = 'rotate': input should be 'flips', 'noise',"),
        ("optim.lr=1", "'optim.lr' is not a setting. Did you mean 'optim.clip'?"),
    ],
)
def test_refused_training_settings(change: str, sentence: str) -> None:
    with pytest.raises(UserError) as caught:
        load_config(TrainConfig, None, [change])
    assert sentence in str(caught.value)


def test_precision_is_a_name_that_looks_like_a_number() -> None:
    assert load_config(TrainConfig, None, ["compute.precision=16"]).compute.precision == "16"


def test_a_filter_by_labels_needs_both_parts() -> None:
    assert "run and drop_labels go together" in refusal(None, "filter.run=somewhere")
    assert "run and drop_labels go together" in refusal(None, "filter.drop_labels=[blank]")


# The models themselves


@pytest.mark.parametrize(("model", "name"), fields())
def test_every_setting_is_documented(model: type[BaseModel], name: str) -> None:
    if not is_group(model, name):
        assert (model.model_fields[name].description or "").endswith(".")
    assert model.__doc__


def test_every_setting_is_read_somewhere() -> None:
    """A dead key in a recipe is a lie; upstream's `rand_aug_prob` was never read.

    Read means `grid.mpp`, `config.mpp` or `self.mpp` in the code, not any `.mpp`.
    """
    read = {
        (owner.attr if isinstance(owner, ast.Attribute) else owner.id, node.attr)
        for path in SRC.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and isinstance(owner := node.value, ast.Attribute | ast.Name)
    }
    groups = {model.model_fields[name].annotation: name for model, name in fields() if is_group(model, name)}
    dead = [
        f"{model.__name__}.{name}"
        for model, name in fields()
        if not {
            (owner, name) for owner in (groups.get(model), "config", "_config", "self", *OWNERS.get(model.__name__, ()))
        }
        & read
    ]
    assert dead == []


@pytest.mark.parametrize("name", list_objectives())
def test_every_setting_of_an_objective_is_documented_and_read_in_its_file(name: str) -> None:
    text = (SRC / "objectives" / f"{name}.py").read_text(encoding="utf-8")
    settings = load_settings({"name": name})
    for field, info in type(settings).model_fields.items():
        assert (info.description or "").endswith(".")
        assert field == "name" or re.search(rf"(settings|weigh|self)\.{field}\b", text), field


def test_settings_cannot_be_changed_afterwards() -> None:
    config = PrepareConfig()
    with pytest.raises(ValidationError, match="frozen"):
        config.seed = 1
    with pytest.raises(ValidationError, match="frozen"):
        config.grid.mpp = 1.0


@pytest.mark.parametrize("model", [PrepareConfig, ImportConfig, TrainConfig])
def test_yaml_gives_the_same_settings_back(model: type[Config]) -> None:
    assert model.model_validate(yaml.safe_load(to_yaml(model()))) == model()


def test_differences_are_named_with_both_values() -> None:
    old = {"kind": "prepare", "grid": {"mpp": 0.5, "size_px": 300}, "gone": 1}
    new = {"kind": "prepare", "grid": {"mpp": 0.25, "size_px": 300}, "new": 2}
    assert differences(old, new) == ["grid.mpp: 0.5 -> 0.25", "gone: 1 -> None", "new: None -> 2"]
    assert differences(old, old) == []
    assert differences({"weights": {"a": 1}}, {"weights": {"a": 1}, "across": {}, "without": [], "k": None}) == []
    assert differences({}, {"keep": 0, "is_on": False}) == ["keep: None -> 0", "is_on: None -> False"]


def test_a_setting_that_was_not_there_yet_has_its_default() -> None:
    before = TrainConfig(seed=3).model_dump(mode="json")
    del before["data"]["leave_out"], before["optim"]["layer_decay"]
    assert keep_facts(TrainConfig, before) == keep_facts(TrainConfig, TrainConfig(seed=3).model_dump(mode="json"))
    changed = TrainConfig.model_validate({"seed": 3, "data": {"leave_out": ["a"]}}).model_dump(mode="json")
    found = differences(keep_facts(TrainConfig, before), keep_facts(TrainConfig, changed))
    assert found == ["data.leave_out: [] -> ['a']"]


# Renamed settings


def test_a_name_of_hidisc_0_2_is_refused(tmp_path: Path) -> None:
    for model, change in ((EvaluateConfig, "opinions=[linear]"), (TrainConfig, "data.ahead=2")):
        with pytest.raises(UserError, match=f"^settings:\n  '{change.partition('=')[0]}' is not a setting"):
            load_config(model, None, [change])
    (tmp_path / "mine.yaml").write_text("data: {ahead: 3}\n")
    with pytest.raises(UserError, match=r"'data\.ahead' is not a setting"):
        load_config(TrainConfig, str(tmp_path / "mine.yaml"))


# Layers in the wrong order


@pytest.mark.parametrize(
    ("recipe", "undone", "ordered"),
    [
        ("laptop+hidisc-patient", "batch.images", "hidisc-patient+laptop"),
        ("weak+laptop+simclr", "batch.images", "simclr+weak+laptop"),
    ],
)
def test_a_method_over_a_layer_that_it_undoes(recipe: str, undone: str, ordered: str) -> None:
    with pytest.raises(UserError) as caught:
        load_config(TrainConfig, recipe)
    assert f"comes after 'laptop' and undoes its {undone}" in str(caught.value)
    assert str(caught.value).endswith(f"Write {ordered}.")
    assert load_config(TrainConfig, ordered).batch.images == 64


def test_layers_and_own_files_may_come_in_any_order(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("batch: {images: 16}\n")
    assert load_config(TrainConfig, f"hidisc-patient+laptop+{tmp_path / 'mine.yaml'}").batch.images == 16
    assert load_config(TrainConfig, "weak+hidisc-patient").views.ops == ("flips",)


def test_a_file_of_another_kind_is_refused_in_few_lines(tmp_path: Path) -> None:
    (tmp_path / "odd.yaml").write_text(f"batch: [{', '.join(['x'] * 1000)}]\nobjective: {'y' * 9000}\n")
    with pytest.raises(UserError) as caught:
        load_config(TrainConfig, str(tmp_path / "odd.yaml"))
    assert len(str(caught.value)) < 2000
    rows = "\n".join(f"  - {{name: r{n}, recipe: simclr, nosuch: 1}}" for n in range(100))
    (tmp_path / "odd.yaml").write_text(f"title: t\nrows:\n{rows}\n")
    with pytest.raises(UserError, match=r"\.\.\. and \d+ more\."):
        load_config(SuiteConfig, str(tmp_path / "odd.yaml"))

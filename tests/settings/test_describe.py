"""`hidisc settings` and `hidisc recipes`: every setting and every recipe can be found, and the page is true."""

import json
from pathlib import Path

import pytest

from hidisc.ground.errors import UserError
from hidisc.settings.config import VERBS, list_recipes, list_settings, load_config
from hidisc.settings.prepare import PrepareConfig
from hidisc.verbs.settings import (
    CONFIGS,
    list_groups,
    list_purposes,
    resolve_recipe,
    show_recipe,
    show_recipes,
    show_settings,
    write_page,
)
from tests.commands import Forks

PAGE = Path(__file__).parents[2] / "docs" / "settings.md"


def settings_of(verb: str, name: str | None = None) -> dict[str, object]:
    return {setting.name: setting for group in list_groups(verb, name) for setting in group.settings}


@pytest.mark.parametrize("verb", CONFIGS)
def test_every_setting_is_listed_with_a_full_sentence(verb: str) -> None:
    listed = settings_of(verb)
    assert set(list_settings(CONFIGS[verb])) <= set(listed)
    for setting in listed.values():
        assert setting.type, setting.name
        assert setting.meaning[0].isupper() or setting.meaning[0] in "`3", setting.name
        assert setting.meaning.endswith("."), setting.name
        assert len(setting.meaning.split()) >= 3, setting.name
        assert not setting.meaning.startswith(("Of ", "As ", "And ", "Their ", "With which")), setting.name


def test_a_setting_has_its_type_default_range_and_what_recipes_make_of_it() -> None:
    assert show_settings("prepare", "grid.size_px") == (
        "grid: Which squares are cut out of a slide.\n"
        "  grid.size_px = 300\n"
        "      whole number at least 8, at most 4,096\n"
        "      Side of a patch in pixels.\n"
        "      recipes: small-regions: 96"
    )
    listed = settings_of("train")
    assert listed["optim.clip"].type == "number above 0, or null"
    assert listed["compute.precision"].type == "32, bf16 or 16"
    assert listed["views.erase_scale"].type == "list of 2: number at least 0, at most 1"
    assert listed["batch.draw"].type == "names, each with a whole number"
    assert listed["batch.images"].recipes == {
        "hidisc-adapter": "1024",
        "laptop": "64",
        "small-cohort": "64",
        "tcga": "448",
    }
    assert settings_of("benchmark")["rows"].type == "list of groups of settings"
    assert "  rows (must be given)\n" in show_settings("benchmark")


def test_a_group_is_found_by_its_name() -> None:
    assert set(settings_of("evaluate", "knn")) == {
        name for name in list_settings(CONFIGS["evaluate"]) if "knn." in name
    }


def test_the_settings_of_every_objective_are_among_those_of_train() -> None:
    text = show_settings("train", "objective")
    assert "objective (name: vicreg)" in text
    assert "objective.temperature = 0.7" in text


@pytest.mark.parametrize(
    ("verb", "name", "sentence"),
    [
        ("trian", None, "'trian' is not a command with settings. Did you mean 'train'?"),
        (
            "doctor!",
            None,
            "'doctor!' is not a command with settings. There are prepare, import, import nifti, import features, ",
        ),
        ("train", "optim.stesp", "'optim.stesp' is not a setting of `hidisc train`. Did you mean 'optim.steps'?"),
    ],
)
def test_slips_of_the_pen(verb: str, name: str | None, sentence: str) -> None:
    with pytest.raises(UserError) as caught:
        show_settings(verb, name)
    assert str(caught.value).startswith(sentence)


def test_the_page_of_settings_is_true() -> None:
    """After a change: `hidisc settings --markdown > docs/settings.md`."""
    assert PAGE.read_text(encoding="utf-8") == write_page()


def test_recipes_are_listed_with_their_purposes() -> None:
    assert {verb: list(names) for verb, names in list_purposes().items()} == {
        verb: list_recipes(verb) for verb in VERBS
    }
    assert all(purpose for names in list_purposes().values() for purpose in names.values())
    assert "  small-regions         prepare small pictures of tissue" in show_recipes("prepare")
    with pytest.raises(UserError, match=r"^'doctor' is not a command with recipes\. There are prepare, train, "):
        show_recipes("doctor")


def test_a_recipe_is_shown_with_all_that_it_results_in() -> None:
    text = show_recipe("prepare", "small-regions")
    assert text.startswith("small-regions\n  Purpose   prepare small pictures of tissue")
    assert "hidisc prepare --recipe small-regions has these settings:" in text
    assert "  size_px: 96\n" in text
    assert resolve_recipe("prepare", "small-regions") == load_config(PrepareConfig, "small-regions").model_dump(
        mode="json"
    )
    assert show_recipe("train", "hidisc-patient+laptop").count("Purpose") == 2


def test_the_commands(forks: Forks, tmp_path: Path) -> None:
    assert "knn.k = 200" in forks.run("settings", "evaluate", "knn.k", folder=tmp_path).result
    listed = forks.run("settings", "evaluate", "knn.k", "--json", folder=tmp_path)
    [setting] = json.loads(listed.result)
    assert (setting["name"], setting["default"], setting["type"]) == ("knn.k", "200", "whole number at least 1")
    assert json.loads(forks.run("recipes", "embed", "tcga", "--json", folder=tmp_path).result)["per_slide"] == 400
    assert "tcga" in json.loads(forks.run("recipes", "--json", folder=tmp_path).result)["embed"]
    bare = forks.run("settings", folder=tmp_path)
    assert bare.code == 2
    assert (
        "name the command whose settings to list: hidisc settings prepare|import|import nifti|import features|"
        in bare.said
    )

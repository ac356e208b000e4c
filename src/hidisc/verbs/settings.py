"""`hidisc settings` and `hidisc recipes`: every setting of a verb, and every recipe, in words."""

import difflib
from collections.abc import Iterable, Sequence
from textwrap import fill
from typing import Any

import yaml

from hidisc.ground.errors import UserError
from hidisc.settings.audit import AuditConfig
from hidisc.settings.benchmark import SuiteConfig
from hidisc.settings.config import VERBS, Config, list_recipes, load_config, read_recipe
from hidisc.settings.describe import Group, Setting, describe_settings
from hidisc.settings.embed import EmbedConfig
from hidisc.settings.evaluate import EvaluateConfig
from hidisc.settings.prepare import FeaturesConfig, ImportConfig, PrepareConfig, VolumesConfig
from hidisc.settings.report import ReportConfig
from hidisc.settings.train import TrainConfig

CONFIGS: dict[str, type[Config]] = {
    "prepare": PrepareConfig,
    "import": ImportConfig,
    "import nifti": VolumesConfig,
    "import features": FeaturesConfig,
    "train": TrainConfig,
    "embed": EmbedConfig,
    "evaluate": EvaluateConfig,
    "audit": AuditConfig,
    "report": ReportConfig,
    "benchmark": SuiteConfig,
}
"""The verbs that have settings."""
_WIDTH, _LONG = 100, 60
_PREFACE = """# Settings

Every setting of every command, as `hidisc settings VERB` prints it. Change one with `--set NAME=VALUE`, several with a
recipe: a YAML file of your own, or one that is shipped (`hidisc recipes` lists them). This page is the output of
`hidisc settings --markdown`.
"""


def list_groups(verb: str, name: str | None = None) -> list[Group]:
    """The settings of a verb, group by group; `name`: only that setting, or that group."""
    if verb not in CONFIGS:
        raise UserError(f"{verb!r} is not a command with settings. {_suggest(verb, CONFIGS)}")
    groups = describe_settings(CONFIGS[verb], verb if verb in VERBS else None)
    if verb == "train":
        groups += _describe_objectives()
    if name is None:
        return groups
    chosen = [_keep(group, name) for group in groups]
    if not any(group.settings for group in chosen):
        known = [setting.name for group in groups for setting in group.settings]
        raise UserError(f"{name!r} is not a setting of `hidisc {verb}`. {_suggest(name, known)}")
    return [group for group in chosen if group.settings]


def show_settings(verb: str, name: str | None = None) -> str:
    """The settings of a verb as text for a terminal."""
    parts = []
    for group in list_groups(verb, name):
        head = f"{group.name or f'hidisc {verb}'}: {group.meaning}"
        parts.append("\n".join([head, *(_show_setting(setting) for setting in group.settings)]))
    return "\n\n".join(parts)


def write_page() -> str:
    """All settings of all verbs as a page of Markdown: docs/settings.md."""
    parts = [_PREFACE]
    for verb in CONFIGS:
        parts.append(f"## hidisc {verb}\n")
        for group in list_groups(verb):
            parts.append(f"**{group.name or 'In no group'}**: {group.meaning}\n")
            parts += ["| setting | default | type | meaning | recipes that change it |", "| --- " * 5 + "|"]
            parts += [_show_row(setting) for setting in group.settings]
            parts.append("")
    return "\n".join(parts)


def list_purposes(verb: str | None = None) -> dict[str, dict[str, str]]:
    """What every recipe shipped for a verb, or for all, is for."""
    verbs = [_check_verb(verb)] if verb else VERBS
    return {
        verb: {name: read_recipe(name, verb).header.get("Purpose", "") for name in list_recipes(verb)} for verb in verbs
    }


def show_recipes(verb: str | None = None) -> str:
    """The same as text for a terminal."""
    return "\n\n".join(
        "\n".join([f"hidisc {verb}", *(_wrap(purpose, 24, f"  {name:<22}") for name, purpose in purposes.items())])
        for verb, purposes in list_purposes(verb).items()
    )


def resolve_recipe(verb: str, name: str) -> dict[str, Any]:
    """Every setting that a recipe (or several: `a+b`) results in."""
    return load_config(CONFIGS[_check_verb(verb)], name).model_dump(mode="json")


def show_recipe(verb: str, name: str) -> str:
    """What a recipe is for, and every setting it results in, as text for a terminal."""
    settings = yaml.safe_dump(resolve_recipe(verb, name), sort_keys=False, allow_unicode=True)
    heads = []
    for layer in name.split("+"):
        header = read_recipe(layer.strip(), verb).header
        heads.append("\n".join([layer, *(_wrap(text, 12, f"  {key:<10}") for key, text in header.items())]))
    return "\n\n".join([*heads, f"hidisc {verb} --recipe {name} has these settings:", settings.rstrip()])


def _describe_objectives() -> list[Group]:
    """The settings of every objective, which are files of `objectives/`."""
    from hidisc.objectives.objective import list_objectives, load_settings

    groups = []
    for name in list_objectives():
        settings = type(load_settings({"name": name}))
        [group] = describe_settings(settings, prefix="objective.")
        own = tuple(setting for setting in group.settings if setting.name != "objective.name")
        groups.append(Group(f"objective (name: {name})", group.meaning, own))
    return groups


def _keep(group: Group, name: str) -> Group:
    """The settings of a group that are called so, or lie below that name."""
    kept = [one for one in group.settings if one.name == name or one.name.startswith(f"{name}.")]
    return Group(group.name, group.meaning, tuple(kept))


def _show_setting(setting: Setting) -> str:
    default = f" = {setting.default}" if setting.default else " (must be given)"
    lines = [f"  {setting.name}{default}", f"      {setting.type}", _wrap(setting.meaning, 6)]
    if setting.recipes:
        lines.append(_wrap(f"recipes: {_list_recipes(setting, '')}", 6))
    return "\n".join(lines)


def _show_row(setting: Setting) -> str:
    default = f"`{setting.default}`" if setting.default else ""
    cells = (f"`{setting.name}`", default, setting.type, setting.meaning, _list_recipes(setting, "`"))
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _list_recipes(setting: Setting, quote: str) -> str:
    """The recipes that change a setting, with the value each gives it where that is short."""
    return "; ".join(
        f"{recipe}: {quote}{value}{quote}" if len(value) <= _LONG else recipe
        for recipe, value in setting.recipes.items()
    )


def _wrap(text: str, left: int, first: str = "") -> str:
    """Text in lines of a terminal's width, indented; `first` stands before the first line."""
    indent = " " * left
    return fill(text, _WIDTH, initial_indent=first or indent, subsequent_indent=indent, break_on_hyphens=False)


def _check_verb(verb: str) -> str:
    if verb not in VERBS:
        raise UserError(f"{verb!r} is not a command with recipes. {_suggest(verb, VERBS)}")
    return verb


def _suggest(name: str, known: Iterable[str]) -> str:
    """The nearest of the names there are, or all of them."""
    names: Sequence[str] = list(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    return f"Did you mean {close[0]!r}?" if close else f"There are {', '.join(names)}."

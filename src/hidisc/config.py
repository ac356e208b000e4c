"""How settings are read: closed models, recipes (YAML) over their defaults, `--set a.b=c` over both.

A setting that does not exist is refused with the nearest name that does. The settings themselves are in `settings/`.
"""

import difflib
from collections.abc import Collection, Mapping, Sequence
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from hidisc.errors import UserError


class Closed(BaseModel):
    """A frozen model that refuses unknown keys and documents each field by the string under it."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, allow_inf_nan=False)
    recipes: ClassVar[str] = "prepare"


class Pace:
    """Marks a setting that changes how the work is done, never what comes out; it may differ when work goes on."""


class TakenOver:
    """Marks a setting whose change an artefact takes over: what depends on it is made again."""


Config = TypeVar("Config", bound=Closed)
SHELVES = ("prepare", "train", "embed", "evaluate", "benchmark")
"""The folders of `recipes/`, a verb each."""
_WHOLE = ("draw", "weights", "fractions")
"""Settings that are a list of names with numbers: a recipe replaces them, it does not add to them."""


def load_config(model: type[Config], recipe: str | None = None, changes: Sequence[str] = ()) -> Config:
    """Defaults, then the recipes (shipped names or YAML files, `a+b`: b over a), then `a.b=c` changes."""
    settings: dict[str, Any] = {}
    for name in _layers(recipe):
        _merge(settings, read_recipe(name, model.recipes))
    for change in changes:
        name, equals, value = change.partition("=")
        if not equals:
            raise UserError(f"--set {change!r} has no '='. Write it as --set {name.strip() or 'a.b'}=VALUE.")
        _put(settings, name.strip(), _parse(value))
    return validate(model, settings, f"recipe {recipe!r}" if recipe and not changes else "settings")


def validate(model: type[Config], settings: Mapping[str, Any], source: str) -> Config:
    """The settings as a config; what is wrong with them is said, all at once, under the name of their `source`."""
    try:
        return model.model_validate(settings)
    except ValidationError as error:
        raise UserError("\n  ".join([f"{source}:", *_explain(error, model)])) from error


def read_recipe(name: str, kind: str) -> dict[str, Any]:
    """The settings of a recipe shipped with hidisc for a verb, or of a YAML file of the user's."""
    if name in list_recipes(kind):
        text = (_shelf(kind) / f"{name}.yaml").read_bytes()
    elif Path(name).is_file():
        text = Path(name).read_bytes()
    else:
        other = [verb for verb in SHELVES if name in list_recipes(verb)]
        hint = f" It is a recipe of `hidisc {other[0]}`." if other else ""
        valid = ", ".join(list_recipes(kind))
        raise UserError(
            f"recipe {name!r} is neither a file nor one of {valid}. Give one of these or a YAML file.{hint}"
        )
    try:
        settings = yaml.safe_load(text.decode("utf-8")) or {}
    except UnicodeDecodeError as error:
        raise UserError(f"recipe {name!r} is not UTF-8 text. Save it as UTF-8.") from error
    except yaml.YAMLError as error:
        raise UserError(f"recipe {name!r} is not valid YAML: {error}") from error
    if not isinstance(settings, dict):
        raise UserError(f"recipe {name!r} is not a list of settings. Write `grid:` and `  mpp: 0.5` below it.")
    return settings


def list_recipes(kind: str) -> list[str]:
    """Names of the recipes shipped with hidisc for a verb."""
    return sorted(Path(file.name).stem for file in _shelf(kind).iterdir() if file.name.endswith(".yaml"))


def _shelf(kind: str) -> Traversable:
    return resources.files("hidisc.recipes") / kind


def _layers(recipe: str | None) -> list[str]:
    """`a+b` as two recipes, unless there is a file of that name."""
    if not recipe:
        return []
    return [recipe] if Path(recipe).is_file() else [name.strip() for name in recipe.split("+")]


def _merge(settings: dict[str, Any], over: Mapping[str, Any]) -> None:
    """Put one recipe's settings over another's, group by group."""
    for key, value in over.items():
        below = settings.get(key)
        if isinstance(below, dict) and isinstance(value, Mapping) and key not in _WHOLE:
            _merge(below, value)
        else:
            settings[key] = value


def to_yaml(config: BaseModel) -> str:
    """A config with every value spelled out."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def differences(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Settings that differ between two dumped configs, as `a.b: 1 -> 2`."""
    found = []
    for key in [*old, *(key for key in new if key not in old)]:
        a, b = old.get(key), new.get(key)
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            found += differences(a, b, f"{prefix}{key}.")
        elif a != b:
            found.append(f"{prefix}{key}: {a} -> {b}")
    return found


def keep_facts(model: type[BaseModel], settings: Mapping[str, Any], taken_over: Collection[str] = ()) -> dict[str, Any]:
    """The dumped settings of a config that an artefact's content depends on.

    Those marked `Pace` or `TakenOver`, and those named in `taken_over`, are left out.
    """
    kept = {}
    for name, info in model.model_fields.items():
        if name in taken_over or any(isinstance(mark, Pace | TakenOver) for mark in info.metadata):
            continue
        value, kind = settings.get(name), info.annotation
        is_group = isinstance(kind, type) and issubclass(kind, BaseModel) and isinstance(value, Mapping)
        kept[name] = keep_facts(kind, value) if is_group else value  # type: ignore[arg-type]
    return kept


def _parse(value: str) -> Any:
    try:
        return yaml.safe_load(value)
    except yaml.YAMLError:
        return value


def _put(settings: dict[str, Any], name: str, value: Any) -> None:
    *parents, last = name.split(".")
    for parent in parents:
        below = settings[parent] = {} if settings.get(parent) is None else settings[parent]
        if not isinstance(below, dict):
            raise UserError(f"--set {name}: {parent!r} is a single value, not a group of settings.")
        settings = below
    settings[last] = value


def _explain(error: ValidationError, model: type[BaseModel]) -> list[str]:
    """Each pydantic complaint as a sentence that names the setting, its value and what is valid."""
    lines = []
    for item in error.errors():
        name = ".".join(str(part) for part in item["loc"]) or "settings"
        if item["type"] == "extra_forbidden":
            close = difflib.get_close_matches(name, setting_names(model), n=1, cutoff=0.5)
            meant = f" Did you mean {close[0]!r}?" if close else f" Settings are: {', '.join(setting_names(model))}."
            lines.append(f"{name!r} is not a setting.{meant}")
        else:
            said = item["msg"].removeprefix("Value error, ")
            given = f"{name} = {item['input']!r}: " if item["loc"] else ""  # else the sentence names them
            lines.append(f"{given}{said[0].lower()}{said[1:]}.")
    return lines


def setting_names(model: type[BaseModel], prefix: str = "") -> list[str]:
    """Every setting of a config by its dotted name."""
    names = []
    for name, info in model.model_fields.items():
        kind = info.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            names += setting_names(kind, f"{prefix}{name}.")
        else:
            names.append(prefix + name)
    return names

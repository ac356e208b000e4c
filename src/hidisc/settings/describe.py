"""Settings in words: name, type, default, range, meaning, and the values that recipes give them."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from hidisc.settings.config import Config, find_group, flatten, list_recipes, read_recipe

_WORDS = {bool: "true or false", int: "whole number", float: "number", str: "text", Any: "value"}
_BOUNDS = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}
"""Words for the bounds of a setting, by their names in pydantic."""


@dataclass(frozen=True)
class Setting:
    """One setting as people read it."""

    name: str
    """Dotted, as `--set` takes it."""
    type: str
    """In words, with its range: `number above 0, at most 100`."""
    default: str
    """As YAML writes it; empty where it must be given."""
    meaning: str
    recipes: dict[str, str]
    """Recipes that give it another value than the default, and these values, as YAML."""


@dataclass(frozen=True)
class Group:
    """Settings that belong together."""

    name: str
    """Empty for the settings that are in no group."""
    meaning: str
    settings: tuple[Setting, ...]


def describe_settings(model: type[BaseModel], verb: str | None = None, prefix: str = "") -> list[Group]:
    """Every setting of a config, group by group in the order they are declared; `verb`: whose recipes set them."""
    recipes = {name: flatten(read_recipe(name, verb).settings) for name in list_recipes(verb)} if verb else {}
    defaults = model.model_construct()
    return [group for group in _walk(model, defaults, prefix, recipes) if group.settings]


def _walk(
    model: type[BaseModel], defaults: BaseModel | None, prefix: str, recipes: Mapping[str, Mapping[str, Any]]
) -> Iterator[Group]:
    """The settings of a config that are in no group of it, then its groups."""
    own, groups = [], []
    for attribute, info in model.model_fields.items():
        name, default = info.alias or attribute, getattr(defaults, attribute, ...)
        group = find_group(info.annotation)
        if group is not None:
            below = default if isinstance(default, BaseModel) else None
            groups += list(_walk(group, below, f"{prefix}{name}.", recipes))
        else:
            own.append(_describe(f"{prefix}{name}", info, default, recipes))
    meaning = (model.__doc__ or "").strip().splitlines()[0]
    yield Group(prefix.removesuffix("."), meaning, tuple(own))
    yield from groups


def _describe(name: str, info: FieldInfo, default: Any, recipes: Mapping[str, Mapping[str, Any]]) -> Setting:
    shown = "" if default is ... else _show(default)
    given = {recipe: _show(values[name]) for recipe, values in recipes.items() if name in values}
    given = {recipe: value for recipe, value in given.items() if value != shown}
    return Setting(name, _name_type(info.annotation, info.metadata), shown, info.description or "", given)


def _name_type(annotation: Any, marks: Iterable[Any] = ()) -> str:
    """An annotation in words, with the range that its marks give it: `number above 0, at most 1, or null`."""
    origin, args = get_origin(annotation), get_args(annotation)
    if origin in (Union, UnionType):
        either = " or ".join(_name_type(arg, marks) for arg in args if arg is not NoneType)
        return f"{either}, or null" if NoneType in args else either
    if origin is Annotated:
        return _name_type(args[0], [mark for field in args[1:] for mark in getattr(field, "metadata", [field])])
    if origin is Literal:
        return " or ".join(filter(None, (", ".join(map(str, args[:-1])), str(args[-1]))))
    if origin is tuple and args[-1] is not ...:
        return f"list of {len(args)}: {_name_type(args[0])}"
    if origin is tuple:
        return "list of groups of settings" if find_group(args[0]) else f"list: {_name_type(args[0])}"
    if origin is dict:
        return f"names, each with a {_name_type(args[1])}"
    bounds = [
        f"{word} {getattr(mark, end):,g}" for mark in marks for end, word in _BOUNDS.items() if hasattr(mark, end)
    ]
    return " ".join([_WORDS[annotation], ", ".join(bounds)]).strip()


def _show(value: Any) -> str:
    """A value as YAML on one line, as it is typed after `--set NAME=`."""
    plain = value.model_dump(mode="json") if isinstance(value, Config) else value
    if isinstance(plain, tuple):
        plain = [one.model_dump(mode="json") if isinstance(one, BaseModel) else one for one in plain]
    text = yaml.safe_dump(plain, default_flow_style=True, width=10_000, allow_unicode=True).strip()
    return text.removesuffix("...").strip()

"""Config: a group of settings, each documented where it is declared, and what an artefact's content depends on."""

from collections.abc import Callable, Collection, Mapping
from typing import Any, ClassVar

import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import to_jsonable_python

from hidisc.ground.records import Record

Say = Callable[[str], None]


_EMPTY: tuple[Any, ...] = (None, {}, [])


class Config(Record):
    """A group of settings; the string under each says what it means."""

    recipes: ClassVar[str] = "prepare"
    """The folder of `recipes/` with recipes for it."""
    renamed: ClassVar[Mapping[str, str]] = {}
    """Old names of settings, which are still understood in this version, and their new ones."""


class Pace:
    """Marks a setting that changes how the work is done, never what comes out; it may differ when work goes on."""


class TakenOver:
    """Marks a setting whose change an artefact takes over: what depends on it is made again."""


def to_yaml(config: BaseModel) -> str:
    """A config with every value spelled out."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def list_settings(model: type[BaseModel], prefix: str = "") -> list[str]:
    """Every setting of a config by its dotted name."""
    names = []
    for name, info in list_fields(model).items():
        group = find_group(info.annotation)
        names += list_settings(group, f"{prefix}{name}.") if group else [prefix + name]
    return names


def list_fields(model: type[BaseModel]) -> dict[str, FieldInfo]:
    """The fields of a config by the names that people write: `global` is none that Python allows."""
    return {info.alias or name: info for name, info in model.model_fields.items()}


def find_group(annotation: Any) -> type[BaseModel] | None:
    """The config that a setting is, None where it is a single value."""
    return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None


def use_new_names(
    model: type[BaseModel], settings: Mapping[str, Any], say: Say = lambda _: None, prefix: str = ""
) -> dict[str, Any]:
    """Settings with those that were renamed under their new names; says which."""
    renamed: Mapping[str, str] = getattr(model, "renamed", {})
    found = {}
    for name, value in settings.items():
        new = renamed.get(name, name)
        if new != name:
            say(f"note: {prefix}{name} is called {prefix}{new} now; the old name is not understood after this version")
        info = list_fields(model).get(new)
        group = find_group(info.annotation) if info else None
        is_group = group is not None and isinstance(value, Mapping)
        found[new] = use_new_names(group, value, say, f"{prefix}{name}.") if is_group and group else value
    return found


def flatten(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """A recipe's settings by dotted name; what is itself a list of names stands under its own name as well."""
    found: dict[str, Any] = {}
    for key, value in settings.items():
        found[prefix + key] = value
        if isinstance(value, Mapping):
            found |= flatten(value, f"{prefix}{key}.")
    return found


def differences(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Settings that differ between two dumped configs, as `a.b: 1 -> 2`; one that is absent is an empty one."""
    found = []
    for key in [*old, *(key for key in new if key not in old)]:
        a, b = old.get(key), new.get(key)
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            found += differences(a, b, f"{prefix}{key}.")
        elif a != b and not (a in _EMPTY and b in _EMPTY):
            found.append(f"{prefix}{key}: {a} -> {b}")
    return found


def keep_facts(model: type[BaseModel], settings: Mapping[str, Any], taken_over: Collection[str] = ()) -> dict[str, Any]:
    """The dumped settings of a config that an artefact's content depends on.

    Those marked `Pace` or `TakenOver`, and those named in `taken_over`, are left out. A setting that was not there yet
    when they were dumped has its default, which is what was done before there was a choice.
    """
    settings, kept = use_new_names(model, settings), {}
    for name, info in list_fields(model).items():
        if name in taken_over or any(isinstance(mark, Pace | TakenOver) for mark in info.metadata):
            continue
        default = None if info.is_required() else to_jsonable_python(info.default)
        value, group = settings.get(name, default), find_group(info.annotation)
        kept[name] = keep_facts(group, value) if group and isinstance(value, Mapping) else value
    return kept

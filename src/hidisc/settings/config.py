"""Groups of settings, and how defaults, recipes and `--set` are combined."""

import difflib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import yaml
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import to_jsonable_python

from hidisc.ground.errors import UserError
from hidisc.ground.files import Record

_EMPTY: tuple[Any, ...] = (None, {}, [])


class Config(Record):
    """A group of settings; the string under each says what it means."""

    recipes: ClassVar[str] = "prepare"
    """The folder of `recipes/` with recipes for it."""


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
    kept = {}
    for name, info in list_fields(model).items():
        if name in taken_over or any(isinstance(mark, Pace | TakenOver) for mark in info.metadata):
            continue
        default = None if info.is_required() else to_jsonable_python(info.default)
        value, group = settings.get(name, default), find_group(info.annotation)
        kept[name] = keep_facts(group, value) if group and isinstance(value, Mapping) else value
    return kept


AnyConfig = TypeVar("AnyConfig", bound=Config)
VERBS = ("prepare", "train", "embed", "evaluate", "benchmark")
"""The folders of `recipes/`: the commands that have some."""
_SHOWN, _SHOWN_CHARACTERS = 20, 300
"""Complaints about settings that are said in full, and characters of a value."""
_WHOLE = ("draw", "weights", "fractions")
"""Settings that are a list of names with numbers: a recipe replaces them, it does not add to them."""


@dataclass(frozen=True)
class Recipe:
    """Settings for a purpose: a YAML file shipped with hidisc, or one of the user's."""

    name: str
    settings: dict[str, Any]
    header: dict[str, str]
    """What the comment at its top says: Purpose, Command, Machine and Paper; a user's own file may have none."""

    @property
    def is_layer(self) -> bool:
        """Whether it is meant to be put over another recipe, as `laptop` in `hidisc-patient+laptop`."""
        return self.header.get("Purpose", "").startswith("over ")


def load_config(model: type[AnyConfig], recipe: str | None = None, changes: Sequence[str] = ()) -> AnyConfig:
    """Defaults, then the recipes (shipped names or YAML files, `a+b`: b over a), then `a.b=c` changes."""
    settings: dict[str, Any] = {}
    layers = [read_recipe(name, model.recipes) for name in _split_layers(recipe)]
    _refuse_undone(layers)
    for layer in layers:
        _merge(settings, layer.settings)
    for change in changes:
        name, equals, value = change.partition("=")
        if not equals:
            raise UserError(f"--set {change!r} has no '='. Write it as --set {name.strip() or 'a.b'}=VALUE.")
        _put(settings, name.strip(), _parse(value))
    return validate(model, settings, f"recipe {recipe!r}" if recipe and not changes else "settings")


def validate(model: type[AnyConfig], settings: Mapping[str, Any], source: str) -> AnyConfig:
    """The settings as a config; what is wrong with them is said, all at once, under the name of their `source`."""
    try:
        return model.model_validate(settings)
    except ValidationError as error:
        raise UserError("\n  ".join([f"{source}:", *_explain(error, model)])) from error


def list_recipes(verb: str) -> list[str]:
    """Names of the recipes shipped with hidisc for a verb."""
    return sorted(Path(file.name).stem for file in _folder(verb).iterdir() if file.name.endswith(".yaml"))


def read_recipe(name: str, verb: str) -> Recipe:
    """A recipe shipped with hidisc for a verb, or a YAML file of the user's."""
    if name in list_recipes(verb):
        data = (_folder(verb) / f"{name}.yaml").read_bytes()
    elif Path(name).is_file():
        data = Path(name).read_bytes()
    else:
        raise UserError(_explain_unknown(name, verb))
    try:
        text = data.decode("utf-8")
        settings = yaml.safe_load(text) or {}
    except UnicodeDecodeError as error:
        raise UserError(f"recipe {name!r} is not UTF-8 text. Save it as UTF-8.") from error
    except yaml.YAMLError as error:
        raise UserError(f"recipe {name!r} is not valid YAML: {error}") from error
    if not isinstance(settings, dict):
        raise UserError(f"recipe {name!r} is not a list of settings. Write `grid:` and `  mpp: 0.5` below it.")
    return Recipe(name, settings, _read_header(text))


def _folder(verb: str) -> Traversable:
    return resources.files("hidisc.settings") / "recipes" / verb


def _read_header(text: str) -> dict[str, str]:
    """The comment at the top, `# Purpose:  ...`, whose lines may go on."""
    header: dict[str, str] = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            break
        key, colon, rest = line.removeprefix("#").strip().partition(":")
        if colon and key.istitle() and key.isalpha():
            header[key] = rest.strip()
        elif header:
            header[next(reversed(header))] += f" {line.removeprefix('#').strip()}"
    return header


def _explain_unknown(name: str, verb: str) -> str:
    known = list_recipes(verb)
    close = difflib.get_close_matches(name, known, n=1)
    meant = f" Did you mean {close[0]!r}?" if close else ""
    other = [f" It is a recipe of `hidisc {verb}`." for verb in VERBS if name in list_recipes(verb)][:1]
    return (
        f"recipe {name!r} is neither a file nor one of {', '.join(known)}.{meant} Give one of these or a YAML file."
        f"{''.join(other)}"
    )


def _split_layers(recipe: str | None) -> list[str]:
    """`a+b` as two recipes, unless there is a file of that name."""
    if not recipe:
        return []
    return [recipe] if Path(recipe).is_file() else [name.strip() for name in recipe.split("+")]


def _refuse_undone(layers: Sequence[Recipe]) -> None:
    """Refuse an order in which a method undoes what was put there to change it: `laptop+hidisc-patient`."""
    for place, upper in enumerate(layers):
        for lower in layers[:place]:
            undone = _find_shared(lower, upper)
            if undone and lower.is_layer and upper.header and not upper.is_layer:
                ordered = sorted(layers, key=lambda layer: layer.is_layer)
                raise UserError(
                    f"in {'+'.join(layer.name for layer in layers)}, {upper.name!r} comes after {lower.name!r} and "
                    f"undoes its {', '.join(undone)}. Write {'+'.join(layer.name for layer in ordered)}."
                )


def _find_shared(lower: Recipe, upper: Recipe) -> list[str]:
    """Names of the settings to which both give values that differ."""
    before, after = flatten(lower.settings), flatten(upper.settings)
    both = [name for name in before if name in after and before[name] != after[name]]
    return sorted(name for name in both if not (isinstance(before[name], dict) and isinstance(after[name], dict)))


def _merge(settings: dict[str, Any], over: Mapping[str, Any]) -> None:
    """Put one recipe's settings over another's, group by group."""
    for key, value in over.items():
        below = settings.get(key)
        if isinstance(below, dict) and isinstance(value, Mapping) and key not in _WHOLE:
            _merge(below, value)
        else:
            settings[key] = value


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
    lines: list[str] = []
    complaints, known = error.errors(), list_settings(model)
    for complaint in complaints[:_SHOWN]:
        name = ".".join(str(part) for part in complaint["loc"]) or "settings"
        if complaint["type"] == "extra_forbidden":
            close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
            listed = "" if any("Settings are:" in line for line in lines) else f" Settings are: {', '.join(known)}."
            meant = f" Did you mean {close[0]!r}?" if close else listed
            lines.append(f"{name!r} is not a setting.{meant}")
        else:
            said = complaint["msg"].removeprefix("Value error, ")
            value = repr(complaint["input"])
            value = value if len(value) <= _SHOWN_CHARACTERS else f"{value[:_SHOWN_CHARACTERS]}..."
            given = f"{name} = {value}: " if complaint["loc"] else ""  # else the sentence names them
            lines.append(f"{given}{said[0].lower()}{said[1:]}.")
    if len(complaints) > _SHOWN:
        lines.append(f"... and {len(complaints) - _SHOWN} more.")
    return lines

"""How a command is declared and its result printed: the options that several commands share, each in one place."""

import inspect
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_type_hints

import typer

from hidisc.ground.errors import UserError, no_such_path
from hidisc.ground.progress import Progress, Result

if TYPE_CHECKING:
    from hidisc.settings.config import Config

    AnyConfig = TypeVar("AnyConfig", bound=Config)

app = typer.Typer(
    name="hidisc",
    help="Self-supervised learning on the patient > slide > patch hierarchy of biomedical microscopy.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def refuse_missing(path: Any) -> Any:
    """Refuse a path, or one of several, at which there is nothing."""
    for each in path if isinstance(path, list) else [path]:
        if each is not None and not each.exists():
            raise no_such_path(each)
    return path


def existing(help: str) -> Any:
    """An argument that is a path, or several, at which something must exist."""
    return typer.Argument(help=help, callback=refuse_missing)


def option(help: str, *name: str, **more: Any) -> Any:
    """An option; it is called as its parameter where no name is given."""
    return typer.Option(*name, help=help, **more)


def existing_option(help: str) -> Any:
    """An option that is a path at which something must exist."""
    return option(help, callback=refuse_missing)


Out = Annotated[Path, option("Folder to write; an unfinished one is resumed.")]
RecipeOption = Annotated[str | None, option("A shipped recipe or a YAML file.")]
SetOption = Annotated[list[str] | None, option("Change one setting: NAME=VALUE.", "--set")]
SeedOption = Annotated[int | None, option("Seed of everything random.")]
Json = Annotated[bool, option("Print the result as JSON.", "--json")]
WorkersOption = Annotated[int | None, option("Processes here; default one per core, 0 none.", min=0)]
SchedulerOption = Annotated[str | None, option("Address of a running Dask scheduler.")]
FoldsOption = Annotated[
    int | None, option("Cross-validation: every patient of the cohort is a test patient once.", min=2)
]
Device = Annotated[str, option("auto, cpu, cuda or mps.")]
Store = Annotated[Path, existing("A patch store, made by `hidisc prepare` or `hidisc import`.")]


@dataclass(frozen=True)
class ChangeOptions:
    """The options `--set` and `--seed`, which change the settings of a command."""

    recipe: str | None = None
    changes: SetOption = None
    seed: SeedOption = None

    def load(self, model: "type[AnyConfig]", **flags: Any) -> "AnyConfig":
        """The settings; `flags` are options that stand for a setting, None where they were not given."""
        return build_config(model, self.recipe, self.changes, seed=self.seed, **flags)


@dataclass(frozen=True)
class SettingsOptions(ChangeOptions):
    """The options `--recipe`, `--set` and `--seed`, from which the settings of a command are made."""

    recipe: RecipeOption = None


@dataclass(frozen=True)
class TrainOptions(ChangeOptions):
    """The same for `hidisc train`, whose help names some recipes."""

    recipe: Annotated[str | None, option("hidisc-patient, simclr, ...; a+b puts b over a: byol+weak.")] = None


@dataclass(frozen=True)
class DeviceOptions:
    """Where a network computes."""

    device: Device = "auto"
    devices: Annotated[str, option("How many, or auto: all there are.")] = "auto"
    nodes: Annotated[int, option("Machines; start the command on each.", min=1)] = 1


@dataclass(frozen=True)
class WorkerOptions:
    """Who reads slides."""

    workers: WorkersOption = None
    scheduler: SchedulerOption = None


def verb(name: str, example: str, settings: str = "") -> Callable[[Callable[..., Result | None]], None]:
    """Make a function a command that prints its result, as a sentence or with `--json`.

    A parameter whose type is a class of options, such as `SettingsOptions`, stands for all options of that class. The
    help ends with an example, and with where the settings of `settings` are listed.
    """
    listed = f"\n\n`hidisc settings {settings}` lists every setting with its default and its range." if settings else ""

    def register(function: Callable[..., Result | None]) -> None:
        given = inspect.signature(function).parameters
        groups: dict[str, Any] = {key: each.annotation for key, each in given.items() if is_dataclass(each.annotation)}

        def command(**options: Any) -> None:
            as_json = options["as_json"] if "as_json" in given else options.pop("as_json")
            for key, group in groups.items():
                taken = [option.name for option in _list_options(group)]
                options[key] = group(**{option: options.pop(option) for option in taken})
            print_result(function(**options), as_json)

        options = [each for key in given for each in (_list_options(groups[key]) if key in groups else [given[key]])]
        if "as_json" not in given:
            options.append(inspect.Parameter("as_json", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Json))
        keyword_only = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in options]
        command.__signature__ = inspect.Signature(keyword_only)  # type: ignore[attr-defined]  # typer reads it
        command.__doc__ = function.__doc__
        app.command(name, epilog=f"Example: hidisc {name} {example}{listed}")(command)

    return register


def _list_options(group: Any) -> list[inspect.Parameter]:
    """The options of a class of options, as parameters; a field that is not annotated as an option is none."""
    hints = get_type_hints(group, include_extras=True)
    return [
        inspect.Parameter(each.name, inspect.Parameter.KEYWORD_ONLY, default=each.default, annotation=hints[each.name])
        for each in fields(group)
        if hasattr(hints[each.name], "__metadata__")
    ]


_OTHER_WORDS = {
    "epochs": "optim.steps", "iterations": "optim.steps", "max_steps": "optim.steps", "lr": "optim.learning_rate",
    "batch_size": "batch.images", "batch": "batch.images", "num_workers": "data.threads", "patch_size": "grid.size_px",
    "temperature": "objective.temperature", "weights": "model.weights", "model": "model.backbone",
}  # fmt: skip
"""What other programs call our settings."""


def refuse_settings_as_options(words: Sequence[str]) -> None:
    """Say how a setting is given that was written as an option, such as `--epochs 100`."""
    verb_name = next((word for word in words if not word.startswith("-")), "")
    command = next((each for each in app.registered_commands if each.name == verb_name), None)
    if command is None or command.callback is None:
        return
    known = {*inspect.signature(command.callback).parameters, "help", "set", "json", "store", "debug"}
    options = [word.partition("=")[0].removeprefix("--").replace("-", "_") for word in words if word.startswith("--")]
    unknown = [name for name in options if name not in known]
    if not unknown:
        return
    from hidisc.verbs.settings import CONFIGS, list_groups

    if verb_name not in CONFIGS:
        return
    settings = [setting.name for group in list_groups(verb_name) for setting in group.settings]
    for given in unknown:
        meant = [name for name in settings if given in (name, name.rpartition(".")[2])]
        meant = meant or [name for name in settings if name == _OTHER_WORDS.get(given)]
        if meant:
            steps = " A step is a batch, not a pass over all patches." if meant[0] == "optim.steps" else ""
            raise UserError(
                f"`hidisc {verb_name}` has no option --{given.replace('_', '-')}; it is the setting "
                f"{' or '.join(meant[:3])}: --set {meant[0]}=VALUE.{steps}"
            )


def print_result(result: Result | None, as_json: bool) -> None:
    """Print a result: a sentence for people or a record for programs; exit with 1 if anything failed.

    None is the result of a process that leaves it to another one.
    """
    if result is None:
        return
    for note in result.notes:
        say(note)
    if as_json and result.record is not None:
        typer.echo(json.dumps(result.record))
    elif result.sentence:
        typer.echo(result.sentence)
    if result.failed:
        raise typer.Exit(1)


def build_config(model: "type[AnyConfig]", recipe: str | None, changes: list[str] | None, **flags: Any) -> "AnyConfig":
    """The settings of a command; `flags` are options that stand for a setting, None where they were not given."""
    from hidisc.settings.config import load_config

    given = [f"{name}={value}" for name, value in flags.items() if value is not None]
    return load_config(model, recipe, [*(changes or []), *given])


def say(text: str) -> None:
    """Write a sentence to stderr."""
    sys.stderr.write(f"{text}\n")  # typer.echo would write past a progress bar, into its line
    sys.stderr.flush()


class Said(Progress):
    """Progress that says its sentences on stderr."""

    def say(self, sentence: str) -> None:
        """Say a sentence."""
        say(sentence)

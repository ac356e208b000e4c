"""What the artefact that a verb takes calls its levels: its messages, errors and result are in these words."""

import inspect
import json
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import ParamSpec, TypeVar

from hidisc.ground.files import AnyPath
from hidisc.settings.level_names import USUAL, LevelNames

_FILES = ("store.json", "run.json", "embeddings.json", "scores.json")
"""What stores, runs, embeddings and scores say of themselves; it is read without the libraries that these need."""
Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def find_names(artefact: AnyPath | None) -> LevelNames:
    """What a store, run, embeddings or scores call their levels; the usual names where that cannot be read."""
    for file in _FILES if artefact is not None else ():
        try:
            return LevelNames.model_validate(json.loads((Path(artefact or "") / file).read_bytes())["level_names"])
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return USUAL


def speaks(verb: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """A verb whose messages (`say`) and errors are in the words of the artefact that is its first argument."""
    signature = inspect.signature(verb)

    @wraps(verb)
    def spoken(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        bound = signature.bind(*args, **kwargs)
        names = find_names(next(iter(bound.arguments.values())))
        with names.spoken(bound.arguments.get("say", lambda _: None)) as say:
            if "say" in bound.arguments:
                bound.arguments["say"] = say
            return verb(*bound.args, **bound.kwargs)

    return spoken

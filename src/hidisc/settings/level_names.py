"""LevelNames: what people call the patients, slides and patches of a store.

Progress, the results of commands, headings, tables and captions use these words. The code, the columns of files, the
settings, notes and errors always say patient, slide and patch.
"""

import json
import re
from pathlib import Path

from pydantic import field_validator, model_validator

from hidisc.ground.files import AnyPath
from hidisc.ground.text import count, plural
from hidisc.settings.config import Config

LEVELS = ("patient", "slide", "patch")
_TAKEN = {"class", "label", "level", "site", "split", "store"}
"""Words that mean something else on the same pages."""


class LevelNames(Config):
    """What the units of a store are called in results, headings, tables and captions."""

    patient: str = "patient"
    """Word for the coarsest unit, which is held out as a whole, such as patient, animal or compound."""
    slide: str = "slide"
    """Word for what a patient has several of, such as slide, scan, eye or well."""
    patch: str = "patch"
    """Word for a single image, such as patch, slice, picture or field."""

    @field_validator(*LEVELS)
    @classmethod
    def _is_a_noun(cls, name: str) -> str:
        if not re.fullmatch(r"[^\W\d_]+(?:[ -][^\W\d_]+){0,2}", name) or len(name) > 30 or name != name.lower():
            raise ValueError(f"{name!r} is not a noun in small letters, in the singular, such as scan")
        if name in _TAKEN:
            raise ValueError(f"{name!r} means something else in hidisc. Choose another word, such as field or image")
        return name

    @model_validator(mode="after")
    def _are_different(self) -> "LevelNames":
        names = {level: getattr(self, level) for level in LEVELS}
        others = [name for level, name in names.items() if name in LEVELS and name != level]
        if len(set(names.values())) < len(names) or others:
            raise ValueError(f"{', '.join(names.values())} are not three different words for patient, slide and patch")
        return self

    @property
    def are_usual(self) -> bool:
        """Whether they are patient, slide and patch."""
        return self == USUAL

    def word(self, level: str) -> str:
        """What one level is called; further levels, which are columns of the user's own, are called as their column."""
        return str(getattr(self, level)) if level in LEVELS else level

    def title(self, level: str) -> str:
        """The same as the first word of a heading: `Scan`."""
        return self.word(level).capitalize()

    def plural(self, level: str) -> str:
        """The same for several units: `scans`."""
        return plural(self.word(level))

    def count(self, number: int, level: str) -> str:
        """So many units: `1 scan`, `1,703 scans`."""
        return count(number, self.word(level))

    def file_part(self, level: str) -> str:
        """The same as part of a file's name: `optical-section`."""
        return self.word(level).replace(" ", "-") if level in LEVELS else level


USUAL = LevelNames()


_FILES = ("store.json", "run.json", "embeddings.json", "scores.json")
"""The files that hold the names, of stores, runs, embeddings and scores."""


def find_names(artefact: AnyPath) -> LevelNames:
    """What a store, run, embeddings or scores call their levels; the usual names where that cannot be read.

    Only JSON is read, without the libraries that opening the artefact needs.
    """
    for file in _FILES:
        try:
            return LevelNames.model_validate(json.loads((Path(artefact) / file).read_bytes())["level_names"])
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return USUAL

"""LevelNames: what the units of a store are called, and every sentence, table and page in these words.

The code, the columns of files and the settings always say patient, slide and patch. What people read passes through
`LevelNames.speak` on its way out, so no other place knows of other words.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from pydantic import field_validator, model_validator

from hidisc.ground.errors import UserError
from hidisc.ground.progress import Say
from hidisc.ground.text import plural
from hidisc.settings.config import Config

LEVELS = ("patient", "slide", "patch")
_TAKEN = {"class", "label", "level", "site", "split", "store"}
"""Words that mean something else on the same pages."""
_KEPT = r"`[^`]*`|(?<!\w)'[^'\n]*'(?!\w)|(?<!\w)\"[^\"\n]*\"(?!\w)|\S+=[\[{][^\]}]*[\]}]|--\S+|\S*[/\\=_]\S*"
"""Code, names in quotes, settings, options and paths: none of these are words of a sentence."""
_WORD = (
    r"(?<![\w.-])(?:(?P<article>[Aa])n?(?P<gap>\s+))?"
    r"(?P<word>[Pp]atients?|[Ss]lides?|[Pp]atch(?:es)?)(?!\w|-(?!level)|\.\w)"
)
_PATTERN = re.compile(f"{_KEPT}|{_WORD}")


class LevelNames(Config):
    """What the units of a store are called in messages, tables and pages; columns and settings keep their names."""

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

    def name(self, level: str) -> str:
        """What one level is called, as part of a file's name; further levels are columns of the user's own."""
        return str(getattr(self, level)).replace(" ", "-") if level in LEVELS else level

    def speak(self, text: str) -> str:
        """A text in these words; applied twice, it is as if applied once."""
        return text if self.are_usual else _PATTERN.sub(self._replace, text)

    def _replace(self, match: re.Match[str]) -> str:
        word = match["word"]
        if word is None:
            return match[0]
        level = next(level for level in LEVELS if word.lower().startswith(level))
        name: str = getattr(self, level)
        if name == level:
            return match[0]
        new = name if word.lower() == level else plural(name)
        new = new.capitalize() if word[0].isupper() else new
        return f"{match['article']}{'n' if name[0] in 'aeiou' else ''}{match['gap']}{new}" if match["article"] else new

    @contextmanager
    def spoken(self, say: Say) -> Iterator[Say]:
        """A `say` in these words; errors that the user can fix leave the block in these words as well."""
        try:
            yield lambda text: say(self.speak(text))
        except UserError as error:
            error.args = tuple(self.speak(str(part)) for part in error.args)
            raise


USUAL = LevelNames()

"""A page in the words of a store: its text changes, its markup and code do not."""

import re
from html import unescape

from markupsafe import escape

from hidisc.settings.level_names import LevelNames

_MARKUP = re.compile(r"(<(?:script|style|pre|code)\b.*?</(?:script|style|pre|code)>|<[^>]*>)", re.S)
"""What is no text of a page."""
_ATTRIBUTE = re.compile(r'(?<=\s)((?:alt|aria-label|placeholder|title)=")([^"]*)')
"""What people read or hear all the same."""


def speak_html(page: str, words: LevelNames) -> str:
    """A page whose text, and the text of its pictures and fields, calls the levels by these words; code stays."""
    if words.are_usual:
        return page

    def speak(text: str) -> str:
        return str(escape(words.speak(unescape(text))))

    parts = _MARKUP.split(page)
    parts[::2] = map(speak, parts[::2])
    parts[1::2] = (_ATTRIBUTE.sub(lambda match: f"{match[1]}{speak(match[2])}", part) for part in parts[1::2])
    return "".join(parts)

"""A number of a workbook as its format shows it: `P008` where 8 has the format `"P"000`.

Measures (`0.00`, `#,##0`, currencies) stay the exact number. Leading zeros, letters and separators, which make a name
of a number, are rendered, or refused where they cannot be.
"""

import re
from datetime import datetime
from functools import lru_cache

_TOKEN = re.compile(
    r'"(?P<quoted>[^"]*)"|\\(?P<escaped>.)|_.|\*.|\[(?P<bracket>[^\]]*)\]|(?P<general>general|@)|(?P<digits>[0#?])'
    r"|(?P<exponent>E[+-])|(?P<other>.)",
    re.IGNORECASE | re.DOTALL,
)
_EXACT_DIGITS = 15
"""Spreadsheet programs keep so many digits of a number."""

Token = tuple[str, str]
"""What a part of a format is (literal, general, digits, measure, date, condition), and its text."""


def show_number(text: str, code: str, *, is_1904: bool) -> str:
    """A number as its format `code` shows it; raises ValueError with what is wrong with it.

    `is_1904`: whether dates are counted from 1904, as older programs on a Mac do.
    """
    number = float(text)
    if abs(number) >= 10**_EXACT_DIGITS:
        raise ValueError(
            f"is a number of more than {_EXACT_DIGITS} digits, and spreadsheets keep no more, so that its last ones "
            "are lost. Make it text, and enter it again"
        )
    sections = _split_sections(code)
    if any(kind == "condition" for section in sections for kind, _ in section):
        raise ValueError(_refusal(number, code))
    negative = number < 0 and len(sections) > 1
    section = sections[1 if negative else 2 if number == 0 and len(sections) > 2 else 0]
    kinds = {kind for kind, _ in section}
    if "date" in kinds:
        return _show_date(number, is_1904, is_duration=("date", "[") in section)
    plain = f"{number:.{_EXACT_DIGITS}g}" if number else "0"
    if "general" in kinds:
        return "".join(plain if kind == "general" else part for kind, part in section if kind in ("general", "literal"))
    literal = "".join(part for kind, part in section if kind == "literal")
    if "digits" not in kinds:  # the format shows the same of every number
        if not literal.strip():
            raise ValueError(_refusal(number, code))
        return literal
    changed = any(map(str.isalnum, literal)) or _pads(section, plain) or _has_inner_literal(section)
    if ("measure", "%") in section and not changed:
        return f"{number * 100:.{_EXACT_DIGITS}g}%"
    if not changed:
        return plain
    if "measure" in kinds or not number.is_integer():
        raise ValueError(_refusal(number, code))
    sign = "-" if number < 0 and not negative else ""
    return sign + _fill_in(section, str(abs(int(number)))).strip()


def show_text(text: str, code: str) -> str:
    """A text as its format shows it, such as `P8` where `8` is text and has the format `"P"@`."""
    sections = _split_sections(code)
    section = sections[3] if len(sections) > 3 else sections[0]
    if len(sections) > 3 or ("general", "@") in section:
        shown = "".join(text if kind == "general" else part for kind, part in section if kind in ("general", "literal"))
        if not shown.strip():
            raise ValueError(f"is text that its format {code!r} does not show. Give it the format Text")
        return shown
    return text


@lru_cache(maxsize=4096)
def _split_sections(code: str) -> tuple[tuple[Token, ...], ...]:
    """The parts of a format for positive, negative, zero and text, each as tokens."""
    sections: list[list[Token]] = [[]]
    for match in _TOKEN.finditer(code):
        kind, text = match.lastgroup, match[match.lastgroup] if match.lastgroup else ""
        if kind == "other" and text == ";":
            sections.append([])
        elif kind == "bracket":
            sections[-1] += _read_bracket(text)
        elif kind == "other" and text.lower() in "ymdhs":
            sections[-1].append(("date", text))
        elif kind == "exponent" or (kind == "other" and text in ".,%/"):
            sections[-1].append(("measure", text))
        elif kind in ("quoted", "escaped", "other"):
            sections[-1].append(("literal", text))
        elif kind:
            sections[-1].append((kind, text))
    return tuple(map(tuple, sections))


def _read_bracket(text: str) -> list[Token]:
    """What `[h]`, `[$EUR-407]`, `[<100]` or `[Red]` is."""
    if text[:1] in "<>=":
        return [("condition", text)]
    if text[:1] == "$":
        return [("literal", text[1:].partition("-")[0])]
    return [("date", "[")] if text and set(text.lower()) <= set("hms") else []


def _places(section: tuple[Token, ...]) -> list[int]:
    """Where in a section the digits before the decimal point stand."""
    end = next((place for place, token in enumerate(section) if token in (("measure", "."), ("measure", "/"))), None)
    return [place for place, (kind, _) in enumerate(section[:end]) if kind == "digits"]


def _pads(section: tuple[Token, ...], plain: str) -> bool:
    """Whether the format shows zeros before the number that it does not have."""
    least = sum(section[place][1] == "0" for place in _places(section))
    return least > 1 and len(plain.lstrip("-").partition(".")[0]) < least


def _has_inner_literal(section: tuple[Token, ...]) -> bool:
    """Whether something stands between digits, as in `000-000`."""
    places = _places(section)
    is_fraction = ("measure", "/") in section
    return not is_fraction and any(kind == "literal" for kind, _ in section[places[0] : places[-1]])


def _fill_in(section: tuple[Token, ...], digits: str) -> str:
    """The digits put into the places of a section, from the last one on; the first place takes all that are left."""
    places = _places(section)
    shown = []
    for place in range(len(section) - 1, -1, -1):
        kind, part = section[place]
        if kind == "literal":
            shown.append(part)
        elif place == places[0]:
            shown.append(digits or {"0": "0", "?": " "}.get(part, ""))
        elif kind == "digits":
            shown.append(digits[-1:] or {"0": "0", "?": " "}.get(part, ""))
            digits = digits[:-1]
    return "".join(reversed(shown))


def _show_date(number: float, is_1904: bool, *, is_duration: bool) -> str:
    """A date as 2021-03-09, with the time where it is not midnight; a time or a duration alone."""
    from openpyxl.utils.datetime import MAC_EPOCH, WINDOWS_EPOCH, from_excel

    try:
        if number < 0:
            raise ValueError
        value = from_excel(number, MAC_EPOCH if is_1904 else WINDOWS_EPOCH, timedelta=is_duration)
    except (OverflowError, ValueError) as error:
        raise ValueError(f"is {number:g}, which is no date, and has the format of one. Correct it") from error
    return value.isoformat(" ").removesuffix(" 00:00:00") if isinstance(value, datetime) else str(value)


def _refusal(number: float, code: str) -> str:
    return (
        f"is {number:.{_EXACT_DIGITS}g}, and its format {code!r} shows something else, which cannot be read. Give it "
        "the format General, or make it the text that you see"
    )

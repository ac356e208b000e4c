"""A metric is declared once: reports, tables, claims, benchmark pages and docs read its declaration."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from hidisc.ground.files import Record

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
_MANY = 10_000
"""Patients from which their number is not estimated any more."""
Place = Literal["two classes", "many classes", "headline", "brief", "floors", "axis"]
"""Where a metric is shown: the full table of two classes or of more; the first sentences of a page; short tables (each
scale, each fold); the table of methods against floors; figures over a setting."""


class Value(Record):
    """A number with the ends of its interval; all None where it is undefined, and `why`."""

    value: float | None
    low: float | None = None
    high: float | None = None
    why: str = ""
    """Why the value is undefined or has no interval, or what its interval leaves out."""

    def percent(self) -> str:
        """`87.4 [81.2, 92.0]` of 100, without the ends where there are none; `undefined` where it is."""
        if self.value is None:
            return "undefined"
        value = f"{100 * self.value:.1f}"
        if self.low is None or self.high is None:
            return value
        return f"{value} [{100 * self.low:.1f}, {100 * self.high:.1f}]"


@dataclass(frozen=True)
class Metric:
    """One number about the predictions of a level. `Counts` are what its endpoint counts to compute metrics."""

    key: str
    """Its name in scores.json and in settings."""
    title: str
    """Its name in the header of a table."""
    meaning: str
    """What the number says, in words that complete `title: ...`."""
    overall: Callable[[Any], Floats]
    """Counts of one set of predictions or of many resamples (...) -> its value (...), NaN where it is undefined."""
    why_undefined: Callable[..., str]
    """Why it is undefined: of (predictions, units of each class, code of a class or None)."""
    places: frozenset[Place] = frozenset()
    each_class: Callable[[Any], Floats] | None = None
    """Counts -> its value (..., L) of each class against all others; None where a single class has no such number."""
    chance: Callable[[Sequence[Sequence[int]]], float] | None = None
    """Confusion matrix -> what it is without any knowledge of the units; None where that is not known."""
    higher_is_better: bool = True

    @property
    def in_text(self) -> str:
        """Its title within a sentence."""
        return self.title if self.title.isupper() else self.title.lower()

    @property
    def sign(self) -> int:
        """1 where higher is better, else -1."""
        return 1 if self.higher_is_better else -1


@dataclass(frozen=True)
class Measured:
    """Every metric of one level, without intervals."""

    metrics: dict[str, Value]
    """By the keys of the endpoint's metrics."""
    by_class: dict[str, dict[str, Value]]
    """Class: the metrics of a single class."""
    confusion: tuple[tuple[int, ...], ...]
    """Rows: truth; columns: predicted."""


def divide(part: Floats, whole: Floats) -> Floats:
    """Shares, NaN where there is nothing to have a share of."""
    return np.divide(part, whole, out=np.full_like(whole, np.nan), where=whole > 0)


def count_needed(difference: Value, patients: int, interval: float) -> int | None:
    """About how many patients would show a difference of this size, four times out of five; None: not known.

    The standard error is read off the interval and shrinks with the root of the number of patients. A difference is
    seen in 80 % of repetitions when it is as large as half the interval and 0.84 standard errors together.
    """
    value, low, high = difference.value, difference.low, difference.high
    if not value or low is None or high is None or high == low:
        return None
    half = NormalDist().inv_cdf((1 + interval) / 2)
    error = (high - low) / (2 * half)
    return max(2, math.ceil(patients * ((half + NormalDist().inv_cdf(0.8)) * error / value) ** 2))


def say_needed(patients: int) -> str:
    """A number of patients from `count_needed` in words, with the two digits that such an estimate has."""
    if patients >= _MANY:
        return f"more than {_MANY:,}"
    unit = 10 ** max(0, len(str(patients)) - 2)
    return f"about {math.ceil(patients / unit) * unit:,}"

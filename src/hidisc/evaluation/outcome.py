"""What an evaluation has shown, as a traffic light and one sentence: the rule of docs/evaluating.md.

The units are those of the coarsest level that was judged, normally patients, by the first probe. A metric is asked
whether the encoder is better than chance, and better than each floor: it is where the whole interval of the difference
is above 0. The metric that decides is the last one of `headline` (AUROC, else accuracy) that has an interval for each
of these differences, and is defined in nearly all resamples.

| light     | when                                                                                               |
| --------- | -------------------------------------------------------------------------------------------------- |
| not shown | reference and test are not apart; fewer than 10 units; no interval; or an interval that includes 0  |
|           | around a difference above 0 that at most ten times as many units would tell from none              |
| no better | any other difference that is not above 0, from chance or from a floor; the least one is named      |
| shown     | all differences are above 0                                                                        |

Where another metric of `headline` would be answered differently, the sentence says that too. Of random scores of 6 to
40 patients in two or four classes, the rule for chance calls at most 6 of 100 shown.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from hidisc.evaluation.metrics import Metric, Value, count_needed, say_needed

if TYPE_CHECKING:  # scores tell their own outcome
    from hidisc.evaluation.scores import Judged, ScoresInfo

Light = Literal["shown", "not shown", "no better"]
LEAST = 10
"""Fewest units of which a test can show anything: of fewer, each is more than ten points of accuracy."""
FEW = 30
"""Units below which a test says little, and cross-validation in folds is worth its time."""
_WORTH = 10
"""If more than so many times the units were needed to tell a difference from none, it is called none."""
_CHANCE = "chance"


@dataclass(frozen=True)
class Outcome:
    """What was shown."""

    light: Light
    headline: str
    """The outcome in a few words: `Not shown: too few patients (9; about 30 would be needed)`."""
    details: str
    """The numbers that decide, and those that seem to say something else."""

    @property
    def sentence(self) -> str:
        """All of it as one sentence."""
        return f"{self.headline}: {self.details}."


@dataclass(frozen=True)
class _Answer:
    """One metric, and how far the encoder is ahead of chance and of each floor by it."""

    metric: Metric
    value: Value
    chance: float | None
    ahead: dict[str, Value]

    @property
    def can_decide(self) -> bool:
        """Whether all intervals are known and stand in nearly all resamples."""
        return all(known.low is not None and not known.why for known in (self.value, *self.ahead.values()))

    @property
    def least(self) -> tuple[str, Value]:
        """What the encoder is least ahead of: first of what it is not clearly ahead of."""
        return min(self.ahead.items(), key=lambda pair: (_is_above(pair[1]), pair[1].value or 0.0))

    @property
    def is_yes(self) -> bool:
        """Whether the encoder is better than all of them."""
        return all(map(_is_above, self.ahead.values()))


def find_outcome(infos: Sequence["ScoresInfo"]) -> Outcome | None:
    """The outcome of evaluations of one encoder that differ in seeds: of several, that of the weakest.

    None where no unit of any level was judged by all of them.
    """
    for level in infos[0].levels if infos else ():
        rows = [row for info in infos if (row := info.find(level)) is not None and row.units]
        if len(rows) == len(infos):
            outcomes = [_find_one(info, row) for info, row in zip(infos, rows, strict=True)]
            order: tuple[Light, ...] = ("no better", "not shown", "shown")
            worst = min(outcomes, key=lambda outcome: order.index(outcome.light))
            weakest = f"; of {len(infos)} evaluations, the weakest" if len(infos) > 1 else ""
            return Outcome(worst.light, worst.headline, f"{worst.details}{weakest}")
    return None


def _find_one(info: "ScoresInfo", row: "Judged") -> Outcome:
    answers = list(_list_answers(info, row))
    words, interval = info.level_names, float(info.config.get("bootstrap", {}).get("interval", 0.95))
    units = words.count(row.units, row.level)
    if any(finding.kind == "leak" for finding in info.leakage):
        return Outcome("not shown", "Not shown: reference and test are not apart", f"see the warning; {units}")
    if row.units < LEAST:
        headline = _say_few(words.plural(row.level), row.units, _count_needed(answers, row.units, interval))
        return Outcome("not shown", headline, f"of so few, {' and '.join(map(_say, answers))} say nothing yet")
    deciding = next((answer for answer in reversed(answers) if answer.can_decide and answer.ahead), None)
    if deciding is None:
        why = next((answer.value.why for answer in answers if answer.value.why), "no interval was asked for")
        return Outcome("not shown", "Not shown: no interval", f"{why.rstrip('.')}; {units}")
    title = deciding.metric.in_text
    details = f"{_say_value(deciding)} of {units}, for {info.endpoint.label!r}{_say_floors(deciding)}"
    others = [answer for answer in answers if answer is not deciding and answer.can_decide and answer.ahead]
    if deciding.is_yes:
        than = " and than ".join(deciding.ahead)
        but = "".join(
            f"; but {_say(other)} is not clearly better than {other.least[0]}, so rely on the order of its scores "
            "rather than on the classes that it names"
            for other in others
            if not other.is_yes
        )
        return Outcome("shown", f"Shown: better than {than} by {title}", f"{details}{but}")
    details += "".join(f"; {_say(other)} is better, but {title} decides" for other in others if other.is_yes)
    name, ahead = deciding.least
    needed = count_needed(ahead, row.units, interval)
    if (ahead.value or 0) > 0 and needed is not None and needed <= _WORTH * row.units:
        headline = _say_few(words.plural(row.level), row.units, max(needed, row.units + 1))
        return Outcome("not shown", headline, f"not clearly better than {name} yet by {title}, {details}")
    degree = "Worse" if ahead.high is not None and ahead.high < 0 else "No better"
    return Outcome("no better", f"{degree} than {name} by {title}", details)


def _list_answers(info: "ScoresInfo", row: "Judged") -> Iterator[_Answer]:
    """One answer for each metric of the headline."""
    for metric in info.endpoint.list_metrics("headline"):
        value = row.metrics[metric.key]
        ahead: dict[str, Value] = {}
        chance = None if metric.chance is None else metric.chance(row.confusion)
        if chance is not None and value.value is not None:
            ahead[_CHANCE] = _subtract(value, chance, metric.sign)
        for floor in info.floors:
            if metric.key in floor.ahead.get(row.level, {}):
                ahead[floor.title] = floor.ahead[row.level][metric.key]
        yield _Answer(metric, value, chance, ahead)


def _subtract(value: Value, chance: float, sign: int) -> Value:
    """How far a value is ahead of chance."""
    ends = sorted(sign * (end - chance) for end in (value.low, value.high) if end is not None)
    low, high = ends if len(ends) == 2 else (None, None)
    # a share of few patients is often the very same one as chance, up to rounding
    return Value(value=round(sign * ((value.value or 0) - chance), 9), low=low, high=high, why=value.why)


def _is_above(difference: Value) -> bool:
    return difference.low is not None and difference.low > 1e-8


def _count_needed(answers: Sequence[_Answer], units: int, interval: float) -> int:
    """About how many units would tell what the last metric with intervals suggests; 30 at least."""
    ahead = next((answer.least[1] for answer in reversed(answers) if answer.ahead and answer.can_decide), None)
    needed = count_needed(ahead, units, interval) if ahead is not None and (ahead.value or 0) > 0 else None
    return max(FEW, needed or 0)


def _say_few(noun: str, units: int, needed: int) -> str:
    return f"Not shown: too few {noun} ({units:,}; {say_needed(needed)} would be needed)"


def _say(answer: _Answer) -> str:
    """`AUROC 93.8 [85.4, 95.0] (chance 50.0)`."""
    return f"{answer.metric.in_text} {_say_value(answer)}"


def _say_value(answer: _Answer) -> str:
    chance = "" if answer.chance is None else f" (chance {100 * answer.chance:.1f})"
    return f"{answer.value.percent()}{chance}"


def _say_floors(answer: _Answer) -> str:
    """`, 21.9 points [10.0, 28.9] above colour alone`."""
    parts = []
    for name, ahead in answer.ahead.items():
        if name != _CHANCE and None not in (ahead.value, ahead.low, ahead.high):
            sign = -1 if (ahead.value or 0) < 0 else 1
            low, high = sorted((sign * (ahead.low or 0), sign * (ahead.high or 0)))
            points = f"{100 * abs(ahead.value or 0):.1f} points [{100 * low:.1f}, {100 * high:.1f}]"
            parts.append(f", {points} {'above' if sign > 0 else 'below'} {name}")
    return "".join(parts)

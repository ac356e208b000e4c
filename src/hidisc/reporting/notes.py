"""Notes of a table: all that must be read beside its numbers."""

import re
from collections.abc import Iterable, Sequence

from hidisc.ground.text import count, plural
from hidisc.reporting.cells import Row
from hidisc.reporting.evaluated import EvaluatedModel, is_one_test
from hidisc.reporting.table import DASH, LABELLED

_NAMED = 8
"""Most numbers of one reason that are named each."""
_FEW = 6
"""Units below which an interval over them says little: chance alone favours one method in all 5 once in 16 times."""
_NUMBER = re.compile(r"(?<![\w'\"-])\d[\d,]*(?![\w'\"])")
"""A number that stands alone, and is no part of a name."""


def gather_warnings(models: Sequence[EvaluatedModel]) -> list[str]:
    """Leakage and classes that cannot be recognised, with whom a sentence is about unless it is about all."""
    return together(((sentence, model.name) for model in models for sentence in model.warnings), models)


def warning_notes(models: Sequence[EvaluatedModel]) -> list[str]:
    """The same as notes, for it must stand beside every number."""
    return [f"Warning: {sentence}" for sentence in gather_warnings(models)]


def label_notes(judged: Sequence[EvaluatedModel]) -> list[str]:
    """Patches and classes that were not judged."""
    return together(((sentence, model.name) for model in judged for sentence in model.label_notes), judged)


def number_notes(judged: Sequence[EvaluatedModel]) -> list[str]:
    """What stands in brackets, and over which seeds."""
    lines = together(((_describe(model), model.name) for model in judged), judged)
    return [f"In percent. {line}" if not number else line for number, line in enumerate(lines)]


def bold_notes(judged: Sequence[EvaluatedModel]) -> list[str]:
    """What bold type and the dagger mean."""
    notes = []
    if sum(not model.labels_used for model in judged) > 1:
        notes.append(
            "Bold: the best value, and every value whose error range (the interval, or mean ± standard deviation) "
            "overlaps that of the best; where all of them overlap, nothing is bold."
        )
    labelled = [f"{model.name} ({', '.join(model.labels_used)})" for model in judged if model.labels_used]
    if labelled:
        notes.append(f"{LABELLED} learned from labels, so it is never bold: {', '.join(labelled)}.")
    return notes


def few_notes(units: Iterable[tuple[str, int]], level: str) -> list[str]:
    """Which numbers (what, of how many units of a level) are of so few units that an interval says little."""
    few = [f"{what} is of {count(number, level)}" for what, number in units if 0 < number < _FEW]
    if not few:
        return []
    return [
        f"Few units: {', '.join(few)}. An interval over fewer than {_FEW} says little, even a narrow one such as "
        "[0.0, 0.0]."
    ]


def reason_notes(rows: Sequence[Row], titles: Sequence[str]) -> list[str]:
    """Why numbers are undefined, and what to note about others, each reason once; `titles` of the columns."""
    return list_reasons(
        (f"{row.names[0]} {title} of {row.names[1]}", cell.value is None, cell.why)
        for row in rows
        for title, cell in zip(titles, row.cells, strict=True)
    )


def list_reasons(numbers: Iterable[tuple[str, bool, str]]) -> list[str]:
    """Reasons of numbers (what, whether undefined, why); notes that differ only in a count are one, with its range."""
    about: dict[tuple[bool, str], list[tuple[str, str]]] = {}
    for what, is_undefined, why in numbers:
        reason = why.rstrip(".")
        if is_undefined or reason:
            key = reason if is_undefined else _NUMBER.sub("#", reason)
            about.setdefault((is_undefined, key), []).append((what, reason))
    notes = []
    for (is_undefined, _), members in about.items():
        names, reason = [what for what, _ in members], _merge([reason for _, reason in members])
        if is_undefined:
            few = names if len(names) <= _NAMED else [*names[:2], f"{names[2]} and {len(names) - 3} more"]
            notes.append(f"{DASH} undefined: {', '.join(few)}: {reason}.")
        else:
            few = names if len(names) <= _NAMED else ["several numbers"]
            notes.append(f"Note: {reason[0].upper()}{reason[1:]} ({', '.join(few)}).")
    return notes


def other_tests_notes(judged: Sequence[EvaluatedModel]) -> list[str]:
    """Warn of rows that were not judged by the same patients."""
    if is_one_test(judged):
        return []
    return ["The rows were not all judged by the same patients, so that they cannot be compared with each other."]


def together(pairs: Iterable[tuple[str, str]], models: Sequence[EvaluatedModel]) -> list[str]:
    """Sentences of (sentence, model), each once, with the names of its models unless it is about all."""
    about: dict[str, dict[str, None]] = {}
    for sentence, name in pairs:
        about.setdefault(sentence, {})[name] = None
    return [
        sentence if len(names) == len(models) else f"{', '.join(names)}: {sentence}"
        for sentence, names in about.items()
    ]


def _merge(reasons: Sequence[str]) -> str:
    """Reasons that differ only in numbers as one: a number that differs becomes `174 to 686`."""
    columns = zip(*(_NUMBER.findall(reason) for reason in reasons), strict=True)
    ranges = []
    for column in columns:
        values = [int(number.replace(",", "")) for number in column]
        ranges.append(column[0] if len(set(values)) == 1 else f"{min(values):,} to {max(values):,}")
    merged = iter(ranges)
    return _NUMBER.sub(lambda _: next(merged), reasons[0])


def _describe(model: EvaluatedModel) -> str:
    infos = [scores.info for scores in model.scores]
    if len(infos) == 1:
        asked = model.bootstrap
        if not asked.resamples:
            return "One evaluation, without an interval."
        return (
            f"One evaluation; in brackets the {100 * asked.interval:g} % interval over {asked.resamples:,} bootstrap "
            f"resamples of {plural(infos[0].levels[0])}."
        )
    trained = sorted({str(info.model.seed) for info in infos if info.model.seed is not None})
    drawn = sorted({str(info.sampling["seed"]) for info in infos}) if infos[0].sampling["per_slide"] is not None else []
    seeds = f"training {plural('seed', len(trained))} {', '.join(trained)}" if trained else "no training"
    if drawn:
        seeds += f"; sampling {plural('seed', len(drawn))} {', '.join(drawn)}"
    return f"Mean (standard deviation of the sample, n - 1) over {len(infos)} evaluations: {seeds}."

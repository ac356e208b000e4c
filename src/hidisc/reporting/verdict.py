"""What is to be said of an encoder first: its numbers in a sentence, why to believe them, what it is."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from hidisc.embeddings.embeddings import ModelCard
from hidisc.evaluation.scores import LevelScores, ScoresInfo, Value
from hidisc.ground.files import name_related
from hidisc.models.history import History
from hidisc.reporting.cells import pluralise
from hidisc.reporting.evaluated import EvaluatedModel
from hidisc.reporting.notes import warning_notes
from hidisc.settings.evaluate import BootstrapConfig

_TIE = 1e-6
"""Percent; below are rounding errors."""
_JUDGES = {"linear": "a linear probe", "mil": "attention over the patches of a slide"}


@dataclass(frozen=True)
class Number:
    """A metric in percent as the verdict says and draws it."""

    title: str
    text: str
    said: str = ""
    """In brackets behind it, in a sentence."""
    range: str = ""
    """Beside its bar."""
    value: float | None = None
    low: float | None = None
    high: float | None = None
    guess: float | None = None
    """What knowing nothing would give."""


@dataclass(frozen=True)
class Verdict:
    """What is to be said of one encoder first; without numbers it was not evaluated."""

    name: str
    judge: str = ""
    units: str = ""
    numbers: tuple[Number, ...] = ()
    trust: tuple[str, ...] = ()
    """Why to believe it, or not, a sentence each."""


def find_verdict(model: EvaluatedModel) -> Verdict:
    """Accuracy and AUROC of the coarsest level by the first probe, and whether to believe them."""
    infos = [scores.info for scores in model.scores]
    if not infos:
        return Verdict(model.name)
    probe = infos[0].probes[0]
    for name in infos[0].levels:
        levels = [level for info in infos if (level := info.probes[0].level(name)) and level.units]
        if len(levels) == len(infos):
            break
    else:
        return Verdict(model.name)
    asked = BootstrapConfig.model_validate(infos[0].config.get("bootstrap", {}))
    numbers = tuple(
        _number(title, [level.metrics[metric] for level in levels], asked.interval, guess)
        for metric, title, guess in (("accuracy", "Accuracy", _commonest(levels[0])), ("auroc", "AUROC", 50.0))
    )
    return Verdict(
        name=model.name,
        judge=name_judge(probe.name, infos[0]),
        units=_count(levels[0].units, name),
        numbers=numbers,
        trust=(
            *_trust(model, infos[0].model, pluralise(infos[0].levels[0]), numbers[0]),
            *_doubt(levels, name, asked.interval),
        ),
    )


def name_judge(probe: str, info: ScoresInfo) -> str:
    """An probe in words; of a bank with fewer patches than neighbours were asked for, all are."""
    if probe == "knn":
        bank = sum(count.units.get(info.levels[-1], 0) for count in info.counts if count.part == "bank")
        return f"its {min(int(info.config['knn']['k']), bank):,} nearest neighbours"
    return _JUDGES.get(probe, probe)


def gather_warnings(models: Sequence[EvaluatedModel]) -> tuple[str, ...]:
    """What must stand beside every number, each sentence once, with whom it is about unless it is about all."""
    return tuple(note.removeprefix("Warning: ") for note in warning_notes(models))


def describe(model: EvaluatedModel) -> tuple[tuple[str, str], ...]:
    """Facts of an encoder and of how it was judged, term and text."""
    found = next((item for item in model.embeddings if item is not None), None)
    info = model.info
    if info is None and found is None:
        return ()
    card = info.model if info else found.info.model if found else None
    home = model.scores[0].path if model.scores else found.path if found else None
    assert card is not None
    assert home is not None
    facts = [
        ("Encoder", ", ".join(filter(None, (card.backbone, card.objective, f"{card.size_px} px patches")))),
        ("From", f"{_name_source(card, home)} ({card.kind})"),
        ("Learned from", _learned(card.history)),
        ("Labels in training", ", ".join(model.labels_used) or "none known of"),
    ]
    if found is not None:
        store = name_related(found.info.store, found.path)
        facts.append(("Embeddings", f"{len(found):,} vectors of {found.info.dim:,} numbers, of {store}"))
    if info is not None:
        per_slide = info.sampling["per_slide"]
        seeds = sorted({str(scores.info.sampling["seed"]) for scores in model.scores})
        facts += [
            ("Bank", f"{', '.join(info.config['bank'])} of {name_related(info.bank, home)}"),
            ("Queries", f"{', '.join(info.config['queries'])} of {name_related(info.embeddings, home)}"),
            ("Patches", f"{per_slide:,} of each slide, seed {', '.join(seeds)}" if per_slide else "all of each slide"),
            ("Classes", ", ".join(info.classes) + (f" (positive: {info.positive})" if len(info.classes) == 2 else "")),
            ("Judged by", "; ".join(name_judge(probe.name, info) for probe in info.probes)),
        ]
        if len(model.scores) > 1:
            trained = sorted({str(scores.info.model.seed) for scores in model.scores})
            facts.append(("Evaluations", f"{len(model.scores)}, of training seeds {', '.join(trained)}"))
        notes = dict.fromkeys(
            item.sentence for scores in model.scores for item in scores.info.leakage if item.kind == "note"
        )
        facts += [("Leakage", note) for note in notes]
        if not notes and not model.has_leakage:
            facts.append(("Leakage", "none found"))
    return tuple((term, text) for term, text in facts if text)


def show_settings(config: dict[str, Any]) -> str:
    """A dumped config as YAML."""
    return yaml.safe_dump(config, sort_keys=False, allow_unicode=True)


def _number(title: str, values: Sequence[Value], interval: float, guess: float) -> Number:
    """One metric of one or several evaluations; the mean and deviation of several."""
    known = [100 * value.value for value in values if value.value is not None]
    if len(known) < len(values):
        why = next(value.why for value in values if value.value is None)
        return Number(title, "undefined", why.rstrip(".") or "not measured", guess=guess)
    mean = float(np.mean(known))
    if len(known) > 1:
        sd = float(np.std(known, ddof=1))
        said = f"mean of {len(known)} evaluations, standard deviation {sd:.1f}"
        return Number(title, f"{mean:.1f}", said, f"± {sd:.1f}", mean, max(0, mean - sd), min(100, mean + sd), guess)
    low, high = values[0].low, values[0].high
    if low is None or high is None:
        return Number(title, f"{mean:.1f}", values[0].why, "", mean, guess=guess)
    ends = f"{100 * low:.1f} to {100 * high:.1f}"
    return Number(
        title,
        f"{mean:.1f}",
        f"{100 * interval:g}\N{NO-BREAK SPACE}% interval {ends}",
        ends,
        mean,
        100 * low,
        100 * high,
        guess,
    )


def _commonest(level: LevelScores) -> float:
    """Accuracy in percent of naming the commonest class every time."""
    return 100 * max(map(sum, level.confusion)) / level.units


def _trust(model: EvaluatedModel, card: ModelCard, units: str, accuracy: Number) -> Iterable[str]:
    """Sentences on what the encoder has seen, and on luck."""
    history = card.history
    if model.warnings:
        yield "Mind the warning above before believing it."
    if not history.is_complete:
        yield f"What it has seen before is not known, so it may have seen these {units}."
    elif not history.slides:
        yield "It has learned from no slide."
    elif not model.has_leakage:
        yield f"It learned from {_learned(history)}, and none of these {units} is among them."
    if model.labels_used:
        yield f"Labels were used in its training, for: {', '.join(model.labels_used)}."
    # a share of few patients is often the very same one
    if accuracy.guess is not None and accuracy.low is not None and accuracy.low <= accuracy.guess + _TIE:
        yield (
            f"That is not surely better than naming the commonest class every time, which gives {accuracy.guess:.1f} %."
        )


def _doubt(levels: Sequence[LevelScores], level: str, interval: float) -> Iterable[str]:
    """What drawing units anew cannot show where all were right: by the binomial law, n of n may still be luck."""
    units = levels[0].units
    if all(found.metrics["accuracy"].value == 1 for found in levels):
        least = ((1 - interval) / 2) ** (1 / units)
        yield (
            f"All {units:,} were right, so drawing them anew shows no doubt; judged by their number alone, the share "
            f"of all {pluralise(level)} may be as low as {100 * least:.0f} %."
        )


def _name_source(card: ModelCard, home: Path) -> str:
    """A folder or file by its name alone; a name of timm's as it is, which may have slashes."""
    return card.source if card.source.startswith("timm:") else name_related(card.source, home)


def _learned(history: History) -> str:
    if not history.slides:
        return "nothing" if history.is_complete else "not known"
    seen = f"{_count(len(history.patients), 'patient')} ({_count(len(history.slides), 'slide')})"
    return seen if history.is_complete else f"{seen}, after what its starting weights had seen, which is not known"


def _count(number: int, thing: str) -> str:
    return f"{number:,} {pluralise(thing, number)}"

"""The first sentences of a report: how good an encoder is, whether to trust the numbers, and what to do next."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hidisc.embeddings.embeddings import ModelCard
from hidisc.evaluation.floors import FLOORS
from hidisc.evaluation.metrics import Metric, Value
from hidisc.evaluation.outcome import FEW, Outcome, find_outcome
from hidisc.evaluation.scores import Diagnostic, Judged, ScoresInfo
from hidisc.ground.files import name_related
from hidisc.ground.text import count, plural
from hidisc.models.card import NOTHING, History
from hidisc.reporting.evaluated import EvaluatedModel

_TAIL = 0.1
"""Share of the rows of metrics.csv, at the end, whose mean loss is compared with that of as many rows before."""
_FALL = 0.01
"""Share of the loss; if the loss fell by more, training was still learning when it ended."""


def find_outlook(model: EvaluatedModel, outcome: Outcome | None) -> tuple[str, ...]:
    """Sentences on whether more can be learned, and last the next command to try."""
    info = model.info
    if info is None or outcome is None:
        return ()
    is_falling = loss_is_falling(model.run_metrics)
    falling = "Its loss was still falling when training ended, so it may not have learned all it can."
    return (*([falling] if is_falling else []), _next(info, outcome, is_falling))


def loss_is_falling(rows: Sequence[dict[str, float]] | None) -> bool:
    """Whether the mean loss of the last tenth of the rows is 1 % below that of the tenth before it."""
    losses = [row["loss"] for row in rows or () if np.isfinite(row.get("loss", np.nan))]
    tail = max(1, round(_TAIL * len(losses)))
    if len(losses) < 2 * tail + 1:
        return False
    last, before = np.mean(losses[-tail:]), np.mean(losses[-2 * tail : -tail])
    return bool(before - last > _FALL * abs(before))


def _next(info: ScoresInfo, outcome: Outcome, is_falling: bool) -> str:
    """The next step, with its command where there is one."""
    history, level = info.model.history, info.list_levels()[-1]
    if any(finding.kind == "leak" for finding in info.leakage):
        return "Next: evaluate it on test patients whom neither it nor the reference knows, with a new --out."
    if history != NOTHING and any(item.meaning.startswith("COLLAPSED") for item in info.diagnostics):
        return "Next: train again: its embeddings are nearly all the same, so the numbers mean little."
    if outcome.light != "no better" and level.units < FEW and not info.folds:
        units = f"{plural(level.level)}, not by {level.units}"
        if not history.slides:
            return f"Next: judge it by all {units}: `hidisc evaluate EMBEDDINGS --folds 3 --out SCORES`."
        return (
            f"Next: judge it by all {units}: `hidisc benchmark small-cohort STORE --out BENCHMARK` trains several "
            "methods in folds, for about half an hour on two cores."
        )
    if history == NOTHING:
        return "Next: compare your encoder with it: `hidisc report SCORES OTHER_SCORES --out COMPARISON.html`."
    if is_falling:
        return "Next: train longer, with --set optim.steps=... of twice as many steps and a new --out."
    if outcome.light == "no better" and FLOORS["whitened"].title in outcome.sentence:
        return (
            "Next: whiten its vectors in seconds: `hidisc train EMBEDDINGS --recipe whiten-within --out MAP`, "
            "then `hidisc embed EMBEDDINGS MAP --out WHITENED`; `hidisc benchmark vectors EMBEDDINGS --out BENCHMARK` "
            "compares this and other maps in folds."
        )
    if outcome.light == "shown":
        return "Next: look at `hidisc heatmap`, and at the confusion matrices below."
    if not history.is_complete:  # it has started from weights
        return "Next: see with `hidisc audit EMBEDDINGS --out AUDIT` what it looks at, and add patients if you can."
    return (
        "Next: start from weights that know pictures, with `hidisc train STORE --recipe "
        "hidisc-patient+small-cohort --out RUN`, and see with `hidisc audit EMBEDDINGS --out AUDIT` what it "
        "looks at."
    )


_JUDGES = {"linear": "a linear probe", "mil": "attention over the patches of a slide"}


@dataclass(frozen=True)
class Number:
    """A metric in percent, as the verdict writes and draws it."""

    title: str
    text: str
    remark: str = ""
    """Text in brackets behind the number in a sentence."""
    range: str = ""
    """Text beside the bar of the number."""
    value: float | None = None
    low: float | None = None
    high: float | None = None
    guess: float | None = None
    """The value of a guess that uses only the frequencies of the classes."""


@dataclass(frozen=True)
class Verdict:
    """The first sentences on one encoder; it has no numbers if the encoder was not evaluated."""

    name: str
    judge: str = ""
    units: str = ""
    numbers: tuple[Number, ...] = ()
    label: str = ""
    """Column that was predicted."""
    outcome: Outcome | None = None
    outlook: tuple[str, ...] = ()
    """Sentences on whether more can be learned, and the next step."""
    trust: tuple[str, ...] = ()
    """Sentences on why to believe the numbers, or why not."""
    properties: tuple[str, ...] = ()
    """Sentences on the most important diagnostics of its embeddings."""


def find_verdict(model: EvaluatedModel) -> Verdict:
    """The verdict on a model: headline metrics of the coarsest level by the first probe, and whether to trust them."""
    infos = [scores.info for scores in model.scores]
    if not infos:
        return Verdict(model.name)
    for name in infos[0].levels:
        levels = [row for info in infos if (row := info.find(name)) and row.units]
        if len(levels) == len(infos):
            break
    else:
        return Verdict(model.name)
    interval = model.bootstrap.interval
    outcome = find_outcome(infos)
    return Verdict(
        name=model.name,
        label=infos[0].endpoint.label,
        outcome=outcome,
        judge=name_judge(infos[0].probes[0], infos[0]),
        units=model.words.count(levels[0].units, name),
        numbers=tuple(
            _number(metric, [row.metrics[metric.key] for row in levels], interval, levels[0].confusion)
            for metric in infos[0].endpoint.list_metrics("headline")
        ),
        outlook=find_outlook(model, outcome),
        trust=(*_trust(model, infos[0].model, plural(infos[0].levels[0])), *_doubt(levels, name, interval)),
        properties=(*infos[0].audit, *_choose_diagnostics(infos[0].diagnostics)),
    )


def name_judge(probe: str, info: ScoresInfo) -> str:
    """What predicts the classes, in words: `its 200 nearest neighbours`."""
    return f"its {count_voters(info):,} nearest neighbours" if probe == "knn" else _JUDGES[probe]


def count_voters(info: ScoresInfo) -> int:
    """How many neighbours vote on a patch: `knn.k`, or the number of patches of the bank if that is smaller."""
    bank = sum(part.units.get(info.levels[-1], 0) for part in info.counts if part.part == "bank")
    return min(int(info.config["knn"]["k"]), bank)


def describe(model: EvaluatedModel) -> tuple[tuple[str, str], ...]:
    """Facts of an encoder and of how it was judged, as pairs of term and text."""
    embeddings = model.first_embeddings
    info, first = model.info, model.scores[0] if model.scores else embeddings
    if first is None:
        return ()
    card, home, words = first.info.model, first.path, model.words
    source = card.source if card.source.startswith("timm:") else name_related(card.source, home)  # timm has slashes
    size = f"{card.size_px} px patches" if card.size_px else ""
    facts = [
        ("Encoder", ", ".join(filter(None, (card.backbone, card.objective, size)))),
        ("From", f"{source} ({card.kind})"),
        ("Trained on", _learned(card.history) + (", each encoder without its fold" if info and info.folds else "")),
        (
            "Labels used in training",
            ", ".join(model.labels_used) or ("none" if card.history.is_complete else "not known"),
        ),
    ]
    if embeddings is not None:
        store = embeddings.info.store
        source = "imported" if store is None else f"of {name_related(store, embeddings.path)}"
        vectors, numbers = count(len(embeddings), "vector"), count(embeddings.info.dim, "number")
        facts.append(("Embeddings", f"{vectors} of {numbers}, {source}"))
    if info is not None:
        positive = f" (positive: {info.endpoint.positive_class})" if len(info.endpoint.classes) == 2 else ""
        per_slide = info.sampling["per_slide"]
        seeds = sorted({str(scores.info.sampling["seed"]) for scores in model.scores})
        drawn = f"{per_slide:,} of each slide, seed {', '.join(seeds)}" if per_slide else "all of each slide"
        facts += [
            *_describe_patients(info, home),
            (words.plural("patch").capitalize(), drawn),
            ("Label column", info.endpoint.label),
            ("Classes", ", ".join(info.endpoint.classes) + positive),
            ("Judged by", "; ".join(name_judge(probe, info) for probe in info.probes)),
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


def _describe_patients(info: ScoresInfo, home: Path) -> list[tuple[str, str]]:
    """Which patients were judged, and by which reference patients."""
    patients = info.level_names.plural("patient")
    if info.folds:
        folds = f"{len(info.folds) - 1} of {len(info.folds)} folds"
        return [(patients.capitalize(), f"each judged once, by those of the other {folds}")]
    reference, test = name_related(info.bank, home), name_related(info.embeddings, home)
    if info.config.get("test_patients"):
        return [(f"Test {patients}", f"{len(info.config['test_patients'])} of {test}, by all others")]
    return [
        (f"Reference {patients}", f"{', '.join(info.config['bank'])} of {reference}"),
        (f"Test {patients}", f"{', '.join(info.config['queries'])} of {test}"),
    ]


def _number(metric: Metric, values: Sequence[Value], interval: float, confusion: Sequence[Sequence[int]]) -> Number:
    """A metric of one evaluation with its interval, or the mean and standard deviation of several evaluations."""
    title, guess = metric.title, None if metric.chance is None else 100 * metric.chance(confusion)
    known = [100 * value.value for value in values if value.value is not None]
    if len(known) < len(values):
        why = next(value.why for value in values if value.value is None)
        return Number(title, "undefined", why.rstrip(".") or "not measured", guess=guess)
    mean = float(np.mean(known))
    if len(known) > 1:
        sd = float(np.std(known, ddof=1))
        remark = f"mean of {len(known)} evaluations, standard deviation {sd:.1f}"
        return Number(title, f"{mean:.1f}", remark, f"± {sd:.1f}", mean, max(0, mean - sd), min(100, mean + sd), guess)
    low, high = values[0].low, values[0].high
    if low is None or high is None:
        return Number(title, f"{mean:.1f}", values[0].why, "", mean, guess=guess)
    ends = f"{100 * low:.1f} to {100 * high:.1f}"
    remark = f"{100 * interval:g} % interval {ends}"
    return Number(title, f"{mean:.1f}", remark, ends, mean, 100 * low, 100 * high, guess)


def _choose_diagnostics(diagnostics: Sequence[Diagnostic]) -> Iterable[str]:
    """Sentences on whether the encoder has collapsed, and how much of the variance the site or the patient explains."""
    known = {item.name: item for item in diagnostics}
    if "collapse" in known:
        yield known["collapse"].meaning
    label, site = (item.value if (item := known.get(f"variance: {name}")) else None for name in ("label", "site"))
    is_site = site is not None and label is not None and site > label
    seen = known.get("variance: site" if is_site else "variance: patient")
    if seen is not None and seen.value is not None:
        yield seen.meaning


def _trust(model: EvaluatedModel, card: ModelCard, units: str) -> Iterable[str]:
    """Sentences on what the encoder has learned from."""
    history = card.history
    if model.warnings:
        yield "Read the warning above before you trust these numbers."
    if not history.is_complete:
        yield f"It is not known what this encoder was trained on, so it may have seen these {units}."
    elif not history.slides:
        yield "It was not trained on any slide."
    elif model.info is not None and model.info.folds and not model.has_leakage:
        yield f"Each of these {units} was judged by an encoder that was trained without that one's fold."
    elif not model.has_leakage:
        yield f"It was trained on {_learned(history)}; none of the test {units} is among them."
    if model.labels_used:
        yield f"Labels were used in its training, for: {', '.join(model.labels_used)}."


def _doubt(levels: Sequence[Judged], level: str, interval: float) -> Iterable[str]:
    """Where all n units are right, resamples show no uncertainty; the lowest accuracy that the binomial law allows."""
    units = levels[0].units
    if all(row.metrics["accuracy"].value == 1 for row in levels):
        least = ((1 - interval) / 2) ** (1 / units)
        yield (
            f"All {count(units, level)} were predicted correctly, so bootstrap resamples show no uncertainty; by the "
            f"binomial law the accuracy may still be as low as {100 * least:.0f} %."
        )


def _learned(history: History) -> str:
    if not history.slides:
        return "nothing" if history.is_complete else "not known"
    seen = f"{count(len(history.patients), 'patient')} ({count(len(history.slides), 'slide')})"
    return seen if history.is_complete else f"{seen}; what its starting weights had seen before is not known"

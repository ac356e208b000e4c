"""The report's page: one HTML file that holds all it shows, and asks nothing of the network."""

import base64
import hashlib
import io
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from jinja2 import Environment, StrictUndefined
from markupsafe import Markup
from matplotlib.figure import Figure
from numpy.typing import NDArray
from PIL import Image

from hidisc.embeddings.embeddings import ModelCard
from hidisc.evaluation.scores import LevelScores, ScoresInfo, Value
from hidisc.reporting.cells import pluralise
from hidisc.reporting.figures import save_figure, to_svg
from hidisc.reporting.notes import leakage_notes
from hidisc.reporting.pictures import Column, SheetRow, Sprite
from hidisc.reporting.subject import Subject
from hidisc.reporting.table import Table
from hidisc.settings.judging import BootstrapConfig

MAP_SIDE = 9999
"""Coordinates on the map are whole numbers up to this: half the characters, and finer than any screen."""
CITATION = """@inproceedings{jiang2023hierarchical,
  title     = {Hierarchical Discriminative Learning Improves Visual Representations of Biomedical Microscopy},
  author    = {Jiang, Cheng and Hou, Xinhai and Kondepudi, Akhil and Chowdury, Asadur and
               Freudiger, Christian W. and Orringer, Daniel A. and Lee, Honglak and Hollon, Todd C.},
  booktitle = {IEEE/CVF Conference on Computer Vision and Pattern Recognition (CVPR)},
  year      = {2023}
}"""
_PX_AN_INCH = 108
_LONG = 26
"""Characters from which a column of a table is text that breaks its lines."""
_TIE = 1e-6
"""Percent; below are rounding errors."""
_WIDE = 8
"""Columns beyond which groups of them are stacked."""
_JUDGES = {"linear": "a linear probe", "mil": "attention over the patches of a slide"}


@dataclass(frozen=True)
class Drawing:
    """A figure on the page."""

    caption: str
    uri: str
    width_px: int
    """At which its letters are as large as the page's; never shown larger."""


class FigureFolder:
    """Writes figures as they are drawn, and makes them ready for the page."""

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        """`names`: of the encoders, which are parts of the files' names."""
        self._folder = folder
        self._slugs = {name: _slug(number, name) for number, name in enumerate(names, 1)}
        self.names: list[str] = []

    def slug(self, name: str) -> str:
        """What the files of an encoder are called."""
        return self._slugs[name]

    def save(self, name: str, figure: Figure) -> None:
        """Write NAME.pdf and NAME.png."""
        save_figure(figure, self._folder, name)
        self.names.append(name)

    def add(self, name: str, figure: Figure, caption: str, dots: bool = False) -> Drawing:
        """Write it and show it; `dots`: as pixels, for a path a dot takes ten times as much."""
        self.save(name, figure)
        width_px = round(_PX_AN_INCH * figure.get_figwidth())
        if dots:
            return Drawing(caption, _address("image/png", _thin(self._folder / f"{name}.png")), width_px)
        return Drawing(caption, _address("image/svg+xml", to_svg(figure)), width_px)


def _thin(path: Path) -> bytes:
    """A PNG with as many colours as a figure needs, a third of the bytes."""
    buffer = io.BytesIO()
    with Image.open(path) as image:
        image.convert("RGB").quantize(128, dither=Image.Dither.NONE).save(buffer, "PNG", optimize=True)
    return buffer.getvalue()


def _address(kind: str, data: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def _slug(number: int, name: str) -> str:
    """A name as part of a file's, told apart by its number."""
    plain = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:40].strip("-")
    return f"{number}-{plain}" if plain else str(number)


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


@dataclass(frozen=True)
class About:
    """What one encoder is and how it was judged."""

    name: str
    facts: tuple[tuple[str, str], ...]
    tables: tuple[Table, ...]
    settings: str = ""


@dataclass(frozen=True)
class OpinionPart:
    """Tables of one way of asking, some of them folded away."""

    tables: tuple[Table, ...]
    folded: tuple[Table, ...] = ()


@dataclass(frozen=True)
class Panel:
    """The map of one encoder: n of the M patches."""

    name: str
    patch: NDArray[np.int64]
    """(n,) which of the M patches, each once."""
    xy: NDArray[np.floating[Any]]
    """(n, 2)."""
    predicted: NDArray[np.int64] | None
    """(n,) codes into the names of the `label` column."""


@dataclass(frozen=True)
class PatchMap:
    """Maps of the same patches by several encoders; the first column is `label`."""

    sentence: str
    panels: tuple[Panel, ...]
    columns: tuple[Column, ...]
    colours: tuple[str, ...]
    """Of the classes."""
    sprite: Sprite | None
    """Pictures of the M patches, in their order."""
    reasons: tuple[str, ...] = ()
    """Why pictures are missing."""
    static: tuple[Drawing, ...] = ()
    """The maps for paper."""

    @property
    def names(self) -> tuple[str, ...]:
        """Of the encoders."""
        return tuple(panel.name for panel in self.panels)

    @property
    def sprites(self) -> tuple[str, ...]:
        """Addresses of the pictures."""
        return self.sprite.uris if self.sprite else ()


@dataclass(frozen=True)
class Sheet:
    """Nearest neighbours of patches of one encoder."""

    name: str
    right: bool
    """Whether its patches were taken for what they are."""
    rows: tuple[SheetRow, ...]


@dataclass(frozen=True)
class Page:
    """All that the page shows, in its order."""

    title: str
    names: tuple[str, ...]
    warnings: tuple[str, ...]
    verdicts: tuple[Verdict, ...]
    compared: tuple[str, ...]
    abouts: tuple[About, ...]
    opinions: tuple[OpinionPart, ...]
    confusions: tuple[tuple[Drawing, ...], ...]
    """Those of one group stand beside each other."""
    curves: tuple[Drawing, ...]
    map: PatchMap | None
    """None where no embeddings are there."""
    crops: tuple[Drawing, ...]
    sheets: tuple[Sheet, ...]
    no_sheets: tuple[str, ...]
    """Why sheets or their pictures are missing."""
    training: tuple[Drawing, ...]
    diagnostics: tuple[Table, ...]
    versions: tuple[tuple[str, str | None], ...]
    settings: str
    files: tuple[tuple[str, tuple[tuple[str, str], ...]], ...]
    """Name, and the ending and address of every form it is written in."""
    citation: str = CITATION

    @property
    def judged(self) -> bool:
        """Whether anything was evaluated."""
        return any(verdict.numbers for verdict in self.verdicts)

    @property
    def judge(self) -> str:
        """Who judged first."""
        return next((verdict.judge for verdict in self.verdicts if verdict.numbers), "")

    @property
    def contents(self) -> tuple[tuple[str, str], ...]:
        """Sections there are: id and title."""
        shown = {
            ("verdict", "Verdict"): True,
            ("evaluated", "What was evaluated" if self.judged else "What was embedded"): True,
            ("metrics", "Metrics"): self.opinions,
            ("map", "Map of the patches"): True,
            ("neighbours", "Nearest neighbours"): self.sheets or self.no_sheets,
            ("training", "Training"): self.training,
            ("diagnostics", "Diagnostics"): self.diagnostics,
            ("about", "To cite, versions, files"): True,
        }
        return tuple(section for section, there in shown.items() if there)


# ---- the verdict


def find_verdict(subject: Subject) -> Verdict:
    """Accuracy and AUROC of the coarsest level by the first opinion, and whether to believe them."""
    infos = [scores.info for scores in subject.scores]
    if not infos:
        return Verdict(subject.name)
    opinion = infos[0].opinions[0]
    for name in infos[0].levels:
        levels = [level for info in infos if (level := info.opinions[0].level(name)) and level.units]
        if len(levels) == len(infos):
            break
    else:
        return Verdict(subject.name)
    asked = BootstrapConfig.model_validate(infos[0].config.get("bootstrap", {}))
    numbers = tuple(
        _number(title, [level.metrics[metric] for level in levels], asked.interval, guess)
        for metric, title, guess in (("accuracy", "Accuracy", _commonest(levels[0])), ("auroc", "AUROC", 50.0))
    )
    return Verdict(
        name=subject.name,
        judge=name_judge(opinion.name, infos[0]),
        units=_count(levels[0].units, name),
        numbers=numbers,
        trust=tuple(_trust(subject, infos[0].model, pluralise(infos[0].levels[0]), numbers[0])),
    )


def name_judge(opinion: str, info: ScoresInfo) -> str:
    """An opinion in words; of a bank with fewer patches than neighbours were asked for, all are."""
    if opinion == "knn":
        bank = sum(count.units.get(info.levels[-1], 0) for count in info.counts if count.side == "bank")
        return f"its {min(int(info.config['knn']['k']), bank):,} nearest neighbours"
    return _JUDGES.get(opinion, opinion)


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


def _trust(subject: Subject, model: ModelCard, units: str, accuracy: Number) -> Iterable[str]:
    """Sentences on what the encoder has seen, and on luck."""
    if subject.warnings:
        yield "Mind the warning above before believing it."
    elif model.learned_from is None:
        yield f"What it learned from is not known, so it may have seen these {units} before."
    elif model.learned_from:
        yield f"It learned from {_learned(model)}, and none of these {units} is among them."
    else:
        yield "It has learned from no slide."
    if subject.labels_used:
        yield f"Labels were used in its training, for: {', '.join(subject.labels_used)}."
    # a share of few patients is often the very same one
    if accuracy.guess is not None and accuracy.low is not None and accuracy.low <= accuracy.guess + _TIE:
        yield (
            f"That is not surely better than naming the commonest class every time, which gives {accuracy.guess:.1f} %."
        )


def _learned(model: ModelCard) -> str:
    if model.learned_from is None:
        return "not known"
    patients = len({slide.patient for slide in model.learned_from})
    return f"{_count(patients, 'patient')} ({_count(len(model.learned_from), 'slide')})"


def _count(number: int, thing: str) -> str:
    return f"{number:,} {pluralise(thing, number)}"


def gather_warnings(subjects: Sequence[Subject]) -> tuple[str, ...]:
    """What must stand beside every number, each sentence once, with whom it is about unless it is about all."""
    return tuple(note.removeprefix("Warning: ") for note in leakage_notes(subjects))


# ---- what was evaluated


def describe(subject: Subject) -> tuple[tuple[str, str], ...]:
    """Facts of an encoder and of how it was judged, term and text."""
    found = next((item for item in subject.embeddings if item is not None), None)
    info = subject.info
    if info is None and found is None:
        return ()
    model = info.model if info else found.info.model if found else None
    assert model is not None
    facts = [
        ("Encoder", ", ".join(filter(None, (model.backbone, model.objective, f"{model.size_px} px patches")))),
        ("From", f"{model.source} ({model.kind})"),
        ("Learned from", _learned(model) if model.learned_from != () else "nothing"),
        ("Labels in training", ", ".join(subject.labels_used) or "none known of"),
    ]
    if found is not None:
        facts.append(("Embeddings", f"{len(found):,} vectors of {found.info.dim:,} numbers, of {found.info.store}"))
    if info is not None:
        per_slide = info.sampling["per_slide"]
        seeds = sorted({str(scores.info.sampling["seed"]) for scores in subject.scores})
        facts += [
            ("Bank", f"{', '.join(info.config['bank'])} of {info.bank}"),
            ("Queries", f"{', '.join(info.config['queries'])} of {info.embeddings}"),
            ("Patches", f"{per_slide:,} of each slide, seed {', '.join(seeds)}" if per_slide else "all of each slide"),
            ("Classes", ", ".join(info.classes) + (f" (positive: {info.positive})" if len(info.classes) == 2 else "")),
            ("Judged by", "; ".join(name_judge(opinion.name, info) for opinion in info.opinions)),
        ]
        if len(subject.scores) > 1:
            trained = sorted({str(scores.info.model.seed) for scores in subject.scores})
            facts.append(("Evaluations", f"{len(subject.scores)}, of training seeds {', '.join(trained)}"))
        notes = dict.fromkeys(
            item.sentence for scores in subject.scores for item in scores.info.leakage if item.kind == "note"
        )
        facts += [("Leakage", note) for note in notes]
        if not notes and not subject.warnings:
            facts.append(("Leakage", "none found"))
    return tuple((term, text) for term, text in facts if text)


def show_settings(config: dict[str, Any]) -> str:
    """A dumped config as YAML."""
    return yaml.safe_dump(config, sort_keys=False, allow_unicode=True)


# ---- writing it


@dataclass(frozen=True)
class _Cell:
    text: str
    tag: str
    kind: str
    span: int = 1
    bold: bool = False


@dataclass(frozen=True)
class _Laid:
    """A table as the template reads it."""

    title: str
    groups: tuple[tuple[str, int], ...]
    header: tuple[tuple[str, str], ...]
    rows: tuple[tuple[_Cell, ...], ...]
    notes: tuple[str, ...]


def _lay_table(table: Table, warnings: Sequence[str]) -> _Laid:
    """Cells with their kinds; the first of a block spans it, and warnings, which stand above, are no notes."""
    table = _stack(table)
    widest = [max((len(row[place]) for row in table.rows), default=0) for place in range(len(table.columns))]
    kinds = ["text" if place < table.lead or width > _LONG else "" for place, width in enumerate(widest)]
    kinds = [f"{kind} long" if width > 2 * _LONG else kind for kind, width in zip(kinds, widest, strict=True)]
    kinds[0] = "text first"
    spans = {}
    start = 0
    for size in table.blocks or (1,) * len(table.rows):
        spans[start] = size
        start += size
    rows = [
        tuple(
            _Cell(
                text,
                "th" if place < table.lead else "td",
                kinds[place],
                spans[number] if place == 0 else 1,
                (number, place) in table.bold,
            )
            for place, text in enumerate(row)
            if place or number in spans
        )
        for number, row in enumerate(table.rows)
    ]
    notes = tuple(note for note in table.notes if not any(note.endswith(sentence) for sentence in warnings))
    header = tuple(zip(table.columns, kinds, strict=True))
    return _Laid(table.title, table.groups, header, tuple(rows), notes)


def _stack(table: Table) -> Table:
    """Groups of columns below each other where they would be too wide for a screen; paper is wider, and keeps them."""
    lead, width = table.lead, table.groups[-1][1] if table.groups else 0
    names = table.columns[lead : lead + width]
    if len(table.columns) <= _WIDE or table.columns[lead:] != names * (len(table.groups) - 1) or table.blocks:
        return table
    titles = [text.removesuffix(" level metrics") for text, _ in table.groups[1:]]
    count = len(table.rows)
    return replace(
        table,
        columns=("Level", *table.columns[:lead], *names),
        rows=tuple(
            (title, *row[:lead], *row[lead + number * width : lead + (number + 1) * width])
            for number, title in enumerate(titles)
            for row in table.rows
        ),
        groups=(),
        lead=lead + 1,
        blocks=(count,) * len(titles),
        bold=frozenset(
            (number * count + row, lead + 1 + (column - lead) % width)
            for row, column in table.bold
            if column >= lead
            for number in [(column - lead) // width]
        ),
    )


def render(page: Page) -> str:
    """The page as HTML; everything that files supplied is escaped."""
    css, js = _read("page.css"), _read("page.js")
    digest = base64.b64encode(hashlib.sha256(js.encode()).digest()).decode()
    # styles may be inline, for browsers differ in whether a policy reaches into the SVG figures, which have them
    policy = (
        "default-src 'none'; img-src data:; style-src 'unsafe-inline'; "
        f"script-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    )
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["lay"] = lambda table: _lay_table(table, page.warnings)
    return environment.from_string(_read("page.html")).render(
        page=page,
        policy=policy,
        css=Markup(css),
        js=Markup(js),
        map_json=Markup(to_json(_map_data(page.map))) if page.map else "",
    )


@cache
def _read(name: str) -> str:
    return resources.files("hidisc.reporting").joinpath(name).read_text(encoding="utf-8")


def to_json(data: Any) -> str:
    """JSON that may stand inside a script element: nothing in it can end the element, or be taken for HTML."""
    text = json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _map_data(patches: PatchMap) -> dict[str, Any]:
    """What page.js reads."""
    sprite = patches.sprite
    return {
        "sprite": {"side": sprite.side_px, "across": sprite.across, "each": sprite.each} if sprite else None,
        "colours": patches.colours,
        "columns": [
            {"key": column.key, "title": column.title, "names": column.names, "codes": column.codes.tolist()}
            for column in patches.columns
        ],
        "panels": [
            {
                "name": panel.name,
                "patch": panel.patch.tolist(),
                **dict(zip("xy", _to_grid(panel.xy).T.tolist(), strict=True)),
                "predicted": None if panel.predicted is None else panel.predicted.tolist(),
            }
            for panel in patches.panels
        ],
    }


def _to_grid(xy: NDArray[np.floating[Any]]) -> NDArray[np.int64]:
    """Points (n, 2) as whole numbers from 0 to MAP_SIDE, in their own proportions and centred."""
    low, high = xy.min(axis=0), xy.max(axis=0)
    extent = max(float((high - low).max()), 1e-12)
    return np.round(((xy - (low + high) / 2) / extent + 0.5) * MAP_SIDE).astype(np.int64)

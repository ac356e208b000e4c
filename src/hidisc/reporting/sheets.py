"""Sheets of nearest neighbours: test patches, each beside the reference patches nearest to it."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from numpy.typing import NDArray

from hidisc.embeddings.embeddings import Embeddings
from hidisc.evaluation.predictions import Predictions
from hidisc.evaluation.scores import PatchName, ScoresInfo
from hidisc.ground.files import name_related
from hidisc.ground.seeds import Purpose, make_rng
from hidisc.reporting.evaluated import EvaluatedModel, open_if_unchanged
from hidisc.reporting.figures import GREY, INK, FigureFolder, figure_style, shorten
from hidisc.reporting.points import PatchReader, from_uri, judge_patches, to_uri
from hidisc.reporting.verdict import count_voters
from hidisc.settings.report import ReportConfig

SHEET_PX = 112
"""Side of a picture on a sheet: larger than on the map, for there are few."""
_TILE, _ROW = 0.92, 1.42
"""Side of a tile in a figure, and height of a row with its three lines of text; neighbours are 1 apart."""
_AGREES, _DIFFERS = ("#0a6e5c", "-"), ("#d1571f", (0, (2, 1)))
"""Colour and line style of the border of a neighbour of the same class, and of another one."""


@dataclass(frozen=True)
class SheetTile:
    """A patch on a sheet."""

    uri: str | None
    label: str
    patient: str
    agrees: bool
    """Whether its label is the query's."""
    similarity: float | None = None
    """To the query; None for the query itself."""


@dataclass(frozen=True)
class SheetRow:
    """A query, the class predicted for it, and the patches of the bank nearest to it, nearest first."""

    query: SheetTile
    predicted: str
    neighbours: tuple[SheetTile, ...]


def make_sheets(
    judged: Sequence[EvaluatedModel], reader: PatchReader, drawn: FigureFolder, config: ReportConfig
) -> tuple[list[dict[str, Any]], list[str]]:
    """Nearest neighbours of patches predicted correctly and wrongly by each model; and why there are none of some."""
    sheets, reasons = [], []
    for model in judged if config.sheet_rows else ():
        pairs = zip(model.scores, model.embeddings, strict=True)
        scores, queries = next((pair for pair in pairs if pair[1] is not None), (model.scores[0], None))
        bank = open_if_unchanged(scores.open_bank)
        predictions, neighbours = judge_patches(scores), scores.neighbours()
        if queries is None:
            reasons.append(f"None of {model.name}: its embeddings are gone, or have changed since it was evaluated.")
        elif bank is None or (neighbours is not None and neighbours[0].max(initial=0) >= len(bank)):
            bank_name = repr(name_related(scores.info.bank, scores.path))
            gone = f"the embeddings of its reference patients ({bank_name}) are gone or changed"
            reasons.append(f"None of {model.name}: {gone}.")
        elif predictions is None or neighbours is None:
            reasons.append(f"None of {model.name}: no neighbours were kept (knn.keep=0), or no patches were judged.")
        else:
            rng = make_rng(config.seed, Purpose.SHEET_PATCHES)
            label = str(scores.info.config["label"])
            votes = _say_votes(scores.info, neighbours[0].shape[1])
            for right in (True, False):
                chosen = choose_queries(predictions, config.sheet_rows, right, rng)
                rows = make_sheet(reader, queries, bank, predictions, neighbours, chosen, label)
                sheets.append({"name": model.name, "right": right, "rows": rows, "votes": votes})
                if rows:
                    drawn.save(f"neighbours-{drawn.slug(model.name)}-{'right' if right else 'wrong'}", draw_sheet(rows))
    return sheets, [*reasons, *(f"No pictures: {reason}" for reason in reader.missing if sheets)]


def show_duplicates(judged: Sequence[EvaluatedModel], reader: PatchReader) -> list[tuple[SheetTile, SheetTile]]:
    """Near-duplicates that the evaluations found: a test patch and the patch of another patient, each pair once."""
    shown: dict[tuple[SheetTile, SheetTile], None] = {}
    for scores in (scores for model in judged for scores in model.scores):
        pairs = [pair for finding in scores.info.leakage for pair in finding.pairs]
        agreements = [pair.agreement for pair in pairs]
        ours = _show_named(scores.open_embeddings, [pair.query for pair in pairs], [None] * len(pairs), reader)
        theirs = _show_named(scores.open_bank, [pair.bank for pair in pairs], agreements, reader)
        shown |= dict.fromkeys(zip(ours, theirs, strict=True))
    return list(shown)


def _show_named(
    open_it: Callable[[], Embeddings],
    patches: Sequence[PatchName],
    agreements: Sequence[float | None],
    reader: PatchReader,
) -> list[SheetTile]:
    """Patches (n,) of the embeddings that `open_it` opens as pictures under their names, without one if it is gone."""
    embeddings = open_if_unchanged(open_it) if patches else None
    store = None if embeddings is None else reader.open_store(embeddings)
    tiles = None if store is None else reader.read(store, np.array([patch.row for patch in patches]), SHEET_PX)
    return [
        SheetTile(uri, f"{patch.slide}, {patch.patch}", patch.patient, True, agreement)
        for uri, patch, agreement in zip(_list_uris(tiles, len(patches)), patches, agreements, strict=True)
    ]


def _list_uris(tiles: NDArray[np.uint8] | None, patches: int) -> Sequence[str | None]:
    """Addresses of pictures (n, side, side, 3); None each where there are no pictures."""
    return [None] * patches if tiles is None else [to_uri(tile) for tile in tiles]


def _say_votes(info: ScoresInfo, shown: int) -> str:
    """How many neighbours vote on the class of a patch, and how many of them are on the sheet."""
    if "knn" not in info.probes:
        return f"The {shown:,} most similar patches of the reference patients are shown."
    voters = count_voters(info)
    return (
        f"The {voters:,} nearest patches of the reference patients vote on the class of a patch, the more similar ones "
        f"with more weight; the {min(shown, voters):,} nearest are shown."
    )


def choose_queries(predictions: Predictions, most: int, right: bool, rng: np.random.Generator) -> NDArray[np.int64]:
    """Return rows of patches that were predicted rightly (or not), at random, one of every patient before a second."""
    rows = rng.permutation(np.flatnonzero((predictions.predicted == predictions.truth) == right))
    turns: dict[object, Iterator[int]] = defaultdict(count)
    turn = [next(turns[patient]) for patient in predictions.clusters[rows]]
    return rows[np.argsort(turn, kind="stable")][:most]


def make_sheet(
    reader: PatchReader,
    queries: Embeddings,
    bank: Embeddings,
    predictions: Predictions,
    neighbours: tuple[NDArray[np.int64], NDArray[np.float32]],
    places: NDArray[np.int64],
    label: str,
) -> tuple[SheetRow, ...]:
    """Return the sheet of the patches at rows `places` (n,) of the predictions.

    `neighbours` are rows of the bank and similarities, both (N, k), -1 where there is none; `label` is the column of
    the bank's table to show.
    """
    classes = np.array(predictions.classes, object)
    sheet = []
    for row in places.tolist():
        truth = classes[predictions.truth[row]]
        (query,) = _show(reader, queries, predictions.units["row"][[row]], [truth], truth)
        near = neighbours[0][row] >= 0  # a bank smaller than what was to be kept leaves gaps
        nearest, similar = (values[row][near] for values in neighbours)
        shown = _show(reader, bank, nearest, bank.table.column(label)[nearest], truth, similar.tolist())
        sheet.append(SheetRow(query, str(classes[predictions.predicted[row]]), tuple(shown)))
    return tuple(sheet)


def _show(
    reader: PatchReader,
    embeddings: Embeddings,
    rows: NDArray[np.int64],
    labels: Sequence[object] | NDArray[np.object_],
    truth: object,
    similar: Sequence[float | None] = (None,),
) -> list[SheetTile]:
    """Rows (n,) of embeddings as pictures under their labels (n,); `truth` is the query's label."""
    uris = _list_uris(reader.tiles(embeddings, rows, SHEET_PX), len(rows))
    patients = embeddings.table.column("patient")[rows]
    return [
        SheetTile(uri, str(label), str(patient), label == truth, similarity)
        for uri, label, patient, similarity in zip(uris, labels, patients, similar, strict=True)
    ]


@figure_style()
def draw_sheet(rows: Sequence[SheetRow]) -> Figure:
    """Draw one row per query; borders of neighbours are green (same class) or orange and dashed (another class)."""
    most = max((len(row.neighbours) for row in rows), default=0)
    wide, tall = most + 1.4, max(_ROW * len(rows), 1)
    figure = Figure(figsize=(0.95 * wide, 0.95 * tall))
    axes = figure.add_subplot()
    axes.set(xlim=(0, wide), ylim=(tall, 0))
    axes.set_axis_off()
    for number, row in enumerate(rows):
        wrong = "" if row.predicted == row.query.label else f"predicted {row.predicted}"
        _draw_tile(axes, row.query, 0.1, _ROW * number, wrong)
        for place, shown in enumerate(row.neighbours):
            _draw_tile(axes, shown, 1.4 + place, _ROW * number, f"{shown.similarity:.3f}")
    return figure


def _draw_tile(axes: Axes, shown: SheetTile, left: float, top: float, below: str) -> None:
    """One patch with its label, patient and a third line; a query that has a picture has no border."""
    if shown.uri is not None:
        axes.imshow(from_uri(shown.uri), extent=(left, left + _TILE, top + _TILE, top), aspect="equal")
    if shown.similarity is not None or shown.uri is None:
        colour, line = _AGREES if shown.agrees else _DIFFERS
        axes.add_patch(Rectangle((left, top), _TILE, _TILE, fill=False, lw=1.6, edgecolor=colour, ls=line))
    lines = ((shown.label, "bold", INK), (shown.patient, "normal", GREY), (below, "normal", GREY))
    for number, (text, weight, ink) in enumerate(lines):
        height = top + _TILE + 0.12 + 0.13 * number
        axes.text(left, height, shorten(text, 17), fontsize=5.5, weight=weight, color=ink, va="center")

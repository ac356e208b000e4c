"""The map of a report: patches placed by t-SNE of their embeddings, for the page and as figures."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from hidisc.ground.seeds import Purpose, make_rng, make_seed
from hidisc.ground.text import count
from hidisc.reporting.evaluated import EvaluatedModel
from hidisc.reporting.figures import (
    FONT_PT,
    GREY,
    MARKERS,
    PALE,
    FigureFolder,
    Floats,
    entry,
    figure_style,
    fit,
    lay_panels,
    palette,
    settle,
)
from hidisc.reporting.points import PatchReader, choose_points, find_map_input, name_points, read_points
from hidisc.settings.report import ReportConfig

MAP_SIDE = 9999
"""Coordinates on the map are whole numbers up to this: half the characters, and finer than any screen."""


def make_map(
    models: Sequence[EvaluatedModel],
    reader: PatchReader,
    drawn: FigureFolder,
    config: ReportConfig,
    say: Callable[[str], None],
) -> dict[str, Any] | None:
    """Maps of the same patches by all models whose embeddings are there, as page.html shows them; None without any.

    `data` is what page.js reads: class, patient, slide and site of M patches, and where each model's map has them.
    """
    inputs = [found for model in models if (found := find_map_input(model)) is not None]
    gone = [model.name for model in models if model.name not in {found.name for found in inputs}]
    if not inputs:
        return None
    points = choose_points(inputs, config.points, make_rng(config.seed, Purpose.MAP_POINTS))
    columns = {column.key: column for column in name_points(inputs, points)}
    label, patients = columns["label"], columns["patient"]
    panels, static, crops, words = [], [], [], models[0].words
    for encoder, places, patch in zip(inputs, points.places, points.patch, strict=True):
        say(f"drawing the map of {encoder.name} ...")
        vectors = np.asarray(encoder.embeddings.vectors[encoder.rows[places]], np.float32)
        xy = map_points(vectors, config.perplexity, config.seed)
        x, y = place_on_grid(xy).T.tolist()
        predicted = None if encoder.predicted is None else encoder.predicted[places].tolist()
        panels.append({"name": encoder.name, "patch": patch.tolist(), "x": x, "y": y, "predicted": predicted})
        figure = draw_map(xy, label.codes[patch], label.names, encoder.name)
        static.append(drawn.add(f"map-{drawn.slug(encoder.name)}", figure, f"{encoder.name}, by class", dots=True))
        if label.names:
            patient_names = np.array(patients.names, object)[patients.codes[patch]]
            figure = draw_crops(xy, label.codes[patch], patient_names, label.names)
            caption = f"{encoder.name}: each class by {words.patient}"
            crops.append(drawn.add(f"crops-{drawn.slug(encoder.name)}", figure, caption, dots=True))
    say("reading pictures ...")
    sprite = read_points(reader, inputs, points, config.picture_px)
    total = max(len(encoder.rows) for encoder in inputs)
    sentence = (
        f"{len(points.patch[0]):,} of {total:,} patches, drawn at random, by t-SNE of the embeddings "
        f"(perplexity {config.perplexity:g}, seed {config.seed})."
        f"{' All encoders show the same patches.' if len(inputs) > 1 and points.shared else ''}"
    )
    reasons = [f"No pictures: {reason}" for reason in reader.missing]
    if reader.unreadable:
        reasons.append(f"{count(reader.unreadable, 'patch')} could not be read; the map shows grey instead.")
    if gone:
        reasons.append(f"No map of {', '.join(gone)}: its embeddings are gone, or have changed since it was evaluated.")
    data = {
        "sprite": {"side": sprite.side_px, "across": sprite.across, "each": sprite.each} if sprite else None,
        "colours": palette(len(label.names)),
        "columns": [
            {"key": key, "title": words.word(column.title), "names": column.names, "codes": column.codes.tolist()}
            for key, column in columns.items()
        ],
        "panels": panels,
    }
    return {
        "sentence": sentence,
        "reasons": reasons,
        "data": data,
        "sprites": sprite.uris if sprite else (),
        "static": static,
        "crops": crops,
    }


def place_on_grid(xy: NDArray[np.floating[Any]]) -> NDArray[np.int64]:
    """Points (n, 2) as whole numbers from 0 to MAP_SIDE, in their own proportions and centred."""
    low, high = xy.min(axis=0), xy.max(axis=0)
    extent = max(float((high - low).max()), 1e-12)
    return np.round(((xy - (low + high) / 2) / extent + 0.5) * MAP_SIDE).astype(np.int64)


LEAST = 5
"""Fewest points that have neighbourhoods to show."""
FLAT = 1e-6
"""Unit vectors of a smaller spread differ by rounding only."""


def map_points(vectors: NDArray[Any], perplexity: float, seed: int) -> NDArray[np.float32]:
    """Places (N, 2) of vectors (N, D); vectors of high cosine similarity are near each other on the map.

    Neighbours are exact. The perplexity is at most a third of the number of other points, and fewer than five points
    stand on a circle. Equal vectors, of a collapsed encoder, are scattered at random. Numbers that are not finite count
    as 0.
    """
    unit = _normalise(vectors)
    points = len(unit)
    if points < LEAST:
        angle = 2 * np.pi * np.arange(points) / max(points, 1)
        return np.stack([np.cos(angle), np.sin(angle)], axis=1).astype(np.float32)
    if float(unit.std(axis=0).max()) < FLAT:
        return make_rng(seed, Purpose.COLLAPSED_MAP).normal(size=(points, 2)).astype(np.float32)
    # One thread: sums are then added up in one order everywhere, and a last bit is enough to change the whole map. A
    # second one hardly helps, and on a busy machine the two wait for each other: 3,000 points took three times as long.
    from openTSNE import TSNE, initialization  # takes a second to load, and the explorer keeps its map

    begin = initialization.pca if unit.shape[1] > 1 else initialization.random  # one dimension has no two directions
    with threadpool_limits(1):
        placed = TSNE(
            perplexity=min(perplexity, (points - 1) / 3),
            metric="cosine",
            neighbors="exact",
            initialization=begin(unit, random_state=make_seed(seed, Purpose.MAP_START, bits=32)),
            random_state=make_seed(seed, Purpose.MAP_PLACES, bits=32),
            n_jobs=1,
        ).fit(unit)
    return np.asarray(placed, np.float32)


def _normalise(vectors: NDArray[Any]) -> NDArray[np.float32]:
    """Vectors (N, D) at length 1; a vector of zeros, which has no direction, gets the direction of the first axis."""
    finite = np.nan_to_num(np.asarray(vectors, np.float32), nan=0.0, posinf=0.0, neginf=0.0)
    largest = np.abs(finite).max(axis=1, keepdims=True, initial=0.0)
    # squares of large numbers would overflow
    scaled = np.divide(finite, largest, out=np.zeros_like(finite), where=largest > 0)
    scaled[largest[:, 0] == 0, :1] = 1
    return scaled / np.linalg.norm(scaled, axis=1, keepdims=True)


MOST_NAMES = 24
"""Most names of a legend; a longer one would be taller than the figure, and is left out."""
_RASTER = 2000
"""A map of more points is stored as pixels, because a path per point would take megabytes."""
_CROP_SHARE = 0.6
"""Smallest share of the points of a class that a crop shows."""
_CROP_CENTRES = 400
"""Most points that are tried as the middle of a crop."""


@figure_style()
def draw_map(xy: Floats, codes: NDArray[np.integer[Any]], names: Sequence[str], title: str) -> Figure:
    """Points (N, 2) coloured and marked by their code (N,) into `names`; those of code -1 have no name and are pale."""
    figure = Figure(figsize=(6.6, 5.0))
    axes = figure.add_subplot()
    looks: dict[str, Any] = {"s": _marker_size(len(xy)), "linewidths": 0, "rasterized": len(xy) > _RASTER}
    axes.scatter(*xy[codes < 0].T, color=PALE, **looks)
    marks = MARKERS if len(names) <= len(MARKERS) else MARKERS[:1]
    for code, (name, colour) in enumerate(zip(names, palette(len(names)), strict=True)):
        marker = marks[code % len(marks)]
        axes.scatter(*xy[codes == code].T, color=colour, marker=marker, alpha=0.75, label=entry(name), **looks)
    if 0 < len(names) <= MOST_NAMES:
        columns = 1 + (len(names) > 12)
        legend = axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), ncols=columns, handletextpad=0.3)
        for handle in legend.legend_handles:
            if handle is not None:
                handle.set(sizes=[36], alpha=1)
    _bare(axes)
    return settle(figure, title)


@figure_style()
def draw_crops(xy: Floats, labels: NDArray[np.integer[Any]], patients: NDArray[Any], classes: Sequence[str]) -> Figure:
    """The map (N, 2) magnified where most of each class lies, a panel per class: its points by patient, others pale.

    `labels` (N,) are codes into `classes`, `patients` (N,) names. Colours say only that patients differ.
    """
    figure, panels = lay_panels(len(classes), 4, 2.35, 2.55, 0.3)
    x, y = xy.T
    for code, (name, axes) in enumerate(zip(classes, panels, strict=False)):
        inside = labels == code
        names, number = np.unique(patients[inside].astype(str), return_inverse=True)
        _bare(axes)
        axes.set_title(fit(name, 2.2, FONT_PT, "bold"), fontsize=FONT_PT)
        if not inside.any():
            axes.set_xlabel("no patches", fontsize=8, color=GREY)
            continue
        centre, half = find_crop(xy[inside])
        shown = np.abs(xy - centre).max(axis=1) <= half
        size = 0.8 * _marker_size(int(shown.sum()))
        axes.scatter(x[shown & ~inside], y[shown & ~inside], s=size, color=PALE, linewidths=0)
        colours = np.array(palette(len(names)), object)
        near = shown[inside]
        met = count(len(np.unique(number[near])), "patient")
        axes.set_xlabel(f"{met}, {100 * near.mean():.0f} % of its patches", fontsize=8, color=GREY)
        axes.scatter(
            x[inside][near], y[inside][near], s=size, color=colours[number[near]].tolist(), linewidths=0, alpha=0.85
        )
        axes.set(xlim=(centre[0] - half, centre[0] + half), ylim=(centre[1] - half, centre[1] + half))
    return settle(figure)


def find_crop(points: Floats) -> tuple[Floats, float]:
    """Middle (2,) and half the side of the smallest square around one of the points (n, 2) that holds most points."""
    wanted = max(1, math.ceil(_CROP_SHARE * len(points)))
    tried = points[:: -(-len(points) // _CROP_CENTRES)]
    away = np.abs(tried[:, None, :] - points[None]).max(axis=2)  # (centres, n)
    sides = np.partition(away, wanted - 1, axis=1)[:, wanted - 1]
    best = int(sides.argmin())
    spread = float(np.ptp(points, axis=0).max())
    return tried[best], max(1.05 * float(sides[best]), 0.01 * spread, 1e-3)


def _marker_size(number: int) -> float:
    """Area of a marker in square points; it is smaller where there are many markers."""
    return float(np.clip(9000 / max(number, 1), 5, 40))


def _bare(axes: Axes) -> None:
    """Remove ticks and scale, because places on a t-SNE map have no unit."""
    axes.set(xticks=[], yticks=[], aspect="equal")
    axes.spines[:].set(visible=True, color=PALE)

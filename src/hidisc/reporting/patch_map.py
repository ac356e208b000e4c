"""The map of a report: patches by t-SNE of their embeddings, for the page and as figures."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hidisc.ground.seeds import Purpose, make_rng
from hidisc.ground.text import count
from hidisc.reporting.evaluated import EvaluatedModel
from hidisc.reporting.figures import FigureFolder, palette
from hidisc.reporting.points import PatchReader, choose_points, find_map_input, name_points, read_points
from hidisc.reporting.scatter import draw_crops, draw_map
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
    from hidisc.reporting.tsne import map_points

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
            whose = np.array(patients.names, object)[patients.codes[patch]]
            figure = draw_crops(xy, label.codes[patch], whose, label.names)
            caption = f"{encoder.name}: each class by {words.patient}"
            crops.append(drawn.add(f"crops-{drawn.slug(encoder.name)}", figure, caption, dots=True))
    say("reading pictures ...")
    sprite = read_points(reader, inputs, points, config.picture_px)
    total = max(len(encoder.rows) for encoder in inputs)
    sentence = (
        f"{len(points.patch[0]):,} of {total:,} patches, drawn at random, by t-SNE of the embeddings "
        f"(perplexity {config.perplexity:g}, seed {config.seed})."
    )
    if len(inputs) > 1 and points.shared:
        sentence += " All encoders show the same patches."
    reasons = [f"No pictures: {reason}" for reason in reader.missing]
    if reader.unreadable:
        reasons.append(f"{count(reader.unreadable, 'patch')} could not be read; the map shows grey instead.")
    if gone:
        reasons.append(f"No map of {', '.join(gone)}: its embeddings are gone, or have changed since it was evaluated.")
    data = {
        "sprite": {"side": sprite.side_px, "across": sprite.across, "each": sprite.each} if sprite else None,
        "colours": palette(len(label.names)),
        "columns": [
            {
                "key": column.key,
                "title": words.word(column.title),
                "names": column.names,
                "codes": column.codes.tolist(),
            }
            for column in columns.values()
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

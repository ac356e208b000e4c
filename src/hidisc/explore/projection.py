"""The explorer's map: a place on a plane and a cluster for every patch, computed once per embeddings, kept in a file.

Up to `WHOLE` patches are placed by t-SNE, as in a report. Of more, a sample is placed by t-SNE, and every other patch
at the median place of the sampled patches nearest to it (which is where openTSNE begins with new points).
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hidisc.embeddings.embeddings import Embeddings
from hidisc.evaluation.clusters import find_clusters, to_unit
from hidisc.ground.columns import load_columns, save_columns
from hidisc.ground.errors import UserError
from hidisc.ground.seeds import Purpose, make_rng
from hidisc.ground.text import count
from hidisc.settings.config import Say

WHOLE = 10_000
"""Most patches that t-SNE places: a minute on one core."""
SAMPLE = 5_000
MAP = "explorer-map.parquet"
_NEAREST = 7
_PERPLEXITY = 30.0
_MAIN = 32
"""Main directions in which the sample is compared with the other patches."""
_BLOCK = 16_384


@dataclass(frozen=True, eq=False)
class PlacedPatches:
    """N vectors on the map."""

    places: NDArray[np.float32]
    """(N, 2) between 0 and 1."""
    clusters: NDArray[np.int32]
    """(N,) from 0 on."""


def load_map(embeddings: Embeddings, say: Say) -> PlacedPatches:
    """Places and clusters of all vectors: from the file, if that is of these very embeddings, else anew."""
    path = embeddings.path / MAP
    placed = _read(path, embeddings)
    if placed is not None:
        return placed
    if path.exists():
        say(f"note: {path} is damaged, or not of these embeddings or of this version, and is made again")
    seconds = "about a minute" if len(embeddings) > WHOLE / 2 else "seconds"
    say(f"placing {count(len(embeddings), 'patch')} on the map ({seconds}; it is kept in {path})")
    places = _fit_square(place(embeddings.vectors, seed=0))
    placed = PlacedPatches(places, find_clusters(embeddings.vectors, seed=0))
    try:
        save_map(embeddings, placed)
    except OSError as error:
        say(f"note: the map cannot be kept in {path} ({error.strerror}); it is computed again next time")
    return placed


def save_map(embeddings: Embeddings, placed: PlacedPatches) -> None:
    """Keep the map beside the vectors."""
    x, y = placed.places.T
    columns = {"x": x, "y": y, "cluster": placed.clusters, "embeddings": np.full(len(x), fingerprint(embeddings))}
    save_columns(embeddings.path / MAP, columns)


def _read(path: Path, embeddings: Embeddings) -> PlacedPatches | None:
    """The map in a file; None where it is missing, damaged or of other embeddings."""
    if not path.is_file():
        return None
    try:
        columns = load_columns(path)
    except UserError:
        return None
    if set(columns) != {"x", "y", "cluster", "embeddings"} or len(columns["x"]) != len(embeddings):
        return None
    if (columns["embeddings"] != fingerprint(embeddings)).any():
        return None
    return PlacedPatches(np.stack([columns["x"], columns["y"]], axis=1), columns["cluster"])


def fingerprint(embeddings: Embeddings) -> int:
    """The first 60 bits of the checksum of embeddings, to know their map by."""
    return int(embeddings.artefact.checksum[:15], 16)


def place(vectors: NDArray[Any], seed: int) -> NDArray[np.float32]:
    """Places (N, 2) of vectors (N, D); near ones by cosine similarity are near."""
    from hidisc.reporting.tsne import map_points  # takes a second to load, and the file is mostly there

    if len(vectors) <= WHOLE:
        return map_points(np.asarray(vectors), _PERPLEXITY, seed)
    drawn = make_rng(seed, Purpose.EXPLORED_SAMPLE).choice(len(vectors), SAMPLE, replace=False)
    sample = to_unit(vectors[np.sort(drawn)])
    placed = map_points(sample, _PERPLEXITY, seed)
    centre = sample.mean(axis=0)
    main = np.linalg.svd(sample - centre, full_matrices=False)[2][:_MAIN].T  # (D, _MAIN)
    near = (sample - centre) @ main
    lengths = np.square(near).sum(axis=1)
    places = np.empty((len(vectors), 2), np.float32)
    for start in range(0, len(vectors), _BLOCK):
        rows = slice(start, start + _BLOCK)
        # |a - b|^2 without |a|^2, which does not change who is near
        distances = lengths - 2 * ((to_unit(vectors[rows]) - centre) @ main) @ near.T
        nearest = np.argpartition(distances, _NEAREST, axis=1)[:, :_NEAREST]
        places[rows] = np.median(placed[nearest], axis=1)
    places[np.sort(drawn)] = placed
    return places


def _fit_square(places: NDArray[np.float32]) -> NDArray[np.float32]:
    """The same places, scaled alike on both axes to lie between 0 and 1."""
    low, high = places.min(axis=0, initial=np.inf), places.max(axis=0, initial=-np.inf)
    side = float((high - low).max()) if len(places) else 1.0
    return ((places - (low + high) / 2) / (side or 1.0) + 0.5).astype(np.float32) if len(places) else places

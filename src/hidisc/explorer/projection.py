"""The explorer's map: a place and a cluster for every patch, computed once per embeddings and kept in a file.

Up to `WHOLE` patches are placed by t-SNE, as in a report. Of more, a sample is placed by t-SNE, and every other patch
at the median place of the sampled patches nearest to it (which is where openTSNE begins with new points).
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from hidisc.embeddings.embeddings import Embeddings
from hidisc.explorer.columns import as_rgb_table
from hidisc.ground.columns import load_columns, save_columns
from hidisc.ground.errors import UserError
from hidisc.ground.progress import Say
from hidisc.ground.seeds import Purpose, make_rng
from hidisc.ground.text import count
from hidisc.reporting.prepared import encode

CLUSTERS = 8
"""Number of clusters: as many as there are colours that differ with any colour vision."""
CLUSTER_SAMPLE = 20_000
"""Most patches that the centres are fitted to."""
_STARTS = 4
_BLOCK = 16_384


def find_clusters(vectors: NDArray[Any], seed: int) -> NDArray[np.int32]:
    """The cluster (N,) of each vector (N, D), by the direction of the vectors; cluster 0 is the largest.

    The centres are fitted to a sample; then the vectors are read once, block by block.
    """
    from sklearn.cluster import KMeans  # takes a second to load, and the clusters are mostly kept

    rng = make_rng(seed, Purpose.EXPLORED_CLUSTERS)
    is_many = len(vectors) > CLUSTER_SAMPLE
    sample = to_unit(vectors[np.sort(rng.choice(len(vectors), CLUSTER_SAMPLE, replace=False))] if is_many else vectors)
    most = min(CLUSTERS, len(np.unique(sample, axis=0)))
    if most < 2:
        return np.zeros(len(vectors), np.int32)
    state = int(rng.integers(2**32))
    centres = KMeans(most, n_init=_STARTS, random_state=state).fit(sample).cluster_centers_  # (k, D)
    lengths = np.square(centres).sum(axis=1)
    codes = np.empty(len(vectors), np.int32)
    for start in range(0, len(vectors), _BLOCK):
        block = slice(start, start + _BLOCK)
        codes[block] = (lengths - 2 * to_unit(vectors[block]) @ centres.T).argmin(axis=1)
    order = np.argsort(-np.bincount(codes, minlength=most), kind="stable")
    return np.argsort(order).astype(np.int32)[codes]


def to_unit(rows: NDArray[Any]) -> NDArray[np.float32]:
    """Rows (n, D) at length 1; numbers that are not finite count as 0."""
    rows = np.nan_to_num(np.asarray(rows, np.float32), nan=0.0, posinf=0.0, neginf=0.0)
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), np.float32(1e-30))


_FAINT = 0.35
"""Opacity of a pixel with one patch."""


def draw_density(
    places: NDArray[np.float32], codes: NDArray[np.int32], colours: tuple[str, ...], width: int, height: int
) -> bytes:
    """Draw a PNG (height, width): a pixel has the mean colour of its patches, and is stronger where there are more.

    `places` (n, 2) are between 0 and 1 in the picture; patches outside the picture are not drawn.
    """
    column, row = (np.floor(places[:, axis] * side).astype(np.int64) for axis, side in ((0, width), (1, height)))
    inside = (column >= 0) & (column < width) & (row >= 0) & (row < height)
    pixel, rgb = (row * width + column)[inside], as_rgb_table(colours)
    code = codes[inside]
    counts = np.bincount(pixel, minlength=width * height)
    picture = np.zeros((width * height, 4), np.uint8)
    is_drawn = counts > 0
    for channel in range(3):
        sums = np.bincount(pixel, weights=rgb[code, channel], minlength=width * height)
        picture[is_drawn, channel] = sums[is_drawn] / counts[is_drawn]
    strength = np.log1p(counts[is_drawn]) / np.log1p(counts.max(initial=1))
    picture[is_drawn, 3] = 255 * (_FAINT + (1 - _FAINT) * strength)
    return encode(Image.fromarray(picture.reshape(height, width, 4)), "PNG", compress_level=1)  # fast, not small


def as_jpeg(pixels: NDArray[np.uint8]) -> bytes:
    """A picture (h, w, 3) as JPEG."""
    return encode(Image.fromarray(pixels), "JPEG", quality=88)


WHOLE = 10_000
"""Most patches that t-SNE places: a minute on one core."""
SAMPLE = 5_000
MAP = "explorer-map.parquet"
_NEAREST = 7
_PERPLEXITY = 30.0
_MAIN = 32
"""Main directions in which the sample is compared with the other patches."""


@dataclass(frozen=True, eq=False)
class PlacedPatches:
    """Places and clusters of N vectors."""

    places: NDArray[np.float32]
    """The place (N, 2) of each vector, between 0 and 1."""
    clusters: NDArray[np.int32]
    """The cluster (N,) of each vector, from 0 on."""


def load_map(embeddings: Embeddings, say: Say) -> PlacedPatches:
    """Places and clusters of all vectors: from the file if it was made from these embeddings, else computed now."""
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
    """Save the map beside the vectors."""
    x, y = placed.places.T
    columns = {"x": x, "y": y, "cluster": placed.clusters, "embeddings": np.full(len(x), fingerprint(embeddings))}
    save_columns(embeddings.path / MAP, columns)


def _read(path: Path, embeddings: Embeddings) -> PlacedPatches | None:
    """The map in a file; None if the file is missing, damaged or made from other embeddings."""
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
    """The first 60 bits of the checksum of embeddings, which the file of the map has as well."""
    return int(embeddings.artefact.checksum[:15], 16)


def place(vectors: NDArray[Any], seed: int) -> NDArray[np.float32]:
    """Places (N, 2) of vectors (N, D); vectors of high cosine similarity are near each other."""
    from hidisc.reporting.patch_map import map_points  # takes a second to load, and the file is mostly there

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

"""Regions of a slide as GeoJSON, as QuPath exports and imports them: one reader and one writer for all of hidisc."""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from hidisc.ground.errors import UserError
from hidisc.ground.files import write_atomic

Ring = NDArray[np.float64]
"""(n, 2) corners, level-0 px from the slide's `origin` on; the last one is joined to the first."""
Kind = Literal["annotation", "detection", "tile"]
"""What QuPath calls it: annotations are drawn by people, tiles and detections by programs."""
PALETTE = ((230, 159, 0), (86, 180, 233), (0, 158, 115), (240, 228, 66), (0, 114, 178), (213, 94, 0), (204, 121, 167))
"""Colours of classes that stay apart for colour-blind eyes (Okabe and Ito)."""


@dataclass(frozen=True)
class Region:
    """A region of a slide with a class."""

    polygons: tuple[tuple[Ring, ...], ...]
    """Each polygon is its outline and then its holes; none where a file has a point or a line."""
    name: str | None = None
    """Of its class; None: it has none."""
    color: tuple[int, int, int] | None = None
    measurements: Mapping[str, float] = field(default_factory=dict)
    kind: Kind = "annotation"
    slide: str | None = None
    """Which slide it is on, where the file says so."""
    notes: Mapping[str, str] = field(default_factory=dict)
    """What QuPath shows as metadata of the object."""

    @property
    def rings(self) -> list[Ring]:
        """The outlines and holes of all its polygons."""
        return [ring for polygon in self.polygons for ring in polygon]


def make_box(x: float, y: float, width: float, height: float) -> tuple[tuple[Ring, ...], ...]:
    """The polygons of a rectangle whose upper left corner is (x, y)."""
    return ((np.array([[x, y], [x + width, y], [x + width, y + height], [x, y + height]], float),),)


def write_geojson(path: Path, regions: Iterable[Region]) -> None:
    """Write regions as a GeoJSON file that QuPath imports (File > Import objects from file)."""
    write_atomic(path, format_geojson(regions))


def format_geojson(regions: Iterable[Region]) -> bytes:
    """The content of that file."""
    features = [_to_feature(region) for region in regions]
    text = json.dumps({"type": "FeatureCollection", "features": features}, allow_nan=False, ensure_ascii=False)
    return text.encode()


def _to_feature(region: Region) -> dict[str, Any]:
    polygons = [[_close(ring) for ring in polygon] for polygon in region.polygons]
    several = len(polygons) != 1
    properties: dict[str, Any] = {"objectType": region.kind}
    if region.name is not None:
        properties["classification"] = {"name": region.name}
        if region.color is not None:
            properties["classification"]["color"] = list(region.color)
    metadata = {**region.notes, **({"slide": region.slide} if region.slide is not None else {})}
    if metadata:
        properties["metadata"] = metadata
    known = {name: float(value) for name, value in region.measurements.items() if math.isfinite(value)}
    if known:
        properties["measurements"] = known
    geometry = {"type": "MultiPolygon" if several else "Polygon", "coordinates": polygons if several else polygons[0]}
    return {"type": "Feature", "geometry": geometry, "properties": properties}


def _close(ring: Ring) -> list[list[float]]:
    """The corners of a ring to a hundredth of a pixel, the first again at the end."""
    corners: list[list[float]] = np.round(ring, 2).tolist()
    return [*corners, corners[0]]


def read_geojson(path: Path) -> list[Region]:
    """The regions of a GeoJSON file of QuPath (0.2 or newer) or of `write_geojson`, in the order of the file."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path} cannot be read as GeoJSON ({error}). Export it again from QuPath.") from error
    return parse_geojson(data, str(path))


def parse_geojson(data: bytes | str, path: str) -> list[Region]:
    """The regions in the content of such a file, which messages call `path`."""
    try:
        features = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} cannot be read as GeoJSON ({error}). Export it again from QuPath.") from error
    if isinstance(features, dict):
        features = features["features"] if isinstance(features.get("features"), list) else [features]
    if not isinstance(features, list):
        raise UserError(f"{path} holds no GeoJSON features. Export the objects of the slide from QuPath.")
    regions = []
    for number, feature in enumerate(features, start=1):
        try:
            regions.append(_from_feature(feature))
        except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError) as error:
            raise UserError(
                f"{path}: feature {number} is not as QuPath writes one ({error!r}). Export the file again."
            ) from error
    return regions


def _from_feature(feature: dict[str, Any]) -> Region:
    geometry, properties = feature["geometry"], feature.get("properties") or {}
    kind, coordinates = geometry["type"], geometry["coordinates"]
    polygons = {"Polygon": [coordinates], "MultiPolygon": coordinates}.get(kind, [])
    known = properties.get("classification") or {}
    measured = properties.get("measurements") or {}
    if isinstance(measured, list):  # QuPath before 0.4
        measured = {each["name"]: each["value"] for each in measured}
    object_type = properties.get("objectType", "annotation")
    color = known.get("color")
    metadata = properties.get("metadata") or {}
    slide = metadata.get("slide") or properties.get("slide")
    return Region(
        polygons=tuple(tuple(_read_ring(ring) for ring in polygon) for polygon in polygons),
        name=str(known["name"]) if known.get("name") else None,
        color=(int(color[0]), int(color[1]), int(color[2])) if color else None,
        measurements={str(name): float(value) for name, value in measured.items() if _is_number(value)},
        kind=object_type if object_type in ("detection", "tile") else "annotation",
        slide=str(slide) if slide else None,
        notes={str(name): str(value) for name, value in metadata.items() if name != "slide"},
    )


def _read_ring(corners: Any) -> Ring:
    ring = np.array(corners, float)
    if ring.ndim != 2 or ring.shape[1] < 2 or len(ring) < 3 or not np.isfinite(ring).all():
        raise ValueError("a polygon has fewer than three corners, or one that is no pair of numbers")
    ring = ring[:, :2]
    return ring[:-1] if np.array_equal(ring[0], ring[-1]) else ring


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)

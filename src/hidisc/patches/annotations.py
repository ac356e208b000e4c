"""Regions of slides as GeoJSON, as QuPath writes it: read, written, and used to label or leave out squares."""

import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from hidisc.ground.errors import UserError
from hidisc.ground.files import write_atomic
from hidisc.ground.text import count, name_some
from hidisc.settings.prepare import AnnotationsConfig
from hidisc.slides.cohort import SlideRow
from hidisc.slides.grid import Boxes
from hidisc.slides.names import Name, find_twins
from hidisc.slides.tissue import tissue_fraction

Ring = NDArray[np.float64]
"""(n, 2) corners, level-0 px from the slide's `origin` on; the last one is joined to the first."""
ObjectKind = Literal["annotation", "detection", "tile"]
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
    kind: ObjectKind = "annotation"
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
    polygons = [polygon for polygon in polygons if polygon]  # an empty one is a null geometry (RFC 7946, 3.1)
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
        name=_read_class(str(known["name"])) if known.get("name") else None,
        color=(int(color[0]), int(color[1]), int(color[2])) if color else None,
        measurements={str(name): float(value) for name, value in measured.items() if _is_number(value)},
        kind=object_type if object_type in ("detection", "tile") else "annotation",
        slide=str(slide) if slide else None,
        notes={str(name): str(value) for name, value in metadata.items() if name != "slide"},
    )


def _read_class(name: str) -> str | None:
    """The name of a class with single spaces; one that cannot be printed cannot stand in a table."""
    if not (name := " ".join(name.split())).isprintable():
        raise ValueError("the name of a class has letters that cannot be printed")
    return name or None


def _read_ring(corners: Any) -> Ring:
    ring = np.array(corners, float)
    if ring.ndim != 2 or ring.shape[1] < 2 or len(ring) < 3 or not np.isfinite(ring).all():
        raise ValueError("a polygon has fewer than three corners, or one that is no pair of numbers")
    ring = ring[:, :2]
    return ring[:-1] if np.array_equal(ring[0], ring[-1]) else ring


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


ANNOTATION = "annotation"
"""The column of the classes."""
_SAMPLES = 16
"""Points along the side of a box at which it is looked whether a region covers it."""
_MOST_SAMPLES = 4096
"""Points along the longer side of a slide at most, so that a mask stays below 150 MB."""


@dataclass(frozen=True)
class Annotations:
    """The regions of a cohort's slides."""

    regions: Mapping[str, Sequence[Region]]
    """By slide; those that have a class and an area."""
    classes: tuple[str, ...]
    config: AnnotationsConfig

    def classify(
        self, slide: str, boxes: Boxes, width: int, height: int, origin: tuple[int, int] = (0, 0)
    ) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
        """(N,) the class of each box as a code into `classes`, -1 for none; (N,) whether it is to be left out.

        `origin`: level-0 px at which the coordinates of the regions begin.
        """
        if not self.regions.get(slide):
            return np.full(len(boxes), -1, np.int32), np.zeros(len(boxes), bool)
        shares = np.zeros((len(self.classes), len(boxes)), np.float32)
        scale = max(boxes.extent / _SAMPLES, max(width, height) / _MOST_SAMPLES)
        shape = (ceil(height / scale), ceil(width / scale))
        masks: dict[str, NDArray[np.bool_]] = {}
        for region in self.regions[slide]:
            assert region.name is not None
            mask = fill([ring + origin for ring in region.rings], shape, scale)
            masks[region.name] = masks[region.name] | mask if region.name in masks else mask
        for name, mask in masks.items():
            shares[self.classes.index(name)] = tissue_fraction(mask, boxes, scale)
        is_unwanted = np.array([name in self.config.exclude for name in self.classes], bool)[:, None]
        excluded = np.where(is_unwanted & (shares >= self.config.exclude_share), shares, 0)
        wanted = np.where(~is_unwanted & (shares >= self.config.min_share), shares, 0)
        is_excluded: NDArray[np.bool_] = excluded.max(axis=0) > 0
        chosen = np.where(is_excluded, excluded, wanted)
        codes = np.where(chosen.max(axis=0) > 0, chosen.argmax(axis=0), -1).astype(np.int32)
        return codes, is_excluded


def fill(rings: Iterable[Ring], shape: tuple[int, int], scale: float) -> NDArray[np.bool_]:
    """Mask (h, w) of the pixels whose centres lie inside an odd number of rings; `scale`: level-0 px per pixel.

    Each edge that a row of centres crosses toggles what lies to the right of it, so that holes need no care.
    """
    height, width = shape
    toggles = np.zeros((height, width + 1), bool)
    for ring in rings:
        corners = np.asarray(ring) / scale - 0.5  # in units where centres are whole numbers
        for (x0, y0), (x1, y1) in zip(corners, np.roll(corners, -1, axis=0), strict=True):
            rows = np.arange(max(0, ceil(min(y0, y1))), min(height, ceil(max(y0, y1))))
            if len(rows):
                crossed = x0 + (rows - y0) * ((x1 - x0) / (y1 - y0))
                toggles[rows, np.clip(np.ceil(crossed), 0, width).astype(int)] ^= True
    return np.asarray(np.logical_xor.accumulate(toggles, axis=1)[:, :width])


def load_annotations(config: AnnotationsConfig, rows: Sequence[SlideRow]) -> tuple[Annotations | None, list[str]]:
    """The regions of the slides as the settings say (None: nothing is said), and warnings."""
    if config.path is None:
        return None, []
    path = Path(config.path)
    slide_of = _name_slides(rows)
    found, warnings = _read_folder(path, slide_of) if path.is_dir() else (_read_file(path, slide_of), [])
    regions: dict[str, list[Region]] = defaultdict(list)
    for slide, region in found:
        if region.name and region.polygons:
            regions[slide].append(region)
    left = sum(not (region.name and region.polygons) for _, region in found)
    if left:
        warnings.append(f"{count(left, 'object')} without a class, or without an area, left out.")
    classes = tuple(dict.fromkeys(str(region.name) for each in regions.values() for region in each))
    warnings += find_twins(Name("annotation", name, "a class") for name in classes)
    unknown = [name for name in config.exclude if name not in classes]
    if unknown:
        raise UserError(
            f"annotations.exclude: no annotation in {path} is of class {unknown[0]!r}; there are "
            f"{name_some(classes, 20) or 'none'}. Choose among these."
        )
    return Annotations(regions, classes, config), [f"{path}: {warning}" for warning in warnings]


def _name_slides(rows: Sequence[SlideRow]) -> dict[str, str]:
    """The slide that a name means: the name of a slide, or of a file that no other slide's is called."""
    times = Counter(name for row in rows for name in {row.path.name, row.path.stem})
    files = {name: row.slide for row in rows for name in (row.path.name, row.path.stem) if times[name] == 1}
    return files | {row.slide: row.slide for row in rows}


def _read_folder(folder: Path, slide_of: Mapping[str, str]) -> tuple[list[tuple[str, Region]], list[str]]:
    """The regions of every slide that has a file of its name, and warnings."""
    files = sorted(path for path in folder.iterdir() if path.suffix.lower() in (".geojson", ".json"))
    named = {path: slide for path in files if (slide := slide_of.get(path.stem))}
    if not named:
        raise UserError(
            f"{folder} holds no GeoJSON file of a slide of the cohort. Export one per slide from QuPath, called "
            "SLIDE.geojson with the name of the slide or of its file."
        )
    others = [path.name for path in files if path not in named]
    warnings = [f"{name_some(others)}: no slide of the cohort has this name."] if others else []
    return [(slide, region) for path, slide in named.items() for region in read_geojson(path)], warnings


def _read_file(path: Path, slide_of: Mapping[str, str]) -> list[tuple[str, Region]]:
    """The regions of one file for all slides, of which each says its slide; a cohort of one slide needs no word."""
    only = next(iter(slide_of.values())) if len(set(slide_of.values())) == 1 else None
    found = []
    for number, region in enumerate(read_geojson(path), start=1):
        slide = slide_of.get(region.slide) if region.slide else only
        if slide is None:
            raise UserError(
                f"{path}: feature {number} is on slide {region.slide!r}, which is none of the cohort. Write the name "
                "of its slide as property `slide`, or give a folder with one file per slide."
            )
        found.append((slide, region))
    return found

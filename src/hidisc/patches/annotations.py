"""Hand-drawn regions of slides -> a class per box, and boxes to leave out: quality control by people."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hidisc.ground.errors import UserError
from hidisc.ground.text import count, name_some
from hidisc.patches.geojson import Region, Ring, read_geojson
from hidisc.settings.prepare import AnnotationsConfig
from hidisc.slides.cohort import SlideRow
from hidisc.slides.grid import Boxes
from hidisc.slides.tissue import tissue_fraction

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
    mask: NDArray[np.bool_] = np.logical_xor.accumulate(toggles, axis=1)[:, :width]
    return mask


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

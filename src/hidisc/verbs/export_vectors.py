"""`hidisc export` of embeddings and scores: bags for CLAM, TRIDENT and STAMP, GeoJSON for QuPath, AnnData."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hidisc.artefacts.artefact import make, read_kind
from hidisc.embeddings.bags import KIND, check_h5ad, name_files, write_bags, write_h5ad
from hidisc.embeddings.embeddings import Embeddings
from hidisc.evaluation.scores import SCORES, Scores
from hidisc.evaluation.task import group
from hidisc.ground.errors import UserError
from hidisc.ground.files import AnyPath, full_disk_said
from hidisc.ground.progress import Say, ignore
from hidisc.ground.text import name_some
from hidisc.patches.annotations import PALETTE, Region, make_box, write_geojson
from hidisc.patches.record import SlideGeometry
from hidisc.patches.store import PatchStore
from hidisc.settings.config import Config
from hidisc.training.run import RUN


class ExportSettings(Config):
    """What an exported folder depends on beside its inputs."""

    to: str


def export_bags(embeddings_path: AnyPath, out: AnyPath, say: Say = ignore) -> int:
    """Write embeddings as bags, one HDF5 per slide for CLAM, TRIDENT and STAMP; how many. A killed export goes on."""
    embeddings = open_embeddings(Path(embeddings_path), KIND)
    with full_disk_said("What has been written is whole"):
        return write_bags(embeddings, Path(out), say)


def open_embeddings(path: Path, to: str) -> Embeddings:
    """Embeddings to export; a run is refused with what to do."""
    if holds(path, RUN, "train"):
        raise UserError(
            f"{path} is a run, and --to {to} writes embeddings. Make them with `hidisc embed STORE {path} --out EMB` "
            "and give EMB."
        )
    return Embeddings.load(path)


def holds(path: Path, file: str, kind: str) -> bool:
    """Whether a folder holds what this file, or what began it, says."""
    return (path / file).is_file() or read_kind(path) == kind


H5AD = "embeddings.h5ad"


def export_anndata(embeddings_path: AnyPath, out: AnyPath) -> tuple[Path, int]:
    """Write embeddings as AnnData; (the file, how many patches)."""
    out = Path(out)
    embeddings = open_embeddings(Path(embeddings_path), "anndata")
    check_h5ad(embeddings)
    settings, inputs = ExportSettings(to="anndata"), {"the patches": embeddings.artefact.checksum}
    with full_disk_said("The embeddings are as they were"), make(out, "patches", settings, inputs) as work:
        if not work.is_finished():
            write_h5ad(embeddings, out / H5AD)
            work.finish([H5AD])
    return out / H5AD, len(embeddings)


Numbers = NDArray[Any]


@dataclass(frozen=True)
class _Tiles:
    """N patches on their slides."""

    slide: NDArray[np.object_]
    x: Numbers
    y: Numbers
    name: NDArray[np.object_]
    """(N,) class of each; None: none."""
    measurements: Mapping[str, Numbers]
    mpp: Numbers | None

    def choose(self, rows: NDArray[np.intp]) -> "_Tiles":
        """Some of them."""
        measurements = {name: values[rows] for name, values in self.measurements.items()}
        return _Tiles(self.slide[rows], self.x[rows], self.y[rows], self.name[rows], measurements, None)


def export_geojson(artefact_path: AnyPath, out: AnyPath) -> int:
    """Write the patches of embeddings (with their labels) or scores (as predicted) per slide; how many slides."""
    path, out = Path(artefact_path), Path(out)
    artefact: Embeddings | Scores
    if holds(path, SCORES, "evaluate"):
        artefact = scores = Scores.load(path)
        tiles = _read_scores(scores)
        source = scores.open_embeddings()
    else:
        artefact = embeddings = source = open_embeddings(path, "geojson")
        tiles = _read_table(embeddings)
    store = _open_store(source)
    if store is not None:
        tiles = tiles.choose(np.flatnonzero(np.ones(len(tiles.x), bool) & store.are_finest(tiles.mpp)))
        if not len(tiles.x):
            raise UserError(
                f"{path} has no patches of the finest scale, {store.scales[0]:g} um/px. Embed these as well."
            )
    if (tiles.x < 0).any():
        raise UserError(f"{path} has patches that were imported as files: it is not known where on a slide they are.")
    settings, inputs = ExportSettings(to="geojson"), {"the patches": artefact.artefact.checksum}
    with full_disk_said("What has been written is whole"), make(out, "patches", settings, inputs) as work:
        names = list(dict.fromkeys(tiles.slide.tolist()))
        files = dict(zip(names, (f"{stem}.geojson" for stem in name_files(names)), strict=True))
        if not work.is_finished():
            _write_boxes(tiles, source.read_geometries(), {slide: out / file for slide, file in files.items()})
            work.finish(files.values())
    return len(files)


def _write_boxes(tiles: _Tiles, geometries: Mapping[str, SlideGeometry], files: Mapping[str, Path]) -> None:
    colours = _colour(tiles.name.tolist())
    slides, codes = np.unique(tiles.slide, return_inverse=True)
    rows_of = dict(zip(slides.tolist(), group([codes]).rows(), strict=True))
    for slide, file in files.items():
        geometry = geometries[slide]
        extent = geometry.extent or 0.0
        left, top = geometry.origin or (0, 0)
        regions = (
            Region(
                polygons=make_box(float(tiles.x[row]) - left, float(tiles.y[row]) - top, extent, extent),
                name=tiles.name[row],
                color=colours.get(tiles.name[row]),
                measurements={name: float(values[row]) for name, values in tiles.measurements.items()},
                kind="tile",
            )
            for row in rows_of[slide]
        )
        write_geojson(file, regions)


def _colour(names: Sequence[str | None]) -> dict[str | None, tuple[int, int, int]]:
    """A colour for every class."""
    classes = sorted({name for name in names if name is not None})
    return {name: PALETTE[number % len(PALETTE)] for number, name in enumerate(classes)}


def _read_table(embeddings: Embeddings) -> _Tiles:
    table = embeddings.table
    slide, x, y, label = (table.column(name) for name in ("slide", "x", "y", "label"))
    return _Tiles(slide, x, y, label, {}, table.column("mpp"))


def _read_scores(scores: Scores) -> _Tiles:
    """What the first probe that has scores of patches predicts."""
    probe = next((probe for probe in scores.info.probes if scores.info.find("patch", probe)), None)
    patches = scores.predictions(probe, "patch") if probe else None
    if patches is None or "slide" not in patches.units:
        raise UserError(
            f"{scores.path} has no scores of single patches of slides. Evaluate with levels=[patient, slide, patch]."
        )
    measurements = {f"score: {name}": patches.scores[:, code] for code, name in enumerate(patches.classes)}
    predicted = np.array(patches.classes, object)[patches.predicted]
    slide, x, y = (patches.units[name] for name in ("slide", "x", "y"))
    return _Tiles(slide, x, y, predicted, measurements, patches.units.get("mpp"))


def _open_store(embeddings: Embeddings) -> PatchStore | None:
    """The store of the patches, which says how large a patch is on its slide; None: the import of features says it."""
    if embeddings.info.store is None:
        unknown = [geometry.slide for geometry in embeddings.info.geometries if not geometry.extent]
        if unknown:
            raise UserError(
                f"the features of {embeddings.path} were imported without the size of a patch on its slide, of "
                f"{name_some(unknown)}. Import files that have it (TRIDENT, STAMP)."
            )
        return None
    store = embeddings.open_store()
    if store is None:
        raise UserError(
            f"the store {embeddings.path / embeddings.info.store} is not there, or has changed since. It says how "
            "large a patch is on its slide: put it back, or embed it anew."
        )
    return store

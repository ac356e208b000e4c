"""Embeddings for other tools: files per slide as CLAM, TRIDENT and STAMP read them, and one Parquet of everything.

What the tools ask for, as their public code reads it:

CLAM opens `pt_files/SLIDE_ID.pt` (a tensor) to train, `h5_files/SLIDE_ID.h5` (`features`, `coords`) where it wants
coordinates, and a CSV of `case_id, slide_id, label`.
TRIDENT opens any such file, with attributes of `coords`: `patch_size_level0` is the grid of its slide encoders.
STAMP opens `feats` and `coords`, these in micrometres, with `tile_size_um`; its CSV keeps a patient's slides together.

CLAM and TRIDENT want level-0 pixels where STAMP wants micrometres, so STAMP gets files of its own, with coordinates of
their own and a link to the other file's features.

Embeddings as AnnData (.h5ad), as scanpy, squidpy and LazySlide read it: one observation per patch.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from hidisc.artefacts.artefact import make
from hidisc.embeddings.embeddings import PATCHES, Embeddings
from hidisc.ground.columns import stream_vectors
from hidisc.ground.errors import UserError
from hidisc.ground.files import replaced, write_atomic
from hidisc.ground.machine import versions
from hidisc.ground.progress import Say, ignore
from hidisc.ground.spreadsheet import format_csv
from hidisc.patches.record import SlideGeometry, folder_name
from hidisc.patches.table import PatchTable
from hidisc.settings.config import Config

FEATURES, TENSORS, STAMP = "h5_files", "pt_files", "stamp"
SLIDES, EVERYTHING = "slides.csv", "embeddings.parquet"
KIND = "bags"
_COLUMNS = ("case_id", "slide_id", "label", "site", "split", "file", "patches", "slide")
_BLOCK_BYTES = 2**25
_NUMBERED = "side by side in one row: where the patches lay is not known"
_NOT_TEXT = {"na", "null", "none", "true", "false"}
"""Names that a CSV reader (pandas) reads as something else."""


class _Settings(Config):
    """The facts that the bags depend on beside the embeddings."""

    sizes_known: bool
    """Whether the store or the import was there to say how large patches are."""


@dataclass(frozen=True)
class _Bag:
    """One slide."""

    slide: str
    patient: str
    stem: str
    """Of its files."""
    rows: NDArray[np.int64]
    """(n,) of the embeddings."""


def write_bags(embeddings: Embeddings, out: Path, say: Say = ignore) -> int:
    """Write a folder of bags; returns their number. Files of a killed export are kept; `slides.csv` comes last.

    Memory: the table and the vectors of one slide.
    """
    embeddings.refuse_coarse(embeddings.open_store(), "a bag")
    geometries = embeddings.read_geometries()
    if not any(geometry.extent for geometry in geometries.values()):
        say(
            f"note: {embeddings.why_no_pictures}. So the size of a patch on the slide is not known: {FEATURES} lacks "
            f"it, and {STAMP}, which needs it, stays empty."
        )
    inputs = {"the embeddings": embeddings.artefact.checksum}
    with make(out, KIND, _Settings(sizes_known=bool(geometries)), inputs) as work:
        bags = _gather(embeddings.table)
        if not work.is_finished(say):
            work.finish(_write_all(embeddings, geometries, bags, out, say))
    return len(bags)


def _write_all(
    embeddings: Embeddings, geometries: Mapping[str, SlideGeometry], bags: Sequence[_Bag], out: Path, say: Say
) -> list[str]:
    """Write the files that are missing; returns the names of all files."""
    table = embeddings.table
    corners = np.stack([table.column("x"), table.column("y")], axis=1).astype(np.int64)
    for folder in (FEATURES, TENSORS, STAMP):
        (out / folder).mkdir(exist_ok=True)
    placed = [_write_bag(embeddings, bag, geometries.get(bag.slide), corners[bag.rows], out) for bag in bags]
    if not (out / EVERYTHING).is_file():
        block = max(1, _BLOCK_BYTES // (4 * embeddings.info.dim))
        stream_vectors(out / EVERYTHING, embeddings.path / PATCHES, embeddings.vectors, block)
    if geometries and not all(placed):
        say(
            f"note: {placed.count(False)} of {len(bags)} slides have no known um/px, which STAMP asks for, and are not "
            f"in {out / STAMP}. Import them with --set mpp=... for that."
        )
    write_atomic(out / SLIDES, _slides_csv(table, bags, say).encode())
    names = [f"{folder}/{bag.stem}.h5" for folder in (FEATURES, STAMP) for bag in bags]
    names += [f"{TENSORS}/{bag.stem}.pt" for bag in bags]
    return [SLIDES, EVERYTHING, *(name for name in names if (out / name).is_file())]


def _gather(table: PatchTable) -> list[_Bag]:
    """The slides in the order of the table, with the slides of a patient together."""
    patients, by_slide = table.column("patient"), table.rows_by("slide")
    first_of_patient: dict[str, int] = {}
    for rows in by_slide.values():
        first_of_patient.setdefault(patients[rows[0]], int(rows[0]))
    bags = [
        _Bag(slide, patients[rows[0]], stem, rows)
        for (slide, rows), stem in zip(by_slide.items(), name_files(list(by_slide)), strict=True)
    ]
    return sorted(bags, key=lambda bag: (first_of_patient[bag.patient], bag.rows[0]))


def name_files(slides: Sequence[str]) -> list[str]:
    """A file name for each slide: its own where that is safe and no other's, whatever the case of its letters."""
    plain = [slide if _is_plain(slide) else folder_name(slide) for slide in slides]
    taken = Counter(stem.lower() for stem in plain)
    return [stem if taken[stem.lower()] == 1 else folder_name(slide) for slide, stem in zip(slides, plain, strict=True)]


def _is_plain(slide: str) -> bool:
    """Whether a slide's name is a safe file name that a CSV reader gives back as it is ('007' would come back as 7)."""
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,119}", slide) or slide.lower() in _NOT_TEXT:
        return False
    try:
        number = float(slide)
    except ValueError:
        return True
    return number.is_integer() and slide == str(int(number))


def _write_bag(
    embeddings: Embeddings, bag: _Bag, geometry: SlideGeometry | None, corners: NDArray[np.int64], out: Path
) -> bool:
    """Write the missing files of one slide; returns whether STAMP can read it.

    `corners` (n, 2): level-0 px of the upper left ones, -1 where they are not known.
    """
    name = f"{bag.stem}.h5"
    features = out / FEATURES / name
    extent = max(1, round(geometry.extent)) if geometry and geometry.extent else None
    is_placed = bool((corners >= 0).all())
    if not is_placed:
        row = np.arange(len(corners)) * (extent or 1)
        corners = np.stack([row, np.zeros_like(row)], axis=1)
    if not _is_whole(features, (len(bag.rows), embeddings.info.dim)):
        with _new_file(features) as file:
            file.create_dataset("features", data=_read_features(embeddings, bag))
            coords = file.create_dataset("coords", data=corners)
            coords.attrs.update(_describe(bag, geometry, extent))
            if not is_placed:
                coords.attrs["coords_are"] = _NUMBERED
    if not (out / TENSORS / f"{bag.stem}.pt").is_file():
        _write_tensor(out / TENSORS / f"{bag.stem}.pt", _read_features(embeddings, bag))
    if geometry is None or geometry.mpp is None or geometry.extent is None:
        return False
    if not (out / STAMP / name).is_file():
        with _new_file(out / STAMP / name) as file:
            file["feats"] = h5py.ExternalLink(f"../{FEATURES}/{name}", "/features")
            file.create_dataset("coords", data=(corners * geometry.mpp).astype(np.float32))
            file.attrs.update(
                unit="um",
                tile_size_um=geometry.extent * geometry.mpp,
                tile_size_px=geometry.size_px or extent,
                feat_type="tile",
                extractor=_text(embeddings.info.model.name),
            )
            if not is_placed:
                file.attrs["coords_are"] = _NUMBERED
    return True


def _read_features(embeddings: Embeddings, bag: _Bag) -> NDArray[np.float32]:
    """(n, D) the vectors of a slide."""
    return np.asarray(embeddings.vectors[bag.rows], np.float32)


def _describe(bag: _Bag, geometry: SlideGeometry | None, extent: int | None) -> dict[str, Any]:
    """The attributes of `coords`: TRIDENT's names, and ours for pixel sizes."""
    attributes: dict[str, Any] = {"name": bag.stem, "slide": _text(bag.slide)}
    if geometry is None or extent is None:
        return attributes
    attributes |= {"patch_size": geometry.size_px or extent, "patch_size_level0": extent}
    if geometry.mpp is not None:
        mpp = geometry.patch_mpp or geometry.mpp
        attributes |= {"level0_mpp": geometry.mpp, "patch_mpp": mpp}
        # by the usual reckoning, as the whole numbers that TRIDENT compares
        attributes |= {"level0_magnification": _magnify(geometry.mpp), "target_magnification": _magnify(mpp)}
    if geometry.width is not None and geometry.height is not None:
        attributes |= {"level0_width": geometry.width, "level0_height": geometry.height}
    return attributes


def _magnify(mpp: float) -> int:
    """The magnification that a scale is usually called: 0.25 um/px is 40x."""
    return max(1, round(10 / mpp))


def _text(value: str) -> str:
    """Text that HDF5 can hold."""
    return value.replace("\0", "\N{REPLACEMENT CHARACTER}")


def _write_tensor(path: Path, features: NDArray[np.float32]) -> None:
    """The features (n, D) as a plain tensor, which torch reads with `weights_only=True`."""
    import torch

    with replaced(path) as part, part.open("wb") as file:  # by its name, torch would write the name into the file
        torch.save(torch.from_numpy(features), file)


@contextmanager
def _new_file(path: Path) -> Iterator[h5py.File]:
    """An HDF5 file that appears under its name when it is whole."""
    with replaced(path) as part, h5py.File(part, "w") as file:
        yield file


def _is_whole(path: Path, shape: tuple[int, int]) -> bool:
    """Whether a slide's file is there and has all its features."""
    try:
        with h5py.File(path, "r") as file:
            return bool(file["features"].shape == shape and len(file["coords"]) == shape[0])
    except (OSError, KeyError):
        return False


def _slides_csv(table: PatchTable, bags: Sequence[_Bag], say: Say) -> str:
    """`slides.csv`: `slide_id` is the name of the file, as CLAM has it, and `slide` the cohort's."""
    facts = {name: table.codes(name) for name in ("label", "site", "split")}
    mixed, rows = 0, []
    for bag in bags:
        row: dict[str, Any] = {name: _one_name(*facts[name], bag.rows) for name in facts}
        mixed += row["label"] is None
        row |= {"case_id": bag.patient, "slide_id": bag.stem, "file": f"{bag.stem}.h5"}
        row |= {"patches": len(bag.rows), "slide": bag.slide}
        rows.append([row[name] for name in _COLUMNS])
    if mixed:
        say(f"note: {mixed} of {len(bags)} slides have patches of several labels; their label in {SLIDES} is empty.")
    return format_csv(_COLUMNS, rows)


def _one_name(codes: NDArray[np.int32], names: Sequence[str], rows: NDArray[np.int64]) -> str | None:
    """The name that all patches of a slide share: empty when they have no name, None when they differ."""
    present = np.unique(codes[rows])
    if len(present) > 1:
        return None
    return names[present[0]] if present[0] >= 0 else ""


CENTRE, CORNER = "centre of the patch, level-0 px", "upper left corner of the patch, level-0 px"
_NUMBERS = ("patch", "mpp", "tissue_fraction", "pixel_std")


def check_h5ad(embeddings: Embeddings) -> None:
    """Refuse embeddings that cannot be written, before a folder is made for them."""
    if find_spec("anndata") is None:
        raise UserError("--to anndata needs the library anndata. Install it: pip install 'hidisc[anndata]'.")
    names: dict[str, str] = {}
    for name in embeddings.table.names:
        other = names.setdefault(_name_obs(name), name)
        if other != name:
            raise UserError(
                f"columns {other!r} and {name!r} would be one column of AnnData. Rename one in the cohort, prepare and "
                "embed again."
            )
    embeddings.refuse_coarse(embeddings.open_store(), "AnnData")


def _name_obs(name: str) -> str:
    """The name of a column in `obs`: a slash would make groups in HDF5."""
    return name.replace("/", "_")


def write_h5ad(embeddings: Embeddings, path: Path) -> None:
    """Write `X` (N, D) float32, `obs` with all columns of the patches, `obsm['spatial']` and `uns['hidisc']`.

    Memory: all vectors once, as whoever opens the file will need.
    """
    import anndata
    import pandas

    table = embeddings.table
    obs: dict[str, Any] = {name: pandas.Categorical.from_codes(*table.codes(name)) for name in table.names}
    obs |= {name: table.column(name) for name in _NUMBERS}
    provenance = _describe_source(embeddings)
    data = anndata.AnnData(
        X=np.asarray(embeddings.vectors, np.float32),
        obs=pandas.DataFrame(
            {_name_obs(name): values for name, values in obs.items()},
            index=[str(row) for row in range(len(embeddings))],
        ),
        var=pandas.DataFrame(index=[f"feature_{number}" for number in range(embeddings.info.dim)]),
        uns={"hidisc": provenance},
    )
    places = _find_places(embeddings)
    if places is not None:
        data.obsm["spatial"], provenance["spatial_is"] = places.points, places.point
    if places is not None and places.extents is not None:
        data.obs["extent"] = places.extents
    with replaced(path) as part:
        data.write_h5ad(part)


@dataclass(frozen=True)
class _Places:
    """Where N patches lie on their slides."""

    points: NDArray[np.float64]
    """(N, 2)."""
    point: str
    """Which point of a patch this is."""
    extents: NDArray[np.float64] | None = None
    """(N,) sides of the patches in level-0 px; None: not known."""


def _find_places(embeddings: Embeddings) -> _Places | None:
    """The places of the patches; None: they were imported as files."""
    table = embeddings.table
    corners = np.stack([table.column("x"), table.column("y")], axis=1).astype(np.float64)
    if (corners < 0).any():
        return None
    geometries, (codes, slides) = embeddings.read_geometries(), table.codes("slide")
    known = [geometries[slide].extent if slide in geometries else None for slide in slides]
    extents = np.array(known, np.float64)[codes]  # None becomes NaN
    if np.isnan(extents).any():
        return _Places(corners, CORNER)
    return _Places(corners + extents[:, None] / 2, CENTRE, extents)


def _describe_source(embeddings: Embeddings) -> dict[str, Any]:
    """The facts about the vectors; AnnData cannot hold None."""
    info = embeddings.info
    known = {
        "model": info.model.name,
        "weights_sha256": info.model.checksum,
        "objective": info.model.objective,
        "backbone": info.model.backbone,
        "slides_learned_from": len(info.model.history.slides),
        "history_is_complete": info.model.history.is_complete,
        "labels_used": ", ".join(info.model.history.labels_used),
        "patches_sha256": info.store_checksum,
        "embeddings_sha256": embeddings.artefact.checksum,
        "hidisc": versions("hidisc")["hidisc"],
    }
    return {name: value for name, value in known.items() if value is not None}

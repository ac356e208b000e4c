"""Feature files of several slides, which name the slide of each row: a .npy beside a CSV, Parquet, AnnData."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from hidisc.embeddings.slide_features import Read, SlideFeatures, as_text, read_shape
from hidisc.ground.columns import VectorColumns
from hidisc.ground.errors import UserError
from hidisc.ground.spreadsheet import read_sheet
from hidisc.patches.record import SlideGeometry

_SLIDES = ("slide", "slide_id", "filename")


def open_array(path: Path) -> list[SlideFeatures]:
    """A .npy of one slide, or of several where a CSV beside it names the slide of each row."""
    try:
        data = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise UserError(f"{path} is no array of numbers, or damaged ({error}). Save it with numpy.save.") from error
    rows, dim = read_shape(path, data.shape)
    data = data.reshape(rows, dim)
    beside = path.with_suffix(".csv")
    if not beside.is_file():
        read: Read = lambda start, stop: np.asarray(data[start:stop])  # noqa: E731
        return [SlideFeatures(path, path.stem, rows, dim, data.dtype, read)]
    sheet = read_sheet(beside, ())
    if len(sheet.rows) != rows:
        raise UserError(f"{path} has {rows:,} rows, and {beside.name} names {len(sheet.rows):,}. Give one per row.")
    columns = {name: np.array([cells[name] or None for _, cells in sheet.rows], object) for name in sheet.columns}
    return _split(path, columns, dim, data.dtype, lambda chosen: np.asarray(data[chosen]))


def open_parquet(path: Path) -> list[SlideFeatures]:
    """The slides of a Parquet file with a vector per row."""
    vectors = VectorColumns(path)
    return _split(path, vectors.columns, vectors.dim, vectors.dtype, vectors.read)


def open_h5ad(path: Path) -> list[SlideFeatures]:
    """The slides of an AnnData file: vectors in X, names in obs; places, where it is known what they are places of."""
    try:
        import anndata
    except ImportError as error:
        raise UserError(f"{path} needs the library anndata. Install it: pip install 'hidisc[anndata]'.") from error
    try:
        data = anndata.read_h5ad(path, backed="r")
        if not isinstance(data.X, h5py.Dataset):
            raise UserError(f"{path} has a sparse or empty X, and features are dense numbers (N, D) in X.")
        dim, dtype = int(data.shape[1]), np.dtype(data.X.dtype)
        columns = {str(name): _as_column(data.obs[name].to_numpy()) for name in data.obs.columns}
        about = data.uns.get("hidisc") or {}
        spatial = np.asarray(data.obsm["spatial"], np.float64) if "spatial" in data.obsm else None
        data.file.close()
    except (OSError, KeyError, ValueError, TypeError) as error:
        raise UserError(f"{path} is no AnnData file, or damaged ({error}). Write or copy it again.") from error

    def read(chosen: NDArray[np.int64]) -> NDArray[Any]:
        with h5py.File(path, "r") as file:
            first, last = int(chosen.min()), int(chosen.max()) + 1
            if last - first == len(chosen):
                return np.asarray(file["X"][first:last])
            return np.asarray(file["X"][np.sort(chosen)])[np.argsort(np.argsort(chosen))]

    if spatial is not None and str(about.get("spatial_is", "")).startswith("upper left corner"):
        columns |= {"x": spatial[:, 0], "y": spatial[:, 1]}
    elif spatial is not None and about and "extent" in columns:
        half = columns.pop("extent").astype(np.float64) / 2
        columns |= {"x": spatial[:, 0] - half, "y": spatial[:, 1] - half, "extent": 2 * half}
    found = _split(path, columns, dim, dtype, read)
    model = as_text(about.get("model"))
    return [replace(features, extractor=model) for features in found]


def _as_column(values: NDArray[Any]) -> NDArray[Any]:
    """Numbers as they are, anything else as names or None."""
    if values.dtype.kind in "iuf":
        return values
    return np.array([None if value is None or value != value else str(value) for value in values.tolist()], object)


def _split(
    path: Path,
    columns: Mapping[str, NDArray[Any]],
    dim: int,
    dtype: np.dtype[Any],
    read: Callable[[NDArray[np.int64]], NDArray[Any]],
) -> list[SlideFeatures]:
    """The slides of a file that names the slide of each row; `read` gives some of its rows."""
    name = next((name for name in _SLIDES if name in columns), None)
    if name is None:
        raise UserError(
            f"{path} does not name the slide of each row: it has no column `slide`. Its columns are "
            f"{', '.join(columns) or 'none'}. Add it."
        )
    slides = _as_column(columns[name])
    missing = [number for number, slide in enumerate(slides.tolist()) if slide is None]
    if missing:
        raise UserError(f"{path}: row {missing[0]:,} has no {name}. Fill it in.")
    names, codes, counts = np.unique(slides.astype(str), return_inverse=True, return_counts=True)
    rows_of = np.split(np.argsort(codes, kind="stable"), np.cumsum(counts)[:-1])
    pairs = sorted(zip(names.tolist(), rows_of, strict=True), key=lambda pair: int(pair[1][0]))
    return [_choose(path, slide, rows, columns, dim, dtype, read) for slide, rows in pairs]


def _choose(
    path: Path,
    slide: str,
    rows: NDArray[np.int64],
    columns: Mapping[str, NDArray[Any]],
    dim: int,
    dtype: np.dtype[Any],
    read: Callable[[NDArray[np.int64]], NDArray[Any]],
) -> SlideFeatures:
    """One slide of such a file, by its rows (n,)."""
    own = {name: values[rows] for name, values in columns.items()}
    number = {name: _as_numbers(own.pop(name)) for name in ("x", "y", "mpp", "extent") if name in own}
    corners = np.stack([number["x"], number["y"]], axis=1) if {"x", "y"} <= number.keys() else None
    if corners is not None and (np.isnan(corners) | (corners < 0)).any():
        corners = None  # the patches had been imported as files
    mpp, extent = (_one_number(number.get(name)) for name in ("mpp", "extent"))
    return SlideFeatures(
        path,
        slide,
        len(rows),
        dim,
        dtype,
        lambda start, stop: read(rows[start:stop]),
        corners=corners,
        geometry=SlideGeometry(slide="", extent=extent),
        patch_mpp=mpp,
        columns=own,
    )


def _as_numbers(values: NDArray[Any]) -> NDArray[np.float64]:
    try:
        return np.array([np.nan if value is None else value for value in values.tolist()], np.float64)
    except ValueError:
        return np.full(len(values), np.nan)


def _one_number(values: NDArray[np.float64] | None) -> float | None:
    """The number that all rows share."""
    if values is None or np.isnan(values).any() or (values != values[0]).any():
        return None
    return float(values[0])

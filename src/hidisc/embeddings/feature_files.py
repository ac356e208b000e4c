"""Features that other tools have extracted, as their files have them: TRIDENT, CLAM, STAMP, arrays, Parquet, AnnData.

One file per slide, whose name is the slide's:

TRIDENT and CLAM   .h5: `features` (N, D) or (1, N, D), `coords` (N, 2) in level-0 px, with the size of a patch as
                   attributes of `coords`; TRIDENT's folder `features_NAME` names the encoder
STAMP              .h5: `feats` (N, D), `coords` (N, 2) in micrometres, with size, unit and encoder as attributes
CLAM               .pt: a plain tensor (N, D), which is read without unpickling anything else
NumPy              .npy: (N, D)

One file of several slides: a .npy with a CSV of the same name beside it, Parquet, or AnnData, which name the slide of
each row.
"""

import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from hidisc.embeddings.feature_tables import open_array, open_h5ad, open_parquet
from hidisc.embeddings.slide_features import SlideFeatures, as_text, read_shape
from hidisc.ground.errors import UserError
from hidisc.patches.record import SlideGeometry

SUFFIXES = (".h5", ".hdf5", ".pt", ".pth", ".npy", ".parquet", ".h5ad")
_MANY = (".parquet", ".h5ad")
"""Files that always name the slide of each row."""
_FEATURES = ("features", "feats", "embeddings")
_FOLDER = "features_"
"""How TRIDENT's folders of features begin; the rest is the name of the encoder."""


def find_features(source: Path) -> list[SlideFeatures]:
    """The slides in a file or folder, in the order of the files; every file that cannot be read is named at once."""
    files = _list_files(source)
    if not files:
        raise UserError(f"{source} holds no feature files ({', '.join(SUFFIXES)}). Give the folder that holds them.")
    found: list[SlideFeatures] = []
    problems = []
    for path in files:
        try:
            opened = _open(path)
            for features in opened:
                _check(features)
            found += opened
        except UserError as error:
            problems.append(str(error))
    if problems:
        more = f"\n  ... and {len(problems) - 20} more." if len(problems) > 20 else ""
        raise UserError("\n  ".join([*problems[:20]]) + more)
    _refuse_mixtures(found)
    return found


def _list_files(source: Path) -> list[Path]:
    """The feature files below a folder; of CLAM's two folders of the same features, the one with coordinates."""
    if source.is_file():
        return [source]
    for name in ("h5_files", "pt_files"):
        if (source / name).is_dir():
            source = source / name
            break
    paths = sorted(path for path in source.rglob("*") if path.suffix.lower() in SUFFIXES and path.is_file())
    return [path for path in paths if not any(part.startswith(".") for part in path.relative_to(source).parts)]


def _open(path: Path) -> list[SlideFeatures]:
    """The slides of one file."""
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise UserError(f"{path} is no feature file. Give one of {', '.join(SUFFIXES)}, or a folder of these.")
    if path.stat().st_size == 0:
        raise UserError(f"{path} is empty (0 bytes). Extract that slide again, or remove the file.")
    if suffix in (".h5", ".hdf5"):
        return [_open_h5(path)]
    if suffix in (".pt", ".pth"):
        return [_open_tensor(path)]
    if suffix in _MANY:
        return open_parquet(path) if suffix == ".parquet" else open_h5ad(path)
    return open_array(path)


def _check(features: SlideFeatures) -> None:
    """Refuse features without rows or columns, without numbers, or with places that are not numbers."""
    if not features.rows or not features.dim:
        raise UserError(
            f"{features.path} has 0 patches of slide {features.slide!r}. Extract that slide again, or remove the file."
        )
    if features.dtype.kind != "f":
        raise UserError(f"{features.path} holds {features.dtype}, and features are floating-point numbers.")
    if features.corners is not None and not np.isfinite(features.corners).all():
        raise UserError(f"{features.path}: `coords` contain NaN or infinity. Extract that slide again.")


def _refuse_mixtures(found: Iterable[SlideFeatures]) -> None:
    """Refuse vectors of different widths, and of different encoders."""
    first: dict[str, SlideFeatures] = {}
    for features in found:
        for what, value in (("width", f"{features.dim} numbers"), ("encoder", features.extractor)):
            before = first.setdefault(what, features) if value is not None else features
            other = f"{before.dim} numbers" if what == "width" else before.extractor
            if other != value:
                raise UserError(
                    f"the features are of different encoders: {before.path} has {other}, {features.path} has {value}. "
                    "Import each encoder's features by themselves."
                )


def _open_h5(path: Path) -> SlideFeatures:
    try:
        with h5py.File(path, "r") as file:
            name = next((name for name in _FEATURES if isinstance(file.get(name), h5py.Dataset)), None)
            if name is None:
                raise UserError(
                    f"{path} has no dataset {' or '.join(_FEATURES[:2])}; it has {', '.join(file) or 'none'}. Give the "
                    "folder of features, not that of coordinates."
                )
            data = file[name]
            rows, dim = read_shape(path, data.shape)
            coords = file.get("coords")
            known = {**file.attrs, **(coords.attrs if coords is not None else {})}
            corners = None if coords is None or data.ndim == 1 else _read_corners(path, coords, rows)
            extractor = _name_extractor(path, {**file.attrs, **data.attrs})
            made = SlideFeatures(
                path, path.stem, rows, dim, data.dtype, lambda start, stop: _read_h5(path, str(name), start, stop)
            )
    except (OSError, RuntimeError, KeyError, ValueError) as error:
        raise UserError(
            f"{path} is no HDF5 file, or damaged ({str(error).strip(chr(39))}). Copy or extract that slide again."
        ) from error
    full_name = as_text(known.get("slide")) or ""
    if "coords_are" in known or (name != "features" and "unit" not in known and "tile_size_um" not in known):
        corners = None  # side by side in one row, or of an unknown unit
    return replace(made, corners=corners, full_name=full_name, extractor=extractor, **_describe(known))


def _read_corners(path: Path, coords: h5py.Dataset, rows: int) -> NDArray[np.float64]:
    """(N, 2) of `coords` (N, 2) or (1, N, 2)."""
    corners = np.asarray(coords[()], np.float64)
    corners = corners[0] if corners.ndim == 3 and len(corners) == 1 else corners
    if len(corners) != rows:
        raise UserError(
            f"{path} has {rows:,} rows of features and {len(corners):,} of coords, so it is not known which patch is "
            "which. Extract that slide again."
        )
    if corners.shape != (rows, 2):
        raise UserError(f"{path} has coords of shape {corners.shape}. Valid is (N, 2): x and y of each patch.")
    return corners


def _describe(known: Mapping[str, Any]) -> dict[str, Any]:
    """Sizes and scale by the attributes of STAMP, else of TRIDENT, CLAM and our own exports."""
    number = {key: value for key in known if (value := _as_number(known[key])) is not None}
    if as_text(known.get("unit")) == "um" or "tile_size_um" in number:
        extent, size = number.get("tile_size_um", number.get("tile_size")), number.get("tile_size_px")
        geometry = SlideGeometry(slide="", size_px=size and round(size), extent=extent)
        return {"in_um": True, "geometry": geometry, "patch_mpp": extent / size if extent and size else None}
    size, extent = number.get("patch_size"), number.get("patch_size_level0")
    if extent is None and size is not None and ("downsample" in number or number.get("patch_level") == 0):
        extent = size * number.get("downsample", 1.0)
    geometry = SlideGeometry(
        slide="",
        size_px=size and round(size),
        extent=extent,
        mpp=number.get("level0_mpp"),
        width=number.get("level0_width") and round(number["level0_width"]),
        height=number.get("level0_height") and round(number["level0_height"]),
    )
    return {"geometry": geometry, "patch_mpp": number.get("patch_mpp")}


def _as_number(value: Any) -> float | None:
    """A number above or at 0 among attributes; CLAM writes (4.0, 4.0) for both axes."""
    try:
        number = float(np.ravel(value)[0])
    except (TypeError, ValueError, IndexError):
        return None
    return number if np.isfinite(number) and number >= 0 else None


def _name_extractor(path: Path, known: Mapping[str, Any]) -> str | None:
    """The encoder by an attribute, or by the name of TRIDENT's folder."""
    for name in ("extractor", "encoder"):
        if text := as_text(known.get(name)):
            return text
    folders = [Path(as_text(known.get("savetodir")) or "").name, path.parent.name]
    return next(
        (name.partition(_FOLDER)[2] for name in folders if _FOLDER in name and name.partition(_FOLDER)[2]), None
    )


def _read_h5(path: Path, name: str, start: int, stop: int) -> NDArray[Any]:
    with h5py.File(path, "r") as file:
        data = file[name]
        if data.ndim == 2:
            return np.asarray(data[start:stop])
        return np.asarray(data[0, start:stop] if data.ndim == 3 else data[()][None])


def _open_tensor(path: Path) -> SlideFeatures:
    tensor = _load_tensor(path)
    rows, dim = read_shape(path, tuple(tensor.shape))
    dtype = np.dtype(np.float16 if str(tensor.dtype) == "torch.float16" else np.float32)
    if not tensor.is_floating_point():
        dtype = np.dtype(np.int64)  # which is refused

    def read(start: int, stop: int) -> NDArray[Any]:
        part = _load_tensor(path).reshape(rows, dim)[start:stop]
        return np.asarray((part if dtype == np.float16 else part.float()).numpy())

    return SlideFeatures(path, path.stem, rows, dim, dtype, read, extractor=_name_extractor(path, {}))


def _load_tensor(path: Path) -> Any:
    """The tensor in a file, memory-mapped where the format allows it; nothing but tensors is ever unpickled."""
    import torch

    try:
        loaded = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except Exception as error:
        raise UserError(
            f"{path} holds no plain tensor, or is damaged, and nothing else is unpickled, because that could run "
            "commands. Save the features as a tensor (torch.save(features, file)) or as HDF5."
        ) from error
    if not isinstance(loaded, torch.Tensor) or loaded.layout != torch.strided:
        raise UserError(
            f"{path} holds a {type(loaded).__name__}, and features are a plain tensor (N, D). Save the tensor alone."
        )
    return loaded.detach()

"""Feature files as TRIDENT, CLAM and STAMP write them, by h5py and torch alone: nothing of our exporter."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
from numpy.typing import NDArray

DIM, PATCH, LEVEL0 = 12, 256, 512
Cohort = dict[str, tuple[NDArray[np.float32], NDArray[np.int64]]]
"""By slide, features (N, D) and coords (N, 2)."""


def make_cohort(
    patients: int = 8, slides: int = 2, patches: int = 9, dim: int = DIM, seed: int = 0, prefix: str = "P"
) -> tuple[Cohort, list[dict[str, str]]]:
    """Features that tell two labels apart, and the rows of the table; patients of even numbers are `benign`."""
    rng = np.random.default_rng(seed)
    cohort, rows = {}, []
    for number in range(patients):
        label = ("benign", "malignant")[number % 2]
        centre = rng.normal(size=dim) * 0.3 + (2.0 if number % 2 else 0.0)
        for slide in range(slides):
            name = f"{prefix}{number:02}-S{slide}"
            features = (centre + rng.normal(size=(patches, dim))).astype(np.float32)
            index = np.arange(patches)
            cohort[name] = features, np.stack([index % 3 * LEVEL0, index // 3 * LEVEL0 + 100], axis=1)
            rows.append(
                {"patient": f"{prefix}{number:02}", "slide": name, "label": label, "site": f"site {number % 3}"}
            )
    return cohort, rows


def write_table(path: Path, rows: Sequence[Mapping[str, str]]) -> Path:
    columns = list(rows[0])
    lines = [",".join(columns), *(",".join(row[name] for name in columns) for row in rows)]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")
    return path


def write_rows(file: h5py.File, name: str, values: NDArray[Any]) -> h5py.Dataset:
    """A dataset that grows, one row per chunk, as TRIDENT and CLAM make theirs."""
    made = file.create_dataset(
        name, values.shape, values.dtype, chunks=(1, *values.shape[1:]), maxshape=(None, *values.shape[1:])
    )
    made[:] = values
    return made


def write_trident(folder: Path, cohort: Cohort, encoder: str = "uni_v1", batched: bool = False) -> Path:
    """`JOB/20x_256px_0px_overlap/features_ENCODER/SLIDE.h5`; `batched`: (1, N, D)."""
    out = folder / "20x_256px_0px_overlap" / f"features_{encoder}"
    out.mkdir(parents=True)
    for slide, (features, corners) in cohort.items():
        with h5py.File(out / f"{slide}.h5", "w") as file:
            made = write_rows(file, "features", features[None] if batched else features)
            made.attrs.update(name=slide, savetodir=str(out))
            coords = write_rows(file, "coords", corners)
            coords.attrs.update(
                patch_size=PATCH,
                patch_size_level0=LEVEL0,
                level0_magnification=40,
                target_magnification=20,
                overlap=0,
                name=slide,
                savetodir=str(folder),
                level0_width=6000,
                level0_height=5000,
            )
    return out


def write_clam(folder: Path, cohort: Cohort) -> Path:
    """`FEATURES/h5_files/SLIDE.h5` without attributes, and `FEATURES/pt_files/SLIDE.pt`."""
    for name in ("h5_files", "pt_files"):
        (folder / name).mkdir(parents=True)
    for slide, (features, corners) in cohort.items():
        with h5py.File(folder / "h5_files" / f"{slide}.h5", "w") as file:
            write_rows(file, "features", features)
            write_rows(file, "coords", corners.astype(np.int32))
        torch.save(torch.from_numpy(features), folder / "pt_files" / f"{slide}.pt")
    return folder


def write_stamp(folder: Path, cohort: Cohort, mpp: float = 0.25, extractor: str = "virchow2") -> Path:
    """`OUTPUT/EXTRACTOR/SLIDE.h5`: half precision, places in micrometres."""
    out = folder / extractor
    out.mkdir(parents=True)
    for slide, (features, corners) in cohort.items():
        with h5py.File(out / f"{slide}.h5", "w") as file:
            file["coords"] = (corners * mpp).astype(np.float32)
            file["feats"] = features.astype(np.float16)
            file.attrs["stamp_version"] = "2.3.0"
            file.attrs["extractor"] = extractor
            file.attrs["unit"] = "um"
            file.attrs["tile_size_um"] = LEVEL0 * mpp
            file.attrs["tile_size_px"] = 224
            file.attrs["code_hash"] = "0123abcd"
            file.attrs["feat_type"] = "tile"
    return out

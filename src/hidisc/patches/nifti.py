"""NIfTI files in folders (`patient/scan.nii.gz`) or listed in a CSV -> volumes to import."""

import zlib
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unicodedata import normalize

import numpy as np
from numpy.typing import NDArray

from hidisc.ground.errors import UserError
from hidisc.ground.files import AnyPath
from hidisc.ground.text import count, name_some
from hidisc.patches.people import People
from hidisc.patches.volume import Volume, VolumeSource, check_size, gather_scans, load_library, orient, walk_files
from hidisc.settings.prepare import VolumesConfig
from hidisc.slides.cohort import Cohort, SlideRow, refuse
from hidisc.slides.names import is_text
from hidisc.slides.slide import SlideError

_load_nibabel = partial(load_library, "nibabel", "NIfTI volumes", "nibabel.global")
ENDINGS = (".nii.gz", ".nii")
_MM = {"meter": 1000.0, "micron": 0.001}
"""Millimetres of a header's unit; an unknown one is mm."""
_RAS_TO_LPS = np.diag([-1.0, -1.0, 1.0])
_DAMAGED = (OSError, EOFError, ValueError, KeyError, zlib.error, OverflowError, MemoryError)
"""What nibabel raises on files that are cut short or no NIfTI, beside its own errors."""


@dataclass(frozen=True)
class NiftiFile:
    """One volume, or one frame of it, and its mask."""

    path: Path
    mask: Path | None = None
    mask_name: str = ""
    """What the mask must be called; empty where there need not be one."""
    frame: int | None = None

    @property
    def paths(self) -> tuple[Path, ...]:
        """All files of the volume."""
        return (self.path,) if self.mask is None else (self.path, self.mask)

    def read(self) -> Volume:
        """The volume in LPS; files that are damaged or hold something else are refused."""
        if self.mask_name and self.mask is None:
            raise SlideError("there is no mask beside the volume. Add it, or leave out `mask`.")
        values, spacing = _read(self.path, self.frame)
        if self.mask is None:
            return Volume(values, spacing)
        mask, mask_spacing = _read(self.mask, self.frame)
        if not np.allclose(mask_spacing, spacing, rtol=0.01):
            raise SlideError("the mask has another spacing than the volume. Give the mask that belongs to it.")
        return Volume(values, spacing, mask > 0)


def find_nifti(
    root: AnyPath, config: VolumesConfig, patients_csv: AnyPath | None = None, key_file: AnyPath | None = None
) -> VolumeSource:
    """Volumes at `root/patient/scan.nii.gz`, or those of a CSV `patient, slide, path`; masks are no scans.

    `patients_csv`: labels, sites, splits and further columns; `key_file`: names become pseudonyms (`people.py`).
    """
    _load_nibabel()
    root, people = Path(root), People(patients_csv, key_file)
    if root.is_file():
        cohort = Cohort.load(root, "slide")
        rows, warnings = list(cohort.slides), list(cohort.warnings)
    else:
        rows, warnings = _walk(root)
    masks = {mask for row in rows if (mask := _find_mask(row.path, config)) is not None}
    rows = [row for row in rows if row.path not in masks]
    if not rows:
        raise UserError(f"{root} holds no volumes at patient/scan.nii.gz. Give the folder of the patients, or a CSV.")
    volumes = []
    for row in rows:
        choose_frame = partial(NiftiFile, row.path, _find_mask(row.path, config), _mask_name(row.path, config))
        volumes.append((row, _count_frames(row.path, config), choose_frame))
    return gather_scans(root, volumes, people, warnings, is_private=key_file is not None)


def _walk(root: Path) -> tuple[list[SlideRow], list[str]]:
    """A row per file below a folder; the first folder is the patient, the rest of the path the scan."""
    rows, odd, problems = [], [], []
    for path in walk_files(root):
        parts = path.relative_to(root).parts
        if not path.name.lower().endswith(ENDINGS):
            continue
        if len(parts) < 2:
            odd.append(path.name)
            continue
        if not is_text("/".join(parts)):
            problems.append(f"{'/'.join(parts)!r} has letters that are not UTF-8 in its name. Rename it.")
            continue
        patient, scan = (normalize("NFC", name) for name in (parts[0], "/".join((*parts[1:-1], _stem(path)))))
        rows.append(SlideRow(patient, f"{patient}/{scan}", path))
    refuse(root, problems)
    lies = "lies" if len(odd) == 1 else "lie"
    said = [f"{count(len(odd), 'file')} {lies} in no patient's folder, and left out: {name_some(odd)}."]
    return rows, said if odd else []


def _stem(path: Path) -> str:
    return next(path.name[: -len(ending)] for ending in ENDINGS if path.name.lower().endswith(ending))


def _mask_name(path: Path, config: VolumesConfig) -> str:
    return (config.mask or "").replace("{name}", _stem(path))


def _find_mask(path: Path, config: VolumesConfig) -> Path | None:
    if config.mask is None:
        return None
    name = _mask_name(path, config)
    return next((found for ending in ENDINGS if (found := path.with_name(name + ending)).is_file()), None)


def _count_frames(path: Path, config: VolumesConfig) -> int:
    """How many scans are in a file: one, or one per frame."""
    if not config.frames:
        return 1
    nibabel = _load_nibabel()
    try:
        shape = nibabel.load(path).shape
    except _list_damage(nibabel):
        return 1  # said when it is read
    return max(1, int(shape[3])) if len(shape) > 3 else 1


def _list_damage(nibabel: Any) -> tuple[type[Exception], ...]:
    return (*_DAMAGED, nibabel.filebasedimages.ImageFileError, nibabel.spatialimages.HeaderDataError)


def _read(path: Path, frame: int | None) -> tuple[NDArray[np.float32], tuple[float, float, float]]:
    """Values (X, Y, Z) and spacing in mm of a file or of one of its frames, in LPS."""
    nibabel = _load_nibabel()
    try:
        image = nibabel.load(path, mmap=False)  # a mapped file that is cut short meanwhile would kill the process
        _check(image, frame)
        values = np.asarray(image.dataobj[..., frame or 0] if image.ndim == 4 else image.dataobj, np.float32)
        affine, units = np.asarray(image.affine, np.float64), image.header.get_xyzt_units()
        with nibabel.openers.ImageOpener(path) as file:  # a loaded header has 1 mm where the file has no spacing
            steps = np.asarray(type(image.header).from_fileobj(file, check=False).get_zooms()[:3], np.float64)
    except _list_damage(nibabel) as error:
        raise SlideError(
            f"the file is no NIfTI volume, or cut short ({type(error).__name__}). Copy or convert it again."
        ) from error
    lengths = np.linalg.norm(affine[:3, :3], axis=0)
    # some converters leave the spacing out of the affine, which then has the orientation alone
    if not np.allclose(lengths, steps, rtol=0.01) and not np.allclose(lengths, 1) and steps.all():
        raise SlideError(
            f"the header has two spacings, {steps.round(3).tolist()} (pixdim) and {lengths.round(3).tolist()} (affine)"
            ". Correct one of them, or convert the volume again."
        )
    x, y, z = (float(step) * _MM.get(units[0], 1.0) for step in steps)
    directions = _RAS_TO_LPS @ affine[:3, :3] / np.maximum(lengths, 1e-12)
    return orient(values, directions, (x, y, z))


def _check(image: Any, frame: int | None) -> None:
    """Refuse an image that is no volume of numbers, before its values are read."""
    check_size(image.shape[:3])
    if image.get_data_dtype().kind not in "iuf":
        raise SlideError("the volume holds colours or complex numbers, not one number per point. Convert it.")
    if image.ndim == 3 or (image.ndim == 4 and (image.shape[3] == 1 or frame is not None)):
        return
    raise SlideError(
        f"the volume has {image.ndim} axes ({' x '.join(map(str, image.shape))} values). If the fourth is time, --set "
        "frames=true makes every frame a scan; convert others to volumes of three axes."
    )

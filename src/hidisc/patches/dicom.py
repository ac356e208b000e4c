"""DICOM files in any folders -> volumes to import, one per series.

Of a file's header only what `_TAGS` lists is read: patients' names, dates and other identifying tags are not. Nothing
of the names of files or series is kept either.
"""

import hashlib
import warnings
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hidisc.ground.errors import UserError
from hidisc.ground.files import AnyPath
from hidisc.ground.text import count, printable
from hidisc.patches.people import People
from hidisc.patches.volume import (
    FoundVolume,
    Volume,
    VolumeSource,
    check_size,
    gather_scans,
    load_library,
    orient,
    walk_files,
)
from hidisc.settings.prepare import VolumesConfig
from hidisc.slides.cohort import SlideRow
from hidisc.slides.slide import SlideError

_load_pydicom = partial(load_library, "pydicom", "DICOM series", "pydicom")
_TAGS = (
    "PatientID", "SeriesInstanceUID", "Modality", "Manufacturer", "ManufacturerModelName", "ImagePositionPatient",
    "ImageOrientationPatient", "PixelSpacing", "SliceThickness", "Rows", "Columns", "NumberOfFrames",
    "SamplesPerPixel", "InstanceNumber",
)  # fmt: skip
_SAME_MM = 0.01
"""Slices closer to each other are at one place."""
_LONG = 64
"""Characters of a scanner's name that are kept."""


@dataclass(frozen=True)
class Instance:
    """One file of a series: where its slice lies."""

    path: Path
    number: int
    shape: tuple[int, int]
    """Rows and columns."""
    frames: int
    samples: int
    position: tuple[float, ...]
    """LPS, mm; empty where the file does not say."""
    orientation: tuple[float, ...]
    """LPS direction of a row and of a column."""
    spacing: tuple[float, ...]
    """mm from row to row and from column to column."""
    thickness: float


@dataclass(frozen=True)
class DicomSeries:
    """The files of one series, or one frame of it."""

    instances: tuple[Instance, ...]
    frame: int | None = None

    @property
    def paths(self) -> tuple[Path, ...]:
        """All files of the series."""
        return tuple(instance.path for instance in self.instances)

    def read(self) -> Volume:
        """The volume in LPS; a series that is no volume, or damaged, is refused."""
        frames = arrange(self.instances)
        if len(frames) > 1 and self.frame is None:
            raise SlideError(
                f"the series has {len(frames)} images at every place, so it has a time axis or several echoes. --set "
                "frames=true makes each of them a scan."
            )
        slices = frames[self.frame or 0]
        first = slices[0]
        check_size((*first.shape, len(slices)))
        values = np.stack([_read_pixels(item) for item in slices], axis=-1).transpose(1, 0, 2)  # column, row, slice
        directions, steps = _measure(slices)
        return Volume(*orient(values, directions, steps))


def find_dicom(
    root: AnyPath, config: VolumesConfig, patients_csv: AnyPath | None = None, key_file: AnyPath | None = None
) -> VolumeSource:
    """The series below a folder, told apart by SeriesInstanceUID; the patient is PatientID, or a pseudonym of it."""
    _load_pydicom()
    if config.mask is not None:
        raise UserError("mask goes with `import nifti`. Convert the series and their masks, by dcm2niix.")
    root, people = Path(root), People(patients_csv, key_file)
    series: dict[tuple[str, str], list[tuple[Instance, dict[str, str | None]]]] = defaultdict(list)
    left_out = 0
    for path in walk_files(root):
        header = _read_header(path)
        if header is None:
            left_out += 1
        else:
            patient, uid, columns, instance = header
            series[patient, uid].append((instance, columns))
    if not series:
        raise UserError(f"{root} holds no DICOM images with a PatientID. Give the folder of the exported series.")
    volumes: list[FoundVolume] = []
    for (patient, uid), found in series.items():
        instances = tuple(instance for instance, _ in found)
        scan = hashlib.sha256(uid.encode()).hexdigest()[:12]
        row = SlideRow(patient, f"{patient}/{scan}", instances[0].path, more=found[0][1])
        volumes.append((row, _count_frames(instances, config), partial(DicomSeries, instances)))
    said = [f"{count(left_out, 'file')} below {root} left out: no DICOM image of a patient."]
    return gather_scans(root, volumes, people, said if left_out else (), is_private=True)


def arrange(instances: Sequence[Instance]) -> list[list[Instance]]:
    """Frames, each with its slices along the normal of the images; refuses instances that are no volume."""
    first = instances[0]
    if any(item.frames > 1 for item in instances):
        raise SlideError("a file holds several images (enhanced DICOM). Convert the series to NIfTI, by dcm2niix.")
    if any(item.samples != 1 for item in instances):
        raise SlideError("the series holds colours, not one number per point. Leave it out.")
    if not all(len(item.position) == 3 and len(item.orientation) == 6 for item in instances):
        raise SlideError("the files do not say where their images lie (ImagePositionPatient). Leave the series out.")
    if not all(len(item.spacing) == 2 for item in instances):
        raise SlideError("the files do not say how far apart their pixels are (PixelSpacing). Leave the series out.")
    for item in instances:
        if item.shape != first.shape or item.spacing != first.spacing:
            raise SlideError(
                f"the images of the series have different sizes ({first.shape[1]} x {first.shape[0]} and "
                f"{item.shape[1]} x {item.shape[0]} pixels, or other spacings). Leave out those that do not belong."
            )
        if not np.allclose(item.orientation, first.orientation, atol=1e-3):
            raise SlideError("the images of the series lie in different planes, such as a localizer's. Leave it out.")
    normal = _directions(first)[:, 2]
    heights = {item.path: float(np.dot(normal, item.position)) for item in instances}
    ordered = sorted(instances, key=lambda item: (heights[item.path], item.number))
    places: list[list[Instance]] = []
    for item in ordered:
        if places and heights[item.path] - heights[places[-1][0].path] <= _SAME_MM:
            places[-1].append(item)
        else:
            places.append([item])
    if len({len(place) for place in places}) > 1:
        most, least = max(map(len, places)), min(map(len, places))
        raise SlideError(f"the series has {most} images at some places and {least} at others. Copy it again, complete.")
    return [list(frame) for frame in zip(*places, strict=True)]


def _measure(slices: Sequence[Instance]) -> tuple[NDArray[np.float64], tuple[float, float, float]]:
    """Directions (3, 3) and spacing of the axes column, row and slice."""
    first = slices[0]
    directions = _directions(first)
    rows_mm, columns_mm = first.spacing
    along = [float(np.dot(directions[:, 2], item.position)) for item in slices]
    gaps = np.diff(along) if len(slices) > 1 else np.array([first.thickness])
    gap = float(np.median(gaps))
    if gaps.max() > 1.5 * gap:
        raise SlideError(
            f"the images of the series are {gap:g} mm apart, but two neighbours are {gaps.max():g}: some are missing. "
            "Copy it again, complete."
        )
    return directions, (columns_mm, rows_mm, gap)


def _directions(instance: Instance) -> NDArray[np.float64]:
    """Unit vectors in LPS along which columns, rows and slices are counted, as columns of (3, 3)."""
    row, column = np.array(instance.orientation, np.float64).reshape(2, 3)
    return np.stack([row, column, np.cross(row, column)], axis=1)


def _read_header(path: Path) -> tuple[str, str, dict[str, str | None], Instance] | None:
    """Patient, series, further columns and geometry of a file; None for what is no image of a patient."""
    try:
        with warnings.catch_warnings(action="ignore"):
            header = _load_pydicom().dcmread(path, stop_before_pixels=True, specific_tags=list(_TAGS))
            patient, uid = (str(header.get(tag) or "").strip() for tag in _TAGS[:2])
            patient.encode()
            if not patient or not uid or not header.get("Rows") or not header.get("Columns"):
                return None
            scanner = " ".join(str(header.get(tag) or "") for tag in ("Manufacturer", "ManufacturerModelName"))
            columns = {"modality": str(header.get("Modality") or ""), "scanner": scanner}
            instance = Instance(
                path=path,
                number=int(header.get("InstanceNumber") or 0),
                shape=(int(header.Rows), int(header.Columns)),
                frames=int(header.get("NumberOfFrames") or 1),
                samples=int(header.get("SamplesPerPixel") or 1),
                position=_list_numbers(header, "ImagePositionPatient"),
                orientation=_list_numbers(header, "ImageOrientationPatient"),
                spacing=_list_numbers(header, "PixelSpacing"),
                thickness=float(header.get("SliceThickness") or 0),
            )
    except Exception:  # noqa: BLE001 - damaged headers raise nearly anything, and are no images
        return None
    return patient, uid, {name: printable(text).strip()[:_LONG] or None for name, text in columns.items()}, instance


def _list_numbers(header: Any, tag: str) -> tuple[float, ...]:
    numbers = tuple(float(number) for number in header.get(tag) or ())
    return numbers if np.isfinite(numbers).all() else ()


def _read_pixels(instance: Instance) -> NDArray[np.float32]:
    """Values (rows, columns) of a file, rescaled as it says; MONOCHROME1, where small values are bright, is turned."""
    try:
        with warnings.catch_warnings(action="ignore"):
            image = _load_pydicom().dcmread(instance.path)
            values = np.asarray(image.pixel_array, np.float32)
            slope, offset = float(image.get("RescaleSlope", 1)), float(image.get("RescaleIntercept", 0))
            is_inverted = image.get("PhotometricInterpretation") == "MONOCHROME1"
    except Exception as error:  # noqa: BLE001 - damaged pixels raise nearly anything, with names in the message
        raise SlideError(
            f"the pixels of an image are damaged, cut short, or compressed in a way that cannot be read here "
            f"({type(error).__name__}). Copy it again, or decompress the series: gdcmconv --raw"
        ) from None
    return (values * slope + offset) * (-1 if is_inverted else 1)


def _count_frames(instances: Sequence[Instance], config: VolumesConfig) -> int:
    """How many scans are in a series: one, or one per frame."""
    try:
        return len(arrange(instances)) if config.frames else 1
    except SlideError:
        return 1  # said when it is read

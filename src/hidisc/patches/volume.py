"""A volume as slices, and a scan cut into its folder in the store."""

import hashlib
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from itertools import permutations
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hidisc.ground.errors import UserError
from hidisc.ground.files import digest, new_folder, sample_file
from hidisc.ground.progress import Watch
from hidisc.patches.people import People
from hidisc.patches.record import FIRST_SHARD, SlideRecord, SlideTask, describe_files, name_owner, store_patches
from hidisc.settings.prepare import VolumesConfig
from hidisc.slides.cohort import SlideRow, admit
from hidisc.slides.resample import resize
from hidisc.slides.slide import Pixels, SlideError

MAX_VALUES = 2**28
"""Largest volume that is read, such as 512 x 512 x 1,024: 1 GB of float32, and three times that while it is read."""
_BACKGROUND_SHARE = 0.9
"""Of a volume's values: if more of them are one value, it is background, and percentiles are those of the others."""
_AXES = {"sagittal": 0, "coronal": 1, "axial": 2}
_ALIKE = 1.01
"""Spacings that differ by less are equal."""


@dataclass(frozen=True)
class Volume:
    """Values (X, Y, Z) whose axes go to the patient's left, to the back and up (LPS, the axes of DICOM)."""

    values: NDArray[np.float32]
    spacing_mm: tuple[float, float, float]
    mask: NDArray[np.bool_] | None = None
    """(X, Y, Z) what slices are cut around."""

    def __post_init__(self) -> None:
        if not all(np.isfinite(step) and step > 0 for step in self.spacing_mm):
            raise SlideError(
                f"the volume does not say how far apart its values are ({_list_mm(self.spacing_mm)}). Correct its "
                "header, or convert it again."
            )
        if self.mask is not None and self.mask.shape != self.values.shape:
            raise SlideError(
                f"the mask has {_list_sizes(self.mask.shape)} values and the volume {_list_sizes(self.values.shape)}. "
                "Give the mask that belongs to it, or leave out `mask`."
            )


@dataclass(frozen=True)
class Slices:
    """The slices of a volume, and how they were made."""

    axis: int
    """0, 1, 2: sagittal, coronal, axial."""
    spacing_mm: tuple[float, float, float]
    """Of a stored pixel: across, down, and from one slice to the next."""
    window: tuple[float, float]
    """Values that became black and white."""
    pixels: Iterator[Pixels]
    """(size_px, size_px, 1) each."""
    count: int


def orient(
    values: NDArray[np.float32], directions: NDArray[np.float64], steps: tuple[float, float, float]
) -> tuple[NDArray[np.float32], tuple[float, float, float]]:
    """Values and spacing with their axes swapped and flipped to be closest to LPS; nothing is resampled.

    `directions` (3, 3): column i is the unit vector, in LPS, along which axis i rises. Of all ways to assign the axes,
    the one with the largest sum of cosines is taken.
    """
    order = max(
        permutations(range(3)), key=lambda axes: sum(abs(directions[lps, axis]) for lps, axis in enumerate(axes))
    )
    turned = values.transpose(order)
    backwards = tuple(lps for lps, axis in enumerate(order) if directions[lps, axis] < 0)
    x, y, z = (steps[axis] for axis in order)
    return np.flip(turned, backwards), (x, y, z)


def check_size(shape: tuple[int, ...]) -> None:
    """Refuse a volume that does not fit into memory, whatever its header says."""
    values = int(np.prod([float(size) for size in shape]))
    if not 0 < values <= MAX_VALUES:
        raise SlideError(
            f"the header says {_list_sizes(shape)} values, and volumes of 1 to {MAX_VALUES:,} values are read. If that "
            "is not its size, the file is damaged; else cut it into parts."
        )


def cut_slices(volume: Volume, config: VolumesConfig) -> Slices:
    """Slices of a volume, from right to left, front to back or bottom to top, seen as radiologists do.

    Axial slices have the front of the body at the top, the others the head; the patient's right, or front, is at the
    left. They are padded with black, so that the image keeps its proportions.
    """
    axis = _choose_axis(volume, config.axis)
    low, high = config.window or _find_window(volume.values, config.percentiles)
    if not low < high:
        raise SlideError(
            f"the values of the volume hardly differ: the window would be {low:g} to {high:g}. Leave it out."
        )
    across, down = (other for other in range(3) if other != axis)
    boxes = {other: _find_extent(volume, other, config) for other in (across, down)}  # mm, from the first value's edge
    side = max(end - start for start, end in boxes.values())
    if config.pixel_mm is not None:
        side = config.pixel_mm * config.size_px
    steps = volume.spacing_mm
    corner = {other: (sum(boxes[other]) / 2 - side / 2) / steps[other] for other in boxes}  # in values
    size = {other: side / steps[other] for other in boxes}
    if size[across] * size[down] > MAX_VALUES:
        raise SlideError(
            f"values are {_list_mm(steps)} apart, so that a slice would have {size[across]:,.0f} x "
            f"{size[down]:,.0f} of them. Correct the spacing in the header, or convert the volume again."
        )

    def cut() -> Iterator[Pixels]:
        for index in range(volume.values.shape[axis]):
            plane = np.take(volume.values, index, axis).T  # rows: `down`, columns: `across`
            yield _cut_square(
                _to_pixels(plane, low, high, config.bits),
                (corner[across], corner[down], size[across], size[down]),
                config.size_px,
                upside_down=down == 2,
            )

    stored = side / config.size_px
    return Slices(axis, (stored, stored, steps[axis]), (low, high), cut(), volume.values.shape[axis])


def _choose_axis(volume: Volume, wanted: str) -> int:
    """The axis across slices; a volume of one slice has only one."""
    if min(volume.values.shape) == 1:
        return 2 - int(np.argmin(volume.values.shape[::-1]))
    if wanted != "coarsest":
        return _AXES[wanted]
    coarsest = max(volume.spacing_mm)
    return max(axis for axis, step in enumerate(volume.spacing_mm) if step * _ALIKE >= coarsest)


def _find_window(values: NDArray[np.float32], percentiles: tuple[float, float]) -> tuple[float, float]:
    """Values at two percentiles of the finite ones; where nearly all are background, of the others.

    Else the window of a volume with 99.5 % of zeros would be (0, 0), and all that is in it white. The value of the
    background stays black, or white where it is above the others.
    """
    finite = values[np.isfinite(values)]
    if not len(finite):
        raise SlideError("the volume holds no finite value. Convert it again.")
    background = float(np.median(finite))
    inside = finite[finite != background]
    if not len(inside):
        raise SlideError(f"all values of the volume are {background:g}, so there is nothing to see. Leave it out.")
    if len(inside) >= (1 - _BACKGROUND_SHARE) * len(finite):
        low, high = np.percentile(finite, percentiles, overwrite_input=True)
        return float(low), float(high)
    low, high = np.percentile(inside, percentiles, overwrite_input=True)
    return min(background, float(low)), max(background, float(high))


def _find_extent(volume: Volume, axis: int, config: VolumesConfig) -> tuple[float, float]:
    """Where the volume, or its mask with the margin, begins and ends along an axis, in mm."""
    step = volume.spacing_mm[axis]
    if volume.mask is None:
        return 0.0, volume.values.shape[axis] * step
    inside = np.flatnonzero(volume.mask.any(axis=tuple(other for other in range(3) if other != axis)))
    if not len(inside):
        raise SlideError("the mask is empty. Draw it, or leave out `mask`.")
    return float(inside[0]) * step - config.margin_mm, float(inside[-1] + 1) * step + config.margin_mm


def _to_pixels(plane: NDArray[np.float32], low: float, high: float, bits: int) -> Pixels:
    """Values (H, W) as pixels (H, W, 1): `low` is black, `high` white, what is not finite black."""
    white = 2**bits - 1
    scaled = (np.nan_to_num(plane, nan=low, posinf=high, neginf=low) - low) / max(high - low, 1e-12)
    return (scaled.clip(0, 1) * white).round().astype(np.uint8 if bits == 8 else np.uint16)[..., None]


def _cut_square(plane: Pixels, box: tuple[float, float, float, float], size_px: int, *, upside_down: bool) -> Pixels:
    """The box (left, top, width, height; fractions allowed) of a plane (H, W, 1), black beyond it, at another size."""
    left, top, width, height = box
    before = [max(0, int(np.ceil(-start))) for start in (top, left)]
    ends = [top + height - plane.shape[0], left + width - plane.shape[1]]
    after = [max(0, int(np.ceil(end - 1e-6))) for end in ends]
    padded = np.pad(plane, [*zip(before, after, strict=True), (0, 0)])
    x, y = left + before[1], top + before[0]
    right, bottom = min(x + width, padded.shape[1]), min(y + height, padded.shape[0])
    square = resize(padded, size_px, size_px, (x, y, right, bottom))
    return square[::-1] if upside_down else square


def _list_mm(steps: tuple[float, ...]) -> str:
    return " x ".join(f"{step:g}" for step in steps) + " mm"


def _list_sizes(shape: tuple[int, ...]) -> str:
    return " x ".join(f"{size:,}" for size in shape)


class VolumeFiles(Protocol):
    """The files of one volume; sent to workers, so it pickles."""

    @property
    def paths(self) -> tuple[Path, ...]:
        """All files of the volume, in order."""

    def read(self) -> Volume:
        """The volume; raises SlideError with what is wrong, without names of files or patients."""


@dataclass(frozen=True)
class VolumeSource:
    """The scans of an import, each with its files."""

    root: Path
    scans: tuple[tuple[SlideRow, VolumeFiles], ...]
    warnings: tuple[str, ...] = ()
    is_private: bool = False
    """Whether names of files may tell who a patient is, so that the store must not hold them."""
    key_file: Path | None = None
    """Where the secret of the pseudonyms is."""

    def __post_init__(self) -> None:
        """Refuse what no cohort may have, and warn of names that look alike."""
        object.__setattr__(self, "warnings", admit(self.root, [row for row, _ in self.scans], self.warnings))


FoundVolume = tuple[SlideRow, int, Callable[[int | None], VolumeFiles]]
"""Whose it is, how many frames it has, and its files for one frame or, with None, for the only one."""


def gather_scans(
    root: Path, volumes: Iterable[FoundVolume], people: People, warnings: Sequence[str], *, is_private: bool
) -> VolumeSource:
    """One scan per volume, or per frame where a volume has several, under the names that the store may hold."""
    found, said = people.describe((row, (frames, choose_frame)) for row, frames, choose_frame in volumes)
    said = [*said, *warnings]
    if people.key_file is not None:  # nobody can see it in pseudonyms
        said = list(admit(root, [row for row, _ in found], said))
    scans = []
    for known, (frames, choose_frame) in found:
        row = people.hide(known)
        for frame in range(frames) if frames > 1 else (None,):
            name = row.slide if frame is None else f"{row.slide}/frame{frame + 1:03}"
            scans.append((replace(row, slide=name), choose_frame(frame)))
    return VolumeSource(root, tuple(scans), tuple(said), is_private, people.key_file)


def load_library(name: str, what: str, logger: str) -> Any:
    """The library that reads some files; refuses to go on without it, and silences its `logger`."""
    try:
        library = import_module(name)
    except ImportError as error:
        raise UserError(f"{what} need {name}. Install it: pip install 'hidisc[volumes]'") from error
    logging.getLogger(logger).setLevel(logging.CRITICAL)  # damage is ours to report, in one sentence
    return library


def walk_files(root: Path) -> list[Path]:
    """Files below a folder in order, also in linked folders, each folder once; hidden ones are left out."""
    found, entered = [], set()
    for folder, folders, names in os.walk(root, followlinks=True):
        entered.add(Path(folder).resolve())
        folders[:] = [name for name in folders if name[0] != "." and (Path(folder) / name).resolve() not in entered]
        found += [path for name in names if name[0] != "." and (path := Path(folder) / name).is_file()]
    return sorted(found)


@dataclass(frozen=True)
class ScanTask(SlideTask):
    """The files of one volume, to be cut into slices."""

    scan: str
    folder: Path
    files: VolumeFiles
    config: VolumesConfig
    named: Path
    """What the list of failures names: the file, or the scan where names of files are private."""

    @property
    def source(self) -> Path:
        """What may be named."""
        return self.named

    def size_bytes(self) -> int:
        """Bytes to read."""
        return sum(path.stat().st_size for path in self.files.paths)

    def sample(self) -> str:
        """Checksum of samples of the files, in order, whatever their names."""
        try:
            return digest([sample_file(path) for path in self.files.paths])
        except OSError as error:
            raise SlideError(f"a file of the volume cannot be read ({error.strerror}). Copy it again.") from error

    def run(self, report: Watch) -> SlideRecord:
        """Encode the slices of the volume into the scan's folder."""
        config, sample = self.config, self.sample()
        try:
            volume = self.files.read()
        except OSError as error:  # whose words name the file
            raise SlideError(f"a file of the volume cannot be read ({error.strerror}). Copy it again.") from error
        slices = cut_slices(volume, config)
        owner = name_owner(self.scan, sample, self.settings, FIRST_SHARD)
        with new_folder(self.folder) as part:
            patch_bytes = config.size_px**2 * config.bits // 8
            store_patches(part, slices.pixels, patch_bytes, owner, config.pixels, report)
            record = SlideRecord(
                slide=self.scan,
                checksum=_hash_values(volume),
                sample=sample,
                settings=self.settings,
                reader="volume",
                size_px=config.size_px,
                channels=1,
                dtype=f"uint{config.bits}",
                boxes=slices.count,
                spacing_mm=slices.spacing_mm,
                window=slices.window,
                files=describe_files(part),
            )
            self.refuse_change(sample)
            record.save(part)
        return record


def _hash_values(volume: Volume) -> str:
    """SHA-256 of the values alone, so that a scan is known again under another header, name or compression."""
    content = hashlib.sha256("x".join(map(str, volume.values.shape)).encode())
    for plane in volume.values:  # a copy of all of it would double the memory
        content.update(np.ascontiguousarray(plane).data)
    return content.hexdigest()

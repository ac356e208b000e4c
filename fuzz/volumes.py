"""Volumes as NIfTI files and DICOM series, damaged as bytes before and after they are compressed."""

import gzip
from pathlib import Path

import nibabel
import numpy as np
import pydicom

from fuzz.harness import INPUT, Judge, Kind, Outcome, Wrong, judge
from fuzz.mutations import Rng, mutate
from hidisc.patches.dicom import find_dicom
from hidisc.patches.nifti import find_nifti
from hidisc.patches.volume import VolumeSource, cut_slices
from hidisc.settings.prepare import VolumesConfig

SHAPE = (12, 10, 5)
CONFIG = VolumesConfig(size_px=16, frames=True)


class Volumes(Kind):
    """Files of one patient."""

    name, limit_s, memory_bytes = "volumes", 60, 3 * 2**30
    groups = ("nii", "nii.gz", "nii inside of gz", "four axes", "dicom")

    def prepare(self, home: Path) -> None:
        """One whole file or series of every group."""
        values = np.random.default_rng(0).normal(300, 80, (*SHAPE, 2)).round().astype(np.int16)
        nibabel.save(nibabel.Nifti1Image(values[..., 0], np.diag([1.5, 2, 8, 1])), home / "a.nii")
        nibabel.save(nibabel.Nifti1Image(values, np.diag([1.5, 2, 8, 1])), home / "frames.nii")
        (home / "series").mkdir()
        for index in range(SHAPE[2]):
            _write_dicom(home / "series" / f"{index}.dcm", values[..., index, 0], index)

    def open(self, home: Path, folder: Path) -> Judge:
        """Every input is a folder of its own."""
        single, frames = ((home / name).read_bytes() for name in ("a.nii", "frames.nii"))
        series = {path.name: path.read_bytes() for path in sorted((home / "series").iterdir())}

        def say(rng: Rng, index: int) -> Outcome:
            group, patient = self.group_of(index), folder / INPUT / "P1"
            patient.mkdir()
            if group == "dicom":
                chosen = sorted(series)[int(rng.integers(len(series)))]
                for name, data in series.items():
                    (patient / name).write_bytes(mutate(data, rng)[0] if name == chosen else data)
            elif group == "nii.gz":
                (patient / "a.nii.gz").write_bytes(mutate(gzip.compress(single, mtime=0), rng)[0])
            elif group == "nii inside of gz":
                (patient / "a.nii.gz").write_bytes(gzip.compress(_damage_header(single, rng), mtime=0))
            else:
                (patient / "a.nii").write_bytes(_damage_header(single if group == "nii" else frames, rng))
            find = find_dicom if group == "dicom" else find_nifti
            return judge(lambda: read_all(find(folder / INPUT, CONFIG)))

        return say


def _damage_header(data: bytes, rng: Rng) -> bytes:
    """Other bytes, mostly in the 348 of the header."""
    if rng.random() < 0.3:
        return mutate(data, rng)[0]
    head = bytearray(data[:352])
    for _ in range(int(rng.integers(1, 4))):
        at = int(rng.integers(len(head) - 4))
        head[at : at + 2] = (b"\x00\x00", b"\xff\xff", b"\xff\x7f", b"\x00\x80", rng.bytes(2))[int(rng.integers(5))]
    return bytes(head) + data[352:]


def _write_dicom(path: Path, values: np.ndarray, index: int) -> None:
    item = pydicom.dataset.Dataset()
    item.file_meta = pydicom.dataset.FileMetaDataset()
    item.file_meta.TransferSyntaxUID = pydicom.uid.ExplicitVRLittleEndian
    item.SOPClassUID = item.file_meta.MediaStorageSOPClassUID = pydicom.uid.MRImageStorage
    item.SOPInstanceUID = item.file_meta.MediaStorageSOPInstanceUID = f"1.2.3.{index + 1}"
    item.PatientID, item.SeriesInstanceUID, item.Modality = "P1", "1.2.3", "MR"
    item.Columns, item.Rows = values.shape
    item.PixelSpacing, item.ImageOrientationPatient = [2, 1.5], [1, 0, 0, 0, 1, 0]
    item.ImagePositionPatient, item.SliceThickness = [-30.0, -20.0, 8.0 * index], 8
    item.InstanceNumber, item.SamplesPerPixel = index + 1, 1
    item.PhotometricInterpretation = "MONOCHROME2"
    item.BitsAllocated, item.BitsStored, item.HighBit, item.PixelRepresentation = 16, 16, 15, 1
    item.PixelData = values.T.tobytes()
    item.save_as(path, enforce_file_format=True)


def read_all(source: VolumeSource) -> None:
    """Every slice of every scan has the size that it was asked for, and a window with a width."""
    for _, files in source.scans:
        slices = cut_slices(files.read(), CONFIG)
        if not slices.window[0] < slices.window[1]:
            raise Wrong(f"the window is {slices.window}")
        number = 0
        for pixels in slices.pixels:
            number += 1
            if pixels.shape != (16, 16, 1) or pixels.dtype != np.uint8:
                raise Wrong(f"a slice has {pixels.shape} of {pixels.dtype}")
        if number != slices.count:
            raise Wrong(f"{slices.count} slices became {number}")

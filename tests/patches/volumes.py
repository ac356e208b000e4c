"""Small drawn volumes as NIfTI files and DICOM series, for tests."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

nibabel = pytest.importorskip("nibabel", reason="needs nibabel (pip install 'hidisc[volumes]')")
pydicom = pytest.importorskip("pydicom", reason="needs pydicom (pip install 'hidisc[volumes]')")

SPACING = (1.5, 2.0, 8.0)
LPS_TO_RAS = np.diag([-1.0, -1.0, 1.0])
SECRETS = {
    "PatientName": "DOE^JANE",
    "PatientBirthDate": "19540321",
    "PatientAddress": "Mill Lane 7",
    "OtherPatientIDs": "INS-998877",
    "InstitutionName": "StMary",
    "ReferringPhysicianName": "HOUSE^GREG",
    "StudyDate": "20190507",
    "AccessionNumber": "ACC554433",
    "SeriesDescription": "heart of Jane Doe",
    "DeviceSerialNumber": "SN-31415",
}
"""Identifying tags of every drawn DICOM file."""


def draw_volume(seed: int, shape: tuple[int, int, int] = (24, 20, 6)) -> NDArray[np.float32]:
    """Values (X, Y, Z) in LPS: a bright blob off the middle, and noise; no two axes or directions look alike."""
    rng = np.random.default_rng(seed)
    x, y, z = np.meshgrid(*(np.linspace(0, 1, size) for size in shape), indexing="ij")
    blob = np.exp(-(((x - 0.3) / 0.2) ** 2) - ((y - 0.6) / 0.25) ** 2 - ((z - 0.4) / 0.5) ** 2)
    return (800 * blob + 200 * x + rng.normal(0, 20, shape)).round().astype(np.float32)


def write_nifti(
    path: Path, values: NDArray[Any], spacing: tuple[float, ...] = SPACING, codes: str = "LPS"
) -> NDArray[Any]:
    """Write values given in LPS, stored with other axes; returns the affine."""
    orientations = nibabel.orientations
    image = nibabel.Nifti1Image(values, np.diag([*(LPS_TO_RAS @ np.diag(spacing[:3])).diagonal(), 1.0]))
    change = orientations.ornt_transform(orientations.axcodes2ornt("LPS"), orientations.axcodes2ornt(codes))
    image = image.as_reoriented(change)
    path.parent.mkdir(parents=True, exist_ok=True)
    nibabel.save(image, path)
    return image.affine


def write_cohort(root: Path, patients: int = 6, scans: int = 2, table: str = "patients.csv") -> Path:
    """`root/patient/patient_frameN.nii.gz`, as ACDC has them, and a CSV of the patients beside the folder."""
    rows = ["patient,label,scanner"]
    for number in range(patients):
        patient = f"patient{number:03}"
        rows.append(f"{patient},{'DCM' if number % 2 else 'NOR'},{'one' if number % 3 else 'two'}")
        for scan in range(scans):
            values = draw_volume(10 * number + scan) + (300 if number % 2 else 0)
            write_nifti(root / patient / f"{patient}_frame{scan + 1:02}.nii.gz", values)
    (root.parent / table).write_text("\n".join(rows) + "\n")
    return root


def write_dicom(
    folder: Path,
    values: NDArray[Any],
    patient: str,
    spacing: tuple[float, ...] = SPACING,
    *,
    series: str | None = None,
    seed: int = 0,
    **tags: Any,
) -> list[Path]:
    """An axial series of values in LPS, one file per slice in shuffled order; `tags` replace others, None removes."""
    folder.mkdir(parents=True, exist_ok=True)
    uid = series or pydicom.uid.generate_uid()
    order = np.random.default_rng(seed).permutation(values.shape[2])
    files = []
    for number, index in enumerate(order):
        item = pydicom.dataset.Dataset()
        item.file_meta = pydicom.dataset.FileMetaDataset()
        item.file_meta.TransferSyntaxUID = pydicom.uid.ExplicitVRLittleEndian
        item.SOPClassUID = item.file_meta.MediaStorageSOPClassUID = pydicom.uid.MRImageStorage
        item.SOPInstanceUID = item.file_meta.MediaStorageSOPInstanceUID = pydicom.uid.generate_uid()
        item.PatientID, item.SeriesInstanceUID, item.Modality = patient, uid, "MR"
        item.Manufacturer, item.ManufacturerModelName = "Drawn", "M1"
        item.Columns, item.Rows = values.shape[:2]
        item.PixelSpacing = [spacing[1], spacing[0]]
        item.ImageOrientationPatient = [1, 0, 0, 0, 1, 0]
        item.ImagePositionPatient = [-30.0, -20.0, 5.0 + float(index) * spacing[2]]
        item.InstanceNumber, item.SliceThickness = int(index) + 1, spacing[2]
        item.SamplesPerPixel, item.PhotometricInterpretation = 1, "MONOCHROME2"
        item.BitsAllocated, item.BitsStored, item.HighBit, item.PixelRepresentation = 16, 16, 15, 1
        item.PixelData = values[:, :, index].T.astype(np.int16).tobytes()
        for tag, value in {**SECRETS, **tags}.items():
            if value is None:
                delattr(item, tag)
            else:
                setattr(item, tag, value)
        files.append(folder / f"{SECRETS['PatientName']}-{number}.dcm")
        item.save_as(files[-1], enforce_file_format=True)
    return files

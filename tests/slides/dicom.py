"""A drawn slide as DICOM (VL Whole Slide Microscopy, tiled, JPEG), one file per level, written with pydicom."""

from math import ceil
from pathlib import Path

import numpy as np
import simplejpeg
from numpy.typing import NDArray
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.encaps import encapsulate
from pydicom.sequence import Sequence
from pydicom.uid import JPEGBaseline8Bit, VLWholeSlideMicroscopyImageStorage, generate_uid

TILE_PX = 64


def write_dicom(folder: Path, pixels: NDArray[np.uint8], mpp: float, levels: int = 2) -> list[Path]:
    """Write a pyramid, each level half of the one before; the files, finest first."""
    folder.mkdir(parents=True)
    uids = {name: generate_uid(entropy_srcs=[str(folder), name]) for name in ("Study", "Series", "FrameOfReference")}
    files = []
    for level in range(levels):
        path = folder / f"level-{level}.dcm"
        _make_level(pixels, mpp, level, uids).save_as(path, enforce_file_format=True)
        files.append(path)
        height, width = (side // 2 for side in pixels.shape[:2])
        pixels = pixels[: 2 * height, : 2 * width].reshape(height, 2, width, 2, 3).mean((1, 3)).astype(np.uint8)
        mpp *= 2
    return files


def _make_level(pixels: NDArray[np.uint8], mpp: float, level: int, uids: dict[str, str]) -> Dataset:
    height, width = pixels.shape[:2]
    frames = _cut(pixels)
    data = Dataset()
    data.file_meta = FileMetaDataset()
    data.file_meta.TransferSyntaxUID = JPEGBaseline8Bit
    data.file_meta.MediaStorageSOPClassUID = data.SOPClassUID = VLWholeSlideMicroscopyImageStorage
    data.SOPInstanceUID = generate_uid(entropy_srcs=[*uids.values(), str(level)])
    data.file_meta.MediaStorageSOPInstanceUID = data.SOPInstanceUID
    for name, uid in uids.items():
        setattr(data, f"{name}{'UID' if name == 'FrameOfReference' else 'InstanceUID'}", uid)
    data.Modality, data.ContentDate, data.ContentTime, data.AcquisitionDateTime = "SM", "20210309", "1200", "20210309"
    data.PatientName, data.PatientID, data.ContainerIdentifier = "Nobody", "0", "0"
    data.ImageType = ["DERIVED", "PRIMARY", "VOLUME", "RESAMPLED" if level else "NONE"]
    data.Rows = data.Columns = TILE_PX
    data.TotalPixelMatrixRows, data.TotalPixelMatrixColumns, data.TotalPixelMatrixFocalPlanes = height, width, 1
    data.NumberOfFrames, data.SamplesPerPixel, data.PlanarConfiguration = len(frames), 3, 0
    data.PhotometricInterpretation, data.PixelRepresentation = "YBR_FULL_422", 0
    data.BitsAllocated, data.BitsStored, data.HighBit = 8, 8, 7
    data.LossyImageCompression, data.LossyImageCompressionRatio = "01", 10
    data.LossyImageCompressionMethod = "ISO_10918_1"
    data.DimensionOrganizationType, data.InstanceNumber, data.VolumetricProperties = "TILED_FULL", level + 1, "VOLUME"
    data.ImagedVolumeWidth, data.ImagedVolumeHeight, data.ImagedVolumeDepth = width * mpp / 1e3, height * mpp / 1e3, 1.0
    data.SpecimenLabelInImage, data.FocusMethod, data.ExtendedDepthOfField = "NO", "AUTO", "NO"
    data.BurnedInAnnotation, data.NumberOfOpticalPaths = "NO", 1
    data.ImageOrientationSlide = [0, -1, 0, -1, 0, 0]
    origin, path, measures, shared = Dataset(), Dataset(), Dataset(), Dataset()
    origin.XOffsetInSlideCoordinateSystem = origin.YOffsetInSlideCoordinateSystem = 0.0
    data.TotalPixelMatrixOriginSequence = Sequence([origin])
    path.OpticalPathIdentifier = "0"
    data.OpticalPathSequence = Sequence([path])
    measures.PixelSpacing, measures.SliceThickness, measures.SpacingBetweenSlices = [mpp / 1e3] * 2, 1.0, 1.0
    shared.PixelMeasuresSequence = Sequence([measures])
    data.SharedFunctionalGroupsSequence = Sequence([shared])
    data.PixelData = encapsulate(frames)
    data["PixelData"].is_undefined_length = True
    return data


def _cut(pixels: NDArray[np.uint8]) -> list[bytes]:
    """The tiles of a level row by row, those at the edges filled up with white."""
    down, across = (ceil(side / TILE_PX) for side in pixels.shape[:2])
    full = np.full((down * TILE_PX, across * TILE_PX, 3), 255, np.uint8)
    full[: pixels.shape[0], : pixels.shape[1]] = pixels
    tiles = full.reshape(down, TILE_PX, across, TILE_PX, 3).swapaxes(1, 2).reshape(-1, TILE_PX, TILE_PX, 3)
    return [simplejpeg.encode_jpeg(np.ascontiguousarray(tile), 95, colorsubsampling="422") for tile in tiles]

"""`hidisc import dicom`: series become volumes, nothing identifying is copied, and what is no volume is said."""

import struct
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hidisc.ground.errors import UserError
from hidisc.patches.dicom import find_dicom
from hidisc.patches.nifti import find_nifti
from hidisc.patches.store import PatchStore
from hidisc.settings.prepare import VolumesConfig
from hidisc.slides.slide import SlideError
from hidisc.verbs.build import Built
from hidisc.verbs.prepare import import_volumes
from tests.patches.pictures import contents
from tests.patches.volumes import SECRETS, SPACING, draw_volume, pydicom, write_dicom, write_nifti

CONFIG = VolumesConfig(size_px=16)


def make(root: Path, out: Path, config: VolumesConfig = CONFIG, **options: Any) -> tuple[Built, list[str]]:
    said: list[str] = []
    source = find_dicom(root, config, **options)
    return import_volumes(source, out, config, workers=0, say=said.append), said


def reason_of(folder: Path, config: VolumesConfig = CONFIG) -> str:
    """What is said of the only series of a folder."""
    [(_, files)] = find_dicom(folder, config).scans
    with pytest.raises(SlideError) as caught:
        files.read()
    return str(caught.value)


def test_a_series_is_the_volume_it_was_made_of_whatever_the_order_of_its_files(tmp_path: Path) -> None:
    values = draw_volume(0)
    write_dicom(tmp_path / "dicom/any/where", values, "P1", seed=3)
    write_nifti(tmp_path / "nifti/P1/a.nii.gz", values)
    volumes = [
        source.scans[0][1].read()
        for source in (find_dicom(tmp_path / "dicom", CONFIG), find_nifti(tmp_path / "nifti", CONFIG))
    ]
    for volume in volumes:
        assert np.array_equal(volume.values, values)
        assert volume.spacing_mm == pytest.approx(SPACING)


def test_images_of_other_planes_are_turned_to_lps(tmp_path: Path) -> None:
    """Sagittal images: rows go to the back, columns down; slices lie along the normal, which points to the right."""
    values = draw_volume(1, (5, 12, 10))
    files = write_dicom(tmp_path / "s", np.zeros((12, 10, 5), np.float32), "P1")
    for index, path in enumerate(files):
        item = pydicom.dcmread(path)
        item.ImageOrientationPatient = [0, 1, 0, 0, 0, -1]
        item.ImagePositionPatient = [4.0 * index, 0, 0]
        item.PixelData = values[index, :, ::-1].T.astype(np.int16).tobytes()
        item.save_as(path)
    volume = find_dicom(tmp_path / "s", CONFIG).scans[0][1].read()
    assert np.array_equal(volume.values, values)
    assert volume.spacing_mm == pytest.approx((4.0, 1.5, 2.0))


def test_values_are_rescaled_and_inverted_as_the_files_say(tmp_path: Path) -> None:
    values = draw_volume(2)
    write_dicom(tmp_path / "ct", values, "P1", RescaleSlope=2, RescaleIntercept=-1024)
    write_dicom(tmp_path / "xr", values, "P1", PhotometricInterpretation="MONOCHROME1")
    assert np.array_equal(find_dicom(tmp_path / "ct", CONFIG).scans[0][1].read().values, 2 * values - 1024)
    assert np.array_equal(find_dicom(tmp_path / "xr", CONFIG).scans[0][1].read().values, -values)


def test_mixed_series_are_told_apart_and_their_patients_known(tmp_path: Path) -> None:
    root = tmp_path / "export"
    volumes = [draw_volume(number) for number in range(3)]
    for number, patient in enumerate(("A", "A", "B")):
        for path in write_dicom(root / "work", volumes[number], patient, seed=number):
            path.rename(root / f"{number}{path.name}")
    (root / "work").rmdir()
    (root / "readme.txt").write_text("exported on Monday")
    (tmp_path / "people.csv").write_text("patient,label\nA,x\nB,y\n")
    built, said = make(root, tmp_path / "store", patients_csv=tmp_path / "people.csv")
    assert f"warning: 1 file below {root} left out: no DICOM image of a patient." in said
    assert [slide.patient for slide in built.info.slides] == ["A", "A", "B"]
    table = PatchStore.load(tmp_path / "store").table
    assert table.column("label").tolist() == ["x"] * 12 + ["y"] * 6
    assert set(table.column("scanner")) == {"Drawn M1"}
    assert set(table.column("modality")) == {"MR"}


def test_nothing_identifying_is_copied_anywhere(tmp_path: Path) -> None:
    root = tmp_path / "export"
    uid = "1.2.826.0.1.3680043.8.498.1234567890"
    write_dicom(root / "JaneDoe", draw_volume(0), "MRN00417", series=uid)
    broken = write_dicom(root / "JaneDoe2", draw_volume(1), "MRN00417")
    broken[2].write_bytes(broken[2].read_bytes()[:-200])
    (tmp_path / "people.csv").write_text("patient,label\nMRN00417,x\n")
    plain, _ = make(root, tmp_path / "store", patients_csv=tmp_path / "people.csv")
    hashed, said = make(root, tmp_path / "hidden", patients_csv=tmp_path / "people.csv", key_file=tmp_path / "key")
    assert len(plain.info.failures) == len(hashed.info.failures) == 1
    secrets = [*SECRETS.values(), *SECRETS["PatientName"].split("^"), uid, "JaneDoe", "Doe"]
    for store, more in (("store", []), ("hidden", ["MRN00417"])):
        files = contents(tmp_path / store)
        assert len(files) > 8
        for name, data in files.items():
            for secret in [*secrets, *more]:
                assert secret.encode() not in data, f"{secret} in {name}"
                assert secret not in name
    assert {slide.patient for slide in plain.info.slides} == {"MRN00417"}
    assert any("JaneDoe2" in sentence for sentence in said)  # on the screen, where the user must find the file


def test_frames_are_refused_or_scans(tmp_path: Path) -> None:
    uid = pydicom.uid.generate_uid()
    first, second = draw_volume(0), draw_volume(1)
    for number, values in enumerate((first, second)):
        for path in write_dicom(tmp_path / str(number), values, "P1", series=uid):
            item = pydicom.dcmread(path)
            item.InstanceNumber += 100 * number
            item.save_as(path)
    assert "2 images at every place" in reason_of(tmp_path)
    scans = find_dicom(tmp_path, VolumesConfig(frames=True)).scans
    assert [row.slide.rpartition("/")[2] for row, _ in scans] == ["frame001", "frame002"]
    assert [
        bool(np.array_equal(files.read().values, want)) for (_, files), want in zip(scans, (first, second), strict=True)
    ] == [
        True,
        True,
    ]
    next((tmp_path / "1").iterdir()).unlink()
    assert "2 images at some places and 1 at others" in reason_of(tmp_path, VolumesConfig(frames=True))


@pytest.mark.parametrize(
    ("tags", "sentence"),
    [
        ({"ImagePositionPatient": None}, "do not say where their images lie (ImagePositionPatient)"),
        ({"PixelSpacing": None}, "do not say how far apart their pixels are (PixelSpacing)"),
        ({"PixelSpacing": [0, 0]}, "does not say how far apart its values are"),
        ({"NumberOfFrames": 6}, "a file holds several images (enhanced DICOM)"),
        ({"SamplesPerPixel": 3}, "the series holds colours"),
        ({"Rows": 4000}, "the pixels of an image are damaged, cut short, or compressed"),
    ],
)
def test_what_is_no_volume_is_said(tmp_path: Path, tags: dict[str, Any], sentence: str) -> None:
    write_dicom(tmp_path / "s", draw_volume(0), "P1", **tags)
    assert sentence in reason_of(tmp_path / "s")


def test_images_that_do_not_belong_together_are_said(tmp_path: Path) -> None:
    for name, change, sentence in (
        ("size", lambda item: setattr(item, "Rows", 10), "different sizes (24 x 10 and 24 x 20 pixels"),
        ("plane", lambda item: setattr(item, "ImageOrientationPatient", [0, 1, 0, 0, 0, 1]), "different planes"),
        ("gap", lambda item: setattr(item, "ImagePositionPatient", [-30, -20, 500]), "some are missing"),
    ):
        path = min(write_dicom(tmp_path / name, draw_volume(0), "P1"))
        item = pydicom.dcmread(path)
        change(item)
        item.save_as(path)
        assert sentence in reason_of(tmp_path / name)


def test_a_single_image_takes_its_thickness(tmp_path: Path) -> None:
    write_dicom(tmp_path / "one", draw_volume(0, (24, 20, 1)), "P1")
    assert find_dicom(tmp_path / "one", CONFIG).scans[0][1].read().spacing_mm == pytest.approx(SPACING)
    write_dicom(tmp_path / "none", draw_volume(0, (24, 20, 1)), "P1", SliceThickness=None)
    assert "does not say how far apart" in reason_of(tmp_path / "none")


def test_compressed_files_are_read_or_said(tmp_path: Path) -> None:
    values = draw_volume(0)
    for path in write_dicom(tmp_path / "rle", values, "P1"):
        item = pydicom.dcmread(path)
        item.compress(pydicom.uid.RLELossless)
        item.save_as(path)
    assert np.array_equal(find_dicom(tmp_path / "rle", CONFIG).scans[0][1].read().values, values)
    for path in write_dicom(tmp_path / "odd", values, "P1"):
        item = pydicom.dcmread(path)
        item.file_meta.TransferSyntaxUID = pydicom.uid.JPEGLSLossless
        item.PixelData = pydicom.encaps.encapsulate([b"\xff\xd8 not a picture \xff\xd9"])
        item["PixelData"].VR = "OB"
        item.save_as(path)
    assert "decompress the series: gdcmconv --raw" in reason_of(tmp_path / "odd")


def test_damaged_and_hostile_headers_are_left_out_or_refused(tmp_path: Path) -> None:
    files = write_dicom(tmp_path / "s", draw_volume(0), "P1", PatientID="../../P1\\x")
    data = files[0].read_bytes()
    rng = np.random.default_rng(0)
    (tmp_path / "s" / "empty.dcm").write_bytes(b"")
    (tmp_path / "s" / "short.dcm").write_bytes(data[:140])
    (tmp_path / "s" / "long.dcm").write_bytes(data[:132] + struct.pack("<HH2sxxI", 8, 5, b"OB", 2**32 - 2))
    (tmp_path / "s" / "noise.dcm").write_bytes(b"\0" * 128 + b"DICM" + rng.bytes(500))
    source = find_dicom(tmp_path / "s", CONFIG)
    [(row, _)] = source.scans
    assert source.warnings[0].startswith("4 files below")
    built = import_volumes(source, tmp_path / "store", CONFIG, workers=0)
    folder = tmp_path / "store" / built.info.slides[0].folder
    assert folder.resolve().is_relative_to((tmp_path / "store" / "shards").resolve())
    with pytest.raises(UserError, match="holds no DICOM images with a PatientID"):
        find_dicom(tmp_path / "store", CONFIG)
    assert "../.." in row.patient


def test_masks_are_of_nifti(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="mask goes with `import nifti`"):
        find_dicom(tmp_path, VolumesConfig(mask="{name}_gt"))


def test_the_library_is_named_where_it_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pydicom", None)
    with pytest.raises(UserError, match=r"DICOM series need pydicom. Install it: pip install 'hidisc\[volumes\]'"):
        find_dicom(tmp_path, CONFIG)

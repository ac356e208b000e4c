"""`hidisc import nifti`: which volumes there are, whose they are, and what is said of those that cannot be read."""

import pickle
import sys
from pathlib import Path

import numpy as np
import pytest

from hidisc.ground.errors import UserError
from hidisc.patches.nifti import find_nifti
from hidisc.patches.store import PatchStore
from hidisc.patches.volume import ScanTask
from hidisc.settings.prepare import VolumesConfig
from hidisc.slides.slide import SlideError
from hidisc.verbs.build import Built
from hidisc.verbs.prepare import import_volumes
from tests.patches.pictures import contents
from tests.patches.volumes import SPACING, draw_volume, nibabel, write_cohort, write_nifti

CONFIG = VolumesConfig(size_px=16)


def make(root: Path, out: Path, config: VolumesConfig = CONFIG, **options: object) -> tuple[Built, list[str]]:
    said: list[str] = []
    source = find_nifti(root, config, **options)  # type: ignore[arg-type]
    return import_volumes(source, out, config, workers=0, say=said.append), said


def test_a_folder_of_volumes_becomes_a_store(tmp_path: Path) -> None:
    root = write_cohort(tmp_path / "scans", patients=5)
    built, said = make(root, tmp_path / "store", patients_csv=tmp_path / "patients.csv")
    assert built.sentence() == f"{tmp_path / 'store'}: 60 slices of 10 scans of 5 patients, 0 boxes dropped"
    assert f"10 scans to read into {tmp_path / 'store'}" in said
    store = PatchStore.load(tmp_path / "store")
    assert store.info.level_names.model_dump() == {"patient": "patient", "slide": "scan", "patch": "slice"}
    assert (store.info.channels, store.info.dtype, store.info.mpp) == (1, "uint8", None)
    assert store.table.column("label").tolist()[:13] == ["NOR"] * 12 + ["DCM"]
    assert store.table.column("scanner").tolist()[0] == "two"
    assert store.info.slides[0].slide == "patient000/patient000_frame01"
    record = store.record(store.info.slides[0])
    assert record.spacing_mm == pytest.approx((40 / 16, 40 / 16, 8))  # 24 x 1.5 and 20 x 2 mm, in 16 pixels
    values = draw_volume(0)
    assert record.window == pytest.approx(tuple(np.percentile(values, (0.5, 99.5))))
    again, said = make(root, tmp_path / "store", patients_csv=tmp_path / "patients.csv")
    assert again.worked == 0
    assert any("all 10 scans are in" in sentence for sentence in said)


def test_pixels_do_not_depend_on_how_axes_are_stored(tmp_path: Path) -> None:
    stored = []
    for codes in ("LPS", "RAS", "SAL", "PIR"):
        path = tmp_path / codes / "p" / "a.nii"
        write_nifti(path, draw_volume(1), codes=codes)
        make(path.parent.parent, tmp_path / f"store-{codes}")
        store = PatchStore.load(tmp_path / f"store-{codes}")
        stored.append((store.read_many(range(len(store))), store.info.slides[0].checksum))
    assert all(np.array_equal(pixels, stored[0][0]) and checksum == stored[0][1] for pixels, checksum in stored)


def test_settings_are_facts_of_the_pixels_and_words_are_not(tmp_path: Path) -> None:
    root = write_cohort(tmp_path / "scans", patients=2, scans=1)
    make(root, tmp_path / "store")
    renamed = VolumesConfig(size_px=16, level_names={"slide": "frame", "patch": "section"})  # type: ignore[arg-type]
    built, _ = make(root, tmp_path / "store", renamed)
    assert built.worked == 0
    assert "12 sections of 2 frames" in built.sentence()
    with pytest.raises(UserError, match="percentiles"):
        make(root, tmp_path / "store", VolumesConfig(size_px=16, percentiles=(5, 95)))


def test_empty_slices_are_dropped_by_the_filter(tmp_path: Path) -> None:
    values = draw_volume(0)
    values[..., 0] = values[..., 5] = values.min()
    write_nifti(tmp_path / "scans/p/a.nii.gz", values)
    built, _ = make(tmp_path / "scans", tmp_path / "store")
    assert built.summary()["dropped"] == 2
    assert PatchStore.load(tmp_path / "store").table.column("patch").tolist() == [1, 2, 3, 4]


def test_masks_are_no_scans_and_each_volume_needs_its_own(tmp_path: Path) -> None:
    root = tmp_path / "scans"
    values = draw_volume(0)
    for name in "ab":
        write_nifti(root / "p" / f"{name}.nii.gz", values)
    write_nifti(root / "p" / "a_gt.nii.gz", (values > 500).astype(np.uint8))
    config = VolumesConfig(size_px=16, mask="{name}_gt", margin_mm=0)
    built, _ = make(root, tmp_path / "store", config)
    assert [slide.slide for slide in built.info.slides] == ["p/a"]
    [failure] = built.info.failures
    assert (failure.slide, failure.path) == ("p/b", str(root / "p/b.nii.gz"))
    assert failure.reason == "there is no mask beside the volume. Add it, or leave out `mask`."
    write_nifti(root / "p" / "b_gt.nii.gz", (values > 500).astype(np.uint8), (1.5, 2.0, 4.0))
    built, _ = make(root, tmp_path / "store", config)
    assert "the mask has another spacing than the volume" in built.info.failures[0].reason


def test_frames_are_refused_or_scans(tmp_path: Path) -> None:
    root = tmp_path / "scans"
    frames = np.stack([draw_volume(0), draw_volume(1)], axis=-1)
    root.joinpath("p").mkdir(parents=True)
    image = nibabel.Nifti1Image(frames, np.diag([-1.5, -2, 8, 1]))
    nibabel.save(image, root / "p" / "cine.nii.gz")
    write_nifti(root / "p" / "still.nii.gz", draw_volume(2))
    built, _ = make(root, tmp_path / "store")
    assert "--set frames=true makes every frame a scan" in built.info.failures[0].reason
    built, _ = make(root, tmp_path / "all", VolumesConfig(size_px=16, frames=True))
    assert [slide.slide for slide in built.info.slides] == ["p/cine/frame001", "p/cine/frame002", "p/still"]
    alone = find_nifti(root, CONFIG).scans[1][1].read().values
    second = find_nifti(root, VolumesConfig(frames=True)).scans[1][1].read().values
    assert np.array_equal(second, draw_volume(1))
    assert np.array_equal(alone, draw_volume(2))


def test_units_are_brought_to_mm_and_two_spacings_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "scans/p/a.nii"
    write_nifti(path, draw_volume(0), (0.0015, 0.002, 0.008))
    image = nibabel.load(path, mmap=False)
    image.header.set_xyzt_units("meter")
    nibabel.save(image, path)
    [(_, file)] = find_nifti(tmp_path / "scans", CONFIG).scans
    assert file.read().spacing_mm == pytest.approx(SPACING)
    header = bytearray(path.read_bytes())
    header[80:92] = np.array([3, 3, 3], np.float32).tobytes()  # pixdim
    path.write_bytes(header)
    with pytest.raises(SlideError, match=r"the header has two spacings, \[3.0, 3.0, 3.0\] \(pixdim\)"):
        file.read()


def test_volumes_that_cannot_be_read_do_not_stop_the_others(tmp_path: Path) -> None:
    root = tmp_path / "scans"
    values = draw_volume(0)
    write_nifti(root / "p" / "good.nii.gz", values)
    data = (root / "p" / "good.nii.gz").read_bytes()
    (root / "p" / "short.nii.gz").write_bytes(data[: len(data) // 2])
    (root / "p" / "other.nii.gz").write_bytes(b"not a volume")
    (root / "p" / "empty.nii").write_bytes(b"")
    write_nifti(root / "p" / "plain.nii", values)
    plain = (root / "p" / "plain.nii").read_bytes()
    (root / "p" / "half.nii").write_bytes(plain[: len(plain) // 2])
    header = bytearray(plain)
    header[42:48] = np.array([30000, 30000, 30000], np.int16).tobytes()  # dim
    (root / "p" / "huge.nii").write_bytes(header)
    header = bytearray(plain)
    header[80:92] = np.zeros(3, np.float32).tobytes()
    header[252:256] = bytes(4)  # qform_code and sform_code: only pixdim is left
    (root / "p" / "nospacing.nii").write_bytes(header)
    image = nibabel.Nifti1Image(values.astype(np.complex64), np.diag([-1.5, -2, 8, 1]))
    nibabel.save(image, root / "p" / "complex.nii")
    built, _ = make(root, tmp_path / "store")
    assert [slide.slide for slide in built.info.slides] == ["p/good", "p/plain"]
    reasons = {failure.slide: failure.reason for failure in built.info.failures}
    assert "colours or complex numbers" in reasons.pop("p/complex")
    assert "the header says 30,000 x 30,000 x 30,000 values" in reasons.pop("p/huge")
    assert "does not say how far apart its values are" in reasons.pop("p/nospacing")
    assert set(reasons) == {"p/short", "p/half", "p/other", "p/empty"}
    assert all("is no NIfTI volume, or cut short" in reason for reason in reasons.values())
    assert all(len(reason) < 200 for reason in reasons.values())


def test_a_csv_of_volumes(tmp_path: Path) -> None:
    for number in range(3):
        write_nifti(tmp_path / f"v{number}.nii.gz", draw_volume(number))
    table = "patient,slide,path,label,split\nA,A1,v0.nii.gz,x,train\nA,A2,v1.nii.gz,x,train\nB,B1,v2.nii.gz,y,test\n"
    (tmp_path / "scans.csv").write_text(table)
    built, _ = make(tmp_path / "scans.csv", tmp_path / "store")
    assert [slide.slide for slide in built.info.slides] == ["A1", "A2", "B1"]
    (tmp_path / "people.csv").write_text("patient,label,age\nA,x,40\nB,z,50\n")
    with pytest.raises(
        UserError, match=r"patient 'B' has label 'z', but 'y' in the table of slides. Correct one of them"
    ):
        find_nifti(tmp_path / "scans.csv", CONFIG, tmp_path / "people.csv")
    (tmp_path / "people.csv").write_text("patient,label,age\nA,x,40\nB,y,50\n")
    rows = [row for row, _ in find_nifti(tmp_path / "scans.csv", CONFIG, tmp_path / "people.csv").scans]
    assert [row.more["age"] for row in rows] == ["40", "40", "50"]


def test_what_a_csv_of_patients_lacks_is_said(tmp_path: Path) -> None:
    root = write_cohort(tmp_path / "scans", patients=2, scans=1)
    people = tmp_path / "people.csv"
    people.write_text("patient,label\npatient000,x\n")
    [warning] = find_nifti(root, CONFIG, people).warnings
    assert warning == f"{people} does not list the patients 'patient001'; they have no label."
    people.write_text("patient,split\npatient000,train\n")
    with pytest.raises(UserError, match="they would be in no split"):
        find_nifti(root, CONFIG, people)
    people.write_text("patient\npatient000\npatient000\n")
    with pytest.raises(UserError, match="patient 'patient000' was listed already"):
        find_nifti(root, CONFIG, people)
    people.write_text("patient,mpp\npatient000,1\n")
    with pytest.raises(UserError, match="column 'mpp' is one that hidisc writes itself"):
        find_nifti(root, CONFIG, people)


def test_one_scan_under_two_patients_is_said(tmp_path: Path) -> None:
    write_nifti(tmp_path / "scans/a/1.nii.gz", draw_volume(0))
    write_nifti(tmp_path / "scans/b/2.nii", draw_volume(0), codes="RAS")
    write_nifti(tmp_path / "scans/b/3.nii", draw_volume(1))
    _, said = make(tmp_path / "scans", tmp_path / "store")
    [warning] = [sentence for sentence in said if "same values" in sentence]
    assert warning.startswith("warning: slides 'a/1' and 'b/2' of different patients have the same values.")


def test_linked_folders_are_entered_once(tmp_path: Path) -> None:
    write_nifti(tmp_path / "elsewhere/p/1.nii.gz", draw_volume(0))
    (tmp_path / "scans").mkdir()
    (tmp_path / "scans/p").symlink_to(tmp_path / "elsewhere/p", target_is_directory=True)
    (tmp_path / "elsewhere/p/round").symlink_to(tmp_path / "scans", target_is_directory=True)
    assert [row.slide for row, _ in find_nifti(tmp_path / "scans", CONFIG).scans] == ["p/1"]


def test_folders_without_volumes_and_odd_places(tmp_path: Path) -> None:
    (tmp_path / "none").mkdir()
    with pytest.raises(UserError, match=r"holds no volumes at patient/scan.nii.gz"):
        find_nifti(tmp_path / "none", CONFIG)
    write_nifti(tmp_path / "scans" / "loose.nii", draw_volume(0))
    write_nifti(tmp_path / "scans" / "p" / "day 1" / "' <b>;$(x).nii.gz", draw_volume(0))
    source = find_nifti(tmp_path / "scans", CONFIG)
    assert source.warnings == ("1 file lies in no patient's folder, and left out: 'loose.nii'.",)
    assert [row.slide for row, _ in source.scans] == ["p/day 1/' <b>;$(x)"]
    import_volumes(source, tmp_path / "store", CONFIG, workers=0)
    assert len(PatchStore.load(tmp_path / "store")) == 6


def test_pseudonyms_leave_no_name_in_the_store(tmp_path: Path) -> None:
    root = write_cohort(tmp_path / "scans", patients=3)
    (root / "patient001" / "patient001_frame03.nii.gz").write_bytes(b"damaged")
    key = tmp_path / "key.txt"
    built, said = make(root, tmp_path / "store", key_file=key, patients_csv=tmp_path / "patients.csv")
    assert key.stat().st_mode & 0o077 == 0
    for name, data in contents(tmp_path / "store").items():
        for secret in (b"patient00", key.read_bytes().strip(), b"_frame0"):
            assert secret not in data, name
        assert "patient00" not in name
    assert len({slide.patient for slide in built.info.slides}) == 3
    [failure] = built.info.failures
    assert failure.path == failure.slide  # the folder may be called after a person, too
    assert said[-1].endswith(f"is read from {root / 'patient001' / 'patient001_frame03.nii.gz'}")
    other, _ = make(root, tmp_path / "again", key_file=key)
    assert [slide.slide for slide in other.info.slides] == [slide.slide for slide in built.info.slides]
    another, _ = make(root, tmp_path / "another", key_file=tmp_path / "key2.txt")
    assert {slide.patient for slide in another.info.slides}.isdisjoint({slide.patient for slide in built.info.slides})
    (tmp_path / "short.txt").write_text("abc")
    with pytest.raises(UserError, match="holds 3 characters, and a key of fewer than 16 can be guessed"):
        find_nifti(root, CONFIG, key_file=tmp_path / "short.txt")
    source = find_nifti(root, CONFIG, key_file=tmp_path / "store" / "key.txt")
    with pytest.raises(UserError, match="lies in the store, which would then say who is who"):
        import_volumes(source, tmp_path / "store", CONFIG)


def test_tasks_pickle_and_the_library_is_named_where_it_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = write_cohort(tmp_path / "scans", patients=1, scans=1)
    [(row, files)] = find_nifti(root, CONFIG).scans
    task = ScanTask(row.slide, tmp_path / "folder", files, CONFIG, root)
    assert pickle.loads(pickle.dumps(task)) == task
    monkeypatch.setitem(sys.modules, "nibabel", None)
    with pytest.raises(UserError, match=r"NIfTI volumes need nibabel. Install it: pip install 'hidisc\[volumes\]'"):
        find_nifti(root, CONFIG)

"""Whatever slides come from, the same checks are passed: a case for every door and every way to go wrong."""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from hidisc.ground.errors import UserError
from hidisc.patches.dicom import find_dicom
from hidisc.patches.folders import META, SPLIT, find_folder, find_opensrh, find_table
from hidisc.patches.nifti import find_nifti
from hidisc.patches.pack import Source
from hidisc.patches.store import PatchStore
from hidisc.patches.volume import VolumeSource
from hidisc.settings.prepare import ImportConfig, PrepareConfig, VolumesConfig
from hidisc.slides.cohort import SlideRow
from hidisc.verbs.prepare import import_patches, import_volumes, prepare
from tests.patches.pictures import contents, noise
from tests.patches.volumes import draw_volume, write_dicom, write_nifti

VOLUMES = VolumesConfig(size_px=16)
Slides = Mapping[tuple[str, str], int]
"""What there is: the seed of the pixels by (patient, slide)."""


def _table(folder: Path, slides: Slides, suffix: str, more: str = "") -> Path:
    lines = [f"patient,slide,path,mpp{more}"]
    for number, (patient, slide) in enumerate(slides):
        lines.append(f'"{patient}","{slide}",{number}{suffix},0.5{",x" if more else ""}')
    (folder / "table.csv").write_text("\n".join(lines).replace(",mpp", "").replace(",0.5", "") + "\n")
    return folder / "table.csv"


def _pictures(folder: Path, slides: Slides, size_px: int) -> None:
    for number, seed in enumerate(slides.values()):
        Image.fromarray(noise(seed, size_px)).save(folder / f"{number}.png")


def _prepare(folder: Path, slides: Slides, more: str = "") -> list[str]:
    said: list[str] = []
    _pictures(folder, slides, 64)
    config = PrepareConfig.model_validate(
        {"grid": {"size_px": 32}, "assume_mpp": 0.5, "stain": {"method": "none"}, "filter": {"min_pixel_std": 0}}
    )
    prepare(_table(folder, slides, ".png", more), folder / "store", config, workers=0, say=said.append)
    return said


def _table_door(folder: Path, slides: Slides, more: str = "") -> list[str]:
    _pictures(folder, slides, 16)
    return _import(find_table(_table(folder, slides, ".png", more)), folder)


def _folder_door(folder: Path, slides: Slides, more: str = "") -> list[str]:
    for (patient, slide), seed in slides.items():
        (folder / "in" / patient / slide).mkdir(parents=True)
        Image.fromarray(noise(seed)).save(folder / "in" / patient / slide / "0.png")
    return _import(find_folder(folder / "in", _patients(folder, slides, more)), folder)


def _opensrh_door(folder: Path, slides: Slides, more: str = "") -> list[str]:
    meta: dict[str, dict[str, object]] = {}
    (folder / "in/meta").mkdir(parents=True)
    for number, ((patient, slide), seed) in enumerate(slides.items()):
        Image.fromarray(noise(seed)[..., 0]).save(folder / "in" / f"{number}.tif")
        study = meta.setdefault(patient, {"class": "hgg", "slides": {}})
        study["slides"][slide] = {"tumor_patches": [f"{number}.tif"], "normal_patches": []}  # type: ignore[index]
    (folder / "in" / META).write_text(json.dumps(meta))
    (folder / "in" / SPLIT).write_text(json.dumps({"train": list(meta), "val": []}))
    return _import(find_opensrh(folder / "in", _patients(folder, slides, more)), folder)


def _nifti_door(folder: Path, slides: Slides, more: str = "", key: Path | None = None) -> list[str]:
    for (patient, slide), seed in slides.items():
        write_nifti(folder / "in" / patient / f"{slide}.nii.gz", draw_volume(seed))
    return _import(find_nifti(folder / "in", VOLUMES, _patients(folder, slides, more), key), folder)


def _nifti_table_door(folder: Path, slides: Slides, more: str = "") -> list[str]:
    for number, seed in enumerate(slides.values()):
        write_nifti(folder / f"{number}.nii.gz", draw_volume(seed))
    return _import(find_nifti(_table(folder, slides, ".nii.gz", more), VOLUMES), folder)


def _dicom_door(folder: Path, slides: Slides, more: str = "", key: Path | None = None) -> list[str]:
    for number, ((patient, _), seed) in enumerate(slides.items()):
        write_dicom(folder / "in" / str(number), draw_volume(seed), patient)
    return _import(find_dicom(folder / "in", VOLUMES, _patients(folder, slides, more), key), folder)


def _hidden(door: Callable[..., list[str]]) -> Callable[..., list[str]]:
    return lambda folder, slides, more="": door(folder, slides, more, folder / "key")


def _patients(folder: Path, slides: Slides, more: str) -> Path | None:
    if not more:
        return None
    lines = [f"patient{more}", *(f'"{patient}",x' for patient in dict.fromkeys(patient for patient, _ in slides))]
    (folder / "patients.csv").write_text("\n".join(lines) + "\n")
    return folder / "patients.csv"


def _import(source: Source | VolumeSource, folder: Path) -> list[str]:
    said: list[str] = []
    if isinstance(source, Source):
        config = ImportConfig(resize_px=16)
        import_patches(replace(source, input="unit"), folder / "store", config, workers=0, say=said.append)
    else:
        import_volumes(source, folder / "store", VOLUMES, workers=0, say=said.append)
    return said


DOORS: dict[str, Callable[..., list[str]]] = {
    "prepare": _prepare,
    "table": _table_door,
    "folder": _folder_door,
    "opensrh": _opensrh_door,
    "nifti": _nifti_door,
    "nifti table": _nifti_table_door,
    "nifti with pseudonyms": _hidden(_nifti_door),
    "dicom": _dicom_door,
    "dicom with pseudonyms": _hidden(_dicom_door),
}
every_door = pytest.mark.parametrize("door", DOORS)


@every_door
def test_patients_whose_names_look_alike_are_named(door: str, tmp_path: Path) -> None:
    names = ("MRN0012345", "mrn0012345", "MRN 0012345")
    said = DOORS[door](tmp_path, {(name, f"S{number}"): number for number, name in enumerate(names)})
    pairs = [sentence for sentence in said if "differ only in case, spaces, hyphens" in sentence]
    assert len(pairs) == 2
    for name in names:
        assert any(repr(name) in pair for pair in pairs)
    if "pseudonyms" in door:
        assert not any(b"0012345" in data for data in contents(tmp_path / "store").values())


@every_door
def test_one_slide_of_two_patients_is_named(door: str, tmp_path: Path) -> None:
    slides = {("P1", "A"): 0, ("P2", "B"): 0, ("P3", "C"): 1}
    if door in ("prepare", "nifti table"):
        with pytest.raises(
            UserError, match="slide 'B' of patient 'P2' is the same file content as slide 'A' of patient"
        ):
            DOORS[door](tmp_path, slides)
        return
    [copy] = [sentence for sentence in DOORS[door](tmp_path, slides) if "have the same values" in sentence]
    assert "of different patients" in copy


@every_door
def test_columns_of_our_own_are_refused(door: str, tmp_path: Path) -> None:
    slides = {("P1", "A"): 0, ("P2", "B"): 1}
    for column in ("annotation", "shard"):
        (tmp_path / column).mkdir()
        if door in ("prepare", "nifti table"):  # a cohort is gone on with, without the column
            said = DOORS[door](tmp_path / column, slides, f",{column}")
            assert any(f"column {column!r} is one that hidisc writes itself, and is not kept" in each for each in said)
            continue
        with pytest.raises(UserError, match=f"column {column!r} is one that hidisc writes itself. Rename it."):
            DOORS[door](tmp_path / column, slides, f",{column}")


@every_door
def test_a_table_of_patients_is_kept_whole(door: str, tmp_path: Path) -> None:
    if door in ("prepare", "table", "nifti table"):
        pytest.skip("their helper writes the column into the table of slides; tests/test_cli.py, tests/patches")
    said = DOORS[door](tmp_path, {("P1", "A"): 0, ("P2", "B"): 1}, ",age")
    assert not any("age" in sentence for sentence in said)
    assert set(PatchStore.load(tmp_path / "store").table.column("age")) == {"x"}


@every_door
def test_names_on_two_lines_are_refused(door: str, tmp_path: Path) -> None:
    if door.startswith("dicom"):
        pytest.skip("DICOM has no line breaks in ids: pydicom refuses to write them")
    with pytest.raises(UserError, match="contains a line break"):
        DOORS[door](tmp_path, {("P1\nP2", "A"): 0, ("P3", "B"): 1})


@every_door
def test_a_slide_without_a_patient_is_refused_or_left_out(door: str, tmp_path: Path) -> None:
    slides = {("", "A"): 0, ("P2", "B"): 1}
    if door in ("folder", "nifti", "nifti with pseudonyms"):
        pytest.skip("a folder has a name")
    if door.startswith("dicom"):
        said = DOORS[door](tmp_path, slides)
        assert any("6 files below" in sentence and "no DICOM image of a patient" in sentence for sentence in said)
        return
    with pytest.raises(UserError, match=r"patient (is )?empty"):
        DOORS[door](tmp_path, slides)


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        ([SlideRow("", "A", Path())], "slide 'A': patient is empty. Fill it in."),
        ([SlideRow("P\ud800", "A", Path())], "has letters that are not UTF-8. Rename it."),
        ([SlideRow("P" * 5001, "A", Path())], "patient has 5,001 characters, more than 5,000. Shorten it."),
        ([SlideRow("P", "A", Path(), label="a\nb")], "label 'a\\nb' contains a line break"),
        ([SlideRow("P", "A", Path(), more={"place": "x"})], "column 'place' is one that hidisc writes itself"),
        ([SlideRow("P", "A", Path(), columns={"shard": ["x"]})], "column 'shard' is one that hidisc writes itself"),
        ([SlideRow("P", "A", Path()), SlideRow("P", "A", Path())], "slide 'A' was listed in slide 'A' already"),
        ([SlideRow("P", "A", Path()), SlideRow("Q", "A", Path())], "is listed under patients 'P' (slide 'A') and 'Q'"),
        ([SlideRow("P", "A", Path(), split="x"), SlideRow("Q", "B", Path())], "split is empty, but not in the others"),
        (
            [SlideRow("P", "A", Path(), split="x"), SlideRow("P", "B", Path(), split="y")],
            "patient 'P' is in split 'y', but in 'x' in slide 'A'. A patient is in one split only.",
        ),
    ],
)
@pytest.mark.parametrize("kind", [Source, VolumeSource])
def test_sources_of_ones_own_pass_the_same_checks(
    kind: type[Source] | type[VolumeSource], rows: list[SlideRow], sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError) as caught:
        kind(tmp_path, tuple((row, ()) for row in rows))  # type: ignore[arg-type]
    assert sentence in str(caught.value)


def test_the_name_of_the_folder_is_private_too(tmp_path: Path) -> None:
    """A folder may be called after a person; what failed is named by its scan, and on the screen by its file."""
    root = tmp_path / "JaneDoe"
    write_nifti(root / "P1/a.nii.gz", draw_volume(0))
    (root / "P2").mkdir()
    (root / "P2/b.nii.gz").write_bytes(b"damaged")
    write_dicom(tmp_path / "dicom/JaneDoe", draw_volume(1), "P3")[2].write_bytes(b"")
    said = _import(find_nifti(root, VOLUMES, None, tmp_path / "key"), tmp_path)
    assert any("JaneDoe" in sentence for sentence in said)
    for name, data in contents(tmp_path / "store").items():
        assert b"JaneDoe" not in data, name
    assert np.all([b"P1/a" not in data for data in contents(tmp_path / "store").values()])

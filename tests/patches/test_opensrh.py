"""A small tree in the shape of OpenSRH is imported bit for bit, and what is wrong with one is said."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile

from hidisc.ground.errors import UserError
from hidisc.patches.folders import META, SPLIT, find_opensrh
from hidisc.patches.pack import Source
from hidisc.patches.store import PatchStore
from hidisc.verbs.prepare import import_patches
from tests.patches.pictures import noise


def pixels_of(path: str) -> np.ndarray:
    """The 16-bit two-channel pixels (16, 16, 2) of a patch, others for every path."""
    return noise(sum(path.encode()), 16, 2, "uint16")


def study(patient: str, label: str, slides: int = 2, patches: int = 2) -> dict[str, Any]:
    """A patient's entry; every slide lists both tumour and normal patches, as the real file does."""
    lists = {}
    for slide in map(str, range(1, slides + 1)):
        paths = {kind: [f"{patient}/{slide}/patches/{kind}{n}.tif" for n in range(patches)] for kind in ("t", "n")}
        lists[slide] = {"tumor_patches": paths["t"], "normal_patches": paths["n"]}
    return {"class": label, "slides": lists}


def write_opensrh(root: Path, meta: dict[str, Any], split: dict[str, list[str]]) -> Path:
    """The two JSON files and every listed patch, channels first as in the real ones."""
    for name, found in ((META, meta), (SPLIT, split)):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(json.dumps(found))
    for patient in meta.values():
        for lists in patient["slides"].values():
            for path in [*lists["tumor_patches"], *lists["normal_patches"]]:
                (root / path).parent.mkdir(parents=True, exist_ok=True)
                tifffile.imwrite(root / path, np.moveaxis(pixels_of(path), 2, 0))
    return root


@pytest.fixture
def opensrh(tmp_path: Path) -> Path:
    """Two tumour patients and a normal one."""
    meta = {"NIO_001": study("NIO_001", "hgg"), "NIO_002": study("NIO_002", "normal"), "UM_1": study("UM_1", "mening")}
    return write_opensrh(tmp_path / "opensrh", meta, {"train": ["NIO_001", "NIO_002"], "val": ["UM_1"]})


def change(root: Path, name: str, patient: str, value: Any) -> None:
    """Replace one entry of a JSON file; None removes it."""
    found = json.loads((root / name).read_text())
    found[patient] = value
    (root / name).write_text(json.dumps({key: entry for key, entry in found.items() if entry is not None}))


def refusal(root: Path) -> str:
    with pytest.raises(UserError) as caught:
        find_opensrh(root)
    return str(caught.value)


def names(source: Source) -> list[str]:
    """`slide/patch` of every patch found."""
    return [f"{row.slide}/{name}" for row, _ in source.slides for name in row.columns["name"]]


def test_normal_patients_give_normal_patches_and_others_tumour_patches(opensrh: Path) -> None:
    assert names(find_opensrh(opensrh)) == [
        *("NIO_001/1/t0", "NIO_001/1/t1", "NIO_001/2/t0", "NIO_001/2/t1"),
        *("NIO_002/1/n0", "NIO_002/1/n1", "NIO_002/2/n0", "NIO_002/2/n1"),
        *("UM_1/1/t0", "UM_1/1/t1", "UM_1/2/t0", "UM_1/2/t1"),
    ]


def test_labels_and_sides_are_those_of_the_files(opensrh: Path) -> None:
    facts = {row.patient: (row.label, row.split) for row, _ in find_opensrh(opensrh).slides}
    assert facts == {"NIO_001": ("hgg", "train"), "NIO_002": ("normal", "train"), "UM_1": ("mening", "val")}


def test_pixels_are_kept_bit_for_bit(opensrh: Path, tmp_path: Path) -> None:
    source = find_opensrh(opensrh)
    import_patches(source, tmp_path / "store", workers=0)
    store = PatchStore.load(tmp_path / "store")
    assert (store.shape, store.dtype, store.info.input, store.input_channels) == ((16, 16, 2), np.uint16, "srh", 3)
    paths = [path for _, paths in source.slides for path in paths]
    assert len(store) == len(paths) == 12
    for index, path in enumerate(paths):
        np.testing.assert_array_equal(store.read(index), pixels_of(str(path.relative_to(opensrh))))
    assert store.table.column("slide").tolist() == [f"{p}/{s}" for p in ("NIO_001", "NIO_002", "UM_1") for s in "1122"]
    assert store.table.column("split").tolist() == ["train"] * 8 + ["val"] * 4
    assert store.table.column("label").tolist() == ["hgg"] * 4 + ["normal"] * 4 + ["mening"] * 4


def test_channels_may_lie_behind_each_other_too(opensrh: Path, tmp_path: Path) -> None:
    for path in opensrh.rglob("*.tif"):
        pixels = pixels_of(str(path.relative_to(opensrh)))
        tifffile.imwrite(path, pixels, photometric="minisblack", planarconfig="contig")
    import_patches(find_opensrh(opensrh), tmp_path / "store", workers=0)
    store = PatchStore.load(tmp_path / "store")
    np.testing.assert_array_equal(store.read(0), pixels_of("NIO_001/1/patches/t0.tif"))


# ---- warnings


def test_a_patient_on_no_side(opensrh: Path) -> None:
    change(opensrh, SPLIT, "val", [])
    source = find_opensrh(opensrh)
    assert source.warnings == (
        "1 patient ('UM_1'): in neither split of meta/train_val_split.json; the split stays empty.",
    )
    assert [row.split for row, _ in source.slides if row.patient == "UM_1"] == [None, None]


def test_a_patient_without_patches_of_its_kind(opensrh: Path) -> None:
    empty = {"class": "normal", "slides": {"1": {"tumor_patches": ["a.tif"], "normal_patches": []}}}
    change(opensrh, META, "UM_1", empty)
    source = find_opensrh(opensrh)
    assert source.warnings == ("1 patient ('UM_1'): no patches of the class; left out.",)
    assert {row.patient for row, _ in source.slides} == {"NIO_001", "NIO_002"}


# ---- errors


@pytest.mark.parametrize("name", [META, SPLIT])
def test_a_missing_file(opensrh: Path, name: str) -> None:
    (opensrh / name).unlink()
    assert refusal(opensrh) == f"{opensrh / name} does not exist. Give the OpenSRH folder that holds `meta`."


def test_a_file_that_is_not_json(opensrh: Path) -> None:
    (opensrh / META).write_text('{"NIO_001": ')
    sentence = refusal(opensrh)
    assert sentence.startswith(f"{opensrh / META} cannot be read (Expecting value")
    assert sentence.endswith("). Download it again.")


def test_json_of_another_shape(opensrh: Path) -> None:
    (opensrh / SPLIT).write_text('["NIO_001"]')
    assert refusal(opensrh) == (
        f"{opensrh / SPLIT} is not an OpenSRH file: a JSON object is expected. Download it again."
    )


def test_missing_patches_are_all_named(opensrh: Path) -> None:
    gone = ["NIO_001/2/patches/t1.tif", "UM_1/1/patches/t0.tif"]
    for path in gone:
        (opensrh / path).unlink()
    (opensrh / "NIO_001/1/patches/n0.tif").unlink()  # not asked for: the patient is not normal
    assert refusal(opensrh).split("\n  ") == [
        f"{opensrh} has 2 problems:",
        *(f"meta/opensrh.json: patch {path!r} does not exist below {opensrh}. Download it again." for path in gone),
    ]


def test_a_patient_without_class_or_lists(opensrh: Path) -> None:
    change(opensrh, META, "NIO_001", {"slides": {}})
    change(opensrh, META, "UM_1", {"class": "mening", "slides": {"1": {"normal_patches": []}}})
    assert refusal(opensrh).split("\n  ")[1:] == [
        "meta/opensrh.json: patient 'NIO_001' lacks 'class'. Download the file again.",
        "meta/opensrh.json: patient 'UM_1' lacks 'tumor_patches'. Download the file again.",
    ]


@pytest.mark.parametrize("entry", ["hgg", {"class": "hgg", "slides": ["1"]}, {"class": "hgg", "slides": {"1": 5}}])
def test_a_patient_of_another_shape(opensrh: Path, entry: Any) -> None:
    change(opensrh, META, "UM_1", entry)
    assert refusal(opensrh).split("\n  ")[1:] == [
        "meta/opensrh.json: patient 'UM_1' is not `class` and `slides`. Download the file again."
    ]


def test_no_patches_at_all(opensrh: Path) -> None:
    (opensrh / META).write_text("{}")
    assert refusal(opensrh) == f"{opensrh / META} lists no patches. Give the OpenSRH folder that holds `meta`."

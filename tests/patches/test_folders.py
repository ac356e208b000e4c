"""Patch files in folders or in a CSV are found, described and imported; what is odd about them is said."""

import os
import unicodedata
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from hidisc.ground.errors import UserError
from hidisc.patches.folders import find_folder, find_table
from hidisc.patches.pack import PackTask, Source
from hidisc.patches.store import PatchStore
from hidisc.settings.prepare import ImportConfig
from hidisc.slides.slide import SlideError
from hidisc.verbs.prepare import import_patches
from tests.patches.pictures import noise, pictures_of, write_pictures


def patches(source: Source) -> list[str]:
    """`slide/patch` of every patch found, in order."""
    return [f"{row.slide}/{name}" for row, _ in source.slides for name in row.columns["name"]]


def refusal(find: object, *arguments: object) -> str:
    with pytest.raises(UserError) as caught:
        find(*arguments)  # type: ignore[operator]
    return str(caught.value)


# ---- folders


def test_patient_slide_and_patch_are_the_folders(tmp_path: Path) -> None:
    source = find_folder(write_pictures(tmp_path, pictures_of("P1/A", "P1/B", "P2/A", patches=2)))
    assert patches(source) == ["P1/A/0", "P1/A/1", "P1/B/0", "P1/B/1", "P2/A/0", "P2/A/1"]
    assert [row.patient for row, _ in source.slides] == ["P1", "P1", "P2"]
    assert source.warnings == ()


def test_a_slide_name_under_two_patients_is_two_slides(tmp_path: Path) -> None:
    pictures = pictures_of("P1/1", "P2/1")
    import_patches(find_folder(write_pictures(tmp_path / "in", pictures)), tmp_path / "store", workers=0)
    store = PatchStore.load(tmp_path / "store")
    assert [(entry.patient, entry.slide, entry.kept) for entry in store.info.slides] == [
        ("P1", "P1/1", 3),
        ("P2", "P2/1", 3),
    ]
    np.testing.assert_array_equal(store.read(3), pictures["P2/1/0.png"])


def test_files_at_another_depth_are_left_out_and_named(tmp_path: Path) -> None:
    pictures = {"P1/A/0.png": noise(0), "P1/loose.png": noise(1), "top.jpg": noise(2), "P1/A/deep/0.tif": noise(3)}
    source = find_folder(write_pictures(tmp_path, pictures))
    assert patches(source) == ["P1/A/0"]
    assert source.warnings == (
        "3 pictures are not at patient/slide/patch and are left out: 'P1/A/deep/0.tif', 'P1/loose.png', 'top.jpg'.",
    )


def test_hidden_files_and_other_kinds_are_passed_over(tmp_path: Path) -> None:
    names = ["P1/A/0.PNG", "P1/A/._0.png", ".cache/A/0.png", "P1/.thumbs/0.png"]
    root = write_pictures(tmp_path, {name: noise(0) for name in names})
    (root / "P1/A/notes.txt").write_text("blurred")
    (root / "P1/A/folder.png").mkdir()
    source = find_folder(root)
    assert patches(source) == ["P1/A/0"]
    assert source.warnings == ()


def test_linked_folders_are_entered(tmp_path: Path) -> None:
    write_pictures(tmp_path / "disk", pictures_of("S1", "S2", patches=1))
    write_pictures(tmp_path / "root", {"P1/A/0.png": noise(0)})
    (tmp_path / "root/P2").symlink_to(tmp_path / "disk")
    assert patches(find_folder(tmp_path / "root")) == ["P1/A/0", "P2/S1/0", "P2/S2/0"]


def test_labels_sites_and_sides_come_from_a_csv_of_patients(tmp_path: Path) -> None:
    root = write_pictures(tmp_path / "in", pictures_of("P1/A", "P2/A", patches=1))
    csv = tmp_path / "patients.csv"
    csv.write_text("Patient;Label;Site;Split\nP1;tumour;Ulm;train\nP2;normal;;test\nP9;tumour;;train\n")
    source = find_folder(root, csv)
    facts = [(row.label, row.site, row.split) for row, _ in source.slides]
    assert facts == [("tumour", "Ulm", "train"), ("normal", None, "test")]
    assert source.warnings == (f"{csv} lists patients who have no slides: 'P9'.",)


def test_a_patient_missing_from_the_csv_is_named(tmp_path: Path) -> None:
    root = write_pictures(tmp_path / "in", pictures_of("P1/A", "P2/A", patches=1))
    csv = tmp_path / "patients.csv"
    csv.write_text("patient,label\nP1,tumour\n")
    source = find_folder(root, csv)
    assert source.warnings == (f"{csv} does not list the patients 'P2'; they have no label.",)
    assert [row.label for row, _ in source.slides] == ["tumour", None]


def test_a_patient_twice_in_the_csv(tmp_path: Path) -> None:
    root = write_pictures(tmp_path / "in", pictures_of("P1/A", patches=1))
    csv = tmp_path / "patients.csv"
    csv.write_text("patient,label\nP1,tumour\nP1,normal\n")
    assert refusal(find_folder, root, csv) == (
        f"{csv} has 1 problem:\n  patients.csv row 3: patient 'P1' was listed already. Remove one of the rows."
    )


@pytest.mark.parametrize("on_disk", ["NFC", "NFD"])
def test_accents_of_folders_match_those_of_the_csv(tmp_path: Path, on_disk: str) -> None:
    patient = unicodedata.normalize(on_disk, "Müller")
    root = write_pictures(tmp_path / "in", {f"{patient}/A/0.png": noise(0)})
    csv = tmp_path / "patients.csv"
    csv.write_text("patient,label\nMüller,tumour\n", encoding="utf-8")
    (row, _), *_ = find_folder(root, csv).slides
    assert (row.patient, row.label) == ("Müller", "tumour")


TWINS = "are treated as two, but differ only in case, spaces, hyphens or the form of their letters. If they are one"


def test_folders_that_people_take_for_one_are_warned_of(tmp_path: Path) -> None:
    root = write_pictures(tmp_path / "in", pictures_of("P1/A", "P1/a", "p1/A", "P2/a", patches=1))
    source = find_folder(root)
    assert [row.slide for row, _ in source.slides] == ["P1/A", "P1/a", "P2/a", "p1/A"]
    assert source.warnings == (
        f"slides 'A' (slide 'P1/A') and 'a' (slide 'P1/a') {TWINS} slide, write them alike.",
        f"patients 'P1' (slide 'P1/A') and 'p1' (slide 'p1/A') {TWINS} patient, write them alike.",
    )


def test_a_csv_of_patients_that_names_a_folder_otherwise_is_warned_of(tmp_path: Path) -> None:
    root = write_pictures(tmp_path / "in", pictures_of("P1/A", "P2/A", patches=1))
    csv = tmp_path / "patients.csv"
    csv.write_text("patient,label,site\np1,Glioma,Ulm\nP2,glioma,ulm\n")
    assert find_folder(root, csv).warnings == (
        f"{csv}: labels 'Glioma' (row 2) and 'glioma' (row 3) {TWINS} label, write them alike.",
        f"{csv}: sites 'Ulm' (row 2) and 'ulm' (row 3) {TWINS} site, write them alike.",
        f"{csv} does not list the patients 'P1'; they have no label. Is 'P1' the 'p1' of the CSV?",
        f"{csv} lists patients who have no slides: 'p1'.",
    )
    csv.write_text("patient,split\np1,train\nP2,test\n")
    with pytest.raises(UserError, match=r"would be in no split. Is 'P1' the 'p1' of the CSV. Add them"):
        find_folder(root, csv)


def test_an_unclosed_quote_in_a_csv_of_patients_is_refused(tmp_path: Path) -> None:
    root = write_pictures(tmp_path / "in", pictures_of("P1/A", "P2/A", patches=1))
    csv = tmp_path / "patients.csv"
    csv.write_text('patient,label\nP1,"tumour\nP2,normal\n')
    assert refusal(find_folder, root, csv).startswith(f'{csv} row 2: a quote (") opens a cell in this row')


def test_names_that_are_no_text_are_refused(tmp_path: Path) -> None:
    root = write_pictures(tmp_path, {os.fsdecode(b"P\xe9/A/0.png"): noise(0), "P1/A/0.png": noise(1)})
    assert refusal(find_folder, root) == (
        f"{root} has 1 problem:\n  'P\\udce9/A/0.png' has letters that are not UTF-8 in its name. Rename it."
    )


def test_no_folder_and_no_pictures(tmp_path: Path) -> None:
    missing = tmp_path / "none"
    assert (
        refusal(find_folder, missing)
        == f"{missing} is not a folder. Give the folder that holds one folder per patient."
    )
    assert refusal(find_folder, tmp_path) == (
        f"{tmp_path} holds no pictures at patient/slide/patch.png (.bmp, .jpeg, .jpg, .png, .tif, .tiff)."
    )


# ---- tables


def write_table(folder: Path, *lines: str, files: tuple[str, ...] = ("a.png", "b.png", "c.png")) -> Path:
    """`patches.csv` of these lines and the pictures it names."""
    write_pictures(folder, {name: noise(seed) for seed, name in enumerate(files)})
    (folder / "patches.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder / "patches.csv"


def problems(csv: Path, *level: str) -> list[str]:
    head, *lines = refusal(find_table, csv, *level).split("\n  ")
    assert head == f"{csv} has {len(lines)} problem{'s' if len(lines) > 1 else ''}:"
    return lines


def test_rows_of_a_table_are_patches_in_its_order(tmp_path: Path) -> None:
    csv = write_table(tmp_path, "patient,slide,path", "P2,A,c.png", "P1,A,a.png", "P2,A,b.png")
    source = find_table(csv)
    assert patches(source) == ["P2/A/c", "P2/A/b", "P1/A/a"]
    assert [path for _, paths in source.slides for path in paths] == [tmp_path / f"{name}.png" for name in "cba"]


def test_columns_of_the_users_own_are_kept(tmp_path: Path) -> None:
    head = "patient,slide,path,patch,label,site,split,Stage,note"
    rows = ["P1,A,a.png,7,x,Ulm,train,II,", "P1,A,b.png,8,x,Ulm,train,III,blurred", "P2,A,c.png,9,y,,test,,"]
    import_patches(find_table(write_table(tmp_path, head, *rows)), tmp_path / "store", workers=0)
    table = PatchStore.load(tmp_path / "store").table
    assert table.columns[-3:] == ["name", "stage", "note"]
    assert table.column("name").tolist() == ["7", "8", "9"]
    assert table.column("stage").tolist() == ["II", "III", None]
    assert table.column("note").tolist() == [None, "blurred", None]
    assert table.column("site").tolist() == ["Ulm", "Ulm", None]
    assert table.column("split").tolist() == ["train", "train", "test"]


LABELLED = ("patient,slide,path,label", "P1,A,a.png,x", "P1,A,b.png,y", "P1,B,c.png,z")


def test_one_label_a_patient(tmp_path: Path) -> None:
    fix = "A patient has one label. Fix one of the rows, or --set label_level=slide."
    assert problems(write_table(tmp_path, *LABELLED)) == [
        f"patches.csv row 3: patient 'P1' has label 'y', but 'x' in row 2. {fix}",
        f"patches.csv row 4: patient 'P1' has label 'z', but 'x' in row 2. {fix}",
    ]


def test_one_label_a_slide(tmp_path: Path) -> None:
    assert problems(write_table(tmp_path, *LABELLED), "slide") == [
        "patches.csv row 3: slide 'A' has label 'y', but 'x' in row 2. A slide has one label. "
        "Fix one of the rows, or --set label_level=patch."
    ]


@pytest.mark.parametrize(("level", "second"), [("patch", "y"), ("slide", "x")])
def test_labels_may_differ_below_the_level_asked_for(tmp_path: Path, level: str, second: str) -> None:
    csv = write_table(tmp_path, LABELLED[0], LABELLED[1], f"P1,A,b.png,{second}", LABELLED[3])
    import_patches(find_table(csv, level), tmp_path / "store", workers=0)
    assert PatchStore.load(tmp_path / "store").table.column("label").tolist() == ["x", second, "z"]


def test_one_split_per_patient(tmp_path: Path) -> None:
    csv = write_table(tmp_path, "patient,slide,path,split", "P1,A,a.png,train", "P1,B,b.png,test")
    assert problems(csv, "patch") == [
        "patches.csv row 3: patient 'P1' is in split 'test', but in 'train' in row 2. "
        "A patient is in one split only. Fix one of the rows."
    ]


def test_everything_wrong_with_the_rows_is_said_at_once(tmp_path: Path) -> None:
    csv = write_table(tmp_path, "patient,slide,path", "P1,A,a.png", ",A,", "P1,A,gone.png", "P1,B,a.png")
    assert problems(csv) == [
        "patches.csv row 3: patient and path empty. Fill in or remove the row.",
        f"patches.csv row 4: file 'gone.png' of slide 'A' does not exist. Paths are relative to the CSV ({tmp_path}). "
        "Correct the path or remove the row.",
        "patches.csv row 5: file 'a.png' was listed in row 2 already. Remove one.",
    ]


def test_a_patch_file_that_vanished_is_named(tmp_path: Path) -> None:
    root = write_pictures(tmp_path / "in", pictures_of("P/A"))
    (root / "P/A/1.png").unlink()
    task = PackTask("P/A", tmp_path / "folder", (root / "P/A/0.png", root / "P/A/1.png"), ImportConfig())
    with pytest.raises(SlideError) as caught:
        task.run()
    assert str(caught.value) == f"{root}/P/A/1.png cannot be read (No such file or directory). Copy it again."
    assert not list(tmp_path.glob("*folder*"))


def test_a_patch_file_that_changes_while_it_is_packed_is_refused(tmp_path: Path) -> None:
    """Its pixels would stand under the checksum of what it was."""
    root = write_pictures(tmp_path / "in", pictures_of("P/A"))
    files = tuple(root / f"P/A/{number}.png" for number in range(3))
    task = PackTask("P/A", tmp_path / "folder", files, ImportConfig())
    with pytest.raises(SlideError) as caught:
        task.run(lambda _: write_pictures(root, {"P/A/2.png": noise(9)}) and None)
    assert str(caught.value) == (
        f"{root}/P/A changed while it was read. Wait until it is copied, then run the same command again."
    )
    assert not list(tmp_path.glob("*folder*"))
    assert task.run().boxes == 3


def test_a_patch_file_without_bytes_is_refused(tmp_path: Path) -> None:
    csv = write_table(tmp_path, "patient,slide,path", "P1,A,a.png", "P1,A,b.png")
    (tmp_path / "b.png").write_bytes(b"")
    assert problems(csv) == [
        "patches.csv row 3: file 'b.png' is empty (0 bytes). Copy it again or remove the row.",
    ]


def test_names_of_a_table_that_people_take_for_one_are_warned_of(tmp_path: Path) -> None:
    csv = write_table(tmp_path, "patient,slide,path,label", "P1,A,a.png,x", "p1,a,b.png,X", "P2,a,c.png,x")
    source = find_table(csv)
    assert [row.slide for row, _ in source.slides] == ["P1/A", "p1/a", "P2/a"]
    assert source.warnings == (
        f"patches.csv: patients 'P1' (row 2) and 'p1' (row 3) {TWINS} patient, write them alike.",
        f"patches.csv: slides 'A' (row 2) and 'a' (row 3) {TWINS} slide, write them alike.",
        f"patches.csv: labels 'x' (row 2) and 'X' (row 3) {TWINS} label, write them alike.",
    )


def test_a_table_that_was_moved_is_one_sentence(tmp_path: Path) -> None:
    csv = write_table(tmp_path, "patient,slide,path", *(f"P1,A,deep/{n}.png" for n in range(60)), files=())
    assert refusal(find_table, csv) == (
        f"{csv}: none of the 60 files exists. Paths are relative to the folder of the CSV ({tmp_path}); the first one "
        f"tried is {tmp_path}/deep/0.png. Move the CSV back to where its paths start, or correct the column `path`."
    )


def test_an_unclosed_quote_in_a_table_is_refused(tmp_path: Path) -> None:
    csv = write_table(tmp_path, "patient,slide,path", "P1,A,a.png", 'P2,"A,b.png', "P3,A,c.png")
    assert refusal(find_table, csv).startswith(f'{csv} row 3: a quote (") opens a cell in this row')


@pytest.mark.parametrize("column", ["name", "shard", "x", "is_blank"])
def test_columns_hidisc_writes_itself_are_refused(tmp_path: Path, column: str) -> None:
    csv = write_table(tmp_path, f"patient,slide,path,{column.upper()}", "P1,A,a.png,1")
    assert refusal(find_table, csv) == f"{csv}: column {column!r} is one that hidisc writes itself. Rename it."


def test_missing_column(tmp_path: Path) -> None:
    csv = write_table(tmp_path, "patient,file", "P1,a.png")
    assert refusal(find_table, csv) == (
        f"{csv}: columns 'slide', 'path' are missing. Its columns are patient, file; patient, slide, path are needed. "
        "Add or rename."
    )


def test_paths_as_windows_and_macos_write_them(tmp_path: Path) -> None:
    decomposed = unicodedata.normalize("NFD", "Größe.png")
    csv = write_table(
        tmp_path, "patient,slide,path", r"P1,A,deep\a.png", "P1,A,Größe.png", files=("deep/a.png", decomposed)
    )
    (_, paths), *_ = find_table(csv).slides
    assert paths == (tmp_path / "deep/a.png", tmp_path / decomposed)


def test_names_that_would_run_together_are_refused(tmp_path: Path) -> None:
    csv = write_table(tmp_path, "patient,slide,path", "P/1,A,a.png", "P,1/A,b.png")
    assert refusal(find_table, csv) == "patients 'P/1' and 'P' both have a slide 'P/1/A'. Rename one of them."


# ---- sizes


def test_patches_of_different_sizes_are_refused(tmp_path: Path) -> None:
    pictures = {"P1/A/0.png": noise(0, 16), "P1/A/1.png": noise(1, 20), "P2/A/0.png": noise(2, 16)}
    root = write_pictures(tmp_path / "in", pictures)
    done = import_patches(find_folder(root), tmp_path / "store", workers=0)
    (failure,) = done.info.failures
    assert failure.slide == "P1/A"
    assert failure.reason == (
        f"{root}/P1/A/1.png has 20 x 20 px in 3 channels of uint8; patches of a store are square and alike "
        "(0.png: 16 x 16 px in 3 channels of uint8). Bring them to one size with --set resize_px=64 or another side."
    )
    assert [entry.slide for entry in done.info.slides] == ["P2/A"]


def test_a_patch_that_is_not_square_is_refused(tmp_path: Path) -> None:
    root = write_pictures(tmp_path / "in", {"P1/A/0.png": noise(0)[:12]})
    sentence = refusal(lambda: import_patches(find_folder(root), tmp_path / "store", workers=0))
    assert "0.png has 16 x 12 px in 3 channels of uint8; patches of a store are square" in sentence


def test_resize_brings_all_to_one_side(tmp_path: Path) -> None:
    flat = {"P1/A/0.png": (16, 16), "P1/A/1.png": (40, 24), "P2/A/0.png": (64, 64)}
    pictures = {name: np.full((*size, 3), 10 + i, np.uint8) for i, (name, size) in enumerate(flat.items())}
    root = write_pictures(tmp_path / "in", pictures)
    import_patches(find_folder(root), tmp_path / "store", ImportConfig(resize_px=32), workers=0)
    store = PatchStore.load(tmp_path / "store")
    assert store.read_many(range(3)).shape == (3, 32, 32, 3)
    assert [set(np.unique(store.read(index))) for index in range(3)] == [{10}, {11}, {12}]


def test_resize_keeps_the_picture(tmp_path: Path) -> None:
    half = np.zeros((64, 64, 3), np.uint8)
    half[:, 32:] = 200
    root = write_pictures(tmp_path / "in", {"P1/A/0.png": half})
    import_patches(find_folder(root), tmp_path / "store", ImportConfig(resize_px=16), workers=0)
    patch = PatchStore.load(tmp_path / "store").read(0)
    assert patch[:, :7].max() == 0
    assert patch[:, 9:].min() == 200


# ---- real cells


@pytest.mark.whole
def test_the_malaria_cells_as_table_and_as_folder(shared_data: Path, tmp_path: Path) -> None:
    root = shared_data / "malaria"
    import_patches(find_table(root / "patches.csv"), tmp_path / "table", workers=0)
    import_patches(find_folder(root), tmp_path / "folder", workers=0)
    stores = {name: PatchStore.load(tmp_path / name) for name in ("table", "folder")}
    rows = {}
    for name, store in stores.items():
        assert len(store) == 4797
        assert len(set(store.table.column("patient"))) == 60
        slides, patches = store.table.column("slide"), store.table.column("name")
        rows[name] = {f"{slide}/{patch}": row for row, (slide, patch) in enumerate(zip(slides, patches, strict=True))}
    assert set(stores["table"].table.column("cell_label")) == {"parasitized", "uninfected"}
    assert rows["table"].keys() == rows["folder"].keys()
    for key, row in rows["table"].items():
        pixels = stores["table"].read(row)
        np.testing.assert_array_equal(pixels, stores["folder"].read(rows["folder"][key]))
        if row % 50 == 0:
            np.testing.assert_array_equal(pixels, np.asarray(Image.open(root / f"{key}.png").convert("RGB")))


def test_a_slide_of_two_sites_is_refused(tmp_path: Path) -> None:
    for name in ("1", "2"):
        Image.new("RGB", (16, 16)).save(tmp_path / f"{name}.png")
    (tmp_path / "t.csv").write_text("patient,slide,path,site\nP,S,1.png,Ulm\nP,S,2.png,Bern\n")
    with pytest.raises(UserError, match=r"t.csv row 3: slide 'S' is of site 'Bern', but of 'Ulm' in row 2"):
        find_table(tmp_path / "t.csv")


def test_an_output_inside_the_imported_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "in" / "P" / "S").mkdir(parents=True)
    Image.new("RGB", (16, 16)).save(tmp_path / "in" / "P" / "S" / "1.png")
    with pytest.raises(UserError, match=r"--out .* lies inside .*, which is read. Give a folder outside of it"):
        import_patches(find_folder(tmp_path / "in"), tmp_path / "in" / "store", workers=0)


def test_a_split_given_for_some_patches_only_is_refused(tmp_path: Path) -> None:
    for name in ("1", "2"):
        Image.new("RGB", (16, 16)).save(tmp_path / f"{name}.png")
    (tmp_path / "t.csv").write_text("patient,slide,path,split\nP,S,1.png,train\nQ,S,2.png,\n")
    with pytest.raises(UserError, match=r"t.csv row 3: split is empty, but not in the others"):
        find_table(tmp_path / "t.csv")

"""A store is a function of its slides and settings: not of what was killed, repeated or repaired on the way."""

import csv
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hidisc.artefacts.artefact import MANIFEST, make, verify
from hidisc.ground.errors import UserError
from hidisc.ground.files import beside
from hidisc.ground.spreadsheet import unguard_cell
from hidisc.patches import pack
from hidisc.patches.commit import StorePlan, commit_store
from hidisc.patches.folders import find_folder, find_table
from hidisc.patches.record import SlideRecord, describe_files, slide_folder
from hidisc.patches.shard import Shard, ShardWriter
from hidisc.patches.splits import split_patients
from hidisc.patches.store import STORE, PatchStore
from hidisc.settings.prepare import ImportConfig, SplitConfig
from hidisc.verbs.build import Built
from hidisc.verbs.prepare import import_patches
from tests.patches.pictures import contents, noise, pictures_of, write_pictures

SLIDES = ("P1/A", "P1/B", "P2/A", "P3/A")


def run(root: Path, out: Path, **settings: Any) -> Built:
    """Import a folder in this process."""
    return import_patches(find_folder(root), out, ImportConfig(**settings), workers=0)


def refusal(root: Path, out: Path, **settings: Any) -> str:
    with pytest.raises(UserError) as caught:
        run(root, out, **settings)
    return str(caught.value)


def readings(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The patch files read from here on."""
    read: list[Path] = []
    original = pack.read_patch

    def counted(path: Path, resize_px: int | None) -> np.ndarray:
        read.append(path)
        return original(path, resize_px)

    monkeypatch.setattr(pack, "read_patch", counted)
    return read


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder of four slides of three patients."""
    return write_pictures(tmp_path / "in", pictures_of(*SLIDES))


# ---- what was there before does not matter


def test_slides_added_later_take_their_place(root: Path, tmp_path: Path) -> None:
    run(root, tmp_path / "at-once")
    for slide in ("P3", "P1/A"):
        shutil.move(root / slide, tmp_path / slide.replace("/", "-"))
    run(root, tmp_path / "later")
    for slide in ("P3", "P1/A"):
        shutil.move(tmp_path / slide.replace("/", "-"), root / slide)
    done = run(root, tmp_path / "later")
    assert done.summary()["slides_read"] == 2
    assert [entry.slide for entry in done.info.slides] == list(SLIDES)
    assert contents(tmp_path / "later") == contents(tmp_path / "at-once")


def test_a_rerun_reads_nothing_and_changes_nothing(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(root, tmp_path / "store")
    before = contents(tmp_path / "store")
    read = readings(monkeypatch)
    assert run(root, tmp_path / "store").summary()["slides_read"] == 0
    assert read == []
    assert contents(tmp_path / "store") == before


def test_a_killed_run_is_finished(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(root, tmp_path / "store")
    before = contents(tmp_path / "store")
    lost = tmp_path / "store" / slide_folder("P1/B")
    lost.rename(beside(lost))
    for name in (MANIFEST, STORE, "patches.parquet"):
        (tmp_path / "store" / name).unlink()
    read = readings(monkeypatch)
    assert run(root, tmp_path / "store").summary()["slides_read"] == 1
    assert read == [root / f"P1/B/{number}.png" for number in range(3)]
    assert contents(tmp_path / "store") == before


def test_a_repaired_file_completes_the_store(root: Path, tmp_path: Path) -> None:
    run(root, tmp_path / "whole")
    picture = (root / "P2/A/1.png").read_bytes()
    (root / "P2/A/1.png").write_bytes(b"not a picture")
    done = run(root, tmp_path / "repaired")
    assert [failure.slide for failure in done.info.failures] == ["P2/A"]
    assert [entry.slide for entry in done.info.slides] == ["P1/A", "P1/B", "P3/A"]
    (root / "P2/A/1.png").write_bytes(picture)
    assert run(root, tmp_path / "repaired").summary()["slides_read"] == 1
    assert contents(tmp_path / "repaired") == contents(tmp_path / "whole")


def test_a_filter_there_and_back(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_pictures(root, {"P2/A/1.png": np.full((16, 16, 3), 90, np.uint8)})
    run(root, tmp_path / "store")
    before = contents(tmp_path / "store")
    read = readings(monkeypatch)
    run(root, tmp_path / "store", filter={"min_pixel_std": 8})
    store = PatchStore.load(tmp_path / "store")
    assert len(store) == 11
    assert store.dropped().column("slide").tolist() == ["P2/A"]
    assert store.dropped().column("name").tolist() == ["1"]
    run(root, tmp_path / "store")
    assert read == []
    assert contents(tmp_path / "store") == before


def test_pen_marks_are_not_looked_for_on_imported_patches(root: Path, tmp_path: Path) -> None:
    assert refusal(root, tmp_path / "store", filter={"max_pen_fraction": 0.1}) == (
        "filter.max_pen_fraction: pen marks are found on 8-bit RGB slides that are cut here, and 'P1/A' (patch files, "
        "3 channels of uint8) is none. Leave it at 1, or annotate them."
    )
    assert run(root, tmp_path / "store").summary()["slides_read"] == 0


# ---- what may not change


def test_slides_that_the_cohort_does_not_list_are_refused(root: Path, tmp_path: Path) -> None:
    run(root, tmp_path / "store")
    shutil.rmtree(root / "P3")
    assert refusal(root, tmp_path / "store") == (
        f"{tmp_path / 'store'} holds 1 slide that this cohort does not list ('P3/A'). "
        "Put it back into the cohort, or give a new --out."
    )


def test_of_many_unlisted_slides_three_are_named(root: Path, tmp_path: Path) -> None:
    run(root, tmp_path / "store")
    other = write_pictures(tmp_path / "other", pictures_of("Q/A"))
    sentence = refusal(other, tmp_path / "store")
    assert f"{tmp_path / 'store'} holds 4 slides that this cohort does not list (" in sentence
    assert sentence.count("'P") == 3
    assert " and 1 more). Put them back into the cohort" in sentence


def test_a_changed_file_is_refused(root: Path, tmp_path: Path) -> None:
    run(root, tmp_path / "store")
    with (root / "P1/B/0.png").open("ab") as file:
        file.write(b"\0")
    assert refusal(root, tmp_path / "store") == (
        f"what slide 'P1/B' was read from ({root}/P1/B) has changed since the store was made. "
        "Put it back as it was, or give a new --out."
    )


def write_table(folder: Path, rows: list[str]) -> Path:
    path = folder / "patches.csv"
    path.write_text("\n".join(["patient,slide,path,label,cell", *rows]) + "\n")
    return path


ROWS = ["P1,A,P1/A/0.png,x,c0", "P1,A,P1/A/1.png,x,c1", "P1,A,P1/A/2.png,x,c2", "P2,A,P2/A/0.png,y,c3"]


def test_changed_labels_reach_the_table_without_reading(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import_patches(find_table(write_table(root, ROWS)), tmp_path / "store", workers=0)
    read = readings(monkeypatch)
    changed = write_table(root, [row.replace(",x,", ",z,").replace("c1", "c9") for row in ROWS])
    done = import_patches(find_table(changed), tmp_path / "store", workers=0)
    assert done.summary()["slides_read"] == 0
    assert read == []
    table = PatchStore.load(tmp_path / "store").table
    assert table.column("label").tolist() == ["z", "z", "z", "y"]
    assert table.column("cell").tolist() == ["c0", "c9", "c2", "c3"]


def test_rows_in_another_order_would_describe_other_pixels(root: Path, tmp_path: Path) -> None:
    import_patches(find_table(write_table(root, ROWS)), tmp_path / "store", workers=0)
    resorted = find_table(write_table(root, [ROWS[1], ROWS[0], *ROWS[2:]]))
    with pytest.raises(UserError) as caught:
        import_patches(resorted, tmp_path / "store", workers=0)
    assert str(caught.value) == (
        f"what slide 'P1/A' was read from ({root}/P1/A) has changed since the store was made. "
        "Put it back as it was, or give a new --out."
    )


def test_slides_in_another_order_move_with_their_pixels(root: Path, tmp_path: Path) -> None:
    import_patches(find_table(write_table(root, ROWS)), tmp_path / "store", workers=0)
    import_patches(find_table(write_table(root, [ROWS[3], *ROWS[:3]])), tmp_path / "store", workers=0)
    store = PatchStore.load(tmp_path / "store")
    assert store.table.column("cell").tolist() == ["c3", "c0", "c1", "c2"]
    pictures = pictures_of(*SLIDES)
    for index, path in enumerate(["P2/A/0.png", "P1/A/0.png", "P1/A/1.png", "P1/A/2.png"]):
        np.testing.assert_array_equal(store.read(index), pictures[path])


def test_the_files_may_move_as_a_whole(root: Path, tmp_path: Path) -> None:
    run(root, tmp_path / "store")
    root.rename(tmp_path / "elsewhere")
    assert run(tmp_path / "elsewhere", tmp_path / "store").summary()["slides_read"] == 0


def test_two_kinds_of_patches(tmp_path: Path) -> None:
    root = write_pictures(tmp_path / "in", {"P1/A/0.png": noise(0, 16), "P2/A/0.png": noise(1, 20)})
    assert refusal(root, tmp_path / "store") == (
        "slide 'P2/A' has 3 channels of uint8 at 20 px, slide 'P1/A' has 3 of uint8 at 16 px. All patches of a store "
        "are alike: make two stores, or bring imported patches to one size with --set resize_px=64."
    )


# ---- splits


def splits_of(out: Path) -> dict[str, str | None]:
    table = PatchStore.load(out).table
    return dict(zip(table.column("patient").tolist(), table.column("split").tolist(), strict=True))


def test_splits_are_drawn_by_patient_where_none_are_given(tmp_path: Path) -> None:
    root = write_pictures(
        tmp_path / "in", pictures_of(*(f"P{n}/{slide}" for n in range(8) for slide in "AB"), patches=1)
    )
    folds = SplitConfig(folds=4)
    run(root, tmp_path / "store", split=folds, seed=3)
    assert splits_of(tmp_path / "store") == split_patients({f"P{n}": None for n in range(8)}, folds, 3)
    done = run(root, tmp_path / "store", split=folds, seed=4)
    assert done.summary()["slides_read"] == 0
    assert splits_of(tmp_path / "store") == split_patients({f"P{n}": None for n in range(8)}, folds, 4)


def test_splits_that_are_given_stay(root: Path, tmp_path: Path) -> None:
    patients = tmp_path / "patients.csv"
    patients.write_text("patient,split\nP1,held-out\nP2,\nP3,train\n")
    with pytest.raises(UserError, match="slide 'P2/A': split is empty, but not in the others"):
        find_folder(root, patients)
    patients.write_text("patient,split\nP1,held-out\nP2,mine\nP3,train\n")
    import_patches(find_folder(root, patients), tmp_path / "store", workers=0)
    assert splits_of(tmp_path / "store") == {"P1": "held-out", "P2": "mine", "P3": "train"}


# ---- failures and gaps

HOSTILE = ['P "quoted", and more', "=HYPERLINK(1)", "-1+1", "患者;7", "%s{0}"]


def test_failures_are_listed_word_for_word(tmp_path: Path) -> None:
    root = write_pictures(tmp_path / "in", {"good/A/0.png": noise(0)})
    for name in HOSTILE:
        (root / name / "A").mkdir(parents=True)
        (root / name / "A/0.png").write_bytes(b"not a picture")
    done = run(root, tmp_path / "store")
    with (tmp_path / "store/failures.csv").open(newline="", encoding="utf-8") as file:
        listed = list(csv.DictReader(file))
    said = [failure.model_dump() for failure in done.info.failures]
    assert [(row["patient"], row["slide"]) for row in said] == [(name, f"{name}/A") for name in sorted(HOSTILE)]
    formulas = ("'=HYPERLINK(1)", "'-1+1")
    assert {row["patient"] for row in listed} - {row["patient"] for row in said} == set(formulas)
    assert {row["slide"] for row in listed} - {row["slide"] for row in said} == {f"{name}/A" for name in formulas}
    assert [{name: unguard_cell(cell) for name, cell in row.items()} for row in listed] == said
    assert all("not a picture or slide format" in row["reason"] for row in listed)


def test_without_failures_only_the_header(root: Path, tmp_path: Path) -> None:
    run(root, tmp_path / "store")
    with (tmp_path / "store/failures.csv").open(newline="") as file:
        assert list(csv.reader(file)) == [["patient", "slide", "path", "reason"]]


def test_a_kept_box_that_is_not_stored_is_no_patch(root: Path, tmp_path: Path) -> None:
    """As after a refilter whose slide could not be opened: the new filter keeps it, no shard holds it."""
    out = tmp_path / "store"
    run(root, out)
    rows = [row for row, _ in find_folder(root).slides]
    folder = out / slide_folder(rows[1].slide)
    shard = Shard(folder / "patches-0.arrow")
    owner, stored = str(shard.owner), {box: bytes(shard[box]) for box in (0, 2)}
    with ShardWriter(folder / "patches-0.arrow", 768, owner) as writer:
        for box, data in stored.items():
            writer.append(box, data)
    SlideRecord.load(folder).model_copy(update={"files": describe_files(folder)}).save(folder)

    plan = StorePlan(ImportConfig())
    with make(out, "import", ImportConfig()) as work:
        committed = commit_store(work, rows, [], plan)
        work.finish(committed.files)
    info = committed.info
    assert [(entry.kept, entry.dropped) for entry in info.slides] == [(3, 0), (2, 1), (3, 0), (3, 0)]
    store = PatchStore.load(out)
    assert store.dropped().column("patch").tolist() == [1]
    assert store.dropped().column("shard").tolist() == [-1]
    pictures = pictures_of(*SLIDES)
    for index in range(len(store)):
        slide, name = store.table.column("slide")[index], store.table.column("name")[index]
        np.testing.assert_array_equal(store.read(index), pictures[f"{slide}/{name}.png"])
    assert verify(out) == []

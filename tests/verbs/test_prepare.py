"""`prepare` as a lab uses it: what is stored is what the slides show, and what goes wrong is said and survived."""

import csv
import errno
import shutil
from pathlib import Path

import numpy as np
import pytest
import tifffile
from PIL import Image

import hidisc.patches.cut
from hidisc.artefacts.artefact import MANIFEST
from hidisc.ground.errors import UserError
from hidisc.ground.files import hash_file
from hidisc.patches.cut import CutTask
from hidisc.patches.store import PatchStore
from hidisc.sampling.hierarchy import Hierarchy
from hidisc.settings.config import load_config
from hidisc.settings.prepare import PrepareConfig
from hidisc.slides.cohort import Cohort
from hidisc.slides.reader import open_slide
from hidisc.slides.slide import SlideError
from hidisc.slides.stain import REFERENCE, Stains, normalise
from hidisc.slides.synthetic import draw_cohort, write_pyramid
from hidisc.slides.tissue import pixel_std
from hidisc.verbs.build import Built
from hidisc.verbs.prepare import _suggest_smaller, prepare
from tests.slides.pens import draw_pen

EXACT = ("grid.size_px=48", "pixels.codec=raw", "stain.method=none")


def config(*changes: str) -> PrepareConfig:
    return load_config(PrepareConfig, None, changes)


@pytest.fixture(scope="module")
def cohort(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight patients of four diagnoses, two drawn slides each, four tissue fields of 48 px a slide."""
    return draw_cohort(tmp_path_factory.mktemp("drawn"), patients=8, slides=2, fields=4, seed=3)


@pytest.fixture(scope="module")
def plain(cohort: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The store of the cohort with the settings EXACT."""
    out = tmp_path_factory.mktemp("plain") / "store"
    prepare(cohort, out, config(*EXACT), workers=0)
    return out


@pytest.fixture
def plain_store(plain: Path, tmp_path: Path) -> None:
    """A copy of that store, `store` in the folder of a test."""
    shutil.copytree(plain, tmp_path / "store")


@pytest.fixture
def own_cohort(cohort: Path, tmp_path: Path) -> Path:
    """A copy whose files a test may damage."""
    shutil.copytree(cohort.parent, tmp_path / "own")
    return tmp_path / "own" / cohort.name


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def write_rows(path: Path, rows: list[dict[str, str]]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def one_slide(folder: Path, pixels: np.ndarray, name: str = "slide.tif", mpp: str = "0.5", **options: object) -> Path:
    """A cohort of a single TIFF."""
    folder.mkdir(parents=True, exist_ok=True)
    tifffile.imwrite(folder / name, pixels, **options)
    write_rows(folder / "cohort.csv", [{"patient": "P", "slide": "S", "path": name, "mpp": mpp}])
    return folder / "cohort.csv"


@pytest.mark.usefixtures("plain_store")
def test_stored_patches_are_the_slides_pixels_at_their_coordinates(cohort: Path, tmp_path: Path) -> None:
    store = PatchStore.load(tmp_path / "store")
    paths = {row["slide"]: cohort.parent / row["path"] for row in rows_of(cohort)}
    slides = store.table.column("slide")
    assert len(store) >= 16 * 4
    for index in range(0, len(store), 7):
        x, y = int(store.table.column("x")[index]), int(store.table.column("y")[index])
        with open_slide(paths[slides[index]]) as slide:
            seen = slide.read(0, x, y, 48, 48)
        np.testing.assert_array_equal(store.read(index), seen)
        assert store.table.column("pixel_std")[index] == pytest.approx(pixel_std(seen), rel=1e-6)


def test_table_carries_patient_label_site_split_and_scores(cohort: Path, tmp_path: Path) -> None:
    built = prepare(cohort, tmp_path / "store", config(*EXACT), workers=0)
    table = PatchStore.load(tmp_path / "store").table
    truth = {row["slide"]: row for row in rows_of(cohort)}
    for slide, patient, label, site in zip(
        *(table.column(name) for name in ("slide", "patient", "label", "site")), strict=True
    ):
        assert (patient, label, site or "") == tuple(truth[slide][name] or "" for name in ("patient", "label", "site"))
    assert set(table.column("split")) == {"train", "test"}
    assert (table.column("mpp") == np.float32(0.5)).all()
    assert not table.column("is_blank").any()
    assert ((table.column("tissue_fraction") > 0) & (table.column("tissue_fraction") <= 1)).mean() > 0.9
    assert built.summary()["patients"] == 8


def test_columns_of_the_users_own_are_kept_and_a_changed_one_is_taken_over(own_cohort: Path, tmp_path: Path) -> None:
    rows = [{**row, "scanner": f"scanner {number % 3}", "block": ""} for number, row in enumerate(rows_of(own_cohort))]
    write_rows(own_cohort, rows)
    prepare(own_cohort, tmp_path / "store", config(*EXACT), workers=0)
    store = PatchStore.load(tmp_path / "store")
    scanner = {row["slide"]: row["scanner"] for row in rows}
    assert [scanner[slide] for slide in store.table.column("slide")] == list(store.table.column("scanner"))
    assert set(store.table.column("block")) == {None}
    assert set(store.dropped().column("scanner")) <= {*scanner.values()}
    write_rows(own_cohort, [{**rows[0], "scanner": "another"}, *rows[1:]])
    again = prepare(own_cohort, tmp_path / "store", config(*EXACT), workers=0)
    assert again.worked == 0
    changed = PatchStore.load(tmp_path / "store")
    assert set(changed.table.column("scanner")[changed.table.column("slide") == rows[0]["slide"]]) == {"another"}
    assert changed.checksum != store.checksum  # so that runs and embeddings notice
    prepare(own_cohort, tmp_path / "fresh", config(*EXACT), workers=0)
    assert contents(tmp_path / "store") == contents(tmp_path / "fresh")


def test_columns_of_the_users_own_are_levels_nuisances_and_labels(own_cohort: Path, tmp_path: Path) -> None:
    rows = [{**row, "block": f"{row['slide']}/a", "scanner": row["site"]} for row in rows_of(own_cohort)]
    write_rows(own_cohort, rows)
    prepare(own_cohort, tmp_path / "store", config(*EXACT), workers=0)
    store = PatchStore.load(tmp_path / "store")
    tree = Hierarchy(("patient", "block", "patch")).grow(store.table, np.ones(len(store), bool))
    assert [len(starts) - 1 for starts in tree.starts] == [8, 16]
    assert {"block", "scanner"} <= {*store.table.names}  # what audit takes as nuisance and evaluate as label


@pytest.mark.usefixtures("plain_store")
def test_glass_is_not_read_and_blank_boxes_stay_in_the_side_table(cohort: Path, tmp_path: Path) -> None:
    store = PatchStore.load(tmp_path / "store")
    dropped = store.dropped()
    assert dropped.column("is_blank").all()
    assert (dropped.column("pixel_std") < 10).all()
    assert (dropped.column("shard") == -1).all()
    everything = prepare(cohort, tmp_path / "all", config(*EXACT, "tissue.skip_glass=false"), workers=0)
    glass = sum(store.record(slide).glass for slide in store.info.slides)
    assert everything.summary()["dropped"] == len(dropped) + glass


def test_a_coarser_scale_is_resampled_and_covers_the_same_tissue(cohort: Path, tmp_path: Path) -> None:
    prepare(cohort, tmp_path / "store", config("grid.size_px=24", "grid.mpp=1", *EXACT[1:]), workers=0)
    store = PatchStore.load(tmp_path / "store")
    record = store.record(store.info.slides[0])
    assert record.downsample == pytest.approx(2, rel=1e-3)
    row = rows_of(cohort)[0]
    with open_slide(cohort.parent / row["path"]) as slide:
        x, y = int(store.table.column("x")[0]), int(store.table.column("y")[0])
        averaged = slide.read(0, x, y, 48, 48).reshape(24, 2, 24, 2, 3).mean((1, 3))
    assert np.abs(store.read(0).astype(float) - averaged).mean() < 4


def test_slide_mode_stores_normalised_pixels_and_the_stains_they_came_from(cohort: Path, tmp_path: Path) -> None:
    prepare(cohort, tmp_path / "plain", config(*EXACT), workers=0)
    prepare(cohort, tmp_path / "stained", config(*EXACT[:2]), workers=0)
    plain, stained = PatchStore.load(tmp_path / "plain"), PatchStore.load(tmp_path / "stained")
    slide = stained.info.slides[0]
    stains = Stains.from_dict(stained.record(slide).stain)
    np.testing.assert_array_equal(stained.read(0), normalise(plain.read(0)[None], stains)[0])
    assert stained.record(slide).stain_fallbacks == 0


def test_patch_mode_and_a_reference_picture_give_other_colours(cohort: Path, tmp_path: Path) -> None:
    with open_slide(cohort.parent / rows_of(cohort)[0]["path"]) as slide:
        Image.fromarray(slide.read(0, 0, 0, slide.width, slide.height)).save(tmp_path / "reference.png")
    seen = []
    for name, change in (("a", "stain.mode=patch"), ("b", f"stain.reference={tmp_path / 'reference.png'}")):
        prepare(cohort, tmp_path / name, config(*EXACT[:2], change), workers=0)
        seen.append(PatchStore.load(tmp_path / name).read(0).astype(int))
    assert np.abs(seen[0] - seen[1]).mean() > 1


def test_a_slide_without_two_stains_is_left_as_it_is_and_counted(tmp_path: Path) -> None:
    grey = np.random.default_rng(0).integers(60, 200, (96, 96, 1), dtype=np.uint8).repeat(3, axis=2)
    cohort = one_slide(tmp_path / "grey", grey)
    prepare(cohort, tmp_path / "store", config("grid.size_px=48", "pixels.codec=raw"), workers=0)
    store = PatchStore.load(tmp_path / "store")
    assert store.record(store.info.slides[0]).stain_fallbacks == len(store) == 4
    np.testing.assert_array_equal(store.read(0), grey[:48, :48])


def test_sixteen_bit_channels_are_kept_to_the_last_bit(tmp_path: Path) -> None:
    raman = np.random.default_rng(1).integers(0, 65535, (2, 100, 100), dtype=np.uint16)
    cohort = one_slide(tmp_path / "srh", raman, photometric="minisblack")
    prepare(cohort, tmp_path / "store", load_config(PrepareConfig, "srh", ["grid.size_px=48"]), workers=0)
    store = PatchStore.load(tmp_path / "store")
    assert (store.info.channels, store.info.dtype, store.info.codec) == (2, "uint16", "zstd")
    np.testing.assert_array_equal(store.read(0), np.moveaxis(raman, 0, 2)[:48, :48])


def test_pictures_and_counts_are_drawn(cohort: Path, tmp_path: Path) -> None:
    built = prepare(cohort, tmp_path / "store", config("grid.size_px=48"), workers=0)
    pictures = tmp_path / "store" / "pictures"
    assert len(list((pictures / "slides").glob("*.jpg"))) == 16
    with Image.open(pictures / "contact_sheet.jpg") as sheet:
        assert sheet.width > 400
    counted = rows_of(pictures / "counts.csv")
    assert sum(int(row["patches"]) for row in counted) == built.summary()["patches"]
    assert sum(int(row["patients"]) for row in counted) == 8


@pytest.mark.usefixtures("plain_store")
def test_a_damaged_picture_is_drawn_again(cohort: Path, tmp_path: Path) -> None:
    before = contents(tmp_path / "store")
    sheet = tmp_path / "store" / "pictures" / "contact_sheet.jpg"
    sheet.write_bytes(sheet.read_bytes()[:-9] + b"something")
    prepare(cohort, tmp_path / "store", config(*EXACT), workers=0)
    assert contents(tmp_path / "store") == before
    sheet.unlink()  # pictures may be deleted
    prepare(cohort, tmp_path / "store", config(*EXACT), workers=0)
    assert not sheet.exists()


def test_one_bad_slide_fails_alone_and_is_done_when_repaired(own_cohort: Path, tmp_path: Path) -> None:
    victim = rows_of(own_cohort)[5]
    path = own_cohort.parent / victim["path"]
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 3])
    built = prepare(own_cohort, tmp_path / "store", config(*EXACT), workers=0)
    assert [failure.slide for failure in built.info.failures] == [victim["slide"]]
    assert "the file ends too early" in built.info.failures[0].reason
    assert rows_of(tmp_path / "store" / "failures.csv")[0]["slide"] == victim["slide"]
    assert built.summary()["slides"] == 15

    path.write_bytes(whole)
    again = prepare(own_cohort, tmp_path / "store", config(*EXACT), workers=0)
    assert (again.worked, again.info.failures, again.summary()["slides"]) == (1, (), 16)
    fresh = prepare(own_cohort, tmp_path / "fresh", config(*EXACT), workers=0)
    assert contents(fresh.out) == contents(again.out)


def test_when_no_slide_can_be_read_all_reasons_are_said(tmp_path: Path) -> None:
    (tmp_path / "a.svs").write_bytes(b"nothing like a slide")
    write_rows(tmp_path / "cohort.csv", [{"patient": "P", "slide": "S", "path": "a.svs"}])
    with pytest.raises(UserError, match=r"^the only slide cannot be read:\n  slide 'S': .*cannot be read"):
        prepare(tmp_path / "cohort.csv", tmp_path / "store", workers=0)


def test_slides_without_patches_are_counted_and_the_advice_fits_the_settings(own_cohort: Path, tmp_path: Path) -> None:
    rows = rows_of(own_cohort)
    Image.new("RGB", (40, 40), "pink").save(own_cohort.parent / "tiny.png")
    rows = [{**row, "mpp": "0.5"} for row in rows]
    write_rows(own_cohort, [*rows, {**rows[0], "slide": "tiny", "path": "tiny.png"}])
    said: list[str] = []
    built = prepare(own_cohort, tmp_path / "store", config(*EXACT), workers=0, say=said.append)
    assert " patches of 16 of 17 slides and 8 of 8 patients, " in built.sentence()
    note = f"note: 1 slide has no patch: it is smaller than one patch, or everything was dropped. {built.out}/pictures"
    assert said[-1] == f"{note} shows why. Smaller patches fit into more slides: --set grid.size_px=24."
    assert _suggest_smaller(300) == " --recipe small-regions cuts patches of 96 px."
    assert _suggest_smaller(96) == " Smaller patches fit into more slides: --set grid.size_px=48."
    assert _suggest_smaller(16) == ""


def test_a_split_without_patients_is_said_at_once(own_cohort: Path, tmp_path: Path) -> None:
    two = [row for row in rows_of(own_cohort) if row["patient"] in {r["patient"] for r in rows_of(own_cohort)[:3]}]
    write_rows(own_cohort, two)
    said: list[str] = []
    prepare(own_cohort, tmp_path / "store", config(*EXACT), workers=0, say=said.append)
    sentence = (
        "warning: no patient is in split {} (2 patients in all), and `hidisc evaluate` will need patients that "
        "training has not seen. Add patients, or put a `split` column into the cohort."
    )
    assert said[:2] == [sentence.format("'test'"), f"4 slides to read into {tmp_path / 'store'}"]
    assert sum("no patient is in split" in line for line in said) == 1
    said.clear()
    prepare(own_cohort, tmp_path / "folds", config(*EXACT, "split.folds=4"), workers=0, say=said.append)
    assert said[0] == sentence.format("'fold-3', 'fold-4'")
    said.clear()
    write_rows(own_cohort, [{**row, "split": "test"} for row in two])  # a cohort that says so itself
    prepare(own_cohort, tmp_path / "own-split", config(*EXACT), workers=0, say=said.append)
    assert not any("no patient is in split" in line for line in said)


def test_a_split_whose_slides_all_fail_is_said_at_the_end(own_cohort: Path, tmp_path: Path) -> None:
    drawn = prepare(own_cohort, tmp_path / "store", config(*EXACT), workers=0)
    table = PatchStore.load(drawn.out).table
    held_out = {
        patient
        for patient, split in zip(table.column("patient"), table.column("split"), strict=True)
        if split == "test"
    }
    rows = rows_of(own_cohort)
    for row in rows:
        if row["patient"] in held_out:
            (own_cohort.parent / row["path"]).write_bytes(b"not a slide: " + row["slide"].encode())
    said: list[str] = []
    prepare(own_cohort, tmp_path / "damaged", config(*EXACT), workers=0, say=said.append)
    assert said[-1].startswith(f"warning: no patient is in split 'test' ({8 - len(held_out)} patients in all)")
    assert not said[0].startswith("warning")


def test_a_slide_that_changes_while_it_is_cut_fails_alone(own_cohort: Path, tmp_path: Path) -> None:
    """Such as one that is still being copied."""
    cohort = Cohort.load(own_cohort)
    row, exact = cohort.slides[0], config(*EXACT)
    task = CutTask(row, tmp_path / "folder", exact, REFERENCE)
    other = cohort.slides[1].path.read_bytes()
    with pytest.raises(SlideError, match=f"{row.path} changed while it was read. Wait until it is copied, then run"):
        task.run(lambda _: row.path.write_bytes(other) and None)
    assert not task.folder.exists()
    assert task.run(lambda _: None).checksum == hash_file(row.path)


def refiltered(cohort: Path, out: Path, *changes: str) -> Built:
    return prepare(cohort, out, config(*EXACT[:2], *changes), refilter=True, workers=0)


def test_a_stricter_filter_reads_no_slide(own_cohort: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = prepare(own_cohort, tmp_path / "store", config(*EXACT[:2]), workers=0)
    threshold = float(np.median(PatchStore.load(tmp_path / "store").table.column("pixel_std")))
    fresh = prepare(own_cohort, tmp_path / "fresh", config(*EXACT[:2], f"filter.min_pixel_std={threshold}"), workers=0)
    monkeypatch.setattr(hidisc.patches.cut, "open_slide", None)  # whoever opens one fails
    after = refiltered(own_cohort, tmp_path / "store", f"filter.min_pixel_std={threshold}")
    assert after.worked == 0
    assert after.summary()["patches"] < before.summary()["patches"]
    assert_same_patches(after.out, fresh.out)
    back = refiltered(own_cohort, tmp_path / "store")
    assert back.summary()["patches"] == before.summary()["patches"]


def test_a_looser_filter_reads_only_what_is_not_stored(own_cohort: Path, tmp_path: Path) -> None:
    loose = prepare(own_cohort, tmp_path / "loose", config(*EXACT[:2]), workers=0)
    threshold = float(np.quantile(PatchStore.load(loose.out).table.column("pixel_std"), 0.3))
    strict = prepare(own_cohort, tmp_path / "store", config(*EXACT[:2], f"filter.min_pixel_std={threshold}"), workers=0)
    shards = {path: path.read_bytes() for path in strict.out.rglob("patches-0.arrow")}
    after = refiltered(own_cohort, tmp_path / "store")
    assert 0 < after.worked <= 16
    assert_same_patches(after.out, loose.out)
    assert all(path.read_bytes() == data for path, data in shards.items())  # the old pixels were not touched


@pytest.fixture
def marked_cohort(own_cohort: Path) -> Path:
    """Two slides, one of them with a blue stroke."""
    rows = rows_of(own_cohort)[:2]
    write_rows(own_cohort, rows)
    path = own_cohort.parent / rows[0]["path"]
    with open_slide(path) as slide:
        pixels = slide.read(0, 0, 0, slide.width, slide.height)
    write_pyramid(path, draw_pen(pixels, "blue", np.random.default_rng(0), width_um=30)[0], 0.5)
    return own_cohort


PEN = "filter.max_pen_fraction=0.1"


def count_red(built: Built) -> int:
    """Pixels of the first slide's picture that are as red as the crosses over dropped patches."""
    picture = built.out / "pictures" / "slides" / f"{Path(built.info.slides[0].folder).name}.jpg"
    red, green, _ = np.moveaxis(np.asarray(Image.open(picture), int), 2, 0)
    return int((red - green > 100).sum())


def test_patches_with_pen_marks_are_dropped(marked_cohort: Path, tmp_path: Path) -> None:
    prepare(marked_cohort, tmp_path / "store", config(*EXACT, PEN), workers=0)
    store = PatchStore.load(tmp_path / "store")
    dropped = store.dropped()
    is_marked = dropped.column("pen_fraction") > 0.1
    assert is_marked.sum() >= 3
    assert set(dropped.select(is_marked).column("slide")) == {rows_of(marked_cohort)[0]["slide"]}
    assert (store.table.column("pen_fraction") <= 0.1).all()
    shard = dropped.select(is_marked & ~dropped.column("is_blank")).arrow["shard"]
    assert len(shard) > 0
    assert shard.null_count == 0  # stored all the same, so that a changed threshold reads nothing


def test_pen_marks_are_found_and_shown_later_without_reading_a_slide(
    marked_cohort: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in a store that was made before there was this setting."""
    before = prepare(marked_cohort, tmp_path / "store", config(*EXACT), workers=0)
    made = tmp_path / "store" / "config.yaml"
    made.write_text("".join(line for line in made.read_text().splitlines(True) if "max_pen_fraction" not in line))
    assert "min_tissue_fraction" in made.read_text()
    monkeypatch.setattr(hidisc.patches.cut, "open_slide", None)  # whoever opens one fails
    same = prepare(marked_cohort, tmp_path / "store", config(*EXACT), workers=0)
    assert same.worked == 0
    with pytest.raises(UserError, match=r"filter\.max_pen_fraction: 1\.0 -> 0\.1.* add --refilter"):
        prepare(marked_cohort, tmp_path / "store", config(*EXACT, PEN), workers=0)
    red = count_red(before)
    after = prepare(marked_cohort, tmp_path / "store", config(*EXACT, PEN), refilter=True, workers=0)
    assert after.worked == 0
    assert count_red(after) > red + 100
    assert after.summary()["patches"] < before.summary()["patches"]
    monkeypatch.undo()
    fresh = prepare(marked_cohort, tmp_path / "fresh", config(*EXACT, PEN), workers=0)
    assert_same_patches(after.out, fresh.out)
    back = prepare(marked_cohort, tmp_path / "store", config(*EXACT), refilter=True, workers=0)
    assert back.summary()["patches"] == before.summary()["patches"]
    assert "pen_fraction" not in PatchStore.load(back.out).table.columns


def test_pen_marks_are_not_looked_for_where_glass_has_no_colour(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 60_000, (96, 96, 2), np.uint16)
    tifffile.imwrite(tmp_path / "raman.tiff", np.moveaxis(pixels, 2, 0), photometric="minisblack")
    (tmp_path / "cohort.csv").write_text("patient,slide,path,mpp\nP1,S1,raman.tiff,0.5\n")
    with pytest.raises(UserError, match=r"filter\.max_pen_fraction: pen marks are found on 8-bit RGB slides"):
        prepare(tmp_path / "cohort.csv", tmp_path / "store", config(*EXACT, PEN), workers=0)


def assert_same_patches(one: Path, other: Path) -> None:
    """Equal tables (but for where the pixels lie) and equal pixels."""
    a, b = PatchStore.load(one), PatchStore.load(other)
    names = [name for name in a.table.columns if name not in ("shard", "row")]
    assert a.table.arrow.select(names).equals(b.table.arrow.select(names))
    indices = np.arange(len(a))
    np.testing.assert_array_equal(a.read_many(indices), b.read_many(indices))


@pytest.mark.usefixtures("plain_store")
def test_a_finished_store_is_left_alone(cohort: Path, tmp_path: Path) -> None:
    before = contents(tmp_path / "store")
    said: list[str] = []
    again = prepare(cohort, tmp_path / "store", config(*EXACT), workers=0, say=said.append)
    assert again.worked == 0
    assert "all 16 slides are in" in said[0]
    assert contents(tmp_path / "store") == before


def test_slides_added_to_the_cohort_are_added_to_the_store(own_cohort: Path, tmp_path: Path) -> None:
    rows = rows_of(own_cohort)
    write_rows(own_cohort, rows[:10])
    prepare(own_cohort, tmp_path / "store", config(*EXACT), workers=0)
    write_rows(own_cohort, rows)
    grown = prepare(own_cohort, tmp_path / "store", config(*EXACT), workers=0)
    assert grown.worked == 6
    fresh = prepare(own_cohort, tmp_path / "fresh", config(*EXACT), workers=0)
    assert contents(grown.out) == contents(fresh.out)


def test_patients_that_move_to_another_split_are_named(own_cohort: Path, tmp_path: Path) -> None:
    said: list[str] = []
    prepare(own_cohort, tmp_path / "store", config(*EXACT), workers=0, say=said.append)
    assert not any("another split" in line for line in said)
    prepare(own_cohort, tmp_path / "store", config(*EXACT, "split.folds=4"), workers=0, say=said.append)
    assert any("8 patients moved to another split ('P001': " in line for line in said)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ("grid.mpp=0.9", r"begun with other settings \(grid.mpp: 0.5 -> 0.9\). Use the same ones"),
        ("filter.min_pixel_std=3", r"filter.min_pixel_std: 10.0 -> 3.0\).* add --refilter"),
    ],
)
@pytest.mark.usefixtures("plain_store")
def test_other_settings_on_an_existing_store_are_refused(
    cohort: Path, tmp_path: Path, change: str, sentence: str
) -> None:
    with pytest.raises(UserError, match=sentence):
        prepare(cohort, tmp_path / "store", config(*EXACT, change), workers=0)


def test_a_cohort_that_lost_slides_is_refused(own_cohort: Path, tmp_path: Path) -> None:
    prepare(own_cohort, tmp_path / "store", config(*EXACT), workers=0)
    rows = rows_of(own_cohort)
    write_rows(own_cohort, rows[1:])
    with pytest.raises(UserError, match=rf"holds 1 slide that this cohort does not list \('{rows[0]['slide']}'\)"):
        prepare(own_cohort, tmp_path / "store", config(*EXACT), workers=0)


def test_a_slide_file_that_changed_is_refused(own_cohort: Path, tmp_path: Path) -> None:
    prepare(own_cohort, tmp_path / "store", config(*EXACT), workers=0)
    path = own_cohort.parent / rows_of(own_cohort)[0]["path"]
    other = own_cohort.parent / rows_of(own_cohort)[1]["path"]
    data = path.read_bytes()
    for changed in (data + b"more", other.read_bytes()[: len(data)].ljust(len(data))):  # the second is as long as it
        path.write_bytes(changed)
        with pytest.raises(UserError) as caught:
            prepare(own_cohort, tmp_path / "store", config(*EXACT), workers=0)
        assert str(caught.value) == (
            f"what slide 'P001-S1' was read from ({path}) has changed since the store was made. Put it back as it was, "
            "or give a new --out."
        )
    path.write_bytes(data)
    assert prepare(own_cohort, tmp_path / "store", config(*EXACT), workers=0).worked == 0


def unscaled(folder: Path) -> Path:
    """A cohort of two slides whose files do not say how large their pixels are."""
    rng = np.random.default_rng(5)
    rows = []
    folder.mkdir()
    for name in ("A", "B"):
        pixels = rng.integers(0, 255, (8, 8, 3), np.uint8).repeat(32, 0).repeat(32, 1)
        Image.fromarray(pixels).save(folder / f"{name}.png")
        rows.append({"patient": name, "slide": name, "path": f"{name}.png", "mpp": ""})
    write_rows(folder / "cohort.csv", rows)
    return folder / "cohort.csv"


def scales(store: Path) -> dict[str, float | None]:
    """Micrometres a pixel at which each slide was cut."""
    opened = PatchStore.load(store)
    return {slide.slide: opened.record(slide).mpp for slide in opened.info.slides}


def test_another_assumed_scale_cuts_anew_what_depends_on_it(tmp_path: Path) -> None:
    cohort, out = unscaled(tmp_path / "in"), tmp_path / "store"
    rows = rows_of(cohort)
    write_rows(cohort, [{**rows[0], "mpp": "0.5"}, rows[1]])
    prepare(cohort, out, config(*EXACT, "assume_mpp=0.5"), workers=0)
    assert scales(out) == {"A": 0.5, "B": 0.5}
    said: list[str] = []
    again = prepare(cohort, out, config(*EXACT, "assume_mpp=0.25"), workers=0, say=said.append)
    assert again.worked == 1
    assert said[1:3] == ["slide 'B' is read again: mpp: 0.5 -> 0.25", f"1 of 2 slides are in {out} already; 1 to read"]
    assert scales(out) == {"A": 0.5, "B": 0.25}
    prepare(cohort, tmp_path / "fresh", config(*EXACT, "assume_mpp=0.25"), workers=0)
    assert contents(out) == contents(tmp_path / "fresh")


def test_a_corrected_scale_in_the_cohort_cuts_that_slide_anew(tmp_path: Path) -> None:
    cohort, out = unscaled(tmp_path / "in"), tmp_path / "store"
    rows = rows_of(cohort)
    write_rows(cohort, [{**row, "mpp": "0.5"} for row in rows])
    prepare(cohort, out, config(*EXACT), workers=0)
    write_rows(cohort, [{**rows[0], "mpp": "0.5"}, {**rows[1], "mpp": "0.25"}])
    assert prepare(cohort, out, config(*EXACT), workers=0).worked == 1
    assert scales(out) == {"A": 0.5, "B": 0.25}
    prepare(cohort, tmp_path / "fresh", config(*EXACT), workers=0)
    assert contents(out) == contents(tmp_path / "fresh")


def test_a_slide_that_fails_at_its_new_scale_leaves_no_old_pixels_behind(tmp_path: Path) -> None:
    cohort, out = unscaled(tmp_path / "in"), tmp_path / "store"
    prepare(cohort, out, config(*EXACT, "assume_mpp=0.5"), workers=0)
    rows = rows_of(cohort)
    write_rows(cohort, [rows[0], {**rows[1], "mpp": "3"}])  # coarser than asked for
    built = prepare(cohort, out, config(*EXACT, "assume_mpp=0.5"), workers=0)
    assert [failure.slide for failure in built.info.failures] == ["B"]
    assert set(PatchStore.load(out).table.column("slide")) == {"A"}


def test_a_replaced_reference_picture_is_refused(cohort: Path, tmp_path: Path) -> None:
    reference = tmp_path / "reference.png"

    def take(row: int) -> None:
        with open_slide(cohort.parent / rows_of(cohort)[row]["path"]) as slide:
            Image.fromarray(slide.read(0, 0, 0, slide.width, slide.height)).save(reference)

    take(0)
    settings = config("grid.size_px=48", f"stain.reference={reference}")
    prepare(cohort, tmp_path / "store", settings, workers=0)
    assert prepare(cohort, tmp_path / "store", settings, workers=0).worked == 0
    take(5)
    with pytest.raises(UserError) as caught:
        prepare(cohort, tmp_path / "store", settings, workers=0)
    assert str(caught.value) == (
        f"{tmp_path / 'store'} was begun with other settings (the content of stain.reference has changed). Use the "
        "same ones to go on, or give a new --out. A changed filter and changed annotations need no reading again: add "
        "--refilter."
    )


@pytest.mark.parametrize("name", ["slide.json", "boxes.parquet", "thumbnail.jpg", "samples.jpg"])
@pytest.mark.usefixtures("plain_store")
def test_a_damaged_file_of_a_slide_is_repaired(cohort: Path, tmp_path: Path, name: str) -> None:
    out = tmp_path / "store"
    before = contents(out)
    victim = sorted(out.glob(f"shards/*/{name}"))[2]
    data = bytearray(victim.read_bytes())
    data[len(data) // 2] ^= 1
    for damage in (bytes(data), b"", None):
        victim.unlink() if damage is None else victim.write_bytes(damage)
        assert prepare(cohort, out, config(*EXACT), workers=0).worked == 1
        assert contents(out) == before


def test_a_full_disk_stops_with_a_sentence_and_loses_nothing(
    cohort: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hash_slide = hidisc.patches.cut.hash_slide
    finished = []

    def fill_up(path: Path) -> str:
        if len(finished) == 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        finished.append(path)
        return hash_slide(path)

    monkeypatch.setattr(hidisc.patches.cut, "hash_slide", fill_up)
    with pytest.raises(UserError, match=r"the disk is full .* free some space and run the same command again"):
        prepare(cohort, tmp_path / "store", config(*EXACT), workers=0)
    monkeypatch.undo()
    assert prepare(cohort, tmp_path / "store", config(*EXACT), workers=0).worked == 13


@pytest.mark.parametrize(
    ("pixels", "mpp", "changes", "sentence"),
    [
        (np.zeros((99, 99, 3), np.uint8), "", (), r"does not say how large its pixels are.*`mpp` column.*--assume-mpp"),
        (np.zeros((99, 99, 3), np.uint8), "0.9", (), r"0.9 um/px at its finest, coarser than the 0.5 asked for"),
        (np.zeros((99, 99, 3), np.uint16), "0.5", ("pixels.codec=png",), "3 channels of uint16; Macenko.*--recipe srh"),
        (np.zeros((99, 99, 3), np.uint16), "0.5", ("stain.method=none",), "JPEG cannot hold 3 channels of uint16"),
    ],
)
def test_slides_that_cannot_be_cut_say_why(
    tmp_path: Path, pixels: np.ndarray, mpp: str, changes: tuple[str, ...], sentence: str
) -> None:
    cohort = one_slide(tmp_path / "in", pixels, mpp=mpp)
    with pytest.raises(UserError, match=sentence):
        prepare(cohort, tmp_path / "store", config("grid.size_px=48", *changes), workers=0)


def test_assume_mpp_and_upsampling_are_possible_when_asked_for(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 255, (99, 99, 3), np.uint8)
    for mpp, change, patches in (("", "assume_mpp=0.5", 4), ("1", "grid.allow_upsampling=true", 16)):
        cohort = one_slide(tmp_path / change, noise, mpp=mpp)
        built = prepare(cohort, tmp_path / change / "store", config("grid.size_px=48", change), workers=0)
        assert built.summary()["patches"] == patches


def test_a_picture_smaller_than_a_patch_is_an_empty_slide_not_a_failure(own_cohort: Path, tmp_path: Path) -> None:
    rows = rows_of(own_cohort)
    Image.new("RGB", (20, 20), "purple").save(own_cohort.parent / "tiny.png")
    rows.append(dict.fromkeys(rows[0], "") | {"patient": "new", "slide": "tiny", "path": "tiny.png"})
    write_rows(own_cohort, rows)
    built = prepare(own_cohort, tmp_path / "store", config(*EXACT, "assume_mpp=0.5"), workers=0)
    assert (built.summary()["empty_slides"], built.info.failures) == (1, ())


def test_hostile_slide_names_stay_inside_the_store(own_cohort: Path, tmp_path: Path) -> None:
    rows = rows_of(own_cohort)[:4]
    names = ["../../escape", "a/b\\c", "x" * 400, '<script>"\t=1+1']
    for row, name in zip(rows, names, strict=True):
        row["slide"] = name
    write_rows(own_cohort, rows)
    prepare(own_cohort, tmp_path / "inner" / "store", config(*EXACT), workers=0)
    store = PatchStore.load(tmp_path / "inner" / "store")
    assert [slide.slide for slide in store.info.slides] == names
    assert {path.name for path in (tmp_path / "inner").iterdir()} == {"store"}
    assert len(store.read_many([0, len(store) - 1])) == 2


@pytest.mark.parametrize(
    ("reference", "sentence"), [("missing.png", "is not a file"), ("white.png", "it does not show two stains")]
)
def test_a_reference_picture_that_is_of_no_use_is_refused(
    cohort: Path, tmp_path: Path, reference: str, sentence: str
) -> None:
    Image.new("RGB", (50, 50), "white").save(tmp_path / "white.png")
    with pytest.raises(UserError, match=sentence):
        prepare(cohort, tmp_path / "s", config(f"stain.reference={tmp_path / reference}"), workers=0)


def test_refilter_without_a_store_is_refused(cohort: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"holds no store to refilter. Run without --refilter first"):
        prepare(cohort, tmp_path / "store", refilter=True, workers=0)


@pytest.mark.usefixtures("plain_store")
def test_a_shard_that_was_lost_or_cut_short_is_made_anew(cohort: Path, tmp_path: Path) -> None:
    before = contents(tmp_path / "store")
    lost, short = sorted((tmp_path / "store").rglob("*.arrow"))[:2]
    lost.unlink()
    short.write_bytes(short.read_bytes()[:100])
    again = prepare(cohort, tmp_path / "store", config(*EXACT), workers=0)
    assert again.worked == 2
    assert contents(tmp_path / "store") == before


@pytest.mark.parametrize("victim", ["patches.parquet", "dropped.parquet", "store.json", MANIFEST, "failures.csv"])
@pytest.mark.usefixtures("plain_store")
def test_a_table_that_was_cut_short_or_changed_is_written_anew(cohort: Path, tmp_path: Path, victim: str) -> None:
    before = contents(tmp_path / "store")
    flipped = bytearray(before[victim])
    flipped[len(flipped) // 2] ^= 1
    for damage in (before[victim][:30], bytes(flipped)):
        (tmp_path / "store" / victim).write_bytes(damage)
        assert prepare(cohort, tmp_path / "store", config(*EXACT), workers=0).worked == 0
        assert contents(tmp_path / "store") == before


def test_a_changed_slide_is_refused_even_where_its_folder_is_damaged(own_cohort: Path, tmp_path: Path) -> None:
    prepare(own_cohort, tmp_path / "store", config(*EXACT), workers=0)
    shards = sorted((tmp_path / "store").rglob("*.arrow"))
    for shard in shards:
        shard.write_bytes(b"")
    path = own_cohort.parent / rows_of(own_cohort)[-1]["path"]
    path.write_bytes(path.read_bytes() + b"more")
    with pytest.raises(UserError, match="has changed since the store was made"):
        prepare(own_cohort, tmp_path / "store", config(*EXACT), workers=0)
    assert all(shard.parent.is_dir() for shard in shards)  # nothing was removed on the way

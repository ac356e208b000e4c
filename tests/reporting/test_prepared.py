"""The pictures of a store show what was kept, and its table counts it."""

import csv
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from hidisc.patches.folders import find_table
from hidisc.patches.record import slide_folder
from hidisc.patches.sources import PatchFile, Source, group_by_slide
from hidisc.patches.store import PatchStore
from hidisc.reporting.prepared import DROPPED as DROPPED_RGB
from hidisc.reporting.prepared import KEPT as KEPT_RGB
from hidisc.reporting.prepared import _caption, draw_boxes, draw_contact_sheet
from hidisc.settings.imports import ImportConfig
from hidisc.verbs.imports import import_patches
from tests.patches.pictures import make_store, noise, pictures_of, write_pictures

GREY = np.full((120, 200, 3), 200, np.uint8)
KEPT, DROPPED = np.array([[0, 0], [320, 160]], np.int32), np.array([[160, 0]], np.int32)


def greenness(picture: Image.Image, x: float, y: float) -> int:
    """Green minus red at a place: positive on a kept outline, negative on a dropped one, 0 on the grey slide."""
    red, green, _ = picture.getpixel((round(x), round(y)))  # type: ignore[misc]
    return int(green) - int(red)


@pytest.mark.parametrize(("downsample", "extent"), [(4.0, 160.0), (2.0, 80.0)])
def test_kept_boxes_are_green_and_dropped_ones_red(downsample: float, extent: float) -> None:
    scale = downsample / 4  # the same picture twice: boxes given for a slide of another resolution
    picture = draw_boxes(GREY, downsample, (KEPT * scale).astype(int), (DROPPED * scale).astype(int), extent)
    assert picture.size == (400, 240)  # a small thumbnail is shown twice as large
    side, px = 80, 2 / 4  # a box's side and a level-0 pixel, in pixels of this picture
    for x, y in KEPT * px:
        for edge in ((x + side / 2, y + 1), (x + 1, y + side / 2), (x + side - 2, y + side / 2)):
            assert greenness(picture, *edge) > 80
        assert 0 < greenness(picture, x + side / 2, y + side / 2) < 40  # a tint, so that the tissue stays visible
    for x, y in DROPPED * px:
        for edge in ((x + side / 2, y + 1), (x + side / 2, y + side - 2), (x + side / 2, y + side / 2)):
            assert greenness(picture, *edge) < -80  # its diagonal is struck out too
    assert greenness(picture, 40, 200) == 0


def test_a_slide_without_boxes_is_its_thumbnail() -> None:
    large = np.random.default_rng(0).integers(0, 255, (60, 900, 3), dtype=np.uint8)
    np.testing.assert_array_equal(np.asarray(draw_boxes(large, 4, None, None, 160)), large)


# ---- imported stores


@pytest.fixture
def counted(tmp_path: Path) -> Path:
    """A store with labels that differ within a slide, two sides, missing values and a dropped patch."""
    rows = ["patient,slide,path,label,split"]
    pictures = {}
    rng = np.random.default_rng(0)
    for number in range(40):
        patient = int(rng.integers(0, 6))
        label = ["a,b", "c", ""][int(rng.integers(0, 3))]
        rows.append(
            f'P{patient},S{rng.integers(0, 2)},{number}.png,"{label}",{["train", "test", "neither"][patient % 3]}'
        )
        pictures[f"{number}.png"] = noise(number) if number else np.zeros((16, 16, 3), np.uint8)
    write_pictures(tmp_path, pictures)
    (tmp_path / "patches.csv").write_text("\n".join(rows) + "\n")
    config = ImportConfig(label_level="patch", filter={"min_pixel_std": 1})
    source = find_table(tmp_path / "patches.csv", "patch")
    slides = [
        (replace(member, split=member.split.replace("neither", "") or None), paths) for member, paths in source.slides
    ]
    import_patches(replace(source, slides=tuple(slides)), tmp_path / "store", config, workers=0)  # as OpenSRH can be
    return tmp_path / "store"


def test_counts_against_a_loop(counted: Path) -> None:
    table = PatchStore.load(counted).table
    assert len(table) == 39
    groups: dict[tuple[str, str], tuple[set[str], set[str], list[int]]] = {}
    for row in range(len(table)):
        split, label, patient, slide = (table.column(name)[row] for name in ("split", "label", "patient", "slide"))
        patients, slides, patches = groups.setdefault((split or "", label or ""), (set(), set(), []))
        patients.add(patient)
        slides.add(slide)
        patches.append(row)
    slow = {key: [str(len(part)) for part in parts] for key, parts in groups.items()}
    with (counted / "pictures/counts.csv").open(newline="") as file:
        head, *rows = csv.reader(file)
    assert head == ["split", "label", "patients", "slides", "patches"]
    assert {(row[0], row[1]): row[2:] for row in rows} == slow
    assert len(rows) == len(slow) == 9


def test_an_import_has_a_contact_sheet_of_its_patches(tmp_path: Path) -> None:
    colours = {"P1/A": (200, 30, 30), "P1/B": (30, 200, 30), "P2/A": (30, 30, 200), "P2/B": (200, 200, 30)}
    pictures = {
        f"{slide}/{n}.png": np.full((16, 16, 3), rgb, np.uint8) for slide, rgb in colours.items() for n in (0, 1)
    }
    store = make_store(tmp_path, pictures)
    assert not (store.path / "pictures/slides").exists()
    with Image.open(store.path / "pictures/contact_sheet.jpg") as image:
        sheet = np.asarray(image.convert("RGB")).astype(int)
    places = {}
    for slide, colour in colours.items():
        found = np.argwhere(np.abs(sheet - colour).max(axis=2) < 25)
        (top, left), (bottom, right) = found.min(axis=0), found.max(axis=0)
        assert (right - left, bottom - top) == pytest.approx((200, 100), abs=4)  # two patches side by side
        places[slide] = (round(top / 100), left)
    assert sorted(places, key=lambda slide: places[slide]) == list(colours)  # read like a page


def test_a_contact_sheet_of_many_slides_shows_some_of_all(tmp_path: Path) -> None:
    store = make_store(tmp_path, pictures_of(*(f"P{number:02}/A" for number in range(30)), patches=1))
    sheet = draw_contact_sheet(store)
    assert sheet is not None
    rows = (sheet.height - 28) // (100 + 24 + 12)
    assert 12 <= 3 * rows <= 24  # three across


def test_sixteen_bits_are_shown_too(tmp_path: Path) -> None:
    store = make_store(tmp_path, {"P1/A/0.png": noise(0, 16, 1, "uint16")})
    assert store.dtype == np.uint16
    with Image.open(store.path / "pictures/contact_sheet.jpg") as image:
        assert np.asarray(image)[60:90, 20:100].std() > 20


# ---- captions


@pytest.mark.parametrize("name", ["", "two\nlines\t\0", "=1+1", "患者 7 🧫", "../..", "\udce9", "W" * 20_000])
def test_any_name_can_be_a_caption(name: str) -> None:
    start = time.monotonic()
    captioned = _caption(Image.new("RGB", (300, 40), "red"), name)
    assert time.monotonic() - start < 2
    assert captioned.size[0] == 300
    np.testing.assert_array_equal(np.asarray(captioned)[-40:], np.full((40, 300, 3), (255, 0, 0)))


def ink(captioned: Image.Image) -> np.ndarray:
    """Columns of a caption's line that have something written in them."""
    return np.flatnonzero((np.asarray(captioned)[:28].min(axis=(0, 2))) < 128)


def test_a_long_caption_ends_with_dots_inside_the_picture() -> None:
    picture = Image.new("RGB", (300, 40))
    assert ink(_caption(picture, "W" * 200)).max() < 300 - 4
    assert ink(_caption(picture, "W" * 200)).max() > 300 - 40  # as much of it as fits
    np.testing.assert_array_equal(_caption(picture, "W" * 200), _caption(picture, "W" * 201))
    assert ink(_caption(picture, "short")).max() < 60


def test_the_legend_names_the_colours_in_their_colours() -> None:
    line = np.asarray(_caption(Image.new("RGB", (400, 40)), "W" * 200, legend=True))[:28].astype(int)
    green, red = (
        np.flatnonzero((np.abs(line - colour).max(axis=2) < 10).any(axis=0)) for colour in (KEPT_RGB, DROPPED_RGB)
    )
    black = np.flatnonzero((line.max(axis=2) < 60).any(axis=0))
    assert black.max() < green.min() <= green.max() < red.min() <= red.max() < 400


def test_hostile_slide_names_reach_the_pictures(tmp_path: Path) -> None:
    names = ["two\nlines", "a\rreturn", "=1+1", "患者", "x" * 200]
    store = make_store(tmp_path, pictures_of(*(f"P/{name}" for name in names), patches=1))
    assert (store.path / "pictures/contact_sheet.jpg").stat().st_size > 0
    assert {entry.slide for entry in store.info.slides} == {f"P/{name}" for name in names}
    assert len({slide_folder(f"P/{name}") for name in names}) == len(names)


def test_a_hostile_label_is_counted(tmp_path: Path) -> None:
    write_pictures(tmp_path, {"a.png": noise(0)})
    hostile = PatchFile("P", "S", tmp_path / "a.png", name="a", label='a "b",\nc')
    source = Source(tmp_path / "patches.csv", tuple(group_by_slide([hostile], "patient")))
    import_patches(source, tmp_path / "store", workers=0)
    with (tmp_path / "store/pictures/counts.csv").open(newline="") as file:
        assert list(csv.reader(file))[1][1:] == ['a "b",\nc', "1", "1", "1"]


def test_a_label_that_is_counted_is_no_formula(tmp_path: Path) -> None:
    write_pictures(tmp_path, {"a.png": noise(0)})
    (tmp_path / "patches.csv").write_text("patient,slide,path,label\nP,S,a.png,=1+1\n")
    import_patches(find_table(tmp_path / "patches.csv"), tmp_path / "store", workers=0)
    assert PatchStore.load(tmp_path / "store").table.column("label").tolist() == ["=1+1"]
    with (tmp_path / "store/pictures/counts.csv").open(newline="") as file:
        assert list(csv.reader(file))[1][1:] == ["'=1+1", "1", "1", "1"]

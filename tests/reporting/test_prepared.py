"""The pictures of a store show what was kept, and its table counts it."""

import csv
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from hidisc.patches.folders import find_table
from hidisc.patches.pack import PatchFile, Source, group_by_slide
from hidisc.patches.store import PatchStore
from hidisc.reporting.prepared import DROPPED as DROPPED_RGB
from hidisc.reporting.prepared import KEPT as KEPT_RGB
from hidisc.reporting.prepared import add_caption, draw_boxes, explain_no_patches
from hidisc.settings.config import load_config
from hidisc.settings.prepare import ImportConfig, PrepareConfig
from hidisc.verbs.prepare import import_patches, prepare
from tests.patches.pictures import noise, write_pictures

GREY = np.full((120, 200, 3), 200, np.uint8)
LEGEND = (("kept", KEPT_RGB), ("dropped", DROPPED_RGB))
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


# ---- slides without patches

WHITE = np.full((200, 200, 3), 245, np.uint8)


@pytest.mark.parametrize(
    ("pixels", "settings", "reason"),
    [
        (noise(0, 100), [], "100 x 100 px at 0.25 um/px hold no patch of 64 px at 0.5 um/px"),
        (WHITE, [], "no tissue found (1 square)"),
        (WHITE, ["tissue.skip_glass=false"], "the only square dropped by the filter"),
        (noise(0, 400), ["filter.min_pixel_std=200"], "all 9 squares dropped by the filter"),
        (
            np.concatenate([noise(0, 256), np.full((256, 768, 3), 245, np.uint8)], axis=1),
            ["filter.min_pixel_std=200"],
            "all 8 squares dropped by the filter; 8 others without tissue",
        ),
    ],
)
def test_the_picture_of_a_slide_without_patches_says_why(
    pixels: np.ndarray, settings: list[str], reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []

    def add_and_note(image: Image.Image, text: str, **options: Any) -> Image.Image:
        lines.append(text)
        return add_caption(image, text, **options)

    monkeypatch.setattr("hidisc.reporting.prepared.add_caption", add_and_note)
    write_pictures(tmp_path, {"empty.png": pixels, "full.png": noise(1, 200)})
    (tmp_path / "cohort.csv").write_text("patient,slide,path,mpp\nP1,E,empty.png,0.25\nP2,F,full.png,0.25\n")
    config = load_config(PrepareConfig, None, ["grid.size_px=64", "stain.method=none", *settings])
    prepare(tmp_path / "cohort.csv", tmp_path / "store", config, workers=0)
    store = PatchStore.load(tmp_path / "store")
    empty = next(slide for slide in store.info.slides if slide.slide == "E")
    assert empty.kept == 0
    assert explain_no_patches(store.record(empty)) == reason
    assert {reason, f"E: 0 kept, {empty.dropped} dropped"} < set(lines)
    with Image.open(store.path / "pictures/slides" / f"{Path(empty.folder).name}.jpg") as picture:
        assert picture.width >= 640  # small slides leave room for the sentence


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
    odd = replace(source, slides=tuple(slides), may_lack_split=True)
    import_patches(odd, tmp_path / "store", config, workers=0)  # as OpenSRH can be
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


# ---- captions


@pytest.mark.parametrize("name", ["", "two\nlines\t\0", "=1+1", "患者 7 🧫", "../..", "\udce9", "W" * 20_000])
def test_any_name_can_be_aadd_caption(name: str) -> None:
    start = time.monotonic()
    captioned = add_caption(Image.new("RGB", (300, 40), "red"), name)
    assert time.monotonic() - start < 2
    assert captioned.size[0] == 300
    np.testing.assert_array_equal(np.asarray(captioned)[-40:], np.full((40, 300, 3), (255, 0, 0)))


def ink(captioned: Image.Image) -> np.ndarray:
    """Columns of a caption's line that have something written in them."""
    return np.flatnonzero((np.asarray(captioned)[:28].min(axis=(0, 2))) < 128)


def test_a_long_caption_ends_with_dots_inside_the_picture() -> None:
    picture = Image.new("RGB", (300, 40))
    assert ink(add_caption(picture, "W" * 200)).max() < 300 - 4
    assert ink(add_caption(picture, "W" * 200)).max() > 300 - 40  # as much of it as fits
    np.testing.assert_array_equal(add_caption(picture, "W" * 200), add_caption(picture, "W" * 201))
    assert ink(add_caption(picture, "short")).max() < 60


def test_the_legend_names_the_colours_in_their_colours() -> None:
    line = np.asarray(add_caption(Image.new("RGB", (400, 40)), "W" * 200, right=LEGEND))[:28].astype(int)
    green, red = (
        np.flatnonzero((np.abs(line - colour).max(axis=2) < 10).any(axis=0)) for colour in (KEPT_RGB, DROPPED_RGB)
    )
    black = np.flatnonzero((line.max(axis=2) < 60).any(axis=0))
    assert black.max() < green.min() <= green.max() < red.min() <= red.max() < 400


def test_a_hostile_label_is_counted(tmp_path: Path) -> None:
    write_pictures(tmp_path, {"a.png": noise(0)})
    hostile = PatchFile("P", "S", tmp_path / "a.png", name="a", label='a "b",\tc')
    source = Source(tmp_path / "patches.csv", tuple(group_by_slide([hostile], "patient")))
    import_patches(source, tmp_path / "store", workers=0)
    with (tmp_path / "store/pictures/counts.csv").open(newline="") as file:
        assert list(csv.reader(file))[1][1:] == ['a "b",\tc', "1", "1", "1"]


def test_a_label_that_is_counted_is_no_formula(tmp_path: Path) -> None:
    write_pictures(tmp_path, {"a.png": noise(0)})
    (tmp_path / "patches.csv").write_text("patient,slide,path,label\nP,S,a.png,=1+1\n")
    import_patches(find_table(tmp_path / "patches.csv"), tmp_path / "store", workers=0)
    assert PatchStore.load(tmp_path / "store").table.column("label").tolist() == ["=1+1"]
    with (tmp_path / "store/pictures/counts.csv").open(newline="") as file:
        assert list(csv.reader(file))[1][1:] == ["'=1+1", "1", "1", "1"]

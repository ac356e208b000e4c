"""The contact sheet shows every slide under its name and label, and marks those whose stain is in doubt."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from hidisc.ground.files import FileEntry
from hidisc.patches.folders import find_table
from hidisc.patches.record import SlideRecord, slide_folder
from hidisc.patches.store import PatchStore, SlideEntry
from hidisc.reporting import prepared as contact_sheet
from hidisc.reporting.prepared import FAR_DEG, ORANGE, add_caption, draw_contact_sheet, find_stain_problems
from hidisc.settings.config import load_config
from hidisc.settings.prepare import ImportConfig, PrepareConfig
from hidisc.verbs.prepare import import_patches, prepare
from tests.patches.pictures import make_store, noise, pictures_of, write_pictures
from tests.slides.test_stain import VECTORS, draw, one_stain

FILE = FileEntry(path="a", bytes=1, sha256="a", crc32=1)


def slide_with(
    name: str, stain: np.ndarray | None = VECTORS, fallbacks: int = 0, kept: int = 10
) -> tuple[SlideEntry, SlideRecord]:
    """A slide with `kept` patches whose stain vectors (3, 2) are known, or were not found in some of its patches."""
    stains = None if stain is None else {"vectors": stain.tolist(), "max_concentrations": [1.0, 1.0]}
    entry = SlideEntry(patient="P", slide=name, checksum="c", folder="f", kept=kept, dropped=0)
    record = SlideRecord(
        slide=name, checksum="c", sample="s", settings="s", reader="r", size_px=8, channels=3, dtype="uint8",
        boxes=kept, stain=stains, stain_fallbacks=fallbacks, files=(FILE, FILE),
    )  # fmt: skip
    return entry, record


def turned(stain: int, degrees: float) -> np.ndarray:
    """The usual vectors (3, 2), one of them turned away within the plane of both."""
    vectors = VECTORS.copy()
    across = VECTORS[:, 1 - stain] - VECTORS[:, stain] * (VECTORS[:, 0] @ VECTORS[:, 1])
    across /= -np.linalg.norm(across)
    vectors[:, stain] = np.cos(np.radians(degrees)) * VECTORS[:, stain] + np.sin(np.radians(degrees)) * across
    return vectors


def test_a_slide_whose_stain_is_far_from_the_median_is_named_with_the_angle() -> None:
    usual = [slide_with(f"S{number}") for number in range(6)]
    near, far = turned(1, FAR_DEG - 0.5), turned(1, FAR_DEG + 7)
    slides = [*usual, slide_with("near", near), slide_with("far", far), slide_with("blue", turned(0, 30))]
    assert find_stain_problems(slides) == {
        "blue": "unusual haematoxylin (30 degrees from usual)",
        "far": "unusual eosin (22 degrees from usual)",
    }
    assert list(find_stain_problems(slides)) == ["blue", "far"]  # the worst first


def test_a_few_slides_have_no_usual_stain() -> None:
    assert find_stain_problems([slide_with("A"), slide_with("B"), slide_with("C", turned(1, 40))]) == {}


def test_a_slide_whose_stain_was_not_estimated_is_named_before_those_far_away() -> None:
    slides = [slide_with(f"S{number}") for number in range(5)]
    slides += [slide_with("far", turned(1, 40)), slide_with("some", None, 3), slide_with("one", None, 1)]
    slides += [slide_with("none", None, 10), slide_with("more", None, 12), slide_with("not asked", None)]
    assert list(find_stain_problems(slides).items()) == [
        ("more", "stain not estimated"),  # patches that were dropped later are counted too
        ("none", "stain not estimated"),
        ("some", "stain not estimated in 3 patches"),
        ("one", "stain not estimated in 1 patch"),
        ("far", "unusual eosin (40 degrees from usual)"),
    ]


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, list[str]]]:
    """The lines of text of the sheets drawn from now on: what is at the left, and the words at the right."""
    noted: list[tuple[str, list[str]]] = []

    def add_and_note(image: Image.Image, text: str, **options: Any) -> Image.Image:
        noted.append((text, [word for word, _ in options.get("right", ())]))
        return add_caption(image, text, **options)

    monkeypatch.setattr(contact_sheet, "add_caption", add_and_note)
    return noted


def prepared(folder: Path, pictures: dict[str, np.ndarray]) -> PatchStore:
    """A store of pictures (H, W, 3), each a slide of a patient of its own, labelled by the first letter of its name."""
    write_pictures(folder, {f"{name}.png": pixels for name, pixels in pictures.items()})
    rows = [f"P-{name},{name},{name}.png,0.5,{name[0]}" for name in pictures]
    (folder / "cohort.csv").write_text("\n".join(["patient,slide,path,mpp,label", *rows]) + "\n")
    config = load_config(PrepareConfig, None, ["grid.size_px=30", "filter.min_pixel_std=0"])
    prepare(folder / "cohort.csv", folder / "store", config, workers=0)
    return PatchStore.load(folder / "store")


def framed(sheet: Image.Image) -> int:
    """How many frames a sheet has: runs of orange down the column where those of the first column begin."""
    orange = (np.asarray(sheet) == ORANGE).all(axis=2)
    left = int(np.flatnonzero(orange.sum(axis=0) > 100)[0])
    return int((np.diff(orange[:, left].astype(int)) == 1).sum())


def test_marked_slides_come_first_with_slide_label_and_mark(
    tmp_path: Path, lines: list[tuple[str, list[str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contact_sheet, "_SLIDES", 4)
    monkeypatch.setattr(contact_sheet, "_LEAST_OTHERS", 2)
    pictures = {f"a{number}": draw(number) for number in range(8)}
    swapped = np.array([[0.3, 0.1], [0.6, 0.4], [0.7, 0.9]])
    pictures |= {"b-far": draw(9, vectors=swapped / np.linalg.norm(swapped, axis=0)), "c-failed": one_stain(0)}
    store = prepared(tmp_path, pictures)
    lines.clear()
    sheet = draw_contact_sheet(store)
    assert sheet is not None
    (first_label, first), (first_slide, _), (second_label, second), (second_slide, _), *others, orange, title = lines
    assert (first_label, first_slide, first) == ("c", "c-failed", ["stain not estimated"])
    assert (second_label, second_slide) == ("b", "b-far")
    assert second[0].startswith("unusual ")
    assert others == [("a", []), ("a0", []), ("a", []), ("a7", [])]  # spread over the cohort
    assert orange[0] == (
        "orange: stain not estimated, or its colour more than 15 degrees from the median of all slides (2 slides of "
        "10, all shown)"
    )
    assert title[0] == "upper rows: as scanned; lower rows: as stored"
    assert framed(sheet) == 1  # both in the first row


def test_all_marked_slides_are_shown_however_many(
    tmp_path: Path, lines: list[tuple[str, list[str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contact_sheet, "_SLIDES", 2)
    monkeypatch.setattr(contact_sheet, "_LEAST_OTHERS", 1)
    failed = {f"f{number}": np.roll(one_stain(0), number, axis=0) for number in range(4)}
    store = prepared(tmp_path, {"a0": draw(0), "a1": draw(1)} | failed)
    lines.clear()
    sheet = draw_contact_sheet(store)
    assert sheet is not None
    assert framed(sheet) == 2  # three in the first row, one in the second
    assert [text for text, _ in lines[1:-2:2]] == ["f0", "f1", "f2", "f3", "a0"]
    monkeypatch.setattr(contact_sheet, "_MOST_MARKED", 3)
    lines.clear()
    draw_contact_sheet(store)
    assert [text for text, _ in lines[1:-2:2]] == ["f0", "f1", "f2", "a0"]
    assert lines[-2][0].endswith("(4 slides of 6, the worst 3 shown)")


def test_a_slide_of_several_labels_names_them_all(tmp_path: Path, lines: list[tuple[str, list[str]]]) -> None:
    write_pictures(tmp_path, {f"{number}.png": noise(number) for number in range(4)})
    rows = ["P,S,0.png,b", "P,S,1.png,a", "P,S,2.png,", "P,T,3.png,"]
    (tmp_path / "patches.csv").write_text("\n".join(["patient,slide,path,label", *rows]) + "\n")
    source = find_table(tmp_path / "patches.csv", "patch")
    import_patches(source, tmp_path / "store", ImportConfig(label_level="patch"), workers=0)
    lines.clear()
    draw_contact_sheet(PatchStore.load(tmp_path / "store"))
    assert [text for text, _ in lines] == ["a, b", "P/S", "", "P/T", "patches as stored"]


# ---- imported stores


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
    rows = (sheet.height - 28) // (100 + 24 + 16)
    assert 12 <= 3 * rows <= 24  # three across


def test_sixteen_bits_are_shown_too(tmp_path: Path) -> None:
    store = make_store(tmp_path, {"P1/A/0.png": noise(0, 16, 1, "uint16")})
    assert store.dtype == np.uint16
    with Image.open(store.path / "pictures/contact_sheet.jpg") as image:
        assert np.asarray(image)[60:90, 20:100].std() > 20


def test_hostile_slide_names_reach_the_pictures(tmp_path: Path) -> None:
    names = ["a\ttab", "=1+1", "患者", "x" * 200]
    store = make_store(tmp_path, pictures_of(*(f"P/{name}" for name in names), patches=1))
    assert (store.path / "pictures/contact_sheet.jpg").stat().st_size > 0
    assert {entry.slide for entry in store.info.slides} == {f"P/{name}" for name in names}
    assert len({slide_folder(f"P/{name}") for name in names}) == len(names)

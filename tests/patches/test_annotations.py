"""A box has the class that covers enough of it; shapely's areas are the reference."""

from pathlib import Path

import numpy as np
import pytest
import shapely
from shapely.geometry import Polygon

from hidisc.ground.errors import UserError
from hidisc.patches.annotations import (
    Annotations,
    Region,
    fill,
    load_annotations,
    make_box,
    parse_geojson,
    write_geojson,
)
from hidisc.settings.prepare import AnnotationsConfig
from hidisc.slides.cohort import SlideRow
from hidisc.slides.grid import lay_grid
from tests.patches.test_geojson import as_shape, star

ROWS = [SlideRow("P1", "S1", Path("in/one.svs")), SlideRow("P2", "S2", Path("in/two.svs"))]


def test_a_mask_holds_the_pixels_whose_centres_shapely_finds_inside() -> None:
    rings = [star(60, 45, 55, 1), star(60, 45, 12, 2), star(10, 80, 30, 3)]  # a hole, and one that leaves the picture
    outline, hole, other = map(Polygon, rings)
    for scale, height, width in ((1.0, 90, 110), (2.5, 36, 44)):
        y, x = (np.mgrid[:height, :width] + 0.5) * scale
        expected = shapely.contains_xy(outline, x, y) ^ shapely.contains_xy(hole, x, y)
        expected ^= shapely.contains_xy(other, x, y)
        np.testing.assert_array_equal(fill(rings, (height, width), scale), expected)


def test_shares_are_those_of_the_areas() -> None:
    regions = [Region(((star(900, 700, 600, 1), star(900, 700, 150, 2)),), "a"), Region(make_box(0, 0, 333, 500), "b")]
    boxes = lay_grid(2000, 1500, 64, 64, 2.0)
    areas = np.zeros((2, len(boxes)))
    for number, region in enumerate(regions):
        for index, (x, y) in enumerate(zip(boxes.x, boxes.y, strict=True)):
            box = shapely.box(x, y, x + 128, y + 128)
            areas[number, index] = as_shape(region).intersection(box).area / box.area
    for share in (0.25, 0.5, 0.9):
        config = AnnotationsConfig(path="x", min_share=share)
        codes, left_out = Annotations({"S": regions}, ("a", "b"), config).classify("S", boxes, 2000, 1500)
        clear = (np.abs(areas - share) > 0.08).all(axis=0)  # the rest is nearer to the threshold than the samples tell
        expected = np.where((areas >= share).any(axis=0), areas.argmax(axis=0), -1)
        assert clear.sum() > 150
        np.testing.assert_array_equal(codes[clear], expected[clear])
        assert not left_out.any()


def test_an_excluded_class_needs_less_and_counts_before_others() -> None:
    regions = [Region(make_box(0, 0, 200, 200), "tumour"), Region(make_box(80, 0, 30, 100), "pen")]
    boxes = lay_grid(300, 200, 100, 100, 1.0)
    config = AnnotationsConfig(path="x", exclude=("pen",))
    codes, left_out = Annotations({"S": regions}, ("tumour", "pen"), config).classify("S", boxes, 300, 200)
    assert list(zip(boxes.x.tolist(), boxes.y.tolist(), codes.tolist(), left_out.tolist(), strict=True)) == [
        (0, 0, 1, True),
        (100, 0, 1, True),
        (200, 0, -1, False),
        (0, 100, 0, False),
        (100, 100, 0, False),
        (200, 100, -1, False),
    ]
    codes, left_out = Annotations({"S": regions}, ("tumour", "pen"), config).classify("other", boxes, 300, 200)
    assert (codes.tolist(), left_out.any()) == ([-1] * 6, False)


def load(path: Path, *exclude: str) -> tuple[Annotations, list[str]]:
    annotations, warnings = load_annotations(AnnotationsConfig(path=str(path), exclude=exclude), ROWS)
    assert annotations is not None
    return annotations, warnings


def test_files_are_found_by_the_name_of_the_slide_or_of_its_file(tmp_path: Path) -> None:
    for name in ("S1.geojson", "two.svs.json", "three.geojson"):
        write_geojson(tmp_path / name, [Region(make_box(0, 0, 9, 9), f"class of {name}"), Region(make_box(0, 0, 1, 1))])
    (tmp_path / "notes.txt").write_text("x")
    annotations, warnings = load(tmp_path)
    assert annotations.classes == ("class of S1.geojson", "class of two.svs.json")
    assert {slide: len(regions) for slide, regions in annotations.regions.items()} == {"S1": 1, "S2": 1}
    assert warnings == [
        f"{tmp_path}: 'three.geojson': no slide of the cohort has this name.",
        f"{tmp_path}: 2 objects without a class, or without an area, left out.",
    ]


def test_one_file_may_hold_all_slides(tmp_path: Path) -> None:
    path = tmp_path / "all.geojson"
    write_geojson(path, [Region(make_box(0, 0, 9, 9), "a", slide="S1"), Region(make_box(0, 0, 9, 9), "b", slide="two")])
    assert list(load(path)[0].regions) == ["S1", "S2"]
    write_geojson(path, [Region(make_box(0, 0, 9, 9), "a")])
    with pytest.raises(UserError, match=r"feature 1 is on slide None, which is none of the cohort. Write the name of"):
        load(path)
    alone, _ = load_annotations(AnnotationsConfig(path=str(path)), ROWS[:1])
    assert alone is not None
    assert list(alone.regions) == ["S1"]


def test_what_cannot_be_meant_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"holds no GeoJSON file of a slide of the cohort. Export one per slide from"):
        load(tmp_path)
    write_geojson(tmp_path / "S1.geojson", [Region(make_box(0, 0, 9, 9), "Pen")])
    with pytest.raises(UserError, match=r"annotations.exclude: no annotation in .* is of class 'pen'; there are 'Pen'"):
        load(tmp_path, "pen")
    with pytest.raises(ValueError, match="exclude needs annotations: --annotations FOLDER"):
        AnnotationsConfig(exclude=("pen",))
    assert load_annotations(AnnotationsConfig(), ROWS) == (None, [])


def test_classes_pass_the_checks_of_names(tmp_path: Path) -> None:
    regions = [Region(make_box(0, 0, 9, 9), name) for name in ("Tumor", " tumor ", "gland \n duct")]
    write_geojson(tmp_path / "S1.geojson", regions)
    annotations, warnings = load(tmp_path)
    assert annotations.classes == ("Tumor", "tumor", "gland duct")
    (warning,) = warnings
    assert "annotations 'Tumor' (a class) and 'tumor' (a class) are treated as two, but differ only in case" in warning
    file = (
        '[{"geometry": {"type": "Polygon", "coordinates": []}, "properties": {"classification": {"name": "a\\ud800"}}}]'
    )
    with pytest.raises(UserError, match=r"feature 1 is not as QuPath writes one .*letters that cannot be printed"):
        parse_geojson(file, "S1.geojson")

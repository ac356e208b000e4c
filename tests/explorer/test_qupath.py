"""To QuPath and back: shapely finds the boxes where the patches are, and regions name the patches that it says."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import shapely
from shapely.geometry import MultiPolygon, Point, Polygon, box, mapping, shape

import hidisc.patches.cut
from hidisc.evaluation.scores import Scores
from hidisc.explorer.regions import find_drawn, write_boxes
from hidisc.explorer.session import Session, open_session
from hidisc.ground.errors import UserError
from hidisc.settings.prepare import PrepareConfig
from hidisc.slides.reader import open_slide
from hidisc.slides.slide import Slide
from hidisc.slides.synthetic import draw_cohort
from hidisc.verbs.prepare import prepare
from tests.explorer.conftest import Made
from tests.patches.pictures import make_store, pictures_of

ORIGIN = (30, 20)


@pytest.fixture(scope="module")
def shifted(tmp_path_factory: pytest.TempPathFactory) -> Session:
    """A session of slides whose coordinates in QuPath begin at another corner, with patches of 48 level-0 px."""
    folder = tmp_path_factory.mktemp("shifted")

    def open_shifted(path: Path) -> Slide:
        slide = open_slide(path)
        slide.origin = ORIGIN
        return slide

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(hidisc.patches.cut, "open_slide", open_shifted)
        config = PrepareConfig.model_validate({"grid": {"size_px": 24, "mpp": 1.0}})
        prepare(draw_cohort(folder, patients=4, slides=1, fields=12, seed=3), folder / "store", config, workers=0)
    session = open_session(folder / "store", [], None, lambda _: None)
    assert {session.store.record(entry).origin for entry in session.slides} == {ORIGIN}
    return session


def features_of(session: Session, number: int) -> list[dict[str, Any]]:
    features: list[dict[str, Any]] = json.loads(write_boxes(session, number))["features"]
    return features


def as_file(*regions: tuple[Any, str | None], **more: Any) -> str:
    """Annotations of shapely as QuPath exports them."""
    features = [
        {
            "type": "Feature",
            "geometry": mapping(region),
            "properties": {"objectType": "annotation", **({"classification": {"name": name}} if name else {}), **more},
        }
        for region, name in regions
    ]
    return json.dumps({"type": "FeatureCollection", "features": features})


def test_boxes_lie_where_the_patches_do(session: Session, shifted: Session) -> None:
    for opened, (left, top) in ((session, (0, 0)), (shifted, ORIGIN)):
        shown, features = opened.show(1), features_of(opened, 1)
        assert len(features) == len(shown.rows) > 4
        for feature, (x, y) in zip(features, shown.corners.tolist(), strict=True):
            expected = box(x - left, y - top, x - left + shown.extent, y - top + shown.extent)
            assert shape(feature["geometry"]).hausdorff_distance(expected) < 1
            assert feature["properties"]["objectType"] == "tile"


def test_boxes_have_what_was_predicted_and_given_and_nothing_of_the_patient(made: Made, scores: Scores) -> None:
    session = made.open()
    patches = scores.predictions("knn", "patch")
    number = next(n for n, slide in enumerate(session.slides) if slide.slide == patches.units["slide"][0])
    rows = session.rows_of_slide[number]
    session.labels.give("boxes", "mitosis", rows[:2], given_by="patch")
    try:
        text = write_boxes(session, number).decode()
    finally:
        (made.embeddings.parent / "labels" / "boxes.parquet").unlink()
    judged = {session.embedded[row]: place for place, row in enumerate(patches.units["row"])}
    for row, feature in zip(rows.tolist(), json.loads(text)["features"], strict=True):
        properties, place = feature["properties"], judged[row]
        assert properties["classification"]["name"] == patches.classes[patches.predicted[place]]
        assert properties["measurements"] == {
            f"score: {name}": pytest.approx(patches.scores[place, code]) for code, name in enumerate(patches.classes)
        }
        notes = properties["metadata"]
        assert notes.pop("cluster").startswith("cluster ")
        assert notes == ({"labels: boxes": "mitosis"} if row in rows[:2] else {})
    assert session.slides[number].patient not in text


def test_boxes_without_an_evaluation_have_their_class(shifted: Session) -> None:
    table = shifted.store.table
    classes = [feature["properties"]["classification"]["name"] for feature in features_of(shifted, 0)]
    assert classes == table.column("label")[shifted.rows_of_slide[0]].tolist()


def test_patches_are_named_by_the_region_that_holds_their_centre(session: Session, shifted: Session) -> None:
    rng = np.random.default_rng(0)
    for opened, origin in ((session, (0, 0)), (shifted, ORIGIN)):
        shown = opened.show(2)
        centres = shown.corners + shown.extent / 2 - origin
        middle = np.array([shown.width, shown.height]) / 2 - origin
        angles = np.sort(rng.uniform(0, 2 * np.pi, 15))
        ring = middle + 0.5 * min(shown.width, shown.height) * np.stack([np.cos(angles), np.sin(angles)], axis=1)
        star = Polygon(ring, [box(*(middle - 20), *(middle + 20)).exterior.coords])
        away = MultiPolygon([box(*(centres[0] - 1), *(centres[0] + 1)), box(*(centres[-1] - 1), *(centres[-1] + 1))])
        rows, names = find_drawn(opened, 2, as_file((star, "star"), (away, "corner")))
        expected = dict.fromkeys(shown.rows[shapely.contains_xy(star, *centres.T)].tolist(), "star")
        expected |= dict.fromkeys(shown.rows[[0, -1]].tolist(), "corner")  # the smaller region wins
        assert dict(zip(rows.tolist(), names.tolist(), strict=True)) == expected
        assert set(expected.values()) == {"star", "corner"}


def test_the_smaller_of_two_regions_wins_in_any_order(session: Session) -> None:
    shown = session.show(0)
    whole = box(0, 0, shown.width, shown.height)
    inner = Point(*(shown.corners[3] + shown.extent / 2)).buffer(5)
    for regions in (((whole, "tissue"), (inner, "gland")), ((inner, "gland"), (whole, "tissue"))):
        rows, names = find_drawn(session, 0, as_file(*regions))
        assert rows.tolist() == shown.rows.tolist()
        assert [name == "gland" for name in names] == [row == shown.rows[3] for row in rows]


def test_our_own_boxes_do_not_come_back_as_names(session: Session) -> None:
    features = [*features_of(session, 0), *json.loads(as_file((box(0, 0, 1e6, 1e6), "drawn")))["features"]]
    _, names = find_drawn(session, 0, json.dumps(features))
    assert set(names) == {"drawn"}


@pytest.mark.parametrize(
    ("file", "sentence"),
    [
        ("", r"this file cannot be read as GeoJSON \(.*\). Export it again from QuPath."),
        ("[" * 100_000, r"this file cannot be read as GeoJSON \(.*\). Export it again from QuPath."),
        ("3", "this file holds no GeoJSON features."),
        (
            '[{"geometry": {"type": "Polygon", "coordinates": [[[1' + "0" * 400 + ", 2]]]}}]",
            "this file: feature 1 is not",
        ),
        (as_file((box(0, 0, 9, 9), None)), "this file has no annotation with a class. In QuPath, give the regions"),
        (as_file((Point(3, 3), "dot")), "this file has no annotation with a class."),
        (as_file((box(-9, -9, -5, -5), "away")), "no patch of slide '.*' has its centre in a region of this file."),
        (as_file((box(0, 0, 9, 9), "a"), metadata={"slide": "other"}), "has regions of slide 'other'. Open that slide"),
    ],
)
def test_a_bad_file_is_one_sentence(session: Session, file: str, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        find_drawn(session, 0, file)


def test_patches_without_a_place_have_no_boxes(tmp_path: Path) -> None:
    store = make_store(tmp_path, pictures_of("a/1", "b/1", patches=5))
    imported = open_session(store.path, [], None, lambda _: None)
    for does in (lambda: write_boxes(imported, 0), lambda: find_drawn(imported, 0, as_file((box(0, 0, 9, 9), "a")))):
        with pytest.raises(UserError, match="imported as files: it is not known where on a slide they are"):
            does()

"""GeoJSON goes there and back: shapely reads what is written, and what shapely and QuPath write is read."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import shapely
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from shapely.geometry import MultiPolygon, Polygon, mapping, shape

from hidisc.ground.errors import UserError
from hidisc.patches.annotations import Region, make_box, read_geojson, write_geojson


def star(x: float, y: float, radius: float, seed: int, corners: int = 12) -> np.ndarray:
    """A ring whose corners go once around a point."""
    rng = np.random.default_rng(seed)
    angles = np.sort(rng.uniform(0, 2 * np.pi, corners)) + np.arange(corners) * 1e-3
    reach = radius * rng.uniform(0.5, 1, corners)
    return np.stack([x + reach * np.cos(angles), y + reach * np.sin(angles)], axis=1)


def as_shape(region: Region) -> Any:
    polygons = [Polygon(outline, holes) for outline, *holes in region.polygons]
    return polygons[0] if len(polygons) == 1 else MultiPolygon(polygons)


def features_of(path: Path) -> list[dict[str, Any]]:
    return json.loads(path.read_bytes())["features"]


REGIONS = [
    Region(make_box(100, 200, 300.5, 300.5), "tumour", (200, 0, 0), {"score: tumour": 0.75}, "tile"),
    Region(((star(5e4, 4e4, 900, 1), star(5e4, 4e4, 100, 2)),), "Größe"),
    Region(((star(0, 0, 50, 3),), (star(500, 500, 50, 4),)), kind="detection", slide="S/1"),
]


def test_shapely_reads_what_is_written(tmp_path: Path) -> None:
    write_geojson(tmp_path / "a.geojson", REGIONS)
    for region, feature in zip(REGIONS, features_of(tmp_path / "a.geojson"), strict=True):
        read = shape(feature["geometry"])
        assert read.is_valid
        assert shapely.hausdorff_distance(read, as_shape(region)) < 0.02
        assert all(ring.is_closed for ring in shapely.get_rings(read))


def test_it_is_laid_out_as_qupath_writes_it(tmp_path: Path) -> None:
    write_geojson(tmp_path / "a.geojson", REGIONS)
    whole = json.loads((tmp_path / "a.geojson").read_bytes())
    assert whole["type"] == "FeatureCollection"
    assert whole["features"][0] == {
        "type": "Feature",
        "geometry": {
            "type": "Polygon",
            "coordinates": [[[100.0, 200.0], [400.5, 200.0], [400.5, 500.5], [100.0, 500.5], [100.0, 200.0]]],
        },
        "properties": {
            "objectType": "tile",
            "classification": {"name": "tumour", "color": [200, 0, 0]},
            "measurements": {"score: tumour": 0.75},
        },
    }
    assert whole["features"][2]["properties"] == {"objectType": "detection", "metadata": {"slide": "S/1"}}


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    write_geojson(tmp_path / "a.geojson", REGIONS)
    for region, read in zip(REGIONS, read_geojson(tmp_path / "a.geojson"), strict=True):
        for name in ("name", "color", "measurements", "kind", "slide"):
            assert getattr(read, name) == getattr(region, name)
        assert [len(polygon) for polygon in read.polygons] == [len(polygon) for polygon in region.polygons]
        for ring, same in zip(region.rings, read.rings, strict=True):
            np.testing.assert_allclose(same, ring, atol=0.006)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.tuples(*[st.floats(-1e5, 2e5)] * 2, *[st.floats(1, 5e3)] * 2), st.integers(0, 99))
def test_rectangles_and_polygons_of_shapely_come_back_within_a_pixel(
    tmp_path: Path, box: tuple[float, float, float, float], seed: int
) -> None:
    x, y, width, height = box
    drawn = [shapely.box(x, y, x + width, y + height), Polygon(star(x, y, width, seed))]
    features = [{"type": "Feature", "geometry": mapping(each), "properties": {}} for each in drawn]
    (tmp_path / "a.geojson").write_text(json.dumps(features))
    regions = read_geojson(tmp_path / "a.geojson")
    write_geojson(tmp_path / "b.geojson", regions)
    for shown, feature in zip(drawn, features_of(tmp_path / "b.geojson"), strict=True):
        assert shapely.hausdorff_distance(shape(feature["geometry"]), shown) < 1


@pytest.mark.parametrize(
    ("properties", "name", "measurements"),
    [
        (None, None, {}),
        ({"object_type": "annotation", "isLocked": False}, None, {}),
        ({"classification": {"name": "Tumor", "colorRGB": -3670016}}, "Tumor", {}),
        ({"measurements": [{"name": "area", "value": 2}, {"name": "x", "value": "NaN"}]}, None, {"area": 2.0}),
        ({"classification": {"name": "a: b"}, "measurements": {"area": 2.5}}, "a: b", {"area": 2.5}),
    ],
)
def test_older_and_newer_properties_of_qupath(
    tmp_path: Path, properties: Any, name: str | None, measurements: dict[str, float]
) -> None:
    feature = {"type": "Feature", "geometry": mapping(shapely.box(0, 0, 1, 1)), "properties": properties}
    (tmp_path / "a.geojson").write_text(json.dumps(feature))
    (region,) = read_geojson(tmp_path / "a.geojson")
    assert (region.name, region.measurements, region.kind) == (name, measurements, "annotation")


def test_points_and_lines_have_no_area(tmp_path: Path) -> None:
    geometries = [shapely.Point(1, 2), shapely.LineString([(0, 0), (1, 1)])]
    features = [{"type": "Feature", "geometry": mapping(geometry)} for geometry in geometries]
    (tmp_path / "a.geojson").write_text(json.dumps({"type": "FeatureCollection", "features": features}))
    assert [region.polygons for region in read_geojson(tmp_path / "a.geojson")] == [(), ()]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "cannot be read as GeoJSON ("),
        ("3", "holds no GeoJSON features. Export the objects of the slide from QuPath."),
        ("{}", "feature 1 is not as QuPath writes one (KeyError('geometry'))"),
        ('[{"geometry": {"type": "Polygon", "coordinates": [[[0, 0], [1, 1]]]}}]', "fewer than three corners"),
        ('[{"geometry": {"type": "Polygon", "coordinates": [[["a", 0], [1, 1], [2, 3]]]}}]', "feature 1 is not as"),
        ('[{"geometry": {"type": "Polygon", "coordinates": [[[NaN, 0], [1, 1], [2, 3]]]}}]', "no pair of numbers"),
        ('[{"geometry": {"type": "Polygon", "coordinates": 3}}]', "feature 1 is not as QuPath writes one"),
    ],
)
def test_files_that_are_none_are_refused(tmp_path: Path, text: str, sentence: str) -> None:
    (tmp_path / "a.geojson").write_text(text)
    with pytest.raises(UserError) as caught:
        read_geojson(tmp_path / "a.geojson")
    assert sentence in str(caught.value)

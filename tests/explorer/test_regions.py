"""Which patches a region holds: outlines against matplotlib, rectangles by hand."""

import numpy as np
import pytest
from matplotlib.path import Path as Outline
from pydantic import ValidationError

from hidisc.explorer.regions import Selection, find_rows, is_inside
from hidisc.explorer.session import Session
from hidisc.ground.errors import UserError


@pytest.mark.parametrize("corners", [3, 4, 17])
def test_an_outline_holds_what_matplotlib_says(corners: int) -> None:
    rng = np.random.default_rng(corners)
    points = rng.random((4000, 2)).astype(np.float32)
    angle = np.sort(rng.random(corners)) * 2 * np.pi
    star = 0.5 + np.stack([np.cos(angle), np.sin(angle)], axis=1) * rng.uniform(0.1, 0.5, (corners, 1))
    expected = Outline(star).contains_points(points)
    assert 0 < expected.sum() < 4000
    assert (is_inside(points, star) == expected).all()


def test_an_outline_on_the_map_holds_its_points_and_only_those_that_are_shown(session: Session) -> None:
    everything = ((-1, -1), (2, -1), (2, 2), (-1, 2))
    assert sorted(find_rows(session, Selection(polygon=everything))) == sorted(session.embedded)
    codes = session.columns["label"].codes
    shown = find_rows(session, Selection(polygon=everything, by="label", only="1"))
    assert sorted(shown) == np.flatnonzero(codes == 1).tolist()
    x, y = session.places[5].tolist()
    near = [(x - 1e-4, y - 1e-4), (x + 1e-4, y - 1e-4), (x + 1e-4, y + 1e-4), (x - 1e-4, y + 1e-4)]
    assert session.embedded[5] in find_rows(session, Selection(polygon=tuple(near)))


def test_a_rectangle_holds_the_patches_whose_centre_is_in_it(session: Session) -> None:
    shown = session.show(0)
    (x, y), half = shown.corners[0], shown.extent / 2
    box = (x + half - 1, y + half - 1, x + half + 1, y + half + 1)
    assert find_rows(session, Selection(slide=0, box=box)).tolist() == [shown.rows[0]]
    whole = find_rows(session, Selection(slide=0, box=(0, 0, shown.width, shown.height)))
    assert whole.tolist() == shown.rows.tolist()


def test_codes_are_numbers() -> None:
    with pytest.raises(ValidationError, match="pattern"):
        Selection(only="1,x")


@pytest.mark.parametrize(
    ("region", "sentence"),
    [
        (Selection(), "there is no patch in this region"),
        (Selection(slide=0, box=(0, 0, 1, 1)), "there is no patch in this region"),
        (Selection(rows=(0, 10**6)), "there is no such patch"),
        (Selection(rows=(-1,)), "there is no such patch"),
        (Selection(slide=99, box=(0, 0, 1, 1)), "there is no such slide"),
    ],
)
def test_what_is_not_there_is_refused(session: Session, region: Selection, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        find_rows(session, region)

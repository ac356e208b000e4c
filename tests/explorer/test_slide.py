"""Slides tile by tile: as the file has them, as the stored patches have them, and never another file's."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from hidisc.explorer.session import Session, open_session
from hidisc.explorer.slide import TILE_PX
from hidisc.ground.errors import UserError
from hidisc.slides.cohort import Cohort
from hidisc.slides.reader import open_slide
from tests.explorer.conftest import Made
from tests.patches.pictures import make_store, pictures_of


def test_tiles_of_the_finest_level_are_the_file(made: Made, session: Session) -> None:
    shown = session.show(0)
    row = next(row for row in Cohort.load(made.cohort).slides if row.slide == shown.entry.slide)
    with open_slide(row.path) as slide:
        expected = slide.read(0, 0, 0, slide.width, slide.height)
    assert (shown.height, shown.width) == expected.shape[:2]
    found = np.zeros_like(expected)
    for line in range(-(-shown.height // TILE_PX)):
        for column in range(-(-shown.width // TILE_PX)):
            tile = shown.tile(session.store, 0, column, line)
            top, left = line * TILE_PX, column * TILE_PX
            found[top : top + tile.shape[0], left : left + tile.shape[1]] = tile
    assert (found == expected).all()


def test_the_coarsest_level_is_one_tile(session: Session) -> None:
    shown = session.show(0)
    top = shown.tile(session.store, shown.levels - 1, 0, 0)
    assert max(top.shape) <= TILE_PX < 2 * max(top.shape)
    for place in ((shown.levels, 0, 0), (0, 999, 0), (0, 0, 999)):
        with pytest.raises(UserError, match="has no tile"):
            shown.tile(session.store, *place)


def test_without_the_file_tiles_show_the_stored_patches(made: Made, session: Session) -> None:
    stored = open_session(made.store, [], None, lambda _: None)
    shown = stored.show(0)
    assert shown.file is None
    assert "start with --cohort" in shown.source
    assert shown.extent == 48  # the slides are drawn at the scale of the patches
    (x, y), patch = shown.corners[0].tolist(), stored.store.read(int(shown.rows[0]))
    column, line = x // TILE_PX, y // TILE_PX
    tile = shown.tile(stored.store, 0, column, line)
    x, y = x - column * TILE_PX, y - line * TILE_PX
    part = tile[y : y + 48, x : x + 48]
    assert (part == patch[: part.shape[0], : part.shape[1]]).all()


def test_a_file_that_is_not_the_one_that_was_cut_is_not_shown(made: Made, tmp_path: Path) -> None:
    rows = Cohort.load(made.cohort).slides
    swapped = ["patient,slide,path", *(f"{row.patient},{row.slide},{rows[0].path.resolve()}" for row in rows)]
    (tmp_path / "cohort.csv").write_text("\n".join(swapped))
    session = open_session(made.store, [], tmp_path / "cohort.csv", lambda _: None)
    by_name = {entry.slide: number for number, entry in enumerate(session.slides)}
    assert session.show(by_name[rows[0].slide]).file is not None
    other = session.show(by_name[rows[1].slide])
    assert other.file is None
    assert other.source.endswith(f"{rows[0].path.name} is not the file that was cut.")


def test_a_file_that_is_gone_is_said(made: Made, tmp_path: Path) -> None:
    rows = Cohort.load(made.cohort).slides
    listed = ["patient,slide,path", *(f"{row.patient},{row.slide},gone-{row.slide}.tiff" for row in rows)]
    (tmp_path / "cohort.csv").write_text("\n".join(listed))
    shown = open_session(made.store, [], tmp_path / "cohort.csv", lambda _: None).show(0)
    assert shown.file is None
    assert "cannot be read (No such file or directory)" in shown.source


def test_imported_patches_stand_side_by_side(tmp_path: Path) -> None:
    store = make_store(tmp_path, pictures_of("a/1", "b/1", patches=5))
    shown = open_session(store.path, [], None, lambda _: None).show(0)
    side = store.info.size_px
    assert (shown.width, shown.height) == (3 * side, 2 * side)
    tile = shown.tile(store, 0, 0, 0)
    x, y = shown.corners[4]
    expected = np.asarray(Image.fromarray(store.read(int(shown.rows[4]))).convert("RGB"))
    assert (tile[y : y + side, x : x + side] == expected).all()
    assert "where they lay is not known" in shown.source

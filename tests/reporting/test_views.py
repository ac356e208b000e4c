"""The panel of patches and views shows each where its title says, whatever the channels."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from hidisc.reporting.prepared import APART_PX, GAP_PX, MAX_TILE_PX, MIN_TILE_PX, TITLE_PX, draw_views
from hidisc.settings.train import ViewsConfig
from hidisc.verbs.views import show_views
from tests.patches.pictures import make_store, pictures_of


def flat(*colours: tuple[float, ...], size: tuple[int, int] = (16, 16)) -> torch.Tensor:
    """Pictures (n, C, H, W), each of one colour."""
    return torch.tensor(colours)[:, :, None, None].expand(-1, -1, *size)


def panel_of(tmp_path: Path, originals: torch.Tensor, views: torch.Tensor) -> np.ndarray:
    draw_views(originals, views, out=tmp_path / "panel.png")
    with Image.open(tmp_path / "panel.png") as image:
        assert image.format == "PNG"
        assert image.mode == "RGB"
        return np.asarray(image)


def tile(panel: np.ndarray, row: int, column: int, wide: int = MIN_TILE_PX, tall: int = MIN_TILE_PX) -> np.ndarray:
    """The pixels of a picture on the panel; column 0 is the patch."""
    top = APART_PX + TITLE_PX + 8 + row * (tall + GAP_PX)
    left = APART_PX + column * (wide + GAP_PX) + (APART_PX - GAP_PX) * (column > 0)
    return panel[top : top + tall, left : left + wide]


def test_rows_are_patches_and_columns_their_views(tmp_path):
    red, green, blue, white = (1.0, 0, 0), (0, 1.0, 0), (0, 0, 1.0), (1.0, 1.0, 1.0)
    panel = panel_of(tmp_path, flat(red, green), torch.stack([flat(blue, white, red), flat(red, green, blue)]))
    shown = [[tile(panel, row, column).reshape(-1, 3) for column in range(4)] for row in range(2)]
    assert all((picture == picture[0]).all() for row in shown for picture in row)
    expected = [[red, blue, white, red], [green, red, green, blue]]
    np.testing.assert_array_equal([[picture[0] for picture in row] for row in shown], np.multiply(expected, 255))


def test_gaps_are_white_and_every_column_has_a_title(tmp_path):
    panel = panel_of(tmp_path, flat((0.5,), (0.5,)), torch.full((2, 3, 1, 16, 16), 0.5))
    paper = panel.copy()
    titles = []
    for column in range(4):
        left = APART_PX + column * (MIN_TILE_PX + GAP_PX) + (APART_PX - GAP_PX) * (column > 0)
        titles.append(panel[: APART_PX + TITLE_PX + 8, left : left + MIN_TILE_PX])
        for row in range(2):
            tile(paper, row, column)[:] = 255
    assert all((title < 100).any() for title in titles)
    assert (paper[APART_PX + TITLE_PX + 8 :] == 255).all()
    assert not np.array_equal(titles[1], titles[2])  # view 1 is not view 2


@pytest.mark.parametrize(
    ("channels", "shown"),
    [((0.6,), (153, 153, 153)), ((0.2, 0.8), (51, 204, 0)), ((0.4, 0.6, 0.8, 1.0), (102, 153, 204))],
)
def test_any_number_of_channels_is_shown(tmp_path, channels, shown):
    panel = panel_of(tmp_path, flat(channels), flat(channels)[:, None])
    for column in range(2):
        assert tile(panel, 0, column)[5, 5].tolist() == list(shown)


def test_a_dark_row_is_brightened_as_its_patch_needs_it(tmp_path):
    dark, light = flat((0.02, 0.05, 0.1)), flat((0.9, 0.9, 0.9))
    views = torch.stack([dark / 2, dark * 2], dim=1)
    panel = panel_of(tmp_path, torch.cat([dark, light]), torch.cat([views, light[:, None] * torch.ones(1, 2, 1, 1, 1)]))
    patch, half, double = (tile(panel, 0, column)[3, 3].tolist() for column in range(3))
    assert patch == [51, 128, 255]
    assert half == pytest.approx([26, 64, 128], abs=1)
    assert double == [102, 255, 255]
    assert tile(panel, 1, 0)[3, 3].tolist() == [230, 230, 230]


@pytest.mark.parametrize(
    ("size", "wide", "tall"),
    [((48, 48), 128, 128), ((200, 200), 200, 200), ((300, 600), 224, 112), ((90, 45), 64, 128)],
)
def test_patches_are_shown_in_a_readable_size_and_their_own_shape(tmp_path, size, wide, tall):
    picture = flat((0.5, 0.5, 0.5), size=size)
    panel = panel_of(tmp_path, picture, picture[:, None])
    assert max(wide, tall) <= MAX_TILE_PX
    assert panel.shape[1] == 2 * wide + 3 * APART_PX
    assert (tile(panel, 0, 1, wide, tall) == 128).all()


def test_black_patches_and_large_sizes_are_no_error(tmp_path):
    panel = panel_of(tmp_path, torch.zeros(1, 3, 400, 400), torch.zeros(1, 2, 3, 400, 400))
    assert (tile(panel, 0, 2, MAX_TILE_PX, MAX_TILE_PX) == 0).all()


def test_the_verb_takes_text_and_returns_the_path_of_what_it_wrote(tmp_path):
    store = make_store(tmp_path, pictures_of("P1/A", "P2/A"))
    out = tmp_path / "views.png"
    assert show_views(str(store.path), str(out), ViewsConfig(), patches=2, views=3) == out
    assert out.is_file()

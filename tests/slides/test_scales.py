"""Coarser patches lie around the squares of a grid, share their cells, and are padded outside of a slide."""

from pathlib import Path

import numpy as np
import pytest
import tifffile
from pydantic import ValidationError

from hidisc.settings.prepare import GridConfig
from hidisc.slides.grid import lay_grid, lay_lattice, read_beyond
from hidisc.slides.reader import open_slide


@pytest.mark.parametrize(
    ("size_px", "stride_px", "ratio", "per_side"),
    [(300, 300, 2, 2), (300, 300, 4, 4), (48, 24, 2, 4), (300, 300, 1.5, 1), (300, 400, 2, 1), (16, 16, 4, 1)],
)
def test_a_patch_is_made_of_cells_where_whole_ones_fit(
    size_px: int, stride_px: int, ratio: float, per_side: int
) -> None:
    grid = lay_grid(5000, 4000, size_px, stride_px, 1.7)
    lattice = lay_lattice(grid, size_px, stride_px, 1.7 * ratio, whole=False)
    assert (lattice.per_side, lattice.cell_px * per_side) == (per_side, size_px)
    assert lay_lattice(grid, size_px, stride_px, 1.7 * ratio, whole=True).per_side == 1


@pytest.mark.parametrize("downsample", [1.0, 1.9786, 2.0])
@pytest.mark.parametrize("ratio", [2, 4, 2.5])
def test_the_cells_of_a_patch_lie_around_its_square(downsample: float, ratio: float) -> None:
    grid, coarse = lay_grid(1500, 1100, 48, 48, downsample), downsample * ratio
    lattice = lay_lattice(grid, 48, 48, coarse, whole=False)
    for box, first in enumerate(lattice.first_cells(grid)):
        cells = np.array([divmod(cell, lattice.across) for cell in lattice.cells(int(first))])  # (n, 2) row, column
        assert cells.max() < lattice.total
        start = lattice.origin + cells.min(axis=0) * lattice.stride
        end = lattice.origin + cells.max(axis=0) * lattice.stride + lattice.cell_px * coarse
        assert end - start == pytest.approx([48 * coarse] * 2)
        centre = np.array([grid.y[box], grid.x[box]]) + grid.extent / 2
        assert np.abs((start + end) / 2 - centre).max() <= coarse + 1, "the same centre, to within a coarse pixel"


def test_what_leaves_the_slide_is_told(tmp_path: Path) -> None:
    with open_slide(write(tmp_path, np.zeros((160, 160, 3), np.uint8))) as slide:
        grid = lay_grid(160, 160, 16, 16, 1.0)
        first = lay_lattice(grid, 16, 16, 2.0, whole=False).first_cells(grid, slide)
    inside = (grid.x >= 8) & (grid.y >= 8) & (grid.x + 24 <= 160) & (grid.y + 24 <= 160)
    assert ((first >= 0) == inside).all()


@pytest.mark.parametrize(("dtype", "channels", "outside"), [("uint8", 3, 255), ("uint16", 2, 0), ("uint8", 1, 0)])
@pytest.mark.parametrize(("x", "y"), [(-10, -6), (90, 70), (30, -40), (20, 20), (200, 0)])
def test_reading_beyond_the_edge(tmp_path: Path, dtype: str, channels: int, outside: int, x: int, y: int) -> None:
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 200, (80, 100, channels), dtype=dtype)
    padded = np.pad(pixels, ((100, 200), (100, 200), (0, 0)), constant_values=outside)
    with open_slide(write(tmp_path, pixels)) as slide:
        seen = read_beyond(slide, x, y, 32, 1.0)
    np.testing.assert_array_equal(seen, padded[100 + y : 132 + y, 100 + x : 132 + x])


def write(folder: Path, pixels: np.ndarray) -> Path:
    """A plain TIFF of one level."""
    planar = pixels.shape[2] != 3
    data = np.moveaxis(pixels, 2, 0) if planar else pixels
    options = {"photometric": "minisblack", "planarconfig": "separate"} if planar else {"photometric": "rgb"}
    tifffile.imwrite(folder / "slide.tif", data[0] if pixels.shape[2] == 1 else data, **options)
    return folder / "slide.tif"


def test_scales_that_would_count_as_one_are_refused() -> None:
    for scales in ([0.5, 0.505], [1.0, 0.5, 0.5001]):
        with pytest.raises(ValidationError, match=r"differ by less than 2% and count as one scale. Leave"):
            GridConfig.model_validate({"mpp": scales})
    assert GridConfig.model_validate({"mpp": [0.51, 0.5]}).scales == (0.5, 0.51)

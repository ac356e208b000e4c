"""Slides that another tool (wsidicomizer) has converted to DICOM have the pixels that another reader (wsidicom) gives.

wsidicomizer wants an older wsidicom than ours, so it is in no environment of this project: CONTRIBUTING.md says how a
release runs these tests in an environment of its own.
"""

from ctypes.util import find_library
from pathlib import Path

import numpy as np
import pytest

from hidisc.slides.reader import open_slide
from hidisc.slides.slide import SlideError
from hidisc.slides.synthetic import DIAGNOSES, SITES, draw_slide, draw_staining, write_pyramid

if find_library("turbojpeg") is None:
    pytest.skip("needs libturbojpeg (Debian: libturbojpeg0)", allow_module_level=True)
wsidicomizer = pytest.importorskip("wsidicomizer", reason="needs wsidicomizer, which wants an older wsidicom than ours")
import wsidicom  # noqa: E402 - it comes with wsidicomizer


def assert_same_pixels(source: Path, folder: Path, most: float) -> None:
    """The DICOM of `source` as we and wsidicom read it, and the source.

    `most`: what the conversion may change, as a share of what one pixel aside changes.
    """
    files = wsidicomizer.WsiDicomizer.convert(source, folder, workers=1)
    with wsidicom.WsiDicom.open(folder) as theirs, open_slide(files[0]) as ours, open_slide(source) as before:
        assert (ours.width, ours.height) == (theirs.size.width, theirs.size.height) == (before.width, before.height)
        assert ours.mpp == pytest.approx(theirs.mpp.width) == pytest.approx(before.mpp)
        assert len(ours.levels) == len(theirs.levels) == len(before.levels)
        for level, down in enumerate(ours.levels):
            width, height = int(ours.width / down), int(ours.height / down)
            x, y, across, tall = width // 5, height // 7, min(300, width // 2), min(200, height // 2)
            seen = ours.read(level, x, y, across, tall).astype(int)
            other = np.asarray(theirs.read_region((x, y), level, (across, tall)).convert("RGB"))
            assert np.abs(seen - other).max() <= 2
            loss, aside = (np.abs(seen - before.read(level, x + by, y, across, tall)).mean() for by in (0, 1))
            assert loss <= most * aside


def test_a_drawn_slide(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    drawn = draw_slide(DIAGNOSES["dense-round"], draw_staining(SITES["north"], rng), rng, fields=64)
    write_pyramid(tmp_path / "drawn.tiff", drawn, 0.5)
    assert_same_pixels(tmp_path / "drawn.tiff", tmp_path / "dicom", most=0.75)  # JPEG of what was stored without loss


def test_a_real_slide_whose_tiles_are_taken_over(shared_data: Path, tmp_path: Path) -> None:
    assert_same_pixels(shared_data / "wsi" / "cmu-1-small-region.svs", tmp_path / "dicom", most=0)


def test_a_slide_of_jpeg_2000_is_refused_with_the_reason(shared_data: Path, tmp_path: Path) -> None:
    """Version 0.26 names the colours of the source (YBR_ICT) in a file of JPEG, which is not valid DICOM."""
    source = shared_data / "monusac" / "svs" / "TCGA-69-A59K-01Z-00-DX1_001.svs"
    files = wsidicomizer.WsiDicomizer.convert(source, tmp_path / "dicom", workers=1)
    with pytest.raises(SlideError, match=r"Unsupported photometric interpretation YBR_ICT") as caught:
        open_slide(files[0])
    assert "not a whole-slide image" not in str(caught.value)

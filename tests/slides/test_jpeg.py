"""A JPEG of which a part was never copied is refused; one that is all there is not, however even it is."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from hidisc.slides.readers.picture import read_picture
from hidisc.slides.slide import SlideError

CUT_SHORT = "the JPEG is cut short: its pixels do not come to their end. Copy it again."
HOLE = "the JPEG has a hole: zeros stand where pixels should. Copy it again."
WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "full colour": {"subsampling": 0, "quality": 98},
    "tables of its own": {"optimize": True},
    "progressive": {"progressive": True},
    "restarts": {"restart_marker_rows": 1},
    "with a preview": {"exif": b"Exif\0\0II*\0\x08\0\0\0\0\0\0\0\0\0" + b"\xff\xd8 a JPEG within \xff\xd9"},
}


def draw_tissue() -> Image.Image:
    """Texture that fills the picture."""
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)
    return Image.fromarray(noise).resize((512, 512), Image.Resampling.BICUBIC)


def draw_glass() -> Image.Image:
    """One even colour but for a corner; with Huffman tables of its own its pixels are mostly zeros in the file."""
    glass = Image.new("RGB", (1500, 1500), (240, 240, 240))
    glass.paste(draw_tissue().resize((128, 128)), (0, 0))
    return glass


def refusal(path: Path) -> str:
    with pytest.raises(SlideError) as caught:
        read_picture(path)
    return str(caught.value)


@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize("draw", [draw_tissue, draw_glass])
@pytest.mark.parametrize("way", WAYS)
def test_a_whole_jpeg_is_read_and_one_that_lost_its_end_is_not(tmp_path: Path, way: str, draw: Any, mode: str) -> None:
    path = tmp_path / "a.jpg"
    image = draw().convert(mode)
    image.save(path, **WAYS[way])
    data = path.read_bytes()
    assert read_picture(path).shape[:2] == (image.height, image.width)
    path.write_bytes(data + bytes(5000))  # a camera's padding behind the end
    assert read_picture(path).shape[:2] == (image.height, image.width)
    for share in (1 / 3, 0.6, 0.95):
        kept = int(len(data) * share)
        path.write_bytes(data[:kept] + bytes(len(data) - kept))
        assert refusal(path) in (CUT_SHORT, HOLE)
        path.write_bytes(data[:kept])
        assert refusal(path) == CUT_SHORT
    path.write_bytes(data[:-2])
    assert refusal(path) == CUT_SHORT


@pytest.mark.parametrize("way", ["plain", "full colour", "restarts", "tables of its own"])
def test_a_hole_in_the_middle(tmp_path: Path, way: str) -> None:
    """Its end is there, so only the zeros tell: they stand for a pattern that no picture shows."""
    draw_tissue().save(tmp_path / "a.jpg", **WAYS[way])
    data = (tmp_path / "a.jpg").read_bytes()
    start = len(data) // 2
    (tmp_path / "a.jpg").write_bytes(data[:start] + bytes(4096) + data[start + 4096 :])
    assert refusal(tmp_path / "a.jpg") == HOLE

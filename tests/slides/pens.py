"""Strokes of felt pens across drawn slides."""

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from hidisc.slides.synthetic import _blur, _smooth_noise

INKS = {"blue": (34, 80, 150), "green": (38, 100, 80), "black": (30, 30, 32)}
"""Colours of felt pens on clear glass, 0 to 255; within the ranges that filters for pen marks look for."""


def draw_pen(
    slide: NDArray[np.uint8], ink: str, rng: np.random.Generator, *, mpp: float = 0.5, width_um: float = 400
) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
    """The pixels of a slide with a stroke of a felt pen across it, and where (H, W) the stroke is."""
    height, width = slide.shape[:2]
    x = np.linspace(0, width, 9)
    y = height * (rng.uniform(0.3, 0.7) + rng.uniform(-0.4, 0.4) * (x / width - 0.5) + rng.normal(0, 0.02, 9))
    canvas = Image.new("L", (width, height))
    points = list(zip(x.tolist(), y.tolist(), strict=True))
    ImageDraw.Draw(canvas).line(points, fill=255, width=round(width_um / mpp), joint="curve")
    stroke = np.asarray(canvas) > 0
    streaks = 1 + 0.15 * _smooth_noise((height, width), 200 / mpp, 15 / mpp, 0.0, rng)
    density = -np.log((np.array(INKS[ink]) + 1) / 256)
    covered = _blur(stroke.astype(np.float32), 5 / mpp) * streaks.clip(0.5, 1.3)
    inked = (slide + 0.5) * np.exp(-covered[..., None] * density)
    return inked.clip(0, 255).astype(np.uint8), stroke

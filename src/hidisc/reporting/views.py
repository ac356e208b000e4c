"""A picture of patches and their random views."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from hidisc.ground.files import write_atomic
from hidisc.reporting.prepared import INK, PAPER, encode
from hidisc.slides.slide import as_rgb

MIN_TILE_PX, MAX_TILE_PX = 128, 224
"""Longer side of a picture on the panel: small patches are enlarged, large ones shrunk."""
DARK = 0.25
"""A patch is brightened when nearly all of it is darker: 8-bit tissue is not, 12 bits stored in 16 are."""
GAP_PX, APART_PX, TITLE_PX = 4, 14, 16


def draw_views(originals: Tensor, views: Tensor, *local: Tensor, out: Path) -> None:
    """Write a PNG with one row per patch: the patch (N, C, H, W) itself, then its views (N, V, C, H, W), all in [0, 1].

    Views are shown in the size of the patch, those of other sizes too.

    One channel is shown as grey, two as red and green, of more the first three. Patches that fill little of [0, 1], as
    16-bit ones may, are brightened together with their views, so that these can be compared.
    """
    titles = ["patch", *(f"view {number}" for number in range(1, views.shape[1] + 1))]
    titles += [f"local {number}" for of_size in local for number in range(1, of_size.shape[1] + 1)]
    rows = [
        _draw_row(patch, [view for of_size in made for view in of_size])
        for patch, *made in zip(originals, views, *local, strict=True)
    ]
    wide, tall = rows[0][0].size if rows else (MIN_TILE_PX, MIN_TILE_PX)
    left = [APART_PX + number * (wide + GAP_PX) + (APART_PX - GAP_PX) * (number > 0) for number in range(len(titles))]
    top = [APART_PX + TITLE_PX + 8 + number * (tall + GAP_PX) for number in range(len(rows) + 1)]
    panel = Image.new("RGB", (left[-1] + wide + APART_PX, top[-1] - GAP_PX + APART_PX), PAPER)
    draw, font = ImageDraw.Draw(panel), ImageFont.load_default(TITLE_PX)
    for x, title in zip(left, titles, strict=True):
        draw.text((x + wide / 2, APART_PX + TITLE_PX / 2), title, fill=INK, font=font, anchor="mm")
    for y, tiles in zip(top, rows, strict=False):
        for x, tile in zip(left, tiles, strict=True):
            panel.paste(tile, (x, y))
    write_atomic(out, encode(panel, "PNG"))


def _draw_row(patch: Tensor, views: Sequence[Tensor]) -> list[Image.Image]:
    """A patch (C, H, W) and its views, each (C, h, w), as pictures of one size and brightness."""
    pictures = [image.detach().cpu().permute(1, 2, 0).numpy() for image in (patch, *views)]  # (H, W, C) each
    bright = float(np.percentile(pictures[0], 99.8))
    gain = 1 / bright if 0 < bright < DARK else 1.0
    height, width = pictures[0].shape[:2]
    scale = min(max(height, width, MIN_TILE_PX), MAX_TILE_PX) / max(height, width)
    size = (max(1, round(width * scale)), max(1, round(height * scale)))
    shown = [as_rgb((picture * (255 * gain)).round().clip(0, 255).astype(np.uint8)) for picture in pictures]
    return [Image.fromarray(rgb).resize(size, Image.Resampling.LANCZOS) for rgb in shown]

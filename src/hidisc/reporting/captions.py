"""Pictures of pixels: lines of text above them, their colours, their bytes in files and in pages."""

import base64
import io
from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

from PIL import Image, ImageDraw, ImageFont

from hidisc.ground.text import printable

Colour = tuple[int, int, int]
INK, PAPER, ORANGE = (40, 40, 46), (255, 255, 255), (204, 85, 0)


def add_caption(
    image: Image.Image, text: str, *, size_px: int = 16, right: Sequence[tuple[str, Colour]] = ()
) -> Image.Image:
    """Return the picture with a line above it: `text`, cut to the room there is, and coloured words at the right."""
    font = ImageFont.load_default(size_px)
    bar_px = size_px + 12
    captioned = Image.new("RGB", (image.width, image.height + bar_px), PAPER)
    captioned.paste(image, (0, bar_px))
    draw = ImageDraw.Draw(captioned)
    room = image.width - 8.0
    for word, colour in reversed(right):
        room -= draw.textlength(word, font)
        draw.text((room + 4, 5), word, fill=colour, font=font)
        room -= 12
    text = printable(text)
    if draw.textlength(text, font) > room:
        fits = bisect_right(range(len(text)), room, key=lambda length: draw.textlength(text[:length] + "...", font))
        text = text[: max(0, fits - 1)] + "..."
    draw.text((4, 5), text, fill=INK, font=font)
    return captioned


def encode(image: Image.Image, kind: str, **options: Any) -> bytes:
    """Return the picture as the bytes of a file of a kind, such as JPEG; `options` are Pillow's."""
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def to_address(kind: str, data: bytes) -> str:
    """Return data of a kind, such as image/jpeg, as an address that holds it."""
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"

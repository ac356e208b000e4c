"""A patch as bytes and back: JPEG, Zstandard, PNG or raw; 8 or 16 bits; any number of channels.

`zstd` is lossless and four to five times as fast to read as PNG at the same size (docs/lab/decisions.md has the
measurements): what is compressed is the difference of every value from the one to the left of it.
"""

from typing import Any, Literal

import imagecodecs
import numpy as np

from hidisc.ground.errors import UserError
from hidisc.slides.slide import Pixels

CodecName = Literal["jpeg", "zstd", "png", "raw"]
_END_OF_JPEG = b"\xff\xd9"
_PLANES = b"\x02"
"""Before the frame of 16-bit pixels. Without it, as in the first stores of 0.3, low bytes come first in every row."""


def check_codec(codec: CodecName, channels: int, dtype: np.dtype[Any]) -> None:
    """Refuse a codec that cannot hold such pixels."""
    if codec == "jpeg" and (dtype != np.uint8 or channels not in (1, 3)):
        raise UserError(
            f"JPEG cannot hold {channels} channels of {dtype} (only 1 or 3 of uint8). "
            "Use --set pixels.codec=zstd or raw, or --recipe srh."
        )


def encode(pixels: Pixels, codec: CodecName, quality: int = 90) -> bytes:
    """Bytes of a patch (H, W, C); JPEG keeps full colour resolution (4:4:4), the others every bit."""
    pixels = np.ascontiguousarray(pixels)
    if codec == "jpeg":
        grey = pixels.shape[2] == 1
        return bytes(
            imagecodecs.jpeg8_encode(
                pixels[..., 0] if grey else pixels, level=quality, subsampling=None if grey else "444"
            )
        )
    if codec == "zstd":
        marker = _PLANES if pixels.dtype == np.uint16 else b""
        return marker + bytes(imagecodecs.zstd_encode(_take_differences(pixels).tobytes(), level=1))
    if codec == "png":
        return bytes(imagecodecs.png_encode(_flat(pixels), level=4))
    return pixels.tobytes()


def decode(
    data: Any, codec: CodecName, shape: tuple[int, int, int], dtype: np.dtype[Any], out: Pixels | None = None
) -> Pixels:
    """The patch (H, W, C) in `data` (bytes or a memory-mapped view), into `out` if given; raises when cut short."""
    height, width, channels = shape
    target = out if channels == 3 else None  # the libraries write RGB straight into an array, other counts not
    if codec == "raw":
        pixels = np.frombuffer(data, dtype)
    elif codec == "jpeg":
        if bytes(data[-2:]) != _END_OF_JPEG:  # the decoder would paint what is missing grey
            raise ValueError("the JPEG is cut short")
        pixels = imagecodecs.jpeg8_decode(data, out=target)
    elif codec == "zstd":
        in_planes = bytes(data[:1]) == _PLANES
        pixels = np.frombuffer(imagecodecs.zstd_decode(data[1:] if in_planes else data), dtype)
    else:
        pixels = imagecodecs.png_decode(data, out=target)
    if pixels.dtype != dtype or pixels.size != height * width * channels:
        raise ValueError(f"{pixels.size} values of {pixels.dtype}, not {shape} of {dtype}")
    if codec == "png" and channels not in (1, 3):
        pixels = np.moveaxis(pixels.reshape(height, channels, width), 1, 2)
    pixels = pixels.reshape(shape)
    if codec == "zstd":
        if dtype == np.uint16:
            pixels = _join_bytes(pixels, out) if in_planes else imagecodecs.byteshuffle_decode(pixels, axis=1)
        pixels = _add_differences(pixels, out)
    if out is not None and pixels.base is not out and pixels is not out:
        out[...] = pixels
    return pixels if out is None else out


def _take_differences(pixels: Pixels) -> Pixels:
    """The difference of every value from the one to its left, modulo 256 or 65,536.

    Before that, green is subtracted from red and blue (8-bit RGB). Differences of 16 bits become two blocks: the low
    bytes of all values, and then the high bytes, which are nearly all 0 or 255.
    """
    if pixels.shape[2] == 3 and pixels.dtype == np.uint8:
        pixels = pixels.copy()
        for channel in (0, 2):
            pixels[..., channel] -= pixels[..., 1]
    differences: Pixels = imagecodecs.delta_encode(pixels, axis=1)
    return differences.reshape(-1, 1).view(np.uint8).T if pixels.dtype == np.uint16 else differences


def _add_differences(differences: Pixels, out: Pixels | None) -> Pixels:
    """The pixels that `_take_differences` was given, from differences whose 16-bit values are joined again."""
    pixels: Pixels = imagecodecs.delta_decode(differences, axis=1, out=out)
    if pixels.shape[2] == 3 and pixels.dtype == np.uint8:
        for channel in (0, 2):  # one at a time: both at once is an inner loop of two values
            pixels[..., channel] += pixels[..., 1]
    return pixels


def _join_bytes(halves: Pixels, out: Pixels | None) -> Pixels:
    """16-bit values from `halves`, which has all low bytes and then all high bytes; into `out` if given."""
    out = np.empty_like(halves) if out is None else out
    low, high = halves.reshape(-1).view(np.uint8).reshape(2, *out.shape)
    out[...] = high
    out <<= 8
    out |= low
    return out


def _flat(pixels: Pixels) -> Pixels:
    """PNG knows grey and RGB: other channel counts are stored as one grey picture, channels side by side."""
    height, width, channels = pixels.shape
    if channels == 1:
        return pixels[..., 0]
    if channels == 3:
        return pixels
    return np.ascontiguousarray(np.moveaxis(pixels, 2, 1)).reshape(height, channels * width)

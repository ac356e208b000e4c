"""A patch comes back from its bytes: every bit of it (PNG, raw), or all the eye sees (JPEG)."""

import io
from typing import Any

import imagecodecs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

from hidisc.ground.errors import UserError
from hidisc.patches.codec import CodecName, check_codec, decode, encode

U8, U16 = np.dtype("uint8"), np.dtype("uint16")


@st.composite
def patches(draw: st.DrawFn) -> NDArray[Any]:
    """Patches of any depth, channel count and odd size, noisy or with few values."""
    shape = (draw(st.integers(1, 33)), draw(st.integers(1, 33)), draw(st.integers(1, 6)))
    dtype = draw(st.sampled_from([U8, U16]))
    top = draw(st.sampled_from([1, 255, int(np.iinfo(dtype).max)]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    return rng.integers(0, top, shape, dtype=dtype, endpoint=True)


def smooth(channels: int, size_px: int = 48) -> NDArray[np.uint8]:
    """A picture of slow waves, a different one per channel."""
    y, x = np.mgrid[:size_px, :size_px] / size_px
    waves = [128 + 100 * np.sin(3 * x + 2 * c) * np.cos(2 * y - c) for c in range(channels)]
    return np.stack(waves, axis=-1).astype(np.uint8)


@pytest.mark.parametrize("codec", ["zstd", "png", "raw"])
@given(pixels=patches())
def test_lossless_codecs_keep_every_bit(codec: CodecName, pixels: NDArray[Any]) -> None:
    back = decode(encode(pixels, codec), codec, pixels.shape, pixels.dtype)
    assert back.dtype == pixels.dtype
    np.testing.assert_array_equal(back, pixels)


@pytest.mark.parametrize("codec", ["zstd", "png", "raw", "jpeg"])
def test_a_view_of_a_larger_picture_is_encoded_as_it_looks(codec: CodecName) -> None:
    whole = smooth(3, 64)
    assert encode(whole[8:40:2, 3:35:2], codec) == encode(whole[8:40:2, 3:35:2].copy(), codec)


@pytest.mark.parametrize("channels", [1, 3])
def test_jpeg_is_close_on_smooth_pictures(channels: int) -> None:
    pixels = smooth(channels)
    back = decode(encode(pixels, "jpeg", 90), "jpeg", pixels.shape, U8)
    assert back.shape == pixels.shape
    assert np.abs(back.astype(int) - pixels).max() <= 8
    assert np.abs(back.astype(int) - pixels).mean() < 1.5


def test_jpeg_keeps_full_colour_resolution() -> None:
    data = encode(smooth(3), "jpeg", 90)
    frame = data.index(b"\xff\xc0")  # SOF0: length, precision, height, width, components, then (id, sampling, table)
    assert [data[frame + 11 + 3 * component] for component in range(data[frame + 9])] == [0x11, 0x11, 0x11]


def test_jpeg_keeps_colour_that_changes_from_pixel_to_pixel() -> None:
    red, blue = (220, 40, 60), (60, 40, 220)
    stripes = np.array([[red, blue] * 16] * 32, np.uint8)
    back = decode(encode(stripes, "jpeg", 90), "jpeg", stripes.shape, U8).astype(int)
    assert (back[:, ::2, 0] - back[:, 1::2, 0]).min() > 100  # with 4:2:0 the columns would be alike


def test_jpeg_quality_is_that_of_the_usual_scale() -> None:
    picture = Image.open(io.BytesIO(encode(smooth(3), "jpeg", 90)))
    buffer = io.BytesIO()
    Image.fromarray(smooth(3)).save(buffer, "JPEG", quality=90, subsampling=0)
    assert picture.quantization == Image.open(buffer).quantization  # type: ignore[attr-defined]


@pytest.mark.parametrize(("channels", "dtype"), [(2, U8), (4, U8), (3, U16), (1, U16)])
def test_jpeg_refuses_what_it_cannot_hold(channels: int, dtype: np.dtype[Any]) -> None:
    with pytest.raises(UserError) as caught:
        check_codec("jpeg", channels, dtype)
    assert str(caught.value) == (
        f"JPEG cannot hold {channels} channels of {dtype} (only 1 or 3 of uint8). "
        "Use --set pixels.codec=zstd or raw, or --recipe srh."
    )


@pytest.mark.parametrize(
    ("codec", "channels", "dtype"),
    [("jpeg", 1, U8), ("jpeg", 3, U8), ("png", 2, U16), ("zstd", 4, U16), ("raw", 5, U16)],
)
def test_what_a_codec_can_hold_passes(codec: CodecName, channels: int, dtype: np.dtype[Any]) -> None:
    check_codec(codec, channels, dtype)


@pytest.mark.parametrize("codec", ["zstd", "png", "raw", "jpeg"])
@given(share=st.floats(0, 0.99))
def test_truncated_data_is_refused(codec: CodecName, share: float) -> None:
    pixels = smooth(3)
    data = encode(pixels, codec)
    short = data[: min(int(len(data) * share), len(data) - 13)]  # PNG's last 12 bytes hold no pixel
    with pytest.raises((ValueError, RuntimeError)):
        decode(short, codec, pixels.shape, U8)


@pytest.mark.parametrize("codec", ["zstd", "png", "raw", "jpeg"])
def test_a_patch_of_another_size_is_refused(codec: CodecName) -> None:
    with pytest.raises(ValueError, match=r"^6912 values of uint8, not \(40, 40, 3\) of uint8$"):
        decode(encode(smooth(3), codec), codec, (40, 40, 3), U8)


def test_a_patch_of_another_depth_is_refused() -> None:
    with pytest.raises(ValueError, match=r"of uint8, not \(48, 48, 3\) of uint16$"):
        decode(encode(smooth(3), "png"), "png", (48, 48, 3), U16)


@pytest.mark.parametrize(("channels", "dtype"), [(1, U8), (3, U8), (2, U16), (3, U16)])
@pytest.mark.parametrize("codec", ["zstd", "png", "raw"])
def test_a_patch_is_decoded_into_an_array(codec: CodecName, channels: int, dtype: np.dtype[Any]) -> None:
    pixels = np.random.default_rng(0).integers(0, np.iinfo(dtype).max, (2, 9, 7, channels), dtype)
    out = np.zeros_like(pixels)
    for place in range(2):
        decode(encode(pixels[place], codec), codec, pixels.shape[1:], dtype, out[place])
    np.testing.assert_array_equal(out, pixels)


@pytest.mark.parametrize("dtype", [U8, U16])
def test_differences_are_those_that_the_page_of_formats_says(dtype: np.dtype[Any]) -> None:
    """Written from docs/formats.md, for readers without hidisc."""
    pixels = np.random.default_rng(1).integers(0, np.iinfo(dtype).max, (6, 5, 3), dtype)
    stored = encode(pixels, "zstd")
    assert (stored[0] == 2) == (dtype == U16)
    data = np.frombuffer(imagecodecs.zstd_decode(stored[stored[0] == 2 :]), np.uint8)
    if dtype == U16:
        data = np.stack([data[:90], data[90:]], axis=1).reshape(-1)
    values = np.cumsum(data.view(dtype.newbyteorder("<")).reshape(6, 5, 3), axis=1, dtype=dtype)
    if dtype == U8:
        values[..., 0] += values[..., 1]
        values[..., 2] += values[..., 1]
    np.testing.assert_array_equal(values, pixels)


@pytest.mark.parametrize("into", [False, True])
def test_16_bits_in_the_order_of_the_first_0_3_are_still_read(into: bool) -> None:
    """Each row has its low bytes before its high ones, and no byte stands before the frame."""
    pixels = np.random.default_rng(2).integers(0, 2**16, (6, 5, 2), np.uint16)
    differences = np.diff(pixels, axis=1, prepend=np.uint16(0)).astype("<u2")
    rows = [row.reshape(-1, 1).view(np.uint8).T.tobytes() for row in differences]
    old = bytes(imagecodecs.zstd_encode(b"".join(rows), level=1))
    shuffled = imagecodecs.byteshuffle_encode(imagecodecs.delta_encode(pixels, axis=1), axis=1)
    assert old == bytes(imagecodecs.zstd_encode(shuffled.tobytes(), level=1))
    out = np.empty_like(pixels) if into else None
    found = decode(np.frombuffer(old, np.uint8), "zstd", pixels.shape, U16, out)
    np.testing.assert_array_equal(found, pixels)
    if into:
        np.testing.assert_array_equal(out, pixels)

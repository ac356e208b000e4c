"""Plain pictures (PNG, JPEG, BMP, palette TIFFs) through Pillow, as one-level slides held in memory."""

import re
from mmap import ACCESS_READ, mmap
from pathlib import Path

import numpy as np
from PIL import ExifTags, Image, UnidentifiedImageError

from hidisc.slides.readers.tiff import sniff
from hidisc.slides.slide import DAMAGE, Pixels, Slide, SlideError, SlideFile

MAX_MEGAPIXELS = 100
"""A picture is decoded whole: 100 megapixels are 300 MB, and 400 MB more while Pillow decodes them."""
_STRIP_PX = 64
"""Rows that are converted at once, so that no second copy of the picture is made."""
_MODES = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "RGBX")


class Picture(Slide):
    """A plain picture; its dots per inch are about printing, so it never has a scale of its own."""

    turn = 4
    formats = "PNG, JPEG"
    suffixes = (".png", ".jpg", ".jpeg", ".bmp")
    reader = "pillow"
    levels = (1.0,)
    mpp = None

    @classmethod
    def takes(cls, file: SlideFile) -> bool:
        """Whether it is a TIFF of palette indices; as the last reader, it gets all that no other one takes too."""
        return file.ask(sniff) == "picture"

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._pixels = read_picture(path)
        self.height, self.width, self.channels = self._pixels.shape
        self.dtype = self._pixels.dtype

    def read(self, level: int, x: int, y: int, width: int, height: int) -> Pixels:
        """Pixels (height, width, C) of a rectangle of the picture."""
        return self._pixels[y : y + height, x : x + width]

    def close(self) -> None:
        """Release the pixels."""
        self._pixels = np.empty((0, 0, self.channels), self.dtype)


def read_picture(path: Path) -> Pixels:
    """The pixels (H, W, C) of a picture file: grey and RGB at 8 bits, grey at 16; upright, transparency on white."""
    try:
        with Image.open(path) as image:
            _refuse(image)
            if image.format in ("JPEG", "MPO"):
                check_jpeg(path)
            image.load()
            strips = range(0, image.height, _STRIP_PX)
            first = _convert(image, strips[0])
            pixels = np.empty((image.height, *first.shape[1:]), first.dtype)
            for top in strips:
                pixels[top : top + _STRIP_PX] = _convert(image, top) if top else first
            # Pillow turns or mirrors a TIFF by itself, and nothing else
            return pixels if image.format == "TIFF" else _turn_upright(pixels, _read_orientation(image))
    except UnidentifiedImageError as error:
        raise SlideError("not a picture or slide format known here.") from error
    except Image.DecompressionBombError as error:
        raise SlideError(f"{error}. Convert it to a tiled pyramidal TIFF.") from error
    except DAMAGE as error:
        raise SlideError(f"the picture is damaged or cut short ({error}). Copy it again.") from error


def _refuse(image: Image.Image) -> None:
    """Raise for a picture that is too large, more than one, or not of measured light."""
    if image.width * image.height > MAX_MEGAPIXELS * 1e6:
        raise SlideError(
            f"a picture of {image.width} x {image.height} px does not fit in memory (at most "
            f"{MAX_MEGAPIXELS} megapixels). Convert it, e.g. `vips tiffsave in.png out.tiff --tile --pyramid`."
        )
    frames = getattr(image, "n_frames", 1)
    if frames > 1:
        raise SlideError(f"it holds {frames} pictures (frames or pages). Save the one that is meant as a PNG.")
    if image.format == "TIFF" and _read_orientation(image) >= 5:  # of which Pillow makes noise
        raise SlideError("a TIFF whose rows are stored as columns (orientation 5 to 8). Save it upright.")
    if image.mode in ("I", "F"):
        raise SlideError("its pixels have 32 bits. Only 8 and 16 bit unsigned are read; convert it.")
    if image.mode not in _MODES and not image.mode.startswith("I;16"):
        raise SlideError(f"its colours are {image.mode}. Only grey and RGB are read; save it as RGB.")


def _convert(image: Image.Image, top: int) -> Pixels:
    """(rows, W, C): one strip of a picture as grey or RGB."""
    strip = image.crop((0, top, image.width, min(top + _STRIP_PX, image.height)))
    if image.mode.startswith("I;16"):
        return np.asarray(strip).astype(np.uint16)[..., None]
    if image.mode in ("L", "1"):
        return np.asarray(strip.convert("L"))[..., None]
    if "A" in image.mode or "transparency" in image.info:
        white = Image.new("RGBA", strip.size, "white")
        return np.asarray(Image.alpha_composite(white, strip.convert("RGBA")).convert("RGB"))
    return np.asarray(strip.convert("RGB"))


def _read_orientation(image: Image.Image) -> int:
    """How the camera was held, by the EXIF code 1 to 8; 1 (upright) where that cannot be read."""
    try:
        code = image.getexif().get(ExifTags.Base.Orientation)
    except DAMAGE:  # damage beside the pixels
        code = None
    return code if isinstance(code, int) and 1 <= code <= 8 else 1


def _turn_upright(pixels: Pixels, orientation: int) -> Pixels:
    """The picture as it was seen; a view, so that it takes no memory."""
    if orientation >= 5:
        pixels = pixels.swapaxes(0, 1)
    if orientation in (2, 3, 6, 7):
        pixels = pixels[:, ::-1]
    if orientation in (3, 4, 7, 8):
        pixels = pixels[::-1]
    return pixels


_MARKER = re.compile(rb"\xff[^\x00\xd0-\xd7\xff]")
"""The next marker, behind compressed pixels as well: in them FF is followed by 00 or is a restart."""
_TABLES, _SCAN, _END = 0xC4, 0xDA, 0xD9
_SEQUENTIAL = (0xC0, 0xC1)
_WITHOUT_LENGTH = (0x01, 0xD8)
_HOLE = bytes(512)


def check_jpeg(path: Path) -> None:
    """Raise where the pixels of a JPEG do not come to their end, or have a hole of zeros as half copied files have.

    Its decoder does not say so: it makes grey or noise of the missing pixels.
    """
    with path.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as data:
        at, sequential = 0, False
        zeros: dict[int, int] = {}  # what a code of nothing but zeros means in each Huffman table
        while marker := _MARKER.search(data, at):
            code, at = marker[0][1], marker.end()
            if code == _END:
                return
            if code in _WITHOUT_LENGTH:
                continue
            segment = data[at + 2 : at + int.from_bytes(data[at : at + 2])]
            at += 2 + len(segment)
            sequential |= code in _SEQUENTIAL
            if code == _TABLES:
                zeros |= _read_tables(segment)
            elif code == _SCAN and segment and sequential and not _may_be_zeros(segment, zeros):
                following = _MARKER.search(data, at)
                if data.find(_HOLE, at, following.start() if following else len(data)) >= 0:
                    raise SlideError("the JPEG has a hole: zeros stand where pixels should. Copy it again.")
    raise SlideError("the JPEG is cut short: its pixels do not come to their end. Copy it again.")


def _read_tables(segment: bytes) -> dict[int, int]:
    """The first symbol of each Huffman table of a segment; its code is all zeros."""
    symbols = {}
    while len(segment) > 17:
        symbols[segment[0]] = segment[17]
        segment = segment[17 + sum(segment[1:17]) :]
    return symbols


def _may_be_zeros(scan: bytes, zeros: dict[int, int]) -> bool:
    """Whether zeros are what one even colour is coded as in this scan: no change, and nothing else in the block."""
    selectors = scan[2 : 1 + 2 * scan[0] : 2]  # a byte per component: its tables of first and of further values
    return all(zeros.get(byte >> 4) == zeros.get(0x10 | byte & 0x0F) == 0 for byte in selectors)

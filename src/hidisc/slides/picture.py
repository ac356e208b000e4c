"""Plain pictures (PNG, JPEG, BMP, palette TIFFs) through Pillow, as one-level slides held in memory."""

from pathlib import Path

import numpy as np
from PIL import ExifTags, Image, UnidentifiedImageError

from hidisc.slides.slide import DAMAGE, Pixels, Slide, SlideError
from hidisc.slides.tiled import check_jpeg

MAX_MEGAPIXELS = 100
"""A picture is decoded whole: 100 megapixels are 300 MB, and 400 MB more while Pillow decodes them."""
_STRIP_PX = 64
"""Rows that are converted at once, so that no second copy of the picture is made."""
_MODES = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "RGBX")


class Picture(Slide):
    """A plain picture; its dots per inch are about printing, so it never has a scale of its own."""

    reader = "pillow"
    levels = (1.0,)
    mpp = None

    def __init__(self, path: Path) -> None:
        self.path = path
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

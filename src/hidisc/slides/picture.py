"""Plain pictures (PNG, JPEG, BMP, odd TIFFs) through Pillow, as one-level slides held in memory."""

from pathlib import Path

import numpy as np
from PIL import Image, UnidentifiedImageError

from hidisc.slides.slide import Pixels, Slide, SlideError

MAX_MEGAPIXELS = 100
"""A picture is decoded whole: 100 megapixels are 300 MB, twice that while decoding."""


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
    """The pixels (H, W, C) of a picture file: grey and RGB at 8 bits, grey at 16; transparency laid on white."""
    try:
        with Image.open(path) as image:
            if image.width * image.height > MAX_MEGAPIXELS * 1e6:
                raise SlideError(
                    f"a picture of {image.width} x {image.height} px does not fit in memory (at most "
                    f"{MAX_MEGAPIXELS} megapixels). Convert it, e.g. `vips tiffsave in.png out.tiff --tile --pyramid`."
                )
            if image.mode.startswith("I;16"):
                return np.asarray(image).astype(np.uint16)[..., None]
            if image.mode in ("I", "F"):
                raise SlideError("its pixels have 32 bits. Only 8 and 16 bit unsigned are read; convert it.")
            if image.mode in ("L", "1"):
                return np.asarray(image.convert("L"))[..., None]
            if "A" in image.mode or "transparency" in image.info:
                white = Image.new("RGBA", image.size, "white")
                return np.asarray(Image.alpha_composite(white, image.convert("RGBA")).convert("RGB"))
            return np.asarray(image.convert("RGB"))
    except UnidentifiedImageError as error:
        raise SlideError("not a picture or slide format known here.") from error
    except Image.DecompressionBombError as error:
        raise SlideError(f"{error}. Convert it to a tiled pyramidal TIFF.") from error
    except (OSError, SyntaxError, ValueError, EOFError) as error:
        raise SlideError(f"the picture is damaged or cut short ({error}). Copy it again.") from error

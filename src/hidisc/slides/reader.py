"""Open any slide file with the library that reads it best; nothing else needs to know which."""

from concurrent.futures import Future, wait
from pathlib import Path
from threading import Thread

from hidisc.ground.files import AnyPath
from hidisc.slides.picture import Picture
from hidisc.slides.slide import Slide, SlideError
from hidisc.slides.tiff import TiffSlide, refuse_circle, sniff
from hidisc.slides.tiled import FORMATS as TILED
from hidisc.slides.tiled import TiledSlide
from hidisc.slides.wsi import WholeSlide, detect_format

FORMATS = "SVS, NDPI, SCN, MRXS, BIF, DICOM whole-slide, OME-TIFF, QPTIFF, tiled or plain TIFF, PNG, JPEG"
LIMIT_S = 60.0
"""Seconds that a file may take to open: damage can send a library in circles, and a disk can stop answering."""


def open_slide(path: AnyPath, limit_s: float = LIMIT_S) -> Slide:
    """An open slide, or a SlideError that names the file, why it was refused and what is read.

    No library can be stopped from outside, so a thread opens the file; one that exceeds the limit is left behind.
    """
    path = Path(path)
    opened: Future[Slide] = Future()
    Thread(target=_open_into, args=(opened, path), daemon=True).start()
    if not wait([opened], limit_s).done:
        raise SlideError(
            f"{path} cannot be read: it was not open after {limit_s:g} s. Copy it to a disk of this machine, or "
            "convert it to a tiled pyramidal TIFF."
        )
    try:
        return opened.result()
    except SlideError as error:
        hint = ""
        if _is_dicom(path) and "Unsupported" not in str(error):  # that, OpenSlide says of a slide's pixels
            hint = (
                " It is a DICOM file, but not a whole-slide image (VL Whole Slide Microscopy); export the slide itself."
            )
        raise SlideError(f"{path} cannot be read: {error}{hint} Formats read: {FORMATS}.") from error


def _open_into(opened: "Future[Slide]", path: Path) -> None:
    try:
        opened.set_result(_open(path))
    except BaseException as error:  # noqa: BLE001 - raised again where the result is asked for
        opened.set_exception(error)


def _open(path: Path) -> Slide:
    """OpenSlide first, except for TIFFs it would flatten to 8-bit RGB or whose pyramid it does not see."""
    refuse_circle(path)
    kind = sniff(path)
    if kind == "tiff":
        return TiffSlide(path)
    format_ = detect_format(path)
    if format_ is not None:
        try:
            return TiledSlide(path) if format_ in TILED else WholeSlide(path)
        except SlideError:
            if kind is None:
                raise
    if kind == "wsi":
        return TiffSlide(path)
    return Picture(path)


def _is_dicom(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(132)[128:] == b"DICM"
    except OSError:
        return False


def resolve_mpp(slide: Slide, from_cohort: float | None, assumed: float | None) -> float:
    """The scale to cut at: the cohort's word, else the file's, else the assumed one; never a guess."""
    mpp = from_cohort or slide.mpp or assumed
    if mpp is None:
        raise SlideError(
            f"{slide.path} does not say how large its pixels are. Put micrometres per pixel into the `mpp` column of "
            "the cohort (40x is usually 0.25, 20x 0.5), or give --assume-mpp for all slides without."
        )
    return mpp

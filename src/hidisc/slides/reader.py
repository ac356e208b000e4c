"""Open any slide file with the reader of `slides/readers/` that fits; nothing else needs to know which."""

from concurrent.futures import Future, wait
from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from threading import Thread

from hidisc.ground.files import AnyPath
from hidisc.slides import readers
from hidisc.slides.slide import Slide, SlideError, SlideFile

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
        raise SlideError(f"{path} cannot be read: {error}{hint} Formats read: {list_formats()}.") from error


def _open_into(opened: "Future[Slide]", path: Path) -> None:
    try:
        opened.set_result(_open(path))
    except BaseException as error:  # noqa: BLE001 - raised again where the result is asked for
        opened.set_exception(error)


def _open(path: Path) -> Slide:
    """The slide, opened by the first reader that takes the file and can open it; else what the last one said."""
    file, known = SlideFile(path), list_readers()
    *others, last = [reader for reader in known if reader.takes(file)] or known[-1:]
    for reader in others:
        try:
            return reader(path)
        except SlideError:
            continue
    return last(path)


@cache
def list_readers() -> tuple[type[Slide], ...]:
    """The classes in the files of `readers/`, in the order in which they are asked."""
    modules = [import_module(f"{readers.__name__}.{module.name}") for module in iter_modules(readers.__path__)]
    found = [
        thing
        for module in modules
        for thing in vars(module).values()
        if isinstance(thing, type) and issubclass(thing, Slide) and thing.__module__ == module.__name__
    ]
    return tuple(sorted(found, key=lambda reader: reader.turn))


def list_formats() -> str:
    """The formats that are read, for people."""
    return ", ".join(filter(None, (reader.formats for reader in list_readers())))


def list_suffixes() -> frozenset[str]:
    """How names of files that may be slides end, in small letters."""
    return frozenset(suffix for reader in list_readers() for suffix in reader.suffixes)


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
